"""OFFSETS and GET: offsets of queues and times, single records."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from node.clients import lookups
from node.clients.freshness import Freshness
from node.clients.lookups import Asked
from tests.unit.node.clients.answering import Shelf, answers, done, made, of_master
from twinlog.errors import (
    Busy,
    NotYetConfirmed,
    TwinlogError,
    UnknownTopic,
    UsageError,
)
from twinlog.format import record


def test_a_topic_that_waits_for_its_confirm_is_asked_for_again() -> None:
    """Not even METADATA lets it look as if it did not exist; a list of all names what binds."""
    with pytest.raises(NotYetConfirmed) as caught:
        answers().metadata.metadata({"u", "soon"})
    assert caught.value.retryable
    with pytest.raises(NotYetConfirmed):
        answers().lookups.offsets({"topic": "soon"})
    assert answers().metadata.metadata(None)["topics"] == {"t": 2, "u": 1}


def test_offsets_of_all_queues_or_of_some() -> None:
    """With a time, also the offset at that time."""
    found, _ = done(answers().lookups.offsets({"topic": "t"}))
    assert found["queues"] == {0: [0, 10, None], 1: [1, 11, None]}
    assert (found["confirm"], found["age_ms"], found["role"]) == (200, 250, "slave")
    assert found["dispatched"] == 180, "how far the queues reach"
    asked = answers().lookups.offsets({"topic": "t", "queues": [1, 0, 1], "at_ms": 5})
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
    one = made(Freshness("n1", role, 0.0, None, epoch), "n1", shelf)
    found, _ = done(one.lookups.offsets({"topic": "t"}))
    assert found["settled"] is settled


def test_no_topic_is_the_word_of_a_master() -> None:
    """A slave may lack what was acknowledged: who takes it for the master asks again."""
    for fields in ({"topic": "v"}, {"topic": "t", "queues": [2]}):
        with pytest.raises(UnknownTopic) as caught:
            answers().lookups.offsets(fields)
        assert caught.value.facts["settled"] is False
        with pytest.raises(UnknownTopic) as caught:
            of_master().lookups.offsets(fields)
        assert "settled" not in caught.value.facts


def test_a_record_above_confirm_may_have_been_acknowledged(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as the master's epoch is not confirmed; a slave cannot tell."""
    settled: list[object] = []
    for confirm, one in ((200, of_master()), (201, of_master()), (201, answers())):
        monkeypatch.setattr(Shelf, "confirm", confirm)
        for offset in (250, 300):
            settled.append(done(one.lookups.get({"log_offset": offset}))[0]["settled"])
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
        answers().lookups.offsets(fields)


@pytest.mark.parametrize(
    ("offset", "status"), [(100, "found"), (101, "none"), (200, "above-confirm"), (300, "past-end")]
)
def test_a_record_by_log_offset(offset: int, status: str) -> None:
    """Found, no record there, not confirmed yet, beyond the end: four answers."""
    fields, slices = done(answers().lookups.get({"log_offset": offset}))
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
    assert done(answers().lookups.get({"log_offset": 100, "host": good}))[0] == {"status": "found"}
    stored_by = record.decode(encoded).store_host
    expected = {"status": "other-host", "stored_by": stored_by}
    assert answers().lookups.get({"log_offset": 100, "host": other}) == (expected, ())


def test_a_record_far_back_is_looked_for_in_a_thread() -> None:
    """The answer is the same as for one in memory, host and all."""
    far = answers().lookups.get({"log_offset": 20})
    assert isinstance(far, Asked)
    fields, slices = done(far)
    assert (fields["status"], record.decode(slices[0]).body) == ("found", b"x")
    assert done(answers().lookups.get({"log_offset": 21})) == ({"status": "none"}, ())
    other = record.pack_host(("10.1.2.3", 8))
    fields, slices = done(answers().lookups.get({"log_offset": 20, "host": other}))
    assert (fields, slices) == ({"status": "other-host", "stored_by": "10.1.2.3:9"}, ())
    with pytest.raises(Busy):
        far.finish(Busy("files left"))


@pytest.mark.parametrize("offset", [None, -1, "100"])
def test_a_record_without_a_log_offset(offset: object) -> None:
    """There is nothing to look for."""
    with pytest.raises(UsageError, match="names a log offset"):
        answers().lookups.get({"log_offset": offset})


def test_a_page_of_topics_says_how_many_messages_each_has() -> None:
    """The sum over its queues; a slave marks its word as not settled."""
    found = answers().lookups.topics({"op": "list"})
    assert (found["topics"], found["messages"]) == ({"t": 2, "u": 1}, {"t": 20, "u": 10})
    assert (found["role"], found["settled"], "more" in found) == ("slave", False, False)
    assert answers().lookups.topics({"op": "list", "after": "t"})["messages"] == {"u": 10}


def test_a_page_of_topics_has_few_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their ends are looked up on the loop, which serves others too."""
    monkeypatch.setattr(lookups, "LIST_QUEUES_MAX", 2)
    found = answers().lookups.topics({"op": "list"})
    assert (found["topics"], found["more"]) == ({"t": 2}, "t")
