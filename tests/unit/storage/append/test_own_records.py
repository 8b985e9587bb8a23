"""Rows and together: in the log whole or not at all, applied alike on every node and again."""

from __future__ import annotations

from dataclasses import replace
from errno import ENOSPC

import pytest

from storage import CreateTopic, Outcome, Section, Store, Token
from storage.disk.packing import pack
from storage.messaging.fold import Messaging
from storage.messaging.groups import START_BEGIN, Group, Retry
from storage.retention.policy import Facts, Retention, Wait
from storage.settings import RetentionSettings
from storage.state.controls import UnknownControl, decode_control, encode_control
from storage.state.group_controls import AlterGroups, CreateGroups, DeleteGroups
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    SLAVE,
    TOPIC,
    append,
    bodies,
    fill,
    lead,
    master,
    open_store,
    run,
    section,
    settle,
    ship,
    token,
)
from twinlog.format.batch_index import KIND_RECORDS
from twinlog.format.group_rows import AckRow, LeaseRow, MemberRow, ReleaseRow, Row, ShareRow

BEGIN: list[Row] = [
    ShareRow(1, "billing", TOPIC, 0, 0, 0),
    MemberRow("billing", 1, "w1", 1),
    LeaseRow(1, 1, 0, 3, 1, 1, 5000, 1),
]


def rows(store: Store, *found: Row, epoch: int = 1) -> Outcome:
    """Append rows as the master of ``epoch``."""
    return store.append_rows(token(epoch), found, wall_ms=2000).outcome


def says(store: Store) -> object:
    """The confirmed fold and the groups."""
    return store.messaging.confirmed.values(), store._opened.derived.layers.confirmed.groups


def test_rows_bind_at_their_append_and_count_on_every_node_from_their_dispatch() -> None:
    """The master goes by what it has appended; everything else by what is confirmed."""
    store, slave = master(FakeDisk()), open_store(FakeDisk(), who=replace(WHO2, node="n2"))
    append(store, section(9))
    settle(store)
    assert rows(store, *BEGIN) is Outcome.STORED
    share = store.messaging.ahead.share(1)
    assert share is not None
    assert (share.low, share.next) == (0, 3)
    assert store.messaging.confirmed.share(1) is None
    settle(store)
    assert store.messaging.confirmed.share(1) is not None
    assert store.messaging.confirmed.members("billing")[1].since == 2000
    slave.take_token(SLAVE)
    ship(store, slave, SLAVE)
    assert len(slave.messaging.confirmed) == 0
    settle(slave)
    assert says(slave) == says(store)


WHO2 = master(FakeDisk()).who


def test_rows_wait_until_the_inheritance_is_applied() -> None:
    """A new master would lease again what its predecessor did in rows it has not dispatched."""
    store = master(FakeDisk())
    lead(store, epoch=2)
    assert not store.messaging.ready
    refusal = store.append_rows(token(2), BEGIN, wall_ms=2000)
    assert refusal.code == "not-ready"
    assert store.append_together(token(2), [section()], BEGIN, wall_ms=2000).code == "not-ready"
    settle(store)
    assert store.messaging.ready
    assert rows(store, *BEGIN, epoch=2) is Outcome.STORED
    store.drop_token()
    assert not store.messaging.ready
    assert store.messaging.ahead.share(1) is None, "what was not confirmed binds nobody else"


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("snapshot", [True, False])
def test_a_start_comes_to_the_same_state(clean: bool, snapshot: bool) -> None:
    """By a snapshot and the log, or by the log alone."""
    disk = FakeDisk()
    store = master(disk)
    store.append_control(token(1), CreateGroups((Group("billing"),)), wall_ms=1000)
    settle(store)
    rows(store, *BEGIN)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    if snapshot:
        run(store, store.jobs.snapshot_job(force=True))
    rows(store, AckRow(1, 1, 1, 1), ReleaseRow(1, 1, 2, 2, 9000, 1), MemberRow("billing", 1, "", 0))
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    said = says(store)
    store.close(clean=clean)
    assert says(open_store(disk)) == said


def test_a_cut_takes_rows_back() -> None:
    """Those below stay; the state is that of the log that is left."""
    store = master(FakeDisk())
    append(store, section(9))
    settle(store)
    run(store, store.jobs.snapshot_job(force=True))
    rows(store, *BEGIN)
    settle(store)
    said, end = says(store), store.end
    rows(store, AckRow(1, 1, 0, 2))
    settle(store)
    assert says(store) != said
    store.take_token(Token("slave", 2, 2))
    run(store, store.cut_job(Token("slave", 2, 2), end))
    settle(store)
    assert says(store) == said


