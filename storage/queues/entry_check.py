"""Comparing an entry of a consume queue with the record that it points to.

A queue file has no CRC: an entry is proven by the log, which must hold a record of that size and
queue offset at that log offset.

The functions may be called from worker threads: files may be removed from the log meanwhile.

Not here: the bytes of the record, which its batch's CRC proves (`storage.log.segments`).
"""

from __future__ import annotations

import struct

from storage.log.commit_log import CommitLog
from storage.log.segment import Segment
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.light_queues import named_in
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.light_queues import LIGHT_PROPERTY
from twinlog.kernels import pick_properties

_SIZE_MIN = 91
_COPY = 80
"""Bytes of a record that always include its store timestamp."""
_HEAD = struct.Struct(">i16xq")


def check_entry(log: CommitLog, queue: ConsumeQueue, number: int, offset: int, size: int) -> None:
    """Compare entry ``number`` with the record of ``size`` bytes at log offset ``offset``.

    Raises:
        CorruptionError: It does not point to such a record, or the record's file is lost.
    """
    segment = _segment(log, queue, number, offset, size)
    length = size if queue.light else _HEAD.size
    check_record(queue, number, offset, size, segment.view(offset, offset + length))


def fetch_head(
    log: CommitLog, queue: ConsumeQueue, number: int, offset: int, size: int
) -> memoryview:
    """Do as `check_entry`, and return a copy of the record's head, read from the file.

    For records that may have to come from the disk (`storage.disk.mapping.Mapping.read`): the first
    `_COPY` bytes of the record, or all of it for a light queue.
    """
    segment = _segment(log, queue, number, offset, size)
    at, length = offset - segment.start, size if queue.light else _COPY
    data = memoryview(segment.mapping.read(at, at + length, "read.head"))
    check_record(queue, number, offset, size, data)
    return data


def _segment(log: CommitLog, queue: ConsumeQueue, number: int, offset: int, size: int) -> Segment:
    if log.start <= offset and size >= _SIZE_MIN and offset + size <= log.end:
        segment = log.segments.at(offset)
        if offset + size <= segment.end:
            return segment
    raise wrong_entry(queue, number, offset, size)


def check_record(
    queue: ConsumeQueue, number: int, offset: int, size: int, record: memoryview
) -> None:
    """Compare entry ``number`` with bytes from the beginning of its record on.

    Raises:
        CorruptionError: They belong to another record.
    """
    if queue.light:
        found = _in_light(queue.topic, record, size)
    else:
        found = len(record) >= _HEAD.size and _HEAD.unpack_from(record) == (size, number)
    if not found:
        raise wrong_entry(queue, number, offset, size)


def _in_light(name: str, record: memoryview, size: int) -> bool:
    """Whether a record of that size begins there and names the light queue."""
    entry = QUEUE_ENTRY.pack(0, size, 0)
    found = pick_properties(record, 0, entry, (LIGHT_PROPERTY,))
    return not isinstance(found, int) and named_in(found[0][0], name)


def wrong_entry(queue: ConsumeQueue, number: int, offset: int, length: int) -> CorruptionError:
    """Return the error for an entry that does not point to a record of its queue."""
    return CorruptionError(
        f"entry {number} of queue {queue.queue} of {queue.topic} points to no such record",
        file=queue.directory,
        offset=offset,
        length=length,
        what="queue entry",
    )
