"""What a verification of a store directory finds, and the judgement that it adds up to.

Not here: finding anything (`twinlog.store.verify.check` and its neighbours).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from twinlog.store.damage import Grade, Harm

FINDINGS_MAX = 1000
"""Findings that are kept; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be.

    Attributes:
        grade: How bad it is.
        file: File relative to the store.
        position: Byte in it.
        offset: Log offset; None where none applies.
        length: Bytes concerned.
        what: A sentence.
        readable: What can still be read.
        beyond: The last entries of a queue name records that the log no longer has, or never had
            whole: the log is too short, the queue is not wrong.
        harm: What a damaged stretch of the log means; None for everything else.
    """

    grade: Grade
    file: str
    position: int
    offset: int | None
    length: int
    what: str
    readable: str
    beyond: bool = False
    harm: Harm | None = None


@dataclass(slots=True)
class Judgement:
    """What `twinlog.store.verify.check.verify` found in one directory.

    ``findings`` are the first `FINDINGS_MAX`, ``more`` counts the others; ``damaged`` and
    ``unreadable`` take all into account.
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
    """(path, reason) of everything that is not verified: it may be sound or not."""

    def add(self, finding: Finding) -> None:
        """Keep a finding, or only count it beyond `FINDINGS_MAX`."""
        self.damaged |= finding.grade is Grade.DAMAGE
        self.unreadable |= finding.grade is Grade.UNREADABLE
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.more += 1
