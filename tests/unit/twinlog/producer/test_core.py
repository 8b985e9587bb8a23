"""The producer's own rules, one at a time; walks through random faults are in the properties."""

from __future__ import annotations

import pytest

from storage.state.producers import RETRY_SECONDS_MAX
from tests.fakes.producer_bench import Bench, refused, stored
from twinlog.errors import (
    OutcomeUnknown,
    OutOfSequence,
    QuotaReached,
    RecordRefused,
    TopicClosed,
    Unavailable,
    UsageError,
)
from twinlog.format import record
from twinlog.producer.core import FRAME_SIZE, RETRY_SECONDS, Request
from twinlog.producer.new_message import PROPERTIES_MAX
from twinlog.producer.section import State
from twinlog.producer.settings import SECTION_MAX, ProducerSettings
from twinlog.wire.frames import ANSWER, ERROR, Frame, FrameError, Type

KiB = 1024


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": 6},
        {"batch": 0},
        {"batch": SECTION_MAX},
        {"timeout": 0},
        {"linger": -1},
        {"acknowledge": "all"},
    ],
)
def test_settings_have_limits(wrong: dict[str, float]) -> None:
    """What a node could not keep up with is refused before anything is sent."""
    with pytest.raises(UsageError):
        ProducerSettings(**wrong)  # type: ignore[arg-type]


def test_a_section_closes_when_full_or_old() -> None:
    """By size at once; by age when the next record comes or when somebody looks."""
    bench = Bench(batch=1000, linger=0.01)
    first = bench.add(b"x" * 950)
    assert first.state is State.WAITING
    second = bench.add(b"x")
    assert second.state is State.OPEN
    assert bench.core.lanes.linger_left(bench.now) == pytest.approx(0.01)
    bench.now += 0.02
    assert bench.core.lanes.linger_left(bench.now) == 0.0
    bench.core.close_old(bench.now)
    assert (second.state, bench.core.lanes.linger_left(bench.now)) == (State.WAITING, None)
    third = bench.add(b"x")
    bench.now += 0.02
    assert bench.add(b"y", queue=third.queue) is third
    assert (third.count, third.state) == (2, State.WAITING)
    bench.core.close(third, bench.now)


def test_an_old_section_goes_on_filling_while_it_could_not_go() -> None:
    """With the window full, small sections would only cost more requests later."""
    bench = Bench(window=1, linger=0.001)
    bench.add(b"1", queue=0)
    bench.close_all()
    bench.requests()
    section = bench.add(b"2", queue=0)
    bench.now += 1
    assert bench.core.lanes.linger_left(bench.now) is None
    assert bench.add(b"3", queue=0) is section
    assert section.state is State.OPEN


def test_records_that_are_refused_leave_nothing_behind() -> None:
    """Too large, too many properties, a queue that does not exist, a body that is no bytes."""
    bench = Bench()
    for body, key, queue in (
        (bytes(4 * KiB * KiB + 1), None, None),
        (b"x", "k" * PROPERTIES_MAX, None),
        (b"x", None, 2),
        (b"x", None, -1),
    ):
        with pytest.raises(RecordRefused):
            bench.add(body, key=key, queue=queue)
    with pytest.raises(UsageError, match="must be bytes, not str"):
        bench.add("text")  # type: ignore[arg-type]
    section = bench.add(b"x")
    assert (section.count, section.sequence) == (1, 0)


def test_a_record_that_was_born_before() -> None:
    """One that is sent again keeps its time; the others of its section have theirs."""
    bench = Bench(batch=1 << 20)
    bench.add(b"old", queue=0, born_ms=1_700_000_000_123)
    bench.add(b"new", queue=0)
    for ms in (-1, 253_402_300_800_000):
        with pytest.raises(RecordRefused, match="between the years 1970 and 9999"):
            bench.add(b"x", queue=0, born_ms=ms)
    bench.close_all()
    (request,) = bench.requests()
    data = b"".join(map(bytes, request.pieces))
    first = record.decode(data, 0, check_crc=False)
    second = record.decode(data, first.size, check_crc=False)
    assert [first.born_timestamp, second.born_timestamp] == [1_700_000_000_123, 100_000]


def test_large_records_have_sections_of_their_own() -> None:
    """A section never grows beyond what one log batch holds."""
    bench = Bench(batch=2 * KiB * KiB, linger=10)
    small = bench.add(b"x" * 1000, queue=0)
    large = bench.add(bytes(4 * KiB * KiB), queue=0)
    assert small is not large
    assert large.size < SECTION_MAX + 64 * KiB
    medium = bench.add(bytes(100 * KiB), queue=0)
    assert bench.add(bytes(100 * KiB), queue=0) is medium


