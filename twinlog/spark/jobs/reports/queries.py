"""The reports as SQL over the view ``messages``; pure.

A report names the columns it reads, so that Spark is not handed bodies that the query does not
need: the Python API cannot prune. Each has a twin in `jobs.reports.reference` that must return the
same rows.

Views: ``messages`` (records), ``queues`` (topic, queue_id, start, end), ``epochs`` (epoch, start),
``segments`` (start, end, bytes), ``offsets`` (consumer_group, topic, queue_id, committed),
``archive`` (segments of an archive), ``taken`` (at, consumer_group, topic, queue_id, committed:
where groups were), and for those that ask for it ``traces`` (body, sys_flag). Parameters are
``:now``, ``:top``, ``:key``, ``:every``.

Not here: making the views (`twinlog.spark.jobs.reports.tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from twinlog.format.group_history import History
from twinlog.format.record import Record
from twinlog.spark.jobs.reports import groups, reference
from twinlog.spark.jobs.reports.groups import Told
from twinlog.spark.jobs.reports.reference import Facts, Row

_USERS = """
WITH users AS (
  SELECT *, unix_millis(store_timestamp) AS stored_ms FROM messages
  WHERE sys_flag & 12 NOT IN (4, 12)
    AND NOT (topic IN ('SCHEDULE_TOPIC_XXXX', 'TBW102') OR topic LIKE '\\%RETRY\\%%'
      OR topic LIKE '\\%DLQ\\%%' OR topic LIKE '\\%LMQ\\%%'
      OR startswith(topic, 'rmq_sys_') OR startswith(topic, 'RMQ_SYS_')))
"""


@dataclass(frozen=True, slots=True)
class Query:
    """One report.

    Attributes:
        name: Of the command.
        summary: What it answers.
        headers: Of its table.
        columns: Of ``messages`` that it reads.
        sql: The question.
        plain: The same in Python.
        traces: Whether it reads the view ``traces``, whichever topic is asked for.
        groups: Adds what the rows of groups say to the answer.
    """

    name: str
    summary: str
    headers: str
    columns: str
    sql: str
    plain: Callable[[Iterable[Record], Facts], list[Row]]
    traces: bool = False
    groups: Callable[[Iterable[Row], Iterable[Told], History], list[Row]] | None = None


RATES = Query(
    "rates",
    "messages and bytes of each topic and minute",
    "TOPIC MINUTE-MS> MESSAGES> BYTES>",
    "topic,store_timestamp,sys_flag,size",
    _USERS
    + """
SELECT topic, stored_ms div 60000 * 60000 AS minute, count(*), sum(size)
FROM users GROUP BY 1, 2 ORDER BY 2, 1
""",
    reference.rates,
)

SIZES = Query(
    "sizes",
    "how large the records of each topic are",
    "TOPIC MESSAGES> BYTES> P50> P99> MAX>",
    "topic,store_timestamp,sys_flag,size",
    _USERS
    + """
SELECT topic, count(*), sum(size),
  CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY size) AS BIGINT),
  CAST(percentile_disc(0.99) WITHIN GROUP (ORDER BY size) AS BIGINT), max(size)
FROM users GROUP BY topic ORDER BY topic
""",
    reference.sizes,
)

HOT_KEYS = Query(
    "hot-keys",
    "the keys with the most messages, for each topic",
    "TOPIC RANK> KEY MESSAGES>",
    "topic,store_timestamp,sys_flag,key",
    _USERS
    + """
, counted AS (
  SELECT topic, one, count(*) AS messages
  FROM users LATERAL VIEW explode(split(key, ' ')) AS one WHERE one <> '' GROUP BY 1, 2)
, ranked AS (
  SELECT topic, row_number() OVER (PARTITION BY topic ORDER BY messages DESC, one) AS place, one,
    messages FROM counted)
SELECT * FROM ranked WHERE place <= :top ORDER BY topic, place
""",
    reference.hot_keys,
)

SKEW = Query(
    "skew",
    "how evenly each topic's messages lie in its queues",
    "TOPIC QUEUES> MESSAGES> FULLEST> TIMES-MEAN>",
    "topic,queue_id,store_timestamp,sys_flag",
    _USERS
    + """
, counted AS (SELECT topic, queue_id, count(*) AS messages FROM users GROUP BY 1, 2)
SELECT topic, count(*), sum(messages), max(messages),
  round(max(messages) * count(*) / sum(messages), 3)
FROM counted GROUP BY topic ORDER BY topic
""",
    reference.skew,
)

LATENCY = Query(
    "latency",
    "from made to stored, by topic and minute",
    "TOPIC MINUTE-MS> MESSAGES> P50> P99> MAX>",
    "topic,store_timestamp,born_timestamp,sys_flag",
    _USERS
    + """
, late AS (
  SELECT topic, stored_ms div 60000 * 60000 AS minute,
    stored_ms - unix_millis(born_timestamp) AS took FROM users)
