"""Periodic work of a store: commit, flush, checkpoint, prepare, snapshot, dispatch.

Decides when each is due; jobs run off the loop, one of each kind at a time. Dispatch runs on the
loop in bounded slices, after answers. A full disk postpones everything except the flush, which
needs no space; any other disk error ends the process, because the content of the disk is then
unknown.

A small turn checks none of them (`BackgroundJobs.may_wait`): for a single send the checks would
cost more than its own bytes. Every job has a deadline, and the tick checks them all.

Units: bytes, seconds. Not here: the jobs (``storage``), appends that wait for a flush
(``waiters``).
"""

from __future__ import annotations

from typing import Protocol

from storage import Job, Store
from storage.errors import DiskFull
from storage.flush_policy import CommitPolicy, Flush, FlushPolicy

PREPARE_BYTES = 256 * 1024
"""Bytes appended between two checks of the next log file."""

PREPARE_SECONDS = 0.5
PATIENT_BYTES = 64 * 1024
"""Bytes that may wait to be dispatched while no reader needs the queues."""

PATIENT_SECONDS = 0.005
"""How long they may wait: dispatching many small batches costs hardly more than one."""

FULL_SECONDS = 1.0
"""Pause after a full disk before space is needed again."""


class Runner(Protocol):
    """Runs jobs."""

    def run_job(self, job: Job) -> None:
        """Run ``job`` off the loop."""


