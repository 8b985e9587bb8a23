"""The ordered set of a log's segments: finding bytes and entries by log offset.

Invariants: segments follow each other without a gap, all have the same size, every one but the last
is full and ends with a filler, and the log's end lies in the last one or exactly at its end.

Not here: writing (`storage.commit_log`), which files belong (`storage.recovery`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from storage.segment import Segment
from twinlog.errors import CorruptionError
from twinlog.kernels import crc32c
from twinlog.layout import KIND_FILLER, BatchEntry

_PROVEN_MAX = 200_000


def covered(entry: BatchEntry) -> int:
    """Return how many bytes of a batch its CRC covers: of a filler only the first 8."""
    return 8 if entry.kind == KIND_FILLER else entry.length


class Segments:
    """Segments from the oldest to the newest.

    Args:
        size: Bytes of each.
        found: Those that exist.
        proven_from: Batches from this log offset on were checked or written by this process.
    """

    def __init__(self, size: int, found: list[Segment], proven_from: int) -> None:
        self.size = size
        self.all = found
        self.proven_from = proven_from
        self._proven: set[int] = set()
        self.newest: Sequence[BatchEntry] = ()
        """Entries as they were written last, still as objects: each slave is sent them next."""
        self.packed = b""
        """Instead: the one entry that was written last, packed; empty when there were others."""

    @property
    def last(self) -> Segment | None:
        """The newest segment; None for an empty log."""
        return self.all[-1] if self.all else None

    def at(self, offset: int) -> Segment:
        """Return the segment that holds the byte at ``offset``, which must exist."""
        found = self.all  # a cold read looks from its thread while files leave
        number = (offset - found[0].start) // self.size if found else -1
        if not 0 <= number < len(found):
            raise IndexError(f"no segment holds log offset {offset}")
        return found[number]

    def between(self, start: int, end: int) -> list[Segment]:
        """Return the segments that hold a byte of ``start..end``."""
        return [one for one in self.all if one.start < end and one.end > start]

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes of a range within one segment."""
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
        """Return the first entries of ``start..end`` whose bytes on the wire fit; at least one."""
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

    def border_at_or_below(self, offset: int) -> int:
        """Return the last batch border that is not beyond ``offset`` (nor beyond the end)."""
        if not self.all:
            return 0
        if offset <= self.all[0].start:
            return self.all[0].start
        segment = self.at(min(offset, self.all[-1].end) - 1)
        if offset >= segment.index.end:
            return segment.index.end
        return segment.index.span(segment.index.find(offset))[0]

    def check(self, entry: BatchEntry) -> str | None:
        """Return what is wrong with the bytes of a batch; None when they match its CRC."""
        data = self.view(entry.start, entry.start + covered(entry))
        return None if crc32c(data) == entry.crc else "bytes do not match the batch's CRC"

    def prove(self, start: int, end: int, *, again: bool = False) -> None:
        """Make sure that the batches that hold ``start..end`` are as they were written.

        What this process wrote or has proven already is not looked at again, unless ``again``.

        Raises:
            CorruptionError: Facts ``file``, ``offset`` (log offset of the batch), ``length``.
        """
        if start >= self.proven_from and not again:
            return
        for segment in self.between(start, end):
            index = segment.index
            number = index.find(max(start, segment.start))
            while number < index.count and index.span(number)[0] < end:
                at = index.span(number)[0]
                if again or (at < self.proven_from and at not in self._proven):
                    self._prove_one(segment, index.entry(number))
                number += 1

    def _prove_one(self, segment: Segment, entry: BatchEntry) -> None:
        wrong = self.check(entry)
        if wrong is not None:
            raise CorruptionError(
                f"{segment.path}: batch at {entry.start} of {entry.length} bytes: {wrong}",
                file=segment.path,
                offset=entry.start,
                length=entry.length,
                what=wrong,
            )
        if len(self._proven) >= _PROVEN_MAX:
            self._proven.clear()
        self._proven.add(entry.start)
