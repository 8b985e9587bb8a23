"""Records of one queue that lie near each other in the log: ranges, one kernel call each.

The kernel compares each queue entry with its record, finds the slices to be served (what lies
between them belongs to other queues) and computes the answer's CRC in the same pass. Where the
queue continues further along the log, after records of other queues or in the next file, so does
the answer, up to its limit of bytes. Ranges are read in one of three ways:

* **hot**: within ``hot_bytes`` of the end, in place in the mapped file;
* **resident**: older, but in the page cache. The system is asked to copy it without waiting for the
  disk (``RWF_NOWAIT``); the copy is checked, and what is sent is lent from the file. So the event
  loop never faults in pages of old files;
* **cold**: some of it must come from the disk. A worker thread reads the ranges and then has the
  system read ahead, so that the next answers are resident.

Each batch whose bytes this process has neither written nor checked before is compared with its CRC
first, whichever way it was read. Damage in a later range ends the answer before it: the records
before it can still be read, and a read from there on reports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from storage.disk.mapping import LEND_MIN, Loan
from storage.log.commit_log import CommitLog
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.entry_check import wrong_entry
from storage.read.result import ReadResult, ReadStatus
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.kernels import match_entries

NEAR_MIN = 16
"""Entries in one stretch of the log from which a range is cheaper than single records."""
RANGES_MAX = 16
"""Ranges of one answer."""
SPAN_MAX = 4
"""Bytes of the log that an answer looks through for each byte that it may hold: the others are
records of other queues."""
AHEAD_BYTES = 16 * 1024 * 1024
"""What the system reads ahead of a reader that has reached the disk."""


class Stretches:
    """Serves ranges of one log."""

    def __init__(self, log: CommitLog) -> None:
        self._log = log

    def served(
        self, queue: ConsumeQueue, first: int, raw: bytes, max_bytes: int, *, cold: bool
    ) -> ReadResult | None:
        """Return the records of neighbouring entries; None: single records are cheaper.

        Args:
            queue: Theirs.
            first: Queue offset of the first.
            raw: The entries that the answer may hold.
            max_bytes: Bytes of records, unless the first alone is larger.
            cold: They are older than ``hot_bytes``.

        Raises:
            CorruptionError: Log or queue is damaged where the answer would begin.
        """
        found = self._whole(queue, first, raw, max_bytes, cold=cold)
        if found is not None:
            return found
        near = self._near(raw, 0, max_bytes)
        if near < NEAR_MIN and near < len(raw) // QUEUE_ENTRY.size:
            return None
        answer = _Answer(queue, first)
        at, looked = 0, 0
        while near and answer.ranges < RANGES_MAX and looked <= SPAN_MAX * max_bytes:
            part = raw[at * QUEUE_ENTRY.size : (at + near) * QUEUE_ENTRY.size]
            try:
                if not self._added(answer, part, cold=cold):
                    break
                begin, end = _range(part)
                at, looked = at + near, looked + end - begin
                near = self._further(raw, at, max_bytes - answer.size)
            except CorruptionError:
                if not answer.ranges:
                    raise
                break
        return answer.result() if answer.ranges else self._cold(queue, first, raw, max_bytes)

    def _whole(
        self, queue: ConsumeQueue, first: int, raw: bytes, max_bytes: int, *, cold: bool
    ) -> ReadResult | None:
        """Return the records if all of them lie in one range; None: it takes more than one.

        It is what `_added` does of the only range of an answer, in half the time.
        """
        log, count = self._log, len(raw) // QUEUE_ENTRY.size
        begin, size, _ = QUEUE_ENTRY.unpack_from(raw)
        last, last_size, _ = QUEUE_ENTRY.unpack_from(raw, len(raw) - QUEUE_ENTRY.size)
        end = last + last_size
        if not (log.start <= begin <= last and end <= log.end) or end - begin > max(
            max_bytes, size
        ):
            return None
        segments = log.segments
        segment = segments.at(begin)
        if end > segment.end:
            return None
        if cold:
            data = segments.peek(begin, end)
            if data is None:
                return self._cold(queue, first, raw, max_bytes)
        else:
            segments.prove(begin, end)
            data = segment.view(begin, end)
        topic = queue.topic.encode()
        found = match_entries(data, begin, raw, topic, queue.queue, first, 0)
        if isinstance(found, int):
            at, size, _ = QUEUE_ENTRY.unpack_from(raw, found * QUEUE_ENTRY.size)
            raise wrong_entry(queue, first + found, at, size)
        edges, crc = found
        view = segment.view(begin, end) if cold else data
        slices = [view[at:to] for at, to in zip(edges[::2], edges[1::2], strict=True)]
        lent: list[memoryview | Loan] = []
        if end - begin >= LEND_MIN and max(map(len, slices)) >= LEND_MIN:
            base, mapping = begin - segment.start, segment.mapping
            lent = [
                Loan(mapping, base + at, piece) if len(piece) >= LEND_MIN else piece
                for at, piece in zip(edges[::2], slices, strict=True)
            ]
        return ReadResult(
            ReadStatus.FOUND, slices, count, first + count, queue.start, queue.end,
            crc=crc, lent=lent,
        )  # fmt: skip

    def _near(self, raw: bytes, first: int, max_bytes: int) -> int:
        """Return how many entries from ``first`` on point into ``max_bytes`` of one log file."""
        begin, size, _ = QUEUE_ENTRY.unpack_from(raw, first * QUEUE_ENTRY.size)
        if not self._log.start <= begin < self._log.end:
            return 0
        stop = min(begin + max(max_bytes, size), self._log.segments.at(begin).end, self._log.end)
        count = len(raw) // QUEUE_ENTRY.size
        low, high, middle = first, count, count - 1  # near the end of a queue all of them fit
        while low < high:
            at, size, _ = QUEUE_ENTRY.unpack_from(raw, middle * QUEUE_ENTRY.size)
            if begin <= at and at + size <= stop:
                low = middle + 1
            else:
                high = middle
            middle = (low + high) // 2
        return low - first

    def _further(self, raw: bytes, first: int, left: int) -> int:
        """Return how many entries another range of ``left`` bytes holds; 0: it is not worth it."""
        rest = len(raw) // QUEUE_ENTRY.size - first
        if not rest or QUEUE_ENTRY.unpack_from(raw, first * QUEUE_ENTRY.size)[1] > left:
            return 0
        near = self._near(raw, first, left)
        return near if near >= NEAR_MIN or near == rest else 0

    def _added(self, answer: _Answer, part: bytes, *, cold: bool) -> bool:
        """Add a range to an answer; False: it has to be read from the disk."""
        begin, end = _range(part)
        segments = self._log.segments
        if cold:
            data = segments.peek(begin, end)
            if data is None:
                return False
        else:
            segments.prove(begin, end)
            data = segments.view(begin, end)
        edges = answer.checked(part, data)
        segment = segments.at(begin)
        view, base = segment.view(begin, end), begin - segment.start
        for at, to in edges:
            piece = view[at:to]
            long = to - at >= LEND_MIN
            answer.add(piece, Loan(segment.mapping, base + at, piece) if long else None)
        return True

    def _cold(self, queue: ConsumeQueue, first: int, raw: bytes, max_bytes: int) -> ReadResult:
        """Return what a worker thread has to run to read the records from the disk."""
        parts = list(self._planned(raw, max_bytes))
        segments = self._log.segments
        places = [_range(part) for part in parts]
        count = sum(len(part) for part in parts) // QUEUE_ENTRY.size
        found = ReadResult(
            ReadStatus.FOUND, [segments.view(*place) for place in places], count, first + count,
            queue.start, queue.end, cold=True, lowest=places[0][0],
        )  # fmt: skip

        def fetch() -> ReadResult:
            answer = _Answer(queue, first)
            for part, (begin, end) in zip(parts, places, strict=True):
                try:
                    data = segments.fetch(begin, end)
                    edges = answer.checked(part, data)
                except CorruptionError:
                    if not answer.ranges:
                        raise
                    break
                for at, to in edges:
                    answer.add(data[at:to], None)
            segments.read_ahead(places[-1][1], AHEAD_BYTES)
            return answer.result()

        return replace(found, fetch=fetch)

    def _planned(self, raw: bytes, max_bytes: int) -> Iterator[bytes]:
        """Yield the entries of each range to be fetched: what is copied counts, used or not."""
        at, near = 0, self._near(raw, 0, max_bytes)
        for _ in range(RANGES_MAX):
            part = raw[at * QUEUE_ENTRY.size : (at + near) * QUEUE_ENTRY.size]
            yield part
            begin, end = _range(part)
            at, max_bytes = at + near, max_bytes - (end - begin)
            try:
                near = self._further(raw, at, max_bytes)
            except CorruptionError:  # a lost file: the answer ends before it
                return
            if not near:
                return


class _Answer:
    """An answer in the making: its ranges so far."""

    def __init__(self, queue: ConsumeQueue, first: int) -> None:
        self._queue = queue
        self._first = first
        self._slices: list[memoryview] = []
        self._lent: list[memoryview | Loan] = []
        self._lends = False
        self._count = 0
        self._crc = 0
        self.ranges = 0
        self.size = 0

    def checked(self, part: bytes, data: memoryview) -> list[tuple[int, int]]:
        """Compare the next entries with the records in ``data``; return where they lie in it.

        Raises:
            CorruptionError: An entry does not point to the record it stands for; nothing changed.
        """
        queue, first = self._queue, self._first + self._count
        begin = QUEUE_ENTRY.unpack_from(part)[0]
        topic = queue.topic.encode()
        found = match_entries(data, begin, part, topic, queue.queue, first, self._crc)
        if isinstance(found, int):
            at, size, _ = QUEUE_ENTRY.unpack_from(part, found * QUEUE_ENTRY.size)
            raise wrong_entry(queue, first + found, at, size)
        edges, self._crc = found
        self._count += len(part) // QUEUE_ENTRY.size
        self.ranges += 1
        return list(zip(edges[::2], edges[1::2], strict=True))

    def add(self, piece: memoryview, loan: Loan | None) -> None:
        """Add bytes that were checked, and the file that lends them."""
        self._slices.append(piece)
        self._lent.append(piece if loan is None else loan)
        self._lends = self._lends or loan is not None
        self.size += len(piece)

    def result(self) -> ReadResult:
        """Return what was taken so far."""
        queue, following = self._queue, self._first + self._count
        return ReadResult(
            ReadStatus.FOUND, self._slices, self._count, following, queue.start, queue.end,
            crc=self._crc, lent=self._lent if self._lends else (),
        )  # fmt: skip


def _range(part: bytes) -> tuple[int, int]:
    """Return where the records of entries begin and end in the log."""
    begin = QUEUE_ENTRY.unpack_from(part)[0]
    last, size, _ = QUEUE_ENTRY.unpack_from(part, len(part) - QUEUE_ENTRY.size)
    return begin, last + size
