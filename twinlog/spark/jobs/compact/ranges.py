"""Where a compaction reads: ranges of a directory's log, or tasks of the source.

A directory alone is cut by its log (`twinlog.spark.directory.log_ranges`), and all of the log must
hold together. A cluster, an archive, and an archive in front of either are read by the tasks of the
source, which read one topic and hand out its records as stored: a record has the same bytes
wherever it comes from, so the result is the same.

The plan is made once; both readings use it, so they see the same records, and rows that retention
takes between them are an error.

Not here: which records win (`twinlog.spark.jobs.compact.job`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from twinlog import kernels
from twinlog.spark.directory.log_ranges import SPLIT_BYTES, LogRange, plan, records_of
from twinlog.spark.errors import DataLossError

if TYPE_CHECKING:  # the source needs numpy, and a directory is compacted without
    from twinlog.spark.source.queries import AnyTask

Range: TypeAlias = "LogRange | AnyTask"
"""What one task reads; it goes to executors."""


def ranges_of_directory(path: Path, split_bytes: int = SPLIT_BYTES) -> Sequence[Range]:
    """Return the ranges of a directory's whole log.

    Raises:
        UsageError: There is no store.
        CorruptionError: The log does not hold together: records may be missing.
    """
    cut = plan(path, split_bytes)
    cut.complete()
    return cut.splits


def ranges_of_source(
    topic: str, path: Path | None, servers: str, archive: Path | None
) -> Sequence[Range]:
    """Return the tasks that read a topic of a cluster, of an archive, or of both as one.

    Raises:
        SourceError: Topic or archive do not exist.
        SourceUnavailable: No node answered.
        DataLossError: Rows are missing between the archive and what is live.
    """
    from twinlog.spark.source.queries import batch_query

    named = {"path": path, "servers": servers, "archive": archive}
    given = {name: str(value) for name, value in named.items() if value}
    tasks = batch_query({"subscribe": topic, **given}, columns=()).tasks(0)
    return [replace(task, reading=replace(task.reading, stored=True)) for task in tasks]


def records_in(one: Range) -> Iterator[tuple[memoryview, Sequence[int]]]:
    """Yield the records of a range: bytes that hold some, lent until the next, and their starts.

    Raises:
        CorruptionError: They end where the log continues, or one is damaged or gone.
        SourceUnavailable: No node served them in time.
    """
    if isinstance(one, LogRange):
        data, length = records_of(one)
        raw = kernels.record_starts(data, 0, length)[0]
        yield data, memoryview(raw).cast("q").tolist()
        return
    from twinlog.spark.source.queries import read_any

    for batch in read_any(one):
        _, starts, held = batch.column("record").buffers()
        yield memoryview(held), memoryview(starts).cast("i").tolist()[: batch.num_rows]


def picked(one: Range, places: Sequence[int]) -> list[bytes]:
    """Return the records of a range that begin at some log offsets, in their order.

    Raises:
        DataLossError: One is gone, or is not what it was.
    """
    if isinstance(one, LogRange):
        data = one.read()
        return [_record(data, place - one.start) for place in places]
    wanted, found = set(places), dict[int, bytes]()
    for data, starts in records_in(one):
        for at in starts:
            place = int.from_bytes(data[at + 28 : at + 36], "big")
            if place in wanted:
                found[place] = _record(data, at)
    lost = wanted - found.keys()
    if lost:
        text = f"{len(lost)} records were deleted since they were counted, the first at {min(lost)}"
        raise DataLossError(text, hint="compact again", offset=min(lost))
    return [found[place] for place in places]


def _record(data: memoryview, at: int) -> bytes:
    return bytes(data[at : at + int.from_bytes(data[at : at + 4], "big")])
