"""Stretches of a log that are not records, and what each kind of them means.

`Harm` is closed: each property answers for every kind by a ``match`` that the type checker proves
complete, and all other modules ask the properties. A new kind is added here and where the walk
over the log makes it (`twinlog.store.log`); nothing else lists the kinds.

Not here: finding damage, or repairing it (``storage.tools.repair``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import assert_never


class Grade(Enum):
    """How bad something is that a verification found."""

    DAMAGE = "damage"
    """Something that was written cannot be trusted or is missing."""
    UNREADABLE = "unreadable"
    """It could not be looked at, so nothing is known."""
    NOTE = "note"
    """Worth knowing; nothing is lost."""


class Harm(Enum):
    """What a stretch of bytes that is not a record means."""

    DAMAGE = "damage"
    """There were records here, and they cannot be read."""
    TAIL = "tail"
    """The torn end of a log that was not stopped cleanly: recovery cuts it."""
    LEFTOVER = "leftover"
    """Bytes after the end of the log: what a cut left, or an append that never finished."""
    UNREADABLE = "unreadable"
    """The file could not be read; nothing is known about it."""

    @property
    def hides(self) -> bool:
        """Whether there may be records of the log in it."""
        match self:
            case Harm.DAMAGE | Harm.UNREADABLE:
                return True
            case Harm.TAIL | Harm.LEFTOVER:
                return False
            case _:
                assert_never(self)

    @property
    def in_log(self) -> bool:
        """Whether the bytes count as part of the log, so that a sound log has none of this kind."""
        match self:
            case Harm.DAMAGE | Harm.TAIL | Harm.UNREADABLE:
                return True
            case Harm.LEFTOVER:
                return False
            case _:
                assert_never(self)

    @property
    def readable(self) -> bool:
        """Whether the bytes could be looked at."""
        match self:
            case Harm.DAMAGE | Harm.TAIL | Harm.LEFTOVER:
                return True
            case Harm.UNREADABLE:
                return False
            case _:
                assert_never(self)

    @property
    def cut_by_recovery(self) -> bool:
        """Whether the next start of the broker or node cuts it off by itself."""
        match self:
            case Harm.TAIL:
                return True
            case Harm.DAMAGE | Harm.LEFTOVER | Harm.UNREADABLE:
                return False
            case _:
                assert_never(self)

    @property
    def zeroed_by_repair(self) -> bool:
        """Whether a repair overwrites the bytes with zeros, because the log ends before them."""
        match self:
            case Harm.TAIL | Harm.LEFTOVER:
                return True
            case Harm.DAMAGE | Harm.UNREADABLE:
                return False
            case _:
                assert_never(self)

    @property
    def likely_cause(self) -> str:
        """What usually causes it, in two or three words."""
        match self:
            case Harm.DAMAGE:
                return "bit rot"
            case Harm.TAIL:
                return "torn tail"
            case Harm.LEFTOVER:
                return "reappeared old record"
            case Harm.UNREADABLE:
                return "disk or rights"
            case _:
                assert_never(self)

    def grade(self, *, written_now: bool) -> Grade:
        """Return how bad it is.

        Args:
            written_now: Another program may be appending to the log at this moment, so its end may
                look torn.
        """
        match self:
            case Harm.DAMAGE:
                return Grade.DAMAGE
            case Harm.TAIL:
                return Grade.NOTE if written_now else Grade.DAMAGE
            case Harm.LEFTOVER:
                return Grade.NOTE
            case Harm.UNREADABLE:
                return Grade.UNREADABLE
            case _:
                assert_never(self)


@dataclass(frozen=True, slots=True)
class Damage:
    """A stretch of the log that cannot be used.

    Attributes:
        name: File relative to the store.
        offset: Log offset where it begins.
        length: Bytes of the log, also where the batch index is what is damaged.
        what: A sentence.
        harm: What kind it is.
    """

    name: str
    offset: int
    length: int
    what: str
    harm: Harm = Harm.DAMAGE

    @property
    def hides(self) -> bool:
        """Whether there may be records of the log in it."""
        return self.harm.hides
