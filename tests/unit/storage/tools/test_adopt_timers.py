"""An adopted store delivers what RocketMQ's timer left: each message once, none again."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from node.delivery.rescue import Rescue
from storage import Store, Token
from storage.disk.disk import RealDisk
from storage.tools.adopt import plan_adoption
from storage.tools.repair import carry_out, plan_repair
from tests.stores.adopted import adopt, adopted
from tests.stores.golden import CONSUMERS, unpack
from tests.stores.records.timed import World, timed
from tests.stores.workbench import log_records, settle
from twinlog.format.record import Record
from twinlog.store.reader import StoreReader

TRUTHS: dict[str, Any] = json.loads((CONSUMERS / "truths.json").read_text("utf-8"))
DAY_MS = 86_400_000


def opened(root: Path) -> Store:
    """The adopted store of a directory, repaired before if it was not stopped cleanly."""
    with StoreReader(root) as reader:
        if not reader.clean:
            plan = plan_repair(reader)
            carry_out(RealDisk(root), plan, reader=reader, wall_ms=1_795_400_000_000)
    store = adopted(root)
    settle(store)
    return store


def delivers(store: Store) -> list[Record]:
    """Have everything delivered; the copies that are new."""
    begin = store.end
    world = World(store, writer=Token("master", store.last_epoch, 1), wall_ms=store.reads.timestamp)
    for _ in range(5):
        world.at(world.wall_ms + DAY_MS)
    settle(store)
    assert world.told == []
    found = [one for one in log_records(store) if one.log_offset >= begin]
    return [one for one in found if "TIMER_DEQUEUE_MS" in one.properties]


def message(one: Record) -> tuple[str, int, str]:
    """What a manifest names a message by."""
    return one.topic, one.queue, one.properties["UNIQ_KEY"]


@pytest.mark.parametrize("case", ["19-timer-roll", "20-timer-crash", "20b-no-timercheck"])
def test_each_waiting_message_comes_once(tmp_path: Path, case: str) -> None:
    """19: rolled and cancelled ones. 20: killed within a second, of which RocketMQ itself delivers
    258 a second time; without timercheck everything."""
    truth = TRUTHS[case.replace("20b-no-timercheck", "20-timer-crash")]
    root = unpack(case.replace("20b-no-timercheck", "20-timer-crash"), tmp_path, CONSUMERS)
    if case.startswith("20b"):
        (root / "config" / "timercheck").unlink()
    store = opened(root)
    assert store.messaging.confirmed.timers.count == len(truth["pending"])
    found = delivers(store)
    wanted = {(topic, queue, key): ms for topic, queue, key, ms in truth["pending"]}
    assert Counter(message(one) for one in found) == Counter(wanted.keys())
    assert all(one.store_timestamp >= wanted[message(one)] for one in found), "none early"
    again = {tuple(one) for one in (*truth["delivered"], *truth["cancelled"])}
    assert not again & {message(one) for one in found}


def test_the_plan_tells_what_would_have_come_twice(tmp_path: Path) -> None:
    """Golden 20: 258 of the second in progress."""
    root = unpack("20-timer-crash", tmp_path, CONSUMERS)
    with StoreReader(root) as reader:
        plan = plan_repair(reader)
        carry_out(RealDisk(root), plan, reader=reader, wall_ms=1_795_400_000_000)
    with StoreReader(root) as ours, StoreReader(root, rocketmq=True) as reader:
        value = plan_adoption(reader, ours)
    assert (len(value.timed.rows), value.timed.repeated) == (272, 258)


@pytest.mark.parametrize("rescued", [False, True])
def test_a_store_of_ours_keeps_what_it_was_told(tmp_path: Path, rescued: bool) -> None:
    """Delivered and cancelled by twinlog, taken by RocketMQ, adopted again: what waits, waits."""
    root = unpack("19-timer-roll", tmp_path, CONSUMERS)
    store = opened(root)
    world = World(store, writer=Token("master", store.last_epoch, 1), wall_ms=store.reads.timestamp)
    topic = next(iter(store.reads.topics()))
    now = world.wall_ms
    here = {"topic": topic, "now_ms": now}
    store.append(
        world.writer,
        [timed(now + 100, 2, mark=1, **here), timed(delay_ms=5_000, mark=2, **here),
         timed(now + 6_000, mark=3, **here)],
        wall_ms=now,
    )  # fmt: skip
    world.at(now + 200)
    cancelled = next(one for one in world.records("rmq_sys_wheel_timer") if "k3" in one.keys)
    assert world.cancel(now + 6_000, cancelled.log_offset) is None
    settle(store)
    waiting = [(one.due, one.at) for one in store.messaging.confirmed.timers.after()]
    if rescued:
        world.retention = SimpleNamespace(held_for_groups=store.end)
        rescue = Rescue(world.context, world.fetch)
        rescue.work(world.now)
        settle(store)
        assert rescue.count == len(waiting) > 3
        known, waiting = (
            waiting,
            [(one.due, one.at) for one in store.messaging.confirmed.timers.after()],
        )
        assert [due for due, _ in waiting] == [due for due, _ in known]
        assert min(at for _, at in waiting) > max(at for _, at in known)
    store.close(clean=True)
    adopt(root)
    again = Store.open(RealDisk(root), store.settings, store.who, wall_ms=now)
    assert [(one.due, one.at) for one in again.messaging.confirmed.timers.after()] == waiting
