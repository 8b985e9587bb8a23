"""``twinlog spark archive`` and ``restore``: sealed segments to Parquet files and back.

``archive --follow`` repeats until it is stopped, every ``--every`` (ten minutes without it).

Not here: the jobs (``twinlog.spark.archive``).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

from cli.context import Context
from cli.failures import Exit, Failure
from cli.parsing import PRIVATE
from cli.spark_run import Run, store_at
from twinlog.units import format_duration, parse_duration

EVERY_SECONDS = 600.0
"""Between two runs when nothing else is said: a segment of 1 GiB is sealed less often."""


def archive(
    *,
    path: Path,
    to: Path,
    group: str = "g1",
    codec: str = "zstd:3",
    older_than: str = "0 s",
    follow: bool = False,
    every: str = "",
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Write sealed segments as Parquet files, prove them, then commit.

    Each segment is read back and made into bytes again before the archive counts it. A run that is
    stopped leaves the archive as it was.

    Args:
        path: Directory of a store, best a slave's; every task must see it.
        to: Directory of the archive; it need not exist.
        group: Group the store belongs to.
        codec: Compression of the files: zstd:1 to zstd:19, snappy, gzip, none.
        older_than: Only segments whose newest record is so old.
        follow: Go on until stopped, every so often.
        every: Time between two runs, with --follow.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.archive import job
    from twinlog.spark.archive.writing import parse_codec

    settings = job.ArchiveSettings(
        path=store_at(path),
        to=to.absolute(),
        group=group,
        codec=parse_codec(codec),
        older_than=parse_duration(older_than),
    )
    pause = parse_duration(every) if every else EVERY_SECONDS
    with Run(context, master, report) as run:
        code = run.finish(job.archive(run.engine, settings))
        while follow:
            context.printer.detail(f"next run in {format_duration(pause)}")
            time.sleep(pause)
            code = run.finish(job.archive(run.engine, settings))
        return code


def restore(
    *,
    archive: Path,
    to: Path | None = None,
    group: str = "g1",
    range_: str = "start:",
    check: bool = False,
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Write archived segments as log files again, byte for byte.

    Exit 0: done, or with --check all whole. 65: with --check something is damaged.

    Args:
        archive: Directory of the archive.
        to: Directory of the store that is made.
        group: Whose segments.
        range_: Which log offsets, as 0:4294967296.
        check: Look whether the archive is whole and write nothing.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.archive import job

    if not archive.is_dir():
        raise Failure(Exit.MISSING, f"there is no directory {archive}")
    start, end = _offsets(range_)
    settings = job.RestoreSettings(
        archive.absolute(), to.absolute() if to else None, group, start, end, check
    )
    with Run(context, master, report) as run:
        return run.finish(job.restore(run.engine, settings))


def _offsets(text: str) -> tuple[int, int]:
    """Return the log offsets of a range; only ``start``, ``end`` and numbers make sense here."""
    first, colon, last = text.partition(":")
    known = {"": None, "start": 0, "end": None}
    try:
        start = known[first] if first in known else int(first)
        end = known[last] if last in known else int(last)
    except ValueError:
        colon = ""
        start = end = None
    if not colon:
        hints = ("write it as 0:4294967296, or start:",)
        raise Failure(Exit.USAGE, f"{text!r} is no range of log offsets", hints=hints)
    return start or 0, (1 << 62) if end is None else end
