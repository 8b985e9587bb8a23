"""Deliveries of messages that wait for a time, over a real store that appends at once."""

from __future__ import annotations

import pytest

from node.delivery import service
from storage import CreateTopic
from storage.messaging.copies import UNDELIVERABLE
from storage.state.topics import Topic
from tests.fakes.deliveries import START_MS
from tests.stores.records.timed import World, timed
from tests.stores.workbench import TOPIC, append, lead, log_records, settle, token
from twinlog.errors import Busy, TooLate
from twinlog.format.system_topics import TIMER_TOPIC


def test_a_message_comes_at_its_millisecond_and_not_before() -> None:
    """The service knows when it has to wake; nothing runs between."""
    world = World()
    append(world.store, timed(5_250, 2), timed(5_249, mark=5), timed(9_000, mark=7))
    world.work()
    assert world.timers.next_deadline(world.now) == pytest.approx(world.now + 3.249)
    world.at(5_248)
    assert world.copies() == []
    world.at(5_249)
    assert world.copies() == [b"5/0/"]
    world.at(5_250)
    assert world.copies() == [b"5/0/", b"0/0/", b"0/1/"]
    assert [count for count, _ in world.batches] == [1, 1], "copies and row in one batch"
    world.at(60_000)
    assert world.copies() == [b"5/0/", b"0/0/", b"0/1/", b"7/0/"]
    assert world.timers.counts.delivered == 4
    world.work()
    assert world.timers.next_deadline(world.now) == float("inf")
    assert world.store.messaging.confirmed.timers.count == 0
    assert all(one.store_timestamp >= 5_249 for one in world.records())


def test_a_delay_begins_when_the_message_is_stored() -> None:
    """By the master's clock, whatever the sender's says."""
    world = World()
    append(world.store, timed(delay_ms=1_500, now_ms=900_000_000))
    world.at(START_MS + 1_499)
    assert world.copies() == []
    world.at(START_MS + 1_500)
    assert world.copies() == [b"0/0/"]


def test_one_whose_time_has_passed_comes_at_once() -> None:
    world = World()
    append(world.store, timed(50_000), timed(1_000, mark=1))
    world.at(START_MS)
    assert world.copies() == [b"1/0/"]
    append(world.store, timed(1_000, mark=2))
    world.at(START_MS)
    assert world.copies() == [b"1/0/", b"2/0/"]


def test_the_copy_is_rocketmqs() -> None:
    """Golden 05: the properties stay, and two times are added."""
    world = World()
    append(world.store, timed(5_250, queue=3, producer=9))
    world.at(5_260)
    [one] = world.records()
    assert one.queue == 3
    assert one.properties == {
        "KEYS": "k0", "UNIQ_KEY": "0.0", "TIMER_DELIVER_MS": "5250", "TIMER_OUT_MS": "5000",
        "REAL_TOPIC": TOPIC, "REAL_QID": "3", "TIMER_ENQUEUE_MS": "2000",
        "TIMER_DEQUEUE_MS": "5260",
    }  # fmt: skip
    assert (one.born_timestamp, one.reconsume_times) == (1, 0)


def test_a_master_goes_on_where_the_log_says() -> None:
    """What its predecessor delivered is not delivered again; what it had not, is."""
    world = World()
    append(world.store, timed(5_000, 3))
    world.at(5_000)
    append(world.store, timed(5_000, 2, mark=7))
    settle(world.store)
    lead(world.store, epoch=2)
    settle(world.store)
    after = World(world.store, writer=token(2))
    after.at(60_000)
    assert after.copies() == [b"0/0/", b"0/1/", b"0/2/", b"7/0/", b"7/1/"]


def test_what_is_appended_and_not_confirmed_is_not_delivered_twice() -> None:
    """A row binds from its append."""
    world = World()
    append(world.store, timed(5_000, 2))
    settle(world.store)
    world.wall_ms, world.now = 5_000, 3.0
    for _ in range(5):
        world.timers.work(world.now)
    assert len(world.batches) == 1
    assert world.store.messaging.confirmed.timers.count == 2
    assert world.store.messaging.timers.next_due() is None


