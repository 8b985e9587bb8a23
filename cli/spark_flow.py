"""``twinlog spark replay`` and ``compact``: records into a topic again, the newest of each key.

Not here: the jobs (``twinlog.spark.jobs``).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cli.context import Context
from cli.failures import Exit, Failure
from cli.parsing import PRIVATE
from cli.spark_run import Run, store_at


def replay(
    *,
    path: Path,
    topic: str,
    to_topic: str,
    servers: str = "",
    range_: str = "",
    tags: str = "",
    same_queues: bool = False,
    rate: float = 0.0,
    resume: Path | None = None,
    dry_run: bool = False,
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Send the records of a topic to a topic again, from a store directory to a cluster.

    With --resume a replay that was stopped goes on where it was and stores nothing twice.

    Args:
        path: Directory of the store that is read.
        topic: Its topic.
        to_topic: Topic that is written; it must exist.
        servers: Addresses of the cluster; without it the cluster file's.
        range_: Which records: @-1h:, 100:200, -100: (see message read).
        tags: Only these tags, as "a || b".
        same_queues: Each record to the queue that it had.
        rate: Rows per second of each task, at most.
        resume: Directory that remembers how far it came; not together with --range.
        dry_run: Count rows and bytes, send nothing.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.jobs import replay as job

    if resume is not None and range_:
        text = "--range and --resume do not go together: what was done is remembered by position"
        raise Failure(Exit.USAGE, text)
    where = servers or ("" if dry_run else ",".join(context.endpoints()))
    settings = job.ReplaySettings(
        path=store_at(path),
        topic=topic,
        servers=where,
        to_topic=to_topic,
        range=range_,
        tags=tags,
        same_queues=same_queues,
        rate=rate,
        resume=resume.absolute() if resume else None,
        dry_run=dry_run,
    )
    with Run(context, master, report) as run:
        return run.finish(job.run(run.session, settings))


def compact(
    *,
    path: Path,
    topic: str,
    to: Path | None = None,
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Keep the newest record of each key of a topic; an empty body deletes its key.

    Args:
        path: Directory of the store; every task must see it.
        topic: The topic.
        to: Directory of Parquet files that is made; without it only counts are shown.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.jobs import compact as job

    settings = job.CompactSettings(store_at(path), topic, to.absolute() if to else None)
    with Run(context, master, report) as run:
        return run.finish(job.run(run.engine, settings))