class BackgroundJobs:
    """See the module.

    Args:
        store: The store.
        runner: Runs jobs.
        eager: Every byte is waited for: flush whenever no flush is running.
        dispatch_bytes: Bytes of one slice of dispatching.
        now: Clock.

    Attributes:
        wanted: Largest offset that an append waits for to be flushed.
        patient: No reader waits for the queues: small amounts may be dispatched together.
        more: A slice of dispatching ended with work left.
    """

    def __init__(
        self, store: Store, runner: Runner, *, eager: bool, dispatch_bytes: int, now: float
    ) -> None:
        self._store = store
        self._runner = runner
        self.eager = eager
        self._dispatch_bytes = dispatch_bytes
        self._policy = FlushPolicy(store.settings, now)
        self._commits = CommitPolicy(store.settings)
        self._pools = store.settings.flush == "async-buffered"
        self._under_way: dict[str, Job] = {}
        self._checkpoint_at = now + store.settings.checkpoint_interval_seconds
        self._checkpointed = (store.flushed, store.confirm)
        self._prepared_end = -PREPARE_BYTES
        self._prepare_at = now
        self._full_until = now
        self._index_until = now
        self._flush_from = now
        self._enter_at = now
        self._look_at = now
        self._looked_end = 0
        self.more = False
        self.patient = False
        self.wanted = 0

    def may_wait(self, now: float) -> bool:
        """Whether a turn may end without checking what is due.

        True if no reader and no flush is waited for, the last check is less than `PATIENT_SECONDS`
        ago and little was appended.
        """
        store = self._store
        return (
            now < self._look_at
            and self.patient
            and not self.eager
            and not self.more
            and self.wanted <= store.flushed
            and store.committed - self._looked_end < PATIENT_BYTES
        )

    def work(self, now: float) -> None:
        """Begin the jobs that are due."""
        self._look_at, self._looked_end = now + PATIENT_SECONDS, self._store.committed
        self._flush(now)
        if now < self._full_until:
            return
        self._prepare(now)
        if now >= self._checkpoint_at or self._is_far():
            self._checkpoint(now)

    def commit(self, now: float, *, at_once: bool = False) -> bool:
        """Commit the memory pool if that is due; return whether anything was committed.

        On a full disk it stays in memory; tried again after `FULL_SECONDS`.
        """
        store = self._store
        if not self._pools or store.damage is not None or now < self._full_until:
            return False
        pooled = store.end - store.committed
        if not self._commits.due(now, pooled) and not (at_once and pooled):
            return False
        try:
            store.commit()
        except DiskFull:
            self._full_until = now + FULL_SECONDS
            return False
        self._commits.due(now, 0)
        return True

    def _flush(self, now: float) -> None:
        store = self._store
        flushed, end = store.flushed, store.committed
        if flushed >= end or "flush" in self._under_way:
            return
        wanted = end if self.eager else self.wanted
        what = self._policy.decide(now, flushed=flushed, end=end, wanted=wanted)
        if what is Flush.NOTHING:
            return
        job = store.jobs.flush_job(thorough=what is Flush.THOROUGH)
        if job is None:  # a cut is running: check again later, the timer must not spin
            self._flush_from = now + store.settings.flush_interval_seconds
            return
        self._policy.began()
        self._run("flush", job)

    def _prepare(self, now: float) -> None:
        end = self._store.committed
        due = end - self._prepared_end >= PREPARE_BYTES or now >= self._prepare_at
        if not due:
            return
        self._prepared_end, self._prepare_at = end, now + PREPARE_SECONDS
        if "prepare" not in self._under_way and (job := self._store.jobs.prepare_job()) is not None:
            self._run("prepare", job)

    def _is_far(self) -> bool:
        far = self._store.settings.checkpoint_bytes
        return self._store.flushed - self._checkpointed[0] >= far

    def _checkpoint(self, now: float) -> None:
        store = self._store
        self._checkpoint_at = now + store.settings.checkpoint_interval_seconds
        at = (store.flushed, store.confirm)
        if at != self._checkpointed and "checkpoint" not in self._under_way:
            self._checkpointed = at
            self._run("checkpoint", store.jobs.checkpoint_job())
        if self.patient:
            store.dispatch(self._dispatch_bytes)  # a snapshot needs complete queues
        if "snapshot" not in self._under_way:
            self._snapshot(now)

    def _snapshot(self, now: float) -> None:
        try:
            job = self._store.jobs.snapshot_job()
        except DiskFull:  # the head of an index file is written before the job runs
            self._full_until = now + FULL_SECONDS
            return
        if job is not None:
            self._run("snapshot", job)

    def _run(self, kind: str, job: Job) -> None:
        self._under_way[kind] = job
        self._runner.run_job(job)

    def dispatch(self, now: float, wall_ms: int) -> str | None:
        """Dispatch one slice of confirmed records; return why it must wait, else None."""
        store = self._store
        self.more = False
        if not store.behind or now < self._not_before():
            return None
        little = store.confirm - store.dispatched < PATIENT_BYTES
        if self.patient and little and now < self._enter_at:
            return None
        self._enter_at = now + PATIENT_SECONDS
        self.more = store.dispatch(self._dispatch_bytes, wall_ms=wall_ms)
        if self.more or not store.behind:
            return None
        if store.dispatched == store.confirm:  # the key index alone: no reader of queues waits
            self._index_until = now + FULL_SECONDS
            return None
        self._full_until = now + FULL_SECONDS
        return f"queues end at {store.dispatched}, confirmed is {store.confirm}"

    def _not_before(self) -> float:
        """Return when `dispatch` may try again: a failing key index holds up no queue."""
        if self._store.dispatched < self._store.confirm:
            return self._full_until
        return max(self._full_until, self._index_until)

    def on_job(self, now: float, job: Job, error: Exception | None) -> bool:
        """Handle the end of a job started here; False for others. Raises fatal errors."""
        kind = next((kind for kind, known in self._under_way.items() if known is job), None)
        if kind is None:
            return False
        del self._under_way[kind]
        store = self._store
        try:
            store.jobs.finish(job)
        except DiskFull as full:
            error = full
        if isinstance(error, DiskFull):
            self._full_until = now + FULL_SECONDS
            error = None
        if kind == "flush":
            self._policy.ended(now, flushed=store.flushed, end=store.committed)
        if error is not None:
            raise error
        return True

    def next_deadline(self, now: float) -> float:
        """Return when the next job is due."""
        store = self._store
        if self.more:
            return now
        due = max(min(self._checkpoint_at, self._prepare_at), self._full_until)
        if store.behind:
            due = min(due, max(self._not_before(), self._enter_at if self.patient else 0.0))
        commit = self._commits.deadline() if store.damage is None else None
        if commit is not None:
            due = min(due, max(commit, self._full_until))
        flush = self._policy.deadline(flushed=store.flushed, end=store.committed)
        return due if flush is None else min(due, max(flush, self._flush_from))
