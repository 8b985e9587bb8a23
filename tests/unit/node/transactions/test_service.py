"""Ends of transactions, over a real store that appends at once."""

from __future__ import annotations

import pytest

from storage import CreateTopic, Outcome
from tests.fakes.deliveries import START_MS
from tests.stores.records.halves import World, halves
from tests.stores.workbench import TOPIC, append, lead, log_records, settle, token
from twinlog.errors import Busy, TransactionSettled, TwinlogError, UsageError
from twinlog.format.group_rows import COMMIT, ROLLBACK
from twinlog.format.system_topics import GIVEN_UP_TOPIC, HALF_TOPIC, OP_TOPIC
from twinlog.format.waiting.halves import KEEP_MS


def open_world() -> World:
    """A master with three messages of one transaction, for two queues, and one of another."""
    world = World()
    append(world.store, halves(2), halves(queue=3, mark=5), halves(name="other", mark=7))
    settle(world.store)
    return world


def test_a_commit_delivers_all_in_one_batch_and_says_so_to_rocketmq() -> None:
    """Golden 06: type 8, the log offset of the half, properties as they were, and an op record."""
    world = open_world()
    assert world.copies() == [], "no consumer sees a half"
    assert world.open() == [0, 1, 2, 3]
    assert world.end(0, 1, 2) == COMMIT
    assert len(world.batches) == 1
    assert (world.copies(), world.copies(queue=3)) == ([b"0/0/", b"0/1/"], [b"5/0/"])
    assert world.open() == [3]
    found = log_records(world.store)
    waited = [one for one in found if one.topic == HALF_TOPIC][:3]
    copies = [one for one in found if one.topic == TOPIC]
    for half, copy in zip(waited, sorted(copies, key=lambda one: one.body), strict=True):
        assert copy.prepared_transaction_offset == half.log_offset
        assert (copy.sys_flag, half.sys_flag) == (8, 0)
        assert copy.properties == half.properties
        assert (copy.body, copy.born_timestamp) == (half.body, half.born_timestamp)
    [op] = [one for one in found if one.topic == OP_TOPIC]
    assert (op.body, op.properties) == (b"0,1,2,", {"TAGS": "d"})


def test_an_end_is_the_same_when_it_is_asked_again_and_refused_when_it_is_another() -> None:
    world = open_world()
    for _ in range(3):
        assert world.end(0, 1, 2) == COMMIT
    assert len(world.batches) == 1
    with pytest.raises(TransactionSettled, match="commit") as refused:
        world.end(0, 1, 2, outcome=ROLLBACK)
    assert refused.value.outcome == "commit"
    settle(world.store)
    with pytest.raises(TransactionSettled):
        world.end(0, 1, 2, outcome=ROLLBACK)
    assert world.end(3, outcome=ROLLBACK) == ROLLBACK
    with pytest.raises(TransactionSettled, match="rollback"):
        world.end(3)
    assert world.copies() == [b"0/0/", b"0/1/"]
    assert world.open() == []


def test_what_is_refused_changes_nothing() -> None:
    """Of a transaction as a whole."""
    world = open_world()
    with pytest.raises(UsageError, match="producer group shop, not other") as refused:
        world.end(0, 1, group="other")
    assert refused.value.code == "producer-group"
    with pytest.raises(Busy):
        world.end(0, 4)
    for numbers, outcome in (((), COMMIT), (range(1001), COMMIT), ((0,), 3), ((0,), 0)):
        with pytest.raises(UsageError):
            world.end(*numbers, outcome=outcome)
    with pytest.raises(UsageError) as unknown:
        world.end(-1, 0)
    assert unknown.value.code == "unknown-transaction"
    world.refusal = "disk-full"
    with pytest.raises(TwinlogError):
        world.end(0, 1, 2)
    world.refusal = ""
    assert (world.batches, world.open()) == ([], [0, 1, 2, 3])
    assert world.end(0, 1, 2) == COMMIT


def test_an_order_that_ends_a_transaction_is_told() -> None:
    """Its producers' own ends are not."""
    world = open_world()
    world.end(3)
    assert world.told == []
    for _ in range(2):
        world.end(0, 1, 2, outcome=ROLLBACK, why="an order")
    assert world.told == ["transaction_ended"]


