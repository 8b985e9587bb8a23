"""Cut the log of a store directory into ranges that can be read independently.

A range begins at a *trusted* start: the beginning of a file, a batch index entry, or a queue entry.
Scanning for something that looks like a record is not enough, for a body may carry a copy of one.
A wrong start cannot go unnoticed either: the range before must end exactly there.

Ranges lie within one file. The last one of a file that nothing else bounds is ``open``: it goes to
a little behind the last byte of the file that is not zero, and its records may end before.

Bytes are read with ``pread``, never mapped: a slave that cuts its log under a mapping would end the
process. Offsets are log offsets in bytes, ends exclusive. Nothing is written.

Not here: what is done with a range.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from twinlog.store_files import LogFile, log_file
from twinlog.store_log import TwinLog
from twinlog.store_queues import AnyQueue, Queue
from twinlog.store_reader import StoreReader
from twinlog.units import MiB

SPLIT_BYTES = 64 * MiB
"""Of one range: large enough that opening costs nothing, small enough to be held in memory."""


@dataclass(frozen=True, slots=True)
class Split:
    """One range of one log file.

    Attributes:
        root: Directory of the store.
        file: Name of the log file.
        base: Its start.
        start: Where the range begins; a record begins there.
        end: Where it ends.
        open: Whether the records may end before ``end``; only zeros follow behind ``end``.
        file_end: End of the file; what a blank must fill.
    """

    root: str
    file: str
    base: int
    start: int
    end: int
    open: bool = False
    file_end: int = 0

    def read(self) -> bytes:
        """Return the bytes of the range; fewer when the file has become shorter.

        Raises:
            OSError: The file is gone or cannot be read.
        """
        path = log_file(self.root, self.file)
        return pread(path, self.start - self.base, self.end - self.start)


def pread(path: Path, at: int, length: int) -> bytes:
    """Return up to ``length`` bytes of a file from byte ``at`` on."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts: list[bytes] = []
        while length > 0:
            part = os.pread(fd, length, at)
            if not part:
                break
            parts.append(part)
            at, length = at + len(part), length - len(part)
    finally:
        os.close(fd)
    return parts[0] if len(parts) == 1 else b"".join(parts)


@dataclass(frozen=True, slots=True)
class Plan:
    """A log, cut.

    ``doubts`` are reasons why the ranges alone cannot prove the store sound; empty is good.
    """

    root: str
    ours: bool
    splits: Sequence[Split]
    batches: int = 0
    doubts: Sequence[str] = field(default_factory=tuple[str, ...])


def plan(root: Path | str, split_bytes: int = SPLIT_BYTES) -> Plan:
    """Cut the log of a store directory.

    Args:
        root: Directory of the store.
        split_bytes: Wanted length of a range; one batch or record may make it longer.

    Raises:
        UsageError: There is no store.
    """
    with StoreReader(root) as store:
        log = store.log
        if isinstance(log, TwinLog):
            return _of_ours(store, log, split_bytes)
        splits: list[Split] = []
        queues = [queue for queue in store.stored_queues.values() if isinstance(queue, Queue)]
        for file in store.series.files:
            splits += _of_rocket(store, file, queues, split_bytes)
        return Plan(store.name, False, splits, 0, _doubts(store))


def _doubts(store: StoreReader) -> list[str]:
    doubts: list[str] = []
    if store.series.strays:
        doubts.append("files that are no part of the log")
    if not store.clean and not store.ours:
        doubts.append("not stopped cleanly")
    files = store.series.files
    if any(one.end != two.start for one, two in itertools.pairwise(files)):
        doubts.append("a gap between two files")
    return doubts


def _of_ours(store: StoreReader, log: TwinLog, split_bytes: int) -> Plan:
    """Cut at batch borders, up to where a running node has confirmed."""
    limit = store.marks.confirm if store.marks.live else 1 << 63
    splits: list[Split] = []
    doubts, batches, ended = _doubts(store), 0, False
    for file in store.series.files:
        start = at = file.start
        for _, entry in log.entries.get(file.start, ()):
            if entry is None or entry.start != at or entry.end > file.end:
                doubts.append(f"the batch index of {file.path.name}")
                break
            batches += 1
            if at >= limit:
                continue
            at = entry.end
            if at - start >= split_bytes:
                splits.append(_split(store, file, start, at))
                start = at
        if at > start:
            splits.append(_split(store, file, start, at))
        if at < file.end:
            if store.series.last_written(file, at) > at and at < limit:
                doubts.append(f"bytes of {file.path.name} behind the last batch")
            ended = True
        elif ended:
            doubts.append("the log goes on behind its end")
    return Plan(store.name, True, splits, batches, doubts)


def _split(store: StoreReader, file: LogFile, start: int, end: int) -> Split:
    return Split(store.name, file.path.name, file.start, start, end, False, file.end)


def _of_rocket(
    store: StoreReader, file: LogFile, queues: Sequence[Queue], split_bytes: int
) -> list[Split]:
    """Cut one file at queue entries."""
    borders = [file.start]
    while borders[-1] + split_bytes < file.end:
        found = first_start(queues, borders[-1] + split_bytes)
        if found is None or found >= file.end:
            break
        borders.append(found)
    # A record without properties ends in two zeros.
    end = min(store.series.last_written(file, borders[-1]) + 8, file.end)
    name, root = file.path.name, store.name
    last = Split(root, name, file.start, borders[-1], end, True, file.end)
    return [*(_split(store, file, *pair) for pair in itertools.pairwise(borders)), last]


def first_start(queues: Sequence[AnyQueue], offset: int) -> int | None:
    """Return the first log offset at or after ``offset`` at which a queue entry points."""
    found: list[int] = []
    for queue in queues:
        if isinstance(queue, Queue) and queue.max > queue.min:
            numbers = range(queue.min, queue.max)
            at = bisect_left(numbers, offset, key=queue_offset(queue))
            if at < len(numbers):
                found.append(queue_offset(queue)(numbers[at]))
    return min(found, default=None)


class queue_offset:
    """The log offset in entry n of a queue; fill-up entries count as -1."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __call__(self, number: int) -> int:
        """Return the log offset of entry ``number``."""
        data = self._queue.stored(number, 1)
        if int.from_bytes(data[8:12], "big") == 0x7FFFFFFF:
            return -1
        return int.from_bytes(data[:8], "big", signed=True)
