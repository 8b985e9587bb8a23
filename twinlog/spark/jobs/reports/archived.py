"""What an archive adds to a report: queues, epochs, its segments, its records without Spark.

Records come in log order, each made again byte for byte from a file that has the SHA-256 its
manifest names. Beside a directory those come from the archive that are below the live log.

Offsets are log offsets in bytes, queue offsets count records, times are milliseconds since 1970.

Not here: the archive as Spark reads it (`twinlog.spark.archive.view`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from twinlog.errors import CorruptionError
from twinlog.format.record import Record, decode
from twinlog.spark.archive.archive_dir import ArchiveDir, sha256_of
from twinlog.spark.archive.manifest import Segment
from twinlog.spark.archive.rows import encoded
from twinlog.spark.archive.view import ArchiveView
from twinlog.spark.archive.writing import merged
from twinlog.spark.errors import DataLossError
from twinlog.spark.jobs.reports.reference import Facts
from twinlog.store.marks import Owner

SEGMENT_VIEW = (
    "broker STRING, start BIGINT, end BIGINT, bytes BIGINT, records BIGINT, files INT, "
    "stored_bytes BIGINT, oldest_ms BIGINT, newest_ms BIGINT, sha256 STRING"
)
"""Columns of the view ``archive``: ``bytes`` of the log, ``stored_bytes`` of its files."""


def added(facts: Facts, root: Path, owner: Owner | None) -> Facts:
    """Return what a live store says with what its archive knows besides.

    A queue begins where the archive has it from; the end is the live one's. An epoch begins where
    the archive says: it may have been written before what is still live.

    Args:
        facts: Of the live store; of none, where the archive is read alone.
        root: The archive.
        owner: Whose the live store is; None where nothing says so.

    Raises:
        SourceError: It is another store's archive, or nothing says which group is meant.
    """
    view = ArchiveView(str(root), owner)
    queues = dict(facts.queues)
    for key in view.keys:
        first, stop = view.extent(key) or (0, 0)
        start, end = queues.get(key, (stop, stop))
        queues[key] = min(first, start), end
    starts = dict(facts.epochs) | {epoch: start for start, epoch in view.epochs}
    return replace(facts, queues=queues, epochs=sorted(starts.items()))


def segments(root: Path) -> list[tuple[object, ...]]:
    """Return the rows of the view ``archive``: every segment of every group."""
    return [_row(segment) for segment in ArchiveDir(root).newest().segments]


def _row(segment: Segment) -> tuple[object, ...]:
    data = segment.data
    return (
        segment.group,
        segment.base,
        segment.end,
        segment.end - segment.base,
        segment.records,
        len(segment.files),
        sum(file.bytes for file in segment.files),
        min((file.oldest_ms for file in data), default=None),
        max((file.newest_ms for file in data), default=None),
        segment.sha256,
    )


def records(root: Path, owner: Owner | None, below: int | None = None) -> Iterator[Record]:
    """Yield an archive's records in log order.

    Args:
        root: The archive.
        owner: Whose the live store is; None where nothing says so.
        below: Only those before this log offset, where the live log begins; None: all.

    Raises:
        SourceError: It is another store's archive, or nothing says which group is meant.
        DataLossError: A file is gone or damaged, or neither the archive nor the live log has a
            stretch between what they have.
    """
    at: int | None = None
    for segment in ArchiveView(str(root), owner).segments:
        if below is not None and segment.base >= below:
            break
        if at is not None and at < segment.base:
            raise _hole(at, segment.base)
        for record in _of_segment(segment, root):
            if below is None or record.log_offset < below:
                yield record
        at = segment.end
    if at is not None and below is not None and at < below:
        raise _hole(at, below)


def _hole(start: int, end: int) -> DataLossError:
    text = f"the log is missing from {start} to {end}: neither the archive nor a live store has it"
    return DataLossError(text, offset=start, hint="look: twinlog spark restore --check")


def _of_segment(segment: Segment, root: Path) -> Iterator[Record]:
    hint = "look: twinlog spark restore --check"
    try:
        for file in segment.data:
            if sha256_of(root / file.path) != file.sha256:
                raise DataLossError(f"{file.path}: it is not what was written", hint=hint)
        for table in merged([root / file.path for file in segment.data]):
            data, at = encoded(table), 0
            while at < len(data):
                record = decode(data, at, check_crc=False)
                yield record
                at += record.size
    except FileNotFoundError as error:
        raise DataLossError(f"{error.filename}: it is gone", hint=hint) from None
    except CorruptionError as error:
        if isinstance(error, DataLossError):
            raise
        raise DataLossError(error.text, hint=hint) from None
