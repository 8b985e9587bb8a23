"""replay: records of a store into a topic of a cluster, again.

Source, filters, sink. Each row gets the property ``TL_ORIGIN`` (where it came from), so that the
replay of a replay is recognised; properties that belong to the first delivery are left behind. With
``resume`` it is a stream that reads what is there and ends: killed and started again, it goes on
where it was and stores nothing twice.

Not here: reading, sending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twinlog.spark import register
from twinlog.spark.jobs.report import Report, Rows, Value

LEFT_BEHIND = (
    "KEYS", "TAGS", "__SHARDINGKEY", "TL_SEQ", "TL_SRC", "TL_ORIGIN", "UNIQ_KEY", "WAIT",
    "CLUSTER", "MSG_REGION", "TRACE_ON", "REAL_TOPIC", "REAL_QID", "DELAY", "RETRY_TOPIC",
)  # fmt: skip
"""Properties that the sink sets itself, or that only made sense for the first delivery."""

BATCH_ROWS = 100_000
"""Rows of one micro-batch of a replay that can be resumed: what is sent again after a kill."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What to replay and where to.

    Attributes:
        path: The store that is read.
        topic: Its topic.
        servers: The cluster that is written.
        to_topic: The topic there; it must exist.
        range: Which records, in the tools' grammar; empty: all.
        tags: Only these tags; empty: all.
        same_queues: Whether a row goes to the queue that it had.
        rate: Rows per second of each task; 0: no limit.
        resume: Directory that remembers how far it came; None: start anew.
        dry_run: Only count.
    """

    path: Path
    topic: str
    servers: str
    to_topic: str
    range: str = ""
    tags: str = ""
    same_queues: bool = False
    rate: float = 0.0
    resume: Path | None = None
    dry_run: bool = False


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
    return [*found, "queue_id"] if settings.same_queues else found


def run(session: Any, settings: ReplaySettings) -> Report:
    """Replay, or count what would be."""
    register(session)
    counted = _source(session.read, settings).selectExpr(
        "count(*) AS rows",
        "coalesce(sum(octet_length(body)), 0) AS bytes",
        "unix_millis(min(store_timestamp)) AS first",
        "unix_millis(max(store_timestamp)) AS last",
    )
    rows, size, first, last = counted.collect()[0]
    if not settings.dry_run and rows:
        if settings.resume is None:
            frame = _source(session.read, settings).selectExpr(*columns(settings))
            _sink(frame.write.mode("append"), settings).save()
        else:
            _stream(session, settings, settings.resume)
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "source": str(settings.path),
        "topic": settings.topic,
        "to_topic": settings.to_topic,
        "dry_run": settings.dry_run,
        "rows": rows,
        "bytes": size,
        "first_ms": first,
        "last_ms": last,
    }
    word = "would be sent" if settings.dry_run else "sent"
    head = f"{settings.topic} to {settings.to_topic} · {rows} rows {word}"
    table = Rows("ROWS> BYTES> FIRST-MS> LAST-MS>", [(rows, size, first, last)])
    return Report("SparkReplay", head, fields, {"counts": table})


def _source(reader: Any, settings: ReplaySettings) -> Any:
    reader = reader.format("twinlog").option("subscribe", settings.topic)
    if settings.range:
        reader = reader.option("range", settings.range)
    if settings.tags:
        reader = reader.option("tags", settings.tags)
    return reader.load(str(settings.path))


def _sink(writer: Any, settings: ReplaySettings) -> Any:
    writer = writer.format("twinlog").option("servers", settings.servers)
    writer = writer.option("topic", settings.to_topic)
    return writer.option("rate", str(settings.rate)) if settings.rate else writer


def _stream(session: Any, settings: ReplaySettings, resume: Path) -> None:
    reader = session.readStream.option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", str(BATCH_ROWS))
    frame = _source(reader, settings).selectExpr(*columns(settings))
    writer = _sink(frame.writeStream, settings).option("checkpointLocation", str(resume))
    writer.trigger(availableNow=True).start().awaitTermination()
