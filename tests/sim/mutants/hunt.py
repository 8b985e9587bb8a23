"""Hunts mutants: broken versions of the production code, each of which the simulator must catch.

    python -m tests.sim.mutants            the table: mutant, invariant that killed it, seed
    python -m tests.sim.mutants NAME       one of them, with the story

A mutant is killed when any invariant fails, or production itself notices and stops, within
`SEEDS` seeds. One that survives and is not marked as redundant means that the simulator does not
test that rule: exit code 1.

Not here: what a mutant is (`tests.sim.mutants.mutant`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from tests.sim.judge.ledger import Violation
from tests.sim.mutants.delays import MUTANTS as OF_DELAYS
from tests.sim.mutants.deletions import MUTANTS as OF_DELETIONS
from tests.sim.mutants.messaging import MUTANTS as OF_GROUPS
from tests.sim.mutants.mutant import SEEDS, Mutant
from tests.sim.mutants.reading import MUTANTS as OF_READING
from tests.sim.mutants.register import MUTANTS as OF_THE_REGISTER
from tests.sim.mutants.replication import MUTANTS as OF_REPLICATION
from tests.sim.mutants.storage import MUTANTS as OF_STORAGE
from tests.sim.mutants.timed import MUTANTS as OF_TIMED
from tests.sim.mutants.transactions import MUTANTS as OF_TRANSACTIONS
from tests.sim.patches import Patches
from tests.sim.run import Verdict, run_seed
from tests.sim.swarm import draw

MUTANTS = (
    *OF_STORAGE,
    *OF_REPLICATION,
    *OF_THE_REGISTER,
    *OF_READING,
    *OF_GROUPS,
    *OF_DELAYS,
    *OF_DELETIONS,
    *OF_TIMED,
    *OF_TRANSACTIONS,
)


def hunt(mutant: Mutant, *, seeds: int = SEEDS, seconds: float = 60.0) -> Verdict | None:
    """Run a mutant until something fails; returns that verdict, None when it survives."""
    patches = Patches()
    try:
        mutant.apply(patches)
        if mutant.tale is not None:
            return told(mutant.tale)
        for seed in range(seeds):
            plan = draw(seed)
            if mutant.bend is not None:
                mutant.bend(plan)
            verdict = run_seed(seed, seconds=seconds, plan=plan, alone=mutant.alone)
            if verdict.failed and mutant.alone in ("", verdict.invariant):
                return verdict
    finally:
        patches.undo()
    return None


def told(tale: Callable[[], None]) -> Verdict | None:
    """Play a tale; returns what it breaks, None when it ends well."""
    begin = time.process_time()
    try:
        tale()
    except Violation as broken:
        spent = time.process_time() - begin
        return Verdict(-1, broken.name, str(broken), "", spent)
    return None


def main() -> int:
    """Hunt all mutants, or those named."""
    wanted = sys.argv[1:]
    survivors = 0
    print(f"{'mutant':24} {'killed by':24} {'seed':>6} {'seconds':>8}")
    for mutant in MUTANTS:
        if wanted and mutant.name not in wanted:
            continue
        begin = time.monotonic()
        verdict = hunt(mutant)
        spent = time.monotonic() - begin
        killer = verdict.invariant if verdict else "redundant" if mutant.redundant else "SURVIVES"
        seed = str(verdict.seed) if verdict and mutant.tale is None else "-"
        survivors += verdict is None and not mutant.redundant
        print(f"{mutant.name:24} {killer:24} {seed:>6} {spent:8.1f}", flush=True)
        if len(wanted) == 1 and verdict is not None:
            print(f"  rule: {mutant.rule}\n  {verdict.text}")
            print("\n".join(f"    {line}" for line in verdict.story))
    return 1 if survivors else 0
