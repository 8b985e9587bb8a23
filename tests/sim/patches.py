"""Attributes of production replaced for one run, and put back.

Not here: who replaces what (`tests.sim.limits`, `tests.sim.mutants.mutant`).
"""

from __future__ import annotations


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
