"""``twinlog spark stats|trace|lag|timeline|sql``: questions about what a store holds.

All but ``sql`` answer without Spark, too (``TWINLOG_SPARK_ENGINE=plain``), row for row the same.

Not here: the questions (``twinlog.spark.jobs.reports.queries``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cli.context import Context
from cli.failures import Exit, Failure, nearest
from cli.parsing import PRIVATE
from cli.spark.run import Run, origin_of
from twinlog.units import UnitError, parse_duration

if TYPE_CHECKING:
    from twinlog.spark.jobs.reports.tables import ReportSource


def stats(
    name: str,
    /,
    *,
    path: Path | None = None,
    servers: str = "",
    archive: Path | None = None,
    topic: str = "",
    top: int = 10,
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Answer a ready-made question: rates, sizes, hot-keys, skew, latency, delivery, failovers.

    delivery tells how long messages took from their producer to each consumer group, where clients
    write traces. With --archive, archive and live store are read as one.

    Args:
        name: rates, sizes, hot-keys, skew, latency, delivery or failovers.
        path: Directory of a store; every task must see it.
        servers: Addresses of a cluster instead of a directory.
        archive: Directory of an archive: what the store no longer has, or alone.
        topic: Only this topic.
        top: Rows of a ranking.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.jobs.reports import tables
    from twinlog.spark.jobs.reports.queries import STATS

    if name not in STATS:
        facts = (f"there are {', '.join(STATS)}",)
        raise Failure(
            Exit.USAGE, f'no report is called "{name}"', facts=facts, hints=nearest(name, STATS)
        )
    if top < 1:
        raise Failure(Exit.USAGE, f"a ranking has at least one row, not {top}")
    origin = origin_of(path, servers, topic, archive)
    with Run(context, master, report, servers) as run:
        known = tables.facts_of(origin, now=context.wall_ms(), top=top, asked=name == "failovers")
        return run.finish(tables.report_on(run.session_or_none, STATS[name], origin, known))


def trace(
    key: str,
    /,
    *,
    path: Path | None = None,
    servers: str = "",
    archive: Path | None = None,
    topic: str = "",
    scan: bool = False,
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show everything that carries a key or an id, over all topics, in time order.

    A directory's key index is asked first, without Spark; it knows keys and ids, but not retries
    and dead letters that name where they came from: for those use --scan. With --archive everything
    is read. What groups did with the messages is among the rows, with the group's name. Exit 1:
    nothing found.

    Args:
        key: A key, or the id that the producer gave a message.
        path: Directory of a store; every task must see it.
        servers: Addresses of a cluster instead of a directory.
        archive: Directory of an archive: what the store no longer has, or alone.
        topic: Only this topic.
        scan: Read everything instead of asking the index.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from dataclasses import replace

    from twinlog.spark.engine.report import Verdict
    from twinlog.spark.jobs.reports import tables
    from twinlog.spark.jobs.reports.queries import TRACE

    if not key.strip():
        raise Failure(Exit.USAGE, "a trace is of a key or an id, and this one is empty")
    origin = origin_of(path, servers, topic, archive)
    with Run(context, master, report, servers) as run:
        if origin.path is not None and origin.archive is None and not scan:
            found = tables.trace_by_index(origin, key)
        else:
            known = tables.facts_of(origin, key=key)
            found = tables.report_on(run.session_or_none, TRACE, origin, known)
        if not found.tables["rows"].rows:
            found = replace(found, verdict=Verdict.NO)
        return run.finish(found)


def lag(
    *,
    path: Path | None = None,
    servers: str = "",
    every: str | None = None,
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show how far each consumer group is behind, in messages and in age; or was, over time.

    A cluster says where its groups are now; a directory has what its last snapshot, or its clean
    stop, wrote. COMMITTED is the first message that is not settled; of those after it some may be.
    With --every the rows of groups in the log say where each group was, as far back as the log
    goes.

    Args:
        path: Directory of a store with its config directory; every task must see it.
        servers: Addresses of a cluster instead of a directory.
        every: Show where groups were at the end of each span of this length, as 1m.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    origin = origin_of(path, servers)
    if every is None:
        return _asked("lag", origin, master, report, context)
    from twinlog.spark.jobs.reports import tables
    from twinlog.spark.jobs.reports.queries import LAG_OVER_TIME

    span = _span(every)
    with Run(context, master, report, servers) as run:
        known = tables.positions_taken(origin, tables.facts_of(origin), span)
        return run.finish(tables.report_on(run.session_or_none, LAG_OVER_TIME, origin, known))


def _span(word: str) -> int:
    try:
        found = round(parse_duration(word) * 1000)
    except UnitError as error:
        text = f'--every is "{word}", which is not a duration'
        raise Failure(Exit.USAGE, text, hints=(error.hint,)) from None
    if found < 1:
        raise Failure(Exit.USAGE, f"--every is {word}; a span lasts 1 ms at least")
    return found


def timeline(
    *,
    path: Path | None = None,
    servers: str = "",
    archive: Path | None = None,
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Show delayed messages: when each is due, whether it was delivered, how late.

    Messages that members of groups gave back for a while are among them, with the group's name; of
    an archive they are not known.

    Args:
        path: Directory of a store; every task must see it.
        servers: Addresses of a cluster instead of a directory.
        archive: Directory of an archive: what the store no longer has, or alone.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    origin = origin_of(path, servers, archive=archive)
    return _asked("timeline", origin, master, report, context)


def _asked(
    name: str, origin: ReportSource, master: str, report: Path | None, context: Context
) -> int:
    from twinlog.spark.jobs.reports import tables
    from twinlog.spark.jobs.reports.queries import QUERIES

    with Run(context, master, report, origin.servers) as run:
        lag_ = name == "lag"
        known = tables.facts_of(origin, now=context.wall_ms(), asked=lag_, positions=lag_)
        return run.finish(tables.report_on(run.session_or_none, QUERIES[name], origin, known))


def sql(
    query: str,
    /,
    *,
    path: Path | None = None,
    servers: str = "",
    archive: Path | None = None,
    topic: str = "",
    columns: str = "default",
    master: str = "",
    report: Path | None = None,
    context: Annotated[Context, PRIVATE],
) -> int:
    """Run a query over a store: views messages, queues, epochs, segments, offsets, archive.

    At most 10,000 rows are shown. Name the columns you need: Spark is handed all that are asked
    for, whatever the query selects.

    Args:
        query: Spark SQL, as "SELECT topic, count(*) FROM messages GROUP BY topic".
        path: Directory of a store; every task must see it.
        servers: Addresses of a cluster instead of a directory.
        archive: Directory of an archive: what the store no longer has, or alone.
        topic: Only this topic in messages; without it system topics are there, too.
        columns: Columns of messages: default, full, or a list.
        master: Spark master, as spark://host:port; without it a local one.
        report: File for the report as JSON.
    """
    from twinlog.spark.jobs.reports import tables

    origin = origin_of(path, servers, topic, archive)
    with Run(context, master, report, servers) as run:
        return run.finish(tables.free_sql(run.session, query, origin, columns))
