"""Reports and free SQL: views over a store, and the reports run on them.

`report_on` answers a `jobs.queries.Query` by Spark, or in this process without it; both give the
same rows. `free_sql` runs a user's own query. Views beside ``messages`` are small and made here.

Times are milliseconds since 1970. Nothing is written.

Not here: the queries; the source behind ``messages`` (`twinlog.spark.source.data_source`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import isfinite
from pathlib import Path
from typing import cast

from twinlog.client.blocking import Client
from twinlog.errors import UnknownTopic, UsageError
from twinlog.format.group_history import History
from twinlog.format.record import Record
from twinlog.spark import register
from twinlog.spark.engine.report import Report, Rows, Value
from twinlog.spark.engine.session import DataFrame, SparkSession
from twinlog.spark.jobs.reports import group_topic, groups
from twinlog.spark.jobs.reports.queries import TRACE, Query
from twinlog.spark.jobs.reports.reference import TRACE_TOPIC, Facts, Row, unfolded
from twinlog.spark.plan.option_parser import parse
from twinlog.store.marks import Owner, owner_of
from twinlog.store.reader import StoreReader

ROWS_MAX = 10_000
"""Rows of a free query that are brought here; more belong into a file."""
NOT_LIGHT = "(?!%LMQ%).*"
"""Topics that records are of."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CALENDAR_MS = 62_000_000_000_000
"""Milliseconds from 1970 that Python's calendar has in both directions: almost 2,000 years."""


@dataclass(frozen=True, slots=True)
class ReportSource:
    """Where records come from.

    Attributes:
        path: A store directory; None with ``servers``.
        servers: Addresses of a cluster; empty with ``path``.
        topic: Only this topic, with its retries left out; empty: all.
        options: Further options of the source.
        archive: An archive: alone, or what comes before the live store.
    """

    path: Path | None = None
    servers: str = ""
    topic: str = ""
    options: Mapping[str, str] | None = None
    archive: Path | None = None

    @property
    def name(self) -> str:
        """What it is, for a heading."""
        live = str(self.path) if self.path is not None else self.servers
        return " + ".join(filter(None, (str(self.archive or ""), live)))


def facts_of(
    origin: ReportSource,
    *,
    now: int = 0,
    top: int = 10,
    key: str = "",
    asked: bool = False,
    positions: bool = False,
) -> Facts:
    """Return what a store, or a cluster, and an archive say besides records.

    Args:
        origin: The store.
        now: The present, ms.
        top: Rows of a ranking.
        key: Key or id that is looked for.
        asked: Whether a cluster is asked for its queues and epochs, one call for each topic.
        positions: Whether it is asked for the positions of its groups, one call for each.

    Raises:
        SourceUnavailable: No node answered.
        SourceError: The archive is another store's.
    """
    facts = Facts(now=now, top=top, key=key)
    if origin.path is not None:
        with StoreReader(origin.path) as store:
            queues = {(q.topic, q.queue): (q.min, q.max) for q in store.queues()}
            epochs = store.epochs()
        committed = consumer_offsets(origin.path)
        facts = replace(facts, epochs=epochs, queues=queues, committed=committed)
        return _with_archive(facts, origin, owner_of(origin.path))
    if origin.servers:
        if positions:
            facts = replace(facts, committed=group_positions(origin.servers))
        return _asked(facts, origin) if asked else facts
    return _with_archive(facts, origin, None)


def _with_archive(facts: Facts, origin: ReportSource, owner: Owner | None) -> Facts:
    """Return facts with what the archive knows, if there is one."""
    if origin.archive is None:
        return facts
    from twinlog.spark.jobs.reports.archived import added  # with numpy, which directories need not

    return added(facts, origin.archive, owner)


