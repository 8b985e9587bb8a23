"""A node keeps what its settings, its slaves and its disk ask for; real store, fake disk.

Not here: the decision itself (`tests.unit.storage.retention.test_policy`), whole groups
(`tests.sim`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from replication.core.master.in_sync import InSyncSet
from replication.core.master.slave_links import SlaveLinks
from replication.core.replica import ReplicaCore
from replication.driver.outside import Outside
from replication.driver.retention import RetentionDriver
from storage import ForgetProducers, Job, Store
from storage.errors import DiskError, DiskFull
from storage.marks.archive_mark import ArchivedPart
from storage.settings import RetentionSettings
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SETTINGS, append, fill, master, open_store, run, section, settle

SIZE = SETTINGS.segment_size
KEEP = RetentionSettings(keep_seconds=None, keep_bytes=3 * SIZE, hours=None, look_seconds=1.0)


@dataclass
class Around:
    """An outside that runs jobs at once, or keeps them."""

    events: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    closed: list[int] = field(default_factory=list)

    def run_job(self, job: Job) -> None:
        self.jobs.append(job)

    def event(self, name: str, level: str, **facts: object) -> None:
        self.events.append((name, facts))

    def close(self, conn: int, why: str) -> None:
        self.closed.append(conn)

    def names(self) -> list[str]:
        """Names of the events."""
        return [name for name, _ in self.events]


class Kept:
    """A store of about eight files with its keeping."""

    def __init__(self, keep: RetentionSettings = KEEP, leading: Any = None) -> None:
        self.disk = FakeDisk()
        self.store: Store = master(self.disk, settings=replace(SETTINGS, retention=keep))
        while self.store.end < 8 * SIZE:
            fill(self.store, 4)
            settle(self.store)
            run(self.store, self.store.jobs.flush_job(thorough=True))
            run(self.store, self.store.jobs.snapshot_job())
        self.around = Around()
        self.core = SimpleNamespace(
            leads=leading is not None, leading=leading, context=SimpleNamespace(cutting=False),
            overtake=lambda now, start: SlaveLinks.overtake(leading.slaves, now, start),
        )  # fmt: skip
        self.wall = 3000
        self.forgotten: list[int] = []
        self.retention = RetentionDriver(
            self.store, cast(ReplicaCore, self.core), cast(Outside, self.around),
            wall_ms=lambda: self.wall, control=self.control,
            now=0.0,
        )  # fmt: skip
        self.now = 0.0

    def control(self, now: float, change: ForgetProducers, **terms: object) -> None:
        """What the driver would append."""
        self.forgotten.append(change.below)

    def pass_time(self, seconds: float) -> None:
        """Look whenever it is due, run jobs at once."""
        until = self.now + seconds
        while self.now <= until:
            self.retention.work(self.now)
            while self.around.jobs:
                self.finish()
                self.retention.work(self.now)
            self.now += 0.25

    def finish(self) -> None:
        """Run the oldest job."""
        job, error = self.around.jobs.pop(0), None
        try:
            job.run()
        except DiskError as caught:
            error = caught
        assert self.retention.on_job(self.now, job, error)


def leading(*, acked: int, heard: float | None = 0.0, streaming: bool = True) -> SimpleNamespace:
    """A master with one slave, which has acknowledged so much."""
    session = SimpleNamespace(kept=acked)
    member = SimpleNamespace(name="n2", session=1, received=acked, heard_at=heard)
    insync = SimpleNamespace(members={"n2": member}, began=0.0)
    insync.needed = lambda now, absent: InSyncSet.needed(cast(InSyncSet, insync), now, absent)
    closed, told = list[int](), list[tuple[str, dict[str, object]]]()
    slaves = SimpleNamespace(
        sessions={7: session} if streaming else {},
        insync=insync,
        drop=lambda conn, why, now: closed.append(conn),
        _context=SimpleNamespace(tell=lambda name, level, **facts: told.append((name, facts))),
    )
    return SimpleNamespace(slaves=slaves, insync=insync, closed=closed, told=told)


def test_a_log_is_kept_at_its_length() -> None:
    """Files go one after the other, and the node says what it did."""
    kept = Kept()
    kept.pass_time(8)
    assert kept.store.end - kept.store.start <= 3 * SIZE + SIZE
    assert int(kept.disk.list("commitlog")[0]) == kept.store.start > 0
    told = [facts for name, facts in kept.around.events if name == "log-file-leaves"]
    assert told[0] == {"start": 0, "to": SIZE, "reason": "size"}
    document = kept.retention.document()
    assert document["deleted"] == {"age": 0, "size": len(told), "disk": 0}
    assert document["leaving"] == 0


def test_nothing_goes_without_settings() -> None:
    """``retention = None`` keeps everything."""
    kept = Kept()
    retention = RetentionDriver(
        master(FakeDisk()), cast(ReplicaCore, kept.core), cast(Outside, kept.around),
        wall_ms=lambda: 0, control=kept.control, now=0.0,
    )  # fmt: skip
    assert retention.next_deadline() == float("inf")
    retention.work(1e9)
    assert kept.around.jobs == []


def test_a_linked_slave_keeps_what_it_lacks() -> None:
    """It is behind, but alive."""
    kept = Kept(leading=leading(acked=2 * SIZE))
    kept.pass_time(8)
    assert kept.store.start == 2 * SIZE
    assert kept.retention.document()["waits"] == "slave"


@pytest.mark.parametrize(("heard", "goes"), [(0.0, False), (-100.0, True)])
def test_an_absent_slave_is_waited_for_so_long(heard: float, goes: bool) -> None:
    """After that it must be made anew."""
    kept = Kept(replace(KEEP, absent_seconds=60), leading(acked=SIZE, heard=heard, streaming=False))
    kept.pass_time(8)
    assert (kept.store.start > SIZE) is goes


def test_a_member_that_was_never_heard_counts_from_the_beginning_of_the_leadership() -> None:
    """A new master does not know yet what it has."""
    one = leading(acked=0, heard=None, streaming=False)
    kept = Kept(replace(KEEP, absent_seconds=5), one)
    kept.pass_time(4)
    assert kept.store.start == 0
    kept.pass_time(6)
    assert kept.store.start > 0


def test_a_disk_that_is_too_full_overtakes_a_slave() -> None:
    """Its link ends, and it is recorded."""
    master = leading(acked=SIZE)
    kept = Kept(replace(KEEP, disk_clean=0.1, disk_force=0.4), master)
    kept.pass_time(3)
    assert kept.store.start > SIZE
    assert master.closed[:1] == [7]
    assert ("slaves-overtaken", {"start": 2 * SIZE, "members": "n2"}) in master.told
    assert cast("dict[str, Any]", kept.retention.document())["overtaken"] > 0


def test_a_full_disk_refuses_writes_until_it_has_room() -> None:
    """Told once each."""
    kept = Kept()
    kept.disk.faults.full = True
    kept.pass_time(3)
    assert kept.retention.refuses
    kept.disk.faults.full = False
    kept.pass_time(3)
    assert not kept.retention.refuses
    names = [name for name in kept.around.names() if name.startswith("disk-")]
    assert names == ["disk-refuses", "disk-accepts"]


def test_what_must_go_and_may_not_is_told_once() -> None:
    """With what holds it."""
    kept = Kept(replace(KEEP, disk_clean=0.1, disk_force=0.4, archive=True))
    kept.pass_time(5)
    told = [facts for name, facts in kept.around.events if name == "retention-waits"]
    assert told == [{"why": "archive", "start": 0}]


def test_a_reader_delays_the_removal_but_not_for_ever() -> None:
    """The start has moved; the name goes after the limit."""
    kept = Kept(replace(KEEP, hold_seconds=5))
    answer = kept.store.reads.read("flights", 0, 0, max_bytes=4096, max_records=5)
    copy = [bytes(piece) for piece in answer.slices]
    kept.pass_time(3)
    assert kept.store.start > 0
    assert kept.disk.exists(f"commitlog/{0:020}")
    kept.pass_time(5)
    assert not kept.disk.exists(f"commitlog/{0:020}")
    assert kept.retention.document()["forced"] == 1
    assert [bytes(piece) for piece in answer.slices] == copy


def test_nothing_goes_while_the_log_is_cut_or_damaged() -> None:
    """Later, or never."""
    kept = Kept()
    kept.core.context.cutting = True
    kept.pass_time(3)
    assert kept.store.start == 0
    kept.core.context.cutting = False
    kept.store._opened.damage = cast(Any, SimpleNamespace(what="test"))
    kept.pass_time(3)
    assert kept.store.start == 0
    assert kept.retention.next_deadline() == float("inf")


def test_errors_of_the_disk_end_the_process_but_a_full_one() -> None:
    """Nobody knows what is on a disk that met an error."""
    kept = Kept()
    kept.retention.work(1.0)
    kept.disk.faults.fail("retention.mark", error=28)
    kept.now = 1.0
    kept.finish()
    assert kept.store.head.leaving == 1
    kept.retention.work(2.5)
    kept.disk.faults.fail("retention.mark")
    with pytest.raises(DiskError) as caught:
        kept.finish()
    assert not isinstance(caught.value, DiskFull)


@pytest.mark.parametrize("leads", [True, False])
def test_a_master_has_stale_producers_forgotten(leads: bool) -> None:
    """About once a minute it asks which; a slave waits for the record."""
    kept = Kept(leading=leading(acked=1 << 40) if leads else None)
    kept.store.stale_producers = lambda now: 77  # type: ignore[method-assign]
    kept.pass_time(61)
    assert kept.forgotten == ([77, 77] if leads else [])


def test_a_job_of_somebody_else_is_not_ours() -> None:
    """The driver asks in turn."""
    kept = Kept()
    other = Job("flush", lambda: None, lambda job: None)
    assert not kept.retention.on_job(0.0, other, None)


def test_new_records_are_read_while_old_files_go() -> None:
    """What is appended meanwhile is where it belongs."""
    kept = Kept()
    for number in range(6):
        kept.pass_time(1)
        append(kept.store, section(3, queue=number % 4, mark=number))
        settle(kept.store)
    for queue in range(4):
        start, end = kept.store.reads.queue_range("flights", queue)
        assert 0 < start < end


def part(kept: Kept, start: int, end: int) -> ArchivedPart:
    """A part of the log as an archive would name it."""
    digest = hashlib.sha256(kept.store.view(start, end)).hexdigest()
    return ArchivedPart(start, end, digest)


def archive(kept: Kept, *parts: ArchivedPart) -> tuple[str, str]:
    """Tell the node what the archive has; the answer."""
    answers: list[tuple[str, str]] = []
    kept.retention.archived(kept.now, parts, lambda code, text: answers.append((code, text)))
    if kept.around.jobs:
        kept.finish()
    assert len(answers) == 1
    return answers[0]


def test_only_what_an_archive_proves_to_have_goes() -> None:
    """File by file, against our own bytes, and durably."""
    kept = Kept(replace(KEEP, archive=True))
    kept.pass_time(3)
    assert (kept.store.start, kept.retention.document()["waits"]) == (0, "archive")
    good = [part(kept, at * SIZE, at * SIZE + SIZE) for at in range(2)]
    assert archive(kept, good[0]) == ("ok", "")
    assert archive(kept, *good) == ("ok", "")
    kept.pass_time(4)
    assert kept.store.start == 2 * SIZE
    wrong = replace(part(kept, 2 * SIZE, 3 * SIZE), sha256="0" * 64)
    code, text = archive(kept, wrong)
    assert code == "archive"
    assert "differs" in text
    assert archive(kept, part(kept, 3 * SIZE, 4 * SIZE))[1].startswith("the archive has nothing of")
    kept.pass_time(3)
    assert kept.store.start == 2 * SIZE
    kept.store.close(clean=False)
    assert open_store(kept.disk).head.archived == 2 * SIZE


def test_an_archive_waits_while_the_node_works_on_its_files() -> None:
    """One job at a time; it may ask again."""
    kept = Kept()
    kept.retention.work(1.0)
    assert kept.around.jobs
    answers: list[str] = []
    kept.retention.archived(1.0, [], lambda code, text: answers.append(code))
    assert answers == ["busy"]


def test_a_cut_stops_the_clock_of_retention() -> None:
    """What may not be done now has no deadline, or the loop would spin until the cut is over."""
    kept = Kept()
    assert kept.retention.next_deadline() < float("inf")
    kept.core.context.cutting = True
    assert kept.retention.next_deadline() == float("inf")
