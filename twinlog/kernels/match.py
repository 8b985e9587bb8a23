"""Queue entries compared with the records they point to; the plain twin of ``match.pxi``.

What a read answers is proven and covered by one CRC in a single pass: the compiled twin takes the
records in pieces that stay in the processor's nearest memory, for the bytes come in a row at the
price of their CRC, and one line of each record at a time at three times that.

Not here: where entries and bytes come from (``storage.read.reader``), building entries (`plain`).
"""

from __future__ import annotations

import struct

from twinlog.kernels.fields import (
    BORN_V6,
    I64,
    PREPARED,
    ROLLBACK,
    TRANSACTION,
    Buffer,
    crc32c,
    parts_of,
    rest_of,
    tags_code,
)

_ENTRY = struct.Struct(">QIq")
_PLACE = struct.Struct(">iiq")


def match_entries(
    data: Buffer, base: int, entries: Buffer, topic: bytes, queue: int, first: int, crc: int = 0
) -> tuple[list[int], int] | int:
    """Compare entries of one queue with the records they point to.

    Args:
        data: Bytes of the log.
        base: Log offset of the first of them.
        entries: Of 20 bytes each, with queue offsets from ``first`` on.
        topic: Theirs.
        queue: Theirs.
        first: Queue offset of the first.
        crc: CRC-32C of the bytes before them, which the returned one continues.

    Returns:
        Where the records are in ``data``, neighbours joined, as start and end in turn; and the
        CRC-32C of those bytes, one after the other. Or the number, from 0, of an entry that does
        not point to the record it stands for, whole within ``data`` and after the one before it.
    """
    found: list[int] = []
    last = 0
    for number, (at, size, code) in enumerate(_ENTRY.iter_unpack(_whole(entries))):
        begin = at - base
        end = begin + size
        if not last <= begin <= end <= len(data):
            return number
        if not _is_entry(data, begin, end, (topic, queue, first + number, code)):
            return number
        crc = crc32c(data[begin:end], crc)
        if found and found[-1] == begin:
            found[-1] = end
        else:
            found += begin, end
        last = end
    return found, crc


def _whole(entries: Buffer) -> Buffer:
    return entries[: len(entries) // _ENTRY.size * _ENTRY.size]


def _is_entry(data: Buffer, begin: int, end: int, wanted: tuple[bytes, int, int, int]) -> bool:
    """Whether the record in ``begin..end`` has this topic, queue, queue offset and tag's code."""
    parts = parts_of(data, begin, end)
    if isinstance(parts, int) or parts[0] != end - begin:
        return False
    rest = rest_of(data, begin, parts[0], parts[4])
    if rest is None or parts[1] & TRANSACTION in (PREPARED, ROLLBACK):
        return False
    queue, _, number = _PLACE.unpack_from(data, begin + 12)
    topic = bytes(data[rest[0] : rest[0] + rest[1]])
    (stamp,) = I64.unpack_from(data, begin + 48 + (20 if parts[1] & BORN_V6 else 8))
    code = tags_code(topic, data[rest[2] : rest[2] + rest[3]], stamp)
    return (topic, queue, number, code) == wanted
