"""Reports as SQL: the same rows as plain Python on stores that RocketMQ wrote."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.stores.archives import half_archived
from tests.stores.consumed import consumed
from tests.stores.golden import unpack
from twinlog.spark.archive.archive_dir import ArchiveDir
from twinlog.spark.jobs.reports import tables
from twinlog.spark.jobs.reports.queries import LAG_OVER_TIME, QUERIES
from twinlog.spark.jobs.reports.reference import thousandths


@pytest.mark.parametrize(
    ("case", "names"),
    [
        ("07-consuming", ("rates", "hot-keys", "skew", "lag")),
        ("05-timer", ("timeline",)),
        ("04-delay", ("timeline", "trace", "sizes", "latency")),
        ("12-controller-b", ("failovers",)),
        ("09-batch", ("sizes", "trace")),
        ("08-lmq", ("rates",)),
    ],
)
def test_sql_and_plain_python_agree(
    case: str, names: tuple[str, ...], spark: Any, tmp_path: Path
) -> None:
    """Row for row, in the same order."""
    origin = tables.ReportSource(unpack(case, tmp_path))
    key = next((r.unique_id or "" for r in tables.records_of(origin) if r.unique_id), "")
    facts = tables.facts_of(origin, now=1_800_000_000_000, top=3, key=key)
    for name in names:
        wanted = tables.report_on(None, QUERIES[name], origin, facts)
        found = tables.report_on(spark, QUERIES[name], origin, facts)
        assert found.tables["rows"].rows == wanted.tables["rows"].rows, name
        assert wanted.tables["rows"].rows, name


def test_groups_over_time(spark: Any, tmp_path: Path) -> None:
    """Row for row what plain Python says of where groups were, and of what they did."""
    origin = tables.ReportSource(consumed(tmp_path / "store"))
    facts = tables.positions_taken(origin, tables.facts_of(origin, key="k0"), 60_000)
    for query, least in ((LAG_OVER_TIME, 5), (QUERIES["trace"], 6), (QUERIES["timeline"], 2)):
        wanted = tables.report_on(None, query, origin, facts).tables["rows"].rows
        assert tables.report_on(spark, query, origin, facts).tables["rows"].rows == wanted
        assert len(wanted) == least, query.name


def test_an_archive_and_what_is_live(spark: Any, tmp_path: Path) -> None:
    """As plain Python says; the view ``archive`` has the segments, and is empty without one."""
    half_archived(tmp_path)
    archive = tmp_path / "archive"
    origin = tables.ReportSource(tmp_path / "live", archive=archive)
    facts = tables.facts_of(origin)
    wanted = tables.report_on(None, QUERIES["delivery"], origin, facts).tables["rows"].rows
    assert {row[1] for row in wanted} == {"g1", "g2"}
    for topic, names in (("", ("delivery", "failovers")), ("t1", ("delivery",))):
        one = replace(origin, topic=topic)
        for name in names:
            found = tables.report_on(spark, QUERIES[name], one, facts).tables["rows"].rows
            assert found == tables.report_on(None, QUERIES[name], one, facts).tables["rows"].rows
            assert found, name
    counted = "SELECT count(*), sum(records), max(end) FROM archive"
    alone = tables.free_sql(spark, counted, tables.ReportSource(archive=archive), "topic")
    segments = ArchiveDir(archive).newest().segments
    records = sum(one.records for one in segments)
    assert alone.tables["rows"].rows == [(len(segments), records, segments[-1].end)]
    none = tables.free_sql(spark, counted, tables.ReportSource(tmp_path / "live"), "topic")
    assert none.tables["rows"].rows == [(0, None, None)]


def test_a_query_of_ones_own(spark: Any, golden: Path) -> None:
    """Views are joined, bytes become text, and names of columns become headers."""
    found = tables.free_sql(
        spark,
        "SELECT m.topic, count(*) AS n, max(q.end) AS end FROM messages m "
        "JOIN queues q ON q.topic = m.topic AND q.queue_id = m.queue_id GROUP BY 1 ORDER BY 1",
        tables.ReportSource(golden),
        "topic,queue_id",
    )
    origin = tables.ReportSource(golden)
    counts: dict[str, int] = {}
    for record in tables.records_of(origin):
        counts[record.topic] = counts.get(record.topic, 0) + record.queued
    rows = found.tables["rows"]
    assert rows.headers == "TOPIC N END"
    assert [row[:2] for row in rows.rows] == sorted((t, n) for t, n in counts.items())


def test_what_a_query_answers_is_shown_as_it_is(
    spark: Any, golden: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Moments in UTC, whatever the time zone of the process; what JSON has no word for; how much
    there is. Halves are rounded as the plain twin of ``skew`` does."""
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setattr(tables, "ROWS_MAX", 2)
    time.tzset()
    try:
        found = tables.free_sql(
            spark,
            "SELECT timestamp_millis(id * 1500 - 1000) AS at, timestamp_millis(900000000000000) "
            "AS far, double('NaN') AS n, round(17 * 2 / 32, 3) AS x FROM range(3) ORDER BY id",
            tables.ReportSource(golden),
            "topic",
        )
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    far, half = 900_000_000_000_000, thousandths(17 * 2 / 32)
    assert found.tables["rows"].rows == [
        ("1969-12-31T23:59:59.000Z", far, "nan", half),
        ("1970-01-01T00:00:00.500Z", far, "nan", half),
    ]
    assert found.fields["more"] and "there are more" in found.head
