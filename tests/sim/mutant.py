"""What a mutant is: one rule of production removed, by name.

Not here: the mutants (`tests.sim.mutants_replication`, `tests.sim.mutants_storage`,
`tests.sim.mutants_reading`), the hunt (`tests.sim.mutants`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.sim.swarm import Plan

SEEDS = 300


class Patches:
    """Replaces attributes and puts them back."""

    def __init__(self) -> None:
        self._old: list[tuple[object, str, object]] = []

    def set(self, owner: object, name: str, value: object) -> None:
        """Replace ``owner.name``, which must exist there.

        Raises:
            KeyError: It does not: production was renamed, and the mutant must follow.
        """
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
        name: As in docs/protocol.md.
        rule: The rule that is gone.
        apply: Replaces production functions.
        bend: Changes a drawn plan towards where the rule matters.
        redundant: Why other rules make up for this one, when they do: the mutant may survive.
        alone: Only this invariant sits in court: several notice the same fault, and each of them
            must be able to. Others that the judge's own memory checks do not count as a kill.
    """

    name: str
    rule: str
    apply: Callable[[Patches], None]
    bend: Callable[[Plan], None] | None
    redundant: str = ""
    alone: str = ""


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
