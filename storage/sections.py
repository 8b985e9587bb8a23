"""A section: one producer batch of one topic and one queue, and what became of it.

A section is stored whole or refused whole, and never divided. Its records arrive in the stored
format with offsets zero (`twinlog.record`); the store numbers them in place.

Three outcomes and a half: stored, duplicate (stored before; ``end`` is the original's), refused
(nothing of it is in the log), unknown (made by the layers above, never here).

Not here: acknowledging; waiting for an offset (``replication``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from storage.producers import Done
from twinlog import kernels
from twinlog.layout import QUEUE_ENTRY

SEQUENCE_PROPERTY = b"TL_SEQ"
"""First record of an idempotent section: producer (16 hex).epoch.sequence.count."""


class Outcome(IntEnum):
    """What became of a section."""

    STORED = 0
    DUPLICATE = 1
    REFUSED = 2
    UNKNOWN = 3


@dataclass(frozen=True, slots=True)
class Section:
    """Records to be appended.

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


@dataclass(frozen=True, slots=True)
class SectionResult:
    """What became of one section.

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

    The properties are a record's last part, so the record is read from its end: a body that looks
    like a property is not one.
    """
    view = memoryview(data)
    size = int.from_bytes(view[start : start + 4], "big")
    flag = int.from_bytes(view[start + 36 : start + 40], "big")
    tail = 72 + (20 if flag & 0x10 else 8) + (20 if flag & 0x20 else 8)
    body = int.from_bytes(view[start + tail - 4 : start + tail], "big")
    at = start + tail + (body if body < 1 << 31 else 0)
    wide = view[start + 7] != 0xA7
    length = int.from_bytes(view[at : at + 2], "big") if wide else view[at]
    at += length + (4 if wide else 3)
    text = bytes(view[at : start + size])
    if SEQUENCE_PROPERTY not in text:
        return None
    found = None
    for item in text.split(b"\x02"):
        name, _, value = item.partition(b"\x01")
        if name == SEQUENCE_PROPERTY and value:
            found = value
    return found


def bodies_digest(data: memoryview | bytes | bytearray, start: int, length: int) -> int:
    """Return a digest that is the same before and after the store stamped the records.

    It covers each body's CRC and length; never 0.
    """
    crc = kernels.bodies_digest(data, start, start + length)
    return crc or 1


def idempotent_sections(
    data: memoryview, base: int, first: int, entries: bytes
) -> Iterator[tuple[int, int, Done]]:
    """Find the idempotent sections in a run of records of one queue.

    Args:
        data: Bytes of the log that hold the run.
        base: Log offset of the first byte of ``data``.
        first: Queue offset of the run's first record.
        entries: The run's queue entries, 20 bytes each.

    Yields:
        (producer, producer epoch, section). The kernel reads properties only, never bodies.
    """
    count = len(entries) // QUEUE_ENTRY.size
    begin, (last, size), free = _place(entries, 0)[0], _place(entries, count - 1), 0
    marked = kernels.find_property(data, begin - base, last + size - base, SEQUENCE_PROPERTY)
    for index, value in marked:
        found = parse_sequence(value)
        number = _holder(entries, 0, index + base)
        if found is None or number < free or number + found[3] > count:
            continue
        producer, epoch, sequence, records = found
        at, free = index + base, number + records
        end = sum(_place(entries, free - 1))
        digest = bodies_digest(data, index, end - at)
        yield producer, epoch, Done(sequence, records, first + number, at, end, digest)


def _place(entries: bytes, number: int) -> tuple[int, int]:
    at, size, _ = QUEUE_ENTRY.unpack_from(entries, number * QUEUE_ENTRY.size)
    return int(at), int(size)


def _holder(entries: bytes, low: int, log_offset: int) -> int:
    """Return the number, from ``low`` on, of the record that holds the byte at ``log_offset``."""
    high = len(entries) // QUEUE_ENTRY.size
    while high - low > 1:
        middle = (low + high) // 2
        if _place(entries, middle)[0] <= log_offset:
            low = middle
        else:
            high = middle
    return low