def test_sections_take_turns_and_share_frames() -> None:
    """Queues with room in their window come first; what waits together travels together."""
    bench = Bench(batch=100 * KiB)
    queues = [bench.add(bytes(100 * KiB)).queue for _ in range(4)]
    assert queues == [0, 1, 0, 1]
    requests = bench.requests()
    assert [len(request.pieces) for request in requests] == [2, 2]
    assert all(sum(map(len, request.pieces)) <= FRAME_SIZE for request in requests)
    for _ in range(20):
        bench.add(bytes(100 * KiB))
    sent = sum(len(request.pieces) for request in bench.requests())
    assert sent == 6, "five of each queue are under way"
    assert bench.core.full


def test_too_much_in_one_queue_is_full() -> None:
    """Who names the queue himself is stopped by that queue's backlog."""
    bench = Bench(batch=1, window=1)
    for number in range(2):
        assert not bench.core.full, number
        bench.add(b"x", queue=0)
    assert bench.core.full
    (request,) = bench.requests()
    assert bench.requests() == []
    bench.answer(request, stored(0))
    assert len(bench.requests()) == 1
    assert not bench.core.full


def test_answers_that_do_not_fit_are_no_answers() -> None:
    """The wrong number of results, or fields of another shape: the request is still open."""
    bench = Bench(batch=1)
    section = bench.add(b"x", queue=0)
    (request,) = bench.requests()
    with pytest.raises(FrameError):
        bench.answer(request)
    with pytest.raises(FrameError):
        bench.answer(request, [0])
    bench.answer(Request(99, {}, [], 0.0), stored(0))
    assert not section.done
    bench.answer(request, stored(5))
    assert section.receipt().queue_offset == 5
    assert section.receipt().confirmed_by == ("n1",)


def test_deadlines_tell_unknown_from_not_stored() -> None:
    """What no node can have got is not stored; the reason is the last refusal."""
    bench = Bench(batch=1, timeout=1.0, window=1)
    maybe, never = bench.add(b"1", queue=0), bench.add(b"2", queue=0)
    refused = bench.add(b"3", queue=1)
    first, _ = bench.requests()[0], None
    assert len(first.pieces) == 2
    bench.refuse(first, "not-enough-in-sync", retryable=True)
    assert bench.requests() == [], "after a refusal it waits"
    bench.now = bench.core.retry_at
    (again,) = bench.requests()
    bench.core.on_lost(bench.now)
    assert again.number > first.number
    bench.now += 0.2
    bench.core.unrouted = False
    (third,) = bench.requests()
    bench.refuse(third, "not-enough-in-sync", retryable=True)
    assert bench.core.deadline < 102
    bench.core.expire(bench.now)
    (fourth,) = bench.requests() or [third]
    bench.now = 101.5
    bench.core.expire(bench.now)
    for late in (third, fourth):  # answers to what was given up change nothing
        bench.answer(late, *[stored(0)] * len(late.pieces))
        bench.refuse(late, "busy", retryable=True)
    assert maybe.state is State.UNKNOWN, "one attempt was lost, later refusals do not change that"
    assert isinstance(maybe.error, OutcomeUnknown)
    assert never.state is State.REFUSED
    assert isinstance(never.error, Unavailable)
    assert "not-enough-in-sync" in never.error.text
    assert refused.state is State.UNKNOWN
    assert bench.core.idle
    assert bench.core.deadline == float("inf")
    assert len(bench.core.collect()) == 3
    assert bench.core.collect() == []
    assert (bench.add(b"4", queue=0).epoch, never.epoch) == (1, 0)


def test_no_retry_comes_after_the_nodes_may_have_forgotten() -> None:
    """An hour to wait: what may be stored is sent until 589 s have passed, and unknown at 590."""
    assert RETRY_SECONDS < RETRY_SECONDS_MAX, "a retry under way arrives before it is forgotten"
    bench = Bench(batch=1, timeout=3600.0, window=1)
    begun = bench.now
    maybe = bench.add(b"1", queue=0)
    bench.requests()
    bench.core.on_lost(bench.now)
    bench.now = begun + RETRY_SECONDS - 1
    assert len(bench.again().pieces) == 1
    bench.core.on_lost(bench.now)
    never = bench.add(b"2", queue=1)
    bench.core.expire(begun + RETRY_SECONDS)
    assert maybe.state is State.UNKNOWN
    assert isinstance(maybe.error, OutcomeUnknown)
    bench.now = begun + RETRY_SECONDS + 5
    bench.answer(bench.again(), stored(0))
    assert never.stored, "its own first attempt was later"
    assert bench.core.idle


