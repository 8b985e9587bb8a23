"""Deliveries of delayed messages, over a real store and a driver that appends at once."""

from __future__ import annotations

import pytest

from node.delivery.service import BATCH_BYTES
from storage import CreateTopic
from storage.messaging.copies import UNDELIVERABLE
from storage.state.topics import Topic
from tests.fakes.deliveries import START_MS, World
from tests.stores.records.delayed import delayed
from tests.stores.workbench import TOPIC, append, lead, log_records, settle, token
from twinlog.format.group_rows import DelayRow
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.kernels.fields import DELAY_LEVELS_MS


def test_a_message_comes_at_its_time_and_not_a_millisecond_before() -> None:
    """The service knows when it has to wake; nothing runs between."""
    world = World()
    append(world.store, delayed(1, 2), delayed(2, 1, mark=5))
    world.work()
    due = START_MS + DELAY_LEVELS_MS[0]
    assert world.delays.next_deadline(world.now) == pytest.approx(world.now + 1.0)
    world.at(due - 1)
    assert world.copies() == []
    world.at(due)
    assert world.copies() == [b"0/0/", b"0/1/"]
    assert world.batches == [(1, world.batches[0][1])], "copies and mark in one batch"
    world.at(START_MS + DELAY_LEVELS_MS[1])
    assert world.copies() == [b"0/0/", b"0/1/", b"5/0/"]
    assert world.delays.counts.delivered == 3
    assert world.delays.next_deadline(world.now) == float("inf")
    assert world.store.messaging.delays_waiting(1) == 0


def test_the_copy_is_rocketmqs() -> None:
    """Golden 04: the properties stay, `DELAY` too; store time and offsets are the copy's."""
    world = World()
    append(world.store, delayed(1, 1, queue=3, producer=9, sequence=0))
    world.at(START_MS + 1_000)
    [one] = world.records()
    assert one.queue == 3
    assert one.properties == {
        "KEYS": "k0", "DELAY": "1", "REAL_TOPIC": TOPIC, "REAL_QID": "3",
    }  # fmt: skip
    assert one.store_timestamp >= START_MS + 1_000
    assert (one.born_timestamp, one.reconsume_times) == (1, 0)


def test_a_master_goes_on_where_the_log_says() -> None:
    """What its predecessor delivered is not delivered again; what it had not, is."""
    world = World()
    append(world.store, delayed(1, 3))
    world.at(START_MS + 1_000)
    append(world.store, delayed(1, 2, mark=7))
    settle(world.store)
    lead(world.store, epoch=2)
    settle(world.store)
    after = World(world.store, writer=token(2))
    after.at(START_MS + 60_000)
    assert after.copies() == [b"0/0/", b"0/1/", b"0/2/", b"7/0/", b"7/1/"]


def test_what_is_appended_and_not_confirmed_is_not_delivered_twice() -> None:
    """A mark binds from its append."""
    world = World()
    append(world.store, delayed(1, 2))
    settle(world.store)
    world.wall_ms = START_MS + 1_000
    world.now = 1.0
    for _ in range(5):
        world.delays.work(world.now)
    assert len(world.batches) == 1
    assert world.store.messaging.confirmed.delay_next(1) == 0
    assert world.store.messaging.ahead.delay_next(1) == 2


def test_a_wall_clock_that_goes_back_makes_nothing_early() -> None:
    """The copy's own store time is at or after its due time."""
    world = World()
    world.wall_ms = START_MS + 600_000
    world.delays._context.clock.read(world.wall_ms + 5_000, 5.0)
    append(world.store, delayed(1, 1))
    world.wall_ms, world.now = START_MS + 500, 6.0
    world.work()
    assert world.copies() == []
    world.at(START_MS + 1_000)
    assert [one.store_timestamp for one in world.records()] == [START_MS + 1_000]


