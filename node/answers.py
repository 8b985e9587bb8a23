"""Small answers: who we are, where the others are, offsets, single records.

Each method takes a request's fields and returns the fields of its answer (`connection` adds header
and payload), or what a thread has to look up for it (`Asked`, carried out by `cold_work`). Offsets
are queue offsets in records unless a name says log offset (bytes); ages on the wire are
milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from node.admin import no_topic
from node.presence import Presence
from node.reads import Standing
from storage.cold_look import ColdLook
from storage.epoch_history import Epoch
from twinlog import wire
from twinlog.errors import (
    Busy,
    NotEnoughInSync,
    NotMaster,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.layout import LIGHT_PREFIX
from twinlog.record import FLAG_BORN_V6, FLAG_STORE_V6, unpack_host

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose node this is, and what all nodes of the group agree on."""

    cluster: str
    group: str
    name: str
    family: int
    """4 or 6: the length of the store host in every record."""
    segment_size: int
    message_size_max: int
    acknowledge: str
    """What an append that asks for nothing waits for."""


class AnswerStore(Protocol):
    """The part of the store this module uses."""

    @property
    def confirm(self) -> int:
        """The confirm offset."""
        ...

    @property
    def dispatched(self) -> int:
        """The dispatched offset."""
        ...

    @property
    def end(self) -> int:
        """The end offset."""
        ...

    @property
    def epochs(self) -> Sequence[Epoch]:
        """The epochs of the log, oldest first."""
        ...

    def topics(self) -> Mapping[str, int]:
        """Queues by topic."""
        ...

    def missing(self, topic: str) -> TwinlogError:
        """Why a topic is not among them."""
        ...

    def topics_waiting(self) -> bool:
        """Whether the log has topics that are not confirmed."""
        ...

    def batched(self) -> Collection[str]:
        """Topics with batch queues."""
        ...

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """First and next queue offset."""
        ...

    def offsets_at_time(
        self, topic: str, queues: Sequence[int], ms: int
    ) -> ColdLook[list[tuple[int, int, int]]]:
        """The look for start, end and the offset of a time, of queues."""
        ...

    def record_at(self, log_offset: int) -> memoryview | None:
        """The record that starts there, below confirm."""
        ...

    def record_cold(self, log_offset: int) -> ColdLook[memoryview | None] | None:
        """The look for it, when it is hardly in memory."""
        ...

    def looked_at(self, look: ColdLook[T], outcome: T | Exception) -> T:
        """What may be served of what a thread found; raises what the client is told."""
        ...


Answer = tuple[Mapping[str, object], Sequence[memoryview]]
"""Fields and payload."""


@dataclass(frozen=True, slots=True)
class Asked(Generic[T]):
    """An answer for which a thread has to look something up first.

    Attributes:
        look: What the thread runs.
        finish: Makes the answer of what it brought, on the loop; raises what the client is told.
    """

    look: ColdLook[T]
    finish: Callable[[T | Exception], Answer]


EPOCHS_MAX = 1024
"""Epochs that one METADATA answer lists."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Who is master as far as this node knows."""

    leader: str | None
    epoch: int
    writable: bool


