"""Halves of transactions against a naive model, on a master and from snapshots."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.messaging import halves
from storage.messaging.fold import Messaging
from storage.messaging.halves import Half, Halves, HalvesAhead
from storage.recovery.snapshot import Snapshot, decode_snapshot, encode_snapshot
from twinlog.format.group_rows import COMMIT, GIVEN_UP, ROLLBACK, HalfRow

STEPS = st.lists(
    st.one_of(
        st.just("enter"),
        st.tuples(st.integers(0, 9), st.sampled_from([COMMIT, ROLLBACK, GIVEN_UP, 0, 7])),
        st.just("snapshot"),
    ),
    max_size=40,
)


def half(number: int) -> Half:
    """A half with a place of its own."""
    return Half(number, 100 * number, 50, number, "shop", "7f")


@given(STEPS, st.integers(0, 5))
def test_each_half_is_settled_once(steps: list[object], base: int) -> None:
    """The first outcome counts, whatever comes later; the ahead fold says the same earlier."""
    found, model = Halves(), dict[int, int]()
    ahead = HalvesAhead(found)
    for step in steps:
        if step == "enter":
            number = base + len(model)
            model[number] = 0
            found.enter(half(number))
            found.enter(half(number))
        elif step == "snapshot":
            found = Halves.restore(found.values())
            ahead = HalvesAhead(found)
        else:
            row = HalfRow(*step)  # type: ignore[misc]
            fits = model.get(row.half) == 0 and row.outcome in (COMMIT, ROLLBACK, GIVEN_UP)
            if fits:
                assert ahead.apply(row)
                assert (ahead.get(row.half), ahead.outcome(row.half)) == (None, row.outcome)
                assert not ahead.apply(HalfRow(row.half, ROLLBACK))
                model[row.half] = row.outcome
            assert found.apply(row) is fits
        numbers = [number for number, outcome in model.items() if not outcome]
        assert [one.number for one in found.open()] == numbers == [o.number for o in ahead.open()]
        assert found.count == len(numbers)
        assert found.least() == (100 * numbers[0] if numbers else None)
        for number in range(16):
            assert found.outcome(number) == model.get(number) == ahead.outcome(number)


class Watched(dict[int, int]):
    """Counts the keys that are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[int]:
        """See `dict`."""
        for key in super().__iter__():
            self.looks += 1
            yield key


def test_a_row_looks_at_no_more_than_what_was_dispatched() -> None:
    """A burst of ends costs the same for each, however many wait for the dispatcher."""
    base = Halves()
    for number in range(200):
        base.enter(half(number))
    ahead, watched = HalvesAhead(base), Watched()
    ahead._settled = watched
    for number in range(100):
        assert ahead.apply(HalfRow(number, COMMIT))
    assert watched.looks <= 100
    for number in range(50):
        base.apply(HalfRow(number, COMMIT))
    assert ahead.apply(HalfRow(100, COMMIT))
    assert sorted(watched) == list(range(50, 101))


def test_outcomes_are_forgotten_oldest_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open stays known however old it is."""
    monkeypatch.setattr(halves, "REMEMBERED", 3)
    found = Halves()
    for number in range(6):
        found.enter(half(number))
        if number != 1:
            found.apply(HalfRow(number, COMMIT))
    assert [found.outcome(number) for number in range(7)] == [None, 0, None, 1, 1, 1, None]
    assert found.apply(HalfRow(1, ROLLBACK))
    assert found.outcome(1) is None


def test_a_snapshot_keeps_what_is_open_and_what_became_of_the_rest() -> None:
    """As bytes of a file; one without halves is as it was before there were any."""
    fold = Messaging()
    fold.enter_half(half(3))
    fold.enter_half(half(4))
    fold.apply(HalfRow(3, ROLLBACK), 1)
    written = encode_snapshot(Snapshot(1_000, messaging=fold.values()))
    read = Messaging.restore(decode_snapshot(written).messaging)
    assert [*read.halves.open()] == [half(4)]
    assert [read.halves.outcome(number) for number in (2, 3, 4, 5)] == [None, ROLLBACK, 0, None]
    assert read.values() == fold.values()
    none = Messaging()
    none.position = 9
    assert b"halves" not in encode_snapshot(Snapshot(9, messaging=none.values()))