def test_together_is_one_batch() -> None:
    """Sections of several queues and rows; repeated, all of it is a duplicate."""
    store = master(FakeDisk())
    settle(store)
    parts = [section(2, producer=7), section(3, queue=1, producer=7)]
    before = store.end
    done = store.append_together(token(1), parts, BEGIN, wall_ms=2000)
    assert done.outcome is Outcome.STORED
    assert [one.queue_offset for one in done.sections] == [0, 0]
    [entry] = store.entries(before, max_bytes=1 << 20)
    assert (entry.start, entry.end, entry.count) == (before, done.end, 6)
    assert entry.kind == KIND_RECORDS
    again = store.append_together(token(1), parts, BEGIN, wall_ms=2000)
    assert (again.outcome, store.end) == (Outcome.DUPLICATE, done.end)
    assert before < again.end <= done.end, "confirm moves over whole batches"
    settle(store)
    assert len(bodies(store)) == 2
    assert store.messaging.confirmed.share(1) is not None


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (section(3, topic="unknown"), "unknown-topic"),
        (section(3, queue=9), "unknown-queue"),
        (section(3, queue=1, producer=7, sequence=5), "unknown-producer"),
        (section(2, queue=2, producer=7), "sequence-reused"),
    ],
)
def test_together_is_nothing_where_one_part_is_refused(second: Section, code: str) -> None:
    """Not a byte, not a number, not a row; the producer's next section is as before."""
    store = master(FakeDisk())
    append(store, section(2, queue=2, producer=7))
    settle(store)
    end = store.end
    refusal = store.append_together(token(1), [section(2, producer=7), second], BEGIN, wall_ms=2000)
    assert (refusal.outcome, refusal.code) == (Outcome.REFUSED, code)
    assert store.end == end
    assert store.messaging.ahead.share(1) is None
    assert not any(store._log.window(end, 4096))
    good = store.append_together(token(1), [section(2, producer=7)], BEGIN, wall_ms=2000)
    assert good.outcome is Outcome.STORED
    assert good.sections[0].queue_offset == 0
    settle(store)
    store.verify(0, store.end)


