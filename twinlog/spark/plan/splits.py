"""The plan of a read: from a view of the store to splits.

A split is a contiguous range of the log that carries parts of many queues; what it returns is
decided by queue offsets, so no row can be missing or come twice however the log is cut. Cuts are at
log offsets; for each queue the cut falls before its first entry at or beyond that offset. Bytes are
balanced, not rows.

A plan is a function of the view and the options alone: the same two give the same splits, which a
stream relies on when it replays a batch.

Units: queue offsets count records, log offsets and sizes are bytes, ends are exclusive.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from twinlog.ranges import Mark, Point
from twinlog.spark.arrow import np
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.plan.option_values import EARLIEST, LATEST
from twinlog.spark.plan.options import SPLIT_BYTES_MIN, Options

DENSE = 0.3
"""Share of a range's bytes from which its splits are sized by range, not by wanted bytes."""
_SAMPLE = 256


class QueueView(Protocol):
    """One queue of a pinned view."""

    topic: str
    queue: int

    @property
    def start(self) -> int:
        """First queue offset that is kept."""
        ...

    @property
    def end(self) -> int:
        """Queue offset after the last one of the view."""
        ...

    def at_time(self, ms: int) -> int:
        """First queue offset stored at or after ``ms``; the end without one."""
        ...


class Part(Protocol):
    """Where the records of one queue are."""

    topic: str
    queue: int

    def cuts(self, first: int, stop: int, points: Any) -> Any:
        """For each log offset of ``points`` the first of ``first..stop`` not before it."""
        ...

    def place(self, number: int) -> int:
        """Log offset of one record; -1 when it is unknown."""
        ...


@dataclass(frozen=True, slots=True)
class Piece:
    """Queue offsets ``first..stop`` of one queue."""

    topic: str
    queue: int
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Span:
    """A piece to read and where its records are.

    Attributes:
        piece: What to read.
        part: Finds its records.
        walk: No queue file names these records: the log is walked from a trusted start.
    """

    piece: Piece
    part: Part
    walk: bool = False


@dataclass(frozen=True, slots=True)
class Split:
    """What one task reads.

    Attributes:
        low: Log offset; records of the split begin at or after it. Trusted: a record begins here.
        high: Log offset before which they begin.
        pieces: What of which queue.
        walk: The log is walked; queue files do not name these records.
    """

    low: int
    high: int
    pieces: tuple[Piece, ...] = ()
    walk: bool = False


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is read of each queue.

    Attributes:
        pieces: Queue offsets of each queue that has any.
        since_ms: Rows stored before it are dropped; queues are not quite sorted by time.
        until_ms: Rows stored at or after it are dropped.
        warnings: What was not there and is not read, one sentence each.
    """

    pieces: tuple[Piece, ...]
    since_ms: int | None = None
    until_ms: int | None = None
    warnings: tuple[str, ...] = field(default=())


def bounds_of(queues: Iterable[QueueView], options: Options, now_ms: int) -> Bounds:
    """Resolve starts and ends of a batch query.

    Raises:
        DataLossError: A start is before what is kept, and that is not allowed.
        SourceError: A start is after the end, or a time is newer than everything.
    """
    pieces: list[Piece] = []
    warnings: list[str] = []
    since, until = _times(options, now_ms)
    for queue in queues:
        first, stop = _bounds(queue, options, now_ms)
        first, lost = clipped(queue, first, options.fail_on_data_loss)
        if lost:
            warnings.append(lost)
        refuse_beyond(queue, first)
        stop = min(stop, queue.end)
        if first < stop:
            pieces.append(Piece(queue.topic, queue.queue, first, stop))
    return Bounds(tuple(pieces), since, until, tuple(warnings))


def refuse_beyond(queue: QueueView, first: int) -> None:
    """Refuse to begin after the end of a queue: rows that come later may not be those meant.

    Raises:
        SourceError: ``first`` is behind it.
    """
    if first > queue.end:
        text = f"topic {queue.topic}, queue {queue.queue} ends at {queue.end}, before {first}"
        raise SourceError(text, code="offset", hint="start at or before its end")


def clipped(queue: QueueView, first: int, fail: bool) -> tuple[int, str]:
    """Return where a read from ``first`` can begin, and what is gone as a sentence or ''.

    Raises:
        DataLossError: Something is gone and ``fail`` is set.
    """
    if first >= queue.start:
        return first, ""
    text = (
        f"topic {queue.topic}, queue {queue.queue}: rows {first}–{queue.start - 1} are gone "
        f"(first kept {queue.start})"
    )
    if fail:
        hint = "start at earliest, read the archive, or set failOnDataLoss=false"
        raise DataLossError(text, hint=hint)
    return queue.start, text


def _times(options: Options, now_ms: int) -> tuple[int | None, int | None]:
    first = options.range.first if options.range else options.starting_timestamp
    last = options.range.last if options.range else options.ending_timestamp
    since = first.at_ms(now_ms) if first else None
    return since, last.at_ms(now_ms) if last else None


def _bounds(queue: QueueView, options: Options, now_ms: int) -> tuple[int, int]:
    """Return first and stop of one queue; Kafka's order: times go before offsets."""
    if options.range is not None:
        return _by_range(queue, options, now_ms)
    ended = options.ending_by_time
    if options.ending_timestamp is not None:
        stop = _at(queue, options.ending_timestamp, now_ms)
    elif ended is not None and queue.queue in ended.get(queue.topic, {}):
        stop = queue.at_time(ended[queue.topic][queue.queue])
    else:
        named = options.ending_offsets.of(queue.topic, queue.queue)
        stop = queue.end if named == LATEST else named
    return start_of(queue, options, now_ms, earliest=True), stop


