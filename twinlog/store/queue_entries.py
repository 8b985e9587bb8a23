"""What reading a stored queue gives: entries, and a status by RocketMQ's names.

Shared by the kinds of queues: `twinlog.store.queues` (20-byte entries),
`twinlog.store.batch_queues` (BatchCQ).

Units: queue offsets count messages, times are milliseconds.

Sources: RocketMQ 5.3 (``GetMessageStatus``, ``DefaultMessageStore.getMessage``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from twinlog.store.files import EMPTY, FileSeries

IN_MEMORY_BYTES = 262_144
IN_MEMORY_COUNT = 32
"""RocketMQ's limits of one read of records that are in memory."""

TimeOf = Callable[[int, int], int]
"""Store timestamp of the record at a log offset, of a size; -1 when it is gone."""

Gone = Callable[[int, int], int]
"""0 when the record at a log offset, of a size, can be read; else where its log file ends."""


class Status(Enum):
    """Outcome of reading a queue, by RocketMQ's names."""

    FOUND = "FOUND"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(frozen=True, slots=True)
class Entry:
    """What a queue says about one record; ``count`` is above 1 for inner batches only."""

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    count: int = 1
    compacted: int = -1
    store_timestamp: int = -1


@dataclass(frozen=True, slots=True)
class Extension:
    """What the queue extension says about one entry."""

    queue_offset: int
    tags_code: int
    store_timestamp: int
    bitmap: bytes


@dataclass(frozen=True, slots=True)
class Pull:
    """Answer of `Queue.get`: the records found and where to go on."""

    status: Status
    next: int
    entries: tuple[Entry, ...] = ()


def unreadable(series: FileSeries) -> list[tuple[str, str]]:
    """Return (file name, why) of the files that could not be read; an empty one could."""
    for file in series.files:
        series.view(file)
    found = [(f.path.name, why) for f in series.files if (why := series.unreadable.get(f.start))]
    odd = [(path.name, f"it is {why}") for _, path, why in series.odd if why != EMPTY]
    return [*found, *odd]


def outside(offset: int, low: int, high: int) -> Pull | None:
    """Return the answer for an offset that no entry can have; None for one inside."""
    if high == 0:
        return Pull(Status.NO_MESSAGE_IN_QUEUE, 0)
    if offset < low:
        return Pull(Status.OFFSET_TOO_SMALL, low)
    if offset == high:
        return Pull(Status.OFFSET_OVERFLOW_ONE, offset)
    return Pull(Status.OFFSET_OVERFLOW_BADLY, high) if offset > high else None