class Answers:
    """Builds the answers of one node; holds no state of its own."""

    def __init__(
        self,
        identity: Identity,
        store: AnswerStore,
        presence: Presence,
        *,
        leadership: Callable[[], Leadership],
        standing: Callable[[], Standing],
    ) -> None:
        self.identity = identity
        self._store = store
        self._presence = presence
        self._leadership = leadership
        self._standing = standing

    def hello(self) -> dict[str, object]:
        """Who answers, and what a producer must know to encode records."""
        identity = self.identity
        return {
            "version": wire.VERSION,
            "features": 0,
            "node": identity.name,
            "cluster": identity.cluster,
            "group": identity.group,
            "family": identity.family,
            "segment_size": identity.segment_size,
        }

    def metadata(self, topics: Collection[str] | None) -> dict[str, object]:
        """The nodes with their addresses, the master, the topics (all, or those asked for).

        It says whether no other topic was acknowledged: that is for a master to say, and one that
        is in its log and not confirmed may have been, by the last one.

        Raises:
            NotYetConfirmed: One that is asked for is in the log and not confirmed yet.
        """
        identity, leadership = self.identity, self._leadership()
        known = self._store.topics()
        wanted = known if topics is None else {name: known[name] for name in topics & known.keys()}
        for name in topics or ():
            if name not in known and (error := self._store.missing(name)).retryable:
                raise error
        return {
            "cluster": identity.cluster,
            "group": identity.group,
            "epoch": leadership.epoch,
            "leader": leadership.leader,
            "nodes": [dict(entry) for entry in self._presence.entries()],
            "topics": dict(wanted),
            "family": identity.family,
            "message_size_max": identity.message_size_max,
            "epochs": self._epochs(),
            "confirm": self._store.confirm,
            "batched": sorted(wanted.keys() & self._store.batched()),
            "settled": self._standing().role == "master"
            and (topics is not None or not self._store.topics_waiting()),
        }

    def _epochs(self) -> list[list[int]]:
        """Epoch and start of the newest epochs that hold a confirmed byte, oldest first."""
        confirm = self._store.confirm
        found = [[one.epoch, one.start] for one in self._store.epochs if one.start < confirm]
        return found[-EPOCHS_MAX:]

    def _settled(self, standing: Standing) -> bool:
        """Whether the queues have everything that was acknowledged before this moment.

        Those of a master that has just started end where a snapshot saw them, until they are built
        up to what is confirmed.
        """
        store = self._store
        return store.dispatched >= store.confirm and standing.knows(store.epochs, store.confirm)

    def offsets(self, fields: Mapping[str, object]) -> Answer | Asked[list[tuple[int, int, int]]]:
        """First and next offset of a topic's queues; offsets at a time are looked up in a thread.

        Raises:
            UnknownTopic: No such topic, or no such queue of it.
            NotYetConfirmed: Its record is in the log and not confirmed yet.
            UsageError: A field is not of its kind.
        """
        topic, wanted, at_ms = fields.get("topic"), fields.get("queues"), fields.get("at_ms")
        if not isinstance(topic, str):
            raise UsageError("offsets names a topic", code="fields")
        if at_ms is not None and not isinstance(at_ms, int):
            raise UsageError("at_ms is a time in ms", code="fields")
        light, standing = topic.startswith(LIGHT_PREFIX), self._standing()
        count = 1 if light else self._store.topics().get(topic)
        if count is None:
            raise standing.doubted(no_topic(self._store, topic))
        queues = range(count) if wanted is None else list(dict.fromkeys(_numbers(wanted)))
        for queue in queues:
            if not 0 <= queue < count:
                text = f"topic {topic} has queues 0 to {count - 1}, not {queue}"
                raise standing.doubted(UnknownTopic(text, code="unknown-queue"))
        fields = {  # of the moment that the queues' ends are of
            "confirm": self._store.confirm,
            "dispatched": self._store.dispatched,
            "age_ms": standing.age_ms,
            "node": standing.node,
            "role": standing.role,
            "settled": self._settled(standing),
        }
        if at_ms is None:
            spans = [(*self._store.queue_range(topic, queue), None) for queue in queues]
            return {"queues": _by_queue(queues, spans), **fields}, ()
        look = self._store.offsets_at_time(topic, queues, at_ms)

        def finish(found: list[tuple[int, int, int]] | Exception) -> Answer:
            spans = self._store.looked_at(look, found)
            return {"queues": _by_queue(queues, spans), **fields}, ()

        return Asked(look, finish)

    def get(self, fields: Mapping[str, object]) -> Answer | Asked[memoryview | None]:
        """One record by its log offset; with ``host``, only if that host has stored it.

        One that is hardly in memory is looked up in a thread. Of one above confirm the answer says
        whether it may have been acknowledged all the same: see `Standing.knows`.

        Raises:
            UsageError: No log offset is named.
        """
        offset = fields.get("log_offset")
        if not isinstance(offset, int) or offset < 0:
            raise UsageError("get names a log offset", code="fields")
        if offset >= self._store.confirm:
            status = "above-confirm" if offset < self._store.end else "past-end"
            known = self._standing().knows(self._store.epochs, self._store.confirm)
            return {"status": status, "settled": known}, ()
        wanted = fields.get("host")
        look = self._store.record_cold(offset)
        if look is None:
            return _one(self._store.record_at(offset), wanted)
        return Asked(look, lambda found: _one(self._store.looked_at(look, found), wanted))

    def refusal(self, code: str, text: str) -> TwinlogError:
        """The error for a refusal that concerns the whole node, with what helps the client on."""
        name = self.identity.name
        match code:
            case "not-master":
                return self._not_master()
            case "not-enough-in-sync":
                return NotEnoughInSync(text or f"{name} has too few nodes in sync; nothing written")
            case "busy":
                return Busy(text or f"{name} has reached a limit; nothing was written")
            case "disk-full" | "disk":
                hint = "free space on its disk; writes resume by themselves"
                return Unavailable(f"unavailable: disk of {name} is full", code=code, hint=hint)
            case "unknown-topic":
                return UnknownTopic(text)
            case "topic" | "queues":  # of an order: asked again, it would be refused again
                return UsageError(text, code=code)
            case _:
                return Unavailable(text or f"{name} refuses: {code}", code=code)

    def _not_master(self) -> NotMaster:
        leadership, name = self._leadership(), self.identity.name
        leader = leadership.leader if leadership.leader != name else None
        host, port = self._presence.address(leader, "client_port") or (None, None)
        who = "and none is known" if leader is None else f"{leader} is"
        return NotMaster(
            f"{name} is not the master, {who}",
            leader=leader,
            epoch=leadership.epoch,
            host=host,
            port=port,
        )


def _by_queue(
    queues: Sequence[int], spans: Sequence[tuple[int, int, int | None]]
) -> dict[int, list[int | None]]:
    return {queue: list(span) for queue, span in zip(queues, spans, strict=True)}


def _one(record: memoryview | None, wanted: object) -> Answer:
    """Return the answer to a GET of a record; ``wanted`` is the host that must have stored it."""
    if record is None:
        return {"status": "none"}, ()
    if isinstance(wanted, bytes) and (host := _store_host(record)) != wanted:
        return {"status": "other-host", "stored_by": unpack_host(host)}, ()
    return {"status": "found"}, (record,)


def _store_host(record: memoryview) -> bytes:
    """Return the address that a stored record says it was stored at, 8 or 20 bytes."""
    at = 56 + (12 if record[39] & FLAG_BORN_V6 else 0) + 8
    return bytes(record[at : at + (20 if record[39] & FLAG_STORE_V6 else 8)])


def _numbers(value: object) -> list[int]:
    if not isinstance(value, list):
        raise UsageError("queues is a list of numbers", code="fields")
    found: list[int] = []
    for item in value:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(item, int):
            raise UsageError("queues is a list of numbers", code="fields")
        found.append(item)
    return found
