"""The queues of a store directory, as they are after recovery.

A queue has the entries of its files, without those that point after the end of the log, plus those
that recovery would make for records that no entry names yet. Those additions live in memory;
nothing is written.

Files are read as RocketMQ reads them: from the third last file on, up to the first invalid entry;
earlier files count as whole. Entry n is at byte 20 n; a queue that did not begin at 0 is filled up
with blank entries ``(0, 0x7FFFFFFF, 0)``.

A record that recovery dispatches is appended where the queue ends, unless the queue already reaches
beyond it or its queue offset is after the end (RocketMQ trusts the place in the queue more than
the number in the record). Batch queues (BatchCQ): `twinlog.store.batch_queues`.

``get`` answers as RocketMQ's store does, `Status` has its names: at most one queue file for a call,
at least one record whatever its size.

Units: queue offsets count records, times are milliseconds.

Sources: RocketMQ 5.3 (``ConsumeQueue``, ``BatchConsumeQueue``, ``DefaultMessageStore.getMessage``).
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from twinlog.format.consume_queue import (
    QUEUE_EXT_ADDRESS_MAX,
    QUEUE_EXT_UNIT,
    QUEUE_FILE_SIZE_DEFAULT,
)
from twinlog.format.light_queues import LIGHT_OFFSETS_PROPERTY, LIGHT_PREFIX, LIGHT_PROPERTY
from twinlog.format.record import Record
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.store.batch_queues import BatchQueue
from twinlog.store.files import FileSeries, is_number, listed
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

__all__ = [
    "AnyQueue",
    "BatchQueue",
    "Entry",
    "Extension",
    "Pull",
    "Queue",
    "Status",
    "dispatch_from",
    "light_places",
    "load_queues",
]

_NAME_MAX = 255
"""Bytes of a folder's name, at most."""
_NOT_LIGHT = ("%RETRY%", "rmq_sys_")
"""Messages of these topics RocketMQ enters in no light queue."""

_ENTRY = struct.Struct(">qiq")
assert _ENTRY.size == 20


