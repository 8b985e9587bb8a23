"""Rows that the Spark source's queries read, without Spark."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.stores.sample import put
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.log_file import file_name
from twinlog.spark.source.batch import DirectoryQuery, read_task
from twinlog.spark.source.queries import batch_query, read_any

Row = dict[str, Any]


def read(root: Path, **options: str) -> list[Row]:
    """The rows of a directory, task by task."""
    query = DirectoryQuery.make({"path": str(root), **options})
    return [
        row
        for task in query.tasks(0)
        for batch in read_task(task)
        for row in batch.to_pylist(maps_as_pydicts="strict")
    ]


def places(found: list[Row]) -> list[int]:
    """Log offsets of rows, in order."""
    return sorted(row["physical_offset"] for row in found)


def rows(options: Mapping[str, Any], *, columns: str = "full") -> list[Row]:
    """What a query reads, in the order of queues."""
    query = batch_query({"columns": columns, **{k: str(v) for k, v in options.items()}})
    found = [row for task in query.tasks(0) for b in read_any(task) for row in b.to_pylist()]
    return sorted(found, key=lambda row: (row["topic"], row["queue_id"], row["queue_offset"]))


def plain(found: list[Row]) -> list[Row]:
    """Rows without what says where they were read."""
    return [{k: v for k, v in row.items() if k not in ("tier", "broker")} for row in found]


def crafted(root: Path, *records: bytes) -> Path:
    """A store of RocketMQ's shape with one queue of these records."""
    log, entries = b"", b""
    for data in records:
        entries += QUEUE_ENTRY.pack(len(log), len(data), 0)
        log += data
    put(root / "commitlog" / file_name(0), log + bytes(100))
    put(root / "consumequeue" / "t" / "0" / file_name(0), entries + bytes(200))
    return root
