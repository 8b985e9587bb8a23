"""A finding: something that was flushed is not as it was written. Pure.

Not here: looking for it (`storage.recovery.log_end`, readers), what follows from it
(`storage.recovery.opened`), keeping it over restarts (`storage.marks.quarantine`).
"""

from __future__ import annotations

from dataclasses import dataclass

from twinlog.errors import CorruptionError


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that was flushed is not as it was written.

    Attributes:
        file: Path in the data directory.
        offset: Log offset of the batch.
        length: Bytes, where known, else 0.
        what: A few words.
    """

    file: str
    offset: int
    length: int
    what: str

    @property
    def is_batch(self) -> bool:
        """Whether exactly one batch of the log is meant, whose entry says what it should be."""
        return self.length > 0 and self.file.startswith("commitlog/")


def damage_of(error: CorruptionError) -> Damage:
    """Return an error as a finding."""
    length = error.facts.get("length")
    return Damage(
        str(error.facts.get("file", "commitlog")),
        error.offset,
        length if isinstance(length, int) else 0,
        error.text,
    )
