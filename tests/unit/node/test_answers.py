"""What a node answers at once: itself, the others, offsets, single records, refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import pytest

from node.answers import Answer, Answers, Asked, Identity, Leadership
from node.counts import ClientCounts
from node.presence import Presence
from node.reads import Standing
from storage.cold_look import ColdLook
from storage.epoch_history import Epoch
from twinlog import record
from twinlog.errors import (
    Busy,
    NotEnoughInSync,
    NotMaster,
    NotYetConfirmed,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.routing import parse_route

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
    ) -> ColdLook[list[tuple[int, int, int]]]:
        """The time itself, so that a test sees where it went."""
        found = [(*self.queue_range(topic, queue), ms + queue) for queue in queues]
        return ColdLook(lambda stop: found, 0, 0)

    def record_at(self, log_offset: int) -> memoryview | None:
        """The record at 100."""
        return memoryview(b"record") if log_offset == 100 else None

    def record_cold(self, log_offset: int) -> ColdLook[memoryview | None] | None:
        """The records at 20 and 21 are far back, and somebody else stored the second."""
        far = {20: record.encode("t", 0, b"x", born_timestamp=1, store_host=("10.1.2.3", 9))}
        return ColdLook(lambda stop: _view(far, log_offset), 9, 0) if log_offset < 30 else None

    def looked_at(self, look: ColdLook[T], outcome: T | Exception) -> T:
        """What was found, or the error as it is."""
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def _view(shelf: Mapping[int, bytes], at: int) -> memoryview | None:
    return memoryview(shelf[at]) if at in shelf else None


def answers(leader: str | None = "n2") -> Answers:
    """Answers of n1, a slave of ``leader``."""
    return Answers(
        IDENTITY,
        Shelf(),
        presence(),
        leadership=lambda: Leadership(leader, 7, False),
        standing=lambda: Standing("n1", "slave", 0.25, None, 7),
    )


def of_master(epoch: int = 8) -> Answers:
    """Answers of n1, the master of an epoch."""
    return Answers(
        IDENTITY,
        Shelf(),
        presence(),
        leadership=lambda: Leadership("n1", epoch, False),
        standing=lambda: Standing("n1", "master", 0.0, None, epoch),
    )


def done(found: Answer | Asked[T]) -> Answer:
    """An answer, with what a thread had to look up."""
    return found.finish(found.look.run(lambda: False)) if isinstance(found, Asked) else found


def presence() -> Presence:
    """n1 among three nodes."""
    found = Presence("n1", lambda: OTHERS)
    found.own = {"name": "n1", "host": "h1", "client_port": 71}
    return found


def test_hello_says_what_an_encoder_must_know() -> None:
    """Names, the length of store hosts, the size of a file."""
    hello = answers().hello()
    assert (hello["node"], hello["cluster"], hello["group"]) == ("n1", "c", "g1")
    assert (hello["family"], hello["segment_size"]) == (4, 1 << 20)


def test_metadata_of_all_topics_or_of_those_asked_for() -> None:
    """A topic that does not exist is simply not there; every node is, in order."""
    found = answers().metadata(None)
    assert found["topics"] == {"t": 2, "u": 1}
    assert (found["leader"], found["epoch"]) == ("n2", 7)
    nodes = found["nodes"]
    assert isinstance(nodes, list)
    assert [entry["name"] for entry in nodes] == ["n1", "n2", "n3"]
    assert answers().metadata({"u", "nobody"})["topics"] == {"u": 1}
    assert answers().metadata({"u", "nobody"})["batched"] == ["u"]
    assert answers().metadata({"t"})["batched"] == []


def test_a_topic_that_waits_for_its_confirm_is_asked_for_again() -> None:
    """Not even METADATA lets it look as if it did not exist; a list of all names what binds."""
    with pytest.raises(NotYetConfirmed) as caught:
        answers().metadata({"u", "soon"})
    assert caught.value.retryable
    with pytest.raises(NotYetConfirmed):
        answers().offsets({"topic": "soon"})
    assert answers().metadata(None)["topics"] == {"t": 2, "u": 1}


def test_offsets_of_all_queues_or_of_some() -> None:
    """With a time, also the offset at that time."""
    found, _ = done(answers().offsets({"topic": "t"}))
    assert found["queues"] == {0: [0, 10, None], 1: [1, 11, None]}
    assert (found["confirm"], found["age_ms"], found["role"]) == (200, 250, "slave")
    assert found["dispatched"] == 180, "how far the queues reach"
    asked = answers().offsets({"topic": "t", "queues": [1, 0, 1], "at_ms": 5})
    assert isinstance(asked, Asked), "a thread looks for it"
    some, _ = done(asked)
    assert some["queues"] == {1: [1, 11, 6], 0: [0, 10, 5]}
    with pytest.raises(Busy):
        asked.finish(Busy("the log was cut"))


@pytest.mark.parametrize(
    ("role", "epoch", "confirm", "dispatched", "settled"),
    [
        ("master", 8, 201, 201, True),
        ("master", 8, 201, 200, False),
        ("master", 8, 200, 200, False),
        ("master", 9, 300, 300, False),
        ("slave", 8, 201, 201, False),
    ],
    ids=["confirmed", "queues behind", "its epoch is not", "no record of it yet", "slave"],
)
def test_a_master_knows_all_that_is_confirmed_once_its_epoch_is(
    role: str, epoch: int, confirm: int, dispatched: int, settled: bool
) -> None:
    """Before that its confirm offset may be behind what clients were told."""
    shelf = Shelf()
    shelf.confirm, shelf.dispatched = confirm, dispatched
    one = Answers(
        IDENTITY,
        shelf,
        presence(),
        leadership=lambda: Leadership("n1", epoch, False),
        standing=lambda: Standing("n1", role, 0.0, None, epoch),
    )
    found, _ = done(one.offsets({"topic": "t"}))
    assert found["settled"] is settled


def test_topics_that_may_have_been_acknowledged_are_not_left_out_silently() -> None:
    """All topics are all that a master has confirmed, when its log has no others."""
    master = of_master()
    assert master.metadata(None)["settled"] is False
    assert master.metadata({"u", "nobody"})["settled"] is True
    assert answers().metadata({"u", "nobody"})["settled"] is False


def test_no_topic_is_the_word_of_a_master() -> None:
    """A slave may lack what was acknowledged: who takes it for the master asks again."""
    for fields in ({"topic": "v"}, {"topic": "t", "queues": [2]}):
        with pytest.raises(UnknownTopic) as caught:
            answers().offsets(fields)
        assert caught.value.facts["settled"] is False
        with pytest.raises(UnknownTopic) as caught:
            of_master().offsets(fields)
        assert "settled" not in caught.value.facts


def test_a_record_above_confirm_may_have_been_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the master's epoch is not confirmed; a slave cannot tell."""
    settled: list[object] = []
    for confirm, one in ((200, of_master()), (201, of_master()), (201, answers())):
        monkeypatch.setattr(Shelf, "confirm", confirm)
        for offset in (250, 300):
            settled.append(done(one.get({"log_offset": offset}))[0]["settled"])
    assert settled == [False, False, True, True, False, False]


