"""compact into a topic: as DataFrames over the source, of any store, cluster or archive.

The same rule and the same report as `twinlog.spark.jobs.compact.job`, in two readings, so that
bodies are never
shuffled: the first keeps the newest queue offset of each queue and key, with whether it has a body
(an empty one is only known by reading it, so tasks read bodies) and its store time. The
second takes the rows at those places, by a join to which they are broadcast, and sends them as
`twinlog.spark.jobs.replay.job` does. It begins at the oldest of those places, so rows that
retention took since are an error, not a gap.

Not here: counts and Parquet, whose rows are made of the log's own bytes
(`twinlog.spark.jobs.compact.job`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from twinlog.errors import UnknownTopic
from twinlog.spark import register
from twinlog.spark.engine.report import Report
from twinlog.spark.jobs.compact.job import CompactQueue, Field, report
from twinlog.spark.jobs.replay.job import columns, sink, source
from twinlog.spark.jobs.replay.settings import ReplaySettings

METADATA = "queue_id,queue_offset,key,store_timestamp,body"
"""Columns of the first reading."""

NEWEST = """
SELECT queue_id, key, count(*) AS records,
  max(struct(queue_offset, octet_length(body) > 0 AS full,
    unix_millis(store_timestamp) AS stored)) AS newest
FROM {messages} GROUP BY queue_id, key
"""
"""Of each key the newest record; NULL for the records without one."""

QUEUES = """
SELECT queue_id, count(key) AS keys,
  count_if(key IS NOT NULL AND newest.full) AS live,
  count_if(key IS NOT NULL AND NOT newest.full AND newest.stored >= {young}) AS tombstones,
  sum(records) AS records, sum(if(key IS NULL, records, 0)) AS keyless,
  min(newest.queue_offset) FILTER (WHERE key IS NOT NULL) AS first,
  max(newest.queue_offset) FILTER (WHERE key IS NOT NULL) AS last
FROM {newest} GROUP BY queue_id ORDER BY queue_id
"""

PLACES = """
SELECT queue_id, newest.queue_offset AS queue_offset FROM {newest}
WHERE key IS NOT NULL AND (newest.full OR newest.stored >= {young})
"""
"""Where the rows of the result are."""

NEVER = (1 << 63) - 1
"""A store time that no record has: every tombstone is older."""


@dataclass(frozen=True, slots=True)
class FramesSettings:
    """What to compact and where to.

    Attributes:
        flow: What is read, and where the result goes.
        young_ms: As in `jobs.compact.CompactSettings`.
    """

    flow: ReplaySettings
    young_ms: int | None = None


def run(session: Any, settings: FramesSettings) -> Report:
    """Compact a topic; see the module.

    Raises:
        UnknownTopic: There is no record of the topic.
        SourceError: Topic, archive or the topic that is written do not exist.
        DataLossError: Records are damaged or gone.
    """
    register(session)
    flow = settings.flow
    young = NEVER if settings.young_ms is None else settings.young_ms
    messages = source(session.read.option("columns", METADATA), flow)
    newest = session.sql(NEWEST, messages=messages).persist()
    try:
        found = session.sql(QUEUES, newest=newest, young=young).collect()
        if not found:
            text = f"there is no record of {flow.topic}"
            raise UnknownTopic(text, hint="twinlog topic list, or twinlog log info, shows topics")
        if any(row["live"] + row["tombstones"] for row in found):
            ends = {row["queue_id"]: (row["first"], row["last"]) for row in found if row["keys"]}
            places = session.sql(PLACES, newest=newest, young=young)
            _send(session, flow, places, ends)
    finally:
        newest.unpersist()
    fields: dict[str, Field] = {
        "source": str(flow.path or flow.from_servers or flow.archive),
        "archive": str(flow.archive) if flow.archive else None,
        "topic": flow.topic,
        "to_topic": flow.to_topic,
    }
    queues = [_queue(flow.topic, row) for row in found if row["keys"]]
    records, keyless = (sum(row[name] for row in found) for name in ("records", "keyless"))
    return report(flow.topic, fields, records, keyless, queues)


def _queue(topic: str, row: Any) -> CompactQueue:
    keys, live, tombstones = row["keys"], row["live"], row["tombstones"]
    return CompactQueue(topic, row["queue_id"], keys, live + tombstones, keys - live, tombstones)


def _send(
    session: Any, flow: ReplaySettings, places: Any, ends: dict[int, tuple[int, int]]
) -> None:
    """Send the rows at ``places``; ``ends`` are the first and last of each queue that has any."""
    chosen = {str(queue): first for queue, (first, _) in ends.items()}
    stops = {str(queue): last + 1 for queue, (_, last) in ends.items()}
    reader = session.read.option("startingOffsets", json.dumps({flow.topic: chosen}))
    reader = reader.option("endingOffsets", json.dumps({flow.topic: stops}))
    reader = reader.option("assign", json.dumps({flow.topic: sorted(ends)}))
    rows = source(reader, replace(flow, topic=""))
    kept = rows.join(places.hint("broadcast"), ["queue_id", "queue_offset"], "left_semi")
    tasks = session.sparkContext.defaultParallelism
    sink(kept.selectExpr(*columns(flow)).write.mode("append"), flow, tasks).save()
