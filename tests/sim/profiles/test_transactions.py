"""Transactions in the simulator: seeds, and mutants to be noticed.

The long run is `python -m tests.sim --profile transactions --seeds 0:1000`.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants.hunt import MUTANTS, hunt
from tests.sim.run import run_seed

pytestmark = pytest.mark.sim

QUICK = {
    "end_twice": "SettledOnce",
    "end_other_outcome": "SettledOnce",
    "halves_in_two_batches": "CommitWhole",
    "commit_without_row": "HalfUnseen",
    "check_counts_unasked": "QuestionsAreHeard",
}


@pytest.mark.parametrize("seed", [0, 1, 3])
def test_transactions_survive(seed: int) -> None:
    """Every invariant holds where much is ended, asked about and given up, and nodes fail."""
    verdict = run_seed(seed, seconds=20.0, profile="transactions")
    assert not verdict.failed, verdict.text
    for name in ("ended", "refused", "questions", "outcome-1", "outcome-2", "outcome-3"):
        assert verdict.facts[f"transaction-{name}"] > 0, name


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_broken_rule_of_transactions_is_noticed(name: str) -> None:
    """With one rule of production taken away, the named invariant fails within a few seeds."""
    mutant = next(one for one in MUTANTS if one.name == name)
    verdict = hunt(mutant, seeds=8, seconds=20.0)
    assert verdict is not None, f"{name} survives"
    assert verdict.invariant == QUICK[name]
