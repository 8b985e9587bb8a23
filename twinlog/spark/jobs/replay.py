"""replay: records of a store, a cluster or an archive into a topic of a cluster, again.

Source, filters, sink. Each row gets the property ``TL_ORIGIN`` (where it came from), so that the
replay of a replay is recognised; properties that belong to the first delivery are left behind. With
``resume`` it is a stream that reads what is there and ends: killed and started again, it goes on
where it was and stores nothing twice. An archive is sent before what is live is
(`jobs.replay_archive`).

Not here: reading, sending.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from twinlog.spark import register
from twinlog.spark.jobs.engine import SparkEngine
from twinlog.spark.jobs.report import Report, Rows, Value
from twinlog.spark.sink.settings import Rate

LEFT_BEHIND = (
    "KEYS", "TAGS", "__SHARDINGKEY", "TL_SEQ", "TL_SRC", "TL_ORIGIN", "UNIQ_KEY", "WAIT",
    "CLUSTER", "MSG_REGION", "TRACE_ON", "REAL_TOPIC", "REAL_QID", "DELAY", "RETRY_TOPIC",
    "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE",
)  # fmt: skip
"""Properties that the sink sets itself, or that only made sense for the first delivery."""

BATCH_ROWS = 100_000
"""Rows of one micro-batch of a replay that can be resumed: what is sent again after a kill."""


PROGRESS_MAX = 100_000
"""Micro-batches whose progress Spark keeps, to tell in the end how many rows were sent."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What to replay and where to.

    Attributes:
        path: The store that is read; None with ``from_servers``, or for an archive alone.
        topic: Its topic.
        servers: The cluster that is written.
        to_topic: The topic there; it must exist.
        from_servers: Addresses of the cluster that is read; empty with ``path``.
        range: Which records, in the tools' grammar; empty: all.
        since: First store time: ms, an ISO time or ``-2h``; empty: from the start.
        until: Store time before which it ends; empty: what is there.
        tags: Only these tags; empty: all.
        keys: Only records with one of these keys; empty: all.
        same_queues: Whether a row goes to the queue that it had.
        keep_time: Whether a row keeps the time at which it was born.
        rate: What all tasks together send at most; None: no limit.
        resume: Directory that remembers how far it came; None: start anew.
        dry_run: Only count.
        archive: Directory of an archive in front of what is read, or read alone.
    """

    path: Path | None
    topic: str
    servers: str
    to_topic: str
    range: str = ""
    tags: str = ""
    from_servers: str = ""
    since: str = ""
    until: str = ""
    keys: tuple[str, ...] = ()
    same_queues: bool = False
    keep_time: bool = False
    rate: Rate | None = None
    resume: Path | None = None
    dry_run: bool = False
    archive: Path | None = None


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
    """Return how long so much takes at a rate; None without one.

    >>> seconds_at(Rate(50.0), 100, 0), seconds_at(Rate(1024.0, size=True), 100, 4096)
    (2.0, 4.0)
    """
    return None if rate is None else (size if rate.size else rows) / rate.amount


def chosen(settings: ReplaySettings) -> dict[str, str]:
    """Return the source's options.

    >>> settings = ReplaySettings(None, "t", "n1:1", "u", from_servers="n2:1", since="-2h")
    >>> chosen(settings)
    {'subscribe': 't', 'servers': 'n2:1', 'startingTimestamp': '-2h'}
    """
    found = {
        "subscribe": settings.topic,
        "path": "" if settings.path is None else str(settings.path),
        "servers": settings.from_servers,
        "archive": "" if settings.archive is None else str(settings.archive),
        "range": settings.range,
        "startingTimestamp": settings.since,
        "endingTimestamp": settings.until,
        "tags": settings.tags,
        "keys": ",".join(settings.keys),
    }
    return {name: text for name, text in found.items() if text}


def decided(settings: ReplaySettings) -> dict[str, str]:
    """Return what decides which rows are sent and how, for the memory of a replay.

    Where they are read and where nodes are found is not among it: addresses may change.
    """
    keys = "\n".join(settings.keys).encode()
    return {
        "topic": settings.topic,
        "to-topic": settings.to_topic,
        "tags": settings.tags,
        "keys": hashlib.sha256(keys).hexdigest() if keys else "",
        "since": settings.since,
        "same-queues": str(settings.same_queues),
        "keep-time": str(settings.keep_time),
    }


def source(reader: Any, settings: ReplaySettings) -> Any:
    """Return the frame of what is chosen, from a reader of Spark's with its further options."""
    return reader.format("twinlog").options(**chosen(settings)).load()


def sink(writer: Any, settings: ReplaySettings, tasks: int) -> Any:
    """Return a writer of Spark's that sends to ``to_topic``, ``tasks`` of it at once."""
    writer = writer.format("twinlog").option("servers", settings.servers)
    writer = writer.option("topic", settings.to_topic)
    return writer.option("rate", settings.rate.over(tasks)) if settings.rate else writer


LIVE = "live"
"""Where in the memory of a replay the checkpoint of the stream behind an archive lies."""


def _resumed(session: Any, settings: ReplaySettings, resume: Path) -> int:
    """Send what ``resume`` does not know as sent, and return how many rows that were.

    Raises:
        UsageError: ``resume`` remembers another replay, or another run has it.
    """
    from twinlog.spark.jobs import replay_archive, replay_memory

    first = "" if settings.since else "earliest"
    if settings.archive is None:
        replay_memory.refuse(resume)
        with replay_memory.locked(resume):
            replay_memory.same_stream(resume, decided(settings))
            return _stream(session, settings, resume, first)
    with replay_memory.held(resume):
        live, sent = resume / LIVE, 0
        begun = (live / "offsets" / "0").exists()
        if not begun:
            context = session.sparkContext
            sent = replay_archive.send(
                SparkEngine(context),
                settings,
                now_ms=round(time.time() * 1000),
                at_once=context.defaultParallelism,
            )
        if settings.path is None and not settings.from_servers:
            return sent
        # From then on the checkpoint says where it goes on; retention may take what was before.
        following = {} if begun else replay_archive.follows(settings)
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
