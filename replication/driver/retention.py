"""Runs the retention of a node's store, and decides when the disk is too full for writes.

`storage.retention.policy` decides, `storage.retention.removal` executes; this module adds what only
a node knows: what linked and recently heard slaves still need, whether a cut is running, the wall
clock. A slave decides for itself in the same way, within its own limits.

Bytes that a slave needs are kept if the slave was heard within ``absent_seconds``; a member that
this master has not heard yet counts as heard when its leadership began. Only a nearly full disk
overrides this: the link is closed, the slave must begin again (R57), and an event is logged.

Units: bytes, seconds of the loop's clock. Not here: threads, jobs of other kinds
(`replication.driver.background_jobs`), replies to clients (`replication.driver.replies`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from replication.core.replica import ReplicaCore
from replication.core.view import needed as needed_by_slaves
from replication.driver.outside import Done, Outside
from storage import ForgetProducers, Job, SectionResult, Store
from storage.errors import DiskFull
from storage.marks.archive_mark import NOBODY, ArchivedPart, Claim
from storage.retention.policy import Facts, Leave, Retention, Wait
from storage.settings import RetentionSettings

HELD_SECONDS = 1.0
"""Pause between two checks of a file that a reader holds."""
TIGHT_SECONDS = 1.0
"""Pause between two checks of a disk that is too full."""
ASIDE_SECONDS = 60.0
"""Pause between two checks for old side files and for a missing reserve."""
FORGET_SECONDS = 10.0
"""How long a `ForgetProducers` record may wait for its confirmation."""
EVERYTHING = 1 << 62


def _ignore(results: list[SectionResult], by: str | None) -> None:
    """A reply that is not needed."""


class RetentionDriver:
    """See the module.

    Args:
        store: The store.
        core: Knows the linked slaves and this node's role.
        around: Runs jobs, closes links, logs.
        wall_ms: Wall clock in ms.
        control: ``Driver.control``: appends a control record.
        now: Clock.

    Attributes:
        refuses: Whether the disk is so full that writes are refused.
        used: Share of the disk in use at the last check; None: unknown.
        overtaken: Slaves that lacked bytes when these were deleted because the disk was too full.
    """

    def __init__(
        self,
        store: Store,
        core: ReplicaCore,
        around: Outside,
        *,
        wall_ms: Callable[[], int],
        control: Callable[..., None],
        now: float,
    ) -> None:
        self._store = store
        self._core = core
        self._around = around
        self._wall_ms = wall_ms
        self._control = control
        self._settings = store.settings.retention
        self._retention = Retention(self._settings or RetentionSettings(), now)
        self._job: Job | None = None
        self._remove_at = self._aside_at = now
        self._archiving: Done | None = None
        self._told = Wait.NOTHING
        self.refuses = False
        self.used: float | None = None
        self.overtaken = 0

    # -- events

    def work(self, now: float) -> None:
        """Begin the job that is due; at most one at a time."""
        if self._settings is None or self._core.context.cutting or self._store.damage is not None:
            return
        if self._retention.due(now):
            self._look(now, self._settings)
        if self._job is None:
            self._remove(now, self._settings)

    def on_job(self, now: float, job: Job, error: Exception | None) -> bool:
        """Handle the end of a job started here; False for others. Raises fatal errors."""
        if job is not self._job:
            return False
        self._job = None
        self._store.jobs.finish(job)
        self._tell_archiver(now, job, error)
        if isinstance(error, DiskFull):
            self._remove_at = now + TIGHT_SECONDS
        elif error is not None:
            raise error
        return True

    def next_deadline(self) -> float:
        """Return when `work` is due."""
        if self._settings is None or self._core.context.cutting or self._store.damage is not None:
            return float("inf")
        due = self._retention.next_look()
        if self._job is None and self._store.head.leaving:
            due = min(due, self._remove_at)
        return due

    def archived(
        self, now: float, parts: Sequence[ArchivedPart], reply: Done, claim: Claim = NOBODY
    ) -> None:
        """Raise the archive's mark if its parts match our bytes; a job of some seconds."""
        if self._job is not None or self._store.damage is not None:
            reply("busy", "the node is working on its files, or is quarantined; ask again")
            return
        self._job = self._store.head.archive_job(parts, self._store.confirm, claim)
        self._archiving = reply
        self._around.run_job(self._job)

    def _tell_archiver(self, now: float, job: Job, error: Exception | None) -> None:
        reply, self._archiving = self._archiving, None
        if reply is None:
            return
        if error is not None:
            reply("disk", f"the archived bytes could not be compared: {error}")
        else:
            wrong = job.result if isinstance(job.result, str) else ""
            if not wrong:  # files that waited for the archive may be deleted now
                self._retention.hurry(now)
            reply("archive" if wrong else "ok", wrong)

    @property
    def held_for_groups(self) -> int:
        """End of the oldest file when only messages of groups keep it from leaving; else 0."""
        if self._retention.waits is not Wait.GROUPS:
            return 0
        files = self._store.head.files()
        return files[0].end if files else 0

    def document(self) -> dict[str, object]:
        """Return the ``retention`` part of a status document."""
        retention = self._retention
        return {
            "enabled": self._settings is not None,
            "limit": self._store.head.limit(self._store.confirm),
            "waits": retention.waits.value,
            "deleted": {reason.value: count for reason, count in retention.deleted.items()},
            "forced": retention.forced,
            "overtaken": self.overtaken,
            "leaving": self._store.head.leaving,
            "archived": self._store.head.archived,
            "archive": self._store.head.archive.archive,
            "disk_used": self.used,
            "refuses": self.refuses,
        }

    # -- leaving

    def _look(self, now: float, settings: RetentionSettings) -> None:
        store = self._store
        self.used = store.head.used()
        self._judge_disk()
        needed = needed_by_slaves(self._core, now, settings.absent_seconds)
        facts = Facts(
            files=store.head.oldest(),
            limit=store.head.limit(store.confirm),
            needed=EVERYTHING if needed is None else needed,
            archived=store.head.archived,
            used=self.used,
            wall_ms=self._wall_ms(),
            held=store.head.held,
        )
        leave = self._retention.decide(now, facts)
        if leave is not None:
            self._leave(now, leave)
        if self._retention.waits is Wait.LIMIT:
            self._store.head.wanted = True  # after a burst, files wait for a second snapshot
        tight = self.used is not None and self.used >= settings.disk_force
        self._tell_wait(tight=tight)
        if tight:
            self._retention.hurry(now + TIGHT_SECONDS)

    def _leave(self, now: float, leave: Leave) -> None:
        start = self._store.start
        if leave.overtakes:
            self.overtaken += self._core.overtake(now, leave.to)
        self._store.head.leave(leave.to, self._store.confirm, now)
        self._around.event(
            "log-file-leaves", "info", start=start, to=leave.to, reason=leave.reason.value
        )

    def _tell_wait(self, *, tight: bool) -> None:
        """Log once that a file which should be deleted for lack of space may not."""
        waits = self._retention.waits
        if waits is self._told:
            return
        self._told = waits
        if tight and waits is not Wait.NOTHING:
            self._around.event("retention-waits", "alarm", why=waits.value, start=self._store.start)

    def _judge_disk(self) -> None:
        refuses = self._retention.refuses(self.used)
        if refuses != self.refuses:
            self.refuses = refuses
            name, level = ("disk-refuses", "alarm") if refuses else ("disk-accepts", "info")
            self._around.event(name, level, used=self.used)

    # -- removing

    def _remove(self, now: float, settings: RetentionSettings) -> None:
        front = self._store.head
        job = None
        if front.leaving and now >= self._remove_at:
            starts = self._retention.removable(now, front.left())
            self._remove_at = now + HELD_SECONDS
            if starts:
                job = front.remove_job(starts, erase=settings.erase)
        job = job or front.tidy_job() or self._aside(now, settings)
        if job is not None:
            self._job = job
            self._around.run_job(job)

    def _aside(self, now: float, settings: RetentionSettings) -> Job | None:
        """Return the job due about once a minute: side files, reserve; also forgets producers."""
        if now < self._aside_at:
            return None
        self._aside_at = now + ASIDE_SECONDS
        below = self._store.stale_producers(now)
        if below and self._core.leads:
            # No client waits for it; it is repeated if it was not appended.
            change, until = ForgetProducers(below), now + FORGET_SECONDS
            self._control(now, change, deadline=until, reply=_ignore)
        front = self._store.head
        return front.side_job(self._wall_ms(), settings.keep_cut_seconds) or front.reserve_job()