SELECT topic, minute, count(*),
  CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY took) AS BIGINT),
  CAST(percentile_disc(0.99) WITHIN GROUP (ORDER BY took) AS BIGINT), max(took)
FROM late GROUP BY 1, 2 ORDER BY 2, 1
""",
    reference.latency,
)

DELIVERY = Query(
    "delivery",
    "from made to first handed to a consumer, by topic and group, as clients traced it",
    "TOPIC GROUP MESSAGES> P50> P99> MAX>",
    "topic,physical_offset,store_timestamp,born_timestamp,sys_flag,message_id",
    _USERS
    + """
, made AS (
  SELECT message_id, min_by(topic, physical_offset) AS topic,
    min_by(unix_millis(born_timestamp), physical_offset) AS born
  FROM users WHERE message_id <> '' GROUP BY message_id)
, told AS (
  SELECT split(item, chr(1)) AS fields
  FROM traces LATERAL VIEW explode(split(decode(body, 'ISO-8859-1'), chr(2))) AS item
  WHERE sys_flag & 12 NOT IN (4, 12))
, deliveries AS (
  SELECT get(fields, 3) AS consumer_group, get(fields, 5) AS message_id,
    min(try_cast(get(fields, 1) AS BIGINT)) AS began
  FROM told WHERE size(fields) >= 8 AND get(fields, 0) = 'SubBefore' AND get(fields, 6) = '0'
    AND length(get(fields, 1)) BETWEEN 1 AND 18
    AND regexp_replace(get(fields, 1), '[0-9]', '') = ''
    AND get(fields, 3) <> '' AND regexp_replace(get(fields, 3), '[%|a-zA-Z0-9_-]', '') = ''
  GROUP BY 1, 2)
, late AS (
  SELECT m.topic, d.consumer_group, d.began - m.born AS took
  FROM deliveries d JOIN made m ON m.message_id = d.message_id)
SELECT topic, consumer_group, count(*),
  CAST(percentile_disc(0.5) WITHIN GROUP (ORDER BY took) AS BIGINT),
  CAST(percentile_disc(0.99) WITHIN GROUP (ORDER BY took) AS BIGINT), max(took)
FROM late GROUP BY 1, 2 ORDER BY 1, 2
""",
    reference.delivery,
    traces=True,
)

FAILOVERS = Query(
    "failovers",
    "each epoch, and how long nothing was stored before it",
    "EPOCH> START> FIRST-MS> LAST-MS> RECORDS> GAP>",
    "topic,physical_offset,store_timestamp",
    """
WITH placed AS (
  SELECT max(e.epoch) AS epoch, max(e.start) AS start, m.physical_offset,
    max(unix_millis(m.store_timestamp)) AS stored
  FROM messages m JOIN epochs e ON e.start <= m.physical_offset
  WHERE NOT startswith(m.topic, 'rmq_sys_TWINLOG_') GROUP BY m.physical_offset)
, spans AS (
  SELECT epoch, start, min_by(stored, physical_offset) AS first,
    max_by(stored, physical_offset) AS last, count(*) AS records
  FROM placed GROUP BY epoch, start)
SELECT epoch, start, first, last, records, first - lag(last) OVER (ORDER BY epoch)
FROM spans ORDER BY epoch
""",
    reference.failovers,
)

LAG = Query(
    "lag",
    "how far each group is behind",
    "GROUP TOPIC QUEUE> COMMITTED> END> BEHIND> AGE>",
    "topic,queue_id,queue_offset,store_timestamp,sys_flag",
    """
SELECT o.consumer_group, o.topic, o.queue_id, o.committed, coalesce(q.end, 0),
  greatest(coalesce(q.end, 0) - o.committed, 0), :now - unix_millis(m.store_timestamp)
FROM offsets o LEFT JOIN queues q ON q.topic = o.topic AND q.queue_id = o.queue_id
  LEFT JOIN messages m ON m.topic = o.topic AND m.queue_id = o.queue_id
    AND m.queue_offset = o.committed AND m.sys_flag & 12 NOT IN (4, 12)
ORDER BY 1, 2, 3
""",
    reference.lag,
)

LAG_OVER_TIME = Query(
    "lag",
    "how far each group was behind, at the end of each span in which something moved",
    "UNTIL-MS> GROUP TOPIC QUEUE> COMMITTED> END> BEHIND>",
    "topic,queue_id,queue_offset,store_timestamp,sys_flag",
    """
WITH ends AS (
  SELECT (unix_millis(store_timestamp) div :every + 1) * :every AS at, topic, queue_id,
    max(queue_offset) + 1 AS end
  FROM messages WHERE sys_flag & 12 NOT IN (4, 12) GROUP BY 1, 2, 3)
, named AS (SELECT DISTINCT consumer_group, topic, queue_id FROM taken)
, points AS (
  SELECT at, consumer_group, topic, queue_id, committed, CAST(NULL AS BIGINT) AS end FROM taken
  UNION ALL
  SELECT e.at, n.consumer_group, n.topic, n.queue_id, CAST(NULL AS BIGINT), e.end
  FROM ends e JOIN named n ON n.topic = e.topic AND n.queue_id = e.queue_id)
