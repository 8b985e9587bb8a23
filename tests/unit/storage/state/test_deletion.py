"""A deleted topic: nothing of it is read, written or handed out again, whatever happens next."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage import CreateTopic, Outcome, Section, SectionResult, Store
from storage.key_index.search import KeyQuery
from storage.messaging.groups import Group
from storage.read.result import ReadStatus
from storage.state.controls import DeleteTopic
from storage.state.group_controls import CreateGroups
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    SLAVE,
    TOPIC,
    append,
    bodies,
    fill,
    find_key,
    lead,
    master,
    open_store,
    queue_files,
    run,
    section,
    settle,
    ship,
    token,
)
from twinlog.errors import NotYetConfirmed, TopicDeleted, UnknownTopic
from twinlog.format.group_rows import LeaseRow, ShareRow

SMALL = replace(SETTINGS, queue_segment_entries=8)


def delete(store: Store, *, epoch: int = 1, topic: str = TOPIC) -> SectionResult:
    """Append the deletion of a topic."""
    return store.append_control(token(epoch), DeleteTopic(topic, 5), wall_ms=3000)


def create(store: Store, queues: int = 4, *, epoch: int = 1, batch: bool = False) -> SectionResult:
    """Append the creation of the topic."""
    change = CreateTopic(TOPIC, queues, 6, batch)
    return store.append_control(token(epoch), change, wall_ms=3000)


def two_lives(disk: FakeDisk) -> Store:
    """A store whose topic had 30 records in queue 1, was deleted, and has 3 in it since."""
    store = master(disk, settings=SMALL)
    for mark in range(3):
        append(store, section(10, queue=1, mark=mark))
    settle(store)
    assert delete(store).outcome is Outcome.STORED
    settle(store)
    assert create(store).outcome is Outcome.STORED
    settle(store)
    append(store, section(3, queue=1, mark=77))
    settle(store)
    return store


def new(store: Store) -> bool:
    """Whether a reader sees exactly the second life."""
    assert store.reads.queue_range(TOPIC, 1) == (30, 33)
    return [body[:4] for body in bodies(store, 1)] == [b"77/0", b"77/1", b"77/2"]


def test_a_deletion_binds_the_master_from_its_append_and_readers_from_its_confirm() -> None:
    """A permission needs the confirm, a restriction must not wait for it."""
    store = master(FakeDisk())
    append(store, section(10))
    settle(store)
    end = delete(store).end
    refused = append(store, section(1, mark=2))[0]
    assert (refused.outcome, refused.code) == (Outcome.REFUSED, "topic-deleted")
    assert store.reads.queues(TOPIC) is None, "no group goes on with it"
    assert store.messaging.destination(TOPIC) is None
    assert len(bodies(store)) == 10
    again = delete(store)
    assert (again.outcome, again.end) == (Outcome.DUPLICATE, end)
    settle(store)
    assert store.reads.topics() == {}
    with pytest.raises(TopicDeleted, match="was deleted at 1970-01-01T00:00:00"):
        store.reads.queue_range(TOPIC, 0)
    found = store.reads.read(TOPIC, 0, 0, max_bytes=100, max_records=1)
    assert found.status is ReadStatus.UNKNOWN_TOPIC
    assert append(store, section(1, mark=2))[0].code == "topic-deleted"


def test_what_cannot_be_deleted() -> None:
    """Topics that were never there, the store's own, and one whose creation may still be cut."""
    store = master(FakeDisk())
    assert delete(store, topic="never").code == "unknown-topic"
    assert delete(store, topic="rmq_sys_TWINLOG_META").code == "topic"
    store.append_control(token(1), CreateTopic("young", 1, 1), wall_ms=1)
    assert delete(store, topic="young").code == "busy"


def test_a_topic_made_again_goes_on_at_its_offsets_without_what_was_before() -> None:
    """Queue files of the first life go; the second begins behind blanks, as RocketMQ makes them."""
    disk = FakeDisk()
    store = two_lives(disk)
    assert new(store)
    paths = [path for path in queue_files(disk) if path.startswith(f"consumequeue/{TOPIC}/1/")]
    assert [path[-4:] for path in paths] == ["0480", "0640"]
    assert store.reads.queue_range(TOPIC, 0) == (0, 0)
    assert store.reads.since(TOPIC) > 0


