"""A producer whose answers come late, mixed, or never: what was given up stays given up."""

from __future__ import annotations

import pytest

from tests.fakes.producer_bench import Bench
from twinlog.errors import OutOfSequence
from twinlog.producer.core import Request
from twinlog.producer.section import Section, State

MiB = 1 << 20
UNKNOWN: list[object] = [3, -1, -1, 0, "unknown", "the node ends", -1]
BEHIND: list[object] = [2, -1, -1, 0, "out-of-sequence", "expected another", -1]
BAD: list[object] = [2, -1, -1, 0, "crc", "bytes", 0]


class Desk(Bench):
    """A producer that can be half given up."""

    def half_given_up(self) -> tuple[Request, Section, Section]:
        """A request of two queues, of which the first has passed its deadline."""
        early, late = self.add(b"1", queue=0), self.add(b"2", queue=1)
        self.core.limit(early, self.now + 0.5)
        request = self.request()
        self.now += 0.6
        self.core.expire(self.now)
        assert (early.state, late.state) == (State.UNKNOWN, State.SENT)
        return request, early, late


def stored(at: int) -> list[object]:
    """A row that says where a section is."""
    return [0, at, at * 100, 0, "", "", -1]


def sequences(request: Request) -> list[object]:
    """The sequences of a request's sections."""
    listed = request.fields["sections"]
    assert isinstance(listed, list)
    return [row[6] for row in listed]


def test_a_late_answer_counts_for_what_is_still_waited_for() -> None:
    """The other section of the same request was given up; nothing changes that."""
    bench = Desk(batch=1)
    request, early, late = bench.half_given_up()
    bench.answer(request, stored(0), stored(1))
    assert (early.state, late.state) == (State.UNKNOWN, State.STORED)


@pytest.mark.parametrize(("code", "retryable"), [("busy", True), ("unknown", False)])
def test_a_late_refusal_repeats_what_is_still_waited_for(code: str, retryable: bool) -> None:
    """And only that."""
    bench = Desk(batch=1)
    request, early, late = bench.half_given_up()
    bench.refuse(request, code, retryable=retryable)
    assert early.state is State.UNKNOWN
    repeated = bench.again()
    assert len(repeated.pieces) == 1
    bench.answer(repeated, stored(1))
    assert late.state is State.STORED


def test_a_lost_connection_repeats_what_is_still_waited_for() -> None:
    """The section that was given up is not sent again."""
    bench = Desk(batch=1)
    _, early, late = bench.half_given_up()
    bench.core.on_lost(bench.now)
    bench.answer(bench.again(), stored(1))
    assert (early.state, late.state) == (State.UNKNOWN, State.STORED)


def test_one_section_refused_for_good_moves_those_behind_it_up() -> None:
    """What went before it keeps its number, also when it must go again."""
    bench = Desk(batch=1)
    first, bad, third = (bench.add(b"%d" % n, queue=0) for n in range(3))
    request = bench.request()
    assert sequences(request) == [0, 1, 2]
    bench.answer(request, UNKNOWN, BAD, BEHIND)
    assert bad.state is State.REFUSED
    repeated = bench.again()
    assert sequences(repeated) == [0, 1]
    bench.answer(repeated, stored(0), stored(1))
    assert (first.state, third.state) == (State.STORED, State.STORED)


def test_a_section_that_is_still_open_moves_up_too() -> None:
    """It is closed first, for its number is about to change."""
    bench = Desk()
    bad = bench.add(b"1", queue=0)
    bench.core.close(bad, bench.now)
    request = bench.request()
    behind = bench.add(b"2", queue=0)
    bench.answer(request, BAD)
    following = bench.again()
    assert sequences(following) == [0]
    bench.answer(following, stored(0))
    assert (bad.state, behind.state) == (State.REFUSED, State.STORED)


def test_a_producer_with_an_epoch_from_outside_ends_with_its_first_failure() -> None:
    """Whoever gave the epoch begins again with the same records."""
    bench = Desk(epoch=5, batch=1)
    section = bench.add(b"1", queue=0)
    bench.answer(bench.request(), BEHIND)
    assert isinstance(section.error, OutOfSequence)
    with pytest.raises(OutOfSequence) as caught:
        bench.add(b"2", queue=1)
    assert caught.value is section.error


def test_an_open_section_is_given_up_with_those_before_it() -> None:
    """Its number follows theirs, so it cannot go alone."""
    bench = Desk(timeout=1.0)
    section = bench.add(b"1", queue=0)
    bench.core.close(section, bench.now)
    bench.request()
    bench.now += 0.5
    behind = bench.add(b"2", queue=0)
    bench.now += 0.6
    bench.core.expire(bench.now)
    assert (section.state, behind.state) == (State.UNKNOWN, State.REFUSED)
