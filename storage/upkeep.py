"""Upkeep: the jobs of an open store that are due by themselves, and the state they look after.

Flushes, checkpoints, promises, the file ahead, state snapshots. Each ``..._job`` method says
whether something is due and hands out the job; `Upkeep.finish` takes it back, and only then
positions move. A cut raises the generation: jobs of an older one do nothing and move nothing.

``_guard`` is held while a job writes files that a cut writes too.

Not here: writing, reading, cutting (`storage.store`, which is this and more), when to ask
(``replication.driver``), how a job runs (`storage.jobs`).
"""

from __future__ import annotations

import threading

from storage import identity
from storage.appender import Appender
from storage.boot import BootSummary
from storage.checkpoint import Promise, Trusted, write_rocketmq_checkpoint
from storage.config_export import Exports
from storage.derived import Derived, damage_of
from storage.disk import Disk
from storage.errors import DiskError, DiskFull
from storage.front import Front
from storage.jobs import Job
from storage.looks import Looks
from storage.opening import open_store
from storage.reads import Reader
from storage.receiver import Receiver
from storage.recovery import Damage
from storage.segment import Segment, remove_ahead
from storage.settings import StoreSettings
from storage.token import Token
from twinlog.errors import CorruptionError
from twinlog.layout import Checkpoint