@pytest.mark.parametrize(
    ("fields", "error", "text"),
    [
        ({}, UsageError, "names a topic"),
        ({"topic": "t", "at_ms": "now"}, UsageError, "time in ms"),
        ({"topic": "t", "queues": 1}, UsageError, "list of numbers"),
        ({"topic": "t", "queues": ["1"]}, UsageError, "list of numbers"),
        ({"topic": "v"}, UnknownTopic, "no topic v"),
        ({"topic": "t", "queues": [2]}, UnknownTopic, "queues 0 to 1, not 2"),
        ({"topic": "t", "queues": [-1]}, UnknownTopic, "queues 0 to 1, not -1"),
    ],
)
def test_offsets_refused(
    fields: Mapping[str, object], error: type[TwinlogError], text: str
) -> None:
    """Each odd question has its own answer."""
    with pytest.raises(error, match=text):
        answers().offsets(fields)


@pytest.mark.parametrize(
    ("offset", "status"), [(100, "found"), (101, "none"), (200, "above-confirm"), (300, "past-end")]
)
def test_a_record_by_log_offset(offset: int, status: str) -> None:
    """Found, no record there, not confirmed yet, beyond the end: four answers."""
    fields, slices = done(answers().get({"log_offset": offset}))
    assert fields["status"] == status
    assert [bytes(one) for one in slices] == ([b"record"] if status == "found" else [])


