"""The queue entries of a stretch of the log, and its idempotent sections. Pure.

Not here: reading the stretch (`storage.state.dispatcher`), the queues.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from storage.state.producers import Done
from storage.state.sections import digest_of
from storage.state.sequences import Marks, line_topic, parse_sequence
from twinlog.format.consume_queue import BATCH_QUEUE_UNIT, QUEUE_ENTRY

_PLACE = struct.Struct(">i4xq")
"""Queue and queue offset of a record, from its byte 12 on."""


def topic_of(data: memoryview, at: int) -> bytes:
    """Return the topic of the record that begins at ``at``, whose sizes were checked before."""
    flag = int.from_bytes(data[at + 36 : at + 40], "big")
    start = at + 72 + (20 if flag & 0x10 else 8) + (20 if flag & 0x20 else 8)
    start += int.from_bytes(data[start - 4 : start], "big")
    wide = data[at + 7] != 0xA7
    length = int.from_bytes(data[start : start + 2], "big") if wide else data[start]
    start += 2 if wide else 1
    return bytes(data[start : start + length])


class Gathered(NamedTuple):
    """The queue entries of a stretch of the log.

    Attributes:
        entries: Of simple queues, as `kernels.gather_queues` returns them.
        units: Of batch queues, as `kernels.gather_units` returns them.
    """

    entries: Sequence[tuple[bytes, int, int, bytes]]
    units: Sequence[tuple[bytes, int, int, int, bytes]] = ()


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
        (producer, topic, queue, producer epoch, section). A property inside another section, or one
        that names more records than follow, is ignored.
    """
    after = 0
    for at, value in marks:
        found = parse_sequence(value)
        # A copied record may carry TL_SEQ inside another producer's section; only the first record
        # of a section counts.
        if found is None or at < after:
            continue
        producer, epoch, sequence, count = found
        topic, (queue, first) = topic_of(data, at), _PLACE.unpack(data[at + 12 : at + 28])
        last = _entry(gathered, topic, queue, first + count - 1)
        if last is None and gathered.units:
            last = _unit(gathered, topic, queue, base + at, count)
        if last is None:
            continue
        after = last - base
        done = Done(sequence, count, first, base + at, last, digest_of(data, at, after))
        yield producer, line_topic(topic.decode(), data, at), queue, epoch, done


def _entry(gathered: Gathered, topic: bytes, queue: int, number: int) -> int | None:
    """Return the log offset after the record at queue offset ``number``; None without one."""
    for name, its_queue, first, entries in gathered.entries:
        if (name, its_queue) == (topic, queue) and 0 <= number - first < len(entries) // 20:
            at, size, _ = QUEUE_ENTRY.unpack_from(entries, (number - first) * 20)
            return int(at + size)
    return None


def _unit(gathered: Gathered, topic: bytes, queue: int, offset: int, count: int) -> int | None:
    """Return the log offset after the last of ``count`` records of a batch queue from ``offset``.

    None if no record begins there, or fewer follow.
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