def test_both_at_once_and_records_after_them_in_one_stretch() -> None:
    """The dispatcher meets the deletion, the new topic and its records in one step."""
    store = master(FakeDisk())
    append(store, section(10))
    delete(store)
    assert create(store).outcome is Outcome.STORED
    assert append(store, section(1))[0].code == "busy"
    store.set_confirm(store.end)
    with pytest.raises(NotYetConfirmed):
        store.reads.queue_range(TOPIC, 0)
    assert store.reads.read(TOPIC, 0, 0, max_bytes=9, max_records=1).status is (
        ReadStatus.ABOVE_CONFIRM
    )
    append(store, section(2, mark=5))
    settle(store)
    assert store.reads.queue_range(TOPIC, 0) == (10, 12)
    assert [body[:3] for body in bodies(store)] == [b"5/0", b"5/1"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_start_comes_to_the_same_state(clean: bool, snapshot: bool) -> None:
    """With a snapshot after it, or with the one that still has the first life."""
    disk = FakeDisk()
    store = master(disk, settings=SMALL)
    append(store, section(30, queue=1))
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job(force=True))
    delete(store)
    settle(store)
    create(store)
    settle(store)
    append(store, section(3, queue=1, mark=77))
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    if snapshot:
        run(store, store.jobs.snapshot_job())  # due at once after a deletion
        assert store.snapshot_at == store.end
    run(store, store.jobs.checkpoint_job())
    store.close(clean=clean)
    again = open_store(disk, settings=SMALL)
    settle(again)
    assert new(again)
    assert again.reads.since(TOPIC) == store.reads.since(TOPIC)


def test_queues_that_are_built_again_from_the_whole_log_skip_the_first_life() -> None:
    """As `log recover` does: the records of both lives are in the log."""
    disk = FakeDisk()
    store = two_lives(disk)
    store.close(clean=True)
    for path in queue_files(disk):
        disk.remove(path, "test")
    again = open_store(disk, settings=SMALL)
    settle(again)
    assert again._opened.derived.rebuilt
    assert new(again)


def test_a_cut_that_takes_the_deletion_back_brings_the_messages_back() -> None:
    """Only an unclean election cuts what was confirmed."""
    store = master(FakeDisk(), settings=SMALL)
    append(store, section(30, queue=1))
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job(force=True))
    before = store.end
    delete(store)
    settle(store)
    create(store)
    settle(store)
    append(store, section(3, queue=1, mark=77))
    settle(store)
    assert new(store)
    run(store, store.cut_job(token(1), before))
    assert store.reads.queue_range(TOPIC, 1) == (0, 30)
    assert len(bodies(store, 1)) == 30


def test_a_cut_of_what_was_confirmed_and_not_dispatched_takes_it_back_too() -> None:
    """The confirmed layer is ahead of the dispatcher."""
    store = master(FakeDisk())
    append(store, section(10))
    settle(store)
    before = store.end
    delete(store)
    store.set_confirm(store.end)
    assert store.reads.topics() == {}
    run(store, store.cut_job(token(1), before))
    assert store.reads.topics() == {TOPIC: 4}
    lead(store, epoch=2)
    assert append(store, section(1, mark=3), epoch=2)[0].outcome is Outcome.STORED


def test_a_cut_of_a_deletion_that_is_not_confirmed_lifts_it() -> None:
    """The next master does not know of it."""
    store = master(FakeDisk())
    before = store.end
    delete(store)
    run(store, store.cut_job(token(1), before))
    lead(store, epoch=2)
    assert append(store, section(1), epoch=2)[0].outcome is Outcome.STORED


def test_a_slave_and_a_replica_from_a_seed_come_to_the_same() -> None:
    """The seed knows the deletion before its record arrives."""
    store = two_lives(FakeDisk())
    slave = open_store(FakeDisk(), who=replace(store.who, node="n2"), settings=SMALL)
    slave.take_token(SLAVE)
    ship(store, slave, SLAVE)
    settle(slave)
    assert new(slave)
    job = store.seed_job()
    run(store, job)
    replica = open_store(FakeDisk(), who=replace(store.who, node="n3"), settings=SMALL)
    replica.take_token(SLAVE)
    assert isinstance(job.result, bytes)
    run(replica, replica.reseed_job(SLAVE, job.result))
    with pytest.raises(NotYetConfirmed):
        replica.reads.queue_range(TOPIC, 1)
    ship(store, replica, SLAVE)
    settle(replica)
    assert new(replica)