def test_records_go_to_many_queues_in_batches_that_fit() -> None:
    """At most 64 sections a batch, and a burst in batches of a MiB."""
    world = World()
    world.store.append_control(token(1), CreateTopic("wide", 100, 1), wall_ms=1)
    settle(world.store)
    for queue in range(100):
        append(world.store, delayed(1, 1, topic="wide", queue=queue, mark=queue))
    world.at(START_MS + 1_000)
    assert [count for count, _ in world.batches] == [64, 36]
    assert [world.copies("wide", queue) for queue in (0, 63, 64, 99)] == [
        [b"0/0/"], [b"63/0/"], [b"64/0/"], [b"99/0/"],
    ]  # fmt: skip
    assert all(size <= BATCH_BYTES for _, size in world.batches)


def test_a_refusal_that_passes_is_tried_again_soon() -> None:
    """Nothing is delivered and nothing is lost."""
    world = World()
    append(world.store, delayed(1, 1))
    world.refusal = "disk-full"
    settle(world.store)
    world.wall_ms, world.now = START_MS + 1_000, 1.0
    world.delays.work(world.now)
    assert world.now < world.delays.next_deadline(world.now) < world.now + 1
    world.refusal = ""
    world.at(START_MS + 1_500)
    assert world.copies() == [b"0/0/"]
    assert world.told == []


def test_a_message_that_the_log_refuses_holds_its_level_and_says_so() -> None:
    """It is not dropped; other levels go on."""
    world = World()
    append(world.store, delayed(1, 1), delayed(2, 1, mark=3))
    world.refusal = "too-large"
    settle(world.store)
    world.wall_ms, world.now = START_MS + 1_000, 1.0
    world.delays.work(world.now)
    world.delays.work(world.now + 0.5)
    assert world.told == ["delay_held"]
    world.refusal = ""
    world.at(START_MS + 5_000)
    assert world.copies() == [b"3/0/"]
    world.at(START_MS + 20_000)
    assert world.copies() == [b"3/0/", b"0/0/"]


def test_what_has_no_destination_any_more_is_kept_for_people() -> None:
    """As after an adoption without the topic; the others of the batch are delivered."""
    world = World()
    layers = world.store._opened.derived.layers
    layers.confirmed.add(Topic("gone", 4, 0))
    append(world.store, delayed(1, 1, topic="gone"), delayed(1, 1, queue=3, mark=2), delayed(1, 1))
    del layers.confirmed.topics["gone"]
    layers.confirmed.topics[TOPIC] = Topic(TOPIC, 1, 0)
    world.at(START_MS + 1_000)
    assert world.copies() == [b"0/0/"]
    found = world.records(UNDELIVERABLE)
    assert [(one.queue, one.properties["TL_WHY"]) for one in found] == [
        (0, "topic-gone"), (0, "queue-gone"),
    ]  # fmt: skip
    assert world.delays.counts.undeliverable == 2
    assert world.told == ["undeliverable"]


def test_cold_records_are_fetched_aside() -> None:
    """The loop never waits for a disk."""
    world = World()
    append(world.store, delayed(1, 2))
    settle(world.store)
    world.store.reads._lookups._hot_bytes = 0
    world.at(START_MS + 1_000)
    assert world.fetches == 1
    assert world.copies() == [b"0/0/", b"0/1/"]


def test_rows_that_do_not_rise_change_nothing() -> None:
    """A fold is total: whatever the log says."""
    world = World()
    rows = [DelayRow(1, 5), DelayRow(1, 3), DelayRow(0, 9), DelayRow(2, 0)]
    world.store.append_rows(token(1), rows, wall_ms=1)
    settle(world.store)
    assert world.store.messaging.confirmed.delays == ((1, 5),)
    assert world.store.messaging.ahead.delay_next(1) == 5


def test_nothing_that_waits_leaves_with_its_file() -> None:
    """What retention asks: the log is held from the first record that waits."""
    world = World()
    append(world.store, delayed(1, 1))
    settle(world.store)
    waits = next(one for one in log_records(world.store) if one.topic == DELAY_TOPIC)
    assert world.store.messaging.held() == waits.log_offset
    world.at(START_MS + 1_000)
    settle(world.store)
    assert world.store.messaging.held() == world.store.confirm
