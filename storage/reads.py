"""Reading records by queue offset, below the confirm offset.

An answer is a list of slices of the mapped log, not copied and not decoded. Queue entries are read
in bulk. Where they lead into one stretch of the log, one kernel call finds the slices, compares
every entry with its record and takes the answer's CRC in the same pass; scattered entries are
joined by C loops and compared at both ends of each slice. Bytes that this process has not written
itself are compared with their batch's CRC before the first reader gets them. So damage is an error
and never a wrong record.

``next`` is the queue offset to go on with; records that a filter left out are behind it too.

Not here: records by log offset, offsets by time (`storage.looks`); waiting for new records,
choosing the node (``node.reads``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from itertools import accumulate, compress, repeat, takewhile
from operator import add, ne
from typing import TypeVar

from storage.batch_queue import BatchQueue, Unit
from storage.commit_log import CommitLog
from storage.consume_queue import ConsumeQueue
from storage.entry_check import check_entry, check_record, fetch_head, wrong_entry
from storage.filtering import SIFT_BYTES, SIFT_RECORDS, Entries, Sieve, Wanted
from storage.looks import QueueSpan
from storage.mapping import LEND_MIN, Loan
from storage.queues import ConsumeQueues
from storage.settings import StoreSettings
from storage.state import Layers
from twinlog.errors import Busy, CorruptionError, UnknownTopic
from twinlog.kernels import match_entries
from twinlog.layout import QUEUE_ENTRY

READ_ENTRIES = 4096
"""Entries that one read looks at; with a tag filter it may answer with fewer, even none."""
UNITS_AT_FIRST = 64
"""Units of a batch queue that one read looks at before it looks at more."""
NEAR_MIN = 16
"""Entries in one stretch of the log from which scanning it is cheaper than walking entries."""
T = TypeVar("T")


class ReadStatus(Enum):
    """What a read found."""

    FOUND = "found"
    NONE = "none"
    BEFORE_START = "before-start"
    PAST_END = "past-end"
    ABOVE_CONFIRM = "above-confirm"
    UNKNOWN_TOPIC = "unknown-topic"
    UNKNOWN_QUEUE = "unknown-queue"


@dataclass(frozen=True, slots=True)
class _Place:
    """Neighbouring records in the log; ``edges`` are number, offset, size of first and last."""

    start: int
    end: int
    count: int
    edges: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class ReadResult:
    """The answer to a read.

    Attributes:
        status: See `ReadStatus`; NONE says that the offset is the queue's end.
        slices: Records as they are stored, one after the other. Of a cold answer what there is to
            fetch, to be measured and not to be touched.
        count: Records in ``slices``.
        next: Queue offset to go on with.
        start: First queue offset of the queue.
        end: Queue offset after its last confirmed record.
        cold: The bytes lie so far behind the end that they are hardly in memory: to touch them
            stalls the thread that does it.
        fetch: Of a cold answer: reads the records from their files, compares them with CRCs and
            queue entries, leaves out what a filter over properties does not want, and returns the
            answer with copies. To be called, in a worker thread, before anything of it is served;
            then `Reader.fetched` judges it, or what it raised.
        lowest: Of a cold answer: log offset of its first byte.
        generation: Of a cold answer: how often the log had been cut.
        unsifted: A filter over properties was asked for and is the client's to lay over them.
        crc: CRC-32C of the slices, one after the other, where it fell out of comparing them.
        lent: The same bytes for a socket, the long ones lent from their file; empty where none is.
    """

    status: ReadStatus
    slices: list[memoryview] = field(default_factory=list[memoryview])
    count: int = 0
    next: int = 0
    start: int = 0
    end: int = 0
    cold: bool = False
    fetch: Callable[[], ReadResult] | None = None
    lowest: int = 0
    generation: int = 0
    unsifted: bool = False
    crc: int | None = None
    lent: Sequence[memoryview | Loan] = ()


class Reader:
    """Reads of one store.

    Args:
        log: Where the records lie.
        settings: How far back reads are hot.
        layers: Which topics exist.
        queues: Where the records are found.
        damaged: Is told of damage before the error goes on to the reader.
    """

    def __init__(
        self,
        log: CommitLog,
        settings: StoreSettings,
        layers: Layers,
        queues: ConsumeQueues,
        damaged: Callable[[CorruptionError], None],
    ) -> None:
        self._log = log
        self._settings = settings
        self._layers = layers
        self._queues = queues
        self._damaged = damaged

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
        if not 0 <= queue < queues:
            text = f"topic {topic} has queues 0 to {queues - 1}, not {queue}"
            raise UnknownTopic(text, code="unknown-queue", topic=topic, queue=queue)
        found = self._kept(topic, queue)
        return (found.start, found.end) if found is not None else (0, 0)

    def span(self, topic: str, queue: int) -> QueueSpan:
        """Return a queue as it is now; raises as `range`."""
        start, end = self.range(topic, queue)
        return QueueSpan(self._queues.get(topic, queue), start, end)

    def _kept(self, topic: str, queue: int) -> ConsumeQueue | None:
        """Return a queue, without what retention has taken from it."""
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
        where: Sieve | None = None,
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
                records; it may hold none of them and still get on.
            unconfirmed: The log has records that are not dispatched yet, so an offset past the
                end may come to be.

        Raises:
            CorruptionError: Log or queue is damaged there; nothing of it is served.
        """
        queues = self._layers.confirmed.queues(topic)
        if queues is None:
            waits = self._layers.existing(topic) is not None
            return ReadResult(ReadStatus.ABOVE_CONFIRM if waits else ReadStatus.UNKNOWN_TOPIC)
        if not 0 <= queue < queues:
            return ReadResult(ReadStatus.UNKNOWN_QUEUE)
        found = self._kept(topic, queue)
        start, end = (found.start, found.end) if found is not None else (0, 0)
        if queue_offset < start:
            return ReadResult(ReadStatus.BEFORE_START, next=start, start=start, end=end)
        if queue_offset > end:
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
        raw = self._guarded(lambda: queue.read(first, most))
        cold = self._log.end - QUEUE_ENTRY.unpack_from(raw)[0] > self._settings.hot_bytes
        if not wanted.filtered and not cold and not queue.light:
            total = min(len(raw) // QUEUE_ENTRY.size, wanted.records)
            near = self._near(raw, total, wanted.bytes)
            if near >= NEAR_MIN or near == total:
                part = raw[: near * QUEUE_ENTRY.size]
                return self._guarded(lambda: self._stretch(queue, first, part))
        columns: tuple[tuple[int, ...], ...] = tuple(zip(*QUEUE_ENTRY.iter_unpack(raw)))
        offsets, sizes, codes = columns
        if 0 in sizes:  # no filter may pass over it
            at = sizes.index(0)
            error = wrong_entry(queue, first + at, offsets[at], 0)
            self._damaged(error)
            raise error
        numbers = range(first, first + len(offsets) + 1)
        entries, following = _picked(Entries(numbers[:-1], offsets, sizes), codes, numbers, wanted)
        if wanted.where is not None and not cold:
            return self._guarded(lambda: self._sifted(queue, entries, following, wanted))
        return self._served(queue, entries, following, wanted, cold=cold)

    def _found_units(self, queue: BatchQueue, first: int, wanted: Wanted) -> ReadResult:
        """Return the records of a batch queue from the one on that holds queue offset ``first``.

        A filter over properties is the client's to lay over the messages inside.
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
        numbers = (*bases, units[-1].behind)
        entries, following = _picked(entries, codes, numbers, wanted)
        return self._served(queue, entries, following, wanted, cold=cold, unsifted=unsifted)

    def _served(
        self,
        queue: ConsumeQueue,
        entries: Entries,
        following: int,
        wanted: Wanted,
        *,
        cold: bool,
        unsifted: bool = False,
    ) -> ReadResult:
        """Return chosen records; those that are cold with what fetches them later."""
        range_ = queue.start, queue.end
        places = _joined(entries)
        slices = self._guarded(lambda: [self._view(queue, one.edges[0][0], one) for one in places])

        found = ReadResult(
            ReadStatus.FOUND, slices, len(entries), following, *range_, cold, unsifted=unsifted
        )
        if not cold:
            self._guarded(lambda: self._prove(queue, places))
            return found

        def fetch() -> ReadResult:
            copies = [self._copy(queue, place) for place in places]
            whole = replace(found, slices=copies, fetch=None)
            if wanted.where is None:
                return whole
            keep = _matching_copies(queue, entries, wanted.where, (places, copies))
            kept, following = _fitting(entries.only(keep), wanted, whole.next)
            slices = list(_parts(places, copies, _joined(kept)))
            return replace(whole, slices=slices, count=len(kept), next=following)

        return replace(found, fetch=fetch, lowest=min(entries.offsets, default=self._log.end))

    def _copy(self, queue: ConsumeQueue, place: _Place) -> memoryview:
        """Return a proven copy of neighbouring records; in a worker thread."""
        data = self._log.segments.fetch(place.start, place.end)
        for number, offset, size in place.edges:
            at = offset - place.start
            check_record(queue, number, offset, size, data[at : at + size])
        return data

    def fetched(self, result: ReadResult, outcome: ReadResult | Exception) -> ReadResult:
        """Judge what came of ``fetch`` in a thread; return what may be served.

        Meanwhile retention may have taken the records: then an error says nothing about the disk.

        Raises:
            Busy: Retention came first; to be asked again.
            CorruptionError: Damage, which has been reported.
            Exception: Any other error as it is: it is nobody's damage but a mistake.
        """
        if isinstance(outcome, ReadResult):
            return outcome
        if result.lowest < self._log.start:
            raise Busy("retention took these records while they were read; read again")
        if isinstance(outcome, CorruptionError):
            self._damaged(outcome)
        raise outcome

    def _sifted(
        self, queue: ConsumeQueue, entries: Entries, following: int, wanted: Wanted
    ) -> ReadResult:
        """Return the records among ``entries`` whose properties match, as far as they fit."""
        assert wanted.where is not None
        self._prove(queue, _joined(entries))
        kept = entries.only(self._matching(queue, entries, wanted.where))
        kept, following = _fitting(kept, wanted, following)
        slices = [self._view(queue, place.edges[0][0], place) for place in _joined(kept)]
        range_ = queue.start, queue.end
        return ReadResult(ReadStatus.FOUND, slices, len(kept), following, *range_)

    def _matching(self, queue: ConsumeQueue, entries: Entries, where: Sieve) -> list[bool]:
        """Return for each entry whether its record matches: a kernel call for each log file."""
        found: list[bool] = []
        offsets, sizes = entries.offsets, entries.sizes
        while len(found) < len(entries):
            begin = len(found)
            segment = self._log.segments.at(offsets[begin])
            stop = begin + sum(1 for _ in takewhile(segment.end.__gt__, offsets[begin:]))
            part = slice(begin, stop)
            first, end = min(offsets[part]), max(map(add, offsets[part], sizes[part]))
            if first < segment.start:
                raise wrong_entry(queue, entries.numbers[begin], first, end - first)
            packed = b"".join(map(QUEUE_ENTRY.pack, offsets[part], sizes[part], repeat(0)))
            kept = where.keep(segment.view(first, end), first, packed)
            if isinstance(kept, int):
                at = begin + kept
                raise wrong_entry(queue, entries.numbers[at], offsets[at], sizes[at])
            found += kept
        return found

    def _view(self, queue: ConsumeQueue, number: int, place: _Place) -> memoryview:
        log = self._log
        inside = log.start <= place.start < place.end <= log.end
        if inside and place.end <= log.segments.at(place.start).end:
            return log.segments.view(place.start, place.end)
        raise wrong_entry(queue, number, place.start, place.end - place.start)

    def _prove(self, queue: ConsumeQueue, places: Sequence[_Place]) -> None:
        for place in places:
            for number, offset, size in place.edges:
                self._check(queue, number, offset, size)
            self._log.segments.prove(place.start, place.end)

    def _near(self, raw: bytes, count: int, max_bytes: int) -> int:
        """Return how many of the first entries lead into one stretch of ``max_bytes`` of a file."""
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

    def _stretch(self, queue: ConsumeQueue, first: int, raw: bytes) -> ReadResult:
        """Return the records of entries that lie near each other.

        One kernel call compares each entry with its record; what lies between them is passed over.
        """
        segments = self._log.segments
        begin = QUEUE_ENTRY.unpack_from(raw)[0]
        last, size, _ = QUEUE_ENTRY.unpack_from(raw, len(raw) - QUEUE_ENTRY.size)
        end = last + size
        segments.prove(begin, end)
        segment, view = segments.at(begin), segments.view(begin, end)
        found = match_entries(view, begin, raw, queue.topic.encode(), queue.queue, first)
        if isinstance(found, int):
            at, size, _ = QUEUE_ENTRY.unpack_from(raw, found * QUEUE_ENTRY.size)
            raise wrong_entry(queue, first + found, at, size)
        edges, crc = found
        places = list(zip(edges[::2], edges[1::2], strict=True))
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

    def _check(self, queue: ConsumeQueue, number: int, offset: int, size: int) -> None:
        """Compare a queue entry with the record it leads to."""
        check_entry(self._log, queue, number, offset, size)


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


def _picked(
    entries: Entries, codes: Sequence[int], numbers: Sequence[int], wanted: Wanted
) -> tuple[Entries, int]:
    """Return the entries to be served or looked at, and the queue offset to go on with.

    ``numbers`` are those of the entries and the one behind them.
    """
    following = numbers[-1]
    tagged = wanted.tagged(codes)
    if tagged is not None:
        entries = entries.only(tagged)
    if wanted.where is None:
        count = _fit(entries.sizes, wanted.bytes, wanted.records)
    else:
        count = _fit(entries.sizes, SIFT_BYTES, SIFT_RECORDS)
    if count < len(entries):
        following = entries.numbers[count]
        entries = entries.first(count)
    return entries, following


def _fitting(kept: Entries, wanted: Wanted, following: int) -> tuple[Entries, int]:
    """Return as many as an answer may hold, and the queue offset to go on with."""
    count = _fit(kept.sizes, wanted.bytes, wanted.records)
    if count < len(kept):
        return kept.first(count), kept.numbers[count]
    return kept, following


_Copies = tuple[Sequence[_Place], Sequence[memoryview]]


def _matching_copies(
    queue: ConsumeQueue, entries: Entries, where: Sieve, copied: _Copies
) -> list[bool]:
    """Return for each entry whether its record matches: a kernel call for each place."""
    found: list[bool] = []
    for place, data in zip(*copied, strict=True):
        part = slice(len(found), len(found) + place.count)
        offsets, sizes = entries.offsets[part], entries.sizes[part]
        packed = b"".join(map(QUEUE_ENTRY.pack, offsets, sizes, repeat(0)))
        kept = where.keep(data, place.start, packed)
        if isinstance(kept, int):
            at = part.start + kept
            raise wrong_entry(queue, entries.numbers[at], entries.offsets[at], entries.sizes[at])
        found += kept
    return found


def _parts(
    places: Sequence[_Place], copies: Sequence[memoryview], wanted: Sequence[_Place]
) -> Iterator[memoryview]:
    """Yield the bytes of places that lie, in the same order, within those that were copied."""
    at = 0
    for one in wanted:
        while not places[at].start <= one.start < one.end <= places[at].end:
            at += 1
        yield copies[at][one.start - places[at].start : one.end - places[at].start]


def _joined(entries: Entries) -> list[_Place]:
    """Return where the records lie, neighbours joined; touches nothing of the log."""
    count = len(entries)
    if not count:
        return []
    offsets, sizes, numbers = entries.offsets, entries.sizes, entries.numbers
    ends = tuple(map(add, offsets, sizes))
    places: list[_Place] = []
    begin = 0
    for stop in [*compress(range(1, count), map(ne, offsets[1:], ends)), count]:
        edges = ((numbers[at], offsets[at], sizes[at]) for at in (begin, stop - 1))
        places.append(_Place(offsets[begin], ends[stop - 1], stop - begin, tuple(edges)))
        begin = stop
    return places


def _fit(sizes: Sequence[int], max_bytes: int, max_records: int) -> int:
    """Return how many records fit, at least one if there is one."""
    count = min(len(sizes), max(max_records, 1))
    if sum(sizes[:count]) <= max_bytes:
        return count
    fitting = sum(1 for total in accumulate(sizes[:count]) if total <= max_bytes)
    return max(fitting, 1)