def _asked(facts: Facts, origin: ReportSource) -> Facts:
    """Return facts with the queues and epochs that the nodes of a cluster and an archive tell."""
    from twinlog.spark.source.batch import columns_of  # with numpy, which directories need not
    from twinlog.spark.source.cluster import ClusterView

    options = parse({"servers": origin.servers, "columns": "epoch"}, use="batch")
    with closing(ClusterView(options)) as view:
        spans = {key: (queue.start, queue.end) for key, queue in view.queues.items()}
        epochs = [(epoch, start) for start, epoch in view.epochs(columns_of(options))]
        owner = Owner(view.route.cluster, view.route.group)
    found = _with_archive(replace(facts, epochs=epochs, queues=spans), origin, owner)
    read = {key: span for key, span in found.queues.items() if key in spans}
    return replace(
        found, queues=read
    )  # of a cluster, queues that only the archive has are not read


def group_positions(servers: str) -> dict[tuple[str, str, int], int]:
    """Return the first message of (group, topic, queue) that is not settled, as a cluster says.

    A member of a broadcast group is named ``group~member``.

    Raises:
        Unavailable: No node answered.
    """
    found: dict[tuple[str, str, int], int] = {}
    with Client(servers, name=group_topic.NAME) as client:
        for document in group_topic.documents(client):
            name = str(document.get("name"))
            for one in group_topic.maps(document.get("queues")):
                member, low, queue = one.get("name"), one.get("low"), one.get("queue")
                if isinstance(low, int) and isinstance(queue, int):
                    known = f"{name}~{member}" if member else name
                    found[known, str(one.get("topic")), queue] = low
    return found


def positions_taken(origin: ReportSource, facts: Facts, every: int) -> Facts:
    """Return facts with where the groups of a store were at the end of each span of ``every`` ms.

    Raises:
        Unavailable: No node answered.
    """
    history = History()
    told = group_topic.rows_told(origin.path, origin.servers, history)
    return replace(facts, taken=groups.taken(told, history, every), every=every)


_BARE_KEY = re.compile(r"([{,]\s*)(\d+)(\s*:)")


def consumer_offsets(root: Path) -> dict[tuple[str, str, int], int]:
    """Return the next offset of (group, topic, queue) as the broker's file has it; empty without.

    The file is JSON but for its queue numbers, which have no quotes.
    """
    path = root / "config" / "consumerOffset.json"
    if not path.is_file():
        return {}
    text = _BARE_KEY.sub(r'\1"\2"\3', path.read_text(encoding="utf-8"))
    table = cast("dict[str, dict[str, int]]", json.loads(text).get("offsetTable", {}))
    found: dict[tuple[str, str, int], int] = {}
    for name, queues in table.items():
        topic, _, group = name.partition("@")
        for queue, offset in queues.items():
            found[group, topic, int(queue)] = offset
    return found


def records_of(origin: ReportSource, *, traces: bool = False) -> Iterator[Record]:
    """Yield the messages of a store directory, an archive or both in log order, each once.

    Args:
        origin: Where from.
        traces: Whether those of RocketMQ's trace topic come, too, when a topic is asked for.

    Raises:
        UsageError: The origin is a cluster: that is read by Spark.
        UnknownTopic: There is no record of the topic.
        DataLossError: Of an archive: a file or a stretch of the log is gone.
    """
    if origin.servers:
        hint = "name the data directory of a node: --path"
        raise UsageError("without Spark only directories and archives are read", hint=hint)
    if origin.topic:
        _exists(origin.topic, {topic for topic, _ in facts_of(origin).queues})
    wanted = (origin.topic, TRACE_TOPIC) if traces else (origin.topic,)
    for record in unfolded(_every_record(origin)):
        if not origin.topic or record.topic in wanted:
            yield record


def _exists(topic: str, topics: Collection[str]) -> None:
    """Do nothing when a topic is there.

    Raises:
        UnknownTopic: It is not.
    """
    if topic not in topics:
        names = ", ".join(sorted(topics)[:10]) or "none"
        raise UnknownTopic(f"there is no topic {topic}", hint=f"there are {names}")


