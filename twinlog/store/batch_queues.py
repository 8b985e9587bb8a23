"""Batch queues (BatchCQ) of a store directory: units of 46 bytes, one for each record.

A unit names the queue offset of its record's first message and how many messages there are, so an
offset is searched for, not computed. Files are read up to the first invalid unit. A queue shows the
units of its files, without those that point after the end of the log, plus those that recovery
would add.

Units: queue offsets count messages, times are milliseconds.

Sources: RocketMQ 5.3 (``BatchConsumeQueue``), golden case 09.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain

from twinlog.format.consume_queue import BATCH_QUEUE_FILE_SIZE_DEFAULT, BATCH_QUEUE_UNIT
from twinlog.store.files import FileSeries
from twinlog.store.queue_entries import (
    IN_MEMORY_BYTES,
    IN_MEMORY_COUNT,
    Entry,
    Extension,
    Gone,
    Pull,
    Status,
    TimeOf,
    outside,
    unreadable,
)

_EACH = BATCH_QUEUE_FILE_SIZE_DEFAULT // BATCH_QUEUE_UNIT.size
"""Units of a file, where no file is there to look at."""


class BatchQueue:
    """One queue of a BatchCQ topic: 46-byte units, each for one or more messages."""

    kind = "BatchCQ"
    folder = "batchconsumequeue"

    def __init__(self, topic: str, queue: int, series: FileSeries) -> None:
        self.topic = topic
        self.queue = queue
        self._files: list[list[Entry]] = []
        self._series = series
        self._min = 0
        self._each = series.files[0].size // BATCH_QUEUE_UNIT.size if series.files else _EACH
        for file in series.files:
            units, whole = _batch_units(series.view(file))
            self._files.append(units)
            if not whole:
                break

    @property
    def _units(self) -> Iterator[Entry]:
        return chain.from_iterable(self._files)

    @property
    def _last(self) -> Entry | None:
        return next((units[-1] for units in reversed(self._files) if units), None)

    @property
    def max_log_offset(self) -> int:
        """Log offset of the last unit's record, as RocketMQ shows it; -1 without one."""
        last = self._last
        return last.log_offset if last else -1

    @property
    def min(self) -> int:
        """Queue offset of the first message that is in the log."""
        return self._min

    @property
    def max(self) -> int:
        """Queue offset after the last message."""
        last = self._last
        return last.queue_offset + last.count if last else 0

    def dispatch(self, units: bytes) -> None:
        """Enter units of records after the last one that is entered, as recovery does."""
        last = self.max_log_offset
        for unit in _batch_units(memoryview(units))[0]:
            if unit.log_offset <= last:
                continue
            if not self._files or len(self._files[-1]) >= self._each:
                self._files.append([])
            self._files[-1].append(unit)

    def stored(self, log_offset: int, count: int) -> bytes:
        """Return ``count`` units from the first one on that points to ``log_offset`` or after it.

        As they are in the files.
        """
        found, left = bytearray(), count
        for file, units in zip(self._series.files, self._files, strict=False):
            if units and units[-1].log_offset >= log_offset:
                at = bisect_left(units, log_offset, key=lambda unit: unit.log_offset)
                end = min(at + left, len(units))
                found += self._series.view(file)[
                    BATCH_QUEUE_UNIT.size * at : end * BATCH_QUEUE_UNIT.size
                ]
                left -= end - at
                if not left:
                    break
        return bytes(found)

    def broken(self) -> tuple[str, int, int, bool] | None:
        """As `Queue.broken`; the queue offset is that after the last good unit."""
        if not self._series.files:
            return None
        number = len(self._files) - 1
        file, at = self._series.files[number], BATCH_QUEUE_UNIT.size * len(self._files[number])
        if self._series.last_written(file, file.start + at) == file.start + at:
            return None
        # after the look at what follows: a node may run, and have gone on
        data = self._series.view(file)[at : at + BATCH_QUEUE_UNIT.size]
        if len(data) == BATCH_QUEUE_UNIT.size and _batch_units(data)[0]:
            return None
        return file.path.name, at, self.max, not any(data)

    def laid(self) -> Iterator[tuple[Entry, bytes, str, int]]:
        """Yield each unit as it is in the files: bytes, file name, byte in it."""
        size = BATCH_QUEUE_UNIT.size
        for file, units in zip(self._series.files, self._files, strict=False):
            view = self._series.view(file)
            for i, unit in enumerate(units):
                yield unit, bytes(view[size * i : size * (i + 1)]), file.path.name, size * i

    @property
    def held(self) -> int:
        """How many units it has."""
        return sum(len(units) for units in self._files)

    def cut(self, end: int) -> None:
        """Drop units that point at or after log offset ``end``."""
        for units in self._files:
            while units and units[-1].log_offset >= end:
                units.pop()

    def correct_min(self, log_start: int) -> None:
        """Move `min` to the first unit that points at or beyond ``log_start``."""
        kept = (unit.queue_offset for unit in self._units if unit.log_offset >= log_start)
        self._min = next(kept, self.max)

    def entries(self, start: int | None = None, end: int | None = None) -> Iterator[Entry]:
        """Yield the units that hold queue offsets ``start..end``."""
        first = self._min if start is None else max(start, self._min)
        for unit in self._units:
            if unit.queue_offset + unit.count > first and (end is None or unit.queue_offset < end):
                yield unit

    def lengths(self) -> dict[str, int]:
        """Return the length of each of its files, bytes, by name."""
        return {file.path.name: file.size for file in self._series.files}

    def unreadable(self) -> list[tuple[str, str]]:
        """Return (file name, why) of the files that could not be read."""
        return unreadable(self._series)

    def extensions(self) -> Iterator[Extension]:
        """Batch queues have no extension."""
        return iter(())

    def stored_entries(self) -> Iterator[tuple[int, int]]:
        """Yield (log offset, size) of every unit."""
        for unit in self._units:
            yield unit.log_offset, unit.size

    def get(self, offset: int, max_records: int, gone: Gone) -> Pull:
        """As `Queue.get`; ``max_records`` counts inner messages."""
        refused = outside(offset, self.min, self.max)
        if refused is not None:
            return refused
        found: list[Entry] = []
        messages, total, looked = 0, 0, offset
        for unit in self._file_from(offset):
            full = messages + unit.count > max_records or messages >= IN_MEMORY_COUNT
            if found and (full or total + unit.size > IN_MEMORY_BYTES):
                break
            looked = unit.queue_offset + unit.count
            if not gone(unit.log_offset, unit.size):
                found.append(unit)
                messages, total = messages + unit.count, total + unit.size
        status = Status.FOUND if found else Status.MESSAGE_WAS_REMOVING
        return Pull(status, looked, tuple(found))

    def offset_by_time(self, ms: int, time_of: TimeOf, log_start: int, *, upper: bool) -> int:
        """As `Queue.offset_by_time`, from the times that the units hold.

        RocketMQ's search for ``upper`` is not exact between units; this answers what it answers.
        """
        del time_of, log_start
        files = [units for units in self._files if units]
        if not files:
            return self._min
        units = next((u for u in reversed(files) if u[0].store_timestamp <= ms), files[0])
        if ms >= units[-1].store_timestamp:
            return units[-1].queue_offset
        found = _batch_search([unit.store_timestamp for unit in units], ms, upper=upper)
        return self._min if found is None else max(units[found].queue_offset, self._min)

    def _file_from(self, offset: int) -> list[Entry]:
        """Return the units from ``offset`` on, of the file that holds it."""
        for units in self._files:
            if units and offset < units[-1].queue_offset + units[-1].count:
                return [u for u in units if u.queue_offset + u.count > offset]
        return []


def _batch_search(times: list[int], ms: int, *, upper: bool) -> int | None:
    """Return the index that RocketMQ's ``binarySearchRight`` finds."""
    low, high = 0, len(times) - 1
    while low <= high:
        mid = (low + high) // 2
        if mid in (low, high) and times[mid] >= ms:
            return mid
        if mid == high:
            return None
        if mid == low or (not upper and times[mid] < ms):
            low = mid + 1
        elif upper and times[mid] <= ms:
            low = mid
        else:
            high = mid - 1 if upper else mid
    return None


def _batch_units(view: memoryview) -> tuple[list[Entry], bool]:
    """Return the valid units that a file begins with, and whether it holds nothing else."""
    units: list[Entry] = []
    for fields in BATCH_QUEUE_UNIT.iter_unpack(view[: len(view) // 46 * 46]):
        log_offset, size, tags_code, stamp, base, count, compacted, _ = fields
        if log_offset < 0 or size <= 0 or base < 0 or count <= 0:
            return units, False
        units.append(Entry(base, log_offset, size, tags_code, count, compacted, stamp))
    return units, True