def start_of(queue: QueueView, options: Options, now_ms: int, *, earliest: bool) -> int:
    """Return where the options let a queue begin; ``earliest``: what counts when none says so.

    Raises:
        SourceError: A time is newer than everything, and that is an error.
    """
    began = options.starting_by_time
    if options.starting_timestamp is not None:
        ms = options.starting_timestamp.at_ms(now_ms)
    elif began is not None and queue.queue in began.get(queue.topic, {}):
        ms = began[queue.topic][queue.queue]
    elif options.starting_offsets is not None:
        named = options.starting_offsets.of(queue.topic, queue.queue)
        return {EARLIEST: queue.start, LATEST: queue.end}.get(named, named)
    else:
        return queue.start if earliest else queue.end
    found = queue.end if ms is None else queue.at_time(ms)
    if found >= queue.end > queue.start and options.by_time_strategy == "error":
        text = f"topic {queue.topic}, queue {queue.queue} holds nothing stored at or after {ms} ms"
        hint = "set startingOffsetsByTimestampStrategy to latest to start at its end"
        raise SourceError(text, code="time", hint=hint)
    return found


def _at(queue: QueueView, point: Point, now_ms: int) -> int:
    ms = point.at_ms(now_ms)
    return queue.end if ms is None else queue.at_time(ms)


def _by_range(queue: QueueView, options: Options, now_ms: int) -> tuple[int, int]:
    found = options.range
    assert found is not None, "asked for by _bounds"
    timed = {Mark.TIME, Mark.AGO}
    first_at = _at(queue, found.first, now_ms) if found.first.mark in timed else None
    last = found.last
    last_at = _at(queue, last, now_ms) if last is not None and last.mark in timed else None
    first, stop = found.bounds(queue.start, queue.end, first_at=first_at, last_at=last_at)
    return first, queue.end if stop is None else stop


@dataclass(frozen=True, slots=True)
class Sizing:
    """How large splits are.

    Attributes:
        split_bytes: Log bytes of one.
        min_partitions: About the least number of splits; None: as they come.
    """

    split_bytes: int
    min_partitions: int | None = None

    def size_for(self, wanted: int) -> int:
        """Return the bytes of one split of this many wanted bytes."""
        if not self.min_partitions:
            return self.split_bytes
        least = min(self.split_bytes, SPLIT_BYTES_MIN)
        return max(least, min(self.split_bytes, wanted // self.min_partitions))


def splits_of(
    spans: Sequence[Span], files: Sequence[tuple[int, int]], sizing: Sizing
) -> list[Split]:
    """Cut the log under ``spans`` and return the splits in log order.

    Args:
        spans: What is read; none is empty.
        files: (start, end) of the log's files; a split never holds parts of two.
        sizing: How large.
    """
    made: list[Split] = []
    for walk in (False, True):
        group = [span for span in spans if span.walk is walk]
        if group:
            made += _splits(group, files, sizing, walk)
    return made


def _splits(
    spans: Sequence[Span], files: Sequence[tuple[int, int]], sizing: Sizing, walk: bool
) -> list[Split]:
    firsts = [span.part.place(span.piece.first) for span in spans]
    lasts = [span.part.place(span.piece.stop - 1) for span in spans]
    low, high = max(min(firsts), 0), max(*lasts, *firsts) + 1
    points = cut_points(low, high, files, _range_bytes(spans, high - low, sizing))
    made: list[list[Piece]] = [[] for _ in range(len(points) + 1)]
    for span in spans:
        piece = span.piece
        inner = np.clip(span.part.cuts(piece.first, piece.stop, points), piece.first, piece.stop)
        ends = np.maximum.accumulate(np.append(inner, piece.stop)).tolist()
        first = piece.first
        for i, end in enumerate(ends):
            if first < end:
                made[i].append(Piece(piece.topic, piece.queue, first, end))
                first = end
    edges = [low, *points.tolist(), high]
    found: list[Split] = []
    for i, pieces in enumerate(made):
        if pieces:
            begin = edges[i]
            if walk:
                parts = {(s.piece.topic, s.piece.queue): s.part for s in spans}
                begin = min(parts[p.topic, p.queue].place(p.first) for p in pieces)
            found.append(Split(begin, edges[i + 1], tuple(pieces), walk))
    return found


def cut_points(low: int, high: int, files: Sequence[tuple[int, int]], size: int) -> Any:
    """Return the log offsets between ``low`` and ``high`` at which to cut: files, then sizes."""
    points: list[int] = []
    for start, end in files:
        begin, stop = max(start, low), min(end, high)
        if begin >= stop:
            continue
        if begin > low:
            points.append(begin)
        count = max(1, round((stop - begin) / size))
        points += [begin + (stop - begin) * i // count for i in range(1, count)]
    return np.array(points, np.int64)


def _range_bytes(spans: Sequence[Span], length: int, sizing: Sizing) -> int:
    """Return how many bytes of the log one split covers: more when few of them are wanted."""
    wanted = sum(_bytes(span) for span in spans)
    size = sizing.size_for(wanted)
    share = wanted / length if length else 1.0
    return size if share >= DENSE else round(size / max(share, size / (1 << 62)))


def _bytes(span: Span) -> int:
    """Return about how many bytes a span's records have, from the first few of them."""
    sizes = getattr(span.part, "sizes", None)
    piece = span.piece
    if sizes is None:
        return piece.stop - piece.first
    sample = sizes(piece.first, min(piece.stop, piece.first + _SAMPLE))
    mean = float(sample.mean()) if len(sample) else 0.0
    return round(mean * (piece.stop - piece.first))