def test_the_kind_of_its_queues_stays_with_the_name() -> None:
    """The log still has records of the first kind."""
    store = master(FakeDisk())
    delete(store)
    settle(store)
    assert create(store, batch=True).code == "topic-kind"
    assert create(store, 2).outcome is Outcome.STORED


def test_shares_of_a_deleted_topic_go_on_the_master_at_once_and_elsewhere_in_order() -> None:
    """Groups stay; a share begun since belongs to the new topic."""
    store = master(FakeDisk())
    store.append_control(token(1), CreateGroups((Group("g"),)), wall_ms=1)
    append(store, section(9))
    settle(store)
    begun = [ShareRow(1, "g", TOPIC, 0, 0, 0), LeaseRow(1, 1, 0, 3, 1, 1, 5000, 1)]
    assert store.append_rows(token(1), begun, wall_ms=1).outcome is Outcome.STORED
    settle(store)
    delete(store)
    assert store.messaging.ahead.find("g", TOPIC, 0) is None
    assert store.messaging.confirmed.find("g", TOPIC, 0) is not None
    settle(store)
    create(store)
    settle(store)
    assert store.messaging.confirmed.find("g", TOPIC, 0) is None
    assert store.messaging.held() == store.confirm
    again = [ShareRow(2, "g", TOPIC, 0, 0, 9)]
    assert store.append_rows(token(1), again, wall_ms=1).outcome is Outcome.STORED
    settle(store)
    for fold in (store.messaging.confirmed, store.messaging.ahead):
        found = fold.find("g", TOPIC, 0)
        assert found is not None
        assert (found.id, found.low) == (2, 9)


def test_many_files_are_removed_a_few_at_a_time_and_no_reader_sees_the_rest() -> None:
    """The loop must not stand still for a topic with many messages."""
    disk = FakeDisk()
    store = master(disk, settings=SMALL)
    for _ in range(4):
        fill(store, 80)
    settle(store)
    assert len(queue_files(disk)) > 3 * 64
    delete(store)
    create(store)
    store.set_confirm(store.end)
    steps = 0
    while [path for path in queue_files(disk) if TOPIC in path]:
        assert store.dispatch(1 << 20)
        steps += 1
        if steps < 3:
            with pytest.raises(NotYetConfirmed):
                store.reads.queue_range(TOPIC, 0)
    settle(store)
    assert steps >= 3
    assert store.reads.queue_range(TOPIC, 0) == (800, 800)
    assert not [path for path in queue_files(disk) if TOPIC in path]
    assert store.reads.topics() == {TOPIC: 4}


def test_waiting_messages_of_the_topic_before_are_not_for_the_one_of_today() -> None:
    """They are undeliverable when they are due."""
    store = two_lives(FakeDisk())
    since = store.reads.since(TOPIC)
    assert store.messaging.destination(TOPIC, since) == 4
    assert store.messaging.destination(TOPIC, since - 1) is None


def test_a_search_by_key_finds_only_messages_of_the_topic_of_today() -> None:
    """The index still has the keys of both, and messages of both are in the log."""
    store = master(FakeDisk())
    append(store, section(2, key="k", mark=1))
    settle(store)
    query = KeyQuery(TOPIC, "k", most=10)
    assert len(find_key(store, query).slices) == 2
    delete(store)
    settle(store)
    with pytest.raises(TopicDeleted):
        find_key(store, query)
    create(store)
    settle(store)
    assert not find_key(store, query).slices
    append(store, section(1, key="k", mark=2))
    settle(store)
    [found] = find_key(store, query).slices
    assert b"2/0/" in bytes(found)


def test_one_deleted_topic_does_not_hide_another_that_is_made_meanwhile() -> None:
    """What may be written is known for each topic by itself."""
    store = master(FakeDisk())
    store.append_control(token(1), CreateTopic("other", 1, 1), wall_ms=1)
    end = store.end
    delete(store)
    store.set_confirm(end)
    sent = Section("other", 0, 1, section(1, topic="other").data)
    assert append(store, sent)[0].outcome is Outcome.STORED
    with pytest.raises(UnknownTopic):
        store.reads.queue_range("never", 0)
