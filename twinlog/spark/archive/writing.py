"""One sealed segment to Parquet files, and back to its bytes.

`write_segment` runs as a task: it walks the log file, writes its records by topic and day, and
returns what a manifest says of it, the SHA-256 of the file included. `segment_bytes` makes the
bytes again from the files: so an archive is checked before it counts, and so it is restored.

A topic with few bytes in a segment goes to a file that it shares with others: ten thousand small
topics must not make ten thousand files.

Nothing is written over: names are unique for each attempt. Offsets are log offsets in bytes.

Not here: committing (`archive.place`), columns (`archive.rows`).
"""

from __future__ import annotations

import hashlib
import heapq
import importlib
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from twinlog import kernels
from twinlog.errors import CorruptionError, UsageError
from twinlog.kernels import codes
from twinlog.spark.archive.manifest import MIXED, ArchivedFile, Segment
from twinlog.spark.archive.place import META, sha256_of, sync_directory, sync_file, write_durably
from twinlog.spark.archive.rows import (
    DICTIONARY,
    STATISTICS,
    arrow,
    numpy,
    records_of,
    schema,
    starts_of,
    table_of,
)
from twinlog.units import KiB, MiB

WINDOW = 32 * MiB
"""Bytes of the log that are held as columns at once; also the largest row group, roughly."""

ROW_GROUP_ROWS = 32_768
SMALL_TOPIC = 64 * MiB
"""A topic with fewer bytes in a segment shares its files."""

RECORD_MAX = 8 * MiB
REST_MAX = 64 * KiB
"""Most bytes behind the records of a segment that are no zeros and no record: the blank has 8."""

BATCH_ROWS = 4096
CODECS = ("zstd", "snappy", "gzip", "none")


@dataclass(frozen=True, slots=True)
class Sealed:
    """A log file that will never change, as a task must know it."""

    root: str
    group: str
    name: str
    base: int
    end: int
    epochs: Sequence[tuple[int, int]]
    batches: bool


@dataclass(frozen=True, slots=True)
class Codec:
    """How Parquet pages are compressed."""

    name: str = "zstd"
    level: int | None = 3


def parse_codec(text: str) -> Codec:
    """Return the codec in ``zstd:3``, ``snappy``, ``none``.

    Raises:
        UsageError: There is no such codec or level.

    >>> parse_codec("zstd:1"), parse_codec("snappy")
    (Codec(name='zstd', level=1), Codec(name='snappy', level=None))
    """
    name, _, level = text.partition(":")
    if name not in CODECS or (level and not level.isdecimal()):
        hint = f"write one of {', '.join(CODECS)}, with a level as in zstd:3"
        raise UsageError(f"there is no codec {text!r}", hint=hint)
    return Codec(name, int(level) if level else (3 if name == "zstd" else None))


@cache
def parquet() -> Any:
    """Return ``pyarrow.parquet``, imported when it is first needed."""
    return importlib.import_module("pyarrow.parquet")


# ── writing ─────────────────────────────────────────────────────────────────────────────────────


def write_segment(sealed: Sealed, to: str, codec: Codec, run: str) -> Segment:
    """Write the files of one segment and return it as a manifest lists it.

    Raises:
        CorruptionError: The segment holds something that is no record.
        OSError: A file cannot be read or written; what was written is an orphan.
    """
    with Scan(sealed) as scan:
        small = {topic for topic, size in scan.topics.items() if size < SMALL_TOPIC}
        target = _Target(Path(to), sealed, codec, f"{run}-{uuid.uuid4().hex[:12]}", small)
        for data, starts, end in scan.windows():
            target.take(table_of(data, starts, end, sealed.epochs))
        files = target.finish()
        if sealed.batches:
            files.append(target.batches())
        return Segment(
            group=sealed.group,
            base=sealed.base,
            end=sealed.end,
            sha256=scan.sha256(),
            records=scan.records,
            records_end=scan.records_end,
            rest=scan.rest().hex(),
            epochs=list(sealed.epochs),
            files=files,
        )


