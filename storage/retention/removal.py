"""Removal of the log's oldest files: which may be deleted, which left the log, and the steps.

A file is deleted in two steps (`storage.retention.policy` decides when). `LogHead.leave` moves the
start of the log, on the loop and in memory only. `LogHead.remove_job` does the rest in a worker
thread:

1. the new start of each queue is looked up and compared with the log: with damage nothing is
deleted; then the log's new start is written into the checkpoint, durably: files below are garbage
from now on, and a start removes them;
2. the file is overwritten, if that is configured and no reader holds it;
3. batch index and log file are removed, and the directories fsynced;
4. queue files whose entries all point below the start that the newest snapshot *records* are
   deleted, and files of the key index that it no longer names. Deleted before that snapshot is
   durable, their absence would look like damage.

A crash between any two steps leaves a store that starts at the new start of step 1, or at the old
one.

If a reader holds a file for too long, its names are removed first, and it is overwritten once the
reader releases it: bytes that were handed out never change. After a crash in between, its bytes
stay on the disk without a name.

A new start of the log makes a snapshot due (`LogHead.unrecorded`), after which step 4 runs.

Overwriting is best effort: it writes zeros to the file. A solid-state disk, a copy-on-write file
system, a snapshot or a backup may keep the old bytes.

Units: log offsets in bytes. Not here: the decision (`storage.retention.policy`), what slaves still
need (``replication``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

from storage.errors import DiskError
from storage.jobs import Job
from storage.log import reserve
from storage.log.segment import Segment, flush_names, remove_segment
from storage.marks.archive_mark import NOBODY, ArchivedPart, ArchiveMark, Claim, refusal
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.entry_check import fetch_head
from storage.recovery import truncate
from storage.recovery.opened import Opened
from storage.retention.policy import File, Held
from twinlog.errors import CorruptionError

SIDE_FILES_MAX = 16
"""Side files of cuts that are kept at most."""
_CUT = "the log is being cut; ask again when that is done"


@dataclass(slots=True, eq=False)
class _Left:
    segment: Segment
    at: float
    removing: bool = False
    nameless: bool = False
    """Its names are removed; it is overwritten once no reader holds it."""


class LogHead:
    """Removes files from the head of one store's log.

    Args:
        opened: The store.

    Attributes:
        archive: How far the log is archived; changed under the store's guard only.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened
        self._disk = opened.disk
        self._log = opened.log
        self.archive = ArchiveMark(opened.disk)
        self._left: list[_Left] = []
        self._tidying = False
        self._old_index: list[str] = []
        self._taken_index: list[str] = []
        self._noted_index: list[str] = []
        self.unrecorded = False
        """Queues have other starts than in the newest snapshot: another snapshot is due."""
        self.wanted = False
        """The oldest file waits for newer snapshots: one is requested."""
        self.untidy = False
        """A snapshot has recorded new starts of queues: older queue files may be deleted."""

    # -- what may be deleted

    def limit(self, confirm: int) -> int:
        """Return the log offset above which nothing may be deleted, whatever the reason.

        The least of confirm, dispatched, flushed and the older snapshot (R51).
        """
        derived = self._opened.derived
        older = derived.snapshots.older
        return min(confirm, derived.dispatcher.position, self._log.flushed, older)

    def held(self, below: int) -> bool:
        """Whether groups hold a message below a log offset; see `storage.messaging.holds`."""
        return self._opened.derived.held(below) < below

    def files(self) -> list[File]:
        """Return the log's files, oldest first, the one that is written included."""
        found: list[File] = []
        for one in self._log.segments.all:
            newest = one.index.entry(one.index.count - 1).store_timestamp if one.index.count else 0
            found.append(File(one.start, one.end, newest))
        return found

    def oldest(self) -> list[File]:
        """Return the oldest file and the newest, which is all that a decision needs."""
        segments = self._log.segments.all
        if len(segments) < 2:
            return self.files()
        first, last = segments[0], segments[-1]
        newest = first.index.entry(first.index.count - 1).store_timestamp
        return [
            File(first.start, first.end, newest),
            File(last.start, self._log.end, self._log.timestamp),
        ]

    def used(self) -> float | None:
        """Return the share of the disk in use; None if unknown."""
        free, total = self._disk.free_bytes()
        return 1 - free / total if total else None

    @property
    def archived(self) -> int:
        """Log offset below which everything is archived."""
        return self.archive.offset

    def archive_job(
        self, parts: Sequence[ArchivedPart], confirm: int, claim: Claim = NOBODY
    ) -> Job:
        """Return a job that compares the parts that an archive names with our bytes.

        Its result is "" if the mark was raised, else why not. A cut meanwhile is such a reason,
        because it is unknown which bytes were compared.
        """
        log, size, archive = self._log, self._log.segments.size, self.archive
        start, limit = log.start, min(confirm, log.flushed)
        shape = self._opened.shape
        mark = archive.proven_to(claim)
        if mark is None:
            wrong = f"the archive {archive.archive or 'without an id'} counts here, this is another"
        else:
            wrong = refusal(parts, mark=mark, start=start, limit=limit, size=size)

        def work() -> str:
            if shape is None:
                return _CUT
            try:
                found = wrong or archive.compare(parts, start=start, size=size, above=mark)
            except DiskError:
                if shape != self._opened.shape:
                    return _CUT  # a file that the cut removed
                raise
            with self._opened.guard:
                if shape != self._opened.shape:
                    return _CUT
                if not found and parts:
                    archive.raise_to(max(part.end for part in parts), claim.archive)
            return found

        return Job("archive", work, lambda job: None)

    # -- leaving files

    def leave(self, to: int, confirm: int, now: float) -> None:
        """Move the start of the log to ``to``, the end of a file; readers see it at once."""
        # R51 once more, where it would do the harm (mutant retention_below_snapshot).
        assert to <= self.limit(confirm), (to, self.limit(confirm))
        assert not self.held(to), to
        assert self._log.segments.all[-1].start >= to
        for one in self._log.leave(to):
            self._left.append(_Left(one, now))

    def left(self) -> list[Held]:
        """Return the files that left the log and are still to be removed or overwritten."""
        found = [(one, one.segment.mapping.held()) for one in self._left if not one.removing]
        return [
            Held(one.segment.start, one.at, held)
            for one, held in found
            if not (held and one.nameless)
        ]

    @property
    def leaving(self) -> int:
        """How many files left the log and are not removed yet."""
        return len(self._left)

    def remove_job(self, starts: Iterable[int], *, erase: bool) -> Job:
        """Return a job that removes the files that left and begin at ``starts``.

        With ``erase`` they are overwritten; those that a reader holds stay in `left` until then.
        """
        wanted = set(starts)
        going = [one for one in self._left if one.segment.start in wanted]
        later = [one for one in going if erase and one.segment.mapping.held()]
        for one in going:
            one.removing = True
        start, derived, shape = self._log.start, self._opened.derived, self._opened.shape
        queues = [one for one in derived.queues if one.leads_below(start)]

        moved: list[tuple[ConsumeQueue, int, int]] = []

        def work() -> None:
            # Before anything is deleted: the record of each queue's first kept entry must be
            # readable.
            moved.extend(self._kept_from(queues, start, shape))
            with self._opened.guard:
                # R51: the new start is durable before a file goes, or a start would miss the file
                # and call it damage (mutant retention_without_mark).
                self._opened.checkpoint.advance(start, "retention.mark")
            for one in going:
                if erase and one not in later:
                    one.segment.mapping.erase("retention.erase")
                remove_segment(self._disk, one.segment.start, "retention.remove")
            flush_names(self._disk, "retention")

        def apply(job: Job) -> None:
            if job.error is not None:
                for one in going:
                    one.removing = False
                return
            for one in going:
                if one in later:
                    one.removing, one.nameless = False, True
                else:
                    one.segment.mapping.close()
            self._left = [one for one in self._left if one not in going or one in later]
            for queue, first, low in moved:
                queue.move_start(first, low)
            if (keys := derived.keys) is not None and derived is self._opened.derived:
                self._old_index += [file.path for file in keys.leave(start)]
            self.unrecorded = self.unrecorded or bool(moved or self._old_index)

        return Job("retention", work, apply)

    def _kept_from(
        self, queues: Iterable[ConsumeQueue], start: int, shape: int | None
    ) -> Iterable[tuple[ConsumeQueue, int, int]]:
        """Yield queues and their starts in a log that begins at ``start``.

        If the log is cut or another file leaves meanwhile, entries can no longer be compared: the
        remaining queues keep their starts, and the next read or retention adjusts them.
        """
        check = partial(fetch_head, self._log)
        for one in queues:
            try:
                found = one.kept_from(start, check)
            except (CorruptionError, DiskError, IndexError, ValueError):
                if shape is None or shape != self._opened.shape or start != self._log.start:
                    return
                raise
            yield one, *found

    def tidy_job(self) -> Job | None:
        """Return a job that removes queue files below their queues' recorded starts; None: none.

        It also removes index files that the newest snapshot no longer names. After a crash, a later
        job or a start removes the rest.
        """
        if not self.untidy or self._tidying:
            return None
        self.untidy = False
        going = [
            (one, border) for one in self._opened.derived.queues if (border := one.removable())
        ]
        index = [path for path in self._noted_index if self._disk.exists(path)]
        self._noted_index = []
        if not going and not index:
            return None
        self._tidying = True

        def work() -> None:
            for queue, border in going:
                if queue.remove_below(border, "retention.queue.remove"):
                    self._disk.fsync_dir(queue.directory, "retention.queue.dir")
            for path in index:
                self._disk.remove(path, "retention.index.remove")

        def apply(job: Job) -> None:
            self._tidying = False
            if job.error is not None:
                self.untidy = True
                return
            for queue, border in going:
                queue.removed = border

        return Job("tidy", work, apply)

    def side_job(self, wall_ms: int, keep_seconds: float) -> Job | None:
        """Return a job that removes old side files of cuts.

        Their age is that of the newest record at the cut; of younger ones the newest
        `SIDE_FILES_MAX` stay.
        """
        found = sorted(truncate.side_files(self._disk), key=lambda one: one[1])
        old = [path for path, ms in found if wall_ms - ms >= keep_seconds * 1000]
        old += [path for path, _ in found[:-SIDE_FILES_MAX] if path not in old]
        if not old:
            return None

        def work() -> None:
            for path in old:
                self._disk.remove(path, "retention.side.remove")

        return Job("side-files", work, lambda job: None)

    def reserve_job(self) -> Job | None:
        """Return a job that makes the reserve again; None if it exists or space is short."""
        if self._disk.exists(reserve.PATH) or self._disk.free_bytes()[0] < reserve.NEEDED_BYTES:
            return None
        return Job("reserve", lambda: reserve.hold(self._disk, "retention"), lambda job: None)

    def recorded(self) -> None:
        """Record that the queue starts in the last snapshot are durable."""
        for queue in self._opened.derived.queues:
            queue.recorded = queue.noted
        self._noted_index += self._taken_index
        self._taken_index = []
        self.untidy = True

    def noted(self) -> None:
        """Record that a snapshot is being made."""
        self.unrecorded = self.wanted = False
        self._taken_index, self._old_index = [*self._taken_index, *self._old_index], []
