"""Rows of records that hold several messages: every message once, whatever part is read."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path

import pytest

from tests.stores.golden import unpack
from tests.stores.records.inner import TWO, batch, item
from tests.stores.rows import read
from twinlog.format import record
from twinlog.spark.directory.split_reader import Losses
from twinlog.spark.plan.decoding import Context, unfold
from twinlog.spark.plan.option_parser import parse
from twinlog.spark.plan.splits import Piece, Split
from twinlog.spark.source.batch import columns_of, reading_of
from twinlog.spark.source.cluster import _batches
from twinlog.wire.frames import Frame, Type

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


def test_an_inner_batch_that_is_compressed() -> None:
    """It is taken apart; what comes out says no longer that it is compressed."""
    data = batch(zlib.compress(TWO), 2, flags=0xC0 | 0x301)
    made = unfold(data, 0)
    first = record.decode(made)
    second = record.decode(made, first.size)
    assert [(one.body, one.sys_flag) for one in (first, second)] == [(b"one", 0), (b"", 0)]
    assert (first.queue_offset, second.queue_offset, first.properties) == (0, 1, {"k": "v"})
