"""Reads are answered, parked or handed to a thread, and a parked one is answered once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pytest

from node.clients.freshness import Freshness
from node.clients.limits import Limits
from node.clients.reads import (
    SIFTS_MAX,
    Cold,
    ReadAnswer,
    ReadRequest,
    Reads,
    parse_read,
)
from storage.read.filters import PropertyFilter
from storage.read.result import ReadResult, ReadStatus
from twinlog.errors import (
    Busy,
    CorruptionError,
    TopicClosed,
    TwinlogError,
    UnknownTopic,
    UsageError,
)
from twinlog.filters.sql92 import FilterError


@dataclass
class Queue:
    """Stands in for the store: one queue of one-byte records, some of them with the wanted tag."""

    records: list[bytes] = field(default_factory=list[bytes])
    matching: bool = True
    cold: bool = False
    broken: bool = False
    gone: bool = False
    defect: str = ""
    unsifted: bool = False
    confirm: int = 0
    dispatched: int = 0
    closed: str = ""
    queues: dict[str, int] = field(default_factory=dict[str, int])

    def add(self, *records: bytes) -> None:
        """Dispatch more records."""
        self.records += records
        self.dispatched += len(records)

    def check_open(self, topic: str) -> None:
        """Refuse what may not be read."""
        if topic == self.closed:
            raise TopicClosed(topic)

    def grown(self) -> Mapping[str, int]:
        """Topics that were altered."""
        return self.queues

    def queue_range(self, topic: str, queue: int) -> tuple[int, int]:
        """First and next queue offset."""
        if self.gone:
            raise UnknownTopic(topic)
        return 0, len(self.records)

    def read(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        *,
        max_bytes: int,
        max_records: int,
        tag_hashes: frozenset[int] | None = None,
        where: PropertyFilter | None = None,
    ) -> ReadResult:
        """Up to ``max_records`` from the offset on."""
        if self.broken:
            raise CorruptionError("damaged", offset=7)
        if self.gone:
            return ReadResult(ReadStatus.UNKNOWN_TOPIC)
        if topic == self.defect:
            raise ZeroDivisionError
        end = len(self.records)
        if queue_offset > end:
            return ReadResult(ReadStatus.PAST_END, next=queue_offset, end=end)
        if queue_offset == end:
            return ReadResult(ReadStatus.NONE, next=end, end=end)
        found = self.records[queue_offset : queue_offset + max_records]
        following = queue_offset + len(found)
        if (tag_hashes or where) and not self.matching:
            return ReadResult(ReadStatus.FOUND, [], 0, following, 0, end)
        slices = [memoryview(b"".join(found))]
        return ReadResult(
            ReadStatus.FOUND,
            slices,
            len(found),
            following,
            0,
            end,
            self.cold,
            unsifted=self.unsifted,
        )

    def fetched(self, result: ReadResult, outcome: ReadResult | Exception) -> ReadResult:
        """What the thread met: the log was cut meanwhile, or it is damage."""
        if self.gone:
            raise Busy("the log was cut")
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class Reader:
    """Remembers its answers."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Mapping[str, object], bytes]] = []
        self.errors: list[str] = []

    def read_answered(self, request: int, answer: ReadAnswer) -> None:
        """Remember an answer."""
        self.answers.append((request, answer.fields, b"".join(answer.slices)))

    @property
    def gone(self) -> bool:
        """It stays."""
        return False

    async def taken(self) -> None:
        """It takes everything at once."""

    def broke(self, error: Exception) -> None:
        """Remember a defect."""
        self.errors.append(type(error).__name__)

    def read_failed(self, request: int, error: TwinlogError) -> None:
        """Remember an error's code."""
        self.errors.append(error.code)


def reads(queue: Queue, role: str = "master", age: float = 0.0) -> Reads:
    """Reads of a node that is what it is told to be."""
    return Reads(queue, lambda: Freshness("n1", role, age, "n2", 7), staleness_max=5.0)


