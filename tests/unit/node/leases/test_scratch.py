"""What a turn has decided is seen by the decisions after it, and by nothing else."""

from __future__ import annotations

from random import Random

import pytest

from node.leases.scratch import Scratch
from storage.messaging.fold import Messaging
from twinlog.format.group_rows import LeaseRow, PositionRow, ResetRow, Row, ShareRow


def fold() -> Messaging:
    """Three shares of a member, at 10."""
    made = Messaging()
    for queue in range(3):
        made.apply(ShareRow(queue + 1, "b~m", "t", 0, queue, 10), 1)
    return made


def state(shares: Scratch | Messaging) -> list[tuple[object, ...]]:
    """All that is known."""
    return [(one.id, one.low, one.next, one.n, tuple(one.runs)) for one in shares.shares_of("b~m")]


def test_a_position_is_seen_by_those_after_it() -> None:
    """And the fold below does not change, whoever looks."""
    base = fold()
    scratch = Scratch(base)
    found = scratch.position(1)
    assert found is not None
    share, at = found
    assert at == 10
    assert scratch.move(share, PositionRow(1, 7, 0, 15))
    assert not scratch.move(share, PositionRow(1, 7, 0, 15)), "it is there already"
    assert not scratch.move(share, PositionRow(1, 7, 0, 12)), "never back"
    again = scratch.position(1)
    assert again is not None
    assert again[1] == 15
    looked = scratch.share(1)
    assert looked is not None
    assert (looked.low, looked.next) == (15, 15)
    assert base.share(1) is share
    assert share.next == 10
    assert scratch.rows == [PositionRow(1, 7, 0, 15)]
    assert scratch.position(9) is None


@pytest.mark.parametrize("seed", range(30))
def test_it_does_what_the_fold_will_do(seed: int) -> None:
    """Positions, leases and resets in any order: its rows lead the fold to what it showed."""
    rng = Random(seed)
    base = fold()
    scratch = Scratch(base)
    for _ in range(20):
        number = rng.randint(1, 3)
        found = scratch.position(number)
        assert found is not None
        share, at = found
        row: Row
        match rng.randrange(5):
            case 0:
                whole = scratch.share(number)
                assert whole is not None
                row = LeaseRow(number, whole.n + 1, whole.next, 2, 7, 1, 99, 1)
                assert scratch.write(row)
            case 1:
                assert scratch.write(ResetRow(number, rng.randint(0, 30), "test"))
            case 2:
                scratch.write(PositionRow(number, 7, 0, at + rng.randint(-1, 3)))
            case _:
                scratch.move(share, PositionRow(number, 7, 0, at + rng.randint(-1, 3)))
    before = state(base)
    shown = state(scratch)
    assert state(base) == before
    for row in scratch.rows:
        assert base.apply(row, 2), row
    assert state(base) == shown
