"""What waits for a time when its log file is to leave, over a real store that appends at once."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from node.delivery.rescue import Rescue
from node.delivery.service import BATCH_BYTES
from storage import Outcome, Section
from tests.fakes.deliveries import START_MS
from tests.fakes.disk import FakeDisk
from tests.stores.records.timed import World, timed
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    append,
    lead,
    log_records,
    master,
    section,
    settle,
    token,
)
from twinlog.errors import TooLate
from twinlog.format.record import Record, RecordEncoder, encode_properties
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.timers import ORIGIN, ROLLS, due_text, keys_of, real_text

GRAIN = 65_536
ROOMY = replace(SETTINGS, segment_size=4 << 20)


class RescueWorld(World):
    """A master whose oldest file is to leave."""

    def begin(self) -> None:
        """See `deliveries.World`."""
        super().begin()
        self.retention = SimpleNamespace(held_for_groups=0)
        self.rescue = Rescue(self.context, self.fetch)

    def fill(self) -> None:
        """Let what waits lie a while behind the end of the log."""
        settle(self.store)
        while self.store.end < self.store.reads.start + 2 * GRAIN:
            append(self.store, section(1, queue=1, size=2_000))
            settle(self.store)

    def leave(self, below: int) -> None:
        """Have the log before an offset leave: everything that waits there is rescued."""
        self.retention.held_for_groups = below
        for _ in range(50):
            settle(self.store)
            self.now += 2.0
            self.rescue.work(self.now)
        settle(self.store)
        self.retention.held_for_groups = 0

    def waiting(self) -> list[Record]:
        """The records of the timer topic."""
        return [one for one in log_records(self.store) if one.topic == TIMER_TOPIC]


def test_what_waits_goes_on_to_wait_in_a_newer_record() -> None:
    """It keeps its time and its body; nothing of the file waits, and it comes once."""
    world = RescueWorld()
    append(world.store, timed(500_250, 2, queue=3), timed(delay_ms=700_000, now_ms=9, mark=1))
    world.fill()
    assert world.store.messaging.held() < GRAIN
    world.leave(GRAIN)
    assert world.store.messaging.held() >= GRAIN
    assert world.rescue.count == 3
    old, new = world.waiting()[:3], world.waiting()[3:]
    assert [one.body for one in new] == [one.body for one in old]
    assert [int(one.properties[ORIGIN]) for one in new] == [one.log_offset for one in old]
    assert [one.properties["TIMER_DELIVER_MS"] for one in new] == [
        "500250", "500250", str(START_MS + 700_000),
    ]  # fmt: skip
    assert {one.properties[ROLLS] for one in new} == {"1"}
    assert not any("TIMER_DELAY_MS" in one.properties for one in new)
    world.at(500_249)
    assert world.copies(TOPIC, 3) == []
    world.at(500_250)
    assert world.copies(TOPIC, 3) == [b"0/0/", b"0/1/"]
    world.at(START_MS + 700_000)
    assert world.copies() == [b"1/0/"]
    assert all(ORIGIN not in one.properties for one in world.records())
    assert world.store.messaging.confirmed.timers.count == 0


def test_it_is_taken_back_by_the_address_that_its_sender_knows() -> None:
    """Also after two rescues; and one that came is too late, at whatever address."""
    world = RescueWorld()
    append(world.store, timed(500_000, 2))
    world.fill()
    first, second = world.waiting()
    world.leave(GRAIN)
    world.leave(-(-world.store.end // GRAIN) * GRAIN)
    assert world.rescue.count >= 4
    assert world.cancel(500_000, first.log_offset) is None
    world.at(500_000)
    assert world.copies() == [b"0/1/"]
    with pytest.raises(TooLate):
        world.cancel(500_000, second.log_offset)


def test_what_was_rescued_is_taken_back_by_either_address() -> None:
    """The key is in the newer record, which is what is left when the file has gone."""
    world = RescueWorld()
    append(world.store, timed(500_250, mark=1), timed(delay_ms=700_000, now_ms=9, mark=2))
    world.fill()
    world.leave(GRAIN)
    for one in world.waiting():
        found = [
            world.cancel(*key)
            for key in keys_of(one.properties, one.store_timestamp, one.log_offset)
        ]
        assert None in found, one.properties
    settle(world.store)
    assert world.store.messaging.confirmed.timers.count == 0
    world.at(900_000)
    assert world.copies() == []


def test_what_is_on_its_way_is_not_rescued() -> None:
    """A row binds from its append: else the new record would be read in vain."""
    world = RescueWorld()
    append(world.store, timed(5_000))
    world.fill()
    world.wall_ms, world.now = 5_000, 3.0
    world.timers.work(world.now)
    world.retention.held_for_groups = GRAIN
    world.rescue.work(world.now)
    assert world.rescue.count == 0
    assert len(world.waiting()) == 1


def test_a_full_disk_leaves_it_where_it_is() -> None:
    """It is tried again, and holds its file until then."""
    world = RescueWorld()
    append(world.store, timed(500_000))
    world.fill()
    world.refusal = "disk-full"
    world.retention.held_for_groups = GRAIN
    world.rescue.work(world.now)
    assert world.store.messaging.held() < GRAIN
    assert world.now < world.rescue.next_deadline() < world.now + 1
    world.refusal = "too-large"
    world.now += 1
    world.rescue.work(world.now)
    world.now += 10
    world.rescue.work(world.now)
    assert world.told == ["rescue_held"]
    world.refusal = ""
    world.leave(GRAIN)
    assert world.store.messaging.held() >= GRAIN


def test_a_record_larger_than_a_batch_is_rescued() -> None:
    """As large as a message may be: it holds its file no longer than the small ones."""
    world = RescueWorld(master(FakeDisk(), settings=ROOMY))
    append(world.store, timed(500_000, size=BATCH_BYTES + 1_000))
    world.fill()
    world.leave(GRAIN)
    assert (world.rescue.count, world.told) == (1, ["rescued"])
    assert world.store.messaging.held() >= GRAIN


def test_a_record_without_room_for_its_address_is_told() -> None:
    """It stays and holds its file; what is after it is rescued."""
    world = RescueWorld(master(FakeDisk(), settings=ROOMY))
    encoder = RecordEncoder(TIMER_TOPIC, 0)
    text = due_text(0, delay_ms=None, at_ms=500_000) + real_text(TOPIC, 0)
    text += encode_properties({"a": "b" * (32_767 - len(text) - 3)})
    encoder.add(b"x", properties=text, born_timestamp=1)
    [done] = append(world.store, Section(TIMER_TOPIC, 0, 1, encoder.take()))
    assert done.outcome is Outcome.STORED
    append(world.store, timed(500_000))
    world.fill()
    world.leave(GRAIN)
    assert world.rescue.count == 1
    assert world.told == ["rescued", "rescue_held"]
    assert world.store.messaging.held() < GRAIN


def test_cold_records_are_fetched_aside() -> None:
    world = RescueWorld()
    append(world.store, timed(500_000, 3))
    world.fill()
    world.store.reads._lookups._hot_bytes = 0
    world.leave(GRAIN)
    assert world.fetches >= 1
    assert world.rescue.count == 3


def test_the_next_master_goes_on() -> None:
    """What was rescued waits there as here; what was not is rescued by it."""
    world = RescueWorld()
    append(world.store, timed(500_000, 2))
    world.fill()
    world.leave(GRAIN)
    settle(world.store)
    lead(world.store, epoch=2)
    settle(world.store)
    after = RescueWorld(world.store, writer=token(2))
    after.leave(GRAIN)
    assert after.rescue.count == 0
    after.at(500_000)
    assert after.copies() == [b"0/0/", b"0/1/"]


def test_no_client_says_what_only_a_rescue_may() -> None:
    """Else one could move, and lose, the message of another."""
    world = RescueWorld()
    encoder = RecordEncoder(TIMER_TOPIC, 0)
    text = encode_properties({"KEYS": "k"}) + due_text(0, delay_ms=None, at_ms=9_000)
    text += real_text(TOPIC, 0) + encode_properties({ORIGIN: "0"})
    encoder.add(b"x", properties=text, born_timestamp=1)
    [refusal] = append(world.store, Section(TIMER_TOPIC, 0, 1, encoder.take()))
    assert refusal.outcome is Outcome.REFUSED
    assert (refusal.code, refusal.record) == ("timer", 0)
