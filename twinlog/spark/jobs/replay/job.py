"""replay: records of a store, a cluster or an archive into a topic of a cluster, again.

Source, filters, sink. Each row gets the property ``TL_ORIGIN`` (where it came from), so that the
replay of a replay is recognised; properties that belong to the first delivery are left behind. With
``resume`` it is a stream that reads what is there and ends: killed and started again, it continues
where it was and stores nothing twice. An archive is sent before what is live is
(`twinlog.spark.jobs.replay.archive`).

Not here: reading, sending.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from twinlog.spark import register
from twinlog.spark.engine.engine import SparkEngine
from twinlog.spark.engine.report import Report, Rows, Value
from twinlog.spark.jobs.replay import archive, memory
from twinlog.spark.jobs.replay.settings import LEFT_BEHIND, ReplaySettings, chosen, decided
from twinlog.spark.sink.settings import Rate

BATCH_ROWS = 100_000
"""Rows of one micro-batch of a replay that can be resumed: what is sent again after a kill."""


PROGRESS_MAX = 100_000
"""Micro-batches whose progress Spark keeps, to tell in the end how many rows were sent."""


def columns(settings: ReplaySettings) -> list[str]:
    """Return the expressions that make the sink's columns of a record's."""
    left = ", ".join(f"'{name}'" for name in LEFT_BEHIND)
    kept = f"map_filter(properties, (name, value) -> name NOT IN ({left}))"
    origin = "map('TL_ORIGIN', concat(coalesce(broker, ''), '/', physical_offset))"
    found = [
        "body",
        "key",
        "tags",
        "properties['__SHARDINGKEY'] AS order_key",
        f"map_concat({kept}, {origin}) AS properties",
    ]
    found += ["queue_id"] if settings.same_queues else []
    return [*found, "born_timestamp"] if settings.keep_time else found


def run(session: Any, settings: ReplaySettings) -> Report:
    """Replay, or count what would be."""
    register(session)
    counted = source(session.read, settings).selectExpr(
        "count(*) AS rows",
        "coalesce(sum(octet_length(body)), 0) AS bytes",
        "unix_millis(min(store_timestamp)) AS first",
        "unix_millis(max(store_timestamp)) AS last",
    )
    rows, size, first, last = counted.collect()[0]
    sent = None if settings.dry_run else rows
    if not settings.dry_run and rows:
        if settings.resume is None:
            frame = source(session.read, settings).selectExpr(*columns(settings))
            at_once = session.sparkContext.defaultParallelism
            tasks = min(at_once, frame.rdd.getNumPartitions()) if settings.rate else at_once
            sink(frame.write.mode("append"), settings, tasks).save()
        else:
            sent = _resumed(session, settings, settings.resume)
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "source": str(settings.path or settings.from_servers or settings.archive),
        "archive": str(settings.archive) if settings.archive else None,
        "topic": settings.topic,
        "to_topic": settings.to_topic,
        "dry_run": settings.dry_run,
        "rows": rows,
        "sent": sent,
        "bytes": size,
        "first_ms": first,
        "last_ms": last,
        "seconds_at_rate": seconds_at(settings.rate, rows, size),
    }
    word = f"{rows} rows would be sent" if sent is None else f"{sent} rows sent"
    if sent is not None and sent < rows:
        word += f", {rows - sent} of {rows} had been before"
    head = f"{settings.topic} to {settings.to_topic} · {word}"
    table = Rows("ROWS> BYTES> FIRST-MS> LAST-MS>", [(rows, size, first, last)])
    return Report("SparkReplay", head, fields, {"counts": table})


def seconds_at(rate: Rate | None, rows: int, size: int) -> float | None:
    """Return the seconds that this many rows or bytes take at a rate; None without a rate.

    >>> seconds_at(Rate(50.0), 100, 0), seconds_at(Rate(1024.0, size=True), 100, 4096)
    (2.0, 4.0)
    """
    return None if rate is None else (size if rate.size else rows) / rate.amount


def source(reader: Any, settings: ReplaySettings) -> Any:
    """Return the frame of the chosen records, from a Spark reader with its further options."""
    return reader.format("twinlog").options(**chosen(settings)).load()


def sink(writer: Any, settings: ReplaySettings, tasks: int) -> Any:
    """Return a Spark writer that sends to ``to_topic``, with ``tasks`` of it at work at once."""
    writer = writer.format("twinlog").option("servers", settings.servers)
    writer = writer.option("topic", settings.to_topic)
    return writer.option("rate", settings.rate.over(tasks)) if settings.rate else writer


LIVE = "live"
"""Where in the memory of a replay the checkpoint of the stream after an archive is."""


def _resumed(session: Any, settings: ReplaySettings, resume: Path) -> int:
    """Send what ``resume`` does not know as sent, and return how many rows that were.

    Raises:
        UsageError: ``resume`` remembers another replay, or another run has it.
    """
    first = "" if settings.since else "earliest"
    if settings.archive is None:
        memory.refuse(resume)
        with memory.locked(resume):
            memory.same_stream(resume, decided(settings))
            return _stream(session, settings, resume, first)
    with memory.held(resume):
        live, sent = resume / LIVE, 0
        begun = (live / "offsets" / "0").exists()
        if not begun:
            context = session.sparkContext
            sent = archive.send(
                SparkEngine(context),
                settings,
                now_ms=round(time.time() * 1000),
                at_once=context.defaultParallelism,
            )
        if settings.path is None and not settings.from_servers:
            return sent
        # From then on the checkpoint says where it continues; retention may take what was before.
        following = {} if begun else archive.follows(settings)
        if following:
            queues = {str(queue): begin for queue, begin in following.items()}
            first = json.dumps({settings.topic: queues})
        if begun or following:
            alone = replace(settings, archive=None, since="")
            sent += _stream(session, alone, live, first or "earliest")
        return sent


def _stream(session: Any, settings: ReplaySettings, checkpoint: Path, first: str) -> int:
    """Send what a checkpoint does not know as sent, from ``first`` on if it knows nothing."""
    session.conf.set("spark.sql.streaming.numRecentProgressUpdates", PROGRESS_MAX)
    reader = session.readStream
    if first:
        reader = reader.option("startingOffsets", first)
    reader = reader.option("maxOffsetsPerTrigger", str(BATCH_ROWS))
    frame = source(reader, settings).selectExpr(*columns(settings))
    tasks = session.sparkContext.defaultParallelism
    writer = sink(frame.writeStream, settings, tasks).option("checkpointLocation", str(checkpoint))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return sum(progress["numInputRows"] for progress in query.recentProgress)
