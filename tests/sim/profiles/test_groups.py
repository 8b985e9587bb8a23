"""Groups in the simulator: dense seeds, and mutants that they must kill at once.

The long run is `python -m tests.sim --profile groups --seeds 0:1000`.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants.hunt import MUTANTS, hunt
from tests.sim.run import run_seed

pytestmark = pytest.mark.sim

QUICK = {
    "lease_answered_early": "PopOnce",
    "dlq_apart": "DeadOnce",
    "dlq_without_copy": "NoneForgotten",
    "left_twice": "RowsCount",
    "rest_is_kept": "InOrder",
    "low_over_waiting": "StateFollowsLog",
    "attempts_start_anew": "AttemptsBounded",
    "expiry_at_first_end": "LeaseExclusive",
    "sign_of_life_spins": "NeverSpins",
}


@pytest.mark.parametrize("seed", range(4))
def test_groups_survive_a_dense_seed(seed: int) -> None:
    """Every invariant holds where members, operators and faults are many."""
    verdict = run_seed(seed, seconds=30.0, profile="groups")
    assert not verdict.failed, verdict.text
    assert verdict.facts["bodies"] > 0
    assert verdict.facts["settled"] > 0


def test_a_lease_may_be_of_what_the_next_master_has_deleted() -> None:
    """Retention of a slave was ahead of the group, then it became master: others are handed out."""
    verdict = run_seed(209, seconds=60.0, profile="groups")
    assert not verdict.failed, verdict.text


def test_a_parked_pop_begins_nothing_in_a_group_that_is_being_deleted() -> None:
    """Its share would be the one of the next group of that name, and its lease would never end."""
    verdict = run_seed(293, seconds=60.0, profile="groups")
    assert not verdict.failed, verdict.text


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_broken_rule_of_groups_is_noticed(name: str) -> None:
    """With one rule of production taken away, the named invariant fails within a few seeds."""
    mutant = next(one for one in MUTANTS if one.name == name)
    verdict = hunt(mutant, seeds=5, seconds=30.0)
    assert verdict is not None, f"{name} survives"
    assert verdict.invariant == QUICK[name]
