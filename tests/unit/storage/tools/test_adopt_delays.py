"""An adopted store delivers what RocketMQ's delay levels left: each message once, none again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from storage import Store, Token
from storage.disk.disk import RealDisk
from storage.errors import ForeignStore
from storage.tools.adopt import plan_adoption
from storage.tools.repair import carry_out, plan_repair
from tests.fakes.deliveries import World
from tests.stores.adopted import adopted
from tests.stores.golden import CONSUMERS, unpack
from tests.stores.workbench import log_records, settle
from twinlog.format.record import Record
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.store.reader import StoreReader
from twinlog.store.rocketmq_config import parse

TRUTHS: dict[str, Any] = json.loads((CONSUMERS / "truths.json").read_text("utf-8"))
LATER_MS = 3 * 3_600_000
"""More than the longest level after the last record."""


def opened(root: Path) -> Store:
    """The adopted store of a directory, repaired before if it was not stopped cleanly."""
    with StoreReader(root) as reader:
        if not reader.clean:
            plan = plan_repair(reader)
            carry_out(RealDisk(root), plan, reader=reader, wall_ms=1_795_400_000_000)
    store = adopted(root)
    settle(store)
    return store


def delivers(store: Store) -> tuple[World, list[Record]]:
    """Have everything delivered; the copies that are new."""
    begin = store.end
    writer = Token("master", store.last_epoch, 1)
    world = World(store, writer=writer, wall_ms=store.reads.timestamp)
    world.at(world.wall_ms + LATER_MS)
    settle(store)
    found = [one for one in log_records(store) if one.log_offset >= begin]
    return world, [one for one in found if "DELAY" in one.properties]


def message(one: Record) -> tuple[str, int, str]:
    """What a manifest names a message by."""
    return one.topic, one.queue, one.properties["UNIQ_KEY"]


def test_a_killed_brokers_store_delivers_each_waiting_message_once(tmp_path: Path) -> None:
    """Golden 21: RocketMQ itself delivers twenty of them a second time."""
    truth = TRUTHS["21-delay-crash"]
    store = opened(unpack("21-delay-crash", tmp_path, CONSUMERS))
    levels = {int(level): after for level, after in truth["levels"].items()}
    assert dict(store.messaging.confirmed.delays) == levels
    world, found = delivers(store)
    copies = Counter(message(one) for one in found)
    wanted = {(topic, queue, key) for topic, queue, key, _ in truth["pending"]}
    assert copies == Counter(wanted)
    assert not copies.keys() & {tuple(one) for one in truth["delivered"]}
    due = {(topic, queue, key): ms for topic, queue, key, ms in truth["pending"]}
    assert all(one.store_timestamp >= due[message(one)] for one in found)
    assert all(one.properties["REAL_TOPIC"] == one.topic for one in found)
    assert world.told == []


def test_a_stopped_brokers_store_goes_on(tmp_path: Path) -> None:
    """Golden 04: 31 messages wait, one with a level beyond the last, which counts as the last."""
    root = unpack("04-delay", tmp_path)
    store = opened(root)
    assert dict(store.messaging.confirmed.delays) == {1: 8, 2: 9, 3: 8}
    waiting = [one for one in log_records(store) if one.topic == DELAY_TOPIC]
    delivered = {message(one) for one in log_records(store) if one.topic != DELAY_TOPIC
                 if "DELAY" in one.properties}  # fmt: skip
    _, found = delivers(store)
    assert len(found) == 31
    assert Counter(one.properties["UNIQ_KEY"] for one in found) == Counter(
        {one.properties["UNIQ_KEY"] for one in waiting} - {key for *_, key in delivered}
    )
    assert len([one for one in found if one.properties["DELAY"] == "18"]) == 3
    store.close(clean=True)
    table = parse((root / "config" / "delayOffset.json").read_text("utf-8"))["offsetTable"]
    assert isinstance(table, dict)
    assert sum(table.values()) == len(waiting), "RocketMQ delivers nothing again"
    assert set(table) == {str(level) for level in range(1, 19)}


def test_retries_that_wait_for_a_level_come_to_their_group(tmp_path: Path) -> None:
    """Golden 23: a consumer that sent messages back; the copies go to its retry topic."""
    _, found = delivers(opened(unpack("23-retry", tmp_path, CONSUMERS)))
    assert found
    assert all(one.topic.startswith("%RETRY%") and one.reconsume_times for one in found)
    assert max(Counter((message(one), one.reconsume_times) for one in found).values()) == 1


def test_levels_that_nobody_here_knows_are_refused(tmp_path: Path) -> None:
    """A broker with a longer table: what waits in level 19 would wait for ever."""
    root = unpack("04-delay", tmp_path)
    queues = root / "consumequeue" / DELAY_TOPIC
    (queues / "17").rename(queues / "18")
    with (
        StoreReader(root) as ours,
        StoreReader(root, rocketmq=True) as reader,
        pytest.raises(ForeignStore),
    ):
        plan_adoption(reader, ours)
