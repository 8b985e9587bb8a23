"""The ordered set of a log's segments: finding bytes and entries by log offset.

Invariants: segments follow each other, all have the same size, every one but the last is full and
ends with a filler, and the log's end lies in the last one or exactly at its end. There is no gap
between them except in a quarantined store that has lost a file: reads of that file report damage,
all other bytes are found.

The newest files have their batch index in memory; of older ones, a bounded number of blocks
(`storage.log.sealed_index`), however long the log is.

Not here: writing (`storage.log.commit_log`), which files belong to the log
(`storage.recovery.log_end`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise

from storage.disk.disk import Disk
from storage.errors import DiskError
from storage.log.block_cache import Blocks
from storage.log.segment import Segment, log_path
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import KIND_EPOCH, KIND_FILLER, KIND_REBUILT, BatchEntry
from twinlog.kernels import crc32c

WHOLE_FILES = 2
"""Files whose batch index stays in memory: the newest one and the one before, which slaves and
readers that lag a little still need after a file change. The index of a 1 GiB file of records of 1
KiB that were sent one by one takes up to 44 MiB."""
_PROVEN_MAX = 200_000
DIFFERS = "bytes do not match the batch's CRC"


def covered(entry: BatchEntry) -> int:
    """Return how many bytes of a batch its CRC covers: of a filler only the first 8."""
    return 8 if entry.kind == KIND_FILLER else entry.length


def _stop(entry: BatchEntry) -> int:
    return entry.start + covered(entry)


def _start(segment: Segment) -> int:
    return segment.start


def _end(segment: Segment) -> int:
    return segment.end


def _lost(start: int) -> CorruptionError:
    path = log_path(start)
    return CorruptionError(
        f"{path}: log file is missing", file=path, offset=start, what="log file is missing"
    )


def _lost_entry(path: str, offset: int) -> CorruptionError:
    return CorruptionError(
        f"{path}: no entry for the batch at {offset}", file=path, offset=offset,
        what="batch index entry",
    )  # fmt: skip


def _wrong(segment: Segment, entry: BatchEntry, what: str) -> CorruptionError:
    return CorruptionError(
        f"{segment.path}: batch at {entry.start} of {entry.length} bytes: {what}",
        file=segment.path, offset=entry.start, length=entry.length, what=what,
    )  # fmt: skip


class Segments:
    """Segments from the oldest to the newest.

    Args:
        size: Bytes of each.
        found: Those that exist.
        proven_from: Batches from this log offset on were checked or written by this process.
        blocks: The cache of blocks of older batch indexes.
    """

    def __init__(self, size: int, found: list[Segment], proven_from: int, blocks: Blocks) -> None:
        self.size = size
        self.all = found
        self.blocks = blocks
        self.proven_from = proven_from
        self._proven: set[int] = set()
        self._room = bytearray(0)
        self.newest: Sequence[BatchEntry] = ()
        """The entries written last, as objects: they are sent to each slave next."""
        self.packed = b""
        """Instead: the single entry written last, packed; empty if there were several."""

    @property
    def last(self) -> Segment | None:
        """The newest segment; None for an empty log."""
        return self.all[-1] if self.all else None

    def doubt(self, start: int | None = None) -> None:
        """Have the next read compare batches again that were proven; with ``start`` also those that
        this process wrote before it: their pages may come from the disk by now."""
        if start is None:
            self._proven.clear()
        else:
            self.proven_from = max(self.proven_from, start)

    def seal(self, disk: Disk, flushed: int) -> None:
        """Drop the batch indexes of older, flushed files from memory."""
        files = self.all
        for at in range(len(files) - WHOLE_FILES - 1, -1, -1):
            if files[at].end <= flushed and not files[at].seal(disk, self.blocks):
                return  # older ones were dropped before

    def at(self, offset: int) -> Segment:
        """Return the segment that holds the byte at ``offset``, which must exist.

        Raises:
            CorruptionError: Its file is lost.
        """
        found = self.all  # read once: a cold read runs in a thread while files are removed
        if not found:
            raise IndexError(f"no segment holds log offset {offset}")
        one = found[-1]  # as most are asked for
        if one.start <= offset < one.end:
            return one
        number = (offset - found[0].start) // self.size
        if 0 <= number < len(found):
            one = found[number]
            if one.start <= offset < one.end:
                return one
        if not found[0].start <= offset < found[-1].end:
            raise IndexError(f"no segment holds log offset {offset}")
        number = bisect_right(found, offset, key=_start) - 1
        if offset >= found[number].end:
            raise _lost(offset - offset % self.size)
        return found[number]

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the segments that hold a byte of ``start..end``.

        Raises:
            CorruptionError: The file of ``start``, or one in the range, is lost.
        """
        files = self.all  # read once: a cold read runs in a thread while files are removed
        first = bisect_right(files, start, key=_end)
        found = files[first : bisect_left(files, end, lo=first, key=_start)]
        if found and found[-1].end - found[0].start != len(found) * self.size:
            gap = next(one for one, after in pairwise(found) if one.end != after.start)
            raise _lost(gap.end)
        if found and found[0].start > start > files[0].start:
            raise _lost(start - start % self.size)
        return found

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes of a range within one segment.

        Raises:
            IndexError: The log does not hold them, or in a worker thread no longer.
        """
        segment = self.at(start)
        if end > segment.end:
            raise IndexError(f"{start}..{end} crosses the border of a segment")
        return segment.view(start, end)

    def entries(self, start: int, end: int) -> Iterator[BatchEntry]:
        """Yield the entries of the batches that begin in ``start..end``.

        Raises:
            CorruptionError: An entry does not match its own CRC.
        """
        for segment in self.between(start, end):
            yield from segment.index.iterate(max(start, segment.start), end)

    def whole_batches(self, start: int, end: int, max_bytes: int) -> list[BatchEntry]:
        """Return the first entries of ``start..end`` that fit ``max_bytes``; at least one."""
        newest = self.newest
        if newest and newest[0].start == start and newest[-1].end == end <= start + max_bytes:
            return list(newest)
        found: list[BatchEntry] = []
        total = 0
        for entry in self.entries(start, end):
            total += covered(entry)
            if found and total > max_bytes:
                break
            found.append(entry)
        return found

    def chain(self, start: int, end: int) -> int:
        """Return crc32c over what nodes share of the entries of ``start..end``."""
        crc = 0
        for segment in self.between(start, end):
            last = min(end, segment.end)
            crc = segment.index.chain(max(start, segment.start), last, crc)
        return crc

    def chain_before(self, border: int) -> int | None:
        """Return `chain` over the whole file that ends at ``border``, as every node has it.

        None if there is nothing to compare: the log begins there, or the file's index was rebuilt
        from its records, with batches that no other node has.
        """
        number = bisect_left(self.all, border, key=_end)
        index = self.all[number].index if number < len(self.all) else None
        if index is None or not index.count or not self.all[number].end == border == index.end:
            return None
        # Epoch records at the head of a file keep their kind even in a rebuilt index.
        kinds = (index.entry(number).kind for number in range(index.count))
        rebuilt = next((kind for kind in kinds if kind != KIND_EPOCH), None) == KIND_REBUILT
        return None if rebuilt else index.chain_whole()

    def border_at_or_below(self, offset: int) -> int:
        """Return the last batch border that is not beyond ``offset`` (nor beyond the end).

        If its file is lost, it is the end of the file before.
        """
        if not self.all:
            return 0
        if offset <= self.all[0].start:
            return self.all[0].start
        segment = self.all[bisect_left(self.all, offset, key=_start) - 1]
        if offset >= segment.index.end:
            return segment.index.end
        return segment.index.span(segment.index.find(offset))[0]

    def check(self, entry: BatchEntry) -> str | None:
        """Return what is wrong with the bytes of a batch; None when they match its CRC."""
        data = self.view(entry.start, _stop(entry))
        return None if crc32c(data) == entry.crc else DIFFERS

    def prove(self, start: int, end: int, *, again: bool = False) -> None:
        """Check that the batches that hold ``start..end`` are as they were written.

        Batches that this process wrote or has proven are skipped, unless ``again``.

        Raises:
            CorruptionError: Facts ``file``, ``offset`` (log offset of the batch), ``length``. Also
            raised if a file or the entry of a batch is lost: nothing proves those bytes.
            IndexError: In a worker thread: a file was removed meanwhile.
        """
        if start >= self.proven_from and not again:
            return
        for segment in self.between(start, end):
            first, last = max(start, segment.start), min(end, segment.end)
            for entry in self._unproven(segment, first, last, again=again):
                self._prove_one(segment, entry, segment.view(entry.start, _stop(entry)))

    def fetch(self, start: int, end: int) -> memoryview:
        """Return a copy of a range within one segment, proven.

        It is read with ``pread``, so that a page that must come from the disk stops only this
        thread. For a worker thread; files may be removed and the log may be cut meanwhile.

        Raises:
            CorruptionError: As `prove`.
            DiskError: The bytes cannot be read.
            IndexError: The log no longer holds them.
        """
        segment = self.at(start)
        if end > segment.end:
            raise IndexError(f"{start}..{end} crosses the border of a segment")
        todo = list(self._unproven(segment, start, end))
        low = min(start, todo[0].start) if todo else start
        high = max(end, _stop(todo[-1])) if todo else end
        data = memoryview(
            segment.mapping.read(low - segment.start, high - segment.start, "read.cold")
        )
        for entry in todo:
            self._prove_one(segment, entry, data[entry.start - low : _stop(entry) - low])
        part = data[start - low : end - low]
        # a slow reader must not keep ten times the memory that was counted
        return part if 2 * len(part) >= len(data) else memoryview(bytes(part))

    def peek(self, start: int, end: int) -> memoryview | None:
        """Return a copy of a range within one segment, proven; None: the disk has to be read.

        Never waits. The copy is valid until the next call, which reuses the buffer.

        Raises:
            CorruptionError: As `prove`.
            IndexError: The range crosses the border of a segment.
        """
        segment = self.at(start)
        if end > segment.end:
            raise IndexError(f"{start}..{end} crosses the border of a segment")
        data = self._copied_now(segment, start, end)
        if data is None:
            return None  # before the index is read: that of an old file is on the disk, too
        todo = list(self._unproven(segment, start, end))
        if not todo:
            return data
        low, high = min(start, todo[0].start), max(end, _stop(todo[-1]))
        data = self._copied_now(segment, low, high)
        if data is None:
            return None
        for entry in todo:
            self._prove_one(segment, entry, data[entry.start - low : _stop(entry) - low])
        return data[start - low : end - low]

    def _copied_now(self, segment: Segment, start: int, end: int) -> memoryview | None:
        if len(self._room) < end - start:
            self._room = bytearray(end - start)
        data = memoryview(self._room)[: end - start]
        return data if segment.mapping.read_now(start - segment.start, data) else None

    def scan(self, start: int, max_bytes: int) -> tuple[int, list[CorruptionError]]:
        """Compare batches of one file with their entries; return where it ended, and what differs.

        For a worker thread. Pages that were not in memory before do not stay there.

        Args:
            start: A batch border.
            max_bytes: About how much; at least one batch.

        Raises:
            CorruptionError: The entry of a batch, or the file, is lost or damaged.
            IndexError: The file has left.
        """
        segment = self.at(start)
        stop = min(start + max_bytes, segment.end)
        todo = list(self._unproven(segment, start, stop, again=True))
        try:
            data = self._passing(segment, start, _stop(todo[-1]))
        except DiskError:  # one sector may be bad: which batch is it in?
            found = (self._unreadable(segment, one) for one in todo)
            return todo[-1].end, [one for one in found if one is not None]
        bad: list[CorruptionError] = []
        for entry in todo:
            try:
                self._prove_one(segment, entry, data[entry.start - start : _stop(entry) - start])
            except CorruptionError as error:
                self._proven.discard(entry.start)
                bad.append(error)
        return todo[-1].end, bad

    def _passing(self, segment: Segment, start: int, end: int) -> memoryview:
        """Return a copy of a range, without keeping in memory what was not there."""
        room = memoryview(bytearray(end - start))
        if segment.mapping.read_now(start - segment.start, room):
            return room
        data = segment.mapping.read(start - segment.start, end - segment.start, "scrub.read")
        segment.mapping.release(start - segment.start, end - segment.start)
        return memoryview(data)

    def _unreadable(self, segment: Segment, entry: BatchEntry) -> CorruptionError | None:
        try:
            self._prove_one(segment, entry, self._passing(segment, entry.start, _stop(entry)))
        except DiskError as error:
            self._proven.discard(entry.start)
            return _wrong(segment, entry, f"cannot be read: {error}")
        except CorruptionError as error:
            return error
        return None

    def read_ahead(self, start: int, length: int) -> None:
        """Ask the system to read a range ahead; advice, never waits."""
        for segment in self.between(start, min(start + length, self.all[-1].end)):
            first = max(start, segment.start) - segment.start
            segment.mapping.expect_reads(first, min(start + length, segment.end) - segment.start)

    def batch_at(self, offset: int) -> BatchEntry:
        """Return the entry of the batch that holds the byte at ``offset``.

        Raises:
            CorruptionError: Its file or its entry is lost or damaged.
            IndexError: No file of the log holds that byte.
        """
        index = self.at(offset).index
        number = index.find(offset)
        begin, after = index.span(number) if number < index.count else (offset, offset)
        if not begin <= offset < after:
            raise _lost_entry(index.path, offset)
        return index.entry(number)

    def fetch_batch(self, offset: int) -> tuple[int, memoryview]:
        """Return where the batch with the byte at ``offset`` begins and a copy, as `fetch` does.

        A filler is not a batch of records: no bytes.
        """
        entry = self.batch_at(offset)
        if entry.kind == KIND_FILLER:
            return entry.start, memoryview(b"")
        return entry.start, self.fetch(entry.start, entry.end)

    def _unproven(
        self, segment: Segment, start: int, end: int, *, again: bool = False
    ) -> Iterator[BatchEntry]:
        """Yield the entries of batches that hold bytes of ``start..end`` and are not proven yet."""
        index, at = segment.index, start
        number = index.find(at)
        while at < end and (again or at < self.proven_from):
            begin, after = index.span(number) if number < index.count else (at, at)
            if not begin <= at < after:
                raise _lost_entry(index.path, at)
            if again or (begin < self.proven_from and begin not in self._proven):
                yield index.entry(number)
            at, number = after, number + 1

    def _prove_one(self, segment: Segment, entry: BatchEntry, data: memoryview) -> None:
        if crc32c(data) != entry.crc:
            raise _wrong(segment, entry, DIFFERS)
        if len(self._proven) >= _PROVEN_MAX:
            self._proven.clear()
        self._proven.add(entry.start)
