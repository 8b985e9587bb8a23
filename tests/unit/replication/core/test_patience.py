"""Confirmed records may wait a little for their queues, unless somebody looks."""

from __future__ import annotations

from dataclasses import dataclass, field

from replication.driver.background_jobs import PATIENT_BYTES, PATIENT_SECONDS, BackgroundJobs
from storage import Job, StoreSettings


@dataclass
class Queues:
    """The part of a store that dispatching needs; notes when it was asked."""

    settings: StoreSettings = field(default_factory=StoreSettings)
    flushed: int = 0
    committed: int = 0
    end: int = 0
    confirm: int = 0
    dispatched: int = 0
    calls: int = 0
    damage: None = None

    @property
    def jobs(self) -> Queues:
        """Its jobs are its own."""
        return self

    @property
    def behind(self) -> bool:
        """Whether anything is left to enter."""
        return self.dispatched < self.confirm

    def prepare_job(self) -> Job | None:
        """Nothing to prepare."""
        return None

    def dispatch(self, max_bytes: int, *, wall_ms: int) -> bool:
        """Enter everything."""
        self.calls += 1
        self.dispatched = self.confirm
        return False


class Nobody:
    """Runs no job."""

    def run_job(self, job: Job) -> None:
        """Forget it."""


def jobs(store: Queues) -> BackgroundJobs:
    """An upkeep of the store, patient."""
    made = BackgroundJobs(store, Nobody(), eager=False, dispatch_bytes=1 << 20, now=10.0)  # type: ignore[arg-type]
    made.patient = True
    made.work(10.0)
    return made


def test_small_records_are_entered_together() -> None:
    """The first goes in at once, the next ones together when the pause is over."""
    store = Queues()
    made = jobs(store)
    for step in range(5):
        store.confirm += 200
        made.dispatch(10.0 + step * PATIENT_SECONDS / 8, 0)
    assert (store.calls, store.dispatched) == (1, 200)
    due = made.next_deadline(10.003)
    assert due == 10.0 + PATIENT_SECONDS
    made.dispatch(due, 0)
    assert (store.calls, store.dispatched) == (2, 1000)


def test_much_does_not_wait() -> None:
    """More than a little is entered whatever the time."""
    store = Queues(confirm=100)
    made = jobs(store)
    made.dispatch(10.0, 0)
    store.confirm += PATIENT_BYTES
    made.dispatch(10.0, 0)
    assert store.dispatched == store.confirm


def test_who_looks_does_not_wait() -> None:
    """While readers wait nothing is postponed, and the deadline is now."""
    store = Queues(confirm=100)
    made = jobs(store)
    made.dispatch(10.0, 0)
    made.patient = False
    store.confirm += 1
    assert made.next_deadline(10.0) <= 10.0
    made.dispatch(10.0, 0)
    assert store.dispatched == store.confirm


def test_a_turn_that_brought_little_looks_at_nothing() -> None:
    """Not while somebody reads or waits for a flush, when much came, or when the pause is over."""
    store = Queues()
    made = jobs(store)
    assert made.may_wait(10.001)
    assert not made.may_wait(10.0 + PATIENT_SECONDS)
    store.committed = PATIENT_BYTES
    assert not made.may_wait(10.001)
    store.committed = 100
    made.wanted = 100
    assert not made.may_wait(10.001)
    store.flushed = 100
    assert made.may_wait(10.001)
    made.patient = False
    assert not made.may_wait(10.001)
