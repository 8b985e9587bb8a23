"""A topic that is deleted and made again, in the simulator: seeds, and mutants to be noticed.

The long run is `python -m tests.sim --profile deletions --seeds 0:1000`.
"""

from __future__ import annotations

import pytest

from tests.sim.mutants.hunt import MUTANTS, hunt
from tests.sim.run import run_seed

pytestmark = pytest.mark.sim

QUICK = {
    "numbers_from_zero": "QueueFollowsLog",
    "incarnation_ignored": "DeletedStaysDeleted",
    "deletion_at_confirm": "DeletedStaysDeleted",
    "served_before_dispatch": "DeletedStaysDeleted",
    "deletion_forgotten": "KeysFindRecords",
    "search_of_all_lives": "KeysFindRecords",
}


@pytest.mark.parametrize("seed", range(3))
def test_a_deleted_topic_survives_nothing(seed: int) -> None:
    """Every invariant holds where a topic is deleted all the time and nodes fail."""
    verdict = run_seed(seed, seconds=20.0, profile="deletions")
    assert not verdict.failed, verdict.text
    assert verdict.facts["deleted"] > 0
    assert verdict.facts["records"] > 0


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_broken_rule_of_deletions_is_noticed(name: str) -> None:
    """With one rule of production taken away, the named invariant fails within a few seeds."""
    mutant = next(one for one in MUTANTS if one.name == name)
    verdict = hunt(mutant, seeds=8, seconds=20.0)
    assert verdict is not None, f"{name} survives"
    assert verdict.invariant == QUICK[name]
