"""Batch queues: queue offset to record, where a record may hold several messages (BatchCQ).

Path ``batchconsumequeue/{topic}/{queue}/{20 digits}``. A unit of 46 bytes for each record holds its
log offset, its store time, the queue offset of its first message and the number of messages; unit n
of the queue is at byte 46 n. So a queue offset is found by binary search. Each record has at least
one message, which bounds the search: if all have exactly one, no search is needed.

Rebuilt files are byte for byte what RocketMQ builds from the same log: units in log order, zeros
after the last one, the first kept record at byte 0 whatever its queue offset.

``start`` and ``end`` are queue offsets, as for every queue; the number of units is found from the
files at a start, since all units below a snapshot's end are durable.

Not here: reading records (`storage.read.reader`). Sources: RocketMQ 5.3 (``BatchConsumeQueue``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple

from storage.disk.disk import Disk
from storage.queues.consume_queue import LOOK_BACK, Check, ConsumeQueue
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import BATCH_QUEUE_UNIT

DIRECTORY = "batchconsumequeue"
UNIT_SIZE = BATCH_QUEUE_UNIT.size
assert UNIT_SIZE == 46


class Unit(NamedTuple):
    """One unit, as it is stored."""

    log_offset: int
    size: int
    tags_code: int
    store_timestamp: int
    base: int
    messages: int
    compacted: int
    reserved: int

    @property
    def after(self) -> int:
        """Queue offset after its last message."""
        return self.base + self.messages


def units_of(raw: bytes) -> list[Unit]:
    """Return the units in ``raw``."""
    return [Unit(*fields) for fields in BATCH_QUEUE_UNIT.iter_unpack(raw)]


LOOKED_AT = 64
"""Files whose lengths are sampled to find the common one."""


def found_file_size(disk: Disk, expected: int) -> int:
    """Return the length of the store's batch queue files, bytes; ``expected`` without files.

    A file may have been truncated: the most frequent length counts, of those that fit the name of
    their file, and ``expected`` before any other.
    """
    sizes: Counter[int] = Counter()
    for path in islice(_files(disk), LOOKED_AT):
        size = disk.size(path)
        if size and size % UNIT_SIZE == 0 and int(path.rpartition("/")[2]) % size == 0:
            sizes[size] += 1
    if not sizes or expected in sizes:
        return expected
    return max(sizes, key=lambda size: (sizes[size], size))


def _files(disk: Disk) -> Iterator[str]:
    for topic in disk.list(DIRECTORY):
        for queue in disk.list(f"{DIRECTORY}/{topic}"):
            folder = f"{DIRECTORY}/{topic}/{queue}"
            yield from (f"{folder}/{name}" for name in disk.list(folder) if name.isdecimal())


class BatchQueue(ConsumeQueue):
    """One queue of a topic with batch queues; see `ConsumeQueue`."""

    ROOT = DIRECTORY
    SIZE = UNIT_SIZE

    _units = 0
    """Number of units, which is the number of the next one."""
    _first = 0
    """Number of the unit of `start`."""
    _floor = 0
    """Number of the first unit in the files when they were opened."""

    def write(self, first: int, entries: bytes) -> None:
        """Write units whose messages begin at queue offset ``first``, as `ConsumeQueue.write`."""
        units = units_of(entries)
        if self.start == self.end:
            self.low = units[0].log_offset
            if not self._units:
                self.start = self.end = first
        new = [unit for unit in units if unit.base >= self.end]
        if new and new[0].base != self.end:
            raise CorruptionError(
                f"batch queue {self.queue} of {self.topic} ends at {self.end}, the log goes on at "
                f"{new[0].base}"
            )
        view = memoryview(entries)[(len(units) - len(new)) * UNIT_SIZE :]
        while view:
            at = self._units * UNIT_SIZE
            part = view[: self._size - at % self._size]
            self._put(at, part)
            self._units += len(part) // UNIT_SIZE
            self.end = units_of(bytes(part[-UNIT_SIZE:]))[0].after
            view = view[len(part) :]

    def drop(self) -> None:
        """As `ConsumeQueue.drop`."""
        super().drop()
        self._units = self._first = self._floor = self.removed = 0

    def unit(self, number: int) -> Unit:
        """Return one unit by its number."""
        return units_of(self._bytes(number, number + 1))[0]

    def _search(self, low: int, high: int, after: Callable[[Unit], bool]) -> int:
        """Return the first number in ``low..high`` whose unit is ``after``; else ``high``."""
        while low < high:
            middle = (low + high) // 2
            if after(self.unit(middle)):
                high = middle
            else:
                low = middle + 1
        return low

    def _holder(self, offset: int) -> int:
        """Return the number of the unit that holds ``offset``, an existing queue offset."""
        low = max(self._first, self._units - (self.end - offset))
        # Both bounds follow from at least one message per unit, counted from either end.
        high = min(self._units, self._first + offset - self.start + 1)
        return self._search(low, high, lambda unit: unit.base > offset) - 1

    def units(self, offset: int, most: int) -> list[Unit]:
        """Return up to ``most`` units from the one that holds queue offset ``offset``, below end.

        The message count of each is compared with the queue offset of the next one.

        Raises:
            CorruptionError: They are not consecutive, or do not hold the offset.
        """
        number = self._holder(offset)
        stop = min(number + most, self._units)
        found = units_of(self._bytes(number, stop)) if number < stop else []
        bases = [unit.base for unit in found]
        bases.append(self.unit(stop).base if stop < self._units else self.end)
        follow = all(one.after == base for one, base in zip(found, bases[1:], strict=True))
        if not found or not follow or not bases[0] <= offset < bases[1]:
            text = f"batch queue {self.queue} of {self.topic} is inconsistent at {offset}"
            raise CorruptionError(text, file=self.directory, offset=0, what="queue entry")
        return found

    def at_time(self, ms: int, *, upper: bool) -> int:
        """Return the first queue offset stored at or after ``ms``; the end for none.

        With ``upper`` the last one stored at or before it; the start for none.
        """
        if upper:
            number = self._search(self._first, self._units, lambda unit: unit.store_timestamp > ms)
            return self.unit(number - 1).after - 1 if number > self._first else self.start
        number = self._search(self._first, self._units, lambda unit: unit.store_timestamp >= ms)
        return self.unit(number).base if number < self._units else self.end

    def at_log(self, offset: int) -> int:
        """As `ConsumeQueue.at_log`."""
        number = self._search(self._first, self._units, lambda unit: unit.log_offset >= offset)
        return self.unit(number).base if number < self._units else self.end

    def trim(self, log_start: int, check: Check) -> None:
        """As `ConsumeQueue.trim`."""
        super().trim(log_start, check)
        self._find_first()

    def move_start(self, start: int, low: int) -> None:
        """As `ConsumeQueue.move_start`."""
        super().move_start(start, low)
        self._find_first()

    def _find_first(self) -> None:
        if self._first < self._units and self.unit(self._first).base < self.start:
            self._first = self._number(self.start)

    def kept_from(self, log_start: int, check: Check) -> tuple[int, int]:
        """As `ConsumeQueue.kept_from`."""
        end, units, first = self.end, self._units, self._first
        number = self._search(first, units, lambda unit: self._place(unit) >= log_start)
        if number > first:
            before = max(first, number - LOOK_BACK)
            offsets = [self._place(unit) for unit in units_of(self._bytes(before, number))]
            if sorted([*offsets, log_start]) != [*offsets, log_start]:
                raise self._damaged(before, "units before the start do not point below it")
        if number == units:
            return end, log_start
        found = self.unit(number)
        check(self, found.base, self._place(found), found.size)
        return found.base, found.log_offset

    def _place(self, unit: Unit) -> int:
        """Return the log offset of a unit's record.

        Raises:
            CorruptionError: The unit is empty.
        """
        if unit.size <= 0 or unit.messages <= 0:
            raise self._damaged(self._first, "a unit after it is empty")
        return unit.log_offset

    def removable(self) -> int:
        """As `ConsumeQueue.removable`."""
        number = min(self._number(self.recorded), max(self._units - 1, 0))
        border = number * UNIT_SIZE
        border -= border % self._size
        return border if border > self.removed else 0

    def _number(self, offset: int) -> int:
        """Return the number of the first unit at or after a queue offset."""
        low = max(self._floor, self.removed // UNIT_SIZE)
        return self._search(low, self._units, lambda unit: unit.base >= offset)

    def whole(self, end: int, log_start: int = 0) -> bool:
        """As `ConsumeQueue.whole`; also counts the units."""
        bases = [int(name) for name in self._names()]
        self._units = self._first = self._floor = bases[0] // UNIT_SIZE if bases else 0
        for number, base in enumerate(bases):
            if base != bases[0] + number * self._size:
                return False
            if self._disk.size(self._path(base)) != self._size:
                return False
        if bases:
            most = (bases[-1] + self._size) // UNIT_SIZE
            self._units = self._search(self._floor, most, lambda unit: _beyond(unit, end))
        if end <= self.start:
            self._first = self._units
            return True
        self._first = self._number(self.start)
        if self._first == self._units or self.unit(self._first).base != self.start:
            return False
        return self.unit(self._units - 1).after == end and self._rises(log_start)

    def _rises(self, log_start: int) -> bool:
        """Whether log offsets rise over the first and last units of all files."""
        lowest, number, each = log_start, self._first, self._size // UNIT_SIZE
        while number < self._units:
            last = min(number - number % each + each, self._units) - 1
            for unit in (self.unit(number), self.unit(last)):
                if _beyond(unit, self.end) or unit.log_offset < lowest:
                    return False
                lowest = unit.log_offset
            number = last + 1
        return True

    def cut(self, end: int, *, thorough: bool = True) -> None:
        """As `ConsumeQueue.cut`."""
        if end < self.end:
            self._units = self._number(end)
        self.end = max(end, 0)
        self.start = min(self.start, self.end)
        self._first = min(self._first, self._units)
        self._cut(self._units * UNIT_SIZE, thorough)


def _beyond(unit: Unit, end: int) -> bool:
    """Whether a position in a file holds no unit, or one at or beyond queue offset ``end``."""
    return unit.size <= 0 or unit.messages <= 0 or unit.base >= end
