"""A node that no longer knows a producer: nothing is lost, and nothing is called what it is not."""

from __future__ import annotations

import pytest

from tests.fakes.producer_bench import UNKNOWN, Bench, refused, stored
from twinlog.errors import OutcomeUnknown, OutOfSequence, UnknownProducer
from twinlog.format.record import decode
from twinlog.producer.core import Request
from twinlog.producer.section import State

FORGOTTEN = refused("unknown-producer")
GAP = refused("out-of-sequence")


def lines(request: Request) -> list[tuple[int, int]]:
    """Producer epoch and sequence of each section, in fields and mark alike."""
    rows = request.fields["sections"]
    assert isinstance(rows, list)
    found = [(row[5], row[6]) for row in rows]
    marks = [decode(bytes(piece)).properties["TL_SEQ"].split(".") for piece in request.pieces]
    assert [(int(mark[1]), int(mark[2])) for mark in marks] == found
    return found


def idle_for_long(bench: Bench) -> None:
    """One section was stored long ago."""
    bench.add(b"old", queue=0)
    bench.answer(bench.request(), stored(0))


def test_sections_that_are_in_no_log_get_a_new_epoch() -> None:
    """They are sent again by themselves, in order, and so is what is still open."""
    bench = Bench(batch=1)
    idle_for_long(bench)
    first, second = bench.add(b"1", queue=0), bench.add(b"2", queue=0)
    request = bench.request()
    assert lines(request) == [(0, 1), (0, 2)]
    bench.answer(request, FORGOTTEN, FORGOTTEN)
    again = bench.again()
    assert lines(again) == [(1, 0), (1, 1)]
    bench.answer(again, stored(7), stored(8))
    assert [first.receipt().queue_offset, second.receipt().queue_offset] == [7, 8]
    assert bench.core.failures == []


def test_what_an_earlier_attempt_may_have_stored_is_unknown() -> None:
    """The node that could have told forgot it; what followed was never stored and goes on."""
    bench = Bench(batch=1)
    idle_for_long(bench)
    doubtful = bench.add(b"1", queue=0)
    bench.answer(bench.request(), UNKNOWN)
    bench.now = bench.core.retry_at
    certain = bench.add(b"2", queue=0)
    bench.answer(bench.request(), FORGOTTEN, FORGOTTEN)
    assert doubtful.state is State.UNKNOWN
    assert isinstance(doubtful.error, OutcomeUnknown)
    again = bench.again()
    assert lines(again) == [(1, 0)]
    bench.answer(again, stored(9))
    assert certain.stored


def test_an_answer_to_the_old_number_is_no_answer_to_the_new_one() -> None:
    """A new epoch begins only when every attempt under way is answered or lost."""
    bench = Bench(batch=1, window=2)
    idle_for_long(bench)
    first = bench.add(b"1", queue=0)
    request = bench.request()
    second = bench.add(b"2", queue=0)
    later = bench.request()
    bench.answer(request, FORGOTTEN)
    bench.now = bench.core.retry_at
    assert bench.core.next_request(bench.now) is None
    bench.core.on_lost(bench.now)
    assert second.state is State.UNKNOWN, "its attempt was lost"
    again = bench.again()
    bench.answer(later, stored(3))
    assert lines(again) == [(1, 0)]
    assert first.state is State.SENT
    bench.answer(again, stored(4))
    assert first.receipt().queue_offset == 4


def test_an_epoch_that_was_given_is_not_renewed() -> None:
    """Whoever gave it begins again; what may be stored is unknown to it as well."""
    bench = Bench(batch=1, epoch=5)
    doubtful = bench.add(b"1", queue=0)
    bench.answer(bench.request(), UNKNOWN)
    bench.now = bench.core.retry_at
    certain = bench.add(b"2", queue=0)
    bench.answer(bench.request(), FORGOTTEN, FORGOTTEN)
    assert isinstance(doubtful.error, OutcomeUnknown)
    assert isinstance(certain.error, UnknownProducer)
    with pytest.raises(OutcomeUnknown):
        bench.add(b"3", queue=0)


@pytest.mark.parametrize("lost", [True, False], ids=["connection lost", "answered unknown"])
def test_out_of_sequence_after_doubt_is_unknown(lost: bool) -> None:
    """Today's refusal says nothing of the attempt before: it may be in the log."""
    bench = Bench(batch=1)
    idle_for_long(bench)
    doubtful, certain = bench.add(b"1", queue=0), bench.add(b"2", queue=0)
    request = bench.request()
    if lost:
        bench.core.on_lost(bench.now)
    else:
        bench.answer(request, UNKNOWN, refused("busy"))
    bench.answer(bench.again(), GAP, GAP)
    assert isinstance(doubtful.error, OutcomeUnknown)
    assert "may or may not be stored" in doubtful.error.text
    expected = OutcomeUnknown if lost else OutOfSequence
    assert type(certain.error) is expected
    assert doubtful.state is State.UNKNOWN


def test_a_section_in_doubt_is_not_sent_again_after_nodes_forget_it() -> None:
    """Ten minutes after its first attempt a node may store it a second time; it is unknown then."""
    bench = Bench(batch=1, timeout=86_400.0)
    doubtful, other = bench.add(b"1", queue=0), bench.add(b"2", queue=1)
    bench.answer(bench.request(), UNKNOWN, refused("busy"))
    bench.now += 400.0
    bench.answer(bench.again(), refused("busy"), refused("busy"))
    bench.now += 195.0
    bench.core.expire(bench.now)
    assert isinstance(doubtful.error, OutcomeUnknown)
    assert not other.done, "it is in no log: it may be sent for a day"
    assert len(bench.again().pieces) == 1
