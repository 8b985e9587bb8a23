"""Queue files as arrays: where the records of a queue are in the log.

A twinlog node or a RocketMQ broker may be using the directory, so files are read with ``pread`` and
never mapped: a file that becomes shorter under a mapping kills the process. A file is opened for
each question and closed again; there may be ten thousand queues.

Which entries count is RocketMQ's rule (`twinlog.store.queues`): those from the beginning of the
last file up to the first invalid one; earlier files count as whole.

Units: queue offsets count records, log offsets are bytes, ends are exclusive.

Sources: RocketMQ 5.3 (``ConsumeQueue``, ``BatchConsumeQueue``).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinlog.spark.arrow import np
from twinlog.store.files import FileSeries
from twinlog.store.queues import BatchQueue

ENTRY: Any = np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")])
assert ENTRY.itemsize == 20
WHOLE_MAX = 1 << 16
"""Entries up to which a queue is read whole instead of searched, 1.25 MiB."""
_FIRST_LOOK = 1 << 12
FILL_SIZE = 0x7FFFFFFF
"""Size of the entries that fill a queue which did not begin at 0."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of one queue, as arrays of one length.

    Attributes:
        numbers: Queue offset of each; of an inner batch, of its first message.
        offsets: Log offset of each record.
        sizes: Bytes of each record.
        tags: Tags code of each.
    """

    numbers: Any
    offsets: Any
    sizes: Any
    tags: Any

    def __len__(self) -> int:
        return len(self.offsets)


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    start: int
    size: int


class QueueFiles:
    """One queue of 20-byte entries, as its files have it now.

    Args:
        topic: Its topic.
        queue: Its number.
        folder: Where its files are.
    """

    batch = False

    def __init__(self, topic: str, queue: int, folder: Path) -> None:
        self.topic = topic
        self.queue = queue
        self._files = _files(folder)
        self._starts = [file.start for file in self._files]
        self.start = self._files[0].start // 20 if self._files else 0
        self.end = self._end()

    def _end(self) -> int:
        """Return the queue offset after the last entry."""
        end = self.start
        for file in self._files[-3:]:
            count = _valid(file)
            end = file.start // 20 + count
            if count < file.size // 20:
                break
        return end

    def entries(self, first: int, stop: int) -> Entries:
        """Return the entries ``first..stop``; fewer where a file has gone."""
        parts = [np.frombuffer(part, ENTRY) for part in self._parts(20 * first, 20 * stop)]
        found = np.concatenate(parts) if parts else np.empty(0, ENTRY)
        numbers = np.arange(first, first + len(found), dtype=np.int64)
        return Entries(
            numbers,
            found["offset"].astype(np.int64),
            found["size"].astype(np.int64),
            found["tags"].astype(np.int64),
        )

    def _parts(self, at: int, end: int) -> Iterator[bytes]:
        while at < end:
            i = bisect_right(self._starts, at) - 1
            if i < 0 or at >= self._files[i].start + self._files[i].size:
                return
            file = self._files[i]
            want = min(end, file.start + file.size) - at
            data = _read(file, at - file.start, want)
            yield data[: len(data) // 20 * 20]
            if len(data) < want:
                return
            at += want

    def place(self, number: int) -> int:
        """Return the log offset of entry ``number``; -1 when it cannot be read."""
        found = self.entries(number, number + 1)
        return int(found.offsets[0]) if len(found) else -1

    def first_at(self, log_offset: int, low: int, high: int) -> int:
        """Return the first of ``low..high`` that points to or beyond ``log_offset``, else high."""
        while high - low > WHOLE_MAX:
            middle = (low + high) // 2
            place = self.place(middle)
            if 0 <= place < log_offset:
                low = middle + 1
            else:
                high = middle
        found = self.entries(low, high)
        return low + int(np.searchsorted(found.offsets, log_offset, "left"))

    def cuts(self, first: int, stop: int, points: Any) -> Any:
        """Return for each log offset of ``points`` the first of ``first..stop`` not before it."""
        if stop - first <= WHOLE_MAX:
            found = self.entries(first, stop)
            return first + np.searchsorted(found.offsets, points, "left")
        out = np.empty(len(points), np.int64)
        low = first
        for i, point in enumerate(points):
            low = out[i] = self.first_at(int(point), low, stop)
        return out


def _files(folder: Path) -> list[_File]:
    found: list[_File] = []
    with os.scandir(folder) as listing:
        for item in listing:
            if len(item.name) == 20 and item.name.isdigit() and item.is_file():
                size = item.stat().st_size
                if size:
                    found.append(_File(item.path, int(item.name), size))
    return sorted(found, key=lambda file: file.start)


def _read(file: _File, at: int, length: int) -> bytes:
    try:
        opened = os.open(file.path, os.O_RDONLY)
    except FileNotFoundError:  # retention was here
        return b""
    try:
        return os.pread(opened, length, at)
    finally:
        os.close(opened)


def _valid(file: _File) -> int:
    """Return how many entries a file begins with."""
    head = np.frombuffer(_whole(_read(file, 0, 20 * _FIRST_LOOK)), ENTRY)
    good = _good(head)
    if not good.all():
        return int(good.argmin())
    low, high = len(head), file.size // 20
    while low < high:
        middle = (low + high) // 2
        one = np.frombuffer(_whole(_read(file, 20 * middle, 20)), ENTRY)
        if len(one) and _good(one)[0]:
            low = middle + 1
        else:
            high = middle
    return low


def _whole(data: bytes) -> bytes:
    return data[: len(data) // 20 * 20]


def _good(entries: Any) -> Any:
    return (entries["offset"] >= 0) & (entries["size"] > 0)


class BatchQueueFiles:
    """One queue of a BatchCQ topic: units of one or more messages.

    Such topics are rare and their units few: they are read once, whole.
    """

    batch = True

    def __init__(self, topic: str, queue: int, folder: Path) -> None:
        self.topic = topic
        self.queue = queue
        held = BatchQueue(topic, queue, FileSeries(folder))
        units = list(held.entries())
        rows = [(u.queue_offset, u.log_offset, u.size, u.tags_code, u.count) for u in units]
        table = np.array(rows, np.int64).reshape(len(rows), 5)
        self._entries = Entries(table[:, 0], table[:, 1], table[:, 2], table[:, 3])
        self._ends = table[:, 0] + table[:, 4]
        self.start = int(table[0, 0]) if len(rows) else 0
        self.end = int(self._ends[-1]) if len(rows) else 0

    def entries(self, first: int, stop: int) -> Entries:
        """Return the units that hold messages ``first..stop``."""
        all_ = self._entries
        keep = (self._ends > first) & (all_.numbers < stop)
        return Entries(all_.numbers[keep], all_.offsets[keep], all_.sizes[keep], all_.tags[keep])

    def first_at(self, log_offset: int, low: int, high: int) -> int:
        """Return the first message in ``low..high`` at or beyond ``log_offset``, else high."""
        return int(self.cuts(low, high, np.array([log_offset]))[0])

    def cuts(self, first: int, stop: int, points: Any) -> Any:
        """Return for each log offset of ``points`` the first of ``first..stop`` not before it."""
        found = self.entries(first, stop)
        bounds = np.append(found.numbers, stop)
        return np.clip(bounds[np.searchsorted(found.offsets, points, "left")], first, stop)

    def place(self, number: int) -> int:
        """Return the log offset of the record that holds message ``number``; -1 without one."""
        found = self.entries(number, number + 1)
        return int(found.offsets[0]) if len(found) else -1


AnyQueueFiles = QueueFiles | BatchQueueFiles


def queue_folders(root: Path) -> Iterator[tuple[str, int, Path, bool]]:
    """Yield (topic, queue, folder, whether of inner batches) of every queue of a store."""
    for name, batch in (("consumequeue", False), ("batchconsumequeue", True)):
        base = root / name
        for topic in sorted(os.listdir(base)) if base.is_dir() else ():
            place = base / topic
            for queue in sorted(os.listdir(place)) if place.is_dir() else ():
                if queue.isdigit():
                    yield topic, int(queue), place / queue, batch


def open_queue(topic: str, queue: int, folder: Path, *, batch: bool) -> AnyQueueFiles:
    """Return the queue whose files are in ``folder``."""
    return (BatchQueueFiles if batch else QueueFiles)(topic, queue, folder)