def test_a_node_that_is_not_the_master_tells_what_it_knows() -> None:
    world = open_world()
    world.end(0, 1, 2)
    assert [row[0] for row in world.listed()] == [3]
    world.reign = lambda: (0, ("not-master", ""))  # type: ignore[assignment, return-value, method-assign]
    assert [row[0] for row in world.listed()] == [0, 1, 2, 3], "as far as it has dispatched"
    assert [row[0] for row in world.listed(limit=2)] == [0, 1]
    assert [row[0] for row in world.listed(first=2)] == [2, 3]
    with pytest.raises(UsageError):
        world.transactions.waiting({"what": "timers", "first": 0, "limit": 1})


def test_a_new_master_goes_by_the_log() -> None:
    """It neither repeats an end nor forgets what is open; also from a snapshot."""
    world = open_world()
    world.end(0, 1, 2)
    settle(world.store)
    lead(world.store, epoch=2)
    settle(world.store)
    after = World(world.store, writer=token(2))
    assert after.end(0, 1, 2) == COMMIT
    assert after.batches == []
    with pytest.raises(TransactionSettled):
        after.end(1, outcome=ROLLBACK)
    assert after.end(3) == COMMIT
    assert after.copies() == [b"0/0/", b"0/1/", b"7/0/"]


def test_retention_waits_for_what_is_open() -> None:
    world = open_world()
    first = next(one for one in log_records(world.store) if one.topic == HALF_TOPIC)
    assert world.store.messaging.held() == first.log_offset
    world.end(0, 1, 2)
    settle(world.store)
    assert world.store.messaging.held() > first.log_offset
    world.end(3)
    settle(world.store)
    assert world.store.messaging.held() == world.store.confirm


def test_what_nothing_ends_is_given_up_in_the_sight_of_operators() -> None:
    world = open_world()
    world.end(0, outcome=ROLLBACK)
    world.at(START_MS + KEEP_MS - 1)
    assert world.open() == [1, 2, 3]
    assert world.transactions.next_deadline(world.now) == pytest.approx(world.now + 0.001)
    world.at(START_MS + KEEP_MS)
    assert world.open() == []
    assert world.copies(GIVEN_UP_TOPIC) == [b"0/1/", b"5/0/", b"7/0/"]
    assert world.told == ["transaction_given_up"]
    with pytest.raises(TransactionSettled, match="given-up"):
        world.end(1)
    assert world.copies() == []
    assert world.transactions.next_deadline(world.now) == float("inf")


def test_what_cannot_be_given_up_stays_and_is_tried_again() -> None:
    world = open_world()
    world.refusal = "disk-full"
    world.at(START_MS + KEEP_MS)
    world.at(START_MS + KEEP_MS + 1)
    assert world.open() == [0, 1, 2, 3]
    world.refusal = ""
    world.at(START_MS + KEEP_MS + 10_000)
    assert world.open() == []


def test_halves_that_make_no_sense_are_refused() -> None:
    """Before a byte of them is stored."""
    world = World()
    world.store.append_control(token(1), CreateTopic("single", 1, 1), wall_ms=1)
    settle(world.store)
    end = world.store.end
    for section, code in (
        (halves(text=b""), "transaction"),
        (halves(group=""), "transaction"),
        (halves(name=""), "transaction"),
        (halves(topic="nowhere"), "unknown-topic"),
        (halves(topic="single", queue=1), "unknown-queue"),
        (halves(topic=HALF_TOPIC), "unknown-topic"),
    ):
        [result] = append(world.store, section)
        assert (result.outcome, result.code) == (Outcome.REFUSED, code), result
    assert world.store.end == end


def test_a_retry_of_a_send_is_no_second_half() -> None:
    world = World()
    for _ in range(2):
        append(world.store, halves(2, producer=9), halves(1, producer=9, topic="a", queue=0))
        settle(world.store)
    assert world.open() == [0, 1]
    world.end(0, 1)
    assert world.copies() == [b"0/0/", b"0/1/"]


def test_cold_records_are_fetched_and_judged_again() -> None:
    """The loop never waits for a disk, for an end as for what is given up."""
    world = open_world()
    world.store.reads._lookups._hot_bytes = 0
    assert world.end(0, 1, 2) == COMMIT
    assert world.fetches == 1
    assert (world.copies(), world.copies(queue=3)) == ([b"0/0/", b"0/1/"], [b"5/0/"])
    world.at(START_MS + KEEP_MS)
    assert world.copies(GIVEN_UP_TOPIC) == [b"7/0/"]
    assert world.open() == []
    assert world.fetches == 2
