"""One sealed segment to Parquet files, and back to its bytes.

`write_segment` runs as a task: it walks the log file, writes its records by topic and day, and
returns its entry for the manifest. `segment_bytes` rebuilds the bytes from the files: that is how
an archive is checked before it is committed, and how it is restored.

The check: when the files are closed and flushed, they are opened again, the records are made again
from what is in them, and every byte is compared with the log file, which is read again as well. The
SHA-256 in the manifest is that of the rebuilt bytes, which equal the log's. Data in memory from the
writing takes no part in the check.

Nothing here looks at one record at a time: rows are columns of a window of the log.

Topics with few bytes in a segment share a file: ten thousand small topics must not make ten
thousand files.

No file is overwritten: names are unique for each attempt. Offsets are log offsets in bytes.

Not here: committing (`twinlog.spark.archive.archive_dir`), columns (`twinlog.spark.archive.rows`).
"""

from __future__ import annotations

import hashlib
import importlib
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from twinlog.errors import CorruptionError, UsageError
from twinlog.format.record import FLAG_INNER_BATCH, decode_properties
from twinlog.spark.archive.archive_dir import (
    META,
    sha256_of,
    sync_directory,
    sync_file,
    write_durably,
)
from twinlog.spark.archive.manifest import MIXED, ArchivedFile, Segment
from twinlog.spark.archive.queue_offsets import Line, follow
from twinlog.spark.archive.rows import (
    BARE,
    DELTAS,
    DICTIONARY,
    STATISTICS,
    arrow,
    encoded,
    numpy,
    schema,
    table_of,
)
from twinlog.spark.archive.scan import Scan, Sealed
from twinlog.units import MiB, parse_whole

ROW_GROUP_ROWS = 32_768
SMALL_TOPIC = 64 * MiB
"""A topic with fewer bytes in a segment shares its files."""

CODECS = ("zstd", "snappy", "gzip", "none")

COPY = "bring the file back from a copy of the archive"
"""What to do about a file that is missing or damaged."""


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
        CorruptionError: The segment holds something that is not a record, or the files do not make
            its bytes again.
        OSError: A file cannot be read or written; written files are orphans.
    """
    with Scan(sealed) as scan:
        small = {topic for topic, size in scan.topics.items() if size < SMALL_TOPIC}
        target = _Target(Path(to), sealed, codec, f"{run}-{uuid.uuid4().hex[:12]}", small)
        for data, starts, end in scan.windows():
            target.take(table_of(data, starts, end, sealed.epochs))
        files = target.finish()
        if sealed.batches:
            files.append(target.batches(scan.index))
        target.sync_folders()
        written = Segment(
            group=sealed.group,
            base=sealed.base,
            end=sealed.end,
            sha256="",
            records=scan.records,
            records_end=scan.records_end,
            rest=scan.rest().hex(),
            epochs=list(sealed.epochs),
            files=files,
            anew=target.anew(),
        )
        return replace(written, sha256=_compared(written, Path(to), scan))


def _compared(segment: Segment, root: Path, scan: Scan) -> str:
    """Make a segment again from its files, compare it with its log, return its SHA-256.

    Raises:
        CorruptionError: They differ.
    """
    digest, at = hashlib.sha256(), segment.base
    for made in segment_bytes(segment, root):
        buffer = arrow().py_buffer(made)
        log = arrow().py_buffer(scan.read(at, len(made)))
        if not buffer.equals(log):
            text = f"segment {segment.base} rebuilt differs from the log from {at} on"
            hint = "it was not committed; look at the log: twinlog spark verify"
            raise CorruptionError(f"the archive is not what the log is: {text}", hint=hint)
        digest.update(made)
        at += len(made)
    if at != segment.end:
        text = f"segment {segment.base} rebuilt ends at {at}, not at {segment.end}"
        raise CorruptionError(f"the archive is not what the log is: {text}")
    return digest.hexdigest()


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
        self._folders: set[Path] = set()
        self._lines: dict[str, Line] = {}

    def anew(self) -> dict[str, tuple[int, int, int]]:
        """Return the queues that begin again, in the form of a manifest."""
        return {
            name: (line.anew, line.first, line.last)
            for name, line in self._lines.items()
            if line.anew >= 0
        }

    def take(self, table: Any) -> None:
        """Write the rows of one window to the files they belong to."""
        np = numpy()
        topics = table.column("topic_name").combine_chunks().dictionary_encode()
        days = table.column("store_timestamp").cast(arrow().int64()).to_numpy() // 86_400_000
        names = [value.decode("utf-8", "replace") for value in topics.dictionary.to_pylist()]
        places = {name: MIXED if name in self._small else name for name in names}
        order = sorted(set(places.values()))
        known = {place: number for number, place in enumerate(order)}
        numbers = np.asarray([known[places[name]] for name in names], np.int64)
        where = numbers[topics.indices.to_numpy()] * 10_000_000 + days
        values = np.unique(where).tolist()
        for value in values:
            rows = table
            if len(values) > 1:
                rows = table.take(arrow().array(np.flatnonzero(where == value)))
            day = datetime.fromtimestamp(value % 10_000_000 * 86_400, UTC)
            self._write(order[value // 10_000_000], day.strftime("%Y-%m-%d"), rows)
        if not self._sealed.batches:
            follow(self._lines, table)
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
        places = rows.column("physical_offset")
        times = rows.column("store_timestamp").cast(arrow().int64()).to_numpy()
        oldest, newest = int(times.min()), int(times.max())
        file.first = places[0].as_py() if file.first < 0 else file.first
        file.last = places[len(places) - 1].as_py()
        file.oldest = min(file.oldest, oldest) if file.rows else oldest
        file.newest = max(file.newest, newest)
        file.rows += len(places)
        for name, low, high in _spans(rows):
            known = file.queues.get(name, (low, high))
            file.queues[name] = min(known[0], low), max(known[1], high)

    def sync_folders(self) -> None:
        """Make the names of all files durable, each folder once."""
        for folder in self._folders:
            sync_directory(folder)

    def finish(self) -> list[ArchivedFile]:
        """Close all files, flush them and return them; their names are `sync_folders`'s."""
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

    def batches(self, index: bytes) -> ArchivedFile:
        """Write the segment's batch index; a twinlog store does not open without."""
        path = self._root / META / "batches" / self._stem
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, index)
        return self._done(path, "batches", 0)

    def _done(self, path: Path, kind: str, rows: int, **more: Any) -> ArchivedFile:
        sync_file(path)
        for folder in path.parents:
            self._folders.add(folder)
            if folder == self._root:
                break
        name = path.relative_to(self._root).as_posix()
        return ArchivedFile(name, kind, rows, path.stat().st_size, sha256_of(path), **more)


