"""``twinlog spark archive`` and ``restore``: sealed segments to Parquet files and back.

``archive --follow`` repeats until it is stopped, ``archive.every`` of the cluster file between two
runs. A cluster that cannot be reached is waited for: the next run tries again. A run that finds
damage is the last one, so that it is not lost among those that follow.

Not here: the jobs (``twinlog.spark.archive``).
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cli.context import Context
from cli.failures import Exit, Failure
from cli.parsing import PRIVATE
from cli.spark.run import Run, archive_at, store_at
from twinlog.errors import UnavailableError
from twinlog.units import format_duration, parse_duration, parse_whole

if TYPE_CHECKING:
    from node.config.config import ClusterConfig
    from twinlog.spark.archive.job import ArchiveSettings

EVERY_SECONDS = 600.0
"""Between two runs when nothing else is said: a segment of 1 GiB is sealed less often."""


def archive(
    *,
    path: Path | None = None,
    servers: str = "",
    to: Path | None = None,
    tell: str = "",
    no_tell: bool = False,
    replace: bool = False,
    read_from: str = "slave",
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

    Read from a directory, or over the wire from the slaves of a cluster: that of --servers, else of
    the cluster file. Each segment is read back and made into bytes again before the archive counts
    it; then the nodes are notified, and with retention.archive they may delete it. Each portion of
    segments is committed when it is proven; a run that is stopped keeps those.

    Exit 0: done. 65: something is damaged, or the archive and a node hold different bytes.

    Args:
        path: Directory of a store, best a slave's; every task must see it.
        servers: Addresses of a cluster instead of a directory.
        to: Directory of the archive, which every task must see; without it archive.to of the file.
        tell: Addresses of the cluster to notify, with --path.
        no_tell: Notify no node; retention then relies on another archive, or on none.
        replace: This archive counts for the nodes from now on, no longer the one before.
        read_from: Whom tasks ask: slave (then the master), any, master, or a node's name.
        group: Group the directory belongs to.
        codec: Compression of the files: zstd:1 to zstd:19, snappy, gzip, none.
        older_than: Only segments whose newest record is at least so old, as 24h.
        follow: Go on, every so often, until stopped or a run does not end with 0.
        every: Time between two runs, with --follow; without it archive.every of the cluster file.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.archive import job
    from twinlog.spark.archive.writing import parse_codec

    config = context.config() if context.config_path() is not None else None
    nodes, told = _clusters(context, path, servers, tell, no_tell)
    source, target = None if path is None else store_at(path), _target(to, config)
    packing, age = parse_codec(codec), parse_duration(older_than)
    settings = job.ArchiveSettings(
        source, target, group, nodes, read_from, told, no_tell, replace, packing, age
    )
    pause = _pause(every, config)
    with Run(context, master, report, *nodes, *told) as run:
        if follow:
            return _repeated(context, run, settings, pause)
        return run.finish(job.archive(run.engine, settings))


def _clusters(
    context: Context, path: Path | None, servers: str, tell: str, no_tell: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the addresses that are read, and those that are notified.

    Raises:
        Failure: They contradict the directory (exit 64), or no cluster is named.
    """
    from twinlog.session.routing import parse_endpoints

    if path is not None and servers:
        text = "a directory and a cluster are named"
        raise Failure(Exit.USAGE, text, hints=("tell the cluster about it: --tell ADDRESSES",))
    if tell and no_tell:
        raise Failure(Exit.USAGE, "--tell and --no-tell are both given")
    if tell and path is None:
        text = "--tell goes with --path: the cluster that is read is notified anyway"
        raise Failure(Exit.USAGE, text)
    read = parse_endpoints(servers or context.endpoints()) if path is None else ()
    told = parse_endpoints(tell) if tell else ()
    return tuple(map(str, read)), tuple(map(str, told))


def _target(to: Path | None, config: ClusterConfig | None) -> Path:
    """Return the archive's directory; what the cluster file names is relative to the file."""
    if to is not None:
        return to.absolute()
    if config is not None and config.archive.to:
        return Path(os.path.abspath(config.path.parent / config.archive.to))
    hints = ("name it: --to DIRECTORY, or archive.to in the cluster file",)
    raise Failure(Exit.USAGE, "nothing says where the archive is", hints=hints)


def _pause(every: str, config: ClusterConfig | None) -> float:
    """Return the seconds between two runs."""
    given = EVERY_SECONDS if config is None else config.archive.every
    pause = parse_duration(every) if every else given
    if pause <= 0:
        raise Failure(Exit.USAGE, "no time lies between two runs", hints=("name it, as 10m",))
    return pause


def _repeated(context: Context, run: Run, settings: ArchiveSettings, pause: float) -> int:
    """Archive again and again; return the exit code of the first run whose report is not fine.

    A cluster out of reach is no end of it, every other error is.
    """
    from twinlog.spark.archive import job

    while True:
        try:
            code = run.finish(job.archive(run.engine, settings))
        except UnavailableError as error:
            context.printer.note(f"not archived this time: {error.text}")
        else:
            if code != Exit.OK:
                return code
        context.printer.detail(f"next run in {format_duration(pause)}")
        time.sleep(pause)


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

    Exit 0: done, or with --check all whole. 1: offsets are missing, between segments or of what
    --range names. 65: something is damaged.

    Args:
        archive: Directory of the archive.
        to: Directory of the store that is made.
        group: Whose segments.
        range_: Which log offsets, as 0:4294967296.
        check: Look whether the archive is whole and write nothing.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.archive import restore as job

    start, end = _offsets(range_)
    settings = job.RestoreSettings(
        archive_at(archive), to.absolute() if to else None, group, start, end, check
    )
    with Run(context, master, report) as run:
        return run.finish(job.restore(run.engine, settings))


def _offsets(text: str) -> tuple[int, int]:
    """Return the log offsets of a range; only ``start``, ``end`` and numbers make sense here."""
    from twinlog.spark.archive.restore import LAST

    first, colon, last = text.partition(":")
    start = -1 if first in ("", "start") else parse_whole(first)
    end = LAST if last in ("", "end") else parse_whole(last)
    if not colon or start is None or end is None or start >= end:
        hints = ("write it as 0:4294967296, or start:",)
        raise Failure(Exit.USAGE, f"{text!r} is no range of log offsets", hints=hints)
    return start, end
