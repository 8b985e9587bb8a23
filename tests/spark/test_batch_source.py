"""``spark.read.format("twinlog")`` over directories, through Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stores.golden import manifest


def test_a_directory_is_read_row_for_row(spark: Any, golden: Path) -> None:
    """Every row of the manifest, through several tasks."""
    frame = spark.read.format("twinlog").option("splitBytes", "64 KiB").load(str(golden))
    assert frame.rdd.getNumPartitions() > 5
    found = {
        (row.topic, row.queue_id, row.queue_offset): (
            row.physical_offset,
            row.tags,
            row.key,
            len(row.body),
        )
        for row in frame.collect()
    }
    wanted = {
        (m["topic"], m["queue_id"], m["queue_offset"]): (
            m["physical_offset"],
            m["properties"].get("TAGS"),
            m["properties"].get("KEYS"),
            m["body_len"],
        )
        for m in manifest("02-rollover")["messages"]
    }
    assert found == wanted


def test_sql_over_columns_and_properties(spark: Any, golden: Path) -> None:
    """Times, maps and binary columns arrive as Spark's own types."""
    frame = spark.read.format("twinlog").load(str(golden))
    frame.createOrReplaceTempView("messages")
    found = spark.sql(
        "SELECT topic, count(*) AS n, sum(length(body)) AS bytes, "
        "min(properties['UNIQ_KEY']) AS id, max(store_timestamp) AS newest "
        "FROM messages GROUP BY topic ORDER BY topic"
    ).collect()
    held = manifest("02-rollover")["messages"]
    for row in found:
        mine = [m for m in held if m["topic"] == row.topic]
        assert row.n == len(mine)
        assert row.bytes == sum(m["body_len"] for m in mine)
        assert row.id == min(m["properties"]["UNIQ_KEY"] for m in mine)
        newest = max(m["store_timestamp"] for m in mine)
        assert round(row.newest.timestamp() * 1000) % 1000 == newest % 1000


def test_only_the_columns_of_the_schema_are_made(spark: Any, golden: Path) -> None:
    """In any order and subset; a wrong type is refused with the right one."""
    frame = spark.read.format("twinlog").schema("size INT, topic STRING").load(str(golden))
    assert frame.columns == ["size", "topic"]
    assert frame.count() == 1400
    bad = spark.read.format("twinlog").schema("topic BINARY").load(str(golden))
    with pytest.raises(Exception, match="twinlog: column topic is STRING, not BINARY"):
        bad.count()


def test_kafkas_columns(spark: Any, golden: Path) -> None:
    options = {"kafkaColumns": "true", "includeHeaders": "true"}
    frame = spark.read.format("twinlog").options(**options).load(str(golden))
    row = frame.orderBy("offset", "partition", "topic").first()
    first = min(
        manifest("02-rollover")["messages"],
        key=lambda m: (m["queue_offset"], m["queue_id"], m["topic"]),
    )
    assert (row.offset, row.partition, row.timestampType) == (0, first["queue_id"], 1)
    headers = {h.key: bytes(h.value).decode() for h in row.headers}
    assert headers == first["properties"]
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,"
        "timestamp:timestamp,timestampType:int,headers:array<struct<key:string,value:binary>>>"
    )


def test_an_empty_store_has_no_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    assert spark.read.format("twinlog").load(str(tmp_path)).count() == 0


def test_an_error_is_one_line_that_says_what_to_do(spark: Any, golden: Path) -> None:
    with pytest.raises(Exception, match="twinlog: there is no option subscribes; the nearest is"):
        spark.read.format("twinlog").option("subscribes", "x").load(str(golden)).count()
