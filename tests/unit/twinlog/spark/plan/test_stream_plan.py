"""What the next batch of a stream reads: limits that queues share, lost and replaced queues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.plan import splits
from twinlog.spark.plan.option_parser import parse
from twinlog.spark.plan.splits import Piece, Sizing, Span, bounds_of, splits_of
from twinlog.spark.plan.stream import Limit, Reached, Stream, aligned, proportional


@dataclass
class Queue:
    """A queue whose record ``n`` lies at log offset ``places[n]``."""

    places: Sequence[int]
    topic: str = "t"
    queue: int = 0
    start: int = 0

    @property
    def end(self) -> int:
        """Queue offset after the last record."""
        return len(self.places)

    def at_time(self, ms: int) -> int:
        """Record ``n`` was stored at ``n``."""
        return min(max(ms, self.start), self.end)

    def place(self, number: int) -> int:
        """Log offset of a record."""
        return self.places[number]

    def cuts(self, first: int, stop: int, points: Any) -> Any:
        """For each point the first record not before it."""
        held = np.array(self.places[first:stop])
        return first + np.searchsorted(held, points)


@dataclass
class View:
    """A group whose history may have been cut at ``cut_at``."""

    held: list[Queue]
    group: str = "g"
    cut_at: int | None = None
    limits: list[Limit] = field(default_factory=list[Limit])

    @property
    def queues(self) -> Mapping[tuple[str, int], Queue]:
        """By name."""
        return {(one.topic, one.queue): one for one in self.held}

    def mark(self, ends: Any, moved: Any) -> tuple[int | None, int]:
        """Epoch 1, behind everything below the ends."""
        places = [self.queues[key].place(ends[key] - 1) for key in moved]
        return 1, max(places) + 1

    def cut(self, found: Mapping[Any, tuple[int, int]], limit: Limit) -> Any:
        """Remember the limit and cut nothing."""
        self.limits.append(limit)
        return {key: stop for key, (_, stop) in found.items()}

    def cut_of(self, epoch: int) -> int | None:
        """Where that history ends."""
        return self.cut_at

    def began_again(self, key: tuple[str, int], stop: int, end: int) -> bool:
        """It is the one that was read."""
        return False

    def queue(self, key: tuple[str, int]) -> Queue | None:
        """One of them."""
        return self.queues.get(key)

    def parts(self, rows: int) -> int | None:
        """Bytes decide."""
        return None


def stream(*views: View, **given: str) -> tuple[Stream, list[str]]:
    """A query over views, and what it warned of."""
    told: list[str] = []
    wanted = parse({"path": "/d", "startingOffsets": "earliest", **given}, use="stream")
    made = Stream(wanted, lambda _: views, now=lambda: 0.0, wall_ms=lambda: 0, warn=told.append)
    return made, told


def test_groups_share_a_limit_by_what_they_have_left() -> None:
    """Each at least one row or byte; a group that has everything has the whole limit."""
    large, small = View([Queue(range(90))], "a"), View([Queue(range(10))], "b")
    made, _ = stream(large, small)
    made.latest(made.initial(), Limit(rows=50))
    made.latest(made.initial(), Limit(size=5))
    assert large.limits == [Limit(rows=45), Limit(size=4)]
    assert small.limits == [Limit(rows=5), Limit(size=1)]
    alone = View([Queue(range(90))])
    made, _ = stream(alone)
    made.latest(made.initial(), Limit(rows=50))
    assert alone.limits == [Limit(rows=50)]


@pytest.mark.parametrize(
    ("given", "missed"),
    [({"subscribe": "t,u"}, True), ({"subscribe": "u"}, False), ({"assign": '{"t":[1]}'}, False)],
)
def test_a_queue_that_is_gone_is_missed_by_who_names_it(
    given: dict[str, str], *, missed: bool
) -> None:
    """Whoever dropped its topic or number from the options has said so."""
    before, _ = stream(View([Queue([5, 6]), Queue([7], "u")]))
    at = before.latest(before.initial(), Limit())
    after, _ = stream(View([Queue([7], "u")]), **given)
    if missed:
        with pytest.raises(DataLossError, match="topic t, queue 0 is not there any more"):
            after.latest(at, Limit())
    else:
        assert after.latest(at, Limit()) == at


def test_a_queue_that_ends_below_the_checkpoint_and_has_no_start() -> None:
    """Its first rows are gone: nobody knows that it was made again, so nobody says so."""
    before, _ = stream(View([Queue(range(9))]))
    at = before.latest(before.initial(), Limit())
    after, _ = stream(View([Queue(range(5), start=2)]))
    with pytest.raises(DataLossError) as refused:
        after.latest(at, Limit())
    assert "ends at 5, below the checkpoint's 9" in str(refused.value)
    assert "created again" not in str(refused.value)


def test_a_batch_of_which_nothing_is_left() -> None:
    """Told once, however often it is planned; a queue that is not there at all is refused."""
    made, told = stream(View([Queue(range(5), start=4)]), failOnDataLoss="false")
    pieces, read = [Piece("t", 0, 0, 3), Piece("t", 0, 0, 5)], Reached(None, 0)
    for _ in range(2):
        kept = made.kept(View([Queue(range(5), start=4)]), pieces, read)
        assert kept == [Piece("t", 0, 4, 5)]
    assert len(told) == 1 and "rows 0–3 are gone" in told[0]
    with pytest.raises(SourceError, match="topic t, queue 0 is not there any more"):
        made.kept(View([]), pieces, read)


def test_a_batch_ends_at_one_place_of_the_log() -> None:
    """Rows of one record stay together, and the smaller of two limits counts."""
    same = {(name, 0): Queue([10, 20, 30], name) for name in ("a", "b")}
    spans = dict.fromkeys(same, (0, 3))
    assert set(aligned(same, spans, Limit(rows=1)).values()) == {1}, "both rows of one place"
    assert set(aligned(same, spans, Limit(rows=4)).values()) == {2}
    assert set(aligned(same, spans, Limit(rows=4, size=5)).values()) == {1}
    assert set(aligned(same, spans, Limit(rows=2, size=500)).values()) == {1}
    assert set(aligned(same, spans, Limit(rows=6)).values()) == {3}


def test_a_start_behind_the_end_is_refused() -> None:
    """It would read nothing, and say nothing."""
    wanted = parse({"path": "/d", "startingOffsets": '{"t":{"0":6}}'}, use="batch")
    with pytest.raises(SourceError, match="topic t, queue 0 ends at 5, before 6"):
        bounds_of([Queue(range(5))], wanted, 0)
    at_end = parse({"path": "/d", "startingOffsets": '{"t":{"0":5}}'}, use="batch")
    assert bounds_of([Queue(range(5))], at_end, 0).pieces == ()


def test_a_stretch_of_the_log_without_a_wanted_row_is_no_task() -> None:
    """A queue that does not know its records' sizes counts each as a byte."""
    queue = Queue([0, 10, 5000, 5010])
    files = [(at, at + 1000) for at in range(0, 6000, 1000)]
    found = splits_of([Span(Piece("t", 0, 0, 4), queue)], files, Sizing(1 << 20))
    assert [(one.low, one.high, one.pieces) for one in found] == [
        (0, 1000, (Piece("t", 0, 0, 2),)),
        (5000, 5011, (Piece("t", 0, 2, 4),)),
    ]
    assert splits.cut_points(0, 2000, files, 500).tolist() == [500, 1000, 1500]


Ends = Mapping[tuple[str, int], tuple[int, int]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=9), st.integers(1, 40))
def test_a_share_of_rows_is_never_more_than_asked_for(
    spans: list[tuple[int, int]], most: int
) -> None:
    """Every row once, no batch above its limit or empty, no queue starved."""
    left = {("t", i): (first, first + count) for i, (first, count) in enumerate(spans)}
    while any(first < stop for first, stop in left.values()):
        ends = proportional(left, most)
        waiting = [key for key, (first, stop) in left.items() if first < stop]
        taken = [ends[key] - left[key][0] for key in waiting]
        assert all(first <= ends[key] <= stop for key, (first, stop) in left.items())
        assert 1 <= sum(taken) <= most
        assert all(taken) or len(waiting) > most
        left = {key: (ends[key], stop) for key, (_, stop) in left.items()}


def test_more_queues_than_rows_take_turns() -> None:
    """Two rows for five queues: after five batches each has had two."""
    left = {("t", queue): (7, 100) for queue in range(5)}
    for _ in range(5):
        ends = proportional(left, 2)
        left = {key: (ends[key], 100) for key in left}
    assert {first for first, _ in left.values()} == {9}