@pytest.mark.parametrize("host", ["10.1.2.3", "2001:db8::1"])
def test_a_record_by_message_id(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """An id names the host that stored the record; another one's is told apart."""
    encoded = record.encode(
        "t", 0, b"x", born_timestamp=1, born_host=(host, 9), store_host=(host, 7410)
    )
    monkeypatch.setattr(Shelf, "record_at", lambda self, at: memoryview(encoded))
    good, other = record.pack_host((host, 7410)), record.pack_host((host, 7411))
    assert done(answers().get({"log_offset": 100, "host": good}))[0] == {"status": "found"}
    stored_by = record.decode(encoded).store_host
    expected = {"status": "other-host", "stored_by": stored_by}
    assert answers().get({"log_offset": 100, "host": other}) == (expected, ())


def test_a_record_far_back_is_looked_for_in_a_thread() -> None:
    """The answer is the same as for one in memory, host and all."""
    far = answers().get({"log_offset": 20})
    assert isinstance(far, Asked)
    fields, slices = done(far)
    assert (fields["status"], record.decode(slices[0]).body) == ("found", b"x")
    assert done(answers().get({"log_offset": 21})) == ({"status": "none"}, ())
    other = record.pack_host(("10.1.2.3", 8))
    fields, slices = done(answers().get({"log_offset": 20, "host": other}))
    assert (fields, slices) == ({"status": "other-host", "stored_by": "10.1.2.3:9"}, ())
    with pytest.raises(Busy):
        far.finish(Busy("files left"))


@pytest.mark.parametrize("offset", [None, -1, "100"])
def test_a_record_without_a_log_offset(offset: object) -> None:
    """There is nothing to look for."""
    with pytest.raises(UsageError, match="names a log offset"):
        answers().get({"log_offset": offset})


@pytest.mark.parametrize(
    ("code", "error", "text"),
    [
        ("not-enough-in-sync", NotEnoughInSync, "too few nodes in sync"),
        ("busy", Busy, "reached a limit"),
        ("disk-full", Unavailable, "disk of n1 is full"),
        ("disk", Unavailable, "disk of n1 is full"),
        ("unknown-topic", UnknownTopic, ""),
        ("stopping", Unavailable, "n1 refuses: stopping"),
    ],
)
def test_refusals_of_the_whole_node(code: str, error: type[TwinlogError], text: str) -> None:
    """A code of the core becomes the error that helps its client on."""
    found = answers().refusal(code, "")
    assert isinstance(found, error)
    assert text in found.text


@pytest.mark.parametrize("code", ["topic", "queues"])
def test_an_order_that_will_never_do_is_final(code: str) -> None:
    """Nobody waits until the deadline for a topic that may not be created."""
    found = answers().refusal(code, "%LMQ%a is a light queue")
    assert isinstance(found, UsageError)
    assert (found.code, found.text) == (code, "%LMQ%a is a light queue")
    assert not found.retryable


def test_not_master_names_the_master_and_where_it_listens() -> None:
    """Or says that nobody is known; a node never sends a client to itself."""
    found = answers().refusal("not-master", "")
    assert isinstance(found, NotMaster)
    assert (found.facts["leader"], found.facts["host"], found.facts["port"]) == ("n2", "h2", 72)
    for leader in (None, "n1"):
        nobody = answers(leader).refusal("not-master", "")
        assert "none is known" in nobody.text
        assert nobody.facts["leader"] is None
        assert nobody.facts["host"] is None


def test_addresses_of_others_and_of_oneself() -> None:
    """No address without a host and a port that is served."""
    known = presence()
    assert known.address("n1", "client_port") == ("h1", 71)
    assert known.slave_address("n2") == ("h2", 82)
    assert known.address("n2", "http_port") is None
    assert known.address("n3", "client_port") is None
    assert known.address("n9", "client_port") is None
    assert known.address(None, "client_port") is None


def test_counts() -> None:
    """Each kind by itself."""
    counts = ClientCounts()
    counts.answered("send", "stored")
    counts.answered("send", "stored")
    counts.closed("oversized")
    counts.limit_reached("waiting")
    assert counts.answers == {("send", "stored"): 2}
    assert (counts.closings, counts.limits) == ({"oversized": 1}, {"waiting": 1})


def test_metadata_lists_epochs_that_hold_a_confirmed_byte() -> None:
    """An epoch whose first byte is not confirmed may still be cut."""
    assert answers().metadata(None)["epochs"] == [[3, 0], [7, 150]]


def test_an_odd_entry_of_another_node_spoils_no_answer() -> None:
    """Anybody may write one at the coordinator; what clients could not read is left out."""
    odd: dict[str, dict[str, object]] = {
        "n2": {"name": "n1", "host": 7, "client_port": "72", "slave_port": 70_000, "role": "slave"},
        "n3": {"name": ["n3"], "host": "h3", "client_port": True, "slave_port": 83, "age": "old"},
    }
    found = Presence("n1", lambda: odd)
    found.own = {"name": "n1", "host": "h1", "client_port": 71}
    assert found.entries() == [
        {"name": "n1", "host": "h1", "client_port": 71},
        {"name": "n2", "role": "slave"},
        {"name": "n3", "host": "h3", "slave_port": 83},
    ]
    nodes: list[object] = [dict(entry) for entry in found.entries()]
    fields = {"topics": {}, "nodes": nodes, "cluster": "c", "group": "g1"}
    assert [node.client_port for node in parse_route(fields).nodes] == [71, 0, 0]
    assert found.slave_address("n2") is None
    odd["n2"] = {"host": "h2", "slave_port": 70_000}
    assert found.slave_address("n2") is None
    assert found.slave_address("n3") == ("h3", 83)
