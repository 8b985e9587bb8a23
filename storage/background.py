"""The periodic jobs of an open store.

Flushes, checkpoints, promises, the next log file, state snapshots. Each ``..._job`` method decides
whether a job is due and returns it; positions move only when the finished job is handed to
`StoreJobs.finish`. A cut raises the generation: jobs of an older generation do nothing and move
nothing.

Not here: writing (`storage.store`), cuts (`storage.cuts`), when jobs are requested
(``replication.driver.background_jobs``), how a job runs (`storage.jobs`).
"""

from __future__ import annotations

from contextlib import suppress

from storage.errors import DiskError, DiskFull
from storage.jobs import Job
from storage.log.segment import Segment, remove_ahead
from storage.marks.checkpoint import Trusted, write_rocketmq_checkpoint
from storage.marks.promise import Promise
from storage.recovery.config_export import Exports
from storage.recovery.derived import Derived
from storage.recovery.opened import Opened
from storage.recovery.timer_export import timer_log_file_size, write_timer_files
from storage.retention.removal import LogHead
from twinlog.errors import CorruptionError
from twinlog.format.checkpoint import Checkpoint
from twinlog.format.system_topics import DELAY_TOPIC

EXPORT_CHECKPOINTS = 60
"""Checkpoints between two exports for RocketMQ, about a minute: each rewrites all topics."""


