"""A short run of the simulator, its determinism, and a few mutants that it must kill at once.

The long run is `python -m tests.sim --seeds 0:1000`, the whole table of mutants
`python -m tests.sim.mutants`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sim.mutants.hunt import MUTANTS, hunt
from tests.sim.mutants.mutant import Mutant
from tests.sim.patches import Patches
from tests.sim.run import Verdict, run_seed

pytestmark = pytest.mark.sim

ROOT = Path(__file__).parents[2]
QUICK = {
    "ack_before_entry": "AckedIsHeld",
    "always_clean": "CleanMeansComplete",
    "checkpoint_leads": "ConfirmNeverFalls",
    "confirm_own_end": "ConfirmBehindEnd",
    "cut_below_confirm": "TruncateOnlyUnconfirmed",
    "flushed_without_index": "FlushedIsDurable",
    "keys_lag": "KeysFindRecords",
    "keys_not_flushed": "KeysFindRecords",
    "no_second_token_check": "EndedWriterWritesNothing",
    "snapshot_above_flushed": "SnapshotIsFlushed",
    "late_pool_commit": "NeverCrashes",
    "numbers_count_records": "NoGapNoDouble",
    "lights_not_rebuilt": "NoGapNoDouble",
    "never_clean": "CleanMeansComplete",
    "no_dedupe": "NoGapNoDouble",
    "no_zero_beyond_end": "OnlyZerosBeyond",
    "receiver_splits": "BatchesEqual",
    "retention_below_snapshot": "KeepsWhatIsNeeded",
    "settled_without_confirm": "ReaderFindsAcknowledged",
    "settled_without_dispatch": "ReaderFindsAcknowledged",
    "unclean_master": "MasterComplete",
    "active_before_flush": "EpochIsFlushedFirst",
    "no_lease": "WeakAckNeedsLease",
}


@pytest.fixture(scope="module")
def verdicts() -> list[Verdict]:
    """Twenty seeds of the usual length."""
    return [run_seed(seed) for seed in range(20)]


def test_every_invariant_holds(verdicts: list[Verdict]) -> None:
    """No seed of the short run breaks anything, and the run meets what it wants to test."""
    failed = [f"seed {one.seed}: {one.text}" for one in verdicts if one.failed]
    assert not failed
    for fact in ("answers", "masters", "cuts", "starts", "reads", "faults", "retained", "believed"):
        assert sum(one.facts[fact] for one in verdicts) > 0, f"no {fact} in twenty seeds"


def test_a_seed_is_a_run(verdicts: list[Verdict]) -> None:
    """The same seed writes the same trace, whatever PYTHONHASHSEED says."""
    for hash_seed in ("0", "12345"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.sim", "--seed", "3"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert f"trace={verdicts[3].digest} " in done.stdout


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_finds_the_rule_it_removes(mutant: Mutant) -> None:
    """Every name that a mutant replaces still exists in production, so the table can be made."""
    patches = Patches()
    try:
        mutant.apply(patches)
    finally:
        patches.undo()


@pytest.mark.parametrize("name", sorted(QUICK))
def test_a_broken_rule_is_noticed(name: str) -> None:
    """With one rule of production taken away, the named invariant fails within a few seeds."""
    mutant = next(one for one in MUTANTS if one.name == name)
    verdict = hunt(mutant, seeds=30)
    assert verdict is not None, f"{name} survives"
    assert verdict.invariant == QUICK[name]


@pytest.mark.parametrize("seed", [287, 330, 367, 494, 641, 698, 953])
def test_a_seed_that_once_failed_holds(seed: int) -> None:
    """An unread send at the end, a cut to the start, two deaths in mid-change, an old part, a
    slave that slept until its log had left."""
    verdict = run_seed(seed)
    assert not verdict.failed, verdict.text
