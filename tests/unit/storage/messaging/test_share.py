"""A share against a model without runs: one entry for each message, kept in a dictionary."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.messaging.share import LEASED, SETTLED, WAITING, Run, Share

START = 5


class Naive:
    """What a share says, message by message: offset to (state, n, attempt, until, member, pop)."""

    def __init__(self) -> None:
        self.low = self.next = START
        self.n = 0
        self.each: dict[int, tuple[int, ...]] = {}

    def lease(
        self, n: int, first: int, count: int, member: int, pop: int, until: int, attempt: int
    ) -> None:
        """New ones, or some that are all unsettled."""
        if count < 0 or first + count > 1 << 63:
            return
        wanted = range(first, first + count)
        fits = first >= self.next or (
            count > 0 and all(self.each.get(at, (SETTLED,))[0] != SETTLED for at in wanted)
        )
        if n != self.n + 1 or first < self.low or not fits:
            return
        for at in range(self.next, first):
            self.each[at] = (SETTLED, 0, 0, 0, 0, 0)
        self.next = max(self.next, first)
        for at in wanted:
            self.each[at] = (LEASED, n, attempt, until, member, pop)
        self.next = max(self.next, first + count)
        self.n = n
        self.trim()

    def trim(self) -> None:
        """Low moves over what is settled."""
        while self.low < self.next and self.each[self.low][0] == SETTLED:
            del self.each[self.low]
            self.low += 1

    def found(self, n: int, first: int, last: int, states: Sequence[int]) -> list[int]:
        """Which of them lease ``n`` is the newest of."""
        return [
            at
            for at, one in self.each.items()
            if first <= at <= last and one[1] == n and one[0] in states
        ]

    def settle(self, n: int, first: int, last: int) -> None:
        """Leased and waiting ones."""
        for at in self.found(n, first, last, (LEASED, WAITING)):
            self.each[at] = (SETTLED, 0, 0, 0, 0, 0)
        self.trim()

    def release(self, n: int, first: int, last: int, at_ms: int, unused: int) -> None:
        """Leased ones."""
        for at in self.found(n, first, last, (LEASED,)):
            _, _, attempt, _, member, pop = self.each[at]
            self.each[at] = (WAITING, n, max(0, attempt - unused), at_ms, member, pop)

    def extend(self, n: int, first: int, last: int, until: int) -> None:
        """Leased ones."""
        for at in self.found(n, first, last, (LEASED,)):
            state, _, attempt, _, member, pop = self.each[at]
            self.each[at] = (state, n, attempt, until, member, pop)

    def move(self, to: int) -> None:
        """Ahead, where nothing is handed out."""
        if to > self.next and not self.each:
            self.low = self.next = to

    def reset(self, to: int) -> None:
        """Wherever."""
        self.low = self.next = to
        self.n += 1
        self.each.clear()


def agree(share: Share, naive: Naive) -> None:
    """Both say the same, and the runs are what the module says of them."""
    assert (share.low, share.next, share.n) == (naive.low, naive.next, naive.n)
    found = {at: run[2:] for run in share.runs for at in range(run.first, run.last + 1)}
    assert found == naive.each
    at = share.low
    for before, run in zip([None, *share.runs], share.runs, strict=False):
        assert run.first == at <= run.last
        assert before is None or before[2:] != run[2:], "neighbours that are alike are one"
        at = run.last + 1
    assert at == share.next
    assert not share.runs or share.runs[0].state != SETTLED
    for offset in range(share.low - 1, share.next + 2):
        one = share.run_at(offset)
        assert (one[2:] if one is not None else None) == naive.each.get(offset)


NEAR = st.integers(0, 24)
N = st.integers(0, 6)
STEPS = st.one_of(
    st.tuples(st.just("lease"), st.none(), NEAR, st.integers(0, 6), st.just(1), st.integers(1, 2),
              st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.just("lease"), N, NEAR, st.integers(0, 6), st.just(1), st.just(1), st.just(9),
              st.just(1)),
    st.tuples(st.just("settle"), N, NEAR, NEAR),
    st.tuples(st.just("release"), N, NEAR, NEAR, st.integers(0, 3), st.integers(0, 1)),
    st.tuples(st.just("extend"), N, NEAR, NEAR, st.integers(0, 3)),
    st.tuples(st.just("move"), NEAR),
    st.tuples(st.just("reset"), NEAR),
)  # fmt: skip


@given(st.lists(STEPS, max_size=40))
def test_a_share_says_what_each_message_would(steps: list[tuple[object, ...]]) -> None:
    """After every step, whatever came before; a copy says the same and stays as it was."""
    share, naive = Share(1, "g", "t", 0, 0, START), Naive()
    for name, *arguments in steps:
        if name == "lease" and arguments[0] is None:
            arguments[0] = share.n + 1
        before, kept = share.copy(), (share.low, share.next, share.n, list(share.runs))
        changed = getattr(share, str(name))(*arguments)
        getattr(naive, str(name))(*arguments)
        agree(share, naive)
        now = (share.low, share.next, share.n, share.runs)
        assert changed or now == kept, "what changes nothing says so"
        assert (before.low, before.next, before.n, before.runs) == kept


def test_what_is_due_and_what_holds() -> None:
    """Leases whose time has passed, and what waits until then; a range of one lease."""
    share = Share(1, "g", "t", 0, 0, 0)
    share.lease(1, 0, 10, 7, 1, 100, 1)
    share.lease(2, 10, 10, 7, 2, 200, 1)
    share.release(1, 4, 5, 150, 1)
    share.settle(1, 6, 6)
    assert [run[:2] for run in share.due(149)] == [(0, 3), (7, 9)]
    assert [run[:2] for run in share.due(200)] == [(0, 3), (4, 5), (7, 9), (10, 19)]
    assert share.run_at(4) == Run(4, 5, WAITING, 1, 0, 150, 7, 1)
    assert (share.count(LEASED), share.count(WAITING), share.span) == (17, 2, 20)
    assert share.holds(1, 0, 5)
    assert not share.holds(1, 5, 6), "6 is settled"
    assert not share.holds(1, 9, 10), "10 is leased under another number"
    assert not share.holds(2, 19, 20), "20 was never handed out"
    assert not share.holds(1, 5, 4)


def test_when_a_share_is_full() -> None:
    """By its span, or by its runs; what is settled makes room."""
    share = Share(1, "g", "t", 0, 0, 0)
    for n in range(1, 6):
        share.lease(n, 2 * n, 1, 1, n, 9, 1)
    assert share.full(runs_max=9)
    assert share.full(span_max=9)
    assert not share.full(span_max=10, runs_max=10)
    share.settle(1, 2, 2)
    assert not share.full(span_max=9, runs_max=9)


def both() -> tuple[Share, Naive]:
    """Two leases of five each; of the first one two in the middle are settled."""
    share, naive = Share(1, "g", "t", 0, 0, START), Naive()
    for one in (share, naive):
        one.lease(1, 5, 5, 1, 1, 100, 1)
        one.lease(2, 10, 5, 1, 2, 100, 1)
        one.settle(1, 7, 8)
    return share, naive


@pytest.mark.parametrize(
    ("name", "arguments", "changes"),
    [
        ("lease", (9, 15, 1, 1, 3, 100, 1), False),
        ("lease", (3, 15, -1, 1, 3, 100, 1), False),
        ("lease", (3, 4, 1, 1, 3, 100, 1), False),
        ("lease", (3, 15, 1 << 63, 1, 3, 100, 1), False),
        ("lease", (3, 15, 0, 1, 3, 100, 1), True),
        ("lease", (3, 18, 0, 1, 3, 100, 1), True),
        ("lease", (3, 18, 2, 1, 3, 100, 1), True),
        ("lease", (3, 5, 0, 1, 3, 100, 1), False),
        ("lease", (3, 5, 3, 1, 3, 100, 1), False),
        ("lease", (3, 14, 2, 1, 3, 100, 1), False),
        ("lease", (3, 11, 2, 1, 3, 100, 2), True),
        ("lease", (3, 9, 3, 1, 3, 100, 2), True),
        ("settle", (1, 5, 6), True),
        ("settle", (1, 9, 9), True),
        ("settle", (2, 10, 14), True),
        ("settle", (2, 12, 99), True),
        ("settle", (0, 7, 8), False),
        ("settle", (3, 5, 14), False),
        ("release", (2, 11, 12, 200, 1), True),
        ("release", (1, 7, 8, 200, 1), False),
        ("extend", (2, 0, 99, 300), True),
        ("extend", (1, 10, 14, 300), False),
        ("move", (99,), False),
        ("reset", (2,), True),
    ],
)
def test_each_change_by_itself(name: str, arguments: tuple[int, ...], changes: bool) -> None:
    """And once more: what is done already changes nothing, but for a reset."""
    share, naive = both()
    assert getattr(share, name)(*arguments) is changes
    getattr(naive, name)(*arguments)
    agree(share, naive)
    getattr(share, name)(*arguments)
    getattr(naive, name)(*arguments)
    agree(share, naive)


def test_settled_neighbours_are_one() -> None:
    """Before a run, after it, on both sides, and at the end before a gap."""
    share, naive = both()
    for first, last in ((9, 9), (10, 14), (5, 6)):
        for one in (share, naive):
            one.settle(1 if first < 10 else 2, first, last)
        agree(share, naive)
    assert (share.low, share.runs) == (15, [])
    share, naive = both()
    for one in (share, naive):
        one.settle(2, 10, 14)
        one.lease(3, 20, 2, 1, 3, 100, 1)
    agree(share, naive)
    assert [run[:3] for run in share.runs][-2:] == [(10, 19, SETTLED), (20, 21, LEASED)]
    empty = Share(1, "g", "t", 0, 0, 0)
    assert not empty.settle(1, 0, 0)
    assert empty.move(3)
    assert (empty.low, empty.next, empty.move(3)) == (3, 3, False)