def _every_record(origin: ReportSource) -> Iterator[Record]:
    if origin.path is None:
        yield from _archived(origin, None, None)
        return
    with StoreReader(origin.path) as store:
        below = store.start if store.start < store.end else None  # nothing live: all of it
        yield from _archived(origin, owner_of(origin.path), below)
        yield from store.records()


def _archived(origin: ReportSource, owner: Owner | None, below: int | None) -> Iterator[Record]:
    if origin.archive is not None:
        from twinlog.spark.jobs.reports.archived import (
            records,  # with numpy, which directories need not
        )

        yield from records(origin.archive, owner, below)


def report_on(
    session: SparkSession | None, query: Query, origin: ReportSource, facts: Facts
) -> Report:
    """Answer a query over a store.

    Args:
        session: The Spark session; None: in this process.
        query: The question.
        origin: The store.
        facts: Parameters, and what the directory says.
    """
    if session is None:
        rows = query.plain(records_of(origin, traces=query.traces), facts)
    else:
        make_views(session, origin, facts, columns=query.columns)
        if query.traces:
            every = replace(origin, topic="", options={"subscribePattern": TRACE_TOPIC})
            _view(session, "traces", every, "body,sys_flag")
        known = {"now": facts.now, "top": facts.top, "key": facts.key, "every": facts.every}
        used = {name: value for name, value in known.items() if f":{name}" in query.sql}
        rows = rows_of(session.sql(query.sql, args=used))
    return _report(query, origin, rows)


def _report(query: Query, origin: ReportSource, rows: Sequence[Row]) -> Report:
    if query.groups is not None:
        history = History()
        told = group_topic.rows_told(origin.path, origin.servers, history)
        rows = query.groups(rows, told, history)
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "source": origin.name,
        "report": query.name,
        "rows_found": len(rows),
    }
    head = f"{origin.name} · {query.summary}"
    title = "".join(word.capitalize() for word in query.name.split("-"))
    return Report(f"Spark{title}", head, fields, {"rows": Rows(query.headers, rows)})


def free_sql(session: SparkSession, text: str, origin: ReportSource, columns: str) -> Report:
    """Run a user's query over the views and return its rows, at most `ROWS_MAX`.

    Moments are shown in UTC: Spark would hand them out in the time zone of this process.
    """
    named = re.search(r"\boffsets\b", text, re.IGNORECASE) is not None
    facts = facts_of(origin, asked=True, positions=named)
    make_views(session, origin, facts, columns=columns)
    frame = session.sql(text)
    moments = [i for i, kind in enumerate(frame.dtypes) if kind[1] == "timestamp"]
    names = [f"c{i}" for i in range(len(frame.columns))]
    wanted = [
        f"unix_millis({name}) AS {name}" if i in moments else name for i, name in enumerate(names)
    ]
    asked = frame.toDF(*names).selectExpr(*wanted) if moments else frame
    found = rows_of(asked.limit(ROWS_MAX + 1))
    more, rows = len(found) > ROWS_MAX, [_in_utc(row, moments) for row in found[:ROWS_MAX]]
    headers = " ".join(re.sub(r"\s+", "_", name).upper().strip("+>") for name in frame.columns)
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "source": origin.name,
        "query": text,
        "rows_found": len(rows),
        "more": more,
    }
    head = f"the first {len(rows)} rows, there are more" if more else f"{len(rows)} rows"
    return Report("SparkSql", head, fields, {"rows": Rows(headers, rows)})


def _in_utc(row: Row, moments: Sequence[int]) -> Row:
    """Return a row with its moments as text; those that no calendar has stay milliseconds."""
    found = list(row)
    for i in moments:
        if isinstance(ms := found[i], int) and abs(ms) < CALENDAR_MS:
            moment = EPOCH + timedelta(milliseconds=ms)
            found[i] = moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return tuple(found)


def rows_of(frame: DataFrame) -> list[tuple[Value, ...]]:
    """Bring the rows of a frame here, as plain values."""
    return [tuple(plain_value(value) for value in row) for row in frame.collect()]


