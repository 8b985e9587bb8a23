"""Odd data and odd moments: no row is lost without a word, none comes twice."""

from __future__ import annotations

import json
import logging
import shutil
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.golden.manifest import unpack
from tests.unit.spark.test_faults import places, read
from tests.unit.twinlog.ours import put, sample
from tests.unit.twinlog.test_inner_kernels import batch, item
from twinlog import layout, record
from twinlog.record import FLAG_COMPRESSED
from twinlog.spark.batch import DirectoryQuery, columns_of, read_task, reading_of
from twinlog.spark.cluster import _batches
from twinlog.spark.decoding import Context
from twinlog.spark.errors import DataLossError, SourceError
from twinlog.spark.options import parse
from twinlog.spark.planning import Piece, Split
from twinlog.spark.reading import Losses
from twinlog.spark.stream import proportional
from twinlog.wire import Frame, Type

FIVE = b"".join(item(b"%d" % number) for number in range(5))


@pytest.mark.parametrize(("first", "stop"), [(0, 5), (0, 3), (3, 5), (2, 4), (4, 5)])
def test_a_share_that_begins_or_ends_inside_an_inner_batch(first: int, stop: int) -> None:
    """A node answers with the whole batch, whose own offset may lie before what was asked for."""
    options = parse({"servers": "h:1", "columns": "queue_offset,body"}, use="batch")
    reading = reading_of(options, columns_of(options), Context())
    split = Split(0, 0, (Piece("t", 0, first, stop),))
    answer = Frame(Type.READ, fields={"node": "n1"}, payload=batch(FIVE, 5))
    found = [
        (row["queue_offset"], row["body"])
        for one in _batches(answer, (0, first), split, reading, Losses(split, fail=True))
        for row in one.to_pylist()
    ]
    assert found == [(number, b"%d" % number) for number in range(first, stop)]


def test_queue_files_that_go_between_plan_and_read(tmp_path: Path) -> None:
    """What later files name is read; a queue whose folder is gone is a loss, not nothing."""
    root = sample().write(tmp_path)
    given = {"path": str(root), "subscribe": "t", "failOnDataLoss": "false"}
    every = places(read(root))
    lax, strict = (
        DirectoryQuery.make({**given, "failOnDataLoss": fail}).tasks(0)
        for fail in ("false", "true")
    )
    first = root / "consumequeue" / "t" / "0" / layout.file_name(0)
    gone = {offset for offset, _, _ in layout.QUEUE_ENTRY.iter_unpack(first.read_bytes())}
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


def crafted(root: Path, *records: bytes) -> Path:
    """A store of RocketMQ's shape with one queue of these records."""
    log, entries = b"", b""
    for data in records:
        entries += layout.QUEUE_ENTRY.pack(len(log), len(data), 0)
        log += data
    put(root / "commitlog" / layout.file_name(0), log + bytes(100))
    put(root / "consumequeue" / "t" / "0" / layout.file_name(0), entries + bytes(200))
    return root


def test_times_before_1970(tmp_path: Path) -> None:
    """An end alone says nothing about where rows begin."""
    size = len(record.encode("t", 0, b"x"))
    made = [
        record.encode("t", 0, b"x", queue_offset=n, log_offset=n * size, store_timestamp=n - 9)
        for n in range(5)
    ]
    root = crafted(tmp_path, *made)
    assert len(read(root)) == 5
    assert len(read(root, endingTimestamp="1970-01-01")) == 5


@pytest.mark.parametrize("size", ["1 KiB", "256 MiB"])
def test_inner_batches_that_no_queue_names(tmp_path: Path, size: str) -> None:
    """A store that was restored and not rebuilt: the log says it all, up to the last message."""
    root = unpack("09-batch", tmp_path)
    every = sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in read(root))
    for folder in ("consumequeue", "batchconsumequeue"):
        shutil.rmtree(root / folder)
    topic = next(topic for topic, *_ in every if topic.startswith("BatchCq"))
    found = read(root, splitBytes=size)
    assert sorted((row["topic"], row["queue_id"], row["queue_offset"]) for row in found) == every
    one = {"subscribe": topic, "startingOffsets": json.dumps({topic: {"0": 1}})}
    part = [
        row["queue_offset"] for row in read(root, splitBytes=size, **one) if not row["queue_id"]
    ]
    assert sorted(part) == [n for name, queue, n in every if name == topic and not queue and n]


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
    return zlib.compress(FIVE[:-3])


Ends = Mapping[tuple[str, int], tuple[int, int]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30)), max_size=9), st.integers(1, 40))
def test_a_share_of_rows_is_never_more_than_asked_for(
    spans: list[tuple[int, int]], most: int
) -> None:
    """Every row once, no batch above its limit or empty, no queue starved."""
    left = {("t", i): (first, first + count) for i, (first, count) in enumerate(spans)}
    while any(first < stop for first, stop in left.values()):
        ends = proportional(left, most)
        waiting = [key for key, (first, stop) in left.items() if first < stop]
        taken = [ends[key] - left[key][0] for key in waiting]
        assert all(first <= ends[key] <= stop for key, (first, stop) in left.items())
        assert 1 <= sum(taken) <= most
        assert all(taken) or len(waiting) > most
        left = {key: (ends[key], stop) for key, (_, stop) in left.items()}


def test_more_queues_than_rows_take_turns() -> None:
    """Two rows for five queues: after five batches each has had two."""
    left = {("t", queue): (7, 100) for queue in range(5)}
    for _ in range(5):
        ends = proportional(left, 2)
        left = {key: (ends[key], 100) for key in left}
    assert {first for first, _ in left.values()} == {9}


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
    monkeypatch.setattr("twinlog.store_marks._locked", lambda path: True)
    for mode in ("queue", "log"):
        with pytest.raises(SourceError, match="are in RocksDB; read a copy, or set isolation"):
            read(root, splitMode=mode)
    assert places(read(root, isolation="written")) == places(wanted)
