"""RocketMQ 5.3.3 goes on with messages that wait for delay levels in a store of ours, we in its."""

from __future__ import annotations

import time
from collections import Counter
from functools import partial
from pathlib import Path

import pytest

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from tests.fakes.deliveries import World
from tests.stores.adopted import adopted
from tests.stores.records.delayed import delayed as delayed_for
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.store.reader import StoreReader

pytestmark = pytest.mark.interop

SEGMENT_SIZE, QUEUE_SIZE = 256 * 1024, 2_000
TOKEN = Token("master", 1, 1)
LATER_MS = 3 * 3_600_000


delayed = partial(delayed_for, topic="orders")


def opened(root: Path) -> Store:
    """A store of ours with a master."""
    settings = StoreSettings(
        segment_size=SEGMENT_SIZE, queue_segment_entries=QUEUE_SIZE // 20,
        store_host=("127.0.0.1", 7410),
    )  # fmt: skip
    now = now_ms()
    store = Store.open(RealDisk(root), settings, Who("interop", "g1", "n1", 4), wall_ms=now)
    store.registered()
    store.take_token(TOKEN)
    store.append_epoch(TOKEN, epoch=1, node="n1", session=1, wall_ms=now, reason="test", by="test")
    store.append_control(TOKEN, CreateTopic("orders", 4, 1), wall_ms=now)
    store.set_confirm(store.end)
    return store


def now_ms() -> int:
    """The wall clock."""
    return round(time.time() * 1000)


def send(world: World, *sections: Section) -> None:
    """Store them now."""
    results = world.store.append(world.writer, sections, wall_ms=world.wall_ms)
    assert all(one.outcome is Outcome.STORED for one in results), results


def copies(root: Path) -> Counter[tuple[str, int]]:
    """What was delivered, by key and queue."""
    with StoreReader(root, rocketmq=True) as reader:
        found = [one for one in reader.records() if one.topic == "orders"]
    return Counter((one.properties["KEYS"], one.queue) for one in found)


def test_each_delivers_what_the_other_left(judge, tmp_path: Path) -> None:
    """H2: ours delivers some, RocketMQ the next ones, ours, after an adoption, the rest: each once.

    What lies in the log beyond the confirm offset when we stop is delivered and is not repeated.
    """
    root = tmp_path / "ours"
    root.mkdir()
    world = World(opened(root), writer=TOKEN, wall_ms=now_ms())
    send(world, delayed(1, 2, mark=1), delayed(2, 2, mark=2, queue=1), delayed(3, 1, mark=3))
    send(world, delayed(4, 1, mark=4, queue=3), delayed(18, 2, mark=18))
    began = world.wall_ms
    world.at(began + 1_000)
    send(world, delayed(1, 1, mark=7, queue=2))
    world.at(began + 2_000)
    world.store.close(clean=True)
    ours = Counter({("k1", 0): 2, ("k7", 2): 1})
    assert copies(root) == ours

    answer = judge.ask(
        "open", dir=str(root), commit_log_size=SEGMENT_SIZE, queue_size=QUEUE_SIZE, delays=True
    )
    assert answer["loaded"] is True
    judge.ask("serve", millis=max(0, began + 13_000 - now_ms()))
    dump = judge.ask("dump")["messages"]
    judge.ask("close")
    theirs = Counter({("k2", 1): 2, ("k3", 0): 1})
    assert copies(root) == ours + theirs
    stored = {one["properties"]["KEYS"]: one for one in dump if one["topic"] == "orders"}
    assert stored["k2"]["store_timestamp"] >= began + 5_000
    assert stored["k3"]["store_timestamp"] >= began + 10_000
    waiting = [one for one in dump if one["topic"] == DELAY_TOPIC]
    assert len(waiting) == 9

    store = adopted(root)
    while store.dispatch(1 << 20):
        pass
    writer = Token("master", store.last_epoch, 1)
    again = World(store, writer=writer, wall_ms=store.reads.timestamp)
    again.at(again.wall_ms + LATER_MS)
    store.set_confirm(store.end)
    store.close(clean=True)
    rest = Counter({("k4", 3): 1, ("k18", 0): 2})
    assert copies(root) == ours + theirs + rest