class Scan:
    """One log file, read from its beginning to its end in windows of whole records.

    Args:
        sealed: The file.

    Raises:
        CorruptionError: It holds something that is no record and no blank.
    """

    def __init__(self, sealed: Sealed) -> None:
        self._sealed = sealed
        self._path = Path(sealed.root) / "commitlog" / sealed.name
        self._fd = os.open(self._path, os.O_RDONLY)
        self.topics: dict[str, int] = {}
        self.records = 0
        self.records_end = sealed.base
        try:
            self._look()
        except BaseException:
            os.close(self._fd)
            raise

    def __enter__(self) -> Scan:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the file."""
        os.close(self._fd)

    def _read(self, at: int, length: int) -> bytes:
        length = min(length, self._sealed.end - at)
        data = os.pread(self._fd, length, at - self._sealed.base)
        if len(data) < length:
            text = f"{self._path} has become shorter"
            raise CorruptionError(text, file=str(self._path), offset=at)
        return data

    def _whole(self, at: int) -> tuple[bytes, int, int]:
        """Return (bytes, index after their last whole record, code) of the window at ``at``."""
        size = WINDOW
        while True:
            data = self._read(at, size)
            count, stop, code, _, _ = kernels.walk(data, 0, len(data), check_crc=False)
            self.records += count
            if stop or code == codes.BLANK or size > WINDOW or at + len(data) >= self._sealed.end:
                return data, stop, code
            size = WINDOW + RECORD_MAX

    def _look(self) -> None:
        """Find where the records end, and how many bytes each topic has."""
        at = self._sealed.base
        while at < self._sealed.end:
            data, stop, code = self._whole(at)
            for topic, _, _, entries in kernels.gather_queues(data, 0, stop, at):
                name = topic.decode("utf-8", "replace")
                sizes = sum(
                    int.from_bytes(entries[i + 8 : i + 12], "big")
                    for i in range(0, len(entries), 20)
                )
                self.topics[name] = self.topics.get(name, 0) + sizes
            at += stop
            if code == codes.BLANK or (not stop and not any(data)):
                break
            if not stop:
                what = kernels.EXPLANATIONS[code]
                hint = f"look: twinlog spark verify --path {self._sealed.root}"
                text = f"{self._sealed.name} holds no record at {at}: {what}"
                raise CorruptionError(text, hint=hint, offset=at, file=self._sealed.name)
        self.records_end = at

    def windows(self) -> Iterator[tuple[bytes, list[int], int]]:
        """Yield (bytes, where records begin, where the last one ends) up to the last record."""
        at = self._sealed.base
        while at < self.records_end:
            data = self._read(at, min(WINDOW + RECORD_MAX, self.records_end - at))
            stop = kernels.walk(data, 0, len(data), check_crc=False)[1]
            yield data, starts_of(data, 0, stop, stop), stop
            at += stop

    def rest(self) -> bytes:
        """Return what follows the records, zeros at its end left out.

        Raises:
            CorruptionError: More than `REST_MAX` bytes.
        """
        found, at = bytearray(), self.records_end
        while at < self._sealed.end:
            data = self._read(at, MiB)
            used = data.rstrip(b"\0")
            if used:
                found += bytes(at - self.records_end - len(found)) + used
            if len(found) > REST_MAX:
                text = f"{self._sealed.name} holds bytes behind its records that are none"
                raise CorruptionError(text, offset=self.records_end, file=self._sealed.name)
            at += len(data)
        return bytes(found)

    def sha256(self) -> str:
        """Return the SHA-256 of the whole file."""
        return sha256_of(self._path)


@dataclass(slots=True)
class _Open:
    """A data file being written."""

    path: Path
    writer: Any
    rows: int = 0
    first: int = -1
    last: int = -1
    oldest: int = 0
    newest: int = 0
    queues: dict[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])


class _Target:
    """The files of one segment."""

    def __init__(
        self, root: Path, sealed: Sealed, codec: Codec, attempt: str, small: set[str]
    ) -> None:
        self._root, self._sealed, self._codec, self._small = root, sealed, codec, small
        self._stem = f"{sealed.group}-{sealed.name}-{attempt}"
        self._open: dict[tuple[str, str], _Open] = {}
        self._keys: list[Any] = []

    def take(self, table: Any) -> None:
        """Write the rows of one window to the files they belong to."""
        np = numpy()
        topics = table.column("topic_name").combine_chunks().dictionary_encode()
        days = table.column("store_timestamp").cast(arrow().int64()).to_numpy() // 86_400_000
        names = [value.decode("utf-8", "replace") for value in topics.dictionary.to_pylist()]
        places = {name: MIXED if name in self._small else name for name in names}
        order = sorted(set(places.values()))
        numbers = np.asarray([order.index(places[name]) for name in names], np.int64)
        where = numbers[topics.indices.to_numpy()] * 10_000_000 + days
        values = np.unique(where).tolist()
        for value in values:
            rows = table
            if len(values) > 1:
                rows = table.take(arrow().array(np.flatnonzero(where == value)))
            day = datetime.fromtimestamp(value % 10_000_000 * 86_400, UTC)
            self._write(order[value // 10_000_000], day.strftime("%Y-%m-%d"), rows)
        self._keys.append(_keys_of(table))

    def _write(self, topic: str, date: str, rows: Any) -> None:
        file = self._open.get((topic, date))
        if file is None:
            folder = self._root / "data" / f"topic={quote(topic, safe='')}" / f"date={date}"
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"part-{self._stem}.parquet"
            file = _Open(path, _writer(path, schema(), self._codec))
            self._open[topic, date] = file
        file.writer.write_table(rows, row_group_size=ROW_GROUP_ROWS)
        places = rows.column("physical_offset").to_pylist()
        times = rows.column("store_timestamp").cast(arrow().int64()).to_pylist()
        file.first = places[0] if file.first < 0 else file.first
        file.last = places[-1]
        file.oldest = min(times) if not file.rows else min(file.oldest, *times)
        file.newest = max(file.newest, *times)
        file.rows += len(places)
        spans = rows.group_by(["topic_name", "queue_id"]).aggregate(
            [("queue_offset", "min"), ("queue_offset", "max")]
        )
        for row in spans.to_pylist():
            name = f"{row['topic_name'].decode('utf-8', 'replace')}/{row['queue_id']}"
            low, high = file.queues.get(name, (row["queue_offset_min"], 0))
            span = min(low, row["queue_offset_min"]), max(high, row["queue_offset_max"])
            file.queues[name] = span

    def finish(self) -> list[ArchivedFile]:
        """Close all files, make them durable and return them."""
        found: list[ArchivedFile] = []
        for file in self._open.values():
            file.writer.close()
            found.append(
                self._done(
                    file.path,
                    "data",
                    file.rows,
                    first=file.first,
                    last=file.last,
                    queues=file.queues,
                    oldest_ms=file.oldest,
                    newest_ms=file.newest,
                )
            )
        keys = arrow().concat_tables(self._keys) if self._keys else None
        if keys is not None and keys.num_rows:
            path = self._root / "keys" / f"part-{self._stem}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            ordered = keys.sort_by([("key", "ascending"), ("physical_offset", "ascending")])
            writer = _writer(path, ordered.schema, self._codec)
            writer.write_table(ordered, row_group_size=ROW_GROUP_ROWS // 4)
            writer.close()
            found.append(self._done(path, "keys", ordered.num_rows))
        return found

    def batches(self) -> ArchivedFile:
        """Copy the segment's batch index; a store of ours does not open without."""
        source = Path(self._sealed.root) / "twinlog" / "batches" / self._sealed.name
        path = self._root / META / "batches" / self._stem
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, source.read_bytes())
        return self._done(path, "batches", 0)

    def _done(self, path: Path, kind: str, rows: int, **more: Any) -> ArchivedFile:
        sync_file(path)
        for folder in path.parents:
            sync_directory(folder)
            if folder == self._root:
                break
        name = path.relative_to(self._root).as_posix()
        return ArchivedFile(name, kind, rows, path.stat().st_size, sha256_of(path), **more)