def test_an_acknowledged_sequence_that_is_gone_is_reported() -> None:
    """Out of sequence as the first of its queue: the node lost what it had acknowledged."""
    bench = Bench(batch=1)
    good = bench.add(b"1", queue=0)
    (request,) = bench.requests()
    bench.answer(request, stored(0))
    lost, later = bench.add(b"2", queue=0), bench.add(b"3", queue=0)
    still_open = bench.add(b"", queue=1)
    (request,) = bench.requests()
    gap: list[object] = [2, -1, -1, 0, "out-of-sequence", "expected 0", -1]
    bench.answer(request, gap, stored(0), gap)
    assert good.stored
    assert still_open.stored
    assert isinstance(lost.error, OutOfSequence)
    assert isinstance(later.error, OutOfSequence)
    bench.add(b"4", queue=0)
    (request,) = bench.requests()
    assert request.fields["sections"][0][5:] == [1, 0]  # type: ignore[index]


def test_a_whole_request_refused_for_good() -> None:
    """An unknown topic concerns every section of the request."""
    bench = Bench(batch=1)
    sections = [bench.add(b"x") for _ in range(3)]
    (request,) = bench.requests()
    bench.refuse(request, "unknown-topic")
    assert [section.state for section in sections] == [State.REFUSED] * 3
    assert bench.core.idle
    for _ in range(1100):
        bench.add(b"x")
        for request in bench.requests():
            bench.refuse(request, "unknown-topic")
    assert len(bench.core.failures) == 1000, "an outage costs no more memory than this"
    assert bench.core.statistics.refused == 1103
    bench.core.postpone(bench.now, Unavailable("no master"))
    assert bench.core.retry_at > bench.now


@pytest.mark.parametrize("code", ["busy", "unknown"])
def test_refusals_of_what_was_given_up(code: str) -> None:
    """An answer that comes after the deadline changes nothing, good or bad."""
    bench = Bench(batch=1, timeout=1.0)
    section = bench.add(b"x")
    (request,) = bench.requests()
    bench.now += 2
    bench.core.expire(bench.now)
    assert section.state is State.UNKNOWN
    bench.refuse(request, code, retryable=code == "busy")
    assert section.state is State.UNKNOWN
    assert bench.requests() == []


def test_a_batch_topic_takes_no_message_for_light_queues() -> None:
    """A message inside another one has no entry that could be one of theirs."""
    bench = Bench(batch_topic=True)
    with pytest.raises(RecordRefused) as caught:
        bench.add(b"x", queue=0, light=["%LMQ%a"])
    assert caught.value.facts["reason"] == "light-queues"
    section = bench.add(b"y", queue=0)
    assert section.count == 1, "the refused one left no trace"


@pytest.mark.parametrize("name", ["a", "%LMQ", "%LMQ%a,b", "%LMQ%a\x01"])
def test_names_of_light_queues_are_looked_at_before_a_send(name: str) -> None:
    """The master would refuse the whole section."""
    with pytest.raises(RecordRefused, match="is not a light queue"):
        Bench().add(b"x", light=["%LMQ%fine", name])


def test_new_queues_are_used_and_closed_ones_left() -> None:
    """What is under way for a closed one stays so; order keys follow the number."""
    bench = Bench()
    held = bench.add(b"1", queue=1)
    bench.core.lanes.resize(4)
    assert {bench.add(b"x", order_key=f"k{at}").queue for at in range(40)} == {0, 1, 2, 3}
    bench.core.lanes.resize(1)
    assert {bench.add(b"x", order_key=f"k{at}").queue for at in range(9)} == {0}
    with pytest.raises(RecordRefused, match="has queues 0 to 0, not 1"):
        bench.add(b"x", queue=1)
    bench.close_all()
    assert held.state is State.WAITING
    bench.core.lanes.resize(2)
    assert bench.add(b"again", queue=1).queue == 1


def test_a_closed_queue_is_asked_about() -> None:
    """Its section is not stored, and says why."""
    bench = Bench()
    section = bench.add(b"x", queue=1)
    bench.close_all()
    bench.answer(bench.request(), refused("queue-closed"))
    assert isinstance(section.error, TopicClosed)
    assert bench.core.narrowed


def test_a_quota_is_waited_for_and_named_at_the_deadline() -> None:
    """As long as the master said, not less; then the error says when to ask again."""
    bench = Bench(timeout=10.0)
    section = bench.add(b"x", queue=0)
    bench.close_all()
    request, began = bench.request(), bench.now
    fields = {"code": "quota", "text": "used up", "retryable": True, "retry_after_ms": 4000}
    frame = Frame(Type.APPEND, ANSWER | ERROR, fields=fields)
    bench.core.on_answer(request.number, frame, bench.now)
    assert bench.core.retry_at == began + 4.0
    request = bench.again()
    bench.core.on_answer(request.number, frame, bench.now)
    bench.now = began + 10.0
    bench.core.expire(bench.now)
    assert isinstance(section.error, QuotaReached)
    assert section.error.retry_after == 4.0
