"""Delayed messages in the simulator: seeds, and mutants that they must kill at once.

The long run is `python -m tests.sim --profile delays --seeds 0:1000`.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants.hunt import MUTANTS, hunt
from tests.sim.run import run_seed

pytestmark = pytest.mark.sim

QUICK = {
    "delay_mark_apart": "MarkWithCopies",
    "delay_mark_at_confirm": "DeliveredOnce",
    "delay_copy_lost": "MarkWithCopies",
    "delays_forgotten": "ProgressFollowsLog",
    "delays_not_held": "NothingWaitingLeaves",
    "delay_due_soon": "NotEarly",
    "dispatch_wakes_no_delay": "DeliveredInTheEnd",
}


@pytest.mark.parametrize("seed", range(4))
def test_delayed_messages_survive(seed: int) -> None:
    """Every invariant holds where much is delayed and nodes fail."""
    verdict = run_seed(seed, seconds=30.0, profile="delays")
    assert not verdict.failed, verdict.text
    assert verdict.facts["delay-copies"] > 0
    assert verdict.facts["delay-marks"] > 0


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_broken_rule_of_delays_is_noticed(name: str) -> None:
    """With one rule of production taken away, the named invariant fails within a few seeds."""
    mutant = next(one for one in MUTANTS if one.name == name)
    verdict = hunt(mutant, seeds=8, seconds=30.0)
    assert verdict is not None, f"{name} survives"
    assert verdict.invariant == QUICK[name]
