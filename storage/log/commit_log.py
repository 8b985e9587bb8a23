"""The commit log: one append-only sequence of batches for all topics, in files of one size.

Writing to the file is always the same three steps: bytes are placed beyond the end (`window`), then
the entries of whole batches are written (`add`), then the end moves. Until the third step the batch
does not exist (R5); after a failure `wipe` zeroes the placed bytes, because beyond the end there
must be only zeros (R8).

A buffering master puts whole batches into a memory pool first (`place`, `enter`); `commit` takes
the three steps for all of them. Until then they are between the end and the `tail`, and only the
appender knows them. If a batch does not fit into the pool, the pool is committed and the batch goes
straight into the file.

Positions are log offsets in bytes and batch borders; see the page in `storage`. ``flushed`` covers
log and batch index and only `flushed_to` moves it.

Invariants: every file begins with an epoch record and, when it is full, ends with a filler; no
batch crosses files; the entry of a batch is written after all its bytes.

Not here: which bytes (`storage.append.appender` for a master, `storage.append.receiver` for a
slave), the state that is derived from them, cutting (`storage.recovery.truncate`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import replace

from storage.disk.disk import Disk, Mapping
from storage.errors import DiskError, DiskFull
from storage.log import reserve
from storage.log.epoch_history import EpochHistory
from storage.log.memory_pool import Pool
from storage.log.page_advice import Paging, Range
from storage.log.segment import (
    Segment,
    adopt,
    create_segment,
    flush_names,
    log_path,
    remove_ahead,
    remove_segment,
)
from storage.log.segments import Segments
from storage.settings import StoreSettings
from twinlog.format.batch_index import KIND_FILLER, BatchEntry
from twinlog.format.log_file import BLANK
from twinlog.format.record import MAGIC_BLANK
from twinlog.kernels import crc32c

PAGE = 4096
AHEAD_MARGIN = 128 * 1024 * 1024
"""The next file is made ahead once less than this is left of the present one, or half of it is
filled: it must be ready in time even while the disk is busy with a flush. A writer fills this in
about a second."""
AHEAD_FROM = 1024 * 1024
"""But not before this much of the present file is filled."""


class CommitLog:
    """The log of one store.

    Args:
        disk: The data directory.
        settings: Sizes.
        segments: What recovery found.
        history: Epochs of the bytes below ``end``.
        end: End of the log in its files (the committed offset); also the flushed offset, for
            recovery flushes.
    """

    def __init__(
        self,
        disk: Disk,
        settings: StoreSettings,
        segments: Segments,
        history: EpochHistory,
        end: int,
    ) -> None:
        self._disk = disk
        self._settings = settings
        self.segments = segments
        self.history = history
        self.end = end
        self.flushed = end
        self.timestamp = 0
        self._ahead: Segment | None = None
        self._placed = end
        self._paging = Paging(settings, end)
        self._full: list[Mapping] = []
        self._pool: Pool | None = None
        self._buffering = self._direct = False
        self.unlocked = 0
        """Bytes that should be locked in memory, for which the system refused the lock."""
        if segments.last is not None:
            segments.last.mapping.expect_writes(settings.huge_pages)
        if settings.flush == "async-buffered":
            memory = disk.memory(settings.buffer_pool_bytes)
            self._pool = Pool(memory.buffer)
            self.unlocked += 0 if memory.locked else settings.buffer_pool_bytes

    @property
    def start(self) -> int:
        """First byte still kept."""
        return self.segments.all[0].start if self.segments.all else self.end

    @property
    def room(self) -> int:
        """Bytes between the end and the end of the file that holds it; 0 at a border."""
        last = self.segments.last
        return last.end - self.end if last is not None else 0

    @property
    def file_is_new(self) -> bool:
        """Whether the file at the end has no batch yet, so that an epoch record must come next."""
        last = self.segments.last
        return last is not None and last.index.count == 0

    @property
    def dirty_pages(self) -> int:
        """Pages of the log that a flush would write."""
        return self.end // PAGE - self.flushed // PAGE

    def timestamp_before(self, border: int) -> int:
        """Return the store timestamp of the batch that ends at ``border``, ms; 0 at the start."""
        if border >= self.end:
            return self.timestamp
        if border <= self.start:
            return 0
        index = self.segments.at(border - 1).index
        return index.entry(index.find(border - 1)).store_timestamp

    # -- writing

    def window(self, at: int, length: int) -> memoryview:
        """Return ``length`` writable bytes at ``at``, beyond the end and inside its file."""
        last = self.segments.last
        assert last is not None
        assert self.end <= at
        assert at + length <= last.end
        self._placed = max(self._placed, at + length)
        return last.view(at, at + length)

    def add(self, entries: Sequence[BatchEntry], op: str) -> None:
        """Write the entries of batches whose bytes are in place; they exist when this returns.

        Raises:
            DiskError: None of them exists, and their bytes are zeros again.
        """
        if not entries:
            return
        last = self.segments.last
        assert last is not None
        assert entries[0].start == self.end
        self.segments.newest, self.segments.packed = (), b""
        try:
            packed = [entry.pack() for entry in entries]
            last.growing.append(packed[0] if len(packed) == 1 else b"".join(packed), op)
        except BaseException:
            self.wipe(op)
            raise
        newest = entries[-1]
        self.end = newest.end
        self.timestamp = max(self.timestamp, newest.store_timestamp)
        self.segments.newest = tuple(entries)

    def place_alone(self, length: int, spare: int) -> memoryview | None:
        """Return ``length`` writable bytes at the end for a batch that goes straight to the file.

        None if ``spare`` more bytes would not fit, if the file has no batch yet (an epoch record
        must come first), or if batches go through the memory pool.
        """
        files = self.segments.all
        if self._buffering or not files:
            return None
        last = files[-1]
        at = self.end - last.start
        if at + length + spare > last.size or not last.index.count:
            return None
        if self._placed < self.end + length:
            self._placed = self.end + length
        return last.mapping.buffer[at : at + length]

    def reach(self) -> int:
        """Return the log offset up to which batches may be placed straight in the last file.

        The end of the log, so none, if the file has no batch yet or batches go through the memory
        pool.
        """
        files = self.segments.all
        if self._buffering or not files or not files[-1].index.count:
            return self.end
        return files[-1].end

    def add_one(self, packed: bytes, length: int, op: str, *, lone: bool = True) -> None:
        """Write the packed entry of a batch of ``length`` bytes that is in place, as `add` does.

        Without ``lone`` the packed entry is not kept: slaves must get it with decoded fields.
        """
        segments = self.segments
        segments.newest, segments.packed = (), b""
        try:
            segments.all[-1].growing.append(packed, op)
        except BaseException:
            self.wipe(op)
            raise
        self.end += length
        if lone:
            segments.packed = packed

    def wipe(self, op: str) -> None:
        """Zero everything that was placed in the file beyond the end."""
        self._direct = False
        last = self.segments.last
        if last is None or self._placed <= self.end:
            return
        stop = min(self._placed, last.end)
        last.mapping.zero(self.end - last.start, stop - last.start, op + ".zero")
        self._placed = self.end

    # -- the memory pool

    @property
    def tail(self) -> int:
        """Where the next batch begins: the end plus the bytes in the memory pool."""
        return self.end + (self._pool.length if self._pool is not None else 0)

    def buffer(self, wanted: bool) -> None:
        """Drop the pool's content; from now on batches go through it if ``wanted``."""
        if self._pool is not None:
            self._pool.clear()
        self._buffering, self._direct = wanted and self._pool is not None, False

    @property
    def buffering(self) -> bool:
        """Whether batches go through the memory pool."""
        return self._buffering

    def has_place(self, until: int) -> bool:
        """Whether bytes up to log offset ``until`` may be placed without emptying the pool."""
        pool = self._pool
        return not self._buffering or self._direct or pool is None or pool.fits(until - self.end)

    def pass_pool(self, op: str) -> None:
        """Empty the pool; the next batches go straight into the file, until they are entered.

        Raises:
            DiskError: As `commit`.
        """
        self.commit(op)
        self._direct = True

    def place(self, at: int, length: int) -> memoryview:
        """Return ``length`` writable bytes at ``at`` for a batch under construction."""
        if self._buffering and not self._direct and self._pool is not None:
            return self._pool.part(at - self.end, length)
        return self.window(at, length)

    def enter(self, entries: Sequence[BatchEntry], op: str) -> None:
        """Complete placed batches: in the pool, or in the file as `add` does."""
        if self._buffering and not self._direct and self._pool is not None:
            self._pool.enter(entries)
            return
        self._direct = False
        self.add(entries, op)

    def commit(self, op: str) -> None:
        """Move the pool's batches into the file: bytes, then entries, then the end.

        Raises:
            DiskError: All of it is still in the pool, and nothing of it in the file.
        """
        pool = self._pool
        if pool is None or not pool.length:
            return
        self.window(self.end, pool.length)[:] = pool.part(0, pool.length)
        # The flushed offset of the commit, not of the append: recovery trusts it as F (R7), and a
        # newer value lets it tell damage from a torn tail.
        self.add([replace(entry, flushed=self.flushed) for entry in pool.entries], op)
        pool.clear()

    def fill_up(self, epoch: int, op: str) -> None:
        """Fill the file up with a blank record, and write its entry.

        Raises:
            DiskError: The entry was not written; its bytes are zeros again.
        """
        at, length = self.end, self.room
        head = BLANK.pack(length, MAGIC_BLANK)
        self.window(at, len(head))[:] = head
        fields = at, length, 0, epoch, crc32c(head), self.timestamp, KIND_FILLER, self.flushed
        self.add_one(BatchEntry(*fields).pack(), length, op, lone=False)

    def next_file(self, op: str) -> None:
        """Begin a new file at the end, which is a border.

        Raises:
            DiskFull: Nothing has changed.
        """
        assert self.room == 0
        ahead, self._ahead = self._ahead, None
        if ahead is None or ahead.start != self.end:
            if not reserve.leaves_room(self._disk, self._settings.segment_size):
                raise DiskFull(op + ".create", log_path(self.end), errno.ENOSPC)
            ahead = create_segment(self._disk, self.end, self._settings.segment_size, op)
            ahead.mapping.expect_writes(self._settings.huge_pages)
            self._paging.began(self.end, 0)
        else:
            self._paging.began(self.end, self._paging.first)
        if self.segments.last is not None:
            self._full.append(self.segments.last.mapping)
        self.segments.all.append(ahead)
        self.segments.doubt(self.end)
        self._placed = self.end

    # -- the file ahead

    def ahead_start(self) -> int | None:
        """Return where the file to make ahead starts; None if it is too early or space is short."""
        last, size = self.segments.last, self._settings.segment_size
        early = min(size // 2, max(AHEAD_FROM, size - AHEAD_MARGIN))
        if last is None or self._ahead is not None or self.end - last.start <= early:
            return None
        return last.end if reserve.leaves_room(self._disk, size) else None

    def make_ahead(self, start: int, op: str) -> Segment:
        """Make the file that follows; runs in a worker thread and changes nothing here."""
        remove_ahead(self._disk, op + ".remove")
        made = create_segment(self._disk, start, self._settings.segment_size, op, ahead=True)
        made.mapping.expect_writes(self._settings.huge_pages)
        self._make_present(made.mapping, 0, self._paging.first)
        return made

    def full_work(self) -> Callable[[], None]:
        """Return the work on files that have become full, to run in a worker thread."""
        full, self._full = self._full, []

        def work() -> None:
            for mapping in full:
                mapping.expect_writes(huge=False)
                if self._settings.lock_memory:
                    mapping.unlock(0, mapping.size)

        return work

    def page_work(self) -> Callable[[], None] | None:
        """Return the page advice that is due, to run in a worker thread; None if none is.

        Old pages are released before new ones are populated. Work that is returned counts as done.
        Full files alone make it due only if they are locked: around a file change the appends have
        enough to do, and a thread would compete with them.
        """
        due = self._paging.due(self.end, self.flushed)
        if due is None and not (self._full and self._settings.lock_memory):
            return None
        settle = self.full_work()
        touch = self._place(due.touch) if due is not None else None
        release = self._place(due.release) if due is not None else None

        def work() -> None:
            settle()
            if release is not None:
                release[0].release(release[1], release[2])
            if touch is not None:
                self._make_present(*touch)

        return work

    def _place(self, part: Range | None) -> tuple[Mapping, int, int] | None:
        """Return the file of a range and the range within it; None if the log no longer has it."""
        if part is None or not self.start <= part[0] < part[1]:
            return None
        last = self.segments.last
        if last is None or part[1] > last.end:
            return None
        segment = self.segments.at(part[0])
        return segment.mapping, part[0] - segment.start, part[1] - segment.start

    def _make_present(self, mapping: Mapping, start: int, end: int) -> None:
        mapping.touch(start, end)
        if self._settings.lock_memory and not mapping.lock(start, end):
            self.unlocked += end - start

    def take_ahead(self, made: Segment, op: str) -> None:
        """Keep a file that `make_ahead` made; it is removed if the log no longer needs it.

        Raises:
            DiskFull: It could not be renamed and was removed, too.
        """
        last = self.segments.last
        if last is None or made.start != last.end or self._ahead is not None:
            made.mapping.close()
            remove_ahead(self._disk, op + ".remove")
            return
        try:
            adopt(self._disk, made, op)
        except DiskFull:
            made.mapping.close()
            remove_segment(self._disk, made.start, op + ".remove")
            remove_ahead(self._disk, op + ".remove")
            raise
        self._ahead = made

    def drop_ahead(self, op: str) -> None:
        """Remove the file ahead: before a cut, at a clean stop."""
        if self._ahead is not None:
            remove_segment(self._disk, self._ahead.start, op)
            self._ahead.mapping.close()
            self._ahead = None

    # -- flushing

    def flush_to(
        self,
        end: int,
        segments: Sequence[Segment],
        op: str,
        overtaken: Callable[[], bool] = lambda: False,
    ) -> None:
        """Make bytes and entries below ``end`` durable; runs in a worker thread.

        Old files first, then the directories of new files (R6). Once ``overtaken`` by a cut, files
        that are gone need no flush.
        """
        try:
            for segment in segments:
                if segment.end <= self.flushed:
                    continue  # flushed by another job; retention may have removed the file
                segment.flush(max(self.flushed, segment.start), min(end, segment.end), op)
        except DiskError as error:
            if error.errno in (errno.ENOENT, errno.EBADF) and overtaken():
                return
            raise
        if not all(segment.names_durable for segment in segments):
            flush_names(self._disk, op)

    def flushed_to(self, end: int, segments: Sequence[Segment]) -> None:
        """Record a completed `flush_to`."""
        for segment in segments:
            segment.names_durable = True
        # A cut may have lowered the end while the flush ran.
        self.flushed = max(self.flushed, min(end, self.end))
        self.segments.seal(self._disk, self.flushed)

    # -- the front

    def leave(self, to: int) -> list[Segment]:
        """Drop the files below ``to`` from the log, which starts there from now on.

        Their bytes stay in memory as long as a reader holds them. The caller removes the files and
        closes their mappings.
        """
        gone = [one for one in self.segments.all if one.end <= to]
        self.segments.all = self.segments.all[len(gone) :]
        for one in gone:
            one.mapping.retire()
        return gone

    # -- cutting, in memory

    def hold(self, end: int) -> None:
        """Load the batch index of the file that will be the last one after a cut to ``end``.

        Called in the cut's job, before files change. Raises as `SealedIndex.whole`.
        """
        kept = [one for one in self.segments.all if one.start < end]
        if kept:
            kept[-1].hold()

    def begin_at(self, offset: int) -> None:
        """Let the empty log begin and end at ``offset``, a file border."""
        assert not self.segments.all
        self.end = self.flushed = self._placed = offset
        self.timestamp = 0
        self._paging.cut(offset)
        self.segments.proven_from = offset

    def cut(self, end: int) -> None:
        """Forget everything from ``end`` on, after `hold`; the cut's job has changed the files."""
        self.buffer(False)
        for one in self.segments.all:
            if one.start >= end:
                one.mapping.close()
        self.segments.all = [one for one in self.segments.all if one.start < end]
        if self.segments.all:
            self.segments.all[-1].growing.forget(end)
        self.history.cut(end)
        self.segments.newest, self.segments.packed = (), b""
        self.end = end
        self._placed = end
        self._paging.cut(end)
        self.flushed = min(self.flushed, end)
        # Batches below were proven or written by this process; those after the cut will be written.
        self.segments.proven_from = min(self.segments.proven_from, end)