, joined AS (
  SELECT at, consumer_group, topic, queue_id, max(committed) AS committed, max(end) AS end
  FROM points GROUP BY 1, 2, 3, 4)
, known AS (
  SELECT at, consumer_group, topic, queue_id, last_value(committed, true) OVER so_far AS committed,
    coalesce(max(end) OVER so_far, 0) AS end
  FROM joined
  WINDOW so_far AS (PARTITION BY consumer_group, topic, queue_id ORDER BY at
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW))
SELECT *, greatest(end - committed, 0) FROM known WHERE committed IS NOT NULL ORDER BY 1, 2, 3, 4
""",
    reference.lag_over_time,
)

TIMELINE = Query(
    "timeline",
    "delayed messages and those that groups gave back: due, delivered, late",
    "DUE-MS> TOPIC LEVEL> STATE DELIVERED-MS> LATE> ID OFFSET> GROUP ADDRESS",
    "topic,queue_id,physical_offset,store_timestamp,sys_flag,properties,message_id,tags_code",
    """
WITH queued AS (
  SELECT *, unix_millis(store_timestamp) AS stored_ms FROM messages
  WHERE sys_flag & 12 NOT IN (4, 12))
, waiting AS (
  SELECT CASE topic WHEN 'SCHEDULE_TOPIC_XXXX' THEN tags_code
      ELSE try_cast(properties['TIMER_OUT_MS'] AS BIGINT) END AS due,
    properties['REAL_TOPIC'] AS real,
    CASE topic WHEN 'SCHEDULE_TOPIC_XXXX' THEN queue_id + 1 END AS level, message_id,
    physical_offset,
    max(physical_offset) OVER (PARTITION BY topic, message_id) AS newest
  FROM queued WHERE topic IN ('SCHEDULE_TOPIC_XXXX', 'rmq_sys_wheel_timer'))
, delivered AS (
  SELECT topic, message_id, min_by(stored_ms, physical_offset) AS done FROM queued
  WHERE topic NOT IN ('SCHEDULE_TOPIC_XXXX', 'rmq_sys_wheel_timer') AND message_id IS NOT NULL
  GROUP BY 1, 2)
SELECT w.due, w.real, w.level,
  CASE WHEN w.newest <> w.physical_offset THEN 'rolled'
    WHEN d.done IS NULL THEN 'pending' ELSE 'delivered' END AS state,
  d.done, CASE WHEN w.newest = w.physical_offset THEN d.done - w.due END, w.message_id,
  w.physical_offset
FROM waiting w LEFT JOIN delivered d ON d.topic = w.real AND d.message_id = w.message_id
ORDER BY w.due NULLS FIRST, w.physical_offset
""",
    reference.timeline,
    groups=groups.with_retries,
)

TRACE = Query(
    "trace",
    "everything that carries a key or an id, in time order",
    "STORED-MS> KIND TOPIC QUEUE> QUEUE-OFFSET> OFFSET> ID KEY TAG AGAIN> GROUP MEMBER",
    "topic,queue_id,queue_offset,physical_offset,store_timestamp,sys_flag,reconsume_times,key,tags,"
    "properties,message_id",
    """
SELECT unix_millis(store_timestamp) AS stored,
  CASE WHEN topic LIKE '\\%RETRY\\%%' THEN 'retry' WHEN topic LIKE '\\%DLQ\\%%' THEN 'dead letter'
    WHEN topic = 'RMQ_SYS_TRANS_HALF_TOPIC' THEN 'half'
    WHEN topic = 'RMQ_SYS_TRANS_OP_HALF_TOPIC' THEN 'op'
    WHEN topic IN ('SCHEDULE_TOPIC_XXXX', 'rmq_sys_wheel_timer') THEN 'waiting'
    WHEN sys_flag & 12 = 4 THEN 'prepared' WHEN sys_flag & 12 = 8 THEN 'committed'
    WHEN sys_flag & 12 = 12 THEN 'rolled back' ELSE 'message' END AS kind,
  topic, queue_id, queue_offset, physical_offset, message_id, key, tags, reconsume_times
FROM messages
WHERE array_contains(split(key, ' '), :key) OR message_id = :key
  OR properties['ORIGIN_MESSAGE_ID'] = :key OR properties['DLQ_ORIGIN_MESSAGE_ID'] = :key
ORDER BY stored, physical_offset, queue_offset
""",
    reference.trace,
    groups=groups.with_steps,
)

STATS = {
    query.name: query for query in (RATES, SIZES, HOT_KEYS, SKEW, LATENCY, DELIVERY, FAILOVERS)
}
"""What ``twinlog spark stats NAME`` knows."""

QUERIES = {**STATS, **{query.name: query for query in (LAG, TIMELINE, TRACE)}}