class Queue:
    """One queue of 20-byte entries.

    Args:
        topic: Its topic.
        queue: Its number.
        series: Its files.
        extension: Files of its extension; empty where that is off.
    """

    kind = "SimpleCQ"
    folder = "consumequeue"

    def __init__(self, topic: str, queue: int, series: FileSeries, extension: FileSeries) -> None:
        self.topic = topic
        self.queue = queue
        self._series = series
        self.extension = extension
        self._base = self._stored_end = series.start
        self._tail = bytearray()
        self._min = series.start
        self.max_log_offset = -1
        self._recover()

    @property
    def min(self) -> int:
        """Queue offset of the first entry that points into the log."""
        return self._min // 20

    @property
    def max(self) -> int:
        """Queue offset after the last entry."""
        return self._end // 20

    @property
    def _end(self) -> int:
        return self._stored_end + len(self._tail)

    def _recover(self) -> None:
        files = self._series.files
        for file in files[-3:]:
            count, last = _valid_entries(self._series.view(file))
            self._stored_end = file.start + 20 * count
            if count:
                self.max_log_offset = last
            if count < file.size // 20:
                break

    def _raw(self, at: int) -> tuple[int, int, int] | None:
        """Return the entry at byte ``at`` of the queue."""
        if at >= self._end or at < self._base:
            return None
        if at >= self._stored_end:
            return _ENTRY.unpack_from(self._tail, at - self._stored_end)
        data = self._series.read(at, 20)
        return _ENTRY.unpack(data) if len(data) == 20 else None

    def dispatch(self, first: int, entries: bytes) -> None:
        """Enter a run of records whose queue offsets begin at ``first``, as recovery does."""
        for i, (log_offset, size, tags_code) in enumerate(_ENTRY.iter_unpack(entries)):
            number = first + i
            if log_offset + size <= self.max_log_offset:
                continue
            if self._end == self._base and not self._series.files and number:
                self._begin_at(20 * number)
            if number and 20 * number < self._end:
                continue
            self.max_log_offset = log_offset + size
            self._tail += _ENTRY.pack(log_offset, size, tags_code)

    def _begin_at(self, logic: int) -> None:
        self._base = self._stored_end = self._min = logic

    def cut(self, end: int) -> None:
        """Drop the entries at the end that point at or after log offset ``end``."""
        self.max_log_offset = end
        while self._end > self._base:
            entry = self._raw(self._end - 20)
            if entry is not None and entry[0] < end and entry[1] > 0:
                self.max_log_offset = entry[0] + entry[1]
                return
            if self._tail:
                del self._tail[-20:]
            else:
                self._stored_end -= 20

    def correct_min(self, log_start: int) -> None:
        """Move `min` to the first entry that points at or beyond ``log_start``."""
        last = self._raw(self._end - 20)
        if last is None:
            return
        if last[0] < log_start:
            self._min = self._end
            return
        low, high = max(self._min, self._base) // 20, self.max - 1
        while low < high:
            mid = (low + high) // 2
            entry = self._raw(20 * mid)
            if entry is not None and entry[0] < log_start:
                low = mid + 1
            else:
                high = mid
        self._min = 20 * low

    def entries(self, start: int | None = None, end: int | None = None) -> Iterator[Entry]:
        """Yield the entries of queue offsets ``start..end``; all from `min` on by default."""
        first = self.min if start is None else max(start, self.min)
        for number in range(first, self.max if end is None else min(end, self.max)):
            entry = self._raw(20 * number)
            if entry is not None:
                yield self.resolved(number, entry)

    def resolved(self, number: int, entry: tuple[int, int, int]) -> Entry:
        """Return the entry ``number``, with the tags code of its extension if it has one."""
        log_offset, size, tags_code = entry
        found = self._extended(number, tags_code)
        return Entry(number, log_offset, size, found.tags_code if found else tags_code)

    def _extended(self, number: int, address: int) -> Extension | None:
        if address > QUEUE_EXT_ADDRESS_MAX:
            return None
        data = self.extension.read(address + 2**63, 1 << 16)
        if len(data) < QUEUE_EXT_UNIT.size:
            return None
        size, tags_code, stamp, length = QUEUE_EXT_UNIT.unpack_from(data)
        if size < QUEUE_EXT_UNIT.size or size > len(data):
            return None
        return Extension(number, tags_code, stamp, bytes(data[20 : 20 + length]))

    def extensions(self) -> Iterator[Extension]:
        """Yield what the queue extension says, for the entries that have such a unit."""
        for number in range(self.min, self.max):
            entry = self._raw(20 * number)
            found = self._extended(number, entry[2]) if entry else None
            if found is not None:
                yield found

    def addresses(self) -> Iterator[tuple[int, int, int]]:
        """Yield (queue offset, log offset, byte of the extension) of the entries that name one."""
        for number in range(self.min, self.max):
            entry = self._raw(20 * number)
            if entry is not None and entry[2] <= QUEUE_EXT_ADDRESS_MAX:
                yield number, entry[0], entry[2] + 2**63

    def stored(self, number: int, count: int) -> bytes:
        """Return the bytes of ``count`` entries from queue offset ``number`` on, as they are."""
        out, at, end = bytearray(), 20 * number, min(20 * (number + count), self._stored_end)
        while at < end:
            part = self._series.read(at, end - at)
            if not part:
                break
            out += part
            at += len(part)
        return bytes(out)

    def raw(self, number: int, count: int) -> bytes:
        """Return what is at the places of ``count`` entries; zeros where no file is."""
        at, end = 20 * number, 20 * (number + count)
        out = bytearray(end - at)
        for file in self._series.between(at, end):
            low = max(at, file.start)
            part = self._series.view(file)[low - file.start : end - file.start]
            out[low - at : low - at + len(part)] = part
        return bytes(out)

    def written_behind(self, number: int, known: dict[int, int]) -> bool:
        """Whether the file of entry ``number`` holds anything after it.

        ``known``: where what was written ends in each file, kept from call to call.
        """
        file = self._series.at(20 * number)
        if file is None:
            return False
        if file.start not in known:
            known[file.start] = self._series.last_written(file, file.start)
        return known[file.start] > 20 * number + 20

    def broken(self) -> tuple[str, int, int, bool] | None:
        """Return the invalid entry at which reading the files ends, if anything follows.

        File name, byte in it, queue offset, and whether it is zeros.
        """
        at = self._stored_end
        file = self._series.at(at)
        if file is None or self._series.last_written(file, at) == at:
            return None
        data = bytes(self._series.read(at, 20))  # after the look at what follows: a node may run
        if len(data) == 20 and _valid_in(data):
            return None
        return file.path.name, at - file.start, at // 20, not any(data)

    def leading_into(self, start: int, end: int) -> int:
        """Return how many entries point to log offsets of ``start..end``."""
        return sum(start <= entry.log_offset < end for entry in self.entries(0))

    def lengths(self) -> dict[str, int]:
        """Return the length of each of its files, bytes, by name."""
        return {file.path.name: file.size for file in self._series.files}

    def unreadable(self) -> list[tuple[str, str]]:
        """Return (file name, why) of the files that could not be read."""
        return unreadable(self._series)

    def place(self, number: int) -> tuple[str, int]:
        """Return the file name and the byte in it of the entry at queue offset ``number``."""
        file = self._series.at(20 * number)
        return (file.path.name, 20 * number - file.start) if file else ("", 0)

    def stored_entries(self) -> Iterator[tuple[int, int]]:
        """Yield (log offset, size) of everything the files hold, fill-up entries left out."""
        for file in self._series.files:
            held = bytes(self._series.view(file)[: self._stored_end - file.start])
            for log_offset, size, _ in _ENTRY.iter_unpack(held[: len(held) // 20 * 20]):
                if 0 < size < 0x7FFFFFFF and log_offset >= 0:
                    yield log_offset, size

    def get(self, offset: int, max_records: int, gone: Gone) -> Pull:
        """Read up to ``max_records`` records from ``offset`` on, as RocketMQ's store does.

        A record that no longer exists makes it skip all entries of that log file.
        """
        refused = outside(offset, self.min, self.max)
        if refused is not None:
            return refused
        found: list[Entry] = []
        total, looked, skip = 0, offset, 0
        for number in range(offset, min(self._file_end(20 * offset) // 20, self.max)):
            entry = self._raw(20 * number)
            if entry is None or (number - offset) * 20 >= max(16000, max_records * 20):
                break
            full = len(found) >= min(max_records, IN_MEMORY_COUNT)
            if found and (full or total + entry[1] > IN_MEMORY_BYTES):
                break
            looked = number + 1
            skip = 0 if entry[0] >= skip else skip
            if not skip and not (skip := gone(entry[0], entry[1])):
                found.append(self.resolved(number, entry))
                total += entry[1]
        status = Status.FOUND if found else Status.MESSAGE_WAS_REMOVING
        return Pull(status, looked, tuple(found))

    def _file_end(self, at: int) -> int:
        file = self._series.at(at)
        if file is not None:
            return file.end
        size = self._series.files[-1].size if self._series.files else QUEUE_FILE_SIZE_DEFAULT
        return at - at % size + size

    def offset_by_time(self, ms: int, time_of: TimeOf, log_start: int, *, upper: bool) -> int:
        """Return the first queue offset stored at or after ``ms``.

        ``upper``: the last one stored at or before it. Equal times: the outermost offset. Clamped
        to min..max. An entry whose record is gone in the middle of the search ends it with `min`,
        as in RocketMQ.
        """
        span = self._time_file(ms, time_of, upper=upper)
        if span is None:
            return self.min
        low, high = span[0] // 20, span[1] // 20 - 1
        found = self._time_search(ms, (max(low, self.min), high), time_of, log_start, upper=upper)
        return min(max(low if found is None else found, self.min), self.max)

    def _stamp(self, number: int, time_of: TimeOf) -> int:
        entry = self._raw(20 * number)
        return -1 if entry is None else time_of(entry[0], entry[1])

    def _time_search(
        self, ms: int, span: tuple[int, int], time_of: TimeOf, log_start: int, *, upper: bool
    ) -> int | None:
        """Search the entries ``span`` of one file; None stands for the file's first entry."""
        low, high = span
        if self._stamp(high, time_of) < ms:
            return high if upper else high + 1
        if self._stamp(low, time_of) > ms:
            return 0 if upper else None
        left, right, first, last = low, high, low, high
        while low <= high:
            mid = (low + high) // 2
            entry = self._raw(20 * mid)
            if entry is not None and entry[0] < log_start:
                low, left = mid + 1, mid
                continue
            stamp = self._stamp(mid, time_of)
            if stamp < 0:
                return 0
            if stamp == ms:
                step = 1 if upper else -1
                while first <= mid + step <= last and self._stamp(mid + step, time_of) == ms:
                    mid += step
                return mid
            if stamp > ms:
                high, right = mid - 1, mid
            else:
                low, left = mid + 1, mid
        return left if upper else right

    def _time_file(self, ms: int, time_of: TimeOf, *, upper: bool) -> tuple[int, int] | None:
        """Return the bytes of the queue file in which RocketMQ would search."""
        if self._tail or not self._series.files:
            return (self._min, self._end) if self._end > self._min else None
        spans = [(f.start, min(f.end, self._end)) for f in self._series.files]
        spans = [(start, end) for start, end in spans if start < end]
        if not spans:
            return None
        if upper:
            early = [
                span for span in spans if self._stamp(max(span[0], self._min) // 20, time_of) <= ms
            ]
            return early[-1] if early else None
        late = (span for span in spans if self._stamp(span[1] // 20 - 1, time_of) >= ms)
        return next(late, spans[-1])


_NEGATIVE = bytes(byte < 0x80 for byte in range(256))
"""Turns a leading byte into 0 when the number it leads is negative."""
_PIECE = 20 * 4096
"""Bytes of a queue file that are looked at together; whole entries."""


def _valid_entries(view: memoryview) -> tuple[int, int]:
    """Return how many valid entries a queue file begins with, and where the last record ends.

    An entry is invalid when its offset is negative or its size is not positive. Files hold hundreds
    of thousands of entries, so the bytes of all entries at one place are looked at together, a
    piece
    of the file at a time: a file whose entries end early is not read to its end.
    """
    whole, count, last = len(view) // 20 * 20, 0, -1
    for at in range(0, whole, _PIECE):
        piece = bytes(view[at : min(at + _PIECE, whole)])
        found = _valid_in(piece)
        if found:
            log_offset, size, _ = _ENTRY.unpack_from(piece, 20 * (found - 1))
            count, last = count + found, log_offset + size
        if 20 * found < len(piece):
            break
    return count, last


def _valid_in(data: bytes) -> int:
    """Return how many valid entries the bytes of some entries begin with."""
    sizes = 0
    for place in (8, 9, 10, 11):
        sizes |= int.from_bytes(data[place::20], "big")
    total = len(data) // 20
    columns = (
        sizes.to_bytes(total, "big"),
        data[0::20].translate(_NEGATIVE),
        data[8::20].translate(_NEGATIVE),
    )
    ends = [at for at in (column.find(0) for column in columns) if at >= 0]
    return min([total, *ends])


AnyQueue = Queue | BatchQueue


def is_folder_name(topic: str) -> bool:
    """Whether the queues of a topic can have a folder: a damaged record may name any topic."""
    return (
        "/" not in topic
        and "\0" not in topic
        and topic not in ("", ".", "..")
        and (len(topic.encode("utf-8", "replace")) <= _NAME_MAX)
    )


def light_places(
    record: Record, batched: Collection[str] = frozenset()
) -> Iterator[tuple[str, int]]:
    """Yield (light queue, queue offset in it) of a record, each queue once.

    None where RocketMQ gives up or enters no light queue: of a record that is prepared or rolled
    back, and of one of a topic with batch queues (``batched``).
    """
    if not record.queued or record.topic in batched or not _feeds_light(record.topic):
        return
    names, places = (
        record.properties.get(one.decode(), "").rstrip(",").split(",")
        for one in (LIGHT_PROPERTY, LIGHT_OFFSETS_PROPERTY)
    )
    found: dict[str, int] = {}
    for name, place in zip(names, places, strict=True) if len(places) == len(names) else ():
        if name.startswith(LIGHT_PREFIX) and "/" not in name and place.isdecimal():
            found.setdefault(name, int(place))  # of a queue named twice RocketMQ enters the first
    yield from found.items()


def _feeds_light(topic: str) -> bool:
    return topic != DELAY_TOPIC and not topic.startswith(_NOT_LIGHT)


def load_queues(root: Path) -> dict[tuple[str, int], AnyQueue]:
    """Return every queue of the directory ``root`` as its files have it."""
    found: dict[tuple[str, int], AnyQueue] = {}
    for topic, number, folder in _folders(root / "consumequeue"):
        extension = FileSeries(root / "consumequeue_ext" / topic / str(number))
        found[topic, number] = Queue(topic, number, FileSeries(folder), extension)
    for topic, number, folder in _folders(root / "batchconsumequeue"):
        found[topic, number] = BatchQueue(topic, number, FileSeries(folder))
    return found


def _folders(root: Path) -> Iterator[tuple[str, int, Path]]:
    for topic, *_ in listed(root):
        for queue, *_ in listed(topic):
            if queue.is_dir() and is_number(queue.name):
                yield topic.name, int(queue.name), queue


def dispatch_from(queues: Mapping[tuple[str, int], AnyQueue]) -> int:
    """Return the log offset up to which queues reach; -1 without any entry."""
    return max((queue.max_log_offset for queue in queues.values()), default=-1)
