"""What a look at a store directory finds: findings by grade, and the verdict they add up to.

Not here: finding anything (`store_check`, `store_queue_check`, `store_beside`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

FINDINGS_MAX = 1000
"""A directory with more findings is ruined; the rest is only counted."""


class Grade(Enum):
    """How bad a finding is."""

    DAMAGE = "damage"
    UNREADABLE = "unreadable"
    NOTE = "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be; ``offset`` is None where no log offset applies.

    ``beyond``: the last entries of a queue tell of records that the log no longer has, or never had
    whole. It is the log that is short then, not the queue that is wrong.
    """

    grade: Grade
    file: str
    position: int
    offset: int | None
    length: int
    what: str
    readable: str
    beyond: bool = False


@dataclass(slots=True)
class Verdict:
    """What `store_check.verify` found in one directory.

    ``findings`` are the first `FINDINGS_MAX`, ``more`` counts the others; ``damaged`` and
    ``unreadable`` speak of all of them.
    """

    start: int
    end: int
    records: int = 0
    batches: int = 0
    entries: int = 0
    findings: list[Finding] = field(default_factory=list[Finding])
    more: int = 0
    damaged: bool = False
    """Whether anything that was written cannot be trusted."""
    unreadable: bool = False
    """Whether something could not be looked at."""
    unchecked: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    """Path and reason of what there is and nobody judges: it may be sound or not."""

    def add(self, finding: Finding) -> None:
        """Keep a finding, or only count it beyond `FINDINGS_MAX`."""
        self.damaged |= finding.grade is Grade.DAMAGE
        self.unreadable |= finding.grade is Grade.UNREADABLE
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.more += 1
