"""Lookups of single facts: the record at a log offset, the queue offset at a time.

A lookup that may need the disk runs in a worker thread (`OffLoopLookup`). So does every lookup by
time, whatever its age: it reads a few dozen positions for each queue, and a topic may have
thousands of queues. The owner of the store judges the result afterwards (``Store.looked_at``),
because meanwhile files may have been deleted and the log may have been cut.

Units: log offsets in bytes, queue offsets in records, times in ms since 1970.

Not here: reads by queue offset (`storage.read.reader`), searches by key
(`storage.key_index.search`), the threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from storage.log.commit_log import CommitLog
from storage.queues.batch_queue import BatchQueue
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.entry_check import fetch_head
from twinlog.errors import Busy, CorruptionError
from twinlog.format.batch_index import BatchEntry
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.kernels import scan_queues

TIMES_BYTES = 64
"""Approximate memory of the result of a search by time, per queue."""
T = TypeVar("T")
Stop = Callable[[], bool]
"""Whether the client has stopped waiting."""


@dataclass(frozen=True, slots=True)
class OffLoopLookup(Generic[T]):
    """A lookup to be run in a worker thread.

    Attributes:
        work: Runs it; checks its argument now and then and gives up when it is true.
        size: Upper bound for the memory of the result, bytes.
        lowest: Lowest log offset it reads: once the log starts above it, an error means nothing.
        generation: How many times the log had been cut when it was made.
    """

    work: Callable[[Stop], T]
    size: int
    lowest: int
    generation: int = 0

    def run(self, stop: Stop) -> T | Exception:
        """Return the result or the error that ended it; in a worker thread."""
        try:
            return self.work(stop)
        except Exception as error:
            return error


@dataclass(frozen=True, slots=True)
class QueueSpan:
    """A queue as it was when a lookup began; ``queue`` is None for one without entries."""

    queue: ConsumeQueue | None
    start: int
    end: int


class Lookups:
    """The lookups of one store.

    Args:
        log: Holds the records.
        hot_bytes: Distance from the end of the log within which bytes are expected in memory.
        damaged: Called with an error that means damage, before it is raised to the caller.
    """

    def __init__(
        self, log: CommitLog, hot_bytes: int, damaged: Callable[[CorruptionError], None]
    ) -> None:
        self._log = log
        self._hot_bytes = hot_bytes
        self._damaged = damaged

    def record_at(self, log_offset: int, confirm: int) -> memoryview | None:
        """Return the record that begins at ``log_offset``; None when none does below confirm.

        Raises:
            CorruptionError: Damage, which has been reported.
        """
        if not self._log.start <= log_offset < confirm:
            return None
        segments = self._log.segments
        entry = self._batch(log_offset)
        try:
            segments.prove(log_offset, log_offset + 1)
        except CorruptionError as error:
            self._damaged(error)
            raise
        return _record(segments.view(entry.start, entry.end), entry.start, log_offset)

    def _batch(self, log_offset: int) -> BatchEntry:
        try:
            return self._log.segments.batch_at(log_offset)
        except CorruptionError as error:
            self._damaged(error)
            raise

    def record_cold(self, log_offset: int, confirm: int) -> OffLoopLookup[memoryview | None] | None:
        """Return the lookup of a record that is probably not in memory; None: use `record_at`.

        The size of the result is known from the batch's entry, which takes a few reads of an old
        file's index (`storage.log.sealed_index`).

        Raises:
            CorruptionError: Damage, which has been reported.
        """
        log = self._log
        if not log.start <= log_offset < confirm or log.end - log_offset <= self._hot_bytes:
            return None

        def work(_: Stop) -> memoryview | None:
            start, data = log.segments.fetch_batch(log_offset)
            found = _record(data, start, log_offset)
            if found is None or 2 * len(found) >= len(data):
                return found
            return memoryview(bytes(found))  # a slow client keeps no more than was counted

        return OffLoopLookup(work, self._batch(log_offset).length, log_offset)

    def is_cold(self, offset: int) -> bool:
        """Whether a record is probably not in memory."""
        return self._log.end - offset > self._hot_bytes

    def stretches(
        self, places: Sequence[tuple[int, int]]
    ) -> list[memoryview] | OffLoopLookup[list[memoryview]]:
        """Return the bytes of records, (log offset, size) each, whatever their topic; or the lookup
        of those that are probably not in memory.

        Raises:
            CorruptionError: Damage, which has been reported.
        """
        log, lowest = self._log, min(offset for offset, _ in places)
        segments = log.segments
        if self.is_cold(lowest):

            def work(_: Stop) -> list[memoryview]:
                found = {at: segments.fetch(at, at + size) for at, size in sorted(places)}
                return [found[at] for at, _ in places]

            return OffLoopLookup(work, sum(size for _, size in places), lowest)
        try:
            for at, size in places:
                segments.prove(at, at + size)
        except CorruptionError as error:
            self._damaged(error)
            raise
        return [segments.view(at, at + size) for at, size in places]

    def times(
        self, spans: Sequence[QueueSpan], ms: int, *, upper: bool
    ) -> OffLoopLookup[list[tuple[int, int, int]]]:
        """Return the lookup of start, end and queue offset of a time, for each queue.

        The offset is that of the first record stored at or after ``ms``, or the queue's end; with
        ``upper`` of the last one stored at or before it, or the queue's start.
        """

        def work(stop: Stop) -> list[tuple[int, int, int]]:
            found: list[tuple[int, int, int]] = []
            for span in spans:
                if stop():
                    raise Busy("the client no longer waits for the offsets")
                found.append((span.start, span.end, self._at_time(span, ms, upper)))
            return found

        return OffLoopLookup(work, TIMES_BYTES * len(spans), self._log.start)

    def stamps(self, places: Sequence[tuple[QueueSpan, int]]) -> OffLoopLookup[list[int]]:
        """Return the lookup of when the messages at queue offsets were stored, ms since 1970."""

        def work(stop: Stop) -> list[int]:
            found: list[int] = []
            for span, number in places:
                if stop():
                    raise Busy("the client no longer waits for the times")
                assert span.queue is not None, "it has this message"
                found.append(self._stored_at(span.queue, number))
            return found

        return OffLoopLookup(work, TIMES_BYTES * len(places), self._log.start)

    def _stored_at(self, queue: ConsumeQueue, number: int) -> int:
        if isinstance(queue, BatchQueue):
            return queue.units(number, 1)[0].store_timestamp
        return self._stored(queue, number)

    def _at_time(self, span: QueueSpan, ms: int, upper: bool) -> int:
        queue, low, high = span.queue, span.start, span.end
        if queue is None or low == high:
            return low
        if isinstance(queue, BatchQueue):  # it may have grown, or lost files, meanwhile
            return max(low, min(queue.at_time(ms, upper=upper), high - upper))
        while low < high:
            middle = (low + high) // 2
            stamp = self._stored(queue, middle)
            if stamp < ms or (upper and stamp == ms):
                low = middle + 1
            else:
                high = middle
        return max(low - 1, span.start) if upper else low

    def _stored(self, queue: ConsumeQueue, number: int) -> int:
        offset, size, _ = queue.entry(number)
        view = fetch_head(self._log, queue, number, offset, size)
        at = 68 if view[39] & 0x10 else 56
        return int.from_bytes(view[at : at + 8], "big", signed=True)

    def judged(self, look: OffLoopLookup[T], outcome: T | Exception) -> T:
        """Return what a thread found, or raise the error that ended it.

        Raises:
            Busy: Retention deleted the records meanwhile; ask again.
            CorruptionError: Damage, which has been reported.
            Exception: Any other error as it is.
        """
        if not isinstance(outcome, Exception):
            return outcome
        # Retention deleted files that the thread was reading: any error, even "damaged", is an
        # artefact.
        if look.lowest < self._log.start:
            raise Busy("retention deleted records during the lookup; ask again")
        if isinstance(outcome, CorruptionError):
            self._damaged(outcome)
        raise outcome


def _record(batch: memoryview, start: int, log_offset: int) -> memoryview | None:
    """Return the record of a batch at ``start`` that begins at ``log_offset``; None for none."""
    for _, _, _, entries in scan_queues(batch, 0, len(batch), start):
        for offset, size, _ in QUEUE_ENTRY.iter_unpack(entries):
            if offset == log_offset:
                return batch[offset - start : offset - start + size]
    return None