def _writer(path: Path, fields: Any, codec: Codec) -> Any:
    named = [name for name in DICTIONARY if name in fields.names]
    deltas = [name for name in DELTAS if name in fields.names]
    packed = [name for name in fields.names if name not in BARE]
    return parquet().ParquetWriter(
        path,
        fields,
        compression={name: codec.name if name in packed else "none" for name in fields.names},
        compression_level=dict.fromkeys(packed, codec.level) if codec.level is not None else None,
        use_dictionary=named or False,
        column_encoding=dict.fromkeys(deltas, "DELTA_BINARY_PACKED"),
        write_statistics=[name for name in STATISTICS if name in fields.names],
        write_page_index=True,
        write_page_checksum=True,
    )


def _spans(rows: Any) -> Iterator[tuple[str, int, int]]:
    """Yield (topic/queue, first, last queue offset) of what a queue can name in some rows.

    An inner batch stands for several offsets; prepared and rolled back records for none.
    """
    flags = rows.column("sys_flag").to_numpy()
    named = rows
    if (flags & 0x4).any():
        named = rows.filter(arrow().array((flags & 0x4) == 0))
        flags = named.column("sys_flag").to_numpy()
    found = named.group_by(["topic_name", "queue_id"], use_threads=False).aggregate(
        [("queue_offset", "min"), ("queue_offset", "max")]
    )
    for row in found.to_pylist():
        name = f"{row['topic_name'].decode('utf-8', 'replace')}/{row['queue_id']}"
        yield name, row["queue_offset_min"], row["queue_offset_max"]
    if (flags & FLAG_INNER_BATCH).any():
        inner = named.filter(arrow().array((flags & FLAG_INNER_BATCH) != 0))
        wanted = ["topic_name", "queue_id", "queue_offset", "properties_raw"]
        for row in inner.select(wanted).to_pylist():
            count = parse_whole(decode_properties(row["properties_raw"]).get("INNER_NUM", ""))
            last = row["queue_offset"] + (count or 1) - 1
            name = f"{row['topic_name'].decode('utf-8', 'replace')}/{row['queue_id']}"
            yield name, row["queue_offset"], last


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
    np, at = numpy(), segment.base
    for table in merged([root / file.path for file in segment.data]):
        places = table.column("physical_offset").to_numpy()
        ends = places + table.column("size").to_numpy()
        gaps = np.flatnonzero(places != np.concatenate(([at], ends[:-1])))
        if len(gaps):
            i = int(gaps[0])
            place, missing = int(places[i]), at if i == 0 else int(ends[i - 1])
            text = f"the archive of segment {segment.base} has nothing at {missing}, then {place}"
            raise CorruptionError(text, offset=missing)
        yield encoded(table)
        at = int(ends[-1])
    if at != segment.records_end:
        text = f"the archive of segment {segment.base} ends at {at}, not at {segment.records_end}"
        raise CorruptionError(text, offset=at)
    rest = bytes.fromhex(segment.rest)
    yield rest
    zeros = segment.end - at - len(rest)
    while zeros > 0:
        yield bytes(min(zeros, MiB))
        zeros -= MiB


