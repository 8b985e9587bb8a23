"""Rows that cannot be read are named and counted, or read by another way; none is lost silently."""

from __future__ import annotations

import logging
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.stores.golden import unpack
from tests.stores.records.inner import item
from tests.stores.rows import crafted, places, read
from tests.stores.sample import sample
from twinlog.format import record
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.log_file import file_name
from twinlog.format.record import FLAG_COMPRESSED
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.source.batch import DirectoryQuery, read_task


def test_queue_files_that_go_between_plan_and_read(tmp_path: Path) -> None:
    """What later files name is read; a queue whose folder is gone is a loss, not nothing."""
    root = sample().write(tmp_path)
    given = {"path": str(root), "subscribe": "t", "failOnDataLoss": "false"}
    every = places(read(root))
    lax, strict = (
        DirectoryQuery.make({**given, "failOnDataLoss": fail}).tasks(0)
        for fail in ("false", "true")
    )
    first = root / "consumequeue" / "t" / "0" / file_name(0)
    gone = {offset for offset, _, _ in QUEUE_ENTRY.iter_unpack(first.read_bytes())}
    first.unlink()
    left = [row for task in lax for one in read_task(task) for row in rows(one)]
    assert places(left) == [place for place in every if place not in gone]
    with pytest.raises(DataLossError, match="topic t, queue 0: rows 0–7 are gone"):
        [one for task in strict for one in read_task(task)]
    shutil.rmtree(root / "consumequeue" / "t")
    with pytest.raises(DataLossError, match="its queue file was deleted meanwhile"):
        [one for task in strict for one in read_task(task)]


def rows(batch: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = batch.to_pylist(maps_as_pydicts="strict")
    return found


def test_a_body_that_does_not_decompress(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Named with file, place and row; left out and counted, or shown as stored."""
    held, at = list[bytes](), 0
    good = zlib.compress(b"fine")
    for number, body in enumerate((good, b"none", good, batch_body(), b"no more", good)):
        flag = 0xC0 | FLAG_COMPRESSED if number == 3 else FLAG_COMPRESSED
        held.append(record.encode("t", 0, body, queue_offset=number, log_offset=at, sys_flag=flag))
        at += len(held[-1])
    root = crafted(tmp_path, *held)
    with pytest.raises(DataLossError) as refused:
        read(root)
    line = str(refused.value)
    assert "topic t, queue 0, offset 1" in line and "cannot be decompressed" in line
    assert "set decompress to false" in line and "\n" not in line
    with caplog.at_level(logging.WARNING):
        found = read(root, failOnDataLoss="false")
    assert [row["queue_offset"] for row in found] == [0, 2, 5]
    assert {row["body"] for row in found} == {b"fine"}
    assert "rows 3 damaged" in caplog.text


def batch_body() -> bytes:
    """Whole when it is decompressed, but the last message is cut off."""
    return zlib.compress(b"".join(item(b"%d" % number) for number in range(5))[:-3])


def test_queues_in_a_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that keeps them in RocksDB: the log has the rows; in use nobody knows its end."""
    root = unpack("02-rollover", tmp_path)
    wanted = read(root)
    queues = root / "consumequeue"
    shutil.rmtree(queues)
    queues.mkdir()
    (queues / "CURRENT").write_bytes(b"MANIFEST-000005\n")
    assert places(read(root)) == places(wanted) != []
    assert places(read(root, splitMode="log")) == places(wanted)
    monkeypatch.setattr("twinlog.store.marks._locked", lambda path: True)
    for mode in ("queue", "log"):
        with pytest.raises(SourceError, match="are in RocksDB; read a copy, or set isolation"):
            read(root, splitMode=mode)
    assert places(read(root, isolation="written")) == places(wanted)