def request(reader: Reader, offset: int, wait: float = 0.0, **more: object) -> ReadRequest:
    """A read of queue 0 that arrived at 0."""
    fields: dict[str, object] = {
        "topic": "t",
        "queue": 0,
        "offset": offset,
        "wait_ms": round(wait * 1000),
        **more,
    }
    return parse_read(reader, offset, fields, Limits(), now=0.0)


def test_what_is_there_is_answered_at_once() -> None:
    """Found, with the queue's range, the node and its role."""
    queue, reader = Queue(), Reader()
    queue.add(b"a", b"b", b"c")
    assert reads(queue).serve(request(reader, 1), 0.0) is None
    _, fields, data = reader.answers[0]
    assert data == b"bc"
    wanted = {"status": "found", "next": 3, "end": 3, "count": 2, "node": "n1", "role": "master"}
    assert {key: fields[key] for key in wanted} == wanted
    assert fields["redirect"] is None


def test_a_master_that_may_be_deposed_says_so_and_how_old_its_data_may_be() -> None:
    """It serves what it has: everything below its confirm offset stays true."""
    queue, sure, cut_off = Queue(), Reader(), Reader()
    queue.add(b"a")
    reads(queue).serve(request(sure, 0), 0.0)
    fresh = Freshness("n1", "master", 3.5, "n2", 7, silent=True)
    Reads(queue, lambda: fresh, staleness_max=5.0).serve(request(cut_off, 0), 0.0)
    assert [(each.answers[0][1].get("settled", True), each.answers[0][1]["age_ms"])
            for each in (sure, cut_off)] == [(True, 0), (False, 3500)]  # fmt: skip
    assert cut_off.answers[0][2] == b"a"


@pytest.mark.parametrize(("offset", "status"), [(0, "none"), (1, "past-end")])
def test_who_does_not_want_to_wait_does_not(offset: int, status: str) -> None:
    """Without a wait the end of the queue is an answer; past the end always is."""
    reader = Reader()
    served = reads(Queue())
    served.serve(request(reader, offset), 0.0)
    assert reader.answers[0][1]["status"] == status
    assert served.waiting == 0


def test_a_parked_read_is_answered_when_its_queue_grows() -> None:
    """Not before dispatch moved, then once, and the place is free again."""
    queue, reader = Queue(), Reader()
    served = reads(queue)
    served.serve(request(reader, 0, wait=9.0), 0.0)
    assert served.waiting == 1
    served.wake(1.0)
    assert not reader.answers
    queue.add(b"x")
    served.wake(2.0)
    served.wake(3.0)
    assert [answer[2] for answer in reader.answers] == [b"x"]
    assert served.waiting == 0


def test_a_parked_read_of_a_queue_that_did_not_grow_stays() -> None:
    """Dispatch moved for others."""
    queue, reader = Queue(), Reader()
    served = reads(queue)
    served.serve(request(reader, 0, wait=9.0), 0.0)
    queue.dispatched += 5
    assert served.wake(1.0) == []
    assert (served.waiting, reader.answers) == (1, [])


def test_a_parked_read_whose_records_are_cold_is_a_threads_work() -> None:
    """A reader far behind may be woken, too."""
    queue, reader = Queue(cold=True), Reader()
    served = reads(queue)
    served.serve(request(reader, 0, wait=9.0), 0.0)
    queue.add(b"x")
    woken = served.wake(1.0)
    assert [bytes(cold.result.slices[0]) for cold in woken] == [b"x"]
    assert (served.waiting, reader.answers) == (0, [])


def test_a_parked_read_hears_that_its_topic_is_gone() -> None:
    """A forced election may undo a topic; the others go on."""
    queue, reader = Queue(), Reader()
    served = reads(queue)
    served.serve(request(reader, 0, wait=9.0), 0.0)
    queue.gone = True
    queue.dispatched = 7
    served.wake(1.0)
    assert [answer[1]["status"] for answer in reader.answers] == ["unknown-topic"]
    assert served.waiting == 0


