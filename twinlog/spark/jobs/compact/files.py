"""RocketMQ's compaction files: the newest records of a topic as its brokers keep them.

Below ``compaction``, each queue has a log (``compactionLog``) whose records are those of the
ordinary log but for their own place, which is that in this log, and a queue of 46-byte units
(``compactionCq``). A queue file has the name of its log file: the offset of its first byte. Both
have their full length; where a log file is full a blank record says so, and in the queue an end
mark, so a queue file holds one unit less than fits.

Where each record goes is decided before any is written, so tasks write theirs in any order.

Units: offsets and sizes are bytes, queue offsets count records, times are ms since 1970.

Not here: which records win (`twinlog.spark.jobs.compact.job`), reading
(`twinlog.store.compacted_queues`).

Sources: RocketMQ 5.3 (``CompactionLog``, ``SparseConsumeQueue``); a store of its making is in the
tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from twinlog.errors import UsageError
from twinlog.format.consume_queue import BATCH_QUEUE_UNIT
from twinlog.format.log_file import BLANK, file_name
from twinlog.format.record import MAGIC_BLANK, decode
from twinlog.store.compacted_queues import FOLDER

UNIT = BATCH_QUEUE_UNIT.size
END_MARK = BATCH_QUEUE_UNIT.pack(-1, 0, 0, 0, 0, 0, -1, 0)


@dataclass(frozen=True, slots=True)
class FileSizes:
    """Lengths of the files; by default those of a broker without settings of its own."""

    log: int = 104_857_460
    queue: int = 10_485_746


@dataclass(frozen=True, slots=True)
class Slot:
    """Where one record goes.

    Attributes:
        topic: Its topic.
        queue: Its queue.
        base: Start of the log file: the name of both files.
        at: Its place in the compacted log.
        unit: Number of its unit in the queue file.
    """

    topic: str
    queue: int
    base: int
    at: int
    unit: int


def slots(topic: str, queue: int, records: Iterable[int], sizes: FileSizes) -> Iterator[Slot]:
    """Yield where the records of one queue go, from their sizes in order.

    Raises:
        UsageError: One is larger than a file.

    >>> [(s.base, s.at, s.unit) for s in slots("t", 0, [60, 60, 60], FileSizes(200, 460))]
    [(0, 0, 0), (0, 60, 1), (0, 120, 2)]
    >>> [(s.base, s.at, s.unit) for s in slots("t", 0, [60, 60, 60], FileSizes(180, 460))]
    [(0, 0, 0), (0, 60, 1), (180, 180, 0)]
    """
    base = at = unit = 0
    for size in records:
        if size + BLANK.size > sizes.log:
            raise UsageError(f"a record of {size} bytes fits into no file of {sizes.log}")
        full = at + size + BLANK.size > base + sizes.log or (unit + 2) * UNIT > sizes.queue
        if full:
            base += sizes.log
            at, unit = base, 0
        yield Slot(topic, queue, base, at, unit)
        at, unit = at + size, unit + 1


def make_files(
    root: Path, ends: Mapping[tuple[str, int], Sequence[tuple[Slot, int]]], sizes: FileSizes
) -> None:
    """Make the files of all queues, at their full length, with what says that they are full.

    Args:
        root: Directory that gets ``compaction``.
        ends: By topic and queue, the last slot of each file, and its record's size.
        sizes: Of the files.
    """
    for queue in ends.values():
        for i, (slot, size) in enumerate(queue):
            log, units = paths(root, slot)
            for path, length in ((log, sizes.log), (units, sizes.queue)):
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as made:
                    made.truncate(length)
            if i + 1 < len(queue):
                end = slot.at + size - slot.base
                _write(log, end, BLANK.pack(sizes.log - end, MAGIC_BLANK))
                _write(units, (slot.unit + 1) * UNIT, END_MARK)


def paths(root: Path, slot: Slot) -> tuple[Path, Path]:
    """Return log file and queue file of a slot."""
    place = Path(slot.topic) / str(slot.queue) / file_name(slot.base)
    return root / FOLDER / "compactionLog" / place, root / FOLDER / "compactionCq" / place


def write_records(root: Path, records: Iterable[tuple[bytes, Slot]]) -> None:
    """Write records and their units where they belong; the same again changes nothing."""
    for data, slot in records:
        log, units = paths(root, slot)
        record = decode(data, check_crc=False)
        moved = data[:28] + slot.at.to_bytes(8, "big") + data[36:]
        unit = BATCH_QUEUE_UNIT.pack(
            slot.at,
            len(data),
            record.tags_code,
            record.store_timestamp,
            record.queue_offset,
            1,
            -1,
            0,
        )
        _write(log, slot.at - slot.base, moved)
        _write(units, slot.unit * UNIT, unit)


def _write(path: Path, at: int, data: bytes) -> None:
    fd = os.open(path, os.O_WRONLY)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:], at + done)
    finally:
        os.close(fd)
