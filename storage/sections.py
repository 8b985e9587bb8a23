"""A section: one producer batch of one topic and one queue, and what became of it.

A section is stored whole or refused whole, and never divided. Its records arrive in the stored
format with offsets zero (`twinlog.record`); the store numbers them in place.

Three outcomes and a half: stored, duplicate (stored before; ``end`` is the original's), refused
(nothing of it is in the log), unknown (made by the layers above, never here).

Not here: acknowledging; waiting for an offset (``replication``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from storage.producers import Done
from twinlog import kernels
from twinlog.layout import BATCH_QUEUE_UNIT, LIGHT_PROPERTY, QUEUE_ENTRY

_PLACE = struct.Struct(">i4xq")
"""Queue and queue offset of a record, from its byte 12 on."""

SEQUENCE_PROPERTY = b"TL_SEQ"
"""First record of an idempotent section: producer (16 hex).epoch.sequence.count."""


class Outcome(IntEnum):
    """What became of a section."""

    STORED = 0
    DUPLICATE = 1
    REFUSED = 2
    UNKNOWN = 3


@dataclass(slots=True)
class Section:
    """Records to be appended; a value that nobody changes.

    Attributes:
        topic: Name.
        queue: Queue number.
        count: Records in ``data``.
        data: Their bytes, one after the other.
        producer: Producer id; 0 says that the section is not idempotent.
        producer_epoch: Grows when a producer starts anew under the same id.
        sequence: Number of the first record in its (producer, queue).
    """

    topic: str
    queue: int
    count: int
    data: memoryview | bytes | bytearray
    producer: int = 0
    producer_epoch: int = 0
    sequence: int = 0


@dataclass(slots=True)
class SectionResult:
    """What became of one section; a value that nobody changes.

    Attributes:
        outcome: See `Outcome`.
        queue_offset: Of the first record; -1 when not known (an old duplicate) or refused.
        log_offset: Of the first record; -1 likewise.
        end: Log offset that must be confirmed before the section is; for a duplicate that of the
            original.
        code: Stable name of a refusal, else empty.
        text: The refusal in words, else empty.
        record: Number of the record that is to blame, -1 for none.
    """

    outcome: Outcome
    queue_offset: int = -1
    log_offset: int = -1
    end: int = 0
    code: str = ""
    text: str = ""
    record: int = -1


def refused(code: str, text: str, record: int = -1) -> SectionResult:
    """Return a refusal."""
    return SectionResult(Outcome.REFUSED, code=code, text=text, record=record)


def sequence_text(section: Section) -> bytes:
    """Return the value that the section's first record must carry as TL_SEQ.

    >>> sequence_text(Section("t", 0, 3, b"", producer=255, producer_epoch=1, sequence=9))
    b'00000000000000ff.1.9.3'
    """
    names = section.producer, section.producer_epoch, section.sequence, section.count
    return b"%016x.%d.%d.%d" % names


def parse_sequence(value: bytes) -> tuple[int, int, int, int] | None:
    """Return (producer, epoch, sequence, count) of a TL_SEQ value; None for another text.

    >>> parse_sequence(b"00000000000000ff.1.9.3")
    (255, 1, 9, 3)
    >>> parse_sequence(b"ff.1.9") is None
    True
    """
    parts = value.split(b".")
    if len(parts) != 4 or len(parts[0]) != 16:
        return None
    try:
        producer = int(parts[0], 16)
        epoch, sequence, count = (int(part) for part in parts[1:])
    except ValueError:
        return None
    if producer <= 0 or epoch < 0 or sequence < 0 or count <= 0:
        return None
    return producer, epoch, sequence, count


def first_sequence(data: memoryview | bytes | bytearray, start: int = 0) -> bytes | None:
    """Return TL_SEQ of the record that begins at ``start``, whose sizes are checked already.

    Only the properties are looked at: a body that looks like one is not.
    """
    size = int.from_bytes(data[start : start + 4], "big")
    found = kernels.find_property(data, start, start + size, SEQUENCE_PROPERTY)
    return found[0][1] if found else None


def digest_of(data: memoryview | bytes | bytearray, start: int, end: int) -> int:
    """Return a digest of a section's bodies, the same before and after they are stamped."""
    return kernels.bodies_digest(data, start, end) or 1


