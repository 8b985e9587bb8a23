"""A node's answers to questions, over a small stand-in for the store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

from node.clients.freshness import Freshness
from node.clients.lookups import Answer, Asked, Lookups
from node.clients.metadata import Identity, Leadership, Metadata
from node.clients.presence import Presence
from node.clients.refusals import Refusals
from storage.read.lookups import OffLoopLookup
from storage.reads import StoreReads
from storage.state.topics import Topic
from twinlog.errors import NotYetConfirmed, TwinlogError, UnknownTopic
from twinlog.format import record
from twinlog.format.epoch_history import Epoch

T = TypeVar("T")
IDENTITY = Identity("c", "g1", "n1", 4, 1 << 20, 4 << 20, "confirmed")
OTHERS: dict[str, Mapping[str, object]] = {
    "n2": {"name": "n2", "host": "h2", "client_port": 72, "slave_port": 82, "http_port": 0},
    "n3": {"name": "n3", "host": "h3", "client_port": "odd"},
}


class Shelf:
    """Stands in for the store: topic t with queues 0 and 1, one record at log offset 100."""

    confirm = 200
    dispatched = 180
    end = 300
    epochs = (Epoch(3, 0), Epoch(7, 150), Epoch(8, 200))

    def topics(self) -> Mapping[str, int]:
        """Queues by topic."""
        return {"t": 2, "u": 1}

    def missing(self, topic: str) -> TwinlogError:
        """Topic ``soon`` is in the log and not confirmed."""
        return NotYetConfirmed(topic) if topic == "soon" else UnknownTopic(topic)

    def narrowed(self) -> Mapping[str, int]:
        """All queues take messages."""
        return {}

    def check_open(self, topic: str) -> None:
        """Every topic may be read."""

    def grown(self) -> Mapping[str, int]:
        """No topic was altered."""
        return {}

    def terms(self, topic: str) -> Topic | None:
        """No topic was altered."""
        return Topic(topic, self.topics()[topic], 0) if topic in self.topics() else None

    def since(self, topic: str) -> int:
        """No topic was deleted."""
        return 0

    def topics_waiting(self) -> bool:
        """Topic ``soon`` does."""
        return True

    def batched(self) -> frozenset[str]:
        """Topics with batch queues."""
        return frozenset("u")

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """First and next queue offset."""
        return queue, queue + 10

    def offsets_at_time(
        self, topic: str, queues: Sequence[int], ms: int
    ) -> OffLoopLookup[list[tuple[int, int, int]]]:
        """The time itself, so that a test sees where it went."""
        found = [(*self.queue_range(topic, queue), ms + queue) for queue in queues]
        return OffLoopLookup(lambda stop: found, 0, 0)

    def record_at(self, log_offset: int) -> memoryview | None:
        """The record at 100."""
        return memoryview(b"record") if log_offset == 100 else None

    def record_cold(self, log_offset: int) -> OffLoopLookup[memoryview | None] | None:
        """The records at 20 and 21 are far back, and somebody else stored the second."""
        far = {20: record.encode("t", 0, b"x", born_timestamp=1, store_host=("10.1.2.3", 9))}
        return OffLoopLookup(lambda stop: _view(far, log_offset), 9, 0) if log_offset < 30 else None

    def looked_at(self, look: OffLoopLookup[T], outcome: T | Exception) -> T:
        """What was found, or the error as it is."""
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _view(shelf: Mapping[int, bytes], at: int) -> memoryview | None:
    return memoryview(shelf[at]) if at in shelf else None


@dataclass(frozen=True)
class Answers:
    """What one node answers."""

    metadata: Metadata
    lookups: Lookups
    refusals: Refusals


def made(fresh: Freshness, leader: str | None, shelf: Shelf | None = None) -> Answers:
    """Return the answers of n1 with the given freshness."""
    store = cast("StoreReads", shelf or Shelf())
    leadership = Leadership(leader, fresh.epoch, False)
    metadata = Metadata(
        IDENTITY, store, presence(), leadership=lambda: leadership, freshness=lambda: fresh
    )
    refusals = Refusals(IDENTITY.name, presence(), lambda: leadership)
    return Answers(metadata, Lookups(store, lambda: fresh), refusals)


def answers(leader: str | None = "n2") -> Answers:
    """Return the answers of n1, a slave of ``leader``."""
    return made(Freshness("n1", "slave", 0.25, None, 7), leader)


def of_master(epoch: int = 8) -> Answers:
    """Return the answers of n1, the master of an epoch."""
    return made(Freshness("n1", "master", 0.0, None, epoch), "n1")


def done(found: Answer | Asked[T]) -> Answer:
    """An answer, with what a thread had to look up."""
    return found.finish(found.look.run(lambda: False)) if isinstance(found, Asked) else found


def presence() -> Presence:
    """n1 among three nodes."""
    found = Presence("n1", lambda: OTHERS)
    found.own = {"name": "n1", "host": "h1", "client_port": 71}
    return found
