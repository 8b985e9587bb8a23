"""Reading records by queue offset, below the confirm offset.

An answer is a list of slices of the log, not decoded. Queue entries are read in bulk; where they
point into stretches of the log, those are served as ranges (`storage.read.stretches`), otherwise
record by record (`storage.read.scattered`). Every entry is compared with its record, and bytes that
this process has not written itself are compared with their batch's CRC before the first reader gets
them. So damage is an error and never a wrong record.

Not here: records by log offset, offsets by time (`storage.read.lookups`); waiting for new records,
choosing the node (``node.clients.reads``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from storage.log.commit_log import CommitLog
from storage.queues.batch_queue import BatchQueue, Unit
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.entry_check import fetch_head, wrong_entry
from storage.queues.queues import ConsumeQueues
from storage.read.filters import SIFT_RECORDS, Entries, PropertyFilter, Wanted
from storage.read.lookups import QueueSpan
from storage.read.result import ReadResult, ReadStatus
from storage.read.scattered import Scattered
from storage.read.selection import picked
from storage.read.stretches import Stretches
from storage.settings import StoreSettings
from storage.state.layers import Layers
from twinlog.errors import Busy, CorruptionError, NotYetConfirmed, UnknownTopic
from twinlog.format.consume_queue import QUEUE_ENTRY

READ_ENTRIES = 4096
"""Entries that one read examines; with a tag filter it may return fewer records, even none."""
UNITS_AT_FIRST = 64
"""Units of a batch queue that one read examines at first."""
T = TypeVar("T")


class Reader:
    """Reads of one store.

    Args:
        log: Holds the records.
        settings: How far back reads are hot.
        layers: Which topics exist.
        queues: Point to the records.
        dispatched: Up to where they do.
        damaged: Called with an error that means damage, before it is raised to the reader.
    """

    def __init__(
        self,
        log: CommitLog,
        *,
        settings: StoreSettings,
        layers: Layers,
        queues: ConsumeQueues,
        dispatched: Callable[[], int],
        damaged: Callable[[CorruptionError], None],
    ) -> None:
        self._log = log
        self._settings = settings
        self._layers = layers
        self._queues = queues
        self._dispatched = dispatched
        self._damaged = damaged
        self._stretches = Stretches(log)
        self._scattered = Scattered(log)

    def _guarded(self, read: Callable[[], T]) -> T:
        """Report damage, then raise it."""
        try:
            return read()
        except CorruptionError as error:
            self._damaged(error)
            raise

    def range(self, topic: str, queue: int) -> tuple[int, int]:
        """Return (start, end) of a queue.

        Raises:
            UnknownTopic: Code ``unknown-topic`` or ``unknown-queue``.
            NotYetConfirmed: The topic's record is not confirmed.
        """
        queues = self._layers.confirmed.queues(topic)
        if queues is None:
            raise self._layers.missing(topic)
        if self._layers.confirmed.deleted and self._early(topic):
            raise NotYetConfirmed(f"topic {topic} is being made again", topic=topic)
        if not 0 <= queue < queues:
            text = f"topic {topic} has queues 0 to {queues - 1}, not {queue}"
            raise UnknownTopic(text, code="unknown-queue", topic=topic, queue=queue)
        found = self._kept(topic, queue)
        return (found.start, found.end) if found is not None else (0, 0)

    def _early(self, topic: str) -> bool:
        """Whether queues may still hold entries of a deleted topic of this name (R75)."""
        known = self._layers.confirmed.topics.get(topic)
        return known is not None and known.since > self._dispatched()

    def span(self, topic: str, queue: int) -> QueueSpan:
        """Return a queue as it is now; raises as `range`."""
        start, end = self.range(topic, queue)
        return QueueSpan(self._queues.get(topic, queue), start, end)

    def _kept(self, topic: str, queue: int) -> ConsumeQueue | None:
        """Return a queue, without what retention has deleted from it."""
        found = self._queues.get(topic, queue)
        if found is not None and found.leads_below(start := self._log.start):
            self._guarded(lambda: found.trim(start, partial(fetch_head, self._log)))
        return found

    def read(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        *,
        max_bytes: int,
        max_records: int,
        tag_hashes: frozenset[int] | None = None,
        where: PropertyFilter | None = None,
        unconfirmed: bool = False,
    ) -> ReadResult:
        """Return records from ``queue_offset`` on; at least one if there is one.

        Args:
            topic: Topic name.
            queue: Queue number.
            queue_offset: Where to begin.
            max_bytes: Bytes of records, unless the first alone is larger.
            max_records: Records.
            tag_hashes: Only records whose tag has one of these Java hashes.
            where: Only records whose properties match. An answer looks at a bounded number of
                records; the result may be empty and still make progress.
            unconfirmed: The log has records that are not dispatched yet, so an offset past the
                end may exist soon.

        Raises:
            CorruptionError: Log or queue is damaged there; nothing of it is served.
        """
        queues = self._layers.confirmed.queues(topic)
        if queues is None:
            waits = self._layers.existing(topic) is not None
            return ReadResult(ReadStatus.ABOVE_CONFIRM if waits else ReadStatus.UNKNOWN_TOPIC)
        if self._layers.confirmed.deleted and self._early(topic):
            return ReadResult(ReadStatus.ABOVE_CONFIRM)
        if not 0 <= queue < queues:
            return ReadResult(ReadStatus.UNKNOWN_QUEUE)
        found = self._kept(topic, queue)
        start, end = (found.start, found.end) if found is not None else (0, 0)
        # R52: the answer names the start, but the reader decides whether to move there.
        if queue_offset < start:
            return ReadResult(ReadStatus.BEFORE_START, next=start, start=start, end=end)
        if queue_offset > end:
            # R53: with records not dispatched yet, it is unknown whether the queue ends here.
            status = ReadStatus.ABOVE_CONFIRM if unconfirmed else ReadStatus.PAST_END
            return ReadResult(status, next=queue_offset, start=start, end=end)
        if queue_offset == end or found is None:
            return ReadResult(ReadStatus.NONE, next=queue_offset, start=start, end=end)
        wanted = Wanted(max_bytes, max(max_records, 1), tag_hashes, where)
        return self._found(found, queue_offset, wanted)

    def _found(self, queue: ConsumeQueue, first: int, wanted: Wanted) -> ReadResult:
        """Return the records from queue offset ``first`` on, which exists."""
        if isinstance(queue, BatchQueue):
            return self._found_units(queue, first, wanted)
        most = min(wanted.records, READ_ENTRIES)
        if wanted.filtered:
            most = READ_ENTRIES if wanted.tag_hashes is not None else SIFT_RECORDS
        try:  # as `_guarded`, in the most frequent read
            raw = queue.read(first, most)
            cold = self._log.end - QUEUE_ENTRY.unpack_from(raw)[0] > self._settings.hot_bytes
            if not wanted.filtered and not queue.light:
                found = self._stretches.served(queue, first, raw, wanted.bytes, cold=cold)
                if found is not None:
                    return found
        except CorruptionError as damage:
            self._damaged(damage)
            raise
        columns: tuple[tuple[int, ...], ...] = tuple(zip(*QUEUE_ENTRY.iter_unpack(raw)))
        offsets, sizes, codes = columns
        if 0 in sizes:  # no filter may skip damage
            at = sizes.index(0)
            error = wrong_entry(queue, first + at, offsets[at], 0)
            self._damaged(error)
            raise error
        numbers = range(first, first + len(offsets) + 1)
        entries, following = picked(Entries(numbers[:-1], offsets, sizes), codes, numbers, wanted)
        if wanted.where is not None and not cold:
            return self._guarded(lambda: self._scattered.sifted(queue, entries, following, wanted))
        return self._guarded(
            lambda: self._scattered.served(queue, entries, following, wanted, cold=cold)
        )

    def _found_units(self, queue: BatchQueue, first: int, wanted: Wanted) -> ReadResult:
        """Return the records of a batch queue from the one on that holds queue offset ``first``.

        A filter over properties must be applied by the client, to the messages inside.
        """
        units = self._guarded(lambda: _units_for(queue, first, wanted))
        unsifted, wanted = wanted.where is not None, replace(wanted, where=None)
        cold = self._log.end - units[0].log_offset > self._settings.hot_bytes
        _, sizes, codes, _, bases, *_ = zip(*units)
        if wanted.tag_hashes is not None:  # 0: its messages may have any
            wanted = replace(wanted, tag_hashes=wanted.tag_hashes | {0})
        held = sum(1 for unit in units if unit.base < first + wanted.records)
        wanted = replace(wanted, records=held)
        entries = Entries(bases, tuple(unit.log_offset for unit in units), sizes)
        numbers = (*bases, units[-1].after)
        entries, following = picked(entries, codes, numbers, wanted)
        return self._scattered.served(
            queue, entries, following, wanted, cold=cold, unsifted=unsifted
        )

    def fetched(self, result: ReadResult, outcome: ReadResult | Exception) -> ReadResult:
        """Judge the outcome of ``fetch``; return what may be served.

        Meanwhile retention may have deleted the records: then an error means nothing.

        Raises:
            Busy: Retention deleted the records meanwhile; read again.
            CorruptionError: Damage, which has been reported.
            Exception: Any other error as it is: a bug, not corruption.
        """
        if isinstance(outcome, ReadResult):
            return outcome
        # Retention deleted files that the thread was reading: any error, even "damaged", is an
        # artefact.
        if result.lowest < self._log.start:
            raise Busy("retention deleted these records while they were read; read again")
        if isinstance(outcome, CorruptionError):
            self._damaged(outcome)
        raise outcome


def _units_for(queue: BatchQueue, first: int, wanted: Wanted) -> list[Unit]:
    """Return units from the one on that holds queue offset ``first``: as many as an answer needs.

    Records of batch queues are large, so a few fill an answer; only a tag may leave many out.
    """
    most = READ_ENTRIES if wanted.tag_hashes is not None else UNITS_AT_FIRST
    while True:
        units = queue.units(first, most)
        full = sum([unit.size for unit in units]) >= wanted.bytes
        if full or len(units) < most or most >= READ_ENTRIES:
            return units
        most *= 8
