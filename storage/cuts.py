"""Taking bytes out of an open store: cutting its end off, or beginning again at another offset.

Both are jobs. From the creation of such a job until it is finished nothing is written, and jobs
that were already running do nothing more (`storage.recovery.opened.Opened.generation`). The files
change in a worker thread, after an intent is written that a start would carry out again; the state
in memory changes on the event loop when the job returns without an error. A job that failed is
requested again.

Not here: the order of the steps on the disk (`storage.recovery.truncate`,
`storage.recovery.reseed`), the decision to cut (``replication``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from storage.background import StoreJobs
from storage.errors import DiskError
from storage.jobs import Job
from storage.key_index.index import KeyIndex
from storage.log import reserve
from storage.recovery import reseed, truncate
from storage.recovery.derived import Doubt, derive
from storage.recovery.opened import Opened
from storage.recovery.snapshot import Snapshot
from storage.retention.removal import LogHead


class StoreCuts:
    """The cuts of one open store.

    Args:
        opened: The store.
        head: Keeps the archive's mark, which is lowered with the log.
        jobs: Gets the flushed offset after a cut.
        rewire: Called after all state derived from the log was rebuilt.
    """

    def __init__(
        self, opened: Opened, head: LogHead, jobs: StoreJobs, rewire: Callable[[], None]
    ) -> None:
        self._opened = opened
        self._log = opened.log
        self._head = head
        self._jobs = jobs
        self._rewire = rewire
        self._attempts = 0

    def cut_job(self, to: int) -> Job:
        """Return a job that cuts the log at border ``to``.

        Its result says whether the cut bytes were kept in a side file.
        """
        opened, log = self._opened, self._log
        self._begin("cut", losing=to < opened.confirm)
        intent = truncate.Intent(
            to, log.end, log.history.last, min(log.flushed, to), min(opened.confirm, to),
            log.timestamp,
        )  # fmt: skip
        self._attempts += 1  # kept over failed jobs: only repeated failures give the side file up
        may_lose = self._attempts > truncate.SIDE_ATTEMPTS

        def work() -> bool:
            with opened.guard:
                log.drop_ahead("cut.ahead")
                log.hold(to)  # the index may be cold: load it before its files change
                reserve.give_up(opened.disk, "cut")
                truncate.write_intent(opened.disk, intent)
                return truncate.carry_out(
                    opened.disk, intent, opened.settings.segment_size, opened.checkpoint,
                    archive=self._head.archive, may_lose=may_lose,
                )  # fmt: skip

        def apply(job: Job) -> None:
            if job.error is None:
                self._cut(intent)
                self._attempts = 0
                opened.cutting = opened.losing = False

        return Job("cut", work, apply)

    def reseed_job(self, seed: Snapshot) -> Job:
        """Return a job that deletes the log and begins it again at the seed's offset."""
        opened, log = self._opened, self._log
        self._begin("reseed", losing=True)

        def work() -> None:
            with opened.guard:
                log.drop_ahead("reseed.ahead")
                reserve.give_up(opened.disk, "reseed")
                reseed.write_seed(opened.disk, seed)
                reseed.carry_out(
                    opened.disk, seed, queue_file_size=opened.settings.queue_file_size,
                    checkpoint=opened.checkpoint, archive=self._head.archive,
                )  # fmt: skip

        def apply(job: Job) -> None:
            if job.error is None:
                log.cut(log.start)
                opened.derived.cut_keys(0, log.segments)
                log.begin_at(seed.offset)
                opened.confirm = self._jobs.checkpointed = seed.offset
                self._note_newest()
                self._derive(keys=None)
                opened.cutting = opened.losing = False

        return Job("reseed", work, apply)

    def derive_again(self) -> None:
        """Make the derived state again, from the snapshot on; what it meets quarantines."""
        self._derive(keys=self._opened.derived.keys)

    def _begin(self, op: str, *, losing: bool) -> None:
        opened = self._opened
        opened.cutting, opened.losing = True, losing
        opened.generation += 1  # jobs made before compare it and do nothing
        # Placed bytes without entries would otherwise look like divergent records.
        self._log.wipe(op)

    def _cut(self, intent: truncate.Intent) -> None:
        opened = self._opened
        self._log.cut(intent.to)
        self._note_newest()
        opened.derived.layers.cut(intent.to)
        lost, opened.confirm = intent.to < opened.confirm, intent.confirm
        self._jobs.checkpointed = intent.flushed
        opened.derived.cut_keys(intent.to, self._log.segments)
        # Confirmed records, queues and applied control records among them, are cut only after an
        # unclean election.
        if lost or intent.to < opened.derived.dispatcher.position:
            self._derive(keys=opened.derived.keys)
        opened.checkpoint.untidy = False

    def _note_newest(self) -> None:
        """Note the newest file before a name is reused: else a start sees a copied store."""
        last = self._log.segments.last
        with suppress(DiskError):
            self._opened.run.note_log(last.start if last is not None else -1)

    def _derive(self, *, keys: KeyIndex | None) -> None:
        opened = self._opened
        opened.derived = derive(
            opened.disk, opened.settings, self._log, opened.confirm, rebuild=False,
            doubt=Doubt.LOST, keys=keys,
        )  # fmt: skip
        self._rewire()
        if opened.derived.damage is not None:
            opened.quarantine(opened.derived.damage)
        opened.checkpoint.untidy = False