def _writer(path: Path, fields: Any, codec: Codec) -> Any:
    named = [name for name in DICTIONARY if name in fields.names]
    return parquet().ParquetWriter(
        path,
        fields,
        compression=codec.name,
        compression_level=codec.level,
        use_dictionary=named or False,
        write_statistics=[name for name in STATISTICS if name in fields.names],
        write_page_index=True,
    )


def _keys_of(table: Any) -> Any:
    """Return a row for each key of each record: KEYS holds several, with spaces between."""
    pa, pc = arrow(), importlib.import_module("pyarrow.compute")
    lists = pc.split_pattern(table.column("key").combine_chunks(), " ")
    rows = pc.list_parent_indices(lists)
    chosen = table.select(["topic_name", "queue_id", "queue_offset", "physical_offset"]).take(rows)
    keys = pc.list_flatten(lists)
    found = pa.table({"key": keys, **{name: chosen.column(name) for name in chosen.column_names}})
    return found.filter(pc.not_equal(found.column("key"), ""))


# ── and back ────────────────────────────────────────────────────────────────────────────────────


def segment_bytes(segment: Segment, root: Path) -> Iterator[bytes]:
    """Yield the bytes of a segment, made again from its files.

    Raises:
        CorruptionError: The files do not hold its records without a gap.
    """
    at = segment.base
    for place, data in merged(segment, root):
        if place != at:
            text = f"the archive of segment {segment.base} has nothing at {at}, then {place}"
            raise CorruptionError(text, offset=at)
        yield data
        at += len(data)
    if at != segment.records_end:
        text = f"the archive of segment {segment.base} ends at {at}, not at {segment.records_end}"
        raise CorruptionError(text, offset=at)
    rest = bytes.fromhex(segment.rest)
    yield rest
    zeros = segment.end - at - len(rest)
    while zeros > 0:
        yield bytes(min(zeros, MiB))
        zeros -= MiB


def merged(segment: Segment, root: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (log offset, record) of a segment in log order, over all its files."""
    parts = [_records(root / file.path) for file in segment.data]
    return heapq.merge(*parts, key=lambda item: item[0])


def _records(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with parquet().ParquetFile(path) as opened:
            for batch in opened.iter_batches(batch_size=BATCH_ROWS):
                yield from records_of(batch)
    except arrow().ArrowException as error:
        text = f"{path} cannot be read: {str(error).splitlines()[0]}"
        raise CorruptionError(text, file=str(path)) from None
    except OSError as error:
        if error.errno is not None:
            raise
        text = f"{path} cannot be read: {str(error).splitlines()[0]}"
        raise CorruptionError(text, file=str(path)) from None


def check_segment(segment: Segment, root: str) -> str:
    """Return what is wrong with an archived segment; empty when it is whole."""
    digest = hashlib.sha256()
    try:
        for file in segment.files:
            if sha256_of(Path(root) / file.path) != file.sha256:
                return f"{file.path} is not what was written"
        for data in segment_bytes(segment, Path(root)):
            digest.update(data)
    except CorruptionError as error:
        return error.text
    except FileNotFoundError as error:
        return f"{error.filename} is gone"
    same = digest.hexdigest() == segment.sha256
    return "" if same else f"segment {segment.base} made again has another SHA-256"
