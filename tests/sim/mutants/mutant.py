"""What a mutant is: one rule of production removed, by name.

Not here: the mutants (`tests.sim.mutants.replication`, `tests.sim.mutants.storage`,
`tests.sim.mutants.reading`), the hunt (`tests.sim.mutants.hunt`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.patches import Patches
from tests.sim.swarm import Plan

SEEDS = 300


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule removed.

    Attributes:
        name: As in docs/protocol.md.
        rule: The rule that is gone.
        apply: Replaces production functions.
        bend: Changes a drawn plan towards where the rule matters.
        redundant: Why other rules make up for this one, when they do: the mutant may survive.
        alone: Only this invariant sits in court: several notice the same fault, and each of them
            must be able to. Others that the judge's own memory checks do not count as a kill.
        tale: A story that shows it, where chance meets the rule too seldom
        (`tests.sim.stories.tales`).
    """

    name: str
    rule: str
    apply: Callable[[Patches], None]
    bend: Callable[[Plan], None] | None
    redundant: str = ""
    alone: str = ""
    tale: Callable[[], None] | None = None


def always(value: object) -> Callable[..., object]:
    """Return a function that returns ``value`` whatever it is asked."""
    return lambda *args, **names: value


def bend(
    *, quality: str = "", damage: float = 0.0, keep_files: int = 0, **rates: float
) -> Callable[[Plan], None]:
    """Return a change of a plan: exactly these faults, in a world that is otherwise kind."""

    def change(plan: Plan) -> None:
        plan.rates = dict(rates)
        plan.keep_files = keep_files
        plan.quality = quality or plan.quality
        plan.weather.damage_share = damage

    return change
