"""The source returns what RocketMQ itself reads from its stores: every row, every column."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tests.stores.golden import cases, manifest, unpack
from twinlog.spark.directory.queue_files import FILL_SIZE
from twinlog.spark.source.batch import DirectoryQuery

FULL = {"columns": "full", "includeSystem": "true", "decompress": "false"}


@pytest.fixture(scope="module", params=cases())
def case(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(scope="module")
def root(case: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(case, tmp_path_factory.mktemp(case))


def rows_of(root: Path, **options: str) -> list[dict[str, Any]]:
    query = DirectoryQuery.make({"path": str(root), **FULL, **options})
    return [row for task in query.tasks(0) for batch in query.read(task) for row in rows(batch)]


def rows(batch: Any) -> list[dict[str, Any]]:
    names = batch.schema.names
    return [
        dict(zip(names, values, strict=True))
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


def as_message(row: dict[str, Any]) -> dict[str, Any]:
    """A row under the manifests' names, as far as both have it."""
    properties = row["properties"]
    assert len(properties) == len(dict(properties)), "a map key stands once"
    return {
        "topic": row["topic"],
        "queue_id": row["queue_id"],
        "queue_offset": row["queue_offset"],
        "physical_offset": row["physical_offset"],
        "size": row["size"],
        "sys_flag": row["sys_flag"],
        "flag": row["flag"],
        "born_timestamp": round(row["born_timestamp"].timestamp() * 1000),
        "born_host": row["born_host"],
        "store_timestamp": round(row["store_timestamp"].timestamp() * 1000),
        "store_host": row["store_host"],
        "reconsume_times": row["reconsume_times"],
        "prepared_offset": row["prepared_transaction_offset"],
        "body_crc": row["body_crc"],
        "body_sha256": hashlib.sha256(row["body"]).hexdigest(),
        "body_len": len(row["body"]),
        "properties": dict(properties),
    }


def wanted(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in SHARED}


SHARED = [
    *("topic", "queue_id", "queue_offset", "physical_offset", "size", "sys_flag", "flag"),
    *("born_timestamp", "born_host", "store_timestamp", "store_host", "reconsume_times"),
    *("prepared_offset", "body_crc", "body_sha256", "body_len", "properties"),
]


def by_place(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(messages, key=lambda m: (m["physical_offset"], m["queue_offset"]))


def is_inner(message: dict[str, Any]) -> bool:
    return bool(message["sys_flag"] & 0x80)


@pytest.mark.parametrize("size", [pytest.param("700", marks=pytest.mark.slow), "64 KiB", "256 MiB"])
@pytest.mark.parametrize("mode", ["queue", "log"])
def test_rows(case: str, root: Path, mode: str, size: str) -> None:
    """Every record a queue names (queue), or every record (log), whatever the size of splits."""
    held = manifest(case)
    messages = {m["physical_offset"]: m for m in held["messages"] if not is_inner(m)}
    if mode == "log":
        expected = list(messages.values())
    else:
        expected = [
            messages[entry[1]]
            for queue in held["queues"]
            for entry in queue["entries"]
            if entry[0] >= queue["min"] and entry[2] != FILL_SIZE and entry[1] in messages
        ]
    found = rows_of(root, splitMode=mode, splitBytes=size)
    plain = [as_message(row) for row in found if row["physical_offset"] in messages]
    assert by_place(plain) == by_place([wanted(message) for message in expected])
    assert all(row["crc_ok"] for row in found)


def test_each_queue_keeps_its_order(case: str, root: Path) -> None:
    """Inside a split rows of one queue ascend, and splits tile the queue."""
    query = DirectoryQuery.make({"path": str(root), **FULL, "splitBytes": "4 KiB"})
    seen: dict[tuple[str, int], int] = {}
    for task in query.tasks(0):
        for piece in task.split.pieces:
            assert seen.get((piece.topic, piece.queue), piece.first) == piece.first
            seen[piece.topic, piece.queue] = piece.stop
    for queue in manifest(case)["queues"]:
        if queue["max"] > queue["min"]:
            assert seen[queue["topic"], queue["queue_id"]] == queue["max"]


def test_inner_batches_become_one_row_for_each_message(tmp_path: Path) -> None:
    root = unpack("09-batch", tmp_path)
    outer = [m for m in manifest("09-batch")["messages"] if is_inner(m)]
    places = {m["physical_offset"] for m in outer}
    found = [row for row in rows_of(root) if row["physical_offset"] in places]
    count = sum(int(m["properties"]["INNER_NUM"]) for m in outer)
    assert len(found) == count
    numbers = sorted((row["queue_id"], row["queue_offset"]) for row in found)
    assert len(set(numbers)) == count
    assert all(row["crc_ok"] and not row["sys_flag"] & 0xC0 for row in found)


def test_bodies_are_decompressed(tmp_path: Path) -> None:
    """LZ4, zstd and zlib, as their flags say."""
    root = unpack("11-compressed", tmp_path)
    plain = {
        m["physical_offset"]: m.get("plain_body_sha256", m["body_sha256"])
        for m in manifest("11-compressed")["messages"]
    }
    found = rows_of(root, decompress="true")
    assert len(found) == len(plain)
    for row in found:
        assert hashlib.sha256(row["body"]).hexdigest() == plain[row["physical_offset"]]


def test_epochs_of_a_controller_store(tmp_path: Path) -> None:
    root = unpack("12-controller-a", tmp_path)
    starts = [(e["start_offset"], e["epoch"]) for e in manifest("12-controller-a")["epochs"]]
    for row in rows_of(root):
        epoch = [epoch for start, epoch in starts if start <= row["physical_offset"]][-1]
        assert row["epoch"] == epoch


def test_a_log_in_several_folders(tmp_path: Path) -> None:
    """Named behind a semicolon, for commas separate stores; the rows are the same."""
    root = unpack("02-rollover", tmp_path)
    whole = rows_of(root)
    more = tmp_path / "more"
    more.mkdir()
    for path in sorted((root / "commitlog").iterdir())[1::2]:
        path.rename(more / path.name)
    assert rows_of(Path(f"{root};{more}")) == whole
