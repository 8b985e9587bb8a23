"""Broken versions of the production code, each of which the simulator must catch.

A mutant removes one rule by replacing one named function. It says which rule, it may bend the plan
towards the circumstances in which the rule matters (a checker that is merely patient finds little),
and it is killed when any invariant fails within its number of seeds.

    python -m tests.sim.mutants            the table: mutant, invariant that killed it, seed
    python -m tests.sim.mutants NAME       one of them, with the story

A mutant that survives means that the simulator does not test that rule.

Not here: the list (`tests.sim.mutant_list`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.run import Verdict, run_seed
from tests.sim.swarm import Plan, draw

SEEDS = 200


class Patches:
    """Replaces attributes and puts them back."""

    def __init__(self) -> None:
        self._old: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """Replace ``owner.name``."""
        self._old.append((owner, name, owner.__dict__[name]))
        setattr(owner, name, value)

    def undo(self) -> None:
        """Put everything back, newest first."""
        while self._old:
            owner, name, value = self._old.pop()
            setattr(owner, name, value)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule removed.

    Attributes:
        name: As in the protocol's lists.
        rule: The rule that is gone.
        apply: Replaces production functions.
        bend: Changes a drawn plan towards where the rule matters.
        seeds: Within how many seeds it must be killed.
    """

    name: str
    rule: str
    apply: Callable[[Patches], None]
    bend: Callable[[Plan], None] | None = None
    seeds: int = SEEDS


def hunt(mutant: Mutant, *, first: int = 0, seconds: float = 60.0) -> tuple[Verdict | None, int]:
    """Run a mutant until something fails; returns the verdict, if any, and the seeds tried."""
    patches = Patches()
    mutant.apply(patches)
    try:
        for seed in range(first, first + mutant.seeds):
            plan = draw(seed)
            if mutant.bend is not None:
                mutant.bend(plan)
            verdict = run_seed(seed, seconds=seconds, plan=plan)
            if verdict.failed:
                return verdict, seed - first + 1
    finally:
        patches.undo()
    return None, mutant.seeds


def main() -> int:
    """Hunt all mutants, or those named."""
    from tests.sim.mutant_list import MUTANTS

    wanted = sys.argv[1:]
    survivors = 0
    print(f"{'mutant':24} {'killed by':24} {'seed':>6} {'tried':>6} {'seconds':>8}")
    for mutant in MUTANTS:
        if wanted and mutant.name not in wanted:
            continue
        begin = time.monotonic()
        verdict, tried = hunt(mutant)
        spent = time.monotonic() - begin
        killer = verdict.invariant if verdict else "SURVIVES"
        seed = str(verdict.seed) if verdict else "-"
        survivors += verdict is None
        print(f"{mutant.name:24} {killer:24} {seed:>6} {tried:6} {spent:8.1f}", flush=True)
        if wanted and verdict is not None:
            print(f"  {mutant.rule}\n  {verdict.text}")
            print("\n".join(f"    {line}" for line in verdict.story))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