def merged(
    paths: Sequence[Path],
    columns: Sequence[str] | None = None,
    *,
    span: tuple[int, int] = (0, 1 << 63),
) -> Iterator[Any]:
    """Yield the rows of data files as tables, together in log order.

    One row group of each file is held at a time, which is the share that its topics have in a
    window of the log.

    Args:
        paths: The files.
        columns: Only these; None: all.
        span: Log offsets; row groups without a record that begins there are left out.

    Raises:
        CorruptionError: A file cannot be read.
    """
    wanted = None if columns is None else sorted({*columns, "physical_offset"})
    files = [_Reading(path, wanted, span) for path in paths]
    try:
        while files := [file for file in files if file.more()]:
            limit = min(file.last for file in files)
            parts = [part for file in files if (part := file.until(limit)).num_rows]
            if len(parts) == 1:
                yield parts[0]
            else:
                table = arrow().concat_tables(parts)
                yield table.take(numpy().argsort(table.column("physical_offset").to_numpy()))
    finally:
        for file in files:
            file.close()


class _Reading:
    """One data file, read row group by row group."""

    def __init__(self, path: Path, columns: list[str] | None, span: tuple[int, int]) -> None:
        self._path = path
        self._columns = columns
        self._span = span
        self._opened = self._tried(
            lambda: parquet().ParquetFile(path, page_checksum_verification=True)
        )
        self._group = 0
        self._table: Any = None

    def _tried(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except (FileNotFoundError, NotADirectoryError):
            text = f"{self._path} is gone"
            raise CorruptionError(text, file=str(self._path), hint=COPY) from None
        except arrow().ArrowException as error:
            why = str(error).splitlines()[0]
        except OSError as error:
            if error.errno is not None:
                raise
            why = str(error).splitlines()[0]
        text = f"{self._path} cannot be read: {why}"
        raise CorruptionError(text, file=str(self._path)) from None

    def close(self) -> None:
        """Close the file."""
        self._opened.close()

    def more(self) -> bool:
        """Say whether there are rows left, and have some at hand; closes a file without."""
        while self._table is None or not self._table.num_rows:
            if self._group == self._opened.metadata.num_row_groups:
                self.close()
                return False
            number, self._group = self._group, self._group + 1
            if self._within(number):
                work = partial(
                    self._opened.read_row_group, number, self._columns, use_threads=False
                )
                self._table = self._tried(work)
        return True

    def _within(self, number: int) -> bool:
        """Say whether a row group may hold a record that begins in the span."""
        group, low, high = self._opened.metadata.row_group(number), *self._span
        at = self._opened.schema_arrow.get_field_index("physical_offset")
        held = group.column(at).statistics
        return held is None or (held.max >= low and held.min < high)

    @property
    def last(self) -> int:
        """Log offset of the last row at hand."""
        place: int = self._table.column("physical_offset")[self._table.num_rows - 1].as_py()
        return place

    def until(self, limit: int) -> Any:
        """Take the rows at hand up to log offset ``limit``."""
        places = self._table.column("physical_offset").to_numpy()
        count = int(numpy().searchsorted(places, limit, "right"))
        found, self._table = self._table.slice(0, count), self._table.slice(count)
        return found


def check_segment(segment: Segment, root: str) -> str:
    """Return what is wrong with an archived segment; empty if it is intact."""
    digest = hashlib.sha256()
    try:
        for file in segment.files:
            if sha256_of(Path(root) / file.path) != file.sha256:
                return f"{file.path} differs from what was written"
        for data in segment_bytes(segment, Path(root)):
            digest.update(data)
    except CorruptionError as error:
        return error.text
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        return f"{error.filename} is gone"
    same = digest.hexdigest() == segment.sha256
    return "" if same else f"segment {segment.base} rebuilt has another SHA-256"
