"""``twinlog spark compact``: the newest record of each key of a topic.

Not here: the job (``twinlog.spark.jobs.compact``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cli.context import Context
from cli.failures import Exit, Failure
from cli.parsing import PRIVATE
from cli.spark.run import Run, source_of
from twinlog.spark.jobs.replay.settings import ReplaySettings
from twinlog.units import parse_duration


def compact(
    *,
    topic: str,
    path: Path | None = None,
    from_servers: str = "",
    archive: Path | None = None,
    to: Path | None = None,
    to_compaction: Path | None = None,
    to_topic: str = "",
    servers: str = "",
    same_queues: bool = False,
    delete_retention: str = "",
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Keep the newest record of each key of a topic; an empty body deletes its key.

    Without --to, --to-compaction and --to-topic only counts are shown.

    Args:
        topic: Topic that is read.
        path: Directory of the store, which every task must see; or --from-servers, or --archive.
        from_servers: Addresses of the cluster that is read, instead of a directory.
        archive: Archive that is read alone, or before --path or --from-servers.
        to: Directory of Parquet files that is made.
        to_compaction: Directory that is made, with RocketMQ's compaction files in it.
        to_topic: Topic that the newest records are sent to; it must exist.
        servers: Addresses of the cluster that has it; without it the cluster file's.
        same_queues: Each record to the queue that it had, with --to-topic.
        delete_retention: Age up to which an empty body stays as a row, as 24h; else none stays.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.jobs.compact import frames, job
    from twinlog.spark.jobs.compact.files import FileSizes

    _result(to, to_compaction, to_topic, sending=bool(servers or same_queues))
    store = source_of(path, from_servers, archive, "a compaction")
    kept = parse_duration(delete_retention) if delete_retention else None
    since = None if kept is None else job.young(context.wall_ms(), kept)
    archived = archive.absolute() if archive else None
    given = to or to_compaction
    made = given.absolute() if given else None
    target = servers or (",".join(context.endpoints()) if to_topic else "")
    with Run(context, master, report, from_servers, target) as run:
        if not to_topic:
            files = FileSizes() if to_compaction else None
            what = job.CompactSettings(store, topic, made, young_ms=since, servers=from_servers)
            return run.finish(job.run(run.engine, replace(what, archive=archived, files=files)))
        flow = ReplaySettings(store, topic, target, to_topic, from_servers=from_servers)
        flow = replace(flow, archive=archived, same_queues=same_queues)
        return run.finish(frames.run(run.session, frames.FramesSettings(flow, since)))


def _result(to: Path | None, to_compaction: Path | None, to_topic: str, *, sending: bool) -> None:
    """Refuse results of a compaction that do not go together."""
    given = {"--to": to, "--to-compaction": to_compaction, "--to-topic": to_topic}
    named = [name for name, value in given.items() if value]
    if len(named) > 1:
        text = f"a compaction has one result: {' and '.join(named)} are both given"
        raise Failure(Exit.USAGE, text)
    if sending and not to_topic:
        text = "--servers and --same-queues go with --to-topic: nothing is sent without it"
        raise Failure(Exit.USAGE, text, hints=("the cluster that is read is --from-servers",))
