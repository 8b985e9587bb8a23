"""RocketMQ 5.3.3 goes on with messages that wait for a time in a store of ours, and we in its."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from tests.stores.records.timed import World, timed
from twinlog.store.reader import StoreReader
from twinlog.store.verify.timers import check_timers

pytestmark = pytest.mark.interop

SEGMENT_SIZE, QUEUE_SIZE = 256 * 1024, 2_000
TOKEN = Token("master", 1, 1)
DAY_MS = 86_400_000


def opened(root: Path) -> Store:
    """A store of ours with a master."""
    settings = StoreSettings(
        segment_size=SEGMENT_SIZE, queue_segment_entries=QUEUE_SIZE // 20,
        store_host=("127.0.0.1", 7410),
    )  # fmt: skip
    now = round(time.time() * 1000)
    store = Store.open(RealDisk(root), settings, Who("interop", "g1", "n1", 4), wall_ms=now)
    store.registered()
    store.take_token(TOKEN)
    store.append_epoch(TOKEN, epoch=1, node="n1", session=1, wall_ms=now, reason="test", by="test")
    store.append_control(TOKEN, CreateTopic("orders", 4, 1), wall_ms=now)
    store.set_confirm(store.end)
    return store


def send(world: World, *sections: Section) -> None:
    """Store them now."""
    results = world.store.append(TOKEN, sections, wall_ms=world.wall_ms)
    assert all(one.outcome is Outcome.STORED for one in results), results


def copies(root: Path) -> Counter[str]:
    """What was delivered to ``orders``, by its key."""
    with StoreReader(root) as reader:
        return Counter(one.properties["KEYS"] for one in reader.records() if one.topic == "orders")


def test_rocketmq_delivers_what_waits_once_and_nothing_again(judge, tmp_path: Path) -> None:
    """H1: delivered, the rest of that second, cancelled, due during its start, soon, in days."""
    root = tmp_path / "ours"
    root.mkdir()
    world = World(opened(root), wall_ms=round(time.time() * 1000))
    now = round(time.time() * 1000)
    second = now // 1000 * 1000 + 2_000
    here = {"topic": "orders", "now_ms": now}
    send(
        world,
        timed(now - 5_000, mark=1, **here),
        timed(second + 1, 2, mark=2, **here),
        timed(second + 999, 2, mark=3, **here),  # the same second, not delivered
        timed(second + 500, mark=4, **here),  # cancelled
        timed(delay_ms=9_000, mark=5, queue=2, **here),
        timed(now + 10_000, mark=6, queue=3, **here),
        timed(now + 3 * DAY_MS, mark=7, **here),
        timed(now + 5 * DAY_MS, mark=8, **here),
        timed(second + 1, mark=9, **here),
    )
    world.work()
    found = {one.properties["KEYS"]: one for one in world.records("rmq_sys_wheel_timer")}
    assert world.cancel(second + 500, found["k4"].log_offset) is None
    world.at(second + 1)
    world.store.set_confirm(world.store.end)
    world.store.close(clean=True)
    delivered = Counter({"k1": 1, "k2": 2, "k9": 1})
    assert copies(root) == delivered
    with StoreReader(root) as reader:
        assert list(check_timers(reader)) == []

    answer = judge.ask(
        "open", dir=str(root), commit_log_size=SEGMENT_SIZE, queue_size=QUEUE_SIZE, timers=True
    )
    assert answer["loaded"] is True
    judge.ask("serve", millis=max(0, now + 13_500 - round(time.time() * 1000)))
    dump = judge.ask("dump")["messages"]
    judge.ask("close")
    ours = sum(delivered.values())
    late = [one for one in dump if one["topic"] == "orders" and one["queue_offset"] >= 0]
    late = sorted(late, key=lambda one: one["physical_offset"])[ours:]
    found = [(one["properties"]["KEYS"], one["queue_id"]) for one in late]
    assert sorted(found) == [("k3", 0), ("k3", 0), ("k5", 2), ("k6", 3)]
    due = {"k3": second + 999, "k5": now + 9_000, "k6": now + 10_000}
    assert all(one["store_timestamp"] >= due[one["properties"]["KEYS"]] for one in late)
    waiting = [one for one in dump if one["topic"] == "rmq_sys_wheel_timer"]
    assert len(waiting) == 11, "what waits for days is not entered again yet"
