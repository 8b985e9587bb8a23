"""``twinlog spark replay``: the records of a topic into a topic again.

Not here: the job (``twinlog.spark.jobs.replay``).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cli.context import Context
from cli.failures import Exit, Failure, Interrupted
from cli.parsing import PRIVATE
from cli.spark.run import Run, source_of
from twinlog.spark.jobs.replay.job import run as send_again
from twinlog.spark.jobs.replay.settings import ReplaySettings
from twinlog.spark.sink.settings import Rate, rate_of


def replay(
    *,
    topic: str,
    to_topic: str,
    path: Path | None = None,
    from_servers: str = "",
    archive: Path | None = None,
    servers: str = "",
    range_: str = "",
    since: str = "",
    until: str = "",
    tags: str = "",
    keys: Path | None = None,
    same_queues: bool = False,
    keep_time: bool = False,
    rate: str = "",
    resume: Path | None = None,
    dry_run: bool = False,
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Send the records of a topic to a topic again, from a store, cluster or archive.

    Args:
        path: Directory of the store that is read; or --from-servers, or --archive.
        topic: Topic that is read.
        to_topic: Topic that is written; it must exist.
        from_servers: Addresses of the cluster that is read, instead of a directory.
        archive: Archive that is read alone, or before --path or --from-servers.
        servers: Addresses of the cluster that is written; without it the cluster file's.
        range_: Which records: @-1h:, 100:200, -100: (see message read).
        since: First store time: ms since 1970, 2026-11-21T10:00Z or -2h.
        until: Store time before which it ends.
        tags: Only these tags, as "a || b".
        keys: File with a key in each line: only records that have one of them.
        same_queues: Each record to the queue that it had.
        keep_time: Each record keeps the time at which it was born; store times are always new.
        rate: All tasks together at most: messages a second, as 500, or 50 MiB/s.
        resume: Directory that remembers how far it came, to go on there; not with --until.
        dry_run: Count messages, bytes and the time they take at --rate; send nothing.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    store = source_of(path, from_servers, archive)
    memory = _resume(resume, bounded=bool(range_ or until))
    target = servers or ("" if dry_run else ",".join(context.endpoints()))
    what = ReplaySettings(store, topic, target, to_topic, range_, tags, from_servers, since, until)
    settings = replace(
        what,
        keys=_keys(keys) if keys else (),
        same_queues=same_queues,
        keep_time=keep_time,
        rate=_rate(rate) if rate else None,
        resume=memory,
        dry_run=dry_run,
        archive=archive.absolute() if archive else None,
    )
    return _sent(Run(context, master, report, from_servers, target), settings)


def _sent(run: Run, settings: ReplaySettings) -> int:
    """Replay; Ctrl-C says what became of the rows that were sent.

    Raises:
        Interrupted: Ctrl-C.
    """
    try:
        with run:
            return run.finish(send_again(run.session, settings))
    except KeyboardInterrupt:
        if settings.dry_run:
            raise
        left = f"rows that were sent stay in {settings.to_topic}; a second replay sends them again"
        if settings.resume is not None:
            left = f"the same command goes on where {settings.resume} says, nothing is sent twice"
        raise Interrupted([left]) from None


def _resume(resume: Path | None, *, bounded: bool) -> Path | None:
    """Return the directory that remembers; refuse what a stream cannot do."""
    if resume is None:
        return None
    if bounded:
        text = "--range and --until do not go with --resume: what was done is remembered by place"
        raise Failure(Exit.USAGE, text)
    return resume.absolute()


def _rate(text: str) -> Rate:
    try:
        return rate_of(text)
    except ValueError:
        hints = ("write messages a second, as 500, or bytes, as 50MiB/s",)
        raise Failure(Exit.USAGE, f'"{text}" is no rate', hints=hints) from None


def _keys(path: Path) -> tuple[str, ...]:
    """Return the keys that a file names."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise Failure(Exit.MISSING, f"{path} cannot be read: {error.strerror}") from None
    found = tuple(line.strip() for line in lines if line.strip())
    for key in found:
        if "," in key or " " in key:
            hints = ("one key in each line: blanks separate keys in a record, commas here",)
            raise Failure(Exit.USAGE, f'"{key}" in {path} is no key', hints=hints)
    if not found:
        raise Failure(Exit.USAGE, f"{path} names no key")
    return found
