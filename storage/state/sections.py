"""A section: one producer batch of one topic and queue, and its outcome.

A section is stored whole or refused whole, and never divided. Its records arrive in the stored
format with offsets zero (`twinlog.format.record`); the store numbers them in place.

Outcomes: stored, duplicate (stored before; ``end`` is the original's), refused (nothing of it is in
the log), unknown (only produced by the layers above).

Not here: acknowledging, waiting for an offset (``replication``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from twinlog import kernels


class Outcome(IntEnum):
    """The outcome of a section."""

    STORED = 0
    DUPLICATE = 1
    REFUSED = 2
    UNKNOWN = 3


@dataclass(slots=True)
class Section:
    """Records to append; treat as immutable.

    Attributes:
        topic: Name.
        queue: Queue number.
        count: Records in ``data``.
        data: Their bytes, one after the other.
        producer: Producer id; 0: the section is not idempotent.
        producer_epoch: Grows when a producer starts again under the same id.
        sequence: Number of the first record in its (producer, queue).
        own: The store's own: it may name topics in which messages wait, what only these may say,
            and topics that take no messages: what was accepted before is delivered.
    """

    topic: str
    queue: int
    count: int
    data: memoryview | bytes | bytearray
    producer: int = 0
    producer_epoch: int = 0
    sequence: int = 0
    own: bool = False


@dataclass(slots=True)
class SectionResult:
    """The outcome of one section; treat as immutable.

    Attributes:
        outcome: See `Outcome`.
        queue_offset: Of the first record; -1 if unknown (an old duplicate) or refused.
        log_offset: Of the first record; -1 likewise.
        end: Log offset up to which the log must be confirmed for the section to be; for a duplicate
        that of the original.
        code: Stable name of a refusal, else empty.
        text: The refusal in words, else empty.
        record: Number of the refused record, -1 for none.
    """

    outcome: Outcome
    queue_offset: int = -1
    log_offset: int = -1
    end: int = 0
    code: str = ""
    text: str = ""
    record: int = -1


@dataclass(slots=True)
class Together:
    """What became of sections and rows that go into the log in one batch, or not at all.

    Attributes:
        outcome: Stored or duplicate (all of it), or refused (nothing of it is in the log).
        sections: One result for each section; of a refusal up to the one that is to blame.
        end: Log offset that must be confirmed before any of it is.
        code: Stable name of a refusal, else empty.
        text: The refusal in words, else empty.
    """

    outcome: Outcome
    sections: list[SectionResult]
    end: int = 0
    code: str = ""
    text: str = ""


def refused(code: str, text: str, record: int = -1) -> SectionResult:
    """Return a refusal."""
    return SectionResult(Outcome.REFUSED, code=code, text=text, record=record)


def digest_of(data: memoryview | bytes | bytearray, start: int, end: int) -> int:
    """Return a digest of a section's bodies, the same before and after stamping; never 0."""
    return kernels.bodies_digest(data, start, end) or 1