def test_a_parked_read_is_answered_none_at_its_deadline() -> None:
    """A long poll that saw nothing says so, and is not answered again."""
    queue, reader = Queue(), Reader()
    served = reads(queue)
    served.serve(request(reader, 0, wait=9.0), 0.0)
    served.expire(8.9)
    assert not reader.answers
    served.expire(9.0)
    assert reader.answers[0][1]["status"] == "none"
    queue.add(b"x")
    served.wake(10.0)
    assert len(reader.answers) == 1


def test_a_connection_that_is_gone_is_forgotten() -> None:
    """Its parked reads are dropped, others stay."""
    queue, gone, stays = Queue(), Reader(), Reader()
    served = reads(queue)
    served.serve(request(gone, 0, wait=9.0), 0.0)
    served.serve(request(stays, 0, wait=9.0), 0.0)
    served.forget(gone)
    queue.add(b"x")
    served.wake(1.0)
    assert (len(gone.answers), len(stays.answers)) == (0, 1)


def test_records_of_other_tags_move_a_parked_read_on() -> None:
    """What the filter left out is behind it: the wait goes on where the queue ends."""
    queue, reader = Queue(matching=False), Reader()
    queue.add(b"a", b"b")
    served = reads(queue)
    served.serve(request(reader, 0, wait=9.0, tags=[5]), 0.0)
    assert served.waiting == 1
    queue.matching = True
    queue.add(b"c")
    served.wake(1.0)
    assert reader.answers[0][2] == b"c"


def test_a_filter_that_matches_nothing_gets_on_within_its_budget() -> None:
    """After so many looks the reader is told how far it came, and asks again from there."""
    queue, reader = Queue(matching=False), Reader()
    queue.add(*[b"x"] * 100)
    served, where = reads(queue), "a = 1"
    served.serve(request(reader, 0, where=where, max_records=5), 0.0)
    _, fields, data = reader.answers[0]
    told = {"status": "found", "next": 5 * SIFTS_MAX, "count": 0, "skipped": 5 * SIFTS_MAX}
    assert {name: fields[name] for name in told} == told
    assert not data
    queue.matching = True
    served.serve(request(reader, 98, where=where), 0.0)
    assert (reader.answers[1][1]["skipped"], reader.answers[1][1]["count"]) == (0, 2)
    served.serve(request(reader, 100, where=where), 0.0)
    assert (reader.answers[2][1]["status"], reader.answers[2][1]["skipped"]) == ("none", 0)


def test_a_filter_that_is_none_is_refused() -> None:
    """With the place, before anything is read."""
    with pytest.raises(FilterError, match="character 5"):
        request(Reader(), 0, where="a = ?")
    with pytest.raises(UsageError, match="where is a filter"):
        request(Reader(), 0, where=5)


def test_a_slave_that_has_not_heard_its_master_says_stale() -> None:
    """Beyond staleness_max nothing is served, whatever lies there."""
    queue, reader = Queue(), Reader()
    queue.add(b"x")
    reads(queue, "slave", 5.1).serve(request(reader, 0), 0.0)
    assert reader.answers[0][1]["status"] == "stale"
    assert reader.answers[0][2] == b""
    reads(queue, "slave", 4.9).serve(request(reader, 0), 0.0)
    assert reader.answers[1][1]["status"] == "found"
    assert reader.answers[1][1]["age_ms"] == 4900


def test_cold_data_is_a_threads_work_and_names_a_slave() -> None:
    """The caller fetches; the answer carries the slices it brought and where to go next."""
    queue, reader = Queue(cold=True), Reader()
    queue.add(b"x")
    served = reads(queue)
    cold = served.serve(request(reader, 0), 0.0)
    assert isinstance(cold, Cold)
    assert not reader.answers
    served.finish(cold, replace(cold.result, slices=[memoryview(b"fetched")]))
    assert reader.answers[0][2] == b"fetched"
    assert reader.answers[0][1]["redirect"] == {"node": "n2", "valid_ms": 30_000}