def test_a_cancel_that_is_answered_holds_and_one_that_is_refused_came() -> None:
    """Also when it is repeated, because its answer was lost."""
    world = World()
    append(world.store, timed(5_000, 3))
    settle(world.store)
    first, second, third = [one for one in log_records(world.store) if one.topic == TIMER_TOPIC]
    assert world.cancel(5_000, second.log_offset) is None
    assert world.cancel(5_000, second.log_offset) is None
    world.at(5_000)
    assert world.cancel(5_000, second.log_offset) is None
    assert world.copies() == [b"0/0/", b"0/2/"]
    for late in (first, third):
        with pytest.raises(TooLate, match="was delivered"):
            world.cancel(5_000, late.log_offset)
    with pytest.raises(Busy):
        world.cancel(5_000, world.store.end)


def test_records_go_to_many_queues_in_batches_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has a number of sections, and a burst is many batches."""
    monkeypatch.setattr(service, "TOGETHER_MAX", 8)
    world = World()
    world.store.append_control(token(1), CreateTopic("wide", 20, 1), wall_ms=1)
    settle(world.store)
    for queue in range(20):
        append(world.store, timed(5_000, topic="wide", queue=queue, mark=queue))
    world.at(6_000)
    assert [count for count, _ in world.batches] == [8, 8, 4]
    assert [world.copies("wide", queue) for queue in (0, 7, 8, 19)] == [
        [b"0/0/"], [b"7/0/"], [b"8/0/"], [b"19/0/"],
    ]  # fmt: skip


def test_a_refusal_that_passes_is_tried_again_soon() -> None:
    """Nothing is delivered and nothing is lost."""
    world = World()
    append(world.store, timed(3_000))
    world.refusal = "disk-full"
    settle(world.store)
    world.wall_ms, world.now = 3_000, 1.0
    world.timers.work(world.now)
    assert world.now < world.timers.next_deadline(world.now) < world.now + 1
    world.refusal = ""
    world.at(3_500)
    assert world.copies() == [b"0/0/"]
    assert world.told == []


def test_what_the_log_refuses_for_another_reason_is_told_once() -> None:
    world = World()
    append(world.store, timed(3_000))
    world.refusal = "too-large"
    settle(world.store)
    world.wall_ms, world.now = 3_000, 1.0
    world.timers.work(world.now)
    world.timers.work(world.now + 7)
    assert world.told == ["timer_held"]
    world.refusal = ""
    world.at(30_000)
    assert world.copies() == [b"0/0/"]


def test_what_has_no_destination_any_more_is_kept_for_people() -> None:
    world = World()
    layers = world.store._opened.derived.layers
    layers.confirmed.add(Topic("gone", 4, 0))
    append(world.store, timed(3_000, topic="gone"), timed(3_000, mark=1))
    del layers.confirmed.topics["gone"]
    world.at(3_000)
    assert world.copies() == [b"1/0/"]
    assert [one.properties["TL_WHY"] for one in world.records(UNDELIVERABLE)] == ["topic-gone"]
    assert world.timers.counts.undeliverable == 1


def test_cold_records_are_read_ahead_of_their_time() -> None:
    """The loop never waits for a disk, and the message is not late for it."""
    world = World()
    append(world.store, timed(9_000, 2))
    settle(world.store)
    world.store.reads._lookups._hot_bytes = 0
    world.at(7_900)
    assert world.fetches == 0
    assert world.timers.next_deadline(world.now) == pytest.approx(world.now + 0.1)
    world.at(8_000)
    assert world.fetches == 1
    assert world.timers.next_deadline(world.now) == pytest.approx(world.now + 1.0)
    world.at(9_000)
    assert world.fetches == 1
    assert world.copies() == [b"0/0/", b"0/1/"]


def test_nothing_that_waits_leaves_with_its_file() -> None:
    """What retention asks: the log is held from before the first record that waits."""
    world = World()
    append(world.store, timed(5_000))
    settle(world.store)
    waits = next(one for one in log_records(world.store) if one.topic == TIMER_TOPIC)
    assert world.store.messaging.held() <= waits.log_offset
    world.at(5_000)
    settle(world.store)
    assert world.store.messaging.held() == world.store.confirm


def test_a_record_whose_copy_would_not_fit_is_refused_at_the_send() -> None:
    """And what is stored is delivered, however small a batch of the log is."""
    world = World()
    most = world.store.settings.batch_length_max
    [refusal] = append(world.store, timed(5_000, size=most - 1_000))
    assert (refusal.code, refusal.record) == ("too-large", 0)
    append(world.store, *[timed(5_000, 4, mark=one, size=1_000) for one in range(8)])
    world.at(5_000)
    assert len(world.copies()) == 32
    assert len(world.batches) > 1
    assert world.told == []