class StoreJobs:
    """The jobs of one open store.

    Args:
        opened: The store.
        head: Told about snapshots, which record where the log begins.

    Attributes:
        checkpointed: Flushed offset of the last checkpoint.
    """

    def __init__(self, opened: Opened, head: LogHead) -> None:
        self._opened = opened
        self._log = opened.log
        self._head = head
        self._settings = opened.settings
        self._exports = Exports(opened.disk)
        self._export_in = 0
        self._flushing = False
        self._preparing = False
        self._snapshotting = False
        self.checkpointed = opened.log.end

    def finish(self, job: Job) -> None:
        """Finish a job after `Job.run`, whether it succeeded or not; only now positions move.

        If the job found damage, the store is quarantined.

        Raises:
            DiskFull: The job's result was discarded; it will be requested again.
            DiskError: A step after a successful job failed.
        """
        try:
            job.apply(job)
        except DiskError as error:
            if not isinstance(error, DiskFull):
                self._opened.run.note_io_error()
            raise
        if isinstance(job.error, CorruptionError):
            self._opened.damaged(job.error)
        elif job.error is not None and not isinstance(job.error, DiskFull):
            self._opened.run.note_io_error()

    def flush_job(self, thorough: bool = False) -> Job | None:
        """Return a flush of everything up to the present end; None when none is due.

        Without ``thorough`` an async store flushes only when enough pages are dirty.
        """
        opened, log = self._opened, self._log
        stopped = self._flushing or opened.cutting or opened.damage is not None
        if stopped or log.flushed >= log.end:
            return None
        few = log.dirty_pages < self._settings.flush_pages_min
        if not thorough and self._settings.flush != "sync" and few:
            return None
        target, generation = log.end, opened.generation
        segments = log.segments.between(log.flushed, target)
        self._flushing = True

        def work() -> None:
            def overtaken() -> bool:
                return generation != opened.generation

            if not overtaken():
                log.flush_to(target, segments, "flush", overtaken)
                opened.checkpoint.trace(target, overtaken, "flush.trace")

        def apply(job: Job) -> None:
            self._flushing = False
            if job.error is None and generation == opened.generation:
                # After a cut the flushed bytes may be gone: positions of another generation must
                # not move.
                log.flushed_to(target, segments)
                self.checkpointed = target

        return Job("flush", work, apply)

    def save_promise_job(self, promise: Promise) -> Job:
        """Return a job that makes a promise durable; it holds from `finish` on (R13)."""
        opened = self._opened

        def work() -> None:
            with opened.guard:
                opened.promises.write(promise, "promise")

        def apply(job: Job) -> None:
            if job.error is None:
                opened.promise = promise

        return Job("promise", work, apply)

    def checkpoint_job(self, *, export: bool = False) -> Job:
        """Return a job that writes both checkpoints, and sometimes the changed exports.

        The exports list every topic, so their cost grows with the number of topics, and only
        RocketMQ reads them: they are written with one checkpoint in `EXPORT_CHECKPOINTS`, with the
        first one after a snapshot, and with ``export``.

        During a cut it does nothing: the flushed offset may be beyond the new end.
        """
        opened, generation = self._opened, self._opened.generation
        # Read now, on the loop: the worker must write a pair that was true at one moment (R2).
        trusted = Trusted(self._log.flushed, opened.confirm)
        cutting = opened.cutting
        exports, self._export_in, timers = None, self._export_in - 1, None
        timer_log = timer_log_file_size(opened.disk) if export else 0
        if export or self._export_in < 0:
            derived = opened.derived
            # At a stop the whole log counts, as for topics: RocketMQ knows no confirm offset.
            messaging = derived.whole_messaging(self._log) if export else derived.messaging
            waited = any(queue.topic == DELAY_TOPIC for queue in derived.queues)
            state = derived.layers.whole()
            checked = derived.checked(messaging)
            exports = self._exports.prepare(
                state, messaging, self._log, waited=waited, checked=checked
            )
            self._export_in = EXPORT_CHECKPOINTS - 1
            timers = derived.timer_files(messaging, self._log, timer_log) if export else None
        # RocketMQ recovers from this timestamp: it must not name a record that is not flushed.
        physic = self._log.timestamp if self._log.flushed == self._log.end else 0
        index = opened.derived.full_index_timestamp

        def work() -> None:
            # The guard excludes the cut: a snapshot above the new end must not appear after it.
            with opened.guard:
                if cutting or generation != opened.generation:
                    return
                opened.checkpoint.renew(trusted, "checkpoint")
                if physic:
                    value = Checkpoint(physic, 0, index, 0, trusted.confirm)
                    write_rocketmq_checkpoint(opened.disk, value, "checkpoint.rocketmq")
                self._exports.write(exports, "checkpoint")
                if timers is not None:
                    with suppress(DiskFull):  # as the other exports
                        write_timer_files(opened.disk, timers, timer_log, "checkpoint.timers")

        def apply(job: Job) -> None:
            if job.error is None and not cutting and generation == opened.generation:
                self.checkpointed = max(self.checkpointed, trusted.flushed)

        return Job("checkpoint", work, apply)

    def prepare_job(self) -> Job | None:
        """Return a job that makes the next log file or advises pages; None when not due."""
        opened, log, generation = self._opened, self._log, self._opened.generation
        if self._preparing or opened.cutting or opened.damage is not None:
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
                if generation == opened.generation:
                    log.take_ahead(job.result, "prepare.adopt")
                else:
                    job.result.mapping.close()
                    remove_ahead(opened.disk, "prepare.remove")

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

        Due once the dispatcher has reached the confirm offset in a later log file than the newest
        snapshot, when retention has moved the starts of queues, after ``control_bytes`` of control
        records, or after ``group_bytes`` of what groups have consumed; with ``force`` whenever
        there is anything new.

        Raises:
            DiskFull: Nothing has changed; call again later.
        """
        opened, log, derived = self._opened, self._log, self._opened.derived
        at, keys = derived.dispatcher.position, derived.keys
        if self._head.wanted and at == derived.snapshot_at:
            return self._twin_job()
        due = self._snapshot_due(derived, at) or (force and self._anything_new(derived, at))
        busy = self._snapshotting or opened.cutting or opened.damage is not None
        # The confirmed layer is as of the dispatcher: a snapshot of a dispatcher that is behind
        # would lack control records below confirm.
        if not due or busy or at != opened.confirm:
            return None
        generation, value = opened.generation, derived.snapshot(log)
        # All of it must be durable before the snapshot says so (R50, mutants queues_not_flushed,
        # keys_not_flushed).
        index = keys.flush() if keys is not None else None
        unflushed = derived.queues.unflushed.take()
        segments = log.segments.between(log.flushed, at)
        self._snapshotting = True
        self._head.noted()

        def work() -> None:
            unflushed.flush(opened.disk, "snapshot.queues")
            if index is not None:
                index.run("snapshot.index")
            log.flush_to(at, segments, "snapshot.log", lambda: generation != opened.generation)
            with opened.guard:
                if generation == opened.generation:
                    if value.start > opened.checkpoint.durable:
                        # the snapshot's queues begin at this start: after a crash the log must too
                        opened.checkpoint.advance(value.start, "snapshot.mark")
                    derived.snapshots.write(value, "snapshot.write")

        def apply(job: Job) -> None:
            self._snapshotting = False
            if keys is not None and index is not None:
                keys.flushed(index, done=job.error is None)
            if job.error is not None:
                opened.derived.queues.unflushed.give_back(
                    unflushed
                )  # of the present state: a cut may have replaced it
                self._head.unrecorded = True
            elif generation == opened.generation:
                derived.snapshot_at = at
                self._export_in = 0
                derived.dispatcher.control_bytes = derived.dispatcher.group_bytes = 0
                if index is not None:
                    derived.index_mark = index.mark
                self._head.recorded()

        return Job("snapshot", work, apply)

    def _snapshot_due(self, derived: Derived, at: int) -> bool:
        size = self._settings.segment_size
        another_file = at // size > derived.snapshot_at // size
        controls = derived.dispatcher.control_bytes >= self._settings.control_bytes
        controls = controls or derived.dispatcher.group_bytes >= self._settings.group_bytes
        return another_file or controls or self._head.unrecorded or self._head.wanted

    def _twin_job(self) -> Job | None:
        """Return a job that keeps the newest snapshot twice, if no newer one can be made."""
        opened, generation = self._opened, self._opened.generation
        self._head.wanted = False
        if self._snapshotting or opened.cutting or opened.damage is not None:
            return None
        self._snapshotting = True
        snapshots, at = opened.derived.snapshots, opened.derived.snapshot_at

        def work() -> None:
            with opened.guard:
                if generation == opened.generation:
                    snapshots.keep_twice(at, "snapshot.twin")

        def apply(job: Job) -> None:
            self._snapshotting = False

        return Job("snapshot", work, apply)

    @staticmethod
    def _anything_new(derived: Derived, at: int) -> bool:
        keys = derived.keys
        if keys is None or at != derived.snapshot_at:
            return at > derived.snapshot_at
        return keys.unflushed or keys.mark() != derived.index_mark
