"""Inner batches and the units of batch queues, in plain Python; `plain` takes them up.

An inner batch is a record whose body is a row of items (``twinlog.format.inner_batches`` has the
box). ``INNER_NUM`` says how many, ``INNER_BASE`` the queue offset of the first. Who sends one
leaves room for that number, 19 zeros, and the master writes it there: Java reads leading zeros as
we do.

A unit is what a batch queue holds for one record (``twinlog.format.consume_queue``).

Sources: RocketMQ 5.3 (``CommitLog.setBatchSizeIfNeeded``, ``BatchConsumeQueue``,
``MessageDecoder.countInnerMsgNum``), golden case 09.
"""

from __future__ import annotations

import struct
from collections.abc import Collection

from twinlog.kernels import codes
from twinlog.kernels.fields import (
    BORN_V6,
    FIXED,
    I64,
    PREPARED,
    ROLLBACK,
    TRANSACTION,
    Buffer,
    parts_of,
    property_of,
    rest_of,
    tags_code,
    whole_records,
)

INNER_BATCH = 0x80
INNER_FLAGS = 0xC0
"""The body holds messages, and who reads it must take them out."""
NUMBER_PROPERTY = b"INNER_NUM"
BASE_PROPERTY = b"INNER_BASE"
BASE_ROOM = b"0" * 19
MESSAGES_MAX = 32767
"""Messages of one inner batch: a unit counts them in 16 bits."""
_ITEM = struct.Struct(">i12xi")
_ITEM_MIN = 22
_UNIT = struct.Struct(">qiqqqhii")
assert _UNIT.size == 46


def decimal(text: bytes | None) -> int:
    """Return the number of up to 19 digits, below 2^63; -1 for anything else."""
    if text is None or not 1 <= len(text) <= 19 or not text.isdigit():
        return -1
    value = int(text)
    return value if value < 2**63 else -1


def items_in(body: Buffer) -> int:
    """Return how many messages the body of an inner batch holds; -1 where it is not whole."""
    at, count, end = 0, 0, len(body)
    while at < end:
        left = end - at
        if left < _ITEM_MIN:
            return -1
        size, length = _ITEM.unpack_from(body, at)
        if not 0 <= length <= left - _ITEM_MIN:
            return -1
        text = int.from_bytes(body[at + 20 + length : at + _ITEM_MIN + length], "big")
        if text > 32767 or size != _ITEM_MIN + length + text or size > left:
            return -1
        count, at = count + 1, at + size
    return count


def inner_code(flag: int, body: Buffer, text: Buffer) -> int:
    """Return FINE or INNER for a record of a batch topic: flag, body and number must agree."""
    named = property_of(text, NUMBER_PROPERTY)
    if not flag & INNER_BATCH:
        return codes.FINE if named is None else codes.INNER
    number = decimal(named)
    fine = 1 <= number <= MESSAGES_MAX and number == items_in(body)
    return codes.FINE if fine and property_of(text, BASE_PROPERTY) == BASE_ROOM else codes.INNER


def number_inner(data: bytearray | memoryview, at: int, end: int, base: int) -> int:
    """Write the queue offset of its first message into an inner batch; returns how many it has.

    Returns:
        0 when the record does not hold together.
    """
    parts = parts_of(data, at, end)
    rest = None if isinstance(parts, int) else rest_of(data, at, parts[0], parts[4])
    if isinstance(parts, int) or rest is None:
        return 0
    text, stop = rest[2], rest[2] + rest[3]
    number = decimal(property_of(data[text:stop], NUMBER_PROPERTY))
    place, room = text, slice(0)
    for item in bytes(data[text:stop]).split(b"\x02"):
        value = len(item) - len(BASE_PROPERTY) - 1
        if value > 0 and item.startswith(BASE_PROPERTY + b"\x01"):
            room = slice(place + len(BASE_PROPERTY) + 1, place + len(item))
        place += len(item) + 1
    if room.start is not None and room.stop - room.start == len(BASE_ROOM):
        data[room] = b"%019d" % base
    return number if 1 <= number <= MESSAGES_MAX else 1


def gather_units(
    data: Buffer, start: int, end: int, log_offset: int, topics: Collection[bytes]
) -> list[tuple[bytes, int, int, int, bytes]]:
    """Build the units of the records of ``start..end`` that are in one of ``topics``.

    Returns:
        (topic, queue, first queue offset, queue offset after the last, units) for each queue; a
        queue has a further item wherever its queue offsets do not follow one another. In order of
        their first records; ends where `scan_queues` ends.
    """
    order: list[tuple[bytes, int, int, list[int], bytearray]] = []
    newest: dict[tuple[bytes, int], int] = {}
    for at, (size, flag, _, _, _), rest in whole_records(data, start, end):
        topic = bytes(data[rest[0] : rest[0] + rest[1]])
        if flag & TRANSACTION not in (PREPARED, ROLLBACK) and topic in topics:
            text = data[rest[2] : rest[2] + rest[3]]
            _, _, _, queue, _, base, *_ = FIXED.unpack_from(data, at)
            count = 1
            number = decimal(property_of(text, NUMBER_PROPERTY))
            named = decimal(property_of(text, BASE_PROPERTY))
            if 1 <= number <= MESSAGES_MAX and named >= 0:
                base, count = named, number
            (stamp,) = I64.unpack_from(data, at + 48 + (20 if flag & BORN_V6 else 8))
            code = tags_code(topic, text, stamp)
            i = newest.get((topic, queue), -1)
            if i < 0 or order[i][3][0] != base:
                newest[topic, queue] = i = len(order)
                order.append((topic, queue, base, [base], bytearray()))
            order[i][3][0] = (base + count + 2**63) % 2**64 - 2**63
            unit = _UNIT.pack(log_offset + at - start, size, code, stamp, base, count, -1, 0)
            order[i][4].extend(unit)
    return [
        (name, queue, first, ends[0], bytes(units)) for name, queue, first, ends, units in order
    ]
