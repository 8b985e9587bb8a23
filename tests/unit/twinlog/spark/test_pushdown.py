"""Filters narrow the plan, and never below what Spark will keep."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="the extra spark is not installed")

from pyspark.sql.datasource import (
    EqualTo,
    GreaterThan,
    In,
    IsNotNull,
    LessThanOrEqual,
    StringStartsWith,
)

from tests.stores.sample import sample
from twinlog.spark.source.queries import batch_query, read_any


def rows(root: Path, *filters: Any) -> list[dict[str, Any]]:
    query = batch_query({"path": str(root)}, None, filters)
    return [
        row
        for task in query.tasks(0)
        for batch in read_any(task)
        for row in batch.to_pylist(maps_as_pydicts="strict")
    ]


CASES: list[tuple[list[Any], Any]] = [
    ([EqualTo(("topic",), "t")], lambda r: True),
    ([EqualTo(("topic",), "none")], lambda r: False),
    ([In(("queue_id",), (1, 7))], lambda r: r["queue_id"] == 1),
    (
        [GreaterThan(("queue_offset",), 2), LessThanOrEqual(("queue_offset",), 4)],
        lambda r: 2 < r["queue_offset"] <= 4,
    ),
    ([EqualTo(("tags",), "b")], lambda r: False),
    ([EqualTo(("tags",), "a"), In(("tags",), ("a", "b"))], lambda r: True),
    ([IsNotNull(("properties",)), StringStartsWith(("key",), "k")], lambda r: True),
]


@pytest.mark.parametrize(("filters", "keep"), CASES)
def test_filters_choose(tmp_path: Path, filters: list[Any], keep: Any) -> None:
    root = sample().write(tmp_path)
    assert rows(root, *filters) == [row for row in rows(root) if keep(row)]


def test_times_keep_at_least_what_they_name(tmp_path: Path) -> None:
    root = sample().write(tmp_path)
    every = rows(root)
    middle = every[len(every) // 2]["store_timestamp"]
    assert isinstance(middle, datetime)
    late = rows(root, GreaterThan(("store_timestamp",), middle.astimezone(UTC)))
    wanted = [row for row in every if row["store_timestamp"] > middle]
    assert [row for row in late if row["store_timestamp"] > middle] == wanted
    assert len(late) <= len(wanted) + 1
