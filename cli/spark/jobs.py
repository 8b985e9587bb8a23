"""``twinlog spark``: jobs over whole stores, run by Spark.

With no ``--master`` a Spark of this machine starts for the command, on all cores; inside
``spark-submit`` the one there is runs the job. Progress goes to stderr, one report to stdout, the
same report as JSON to ``--report``. Ctrl-C cancels the tasks and leaves no half result.

Not here: the jobs (``twinlog.spark.jobs``), sessions (``cli.spark.run``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.context import Context
from cli.failures import Exit, Failure, nearest
from cli.parsing import PRIVATE
from cli.spark.run import Run, addresses_of, one_origin, store_at
from twinlog.units import parse_size


def verify(
    *,
    path: Path | None = None,
    servers: str = "",
    node: str = "",
    level: str = "",
    split_bytes: str = "64 MiB",
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Check every byte of a store, its queues and its index, in parallel.

    With --servers the logs of running nodes, over the wire: every batch and record below their
    confirm offsets. Queues and index are checked on directories.

    Exit 0: sound. 65: damaged. 2: something could not be read.

    Args:
        path: Directory of the store, ours or RocketMQ's; every task must see it.
        servers: Addresses of a cluster instead of a directory.
        node: Only this node of it.
        level: structure (no CRCs), crc (no queues and index) or full; default full, of nodes crc.
        split_bytes: Bytes of the log in one piece of work.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.jobs.verify import directory as job
    from twinlog.spark.jobs.verify import nodes

    levels = {level.value: level for level in job.Level}
    if level and level not in levels:
        text = f'there is no level "{level}"'
        raise Failure(Exit.USAGE, text, hints=nearest(level, levels))
    one_origin(path, servers)
    size = _piece(split_bytes)
    with Run(context, master, report, servers) as run:
        if path is not None:
            settings = job.VerifySettings(store_at(path), levels[level or "full"], size)
            return run.finish(job.run(run.engine, settings))
        wanted = levels[level or "crc"]
        asked = nodes.NodesSettings(addresses_of(servers), node, wanted, size)
        return run.finish(nodes.run(run.engine, asked))


def rebuild(
    *,
    path: Path,
    what: str = "queues,index",
    to: Path | None = None,
    check: bool = False,
    split_bytes: str = "64 MiB",
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Rebuild queue files and key index from the log.

    Exit 0: done, or with --check nothing differs. 1: with --check something does.

    Args:
        path: Directory of the store; no node may run on it unless --to or --check is given.
        what: queues, index or both.
        to: New directory for the result, instead of the store itself.
        check: Compare with what is there and change nothing.
        split_bytes: Bytes of the log in one piece of work.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.jobs.rebuild import job

    parts = {part.strip() for part in what.split(",")}
    for part in sorted(parts - {"queues", "index"}):
        text = f'nothing to rebuild is called "{part}"'
        raise Failure(Exit.USAGE, text, hints=nearest(part, ("queues", "index")))
    settings = job.RebuildSettings(
        store_at(path), "queues" in parts, "index" in parts, to, check, _piece(split_bytes)
    )
    with Run(context, master, report) as run:
        return run.finish(job.run(run.engine, settings))


def compare(
    *,
    path: list[Path] | None = None,
    servers: list[str] | None = None,
    split_bytes: str = "64 MiB",
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show whether stores hold the same bytes, and the first record that differs.

    Directories, the nodes of one running cluster with its master, or clusters with each other. What
    only one has (a slave that lags, retention) is no difference.

    Exit 0: no byte differs where both have bytes. 1: one does.

    Args:
        path: Directory of a store; once for each, the first is compared with the others.
        servers: Addresses of a cluster; alone: its nodes, once for each cluster otherwise.
        split_bytes: Bytes of the log in one piece of work.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.jobs.verify import compare as job

    paths = [store_at(one) for one in path or ()]
    clusters = [addresses_of(each) for each in servers or ()]
    settings = job.CompareSettings(paths, _piece(split_bytes), clusters)
    with Run(context, master, report, *(servers or ())) as run:
        return run.finish(job.run(run.engine, settings))


PIECE_MIN = 1024
"""Least length of a piece of work, bytes: all pieces are listed before the first one runs."""


def _piece(text: str) -> int:
    """Return the length of a piece of work.

    Raises:
        Failure: It is too short (exit 64).
    """
    size = parse_size(text)
    if size < PIECE_MIN:
        raise Failure(Exit.USAGE, f"a piece of work has at least 1 KiB, not {text}")
    return size
