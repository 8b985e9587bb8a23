"""Five rounds: twinlog writes and stops, RocketMQ opens, reads, appends, stops, and again.

Each round both sides read the whole store and must agree in every record and every queue entry;
what RocketMQ wrote is foreign to us until it is adopted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from storage.errors import ForeignStore
from storage.tools.adopt import carry_out, plan_adoption
from storage.tools.recover import recover
from tests.interop.contents import as_ours, held
from tests.interop.shapes import QUEUE_ENTRIES, SEGMENT_SIZE, SHAPES, encoded
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

pytestmark = pytest.mark.interop

ROUNDS = 5
WHO = Who("interop", "g1", "n1", 4)
SETTINGS = StoreSettings(segment_size=SEGMENT_SIZE, queue_segment_entries=QUEUE_ENTRIES)


def write(root: Path, number: int, *, clean: bool) -> None:
    """One round of ours: an epoch, then every record shape, over more than one file."""
    store = Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=1_700_000_000_000 + number)
    epoch = store.last_epoch + 1
    token = Token("master", epoch, 1)
    store.take_token(token)
    store.append_epoch(
        token, epoch=epoch, node="n1", session=1, wall_ms=1_700_000_000_000, reason="r", by="b"
    )
    for name, queues in SHAPES.items():
        made = store.append_control(token, CreateTopic(name, queues, 1), wall_ms=1)
        assert made.outcome in (Outcome.STORED, Outcome.DUPLICATE)
        store.set_confirm(store.end)
    for turn in range(40):
        sections = [Section(*one) for one in encoded(turn + 100 * number)]
        for result in store.append(token, sections, wall_ms=1_700_000_000_000 + turn):
            assert result.outcome is Outcome.STORED, result
        if turn < 30 or clean:  # a kill leaves records that nobody has confirmed
            store.set_confirm(store.end)
            while store.dispatch(1 << 20):
                pass
    store.close(clean=clean)


def theirs(judge: Any, root: Path, number: int) -> tuple[dict[str, Any], list[int]]:
    """RocketMQ opens the directory, reads all, appends, stops; return what it read and wrote."""
    opened = judge.ask(
        "open", dir=str(root), commit_log_size=SEGMENT_SIZE, queue_size=20 * QUEUE_ENTRIES
    )
    assert opened["loaded"] is True
    messages = [
        {
            "topic": "flights",
            "queue": i % 4,
            "body": (b"theirs" * (i * 40)).hex() or "00",
            "properties": {"KEYS": f"r{number}-{i}", "TAGS": "RMQ"},
        }
        for i in range(60)
    ]
    put = judge.ask("put", messages=messages)
    assert {one["status"] for one in put["results"]} == {"PUT_OK"}
    found = judge.ask("dump")
    judge.ask("close")
    return {**opened, **found}, [one["physical_offset"] for one in put["results"]]


def ours(root: Path) -> tuple[dict[int, Any], dict[tuple[str, int], list[list[int]]]]:
    """The same as we read it, by RocketMQ's rules."""
    with StoreReader(root, rocketmq=True) as reader:
        return held(reader)


def adopt(root: Path) -> int:
    """Refused as a member, then adopted; return where our epoch begins."""
    with pytest.raises(ForeignStore, match="another program"):
        Store.open(RealDisk(root), SETTINGS, WHO, wall_ms=1)
    with StoreReader(root) as one, StoreReader(root, rocketmq=True) as reader:
        value = plan_adoption(reader, one)
        assert value.foreign > 0
        carry_out(RealDisk(root), value, WHO, reader=reader, ours=one)
    return value.border


def test_five_rounds_without_a_difference(judge: Any, tmp_path: Path) -> None:
    """Clean stops and kills in turn; nothing is lost, doubled or changed on either side."""
    root = tmp_path / "store"
    seen: dict[int, Any] = {}
    for number in range(ROUNDS):
        clean = number % 2 == 0
        write(root, number, clean=clean)
        if not clean:
            assert recover(RealDisk(root), wall_ms=2).clean
        found, appended = theirs(judge, root, number)
        records, entries = as_ours(found)
        mine, my_entries = ours(root)
        assert mine == records
        assert {key: value for key, value in my_entries.items() if value} == entries
        assert set(appended) <= set(records)
        assert {offset: records[offset] for offset in seen} == seen
        seen = records
        border = adopt(root)
        with StoreReader(root) as reader:
            assert [f for f in verify(reader).findings if f.grade.value != "note"] == []
            kept = {r.log_offset for r in reader.records() if r.log_offset < border}
        assert kept == set(records)
    assert len(seen) > 5 * 300