def test_together_has_limits_and_rolls_to_a_new_file() -> None:
    """As a section does: refused before a byte, or whole in the next file."""
    store = master(FakeDisk())
    settle(store)
    most = SETTINGS.batch_length_max
    large = [section(10, size=most // 20), section(10, queue=1, size=most // 20)]
    refusal = store.append_together(token(1), large, BEGIN, wall_ms=2000)
    assert refusal.code == "too-large"
    many = [section(1, producer=number) for number in range(1, 66)]
    assert store.append_together(token(1), many, BEGIN, wall_ms=2000).code == "too-large"
    fill(store, 8)
    small = [section(10, size=200), section(10, queue=1, size=200)]
    done = store.append_together(token(1), small, BEGIN, wall_ms=2000)
    assert done.outcome is Outcome.STORED
    assert done.end > SETTINGS.segment_size
    assert done.sections[0].log_offset > SETTINGS.segment_size


def test_a_full_disk_takes_nothing_of_it() -> None:
    """And it can be tried again."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 8)
    settle(store)
    disk.faults.fail("log.roll.create", error=ENOSPC)
    end = store.end
    parts = [section(10, size=300, producer=7), section(10, queue=1, size=300)]
    refusal = store.append_together(token(1), parts, BEGIN, wall_ms=2000)
    assert refusal.code == "disk-full"
    assert store.disk_full
    assert store.messaging.ahead.share(1) is None
    assert end <= store.end <= SETTINGS.segment_size
    disk.faults.forget()
    assert store.append_together(token(1), parts, BEGIN, wall_ms=2000).outcome is Outcome.STORED


def test_groups_are_made_altered_and_deleted_by_control_records() -> None:
    """With what they have consumed; the master forgets them from the append on."""
    store = master(FakeDisk())
    settle(store)
    group = Group("billing", attempts=3, retry=Retry((1000, 9000), 3), start=START_BEGIN)
    made = store.append_control(token(1), CreateGroups((group, Group("audit"))), wall_ms=1000)
    assert store.messaging.defined("billing") == (replace(group, created_at=made.end), made.end)
    assert not store.messaging.groups()
    again = store.append_control(token(1), CreateGroups((group,)), wall_ms=1000)
    assert (again.outcome, again.end) == (Outcome.DUPLICATE, made.end)
    settle(store)
    assert store.messaging.defined("billing") == (replace(group, created_at=made.end), 0)
    rows(
        store, *BEGIN, ShareRow(2, "audit", TOPIC, 0, 0, 0), ShareRow(3, "audit~a", TOPIC, 0, 0, 0)
    )
    settle(store)
    altered = replace(group, mode="ordered", filters={TOPIC: "a = 1"}, created_ms=5)
    store.append_control(token(1), AlterGroups((altered,)), wall_ms=1000)
    settle(store)
    assert store.messaging.group("billing") == replace(altered, created_ms=0, created_at=made.end)
    gone = store.append_control(token(1), DeleteGroups(("billing", "audit")), wall_ms=1000)
    assert store.messaging.defined("billing") is None
    assert not store.messaging.ahead.shares_of("billing")
    assert len(store.messaging.confirmed) == 3
    rows(store, AckRow(1, 1, 0, 2))
    settle(store)
    assert (len(store.messaging.groups()), len(store.messaging.confirmed)) == (0, 0)
    assert not store.messaging.confirmed.members("billing")
    assert store.append_control(token(1), DeleteGroups(("billing",)), wall_ms=1).code == (
        "unknown-group"
    )
    assert gone.end <= store.confirm


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (CreateGroups(()), "group"),
        (CreateGroups((Group("a"), Group("a"))), "group"),
        (CreateGroups((Group("a@b"),)), "group"),
        (CreateGroups((Group("a~b"),)), "group"),
        (CreateGroups((Group("x" * 121),)), "group"),
        (CreateGroups((Group("a", "in turns"),)), "group-mode"),
        (CreateGroups((Group("a", attempts=0),)), "group"),
        (CreateGroups((Group("a", invisible_ms=999),)), "group"),
        (CreateGroups((Group("a", retry=Retry((1,), 2)),)), "group"),
        (CreateGroups((Group("a", start=-3),)), "group"),
        (CreateGroups((Group("a", filters={"z": ""}),)), "group"),
        (CreateGroups((Group("there", "broadcast"),)), "group-mode"),
        (AlterGroups((Group("a@b"),)), "group"),
        (CreateGroups((Group("there", attempts=2),)), "group-exists"),
        (AlterGroups((Group("there", "broadcast"),)), "group-mode"),
        (AlterGroups((Group("a"),)), "unknown-group"),
        (DeleteGroups(("a",)), "unknown-group"),
        (DeleteGroups(()), "group"),
    ],
)
def test_what_no_group_can_be(change: CreateGroups | AlterGroups | DeleteGroups, code: str) -> None:
    """Refused before a byte; and where a version that knew less wrote it, it changes nothing."""
    store = master(FakeDisk())
    store.append_control(token(1), CreateGroups((Group("there"),)), wall_ms=1000)
    settle(store)
    groups = store._opened.derived.layers.confirmed.groups
    before = dict(groups)
    assert store.append_control(token(1), change, wall_ms=1000).code == code
    assert decode_control(encode_control(change)) == change
    if code != "group-exists" and change != CreateGroups((Group("a"), Group("a"))):
        assert not change.apply(store._opened.derived.layers.confirmed, 0)
    assert groups == before


def test_there_are_only_so_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are not confirmed count; the same once more is none more."""
    monkeypatch.setattr("storage.state.group_controls.GROUPS_MAX", 2)
    store = master(FakeDisk())
    for names in (("a",), ("b",), ("a", "b")):
        change = CreateGroups(tuple(Group(name) for name in names))
        assert not store.append_control(token(1), change, wall_ms=1000).code
    more = store.append_control(token(1), CreateGroups((Group("c"),)), wall_ms=1000)
    assert more.code == "groups"


@pytest.mark.parametrize("kind", ["create-groups", "alter-groups", "delete-groups"])
@pytest.mark.parametrize("value", [None, [7], [{"name": 7}]])
def test_a_control_record_of_groups_of_another_shape_is_unknown(kind: str, value: object) -> None:
    """It changes nothing."""
    body = pack({"kind": kind, "groups": value, "names": value})
    assert isinstance(decode_control(body), UnknownControl)


def test_where_a_group_begins() -> None:
    """After its create record, at the oldest message, or where an adoption left its members."""
    store = master(FakeDisk())
    append(store, section(9))
    settle(store)
    groups = (
        Group("end"),
        Group("start", start=START_BEGIN),
        Group("time", start=7),
        Group("all", "broadcast", START_BEGIN),
    )
    store.append_control(token(1), CreateGroups(groups), wall_ms=1000)
    append(store, section(3), section(2, queue=1))
    settle(store)
    assert rows(store, ShareRow(1, "all", TOPIC, 0, 0, 4)) is Outcome.STORED
    settle(store)

    def begins(name: str, queue: int = 0) -> int | None:
        group = store.messaging.group(name)
        assert group is not None
        return store.messaging.first_offset(group, TOPIC, queue)

    assert (begins("end"), begins("end", 1), begins("end", 2)) == (9, 0, 0)
    assert (begins("start"), begins("time"), begins("all"), begins("all", 1)) == (0, None, 4, 0)


def test_what_is_leased_or_waits_holds_its_file() -> None:
    """In either fold; a backlog that nobody was given holds nothing."""
    store = master(FakeDisk())
    first = append(store, section(9))[0].log_offset
    fill(store, 30)
    settle(store)
    assert store.messaging.held() == store.confirm
    assert rows(store, *BEGIN) is Outcome.STORED
    assert store.messaging.held() == first
    settle(store)
    assert store.messaging.held() == first
    rows(store, AckRow(1, 1, 0, 0))
    assert store.messaging.held() == first, "the row may be cut"
    settle(store)
    assert store.messaging.held() > first
    rows(store, AckRow(1, 1, 1, 2))
    settle(store)
    assert store.messaging.held() == store.confirm


def test_retention_waits_for_groups_even_on_a_full_disk() -> None:
    """Until what was handed out of the oldest file is settled."""
    store = master(FakeDisk())
    append(store, section(9))
    fill(store, 60)
    settle(store)
    for number in range(2):
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job(force=True))
        fill(store, 1 + number)
        settle(store)
    rows(store, *BEGIN)
    settle(store)
    retention = Retention(RetentionSettings(disk_clean=0.1, disk_force=0.1, disk_refuse=0.2), 0.0)

    def decide() -> tuple[bool, Wait]:
        facts = Facts(
            store.head.oldest(), store.head.limit(store.confirm), 1 << 40, 0, 0.15, 3000,
            store.head.held,
        )  # fmt: skip
        return retention.decide(0.0, facts) is not None, retention.waits

    assert decide() == (False, Wait.GROUPS)
    assert [share.id for share, _ in store.messaging.holding(SETTINGS.segment_size)] == [1, 1]
    rows(store, AckRow(1, 1, 0, 2))
    assert decide() == (False, Wait.GROUPS), "the row may be cut"
    settle(store)
    assert decide() == (True, Wait.NOTHING)


def test_a_snapshot_is_due_by_rows() -> None:
    """What a start has to apply again is bounded."""
    store = master(FakeDisk(), settings=replace(SETTINGS, group_bytes=300))
    run(store, store.jobs.snapshot_job(force=True))
    assert store.jobs.snapshot_job() is None
    while store._opened.derived.dispatcher.group_bytes < 300:
        assert store.jobs.snapshot_job() is None
        rows(store, *BEGIN)
        settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    due = store.jobs.snapshot_job()
    assert due is not None
    run(store, due)
    assert store.snapshot_at == store.end
    assert store.jobs.snapshot_job() is None


def test_a_seed_brings_the_state_of_groups() -> None:
    """A replica that begins again at a later log offset knows what came before it."""
    source, disk = master(FakeDisk()), FakeDisk()
    source.append_control(token(1), CreateGroups((Group("billing"),)), wall_ms=1000)
    settle(source)
    rows(source, *BEGIN)
    fill(source, 40)
    rows(source, AckRow(1, 1, 0, 2))
    settle(source)
    for _ in range(2):
        run(source, source.jobs.flush_job(thorough=True))
        run(source, source.jobs.snapshot_job(force=True))
        fill(source, 1)
        last = source.messaging.ahead.share(1)
        assert last is not None
        rows(source, LeaseRow(1, last.n + 1, 97, 1, 1, 1, 1, 1))
        settle(source)
    size = SETTINGS.segment_size
    source.head.leave(size, source.confirm, 0.0)
    job = source.seed_job()
    job.run()
    assert isinstance(job.result, bytes)
    target = open_store(disk, who=replace(WHO2, node="n2"))
    target.take_token(SLAVE)
    run(target, target.reseed_job(SLAVE, job.result))
    target.take_token(SLAVE)
    ship(source, target, SLAVE)
    settle(target)
    assert says(target) == says(source)
    assert isinstance(target.messaging.confirmed, Messaging)


def test_a_topic_of_the_store_is_nobody_elses() -> None:
    """Clients cannot write rows."""
    store = master(FakeDisk())
    name = "rmq_sys_TWINLOG_GROUP"
    assert append(store, section(topic=name))[0].code == "topic"
    assert store.append_control(token(1), CreateTopic(name, 1, 1), wall_ms=1).code == "topic"
