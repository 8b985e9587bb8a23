"""Reads one split of a directory: entries, bytes, rows, batches.

Queue entries say where records begin, merged over all queues of the split into log order; each row
is compared with the entry that points to it (place, size, queue, queue offset), so a record forged
inside a body is never seen and a misaligned queue is noticed. Records that no queue names are found
by walking the log from a trusted start.

A missing or damaged row ends the task, or is left out and counted where the query allows that.

Units: log offsets and sizes are bytes, queue offsets count records.

Not here: planning (`twinlog.spark.plan.splits`), the wire.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from twinlog import kernels
from twinlog.format.record import java_hash
from twinlog.kernels import codes
from twinlog.spark.arrow import np, pa
from twinlog.spark.directory.log_bytes import LogBytes
from twinlog.spark.directory.queue_files import ENTRY, FILL_SIZE, open_queue
from twinlog.spark.errors import DataLossError
from twinlog.spark.plan.columns import Column
from twinlog.spark.plan.decoding import (
    Context,
    DecodedRows,
    Decoder,
    UnreadableBodies,
    are_inner,
    as_stored,
    inner_rows,
    unfold,
)
from twinlog.spark.plan.splits import Piece, Split
from twinlog.store.files import store_root

_log = logging.getLogger("twinlog.spark")

ALSO = ("queue", "queue_offset", "log_offset", "size")
"""What each row is compared with its entry by."""
WALK_STEP = 4 << 20
NO_NUMBER = -1


@dataclass(frozen=True, slots=True)
class Reading:
    """How splits are read; made once for a query and sent to every task.

    Attributes:
        columns: The schema.
        context: What the records do not say.
        batch_rows: Rows of one batch at most.
        batch_bytes: Bytes read in one go.
        fail: Whether missing or damaged rows end the task.
        check_crc: Whether bodies are compared with their CRC.
        decompress: Whether bodies are decompressed.
        tags: Only these tags.
        keys: Only records with one of these keys.
        since_ms: Only records stored at or after it.
        until_ms: Only records stored before it.
        stored: Whether each record is handed out as its bytes
        (`twinlog.spark.plan.decoding.as_stored`),
            instead of as columns; ``tags`` and what follows are not looked at.
    """

    columns: tuple[Column, ...]
    context: Context
    batch_rows: int
    batch_bytes: int
    fail: bool
    check_crc: bool
    decompress: bool
    tags: tuple[str, ...] | None = None
    keys: tuple[str, ...] | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    stored: bool = False

    def decoder(self, *, chosen: bool = False) -> Decoder:
        """Return a decoder for it; ``chosen``: the caller chooses by topic and queue."""
        also = [*ALSO, "topic"] if chosen else [*ALSO]
        if self.tags is not None:
            also.append("tags")
        if self.keys is not None:
            also.append("key")
        if self.since_ms is not None or self.until_ms is not None:
            also.append("store_time")
        return Decoder(
            self.columns,
            self.context,
            decompress=self.decompress,
            check_crc=self.check_crc,
            also=also,
        )


@dataclass(frozen=True, slots=True)
class Located:
    """Records to read, in log order, as arrays of one length.

    ``numbers`` and ``queues`` are what queue entries say, `NO_NUMBER` where none does or where it
    need not be the record's own (light queues); ``piece`` is the index of the piece, -1 for none.
    """

    offsets: Any
    sizes: Any
    tags: Any
    numbers: Any
    queues: Any
    piece: Any

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, chosen: Any) -> Located:
        """Return some of them."""
        return Located(
            self.offsets[chosen],
            self.sizes[chosen],
            self.tags[chosen],
            self.numbers[chosen],
            self.queues[chosen],
            self.piece[chosen],
        )


class Losses:
    """What was left out, by kind; one line of the log at the end."""

    def __init__(self, split: Split, fail: bool) -> None:
        self._split = split
        self._fail = fail
        self._counts: dict[str, int] = {}

    def lost(self, count: int, kind: str, text: str, hint: str) -> None:
        """Note rows that cannot be handed out.

        Raises:
            DataLossError: The query does not allow that.
        """
        if self._fail:
            raise DataLossError(text, hint=f"{hint}, or set failOnDataLoss=false")
        self._counts[kind] = self._counts.get(kind, 0) + count

    def report(self) -> None:
        """Log what was left out."""
        if self._counts:
            parts = ", ".join(f"{count} {kind}" for kind, count in self._counts.items())
            _log.warning("log %d..%d: rows %s", self._split.low, self._split.high, parts)


Only = Mapping[str, tuple[int, ...]]
"""Topics, and of each the queues that are meant; () are all."""


def read_split(
    root: str, split: Split, reading: Reading, *, only: Only | None = None
) -> Iterator[Any]:
    """Yield the Arrow batches of a split, rows in log order.

    Args:
        root: The directory.
        split: What of it.
        reading: How.
        only: Only these, where a split without pieces walks the whole log; None: all.

    Raises:
        DataLossError: Rows are gone or damaged, and that is not allowed.
    """
    log = LogBytes(root, reading.batch_bytes)
    losses = Losses(split, reading.fail)
    try:
        for found in _located(root, log, split, losses):
            wanted = _tagged(found, reading.tags)
            yield from Batches(log, split, reading, losses, only).of(wanted)
        losses.report()
    finally:
        log.close()


# -- where records are ----------------------------------------------------------------------------


def _located(root: str, log: LogBytes, split: Split, losses: Losses) -> Iterator[Located]:
    if split.walk:
        for piece in walk(log, split, losses):
            yield _of_walk(piece, split)
    else:
        yield _of_queues(root, split, losses)


def _of_queues(root: str, split: Split, losses: Losses) -> Located:
    """Merge the queue entries of all pieces into log order."""
    parts: list[Located] = []
    for i, piece in enumerate(split.pieces):
        folder, batch = _folder(root, piece)
        queue = open_queue(piece.topic, piece.queue, folder, batch=batch)
        kept = min(max(queue.start, piece.first), piece.stop) if queue.end else piece.stop
        if piece.first < kept:
            _gone(losses, piece, piece.first, kept - 1, "its queue file was deleted meanwhile")
        found = queue.entries(kept, piece.stop)
        fill = found.sizes == FILL_SIZE
        if not batch and len(found) < piece.stop - kept:
            first = kept + len(found)
            _gone(losses, piece, first, piece.stop - 1, "its queue file was deleted meanwhile")
        light = piece.topic.startswith("%LMQ%")
        count = len(found)
        part = Located(
            found.offsets,
            found.sizes,
            found.tags,
            np.full(count, NO_NUMBER) if light else found.numbers,
            np.full(count, NO_NUMBER if light else piece.queue),
            np.full(count, i),
        )
        parts.append(part.part(~fill) if fill.any() else part)
    if len(parts) == 1:
        return parts[0]
    joined = Located(
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("offsets", "sizes", "tags", "numbers", "queues", "piece")
        )
    )
    return joined.part(np.argsort(joined.offsets, kind="stable"))


def _folder(root: str, piece: Piece) -> tuple[Path, bool]:
    tail = Path(piece.topic) / str(piece.queue)
    top = store_root(root)
    simple = top / "consumequeue" / tail
    return (simple, False) if simple.is_dir() else (top / "batchconsumequeue" / tail, True)


def _gone(losses: Losses, piece: Piece, first: int, last: int, why: str) -> None:
    text = f"topic {piece.topic}, queue {piece.queue}: rows {first}–{last} are gone ({why})"
    losses.lost(last - first + 1, "gone", text, "start at earliest, read the archive")


class Walked(Protocol):
    """What a walk needs of a log: bytes into a buffer, and where files begin and end."""

    @property
    def buffer(self) -> Any:
        """Where `read` puts bytes."""
        ...

    def read(self, offset: int, length: int, at: int = 0) -> int:
        """Read into the buffer."""
        ...

    def file_end(self, offset: int) -> int:
        """Where the file of an offset ends."""
        ...

    def next_start(self, offset: int) -> int | None:
        """Where the next file begins."""
        ...

    def name(self, offset: int) -> str:
        """The file, for messages."""
        ...


@dataclass(frozen=True, slots=True)
class Walk:
    """Whole records in the buffer ``data``, whose first byte is log offset ``offset``.

    ``starts`` and ``sizes`` are those that the walk is about; the records end at index ``stop``.
    """

    data: Any
    stop: int
    offset: int
    starts: Any
    sizes: Any


def walk(log: Walked, split: Split, losses: Losses) -> Iterator[Walk]:
    """Yield the records that begin in ``split.low..high``, walking from ``low``.

    The buffer is used again after each yield.
    """
    at, step = split.low, WALK_STEP
    while at < split.high:
        end = log.file_end(at)
        length = min(step, end - at)
        got = log.read(at, length) if length > 0 else 0
        raw, stop, code = kernels.record_starts(memoryview(log.buffer), 0, got)
        starts = np.frombuffer(raw, np.int64)
        sizes = np.diff(starts, append=stop)
        mine = int(np.searchsorted(starts, split.high - at, "left"))
        if mine:
            yield Walk(log.buffer, stop, at, starts[:mine], sizes[:mine])
            at, step = at + stop, WALK_STEP
            continue
        if code == codes.SIZE and 4 <= got == length < end - at:  # a record larger than the step
            step = max(2 * step, int.from_bytes(bytes(log.buffer[:4]), "big"))
            continue
        after = log.next_start(at)
        if got and code != codes.BLANK:
            text = f"{log.name(at)}: no record at {at}: {kernels.EXPLANATIONS[code]}"
            losses.lost(1, "unreadable stretches", text, "look at it: twinlog log verify")
        if after is None:
            return
        at, step = after, WALK_STEP


def _of_walk(found: Walk, split: Split) -> Located:
    """Return the records of a walk that the pieces ask for; all of them without pieces."""
    if not split.pieces:
        none = np.full(len(found.starts), NO_NUMBER)
        return Located(found.starts + found.offset, found.sizes, none * 0, none, none, none)
    wanted = {(p.topic, p.queue): (i, p) for i, p in enumerate(split.pieces)}
    parts: list[Any] = []
    last = int(found.starts[-1]) + found.offset
    for name, queue, first, raw in kernels.gather_queues(
        memoryview(found.data), 0, found.stop, found.offset
    ):
        i, piece = wanted.get((name.decode("utf-8", "replace"), queue), (-1, None))
        if piece is None:
            continue
        entries = np.frombuffer(raw, ENTRY)
        numbers = np.arange(first, first + len(entries), dtype=np.int64)
        # an inner batch stands for offsets after its own; which of them count is looked at later
        inner = are_inner(found.data, entries["offset"].astype(np.int64) - found.offset)
        keep = ((numbers >= piece.first) | inner) & (numbers < piece.stop)
        keep &= entries["offset"] <= last
        rows = np.empty((int(keep.sum()), 6), np.int64)
        rows[:, 0], rows[:, 1] = entries["offset"][keep], entries["size"][keep]
        rows[:, 2], rows[:, 3] = entries["tags"][keep], numbers[keep]
        rows[:, 4], rows[:, 5] = queue, i
        parts.append(rows)
    table = np.concatenate(parts) if parts else np.empty((0, 6), np.int64)
    table = table[np.argsort(table[:, 0], kind="stable")]
    return Located(*(np.ascontiguousarray(table[:, i]) for i in range(6)))


def _tagged(found: Located, tags: Sequence[str] | None) -> Located:
    """Return those whose entry has the hash of a wanted tag; entries without a hash stay."""
    if tags is None:
        return found
    hashes = np.array([java_hash(tag) for tag in tags], np.int64)
    unknown = (found.piece < 0) | (found.tags > 0x7FFFFFFF) | (found.tags < -(1 << 31))
    return found.part(np.isin(found.tags, hashes) | unknown)


# -- rows -----------------------------------------------------------------------------------------


class Stored(Protocol):
    """Where records are fetched from."""

    @property
    def buffer(self) -> Any:
        """Where `gather` puts them."""
        ...

    def gather(self, offsets: Any, sizes: Any) -> tuple[int, Any]:
        """Fetch as many as fit; return how many, and the index of each in the buffer."""
        ...

    def name(self, offset: int) -> str:
        """Return where a record is, for messages."""
        ...


def _only(rows: DecodedRows, only: Only) -> Any:
    """Return which rows are of a topic and queue that is meant."""
    topics = rows.text("topic", pa.string())
    keep = pa.compute.is_in(topics, value_set=pa.array(list(only), pa.string()))
    for topic, queues in only.items():
        if queues:
            fits = pa.array(np.isin(rows.numbers("queue"), queues))
            keep = pa.compute.and_(keep, pa.compute.or_(pa.compute.not_equal(topics, topic), fits))
    return keep


class Payload:
    """Records that are in memory already, for `Batches`.

    Args:
        data: Buffer that holds them.
        name: Where it came from, for messages.
        offsets: Log offset of each record, ascending.
        starts: Index of each in the buffer.
    """

    def __init__(self, data: Any, name: str, offsets: Any, starts: Any) -> None:
        self.buffer = np.frombuffer(data, np.uint8)
        self._name = name
        self._offsets = offsets
        self._starts = starts

    def name(self, offset: int) -> str:
        """Return where the record came from, for messages."""
        return f"{self._name}, log offset {offset}"

    def gather(self, offsets: Any, sizes: Any) -> tuple[int, Any]:
        """Return all of them: they are here."""
        del sizes
        found = self._starts[np.searchsorted(self._offsets, offsets)]
        return len(found), np.ascontiguousarray(found)


class Batches:
    """Turns located records into batches.

    Args:
        log: Where they are fetched from.
        split: What is read, for messages.
        reading: How.
        losses: Is told what cannot be handed out.
        only: Only these, where a split has no pieces; None: all.
    """

    def __init__(
        self,
        log: Stored,
        split: Split,
        reading: Reading,
        losses: Losses,
        only: Only | None = None,
    ) -> None:
        self._log = log
        self._only = only
        self._split = split
        self._reading = reading
        self._losses = losses
        self._decoder = reading.decoder(chosen=only is not None)

    def of(self, found: Located) -> Iterator[Any]:
        """Yield the batches of ``found``."""
        at, total = 0, len(found)
        while at < total:
            window = found.part(slice(at, min(at + self._reading.batch_rows, total)))
            sane = (window.sizes >= 91) & (window.offsets >= 0)
            if not sane.all():
                bad = int(sane.argmin())
                if not bad:
                    self._bad(window, 0, "its entry has no possible place or size")
                    at += 1
                    continue
                window = window.part(slice(0, bad))
            count, starts = self._log.gather(window.offsets, window.sizes)
            if count == 0:
                at += self._missing(window)
                continue
            rows, code = self._decoder.rows(self._log.buffer, starts)
            if rows.count:
                yield from self._checked(rows, window.part(slice(0, rows.count)), starts)
            at += rows.count
            if rows.count < count and code != codes.COUNT:
                self._bad(window, rows.count, kernels.EXPLANATIONS[code])
                at += 1

    def _label(self, window: Located, i: int) -> str:
        index, number = int(window.piece[i]), int(window.numbers[i])
        offset = int(window.offsets[i])
        if index < 0:
            return f"{self._log.name(offset)}, offset {offset}"
        piece = self._split.pieces[index]
        place = f"{self._log.name(offset)}, log offset {offset}"
        return f"topic {piece.topic}, queue {piece.queue}, offset {number} ({place})"

    def _bad(self, window: Located, i: int, why: str) -> None:
        text = f"{self._label(window, i)}: no good record: {why}"
        self._losses.lost(1, "damaged", text, "look at it: twinlog log verify")

    def _missing(self, window: Located) -> int:
        """Note that the first record is not there any more; return how many to skip."""
        label = self._label(window, 0)
        text = f"{label}: the record no longer exists; retention or a cut was faster than this read"
        self._losses.lost(1, "gone", text, "start at earliest, read the archive")
        return 1

    def _checked(self, rows: DecodedRows, window: Located, starts: Any) -> Iterator[Any]:
        """Compare rows with their entries, then yield their batches."""
        named = window.numbers != NO_NUMBER
        placed = rows.numbers("log_offset") == window.offsets
        sized = rows.numbers("size") == window.sizes
        queued = (rows.numbers("queue") == window.queues) | (window.queues == NO_NUMBER)
        numbered = (rows.numbers("queue_offset") == window.numbers) | ~named
        fine = placed & sized & queued & numbered
        if not fine.all():
            wrong = np.flatnonzero(~fine)
            self._misled(rows, window, int(wrong[0]), len(wrong))
            keep = np.flatnonzero(fine)
            if len(keep):
                again, _ = self._decoder.rows(self._log.buffer, starts[keep])
                yield from self._checked(again, window.part(keep), starts[keep])
            return
        if self._reading.stored:
            yield as_stored(self._log.buffer, starts[: len(window)], window.sizes)
            return
        inner = inner_rows(rows)
        if len(inner):
            yield from self._unfolded(window, starts, inner)
        else:
            yield from self._unpacked(rows, window, starts)

    def _unpacked(self, rows: DecodedRows, window: Located, starts: Any) -> Iterator[Any]:
        """Yield the batch of rows, without those whose body does not decompress."""
        try:
            found = list(self._filtered(rows, window.tags))
        except UnreadableBodies as unreadable:
            for i, why in unreadable.rows:
                hint = "set decompress to false to see it as stored"
                self._losses.lost(1, "damaged", f"{self._label(window, i)}: {why}", hint)
            keep = np.setdiff1d(np.arange(rows.count), [i for i, _ in unreadable.rows])
            again, _ = self._decoder.rows(self._log.buffer, starts[keep])
            found = list(self._filtered(again, window.tags[keep]))
        yield from found

    def _misled(self, rows: DecodedRows, window: Located, i: int, count: int) -> None:
        label, found = self._label(window, i), int(rows.numbers("queue_offset")[i])
        text = f"{label}: the record there is number {found} of queue {rows.numbers('queue')[i]}"
        place = int(rows.numbers("log_offset")[i])
        if place != int(window.offsets[i]):
            text = f"{label}: the record there names log offset {place}"
        hint = "repair the queue: twinlog spark rebuild"
        self._losses.lost(count, "misled by their queue", text, hint)

    def _unfolded(self, window: Located, starts: Any, inner: Any) -> Iterator[Any]:
        """Yield batches with one row for each message of inner batches, in order."""
        data, first = self._log.buffer, 0
        for i in [*inner.tolist(), len(starts)]:
            if first < i:
                rows, _ = self._decoder.rows(data, starts[first:i])
                yield from self._unpacked(rows, window.part(slice(first, i)), starts[first:i])
            if i < len(starts):
                yield from self._messages(window, int(starts[i]), i)
            first = i + 1

    def _messages(self, window: Located, start: int, i: int) -> Iterator[Any]:
        """Yield the messages of one inner batch that its piece asks for."""
        try:
            part = unfold(memoryview(self._log.buffer), start)
        except DataLossError as error:
            text, hint = f"{self._label(window, i)}: {error.text}", error.hint or "look at it"
            self._losses.lost(1, "damaged", text, hint)
            return
        places = np.frombuffer(kernels.record_starts(part, 0, len(part))[0], np.int64)
        if window.piece[i] >= 0:
            piece = self._split.pieces[int(window.piece[i])]
            numbers = int(window.numbers[i]) + np.arange(len(places))
            places = places[(numbers >= piece.first) & (numbers < piece.stop)]
        rows, _ = self._decoder.rows(part, np.ascontiguousarray(places))
        yield from self._filtered(rows, np.full(rows.count, window.tags[i]))

    def _filtered(self, rows: DecodedRows, tags_codes: Any) -> Iterator[Any]:
        """Yield the batch of the rows that the query's filters let through."""
        reading, keep = self._reading, None
        if self._only is not None:
            keep = _only(rows, self._only)
        if reading.tags is not None:
            tags = rows.text("tags", pa.string())
            keep = _and(
                keep, pa.compute.is_in(tags, value_set=pa.array(list(reading.tags), pa.string()))
            )
        if reading.keys is not None:
            held = rows.text("key", pa.string())
            keep = _and(keep, has_key(held, reading.keys))
        if reading.since_ms is not None or reading.until_ms is not None:
            stored = rows.numbers("store_time")
            if reading.since_ms is not None:
                keep = _and(keep, pa.array(stored >= reading.since_ms * 1000))
            if reading.until_ms is not None:
                keep = _and(keep, pa.array(stored < reading.until_ms * 1000))
        batch = self._decoder.batch(rows, tags_codes)
        if keep is not None and not pa.compute.all(keep).as_py():
            batch = batch.filter(keep)
        if batch.num_rows:
            yield batch


def _and(keep: Any, also: Any) -> Any:
    return also if keep is None else pa.compute.and_(keep, also)


def has_key(held: Any, keys: Sequence[str]) -> Any:
    """Return for each text of keys, separated by spaces, whether one of ``keys`` is in it."""
    words = pa.compute.split_pattern(held, " ")
    flat = words.flatten()
    hits = pa.compute.is_in(flat, value_set=pa.array(list(keys), pa.string()))
    owners = pa.compute.list_parent_indices(words).to_numpy()
    found = np.zeros(len(held), bool)
    found[owners[hits.to_numpy(zero_copy_only=False)]] = True
    return pa.array(found)