def plain_value(value: object) -> Value:
    """Return a value of Spark as one that a report can show.

    >>> plain_value(b"ab"), plain_value({"a": 1}), plain_value(None), plain_value(float("nan"))
    ('ab', '{"a": 1}', None, 'nan')
    """
    match value:
        case float() if not isfinite(value):
            return str(value)  # JSON has no word for it
        case None | bool() | int() | float() | str():
            return value
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
        case dict() | list():
            return json.dumps(value, default=str, ensure_ascii=False)  # pyright: ignore
        case _:
            text = str(value)
            return float(text) if re.fullmatch(r"-?\d+\.\d+", text) else text


def make_views(session: SparkSession, origin: ReportSource, facts: Facts, *, columns: str) -> None:
    """Register the views of a store in a session; old ones of the same names are replaced."""
    register(session)
    _view(session, "messages", origin, columns)
    small = _small_views(origin, facts)
    for name, (schema, rows) in small.items():
        session.createDataFrame(rows, schema).createOrReplaceTempView(name)


def _view(session: SparkSession, name: str, origin: ReportSource, columns: str) -> None:
    """Register the records of a store as a view: each once, so not by light queues besides."""
    reader = session.read.format("twinlog").option("columns", columns)
    places = {"path": origin.path, "servers": origin.servers, "archive": origin.archive}
    for option, value in places.items():
        if value:
            reader = reader.option(option, str(value))
    if origin.topic:
        reader = reader.option("subscribe", origin.topic)
    else:
        reader = reader.option("subscribePattern", NOT_LIGHT)
    for option, value in (origin.options or {}).items():
        reader = reader.option(option, value)
    reader.load().createOrReplaceTempView(name)


def _small_views(
    origin: ReportSource, facts: Facts
) -> dict[str, tuple[str, list[tuple[object, ...]]]]:
    segments: list[tuple[object, ...]] = []
    if origin.path is not None:
        with StoreReader(origin.path) as store:
            segments = [(file.start, file.end, file.size) for file in store.series.files]
    from twinlog.spark.jobs.reports import archived  # with numpy, which a session has

    shelved = archived.segments(origin.archive) if origin.archive is not None else []
    queues = [(*key, *span) for key, span in sorted(facts.queues.items())]
    offsets = [(*key, offset) for key, offset in sorted(facts.committed.items())]
    return {
        "queues": ("topic STRING, queue_id INT, start BIGINT, end BIGINT", list(queues)),
        "epochs": ("epoch INT, start BIGINT", [tuple(entry) for entry in facts.epochs]),
        "segments": ("start BIGINT, end BIGINT, bytes BIGINT", segments),
        "offsets": (
            "consumer_group STRING, topic STRING, queue_id INT, committed BIGINT",
            list(offsets),
        ),
        "archive": (archived.SEGMENT_VIEW, shelved),
        "taken": (
            "at BIGINT, consumer_group STRING, topic STRING, queue_id INT, committed BIGINT",
            list(facts.taken),
        ),
    }


def trace_by_index(origin: ReportSource, key: str) -> Report:
    """Answer `queries.TRACE` by the key index of a store directory, without reading the log.

    Raises:
        UnknownTopic: The topic that is asked for is not there.
    """
    assert origin.path is not None, "only a directory has an index that can be read"
    found: dict[tuple[int, int], Record] = {}
    with StoreReader(origin.path) as store:
        if origin.topic:
            _exists(origin.topic, store.topics())
        for topic in [origin.topic] if origin.topic else sorted(store.topics()):
            for offset in store.find_key(topic, key):
                record = store.record_at(offset)
                if record is not None and record.topic == topic:
                    rows = unfolded([record])
                    found |= {(offset, one.queue_offset): one for one in rows}
    return _report(TRACE, origin, TRACE.plain(found.values(), Facts(key=key)))
