"""When sealed files are compared, and what is done about a damaged batch; real store, fake disk.

Not here: comparing and writing (`tests.crash.test_wounds`), whole groups (`tests.sim`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import cast

from replication.core.replica import ReplicaCore
from replication.driver import scrubbing
from replication.driver.outside import Outside
from replication.driver.scrubbing import BUSY_BYTES, BUSY_SECONDS, REPAIR_SECONDS, ScrubDriver
from storage import Job, Store
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SETTINGS, fill, flip, master, run, settle

LOG = "commitlog/00000000000000000000"
RATE = 64 * 1024


@dataclass
class Around:
    """An outside that keeps what it is asked for."""

    events: list[str] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    asked: list[tuple[int, int]] = field(default_factory=list)

    def run_job(self, job: Job) -> None:
        self.jobs.append(job)

    def event(self, name: str, level: str, **facts: object) -> None:
        self.events.append(name)

    def fetch(self, start: int, length: int) -> None:
        self.asked.append((start, length))


class Scrubbed:
    """A store of several full files, and its scrub."""

    def __init__(self, *, rate: int | None = RATE, every: float = 100.0) -> None:
        self.disk = FakeDisk()
        settings = replace(SETTINGS, scrub_bytes_per_second=rate, scrub_every_seconds=every)
        self.store: Store = master(self.disk, settings=settings)
        fill(self.store, 60)
        settle(self.store)
        run(self.store, self.store.jobs.flush_job(thorough=True))
        self.around, self.repaired = Around(), 0
        core = SimpleNamespace(
            context=SimpleNamespace(cutting=False), on_repaired=self.on_repaired
        )  # fmt: skip
        self.scrub = ScrubDriver(
            self.store, cast(ReplicaCore, core), cast(Outside, self.around),
            wall_ms=lambda: 3000, now=0.0,
        )  # fmt: skip
        self.now = 0.0

    def on_repaired(self, now: float) -> None:
        self.repaired += 1

    def pass_time(self, seconds: float) -> None:
        """Let time pass; jobs run at once. Deadlines never lie in the past twice."""
        end = self.now + seconds
        for _ in range(10_000):
            due = self.scrub.next_deadline()
            if due > end:
                break
            self.now = max(self.now, due)
            self.scrub.work(self.now)
            while self.around.jobs:
                job = self.around.jobs.pop()
                job.run()
                assert self.scrub.on_job(self.now, job, None)
        else:
            raise AssertionError("the timer spins")
        self.now = end

    @property
    def sealed(self) -> int:
        """Bytes that a pass compares."""
        start, end = self.store.scrub.sealed
        return end - start


def test_a_pass_is_no_faster_than_the_setting_and_begins_again_in_time() -> None:
    """The figures of status say where it is."""
    world = Scrubbed()
    assert world.sealed >= 3 * SETTINGS.segment_size
    world.pass_time(0.5)
    assert 0 < world.scrub.compared <= RATE
    assert world.scrub.document()["running"] is True
    world.pass_time(world.sealed / RATE + 1)
    assert (world.scrub.compared, world.scrub.passes) == (world.sealed, 1)
    assert world.around.events == ["scrubbed"]
    world.pass_time(90)
    assert world.scrub.passes == 1
    world.pass_time(20)
    assert world.scrub.passes == 2
    assert world.scrub.found == 0


def test_none_compares_nothing_until_an_operator_asks() -> None:
    """And then as fast as the disk gives."""
    world = Scrubbed(rate=None)
    world.pass_time(300)
    assert world.scrub.compared == 0
    world.scrub.order(world.now)
    world.pass_time(0.0)
    assert (world.scrub.compared, world.scrub.passes) == (world.sealed, 1)


def test_a_busy_node_puts_a_piece_off_but_not_for_ever() -> None:
    """Busy is who appends much in the time between two looks."""
    world = Scrubbed()
    world.scrub._end -= BUSY_BYTES + 1
    world.pass_time(0.5)
    assert world.scrub.compared == 0
    while world.scrub.compared == 0:
        world.scrub._end -= BUSY_BYTES + 1
        world.pass_time(1.0)
    assert world.now <= BUSY_SECONDS + 2 * scrubbing.BUSY_LOOK_SECONDS


def test_a_wound_is_asked_for_until_somebody_has_it() -> None:
    """The node keeps its role for a while; then it is quarantined, and goes on asking."""
    world = Scrubbed()
    batch = world.store.entries(0, max_bytes=1 << 30)[4]
    whole = bytes(world.store.view(batch.start, batch.end))
    flip(world.disk, LOG, batch.start + 70)
    world.pass_time(1.0)
    assert world.around.asked == [(batch.start, batch.length)]
    assert world.scrub.document()["waiting"] == 1
    world.scrub.on_copy(world.now, batch.start, None, "n2: away")
    world.pass_time(REPAIR_SECONDS - 2)
    assert world.store.damage is None
    while world.store.damage is None:
        world.scrub.on_copy(world.now, batch.start, None, "n2: away")
        world.pass_time(1.0)
    assert world.now <= 2 * REPAIR_SECONDS
    asked = len(world.around.asked)
    world.scrub.on_copy(world.now, batch.start, bytes(len(whole)), "n2")
    world.pass_time(60.0)
    assert len(world.around.asked) > asked
    assert "batch-not-repaired" in world.around.events
    world.scrub.on_copy(world.now, batch.start, whole, "n3")
    world.pass_time(0.0)
    while world.around.jobs:
        job = world.around.jobs.pop()
        job.run()
        world.scrub.on_job(world.now, job, None)
    assert world.store.damage is None
    assert world.repaired == 1
    assert (world.scrub.found, world.scrub.repaired) == (1, 1)