class Upkeep:
    """An open store as its jobs see it; see `storage.store.Store` for the attributes."""

    def __init__(
        self, disk: Disk, settings: StoreSettings, who: identity.Who, wall_ms: int
    ) -> None:
        opened = open_store(disk, settings, who, wall_ms=wall_ms)
        self._disk = disk
        self._opened = opened
        self._log = opened.log
        self._receiver = Receiver(opened.log, settings)
        self._guard = threading.Lock()
        self._generation: int = 0
        self._token: Token | None = None
        self._cutting = False
        self._losing = False
        self._cut_attempts = 0
        self._flushing = False
        self._preparing = False
        self._snapshotting = False
        self._exports = Exports(disk)
        self._rebuilt = False
        self.settings = settings
        self.who = who
        self.boot: BootSummary = opened.boot
        self.promise: Promise = opened.promise
        self.confirm = opened.confirm
        self.checkpointed = opened.log.end
        self.damage: Damage | None = opened.boot.damage
        self.disk_full = False
        self.front = Front(
            disk, opened.log, opened.checkpoint, self._guard, lambda: self._derived,
            shape=lambda: None if self._cutting else self._generation,
        )  # fmt: skip
        self._wire(opened.derived)

    def _wire(self, derived: Derived) -> None:
        self._derived = derived
        parts = self._log, self.settings, derived.layers, derived.queues
        self._appender = Appender(*parts, derived.producers)
        self._reader = Reader(*parts, self._damaged)
        self._looks = Looks(self._log, self.settings.hot_bytes, self._damaged)
        self._snapshot_at = derived.snapshot_at
        self._indexed_at = derived.index_mark

    def _damaged(self, error: CorruptionError) -> None:
        self.mark_quarantine(damage_of(error))

    def mark_quarantine(self, damage: Damage) -> None:
        """Stop writing: something that was flushed is not as it was written."""
        self.damage = self.damage or damage

    def finish(self, job: Job) -> None:
        """Take a job back after `Job.run`, whether it worked or not; only now positions move.

        Damage that it met quarantines the store.

        Raises:
            DiskFull: What the job made was given up; it is asked for again later.
            DiskError: Of what follows a job that worked.
        """
        try:
            job.apply(job)
        except DiskError as error:
            if not isinstance(error, DiskFull):
                self._opened.run.note_io_error()
            raise
        if isinstance(job.error, CorruptionError):
            self.mark_quarantine(damage_of(job.error))
        elif job.error is not None and not isinstance(job.error, DiskFull):
            self._opened.run.note_io_error()

    def flush_job(self, thorough: bool = False) -> Job | None:
        """Return a flush of everything up to the present end; None when none is due.

        Without ``thorough`` an async store flushes only when enough pages are dirty.
        """
        log = self._log
        if self._flushing or self._cutting or self.damage is not None or log.flushed >= log.end:
            return None
        few = log.dirty_pages < self.settings.flush_pages_min
        if not thorough and self.settings.flush != "sync" and few:
            return None
        target, generation = log.end, self._generation
        segments = log.segments.between(log.flushed, target)
        self._flushing = True

        def work() -> None:
            if generation == self._generation:
                log.flush_to(target, segments, "flush", lambda: generation != self._generation)

        def apply(job: Job) -> None:
            self._flushing = False
            if job.error is None and generation == self._generation:
                log.flushed_to(target, segments)

        return Job("flush", work, apply)

    def save_promise_job(self, promise: Promise) -> Job:
        """Return a job that makes a promise durable; it counts from `finish` on."""

        def work() -> None:
            with self._guard:
                self._opened.promises.write(promise, "promise")

        def apply(job: Job) -> None:
            if job.error is None:
                self.promise = promise

        return Job("promise", work, apply)

    def checkpoint_job(self) -> Job:
        """Return a job that writes both checkpoints and the exports that have changed.

        While a cut is under way it does nothing: what is flushed now may lie beyond the new end.
        """
        trusted, generation = Trusted(self._log.flushed, self.confirm), self._generation
        cutting = self._cutting
        exports = self._exports.prepare(self._derived.layers.whole(), self._log)
        physic = self._log.timestamp if self._log.flushed == self._log.end else 0
        index = self._derived.full_index_timestamp

        def work() -> None:
            with self._guard:
                if cutting or generation != self._generation:
                    return
                self._opened.checkpoint.write(trusted, "checkpoint")
                if physic:
                    value = Checkpoint(physic, 0, index, 0, trusted.confirm)
                    write_rocketmq_checkpoint(self._disk, value, "checkpoint.rocketmq")
                self._exports.write(exports, "checkpoint")

        def apply(job: Job) -> None:
            if job.error is None and not cutting and generation == self._generation:
                self.checkpointed = trusted.flushed

        return Job("checkpoint", work, apply)

    def prepare_job(self) -> Job | None:
        """Return a job that makes the next log file or looks after pages; None when not due."""
        log, generation = self._log, self._generation
        if self._preparing or self._cutting or self.damage is not None:
            return None
        start = log.ahead_start()
        if start is None:
            return self._page_job()
        self._preparing = True
        settle = log.full_work()

        def work() -> Segment:
            settle()
            return log.make_ahead(start, "prepare")

        def apply(job: Job) -> None:
            self._preparing = False
            if isinstance(job.result, Segment):
                if generation == self._generation:
                    log.take_ahead(job.result, "prepare.adopt")
                else:
                    job.result.mapping.close()
                    remove_ahead(self._disk, "prepare.remove")

        return Job("prepare", work, apply)

    def _page_job(self) -> Job | None:
        work = self._log.page_work()
        if work is None:
            return None
        self._preparing = True

        def apply(job: Job) -> None:
            self._preparing = False

        return Job("prepare", work, apply)

    def snapshot_job(self, *, force: bool = False) -> Job | None:
        """Return a job that writes a state snapshot; None when none is due.

        Due once the dispatcher has caught up with confirm in a log file behind that of the newest
        snapshot, when retention has moved the starts of queues, or behind so many bytes of control
        records; with ``force`` whenever there is anything new.

        Raises:
            DiskFull: Nothing has changed; to be asked for again.
        """
        at, size = self._derived.dispatcher.position, self.settings.segment_size
        due = at // size > self._snapshot_at // size or (force and at > self._snapshot_at)
        if (keys := self._derived.keys) is not None and at == self._snapshot_at:
            due |= force and (keys.unflushed or keys.mark() != self._indexed_at)
        controls = self._derived.dispatcher.control_bytes >= self.settings.control_bytes
        due = due or self.front.unrecorded or controls
        busy = self._snapshotting or self._cutting or self.damage is not None
        if not due or busy or at != self.confirm:
            return None
        generation, log = self._generation, self._log
        value, keys = self._derived.snapshot(log), self._derived.keys
        index = keys.flush() if keys is not None else None
        unflushed = self._derived.queues.unflushed.take()
        segments = log.segments.between(log.flushed, at)
        self._snapshotting = True
        self.front.noted()

        def work() -> None:
            unflushed.flush(self._disk, "snapshot.queues")
            if index is not None:
                index.run("snapshot.index")
            log.flush_to(at, segments, "snapshot.log", lambda: generation != self._generation)
            with self._guard:
                if generation == self._generation:
                    if value.start > self._opened.checkpoint.durable:
                        # its queues begin there: the log must not begin earlier after a crash
                        self._opened.checkpoint.advance(value.start, "snapshot.mark")
                    self._derived.snapshots.write(value, "snapshot.write")

        def apply(job: Job) -> None:
            self._snapshotting = False
            if keys is not None and index is not None:
                keys.flushed(index, done=job.error is None)
            if job.error is not None:
                self._derived.queues.unflushed.give_back(unflushed)
                self.front.unrecorded = True
            elif generation == self._generation:
                self._snapshot_at = at
                self._derived.dispatcher.control_bytes = 0
                self._indexed_at = index.mark if index is not None else None
                self.front.recorded()

        return Job("snapshot", work, apply)
