"""H8: five rounds of ours, RocketMQ 5.3.3, an adoption, ours, with all kinds of delays waiting."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from storage import CreateTopic, Outcome, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from tests.fakes import deliveries
from tests.stores.adopted import adopted
from tests.stores.records.delayed import delayed
from tests.stores.records.timed import World, timed
from twinlog.format.waiting.timers import DELIVER_MS
from twinlog.kernels.fields import DELAY_LEVELS_MS
from twinlog.store.reader import StoreReader

pytestmark = pytest.mark.interop

SEGMENT_SIZE, QUEUE_SIZE = 256 * 1024, 2_000
ROUNDS = 5
SERVE_MS = 4_500
DAY_MS = 86_400_000


def now_ms() -> int:
    """The wall clock."""
    return round(time.time() * 1000)


def opened(root: Path) -> tuple[Store, Token]:
    """A new store of ours with a master."""
    settings = StoreSettings(
        segment_size=SEGMENT_SIZE, queue_segment_entries=QUEUE_SIZE // 20, index_slots=100,
        index_cells=400, store_host=("127.0.0.1", 7410),
    )  # fmt: skip
    now, writer = now_ms(), Token("master", 1, 1)
    store = Store.open(RealDisk(root), settings, Who("adopted", "g1", "n1", 4), wall_ms=now)
    store.registered()
    store.take_token(writer)
    store.append_epoch(writer, epoch=1, node="n1", session=1, wall_ms=now, reason="test", by="test")
    store.append_control(writer, CreateTopic("orders", 4, 1), wall_ms=now)
    store.set_confirm(store.end)
    return store, writer


def lead_adopted(root: Path) -> tuple[Store, Token]:
    """The store that RocketMQ left, adopted, with a master."""
    store = adopted(root)
    while store.dispatch(1 << 20):
        pass
    store.set_confirm(store.end)
    while store.dispatch(1 << 20):
        pass
    return store, Token("master", store.last_epoch, 1)


class Round:
    """One turn of ours: what is sent, and what both services deliver."""

    def __init__(self, store: Store, writer: Token) -> None:
        wall_ms = max(now_ms(), store.reads.timestamp)
        self.store = store
        self.writer = writer
        self.timers = World(store, writer=writer, wall_ms=wall_ms)
        self.levels = deliveries.World(store, writer=writer, wall_ms=wall_ms)

    def send(self, number: int) -> list[str]:
        """Send messages of each kind: due at once, soon, in some rounds, at the end."""
        now, mark = self.timers.wall_ms, 100 * (number + 1)
        here = {"topic": "orders", "now_ms": now, "queue": number % 4}
        sent: list[Section] = [
            timed(now + 300, mark=mark, **here),
            timed(now + 3_000, mark=mark + 1, **here),
            timed(delay_ms=12_345, mark=mark + 2, **here),
            timed(now + DAY_MS + number, mark=mark + 3, **here),
            timed(now + 5 * DAY_MS, mark=mark + 4, **here),
            *(
                delayed(level, mark=mark + 10 + level, topic="orders", queue=number % 4)
                for level in (1, 2, 3, 18)
            ),
        ]
        results = self.store.append(self.writer, sent, wall_ms=now)
        assert all(one.outcome is Outcome.STORED for one in results), results
        return [f"k{mark + one}" for one in (0, 1, 2, 3, 4, 11, 12, 13, 28)]

    def deliver(self, wall_ms: int) -> None:
        """Deliver what is due until then."""
        self.timers.at(wall_ms)
        self.levels.at(wall_ms)
        self.timers.work()


def test_every_message_comes_once_over_five_rounds(judge, tmp_path: Path) -> None:
    """None is lost, none comes twice, and none is early, whoever delivers it."""
    root = tmp_path / "store"
    root.mkdir()
    sent: list[str] = []
    theirs = 0
    for number in range(ROUNDS):
        turn = Round(*(lead_adopted(root) if number else opened(root)))
        sent += turn.send(number)
        turn.deliver(turn.timers.wall_ms + 400)
        turn.store.set_confirm(turn.store.end)
        turn.store.close(clean=True)
        before = len(copies(root))
        answer = judge.ask(
            "open", dir=str(root), commit_log_size=SEGMENT_SIZE, queue_size=QUEUE_SIZE,
            timers=True, delays=True,
        )  # fmt: skip
        assert answer["loaded"] is True
        judge.ask("serve", millis=SERVE_MS)
        judge.ask("close")
        theirs += len(copies(root)) - before
        assert max(Counter(copies(root)).values()) == 1, "none twice"
    last = Round(*lead_adopted(root))
    ours = len(copies(root)) - theirs
    assert theirs > ROUNDS and ours >= ROUNDS, "each had its part"
    last.deliver(last.timers.wall_ms + 6 * DAY_MS)
    last.store.set_confirm(last.store.end)
    last.store.close(clean=True)
    assert Counter(copies(root)) == Counter(sent), "each once"
    assert not early(root)


def copies(root: Path) -> list[str]:
    """The keys of what was delivered."""
    with StoreReader(root, rocketmq=True) as reader:
        return [one.properties["KEYS"] for one in reader.records() if one.topic == "orders"]


def early(root: Path) -> list[str]:
    """The keys of what was delivered before it was due."""
    with StoreReader(root, rocketmq=True) as reader:
        records = [one for one in reader.records() if "KEYS" in one.properties]
    stored = {one.properties["KEYS"]: one for one in reversed(records) if one.topic != "orders"}
    found: list[str] = []
    for one in records:
        if one.topic == "orders":
            key, named = one.properties["KEYS"], one.properties
            level = named.get("DELAY")
            due = int(named.get(DELIVER_MS, "0"))
            if level is not None:
                due = stored[key].store_timestamp + DELAY_LEVELS_MS[int(level) - 1]
            if one.store_timestamp < due:
                found.append(key)
    return found