def test_what_a_thread_met_is_judged_before_it_is_served() -> None:
    """Damage goes to the store first; a log that was cut meanwhile proves nothing."""
    queue, reader = Queue(cold=True), Reader()
    queue.add(b"x")
    served = reads(queue)
    cold = served.serve(request(reader, 0), 0.0)
    assert isinstance(cold, Cold)
    with pytest.raises(CorruptionError):
        served.finish(cold, CorruptionError("damaged"))
    queue.gone = True
    for fetched in (cold.result, CorruptionError("zeros of the cut")):
        with pytest.raises(Busy):
            served.finish(cold, fetched)
    assert not reader.answers


def test_damage_is_an_error_and_never_a_wrong_record() -> None:
    """At once and from the parking place."""
    queue, reader = Queue(), Reader()
    served = reads(queue)
    served.serve(request(reader, 0, wait=9.0), 0.0)
    queue.add(b"x")
    queue.broken = True
    served.wake(1.0)
    served.serve(request(reader, 0), 0.0)
    assert reader.errors == ["corrupt", "corrupt"]
    assert not reader.answers


def test_a_defect_ends_one_connection_and_not_the_turn() -> None:
    """Parked reads of others, looked at in the same turn, are answered."""
    queue, unlucky, other = Queue(), Reader(), Reader()
    served = reads(queue)
    served.serve(request(unlucky, 0, wait=9.0, topic="u"), 0.0)
    served.serve(request(other, 0, wait=9.0), 0.0)
    queue.defect = "u"
    queue.add(b"x")
    served.wake(1.0)
    assert (unlucky.errors, unlucky.answers) == (["ZeroDivisionError"], [])
    assert [data for _, _, data in other.answers] == [b"x"]
    assert served.waiting == 0


def test_what_was_not_sifted_does_not_say_what_was_left_out() -> None:
    """The reader lays its filter over the records by itself, and counts then."""
    queue, reader = Queue(unsifted=True), Reader()
    queue.add(b"x")
    served = reads(queue)
    served.serve(request(reader, 0, where="a = 1"), 0.0)
    queue.unsifted = False
    served.serve(request(reader, 0, where="a = 1"), 0.0)
    assert ["skipped" in fields for _, fields, _ in reader.answers] == [False, True]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"topic": 1, "queue": 0, "offset": 0},
        {"topic": "t", "queue": "0", "offset": 0},
        {"topic": "t", "queue": 0, "offset": 0, "wait_ms": -1},
        {"topic": "t", "queue": 0, "offset": 0, "max_bytes": "8"},
        {"topic": "t", "queue": 0, "offset": 0, "tags": "a"},
        {"topic": "t", "queue": 0, "offset": 0, "tags": ["a"]},
    ],
)
def test_fields_of_another_kind_are_refused(fields: dict[str, object]) -> None:
    """A read that is not one is answered with an error."""
    with pytest.raises(UsageError):
        parse_read(Reader(), 1, fields, Limits(), now=0.0)


def test_wishes_are_cut_to_the_limits() -> None:
    """Nobody waits longer or is answered with more than the node allows."""
    reader = Reader()
    asked = request(reader, 0, wait=9999.0, max_bytes=1 << 40)
    assert asked.deadline == Limits().long_poll_seconds_max
    assert asked.max_bytes == Limits().response_size_max


def test_a_topic_that_may_not_be_read_is_refused_and_one_that_grew_says_so() -> None:
    """Who follows all of its queues learns of the new ones."""
    queue, reader = Queue(closed="t", queues={"t": 9}), Reader()
    queue.add(b"x")
    reads(queue).serve(request(reader, 0), 0.0)
    assert (reader.errors, reader.answers) == (["topic-permission"], [])
    queue.closed = ""
    reads(queue).serve(request(reader, 0), 0.0)
    assert reader.answers[0][1]["queues"] == 9
