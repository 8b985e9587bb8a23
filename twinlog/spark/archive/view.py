"""An archive in front of a live store: rows that the live store no longer has.

An `ArchiveView` is pinned when it is made, like the view of a directory or a cluster: one manifest
says which file holds which queue offsets. `Tiers` combines it with a live view. Rows of a queue
below the live start come from the archive and the rest from the live store, so every row comes
once; ``tier`` chooses one of the two alone.

Archived rows are made into records again, byte for byte, and decoded by the code that decodes live
ones: a row is the same wherever it is read from.

Units: queue offsets count records, log offsets and sizes are bytes, times are ms since 1970.

Not here: the manifest (`twinlog.spark.archive.manifest`), Parquet files
(`twinlog.spark.archive.writing`).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.spark.archive.archive_dir import META, ArchiveDir, sha256_of
from twinlog.spark.archive.manifest import ArchivedFile, Manifest, Segment
from twinlog.spark.archive.rows import encoded
from twinlog.spark.archive.writing import merged
from twinlog.spark.arrow import np, pa
from twinlog.spark.directory.queue_files import ENTRY
from twinlog.spark.directory.split_reader import Batches, Located, Losses, Payload, Reading
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.plan.decoding import Context
from twinlog.spark.plan.options import Options
from twinlog.spark.plan.splits import Piece, QueueView, Sizing, Split
from twinlog.store.marks import Owner

Key = tuple[str, int]
GONE = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
LOOK = "look: twinlog spark restore --check"
QUEUES_MAX = 1 << 20
"""Queue numbers are below it; topics have at most a thousand queues."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """A stretch of one data file.

    Attributes:
        path: Of the file.
        low: Log offset from which its records count.
        high: Log offset before which they begin.
        sha256: Of the file. Parquet's own checksums cover pages, and not what says where they are.
    """

    path: str
    low: int
    high: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchiveTask:
    """What one task reads from an archive.

    Attributes:
        shelves: Stretches of files, in log order.
        pieces: What of which queue.
        reading: How.
        since: Log offsets from which on records of a queue count, where not all do.
    """

    shelves: tuple[Shelf, ...]
    pieces: tuple[Piece, ...]
    reading: Reading
    since: Mapping[Key, int] = field(default_factory=dict[Key, int])


@dataclass(frozen=True, slots=True)
class _Held:
    """A file that holds queue offsets ``first..stop`` of a queue."""

    first: int
    stop: int
    file: ArchivedFile
    segment: Segment


class ArchiveView:
    """An archive, pinned.

    Args:
        root: Its directory; every task must see it.
        owner: The store that it belongs to; None: unknown, then the archive must hold a single
            group.

    Attributes:
        segments: Of that group, oldest first.
        epochs: (start, epoch) of all of them.
        since: Queues whose topic was deleted and made again, and the log offset from which on their
            records count: what was before has the same queue offsets, and no queue names it.

    Raises:
        SourceError: There is no archive, it is another store's, or it holds several groups and none
            is named.
        CorruptionError: Its manifest is damaged.
    """

    def __init__(self, root: str, owner: Owner | None) -> None:
        self.root = Path(root)
        if not (self.root / META).is_dir():  # a disk that is not mounted is an empty directory
            hint = "name the directory that twinlog spark archive wrote to"
            raise SourceError(f"there is no archive {root}", code="archive", hint=hint)
        manifest = ArchiveDir(self.root).newest()
        if owner is not None:
            _require(manifest, root, owner)
        segments = manifest.of_group(owner.group if owner else _only_group(manifest, root))
        self.segments = tuple(segments)
        self.epochs = tuple(sorted({(start, e) for s in segments for e, start in s.epochs}))
        self._held: dict[Key, list[_Held]] = {}
        self.since: dict[Key, int] = {}
        for segment in segments:
            for key, held in _by_queue(segment).items():
                self._add(key, held, segment)
        self._times: dict[tuple[str, int], dict[Key, int]] = {}

    def _add(self, key: Key, held: list[_Held], segment: Segment) -> None:
        """Continue a queue in the next segment, or restart it."""
        known = self._held.setdefault(key, [])
        anew, low = segment.anew.get(f"{key[0]}/{key[1]}"), min(one.first for one in held)
        if anew is not None:
            place, first, last = anew
            held = [
                one if one.file.first >= place else replace(one, first=first, stop=last + 1)
                for one in held
                if one.file.last >= place
            ]
            known.clear()
            self.since[key] = place
        elif known and not segment.ours and low < max(one.stop for one in known):
            known.clear()
            self.since[key] = segment.base
        known += held

    @property
    def keys(self) -> Iterable[Key]:
        """The queues with archived rows."""
        return self._held.keys()

    def forget(self, key: Key) -> None:
        """Leave a queue out: its archived rows belong to an earlier topic of that name."""
        self._held.pop(key, None)

    def extent(self, key: Key) -> tuple[int, int] | None:
        """Return first and next queue offset of a queue; None if nothing of it is archived."""
        held = self._held.get(key)
        return (min(h.first for h in held), max(h.stop for h in held)) if held else None

    def holes(self, piece: Piece) -> list[Piece]:
        """Return the parts of a piece that are not archived."""
        found: list[Piece] = []
        at = piece.first
        for held in sorted(self._held.get((piece.topic, piece.queue), ()), key=lambda h: h.first):
            if held.first > at and held.first < piece.stop:
                found.append(replace(piece, first=at, stop=held.first))
            at = max(at, held.stop)
        if at < piece.stop:
            found.append(replace(piece, first=at))
        return found

    def at_time(self, key: Key, ms: int, stop: int) -> int:
        """Return the first queue offset below ``stop`` stored at or after ``ms``, else ``stop``.

        Raises:
            DataLossError: A file that is needed is missing or damaged.
        """
        for held in self._held.get(key, ()):
            if held.first >= stop:
                break
            if held.file.newest_ms >= ms:
                found = self._first_at(held.file, ms).get(key, stop)
                if found < stop:
                    return found
        return stop

    def _first_at(self, file: ArchivedFile, ms: int) -> dict[Key, int]:
        """Return the first queue offset of each queue in a file stored at or after ``ms``."""
        known = self._times.get((file.path, ms))
        if known is None:
            names = ["topic_name", "queue_id", "queue_offset", "store_timestamp", "sys_flag"]
            path = self.root / file.path
            try:
                if sha256_of(path) != file.sha256:
                    raise CorruptionError("it is not what was written")
                table = pa.concat_tables(merged([path], names))
            except (CorruptionError, *GONE) as error:
                why = error.text if isinstance(error, CorruptionError) else "it is gone"
                raise DataLossError(f"{path}: {why}", hint=LOOK) from None
            late = table.column("store_timestamp").cast(pa.int64()).to_numpy() >= ms
            late &= (table.column("sys_flag").to_numpy() & 0x4) == 0
            late &= self._counting(table, file)
            rows = table.filter(pa.array(late)).group_by(["topic_name", "queue_id"])
            known = {
                (row["topic_name"].decode("utf-8", "replace"), row["queue_id"]): row[
                    "queue_offset_min"
                ]
                for row in rows.aggregate([("queue_offset", "min")]).to_pylist()
            }
            self._times[file.path, ms] = known
        return known

    def made_again(self, topic: str, queue: int) -> str:
        """Return the message about a queue of `since`."""
        at = self.since[topic, queue]
        return (
            f"topic {topic}, queue {queue} was deleted and created again: its records before log "
            f"offset {at} are not read"
        )

    def _counting(self, table: Any, file: ArchivedFile) -> Any:
        """Return which rows of a file count: those of a queue that began again from there on."""
        counts = np.ones(table.num_rows, bool)
        places = table.column("physical_offset").to_numpy()
        for (topic, queue), since in self.since.items():
            if f"{topic}/{queue}" in file.queues and file.first < since:
                names = table.column("topic_name").to_pylist()
                named = np.array([name.decode("utf-8", "replace") == topic for name in names], bool)
                mine = named & (table.column("queue_id").to_numpy() == queue)
                counts &= ~mine | (places >= since)
        return counts

    def tasks(self, pieces: Sequence[Piece], reading: Reading, sizing: Sizing) -> list[ArchiveTask]:
        """Return the tasks that read ``pieces``, in log order; about as large as live ones."""
        since = {
            (piece.topic, piece.queue): self.since[piece.topic, piece.queue]
            for piece in pieces
            if (piece.topic, piece.queue) in self.since
        }
        wanted: dict[str, list[Piece]] = {}
        files: dict[str, _Held] = {}
        for piece in pieces:
            for held in self._held.get((piece.topic, piece.queue), ()):
                if held.first < piece.stop and held.stop > piece.first:
                    wanted.setdefault(held.file.path, []).append(piece)
                    files[held.file.path] = held
        made: list[ArchiveTask] = []
        shelves: list[Shelf] = []
        named: dict[Piece, None] = {}
        room = sizing.split_bytes
        for path, held in sorted(files.items(), key=lambda item: item[1].file.first):
            size = _log_bytes(held)
            if shelves and size > room:
                made.append(ArchiveTask(tuple(shelves), tuple(named), reading, since))
                shelves, named, room = [], {}, sizing.split_bytes
            parts = max(1, -(-size // sizing.split_bytes))
            low, high = held.file.first, held.file.last + 1
            cuts = [low + (high - low) * i // parts for i in range(parts + 1)]
            stretches = [
                Shelf(str(self.root / path), *cut, held.file.sha256) for cut in pairwise(cuts)
            ]
            for stretch in stretches[:-1]:
                made.append(ArchiveTask((stretch,), tuple(wanted[path]), reading, since))
            shelves.append(stretches[-1])
            named |= dict.fromkeys(wanted[path])
            room -= size // parts
        if shelves:
            made.append(ArchiveTask(tuple(shelves), tuple(named), reading, since))
        return made


def _by_queue(segment: Segment) -> dict[Key, list[_Held]]:
    """Return which files of a segment hold what of each queue."""
    found: dict[Key, list[_Held]] = {}
    for file in segment.data:
        for name, (first, last) in file.queues.items():
            topic, _, queue = name.rpartition("/")
            held = found.setdefault((topic, int(queue)), [])
            held.append(_Held(first, last + 1, file, segment))
    return found


def _log_bytes(held: _Held) -> int:
    """Return about how many bytes of the log a file holds."""
    segment = held.segment
    share = held.file.rows / max(segment.records, 1)
    return int((segment.records_end - segment.base) * share)


def _require(manifest: Manifest, root: str, owner: Owner) -> None:
    """Check that an archive may belong to a store."""
    groups = sorted({segment.group for segment in manifest.segments})
    there = manifest.cluster if owner.cluster else ""
    if there in ("", owner.cluster) and (not groups or owner.group in groups):
        return
    of = f"the cluster {there!r}, " if there else ""
    what = f"{of}group {', '.join(map(repr, groups))}"
    mine = f"the cluster {owner.cluster!r}, group {owner.group!r}"
    text = f"the archive {root} is of {what}; what is read is of {mine}"
    raise SourceError(text, code="archive", hint="name the archive of that store")


def _only_group(manifest: Manifest, root: str) -> str:
    groups = sorted({segment.group for segment in manifest.segments})
    if len(groups) > 1:
        text = f"the archive {root} holds the groups {', '.join(groups)}"
        raise SourceError(text, code="archive", hint="set servers: the cluster says which")
    return groups[0] if groups else ""


class TieredQueue:
    """One queue, archived and live; a `twinlog.spark.plan.splits.QueueView`."""

    def __init__(self, key: Key, view: ArchiveView, live: QueueView | None) -> None:
        self.topic, self.queue = key
        self._view = view
        self._live = live
        extent = view.extent(key)
        self.border = live.start if live is not None else (extent or (0, 0))[1]
        """Below it rows come from the archive."""
        first = self.border if extent is None else extent[0]
        self.start = min(first, self.border)
        self.end = self.border if live is None else live.end

    def at_time(self, ms: int) -> int:
        """Return the first queue offset stored at or after ``ms``, else the end."""
        found = self._view.at_time((self.topic, self.queue), ms, self.border)
        if found < self.border or self._live is None:
            return found
        return self._live.at_time(ms)


class Tiers:
    """The archive in front of a live view, according to the options.

    Args:
        options: Options of the query; ``archive`` is set and ``tier`` is not ``live``.
        owner: Owner of the live store; None if unknown.
    """

    def __init__(self, options: Options, owner: Owner | None) -> None:
        assert options.archive is not None, "asked for by the caller"
        self.view = ArchiveView(options.archive, owner)
        self._options = options
        self._apart = False
        self._queues: dict[Key, TieredQueue] = {}

    def before(self, start: int) -> None:
        """Note the start of the log of a live RocketMQ store, which may delete topics.

        Where log is missing between the tiers, a topic may have been made again in it. Of a queue
        with rows in the archive that would have to lie in front of others live that is certain.
        """
        self._apart = bool(self.view.segments) and self.view.segments[-1].end < start

    def queues(self, live: Mapping[Key, QueueView], chosen: Iterable[Key]) -> list[TieredQueue]:
        """Return the queues to read, each from where it is.

        Args:
            live: What the live store has.
            chosen: The queues that the query means.
        """
        alone = self._options.tier == "archive"
        for key in chosen:
            one = None if alone else live.get(key)
            extent = self.view.extent(key)
            if self._apart and one is not None and extent is not None and extent[1] > one.start:
                self.view.forget(key)
            self._queues[key] = TieredQueue(key, self.view, one)
        return list(self._queues.values())

    def divide(self, pieces: Sequence[Piece]) -> tuple[list[Piece], list[Piece], list[str]]:
        """Return what is read from the archive, what live, and what is missing between them.

        Raises:
            DataLossError: Rows are missing, and the query does not allow that.
        """
        archived: list[Piece] = []
        live: list[Piece] = []
        gone: list[str] = []
        for piece in pieces:
            border = self._queues[piece.topic, piece.queue].border
            below = min(piece.stop, border)
            if piece.first < below:
                part = replace(piece, stop=below)
                archived.append(part)
                gone += [missing(hole) for hole in self.view.holes(part)]
            if below < piece.stop:
                live.append(replace(piece, first=max(piece.first, border)))
        if gone and self._options.fail_on_data_loss:
            raise DataLossError(gone[0], hint="set failOnDataLoss=false to go without them")
        return (
            archived,
            live,
            gone
            + [
                self.view.made_again(p.topic, p.queue)
                for p in archived
                if (p.topic, p.queue) in self.view.since
            ],
        )

    def reading(self, live: Reading) -> Reading:
        """Return the settings for reading archived rows, from those for live ones."""
        wants = any(column.name == "epoch" for column in live.columns)
        context = archived_context(self.view, live.context, epochs=wants)
        check = self._options.check_crc != "off"
        return replace(live, context=context, check_crc=check)


def archived_context(view: ArchiveView, live: Context, *, epochs: bool) -> Context:
    """Return the context of archived records; the archive has epochs that nodes have dropped."""
    known = tuple(sorted({*view.epochs, *live.epochs})) if epochs else ()
    return replace(live, tier="archive", epochs=known)


def missing(hole: Piece) -> str:
    """Return the message about rows that neither tier has."""
    rows = f"rows {hole.first}–{hole.stop - 1}"
    where = "neither the archive nor the live store has them"
    return f"topic {hole.topic}, queue {hole.queue}: {rows} are gone ({where})"


# ── reading ─────────────────────────────────────────────────────────────────────────────────────


def read_archive(task: ArchiveTask) -> Iterator[Any]:
    """Yield the Arrow batches of a task, rows in log order.

    Raises:
        DataLossError: A file is gone or damaged, and that is not allowed.
    """
    split = Split(task.shelves[0].low, task.shelves[-1].high, task.pieces)
    losses = Losses(split, task.reading.fail)
    for shelf in task.shelves:
        yield from _of_shelf(shelf, split, task.reading, losses, task.since)
    losses.report()


def _of_shelf(
    shelf: Shelf, split: Split, reading: Reading, losses: Losses, since: Mapping[Key, int]
) -> Iterator[Any]:
    tables = merged([Path(shelf.path)], span=(shelf.low, shelf.high))
    wanted, proven = _Wanted(split.pieces, since), not reading.check_crc
    while True:
        try:
            if not proven and sha256_of(Path(shelf.path)) != shelf.sha256:
                raise CorruptionError("it is not what was written")
            proven = True
            table = next(tables, None)
            if table is None:
                return
            table, pieces = wanted.of(table, shelf)
            data = encoded(table) if table.num_rows else b""
        except (CorruptionError, *GONE) as error:
            why = error.text if isinstance(error, CorruptionError) else "it is gone"
            losses.lost(1, "unreadable files", f"{shelf.path}: {why}", LOOK)
            return
        if table.num_rows:
            found, starts = _located(table, pieces, data, reading)
            payload = Payload(data, shelf.path, found.offsets, starts)
            yield from Batches(payload, split, reading, losses).of(found)


def late_batches(
    root: str, owner: Owner, piece: Piece, reading: Reading
) -> Generator[Any, None, list[Piece]]:
    """Yield the rows of a piece from the newest archive; return the parts it lacks.

    For rows that were live when the query was planned: they are archived before retention may
    delete them.
    """
    view = ArchiveView(root, owner)
    wants = any(column.name == "epoch" for column in reading.columns)
    reading = replace(reading, context=archived_context(view, reading.context, epochs=wants))
    for task in view.tasks([piece], reading, Sizing(1 << 62)):
        yield from read_archive(task)
    return view.holes(piece)


class _Wanted:
    """Finds the piece that each row belongs to, for any number of pieces at once."""

    def __init__(self, pieces: Sequence[Piece], since: Mapping[Key, int]) -> None:
        topics = sorted({piece.topic for piece in pieces})
        self._topics = {topic: number for number, topic in enumerate(topics)}
        codes = [self._topics[p.topic] * QUEUES_MAX + p.queue for p in pieces]
        self._order = np.argsort(np.array(codes, np.int64), kind="stable")
        self._codes = np.array(codes, np.int64)[self._order]
        self._first = np.array([p.first for p in pieces], np.int64)[self._order]
        self._stop = np.array([p.stop for p in pieces], np.int64)[self._order]
        lows = [since.get((p.topic, p.queue), 0) for p in pieces]
        self._since = np.array(lows, np.int64)[self._order]

    def of(self, table: Any, shelf: Shelf) -> tuple[Any, Any]:
        """Return the rows that are wanted, and the index of the piece of each."""
        coded = table.column("topic_name").combine_chunks().dictionary_encode()
        if hasattr(coded, "num_chunks"):
            coded = coded.chunk(0)
        names = [value.decode("utf-8", "replace") for value in coded.dictionary.to_pylist()]
        numbers = np.array([self._topics.get(name, -1) for name in names], np.int64)
        topics = numbers[coded.indices.to_numpy()]
        codes = topics * QUEUES_MAX + table.column("queue_id").to_numpy()
        at = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        offsets = table.column("queue_offset").to_numpy()
        flags = table.column("sys_flag").to_numpy()
        places = table.column("physical_offset").to_numpy()
        # an inner batch stands for offsets after its own; which of them count is looked at later
        keep = (topics >= 0) & (self._codes[at] == codes) & (offsets < self._stop[at])
        keep &= (offsets >= self._first[at]) | ((flags & 0x80) != 0)
        keep &= ((flags & 0x4) == 0) & (places >= shelf.low) & (places < shelf.high)
        keep &= places >= self._since[at]
        if not keep.all():
            table = table.filter(pa.array(keep))
        return table, self._order[at[keep]]


def _located(table: Any, pieces: Any, data: Any, reading: Reading) -> tuple[Located, Any]:
    """Return the records of a table as located ones, and where each begins in ``data``."""
    sizes = table.column("size").to_numpy().astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    tags = np.zeros(len(sizes), np.int64)
    if any(column.name == "tags_code" for column in reading.columns):
        tags = _tags_of(data, len(sizes))
    found = Located(
        np.ascontiguousarray(table.column("physical_offset").to_numpy()),
        sizes,
        tags,
        np.ascontiguousarray(table.column("queue_offset").to_numpy()),
        table.column("queue_id").to_numpy().astype(np.int64),
        np.ascontiguousarray(pieces),
    )
    return found, starts


def _tags_of(data: Any, count: int) -> Any:
    """Return what queue entries say of the tags of records that are one after the other."""
    parts = [
        np.frombuffer(raw, ENTRY) for _, _, _, raw in kernels.gather_queues(data, 0, len(data), 0)
    ]
    entries = np.concatenate(parts)
    assert len(entries) == count, "records that no queue names were left out before"
    return entries["tags"].astype(np.int64)[np.argsort(entries["offset"], kind="stable")]