def topic_of(data: memoryview, at: int) -> bytes:
    """Return the topic of the record that begins at ``at``, whose sizes are checked already."""
    flag = int.from_bytes(data[at + 36 : at + 40], "big")
    start = at + 72 + (20 if flag & 0x10 else 8) + (20 if flag & 0x20 else 8)
    start += int.from_bytes(data[start - 4 : start], "big")
    wide = data[at + 7] != 0xA7
    length = int.from_bytes(data[start : start + 2], "big") if wide else data[start]
    start += 2 if wide else 1
    return bytes(data[start : start + length])


class Gathered(NamedTuple):
    """What a stretch of the log puts into queues.

    Attributes:
        entries: Of simple queues, as `kernels.gather_queues` returns them.
        units: Of batch queues, as `kernels.gather_units` returns them.
    """

    entries: Sequence[tuple[bytes, int, int, bytes]]
    units: Sequence[tuple[bytes, int, int, int, bytes]] = ()


Marks = Sequence[tuple[int, bytes]]
"""(index of a record, value) of a property."""


def marks_of(data: memoryview) -> tuple[Marks, Marks]:
    """Return where records carry TL_SEQ, and where they name light queues: one kernel call."""
    found = kernels.find_properties(data, 0, len(data), (SEQUENCE_PROPERTY, LIGHT_PROPERTY))
    sequences = [(at, value) for at, which, value in found if not which]
    return sequences, [(at, value) for at, which, value in found if which]


def idempotent_sections(
    data: memoryview, base: int, gathered: Gathered, marks: Marks
) -> Iterator[tuple[int, str, int, int, Done]]:
    """Find the idempotent sections in whole batches.

    Args:
        data: Bytes of the batches.
        base: Log offset of the first byte of ``data``.
        gathered: Queue entries of their records.
        marks: Where TL_SEQ stands.

    Yields:
        (producer, topic, queue, producer epoch, section). A property inside another section, or
        one that names more records than there are, is no section.
    """
    behind = 0
    for at, value in marks:
        found = parse_sequence(value)
        if found is None or at < behind:
            continue
        producer, epoch, sequence, count = found
        topic, (queue, first) = topic_of(data, at), _PLACE.unpack(data[at + 12 : at + 28])
        last = _entry(gathered, topic, queue, first + count - 1)
        if last is None and gathered.units:
            last = _unit(gathered, topic, queue, base + at, count)
        if last is None:
            continue
        behind = last - base
        done = Done(sequence, count, first, base + at, last, digest_of(data, at, behind))
        yield producer, topic.decode(), queue, epoch, done


def _entry(gathered: Gathered, topic: bytes, queue: int, number: int) -> int | None:
    """Return the log offset after the record at queue offset ``number``; None without one."""
    for name, its_queue, first, entries in gathered.entries:
        if (name, its_queue) == (topic, queue) and 0 <= number - first < len(entries) // 20:
            at, size, _ = QUEUE_ENTRY.unpack_from(entries, (number - first) * 20)
            return int(at + size)
    return None


def _unit(gathered: Gathered, topic: bytes, queue: int, offset: int, count: int) -> int | None:
    """Return the log offset after the last of ``count`` records of a batch queue from ``offset``.

    None where the record there is none of them, or fewer follow it.
    """
    each = BATCH_QUEUE_UNIT.size
    for name, its_queue, _, _, units in gathered.units:
        if (name, its_queue) != (topic, queue):
            continue
        low, high = 0, len(units) // each
        while low < high:
            middle = (low + high) // 2
            if BATCH_QUEUE_UNIT.unpack_from(units, middle * each)[0] < offset:
                low = middle + 1
            else:
                high = middle
        if (low + count) * each <= len(units):
            begin = BATCH_QUEUE_UNIT.unpack_from(units, low * each)[0]
            at, size, *_ = BATCH_QUEUE_UNIT.unpack_from(units, (low + count - 1) * each)
            if begin == offset:
                return int(at + size)
    return None
