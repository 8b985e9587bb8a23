"""H3: RocketMQ 5.3.3 asks about the open transactions of a store of ours, and about none else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from storage import CreateTopic, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from storage.tools.adopt import plan_adoption
from storage.tools.recover import recover
from storage.tools.repair import carry_out, plan_repair
from tests.stores.adopted import adopt
from tests.stores.golden import CONSUMERS, unpack
from tests.stores.records.halves import World, halves
from tests.stores.workbench import TOPIC, append, settle
from twinlog.format.group_rows import ROLLBACK
from twinlog.store.reader import StoreReader

pytestmark = pytest.mark.interop

SEGMENT_SIZE, QUEUE_SIZE = 256 * 1024, 2_000
WRITER = Token("master", 1, 1)


def opened(root: Path) -> World:
    """A master of a new store of ours, in a directory."""
    root.mkdir()
    settings = StoreSettings(
        segment_size=SEGMENT_SIZE, queue_segment_entries=QUEUE_SIZE // 20,
        store_host=("127.0.0.1", 7410),
    )  # fmt: skip
    store = Store.open(RealDisk(root), settings, Who("interop", "g1", "n1", 4), wall_ms=1_000)
    store.take_token(WRITER)
    store.append_epoch(WRITER, epoch=1, node="n1", session=1, wall_ms=1, reason="test", by="test")
    store.append_control(WRITER, CreateTopic(TOPIC, 4, 1), wall_ms=1_000)
    settle(store)
    return World(store, writer=WRITER)


def asked(
    judge: Any, root: Path, segment_size: int = SEGMENT_SIZE, queue_size: int = QUEUE_SIZE
) -> Any:
    """The unique keys of the messages that RocketMQ asks about in one round."""
    answer = judge.ask(
        "open", dir=str(root), commit_log_size=segment_size, queue_size=queue_size
    )  # fmt: skip
    assert answer["loaded"] is True
    found = judge.ask("check", timeout=1)
    judge.ask("close")
    assert found["discarded"] == []
    return found["asked"]


@pytest.mark.parametrize("killed", [False, True])
def test_rocketmq_asks_about_what_is_open(judge, tmp_path: Path, killed: bool) -> None:
    """Ended before the oldest open one, behind it, and in many records; then killed or stopped."""
    root = tmp_path / "ours"
    world = opened(root)
    for mark in range(40):
        append(world.store, halves(name=str(mark), mark=mark))
        settle(world.store)
        if mark >= 3 and mark not in (7, 20, 39):
            world.end(mark - 3, outcome=ROLLBACK if mark % 5 == 0 else 1)
    world.store.commit()
    world.store.close(clean=not killed)
    if killed:
        assert recover(RealDisk(root), wall_ms=3_000).clean
    left = ["4.0", "17.0", "36.0", "37.0", "38.0", "39.0"]
    assert asked(judge, root) == left


def test_rocketmq_asks_about_nothing_where_all_is_ended(judge, tmp_path: Path) -> None:
    root = tmp_path / "ours"
    world = opened(root)
    append(world.store, halves(3))
    settle(world.store)
    world.end(0, 1, 2)
    world.store.close(clean=True)
    assert asked(judge, root) == []


def test_what_a_killed_broker_forgot_is_said_at_its_adoption(judge, tmp_path: Path) -> None:
    """Golden 22: commits whose op record was lost, and messages that were given up without one."""
    root = unpack("22-transaction-crash", tmp_path, CONSUMERS)
    with StoreReader(root) as reader:
        repairing = plan_repair(reader)
        carry_out(RealDisk(root), repairing, reader=reader, wall_ms=1_795_400_000_000)
    with StoreReader(root) as ours, StoreReader(root, rocketmq=True) as reader:
        value = plan_adoption(reader, ours)
    truth = json.loads((CONSUMERS / "truths.json").read_text("utf-8"))["22-transaction-crash"]
    assert len(value.halves.ended) >= truth["committed_without_op"] > 0
    adopt(root)
    found = asked(judge, root, value.segment_size, value.queue_file_size)
    assert sorted(found) == sorted(one[2] for one in truth["open"])
