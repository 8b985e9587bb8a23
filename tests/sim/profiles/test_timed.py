"""Messages at a time in the simulator: seeds, and mutants that they must kill at once.

The long run is `python -m tests.sim --profile timers --seeds 0:1000`.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants.hunt import MUTANTS, hunt
from tests.sim.run import run_seed

pytestmark = pytest.mark.sim

QUICK = {
    "timer_mark_at_confirm": "DeliveredOnce",
    "timer_cancel_at_confirm": "CancelHolds",
    "timer_unseen_passed": "WaitingFollowsLog",
    "timers_forgotten": "WaitingFollowsLog",
    "timer_copy_lost": "MarkWithCopies",
    "timers_not_held": "NothingWaitingLeaves",
    "timer_due_soon": "NotEarly",
}


@pytest.mark.parametrize("seed", [0, 3, 4, 9])
def test_messages_at_a_time_survive(seed: int) -> None:
    """Every invariant holds where much waits, some is taken back, and nodes fail."""
    verdict = run_seed(seed, seconds=30.0, profile="timers")
    assert not verdict.failed, verdict.text
    assert verdict.facts["delay-copies"] > 0
    assert verdict.facts["delay-late"] > 0


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_broken_rule_of_timers_is_noticed(name: str) -> None:
    """With one rule of production taken away, the named invariant fails within a few seeds."""
    mutant = next(one for one in MUTANTS if one.name == name)
    verdict = hunt(mutant, seeds=8, seconds=30.0)
    assert verdict is not None, f"{name} survives"
    assert verdict.invariant == QUICK[name]
