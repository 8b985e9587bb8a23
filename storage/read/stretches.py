"""Records of one queue that lie near each other in the log: one range, one kernel call.

The kernel compares each queue entry with its record, finds the slices to be served (what lies
between them belongs to other queues) and computes the answer's CRC in the same pass. The range is
read in one of three ways:

* **hot**: within ``hot_bytes`` of the end, in place in the mapped file;
* **resident**: older, but in the page cache. The system is asked to copy it without waiting for the
  disk (``RWF_NOWAIT``); the copy is checked, and what is sent is lent from the file. So the event
  loop never faults in pages of old files;
* **cold**: some of it must come from the disk. A worker thread reads the whole range and then has
  the system read ahead, so that the next answers are resident.

Each batch whose bytes this process has neither written nor checked before is compared with its CRC
first, whichever way it was read.
"""

from __future__ import annotations

from dataclasses import replace

from storage.disk.mapping import LEND_MIN, Loan
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.entry_check import wrong_entry
from storage.read.result import ReadResult, ReadStatus
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.kernels import match_entries

NEAR_MIN = 16
"""Entries in one stretch of the log from which a range is cheaper than single records."""
AHEAD_BYTES = 16 * 1024 * 1024
"""What the system reads ahead of a reader that has reached the disk."""


class Stretches:
    """Serves ranges of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def near(self, raw: bytes, count: int, max_bytes: int) -> int:
        """Return how many of the first entries point into ``max_bytes`` of one log file."""
        begin, size, _ = QUEUE_ENTRY.unpack_from(raw)
        if not self._log.start <= begin < self._log.end:
            return 0
        stop = min(begin + max(max_bytes, size), self._log.segments.at(begin).end, self._log.end)
        low, high, middle = 0, count, count - 1  # near the end of a queue all of them fit
        while low < high:
            at, size, _ = QUEUE_ENTRY.unpack_from(raw, middle * QUEUE_ENTRY.size)
            if begin <= at and at + size <= stop:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low

    def hot(self, queue: ConsumeQueue, first: int, raw: bytes) -> ReadResult:
        """Return the records of neighbouring entries, which are in memory.

        Raises:
            CorruptionError: Log or queue is damaged there.
        """
        begin, end = _range(raw)
        segments = self._log.segments
        segments.prove(begin, end)
        return self._matched(queue, first, raw, segments.view(begin, end))

    def resident(self, queue: ConsumeQueue, first: int, raw: bytes) -> ReadResult | None:
        """Return the records if all of them are in the page cache; None: the disk has to be read.

        Raises:
            CorruptionError: Log or queue is damaged there.
        """
        data = self._log.segments.peek(*_range(raw))
        return None if data is None else self._matched(queue, first, raw, data)

    def cold(self, queue: ConsumeQueue, first: int, raw: bytes) -> ReadResult:
        """Return what a worker thread has to run to read the records from the disk."""
        begin, end = _range(raw)
        segments = self._log.segments
        count = len(raw) // QUEUE_ENTRY.size
        found = ReadResult(
            ReadStatus.FOUND, [segments.view(begin, end)], count, first + count,
            queue.start, queue.end, cold=True, lowest=begin,
        )  # fmt: skip

        def fetch() -> ReadResult:
            data = segments.fetch(begin, end)
            edges, crc = _edges(queue, first, raw, data)
            segments.read_ahead(end, AHEAD_BYTES)
            slices = [data[at:to] for at, to in edges]
            return replace(found, slices=slices, fetch=None, crc=crc)

        return replace(found, fetch=fetch)

    def _matched(self, queue: ConsumeQueue, first: int, raw: bytes, data: memoryview) -> ReadResult:
        """Return the records in ``data``, served from the mapped file it was read from."""
        places, crc = _edges(queue, first, raw, data)
        begin, end = _range(raw)
        segment = self._log.segments.at(begin)
        view = segment.view(begin, end)
        slices = [view[at:to] for at, to in places]
        lent: list[memoryview | Loan] = []
        if any(to - at >= LEND_MIN for at, to in places):
            base = begin - segment.start
            for (at, to), piece in zip(places, slices, strict=True):
                long = to - at >= LEND_MIN
                lent.append(Loan(segment.mapping, base + at, piece) if long else piece)
        count = len(raw) // QUEUE_ENTRY.size
        range_ = queue.start, queue.end
        return ReadResult(
            ReadStatus.FOUND, slices, count, first + count, *range_, crc=crc, lent=lent
        )


def _range(raw: bytes) -> tuple[int, int]:
    """Return where the records of entries begin and end in the log."""
    begin = QUEUE_ENTRY.unpack_from(raw)[0]
    last, size, _ = QUEUE_ENTRY.unpack_from(raw, len(raw) - QUEUE_ENTRY.size)
    return begin, last + size


def _edges(
    queue: ConsumeQueue, first: int, raw: bytes, data: memoryview
) -> tuple[list[tuple[int, int]], int]:
    """Compare entries with the records in ``data``; return where they lie in it, and their CRC.

    Raises:
        CorruptionError: An entry does not point to the record it stands for.
    """
    begin = QUEUE_ENTRY.unpack_from(raw)[0]
    found = match_entries(data, begin, raw, queue.topic.encode(), queue.queue, first)
    if isinstance(found, int):
        at, size, _ = QUEUE_ENTRY.unpack_from(raw, found * QUEUE_ENTRY.size)
        raise wrong_entry(queue, first + found, at, size)
    edges, crc = found
    return list(zip(edges[::2], edges[1::2], strict=True)), crc
