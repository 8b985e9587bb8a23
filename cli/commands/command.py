"""One command: its place in the tree, where its function lives, and examples."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """One command; ``target`` is ``module:function``."""

    path: tuple[str, ...]
    target: str
    summary: str
    examples: tuple[str, ...]
    hidden: bool = False

    @property
    def name(self) -> str:
        """The words a user types."""
        return " ".join(self.path)


def command(name: str, target: str, summary: str, *examples: str, hidden: bool = False) -> Command:
    """A row of a table: the words of the command, divided by blanks, and what belongs to it."""
    return Command(tuple(name.split()), target, summary, examples, hidden)
