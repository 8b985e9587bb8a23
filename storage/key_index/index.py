"""The key index: which records may carry a key, in RocketMQ's files.

Built up to the confirm offset, in stretches of whole batches: one kernel call finds the keys of a
stretch (``topic#key`` for ``UNIQ_KEY`` and each word of ``KEYS``), another makes their cells, one
call writes them. A full file is followed by a new one, named by the wall clock (local time,
``yyyyMMddHHmmssSSS``), but always later than the file before: RocketMQ orders files by name.

``position`` is the log offset up to which every key is entered. In a quiet store it lags behind the
dispatcher by at most `LAZY_BYTES` (`catch_up` closes the gap for a reader); while an index is
rebuilt in the background it lags by more.

The durable state is an `IndexMark`: position and files as of a state snapshot, which is written
once all of them are flushed. A start opens the index at its mark and continues from there. A
missing or damaged file is set aside (``twinlog/damaged-index-{name}``), newer files are removed,
and the index is rebuilt from the first record that the lost file held. `notes` lists such findings.

Not here: one file (`storage.key_index.file`), searching (`storage.key_index.search`), when `step`
is called (`storage.store`).

Sources: RocketMQ 5.3 (``IndexService``).
"""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from storage.disk.disk import Disk
from storage.errors import DiskError
from storage.key_index.checksums import Seals, break_seal, break_seals, write_seals
from storage.key_index.file import CELLS_AT_ONCE, DIRECTORY, FileMark, KeyFile, read_cells
from storage.log.segments import Segments
from storage.log.stretches import stretch
from storage.queues.consume_queue import Unflushed
from storage.settings import StoreSettings
from twinlog.errors import CorruptionError
from twinlog.format.key_index import INDEX_CELL, INDEX_HEADER, INDEX_KEY, NO_KEYS, index_file_name
from twinlog.kernels import scan_keys

LAZY_BYTES = 64 * 1024
"""How much log may wait to be indexed, so that small appends share a kernel call."""
CATCH_UP_MAX = 4 * 1024 * 1024
"""Bytes of log that are indexed while a reader waits; if more is missing, it is refused."""
CLOSE_MAX = 256 * 1024 * 1024
"""Bytes of log that a clean stop still indexes; the next start continues with the rest."""
SET_ASIDE_KEPT = 2
"""Damaged files that are kept for inspection."""
NOTES_MAX = 16
_ASIDE = "damaged-index-"
_KEY = INDEX_KEY.size


@dataclass(frozen=True, slots=True)
class IndexMark:
    """How far an index is built.

    Attributes:
        position: Keys of all records below this log offset are entered.
        ahead: This many keys after the position are entered, too.
        files: The files, oldest first.
    """

    position: int = 0
    ahead: int = 0
    files: tuple[FileMark, ...] = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """One flush of the index; `KeyIndex.flush` makes it, a job runs it."""

    disk: Disk
    mark: IndexMark
    unflushed: Unflushed
    current: KeyFile | None
    pages: bytes
    full: tuple[FileMark, ...] = ()
    broken: set[str] = field(default_factory=set[str])
    """Full files that grow again or were removed since this was made: they get no checksums."""

    def run(self, op: str) -> None:
        """Make everything durable up to the mark; may run in a worker thread."""
        if self.current is not None and self.disk.exists(self.current.mark.path):
            self._write_pages(self.current, op)
        self.unflushed.flush(self.disk, op)
        kept = [file.name for file in self.mark.files]
        write_seals(self.disk, self.full, kept, op + ".seal", broken=self.broken)

    def _write_pages(self, current: KeyFile, op: str) -> None:
        try:
            current.write_pages(self.pages, op)
        except DiskError as error:
            if error.errno != errno.ENOENT or not current.closed:
                raise  # else the owner has removed the file: there is nothing to write


class KeyIndex:
    """All index files of a store; made by `load`.

    Args:
        disk: The data directory.
        settings: Slots and cells of new files.
    """

    def __init__(self, disk: Disk, settings: StoreSettings) -> None:
        self._disk = disk
        self._settings = settings
        self._full: list[FileMark] = []
        self._current: KeyFile | None = None
        self._ahead = 0
        self._unflushed = Unflushed()
        self._unsealed: list[FileMark] = []
        self.seals = Seals(disk)
        """Checksums that full files are compared with when they are searched."""
        self._flying: Flush | None = None
        self._held = False
        self.position = 0
        self.full_timestamp = 0
        """End timestamp of the newest full file that is on the disk; RocketMQ's checkpoint."""
        self.notes: deque[str] = deque(maxlen=NOTES_MAX)
        """Damage that was found, and what was done about it; consumed by the caller that reports
        it."""

    @property
    def files(self) -> tuple[FileMark, ...]:
        """The present files, oldest first."""
        return (*self._full, *((self._current.mark,) if self._current is not None else ()))

    @property
    def current(self) -> KeyFile | None:
        """The file that grows; None before the first key."""
        return self._current

    @property
    def unflushed(self) -> bool:
        """Whether anything is not flushed yet."""
        return bool(self._unflushed.files or self._unflushed.directories)

    def mark(self) -> IndexMark:
        """Return how far the index is built."""
        return IndexMark(self.position, self._ahead, self.files)

    # -- opening

    def load(
        self, mark: IndexMark | None, segments: Segments, *, tidy: bool, thorough: bool
    ) -> None:
        """Open the files as far as ``mark`` says; without a mark, build from the beginning.

        Args:
            mark: Of the newest snapshot; None if it has no index.
            segments: The log.
            tidy: The last stop was not clean, or another program changed the store, so header and
            slots may differ from the cells, and this is not reported.
            thorough: Unflushed pages may have been lost.

        Raises:
            DiskError: An operation met an error.
        """
        files = list(mark.files) if mark is not None else []
        self.position, self._ahead = (mark.position, mark.ahead) if mark is not None else (0, 0)
        self._remove_others({file.name for file in files})
        break_seals(self._disk, {file.name for file in files[:-1]})
        for number, file in enumerate(files):
            try:
                self._take_up(file, last=number == len(files) - 1, tidy=tidy, thorough=thorough)
            except CorruptionError as error:
                self._give_up(file, error.text, files[number:], segments)
                break
        full = self._full[-1].header.end_timestamp if self._full else 0
        self.full_timestamp = full

    def _take_up(self, file: FileMark, *, last: bool, tidy: bool, thorough: bool) -> None:
        disk = self._disk
        if not disk.exists(file.path):
            raise file.damaged("the file is missing")
        if disk.size(file.path) != file.size:
            raise file.damaged(f"it has {disk.size(file.path)} bytes, not {file.size}")
        header = disk.read_at(file.path, 0, INDEX_HEADER.size, "key-index.load")
        wrong = header != file.header.pack()
        if last:
            self._current, other = KeyFile.load(disk, file, thorough=thorough)
            if wrong or other:
                self._unflushed.files.add(file.path)
            if (wrong or other) and not tidy:
                self.notes.append(f"{file.path}: header or slots were rebuilt from the cells")
        else:
            if wrong:
                disk.write_at(file.path, 0, file.header.pack(), "key-index.rewrite")
                self._unflushed.files.add(file.path)
                self.notes.append(f"{file.path}: its header was rebuilt")
            self._full.append(file)

    def _remove_others(self, known: set[str]) -> None:
        for name in self._disk.list(DIRECTORY):
            if name.isdigit() and name not in known:
                self._disk.remove(f"{DIRECTORY}/{name}", "key-index.remove")
                self._unflushed.directories.add(DIRECTORY)

    def _give_up(self, bad: FileMark, why: str, lost: list[FileMark], segments: Segments) -> None:
        """Set a damaged file aside, remove newer ones, and go back to where it began."""
        disk = self._disk
        self._close()  # before the removal: a job may be writing its pages
        self._full = [file for file in self._full if file not in lost]
        first = bad.header.begin_offset if bad.header.next_cell > 1 else self.position
        start = segments.all[0].start if segments.all else 0
        self.position = segments.border_at_or_below(max(min(first, self.position), start))
        self._ahead = 0  # until it is counted: a disk error here must lose no key
        for file in reversed(lost):
            self._unseal(file.name)
            self._unflushed.files.discard(file.path)
            if file is not bad and disk.exists(file.path):
                disk.remove(file.path, "key-index.remove")
        if disk.exists(bad.path):
            disk.rename(bad.path, f"twinlog/{_ASIDE}{bad.name}", "key-index.aside")
            kept = [name for name in disk.list("twinlog") if name.startswith(_ASIDE)]
            for name in kept[:-SET_ASIDE_KEPT]:
                disk.remove(f"twinlog/{name}", "key-index.aside.remove")
            self._unflushed.directories.add("twinlog")
        self._unflushed.directories.add(DIRECTORY)
        self.notes.append(f"{why}; set aside, the index is rebuilt from {self.position} on")
        try:
            self._reopen()
            self._ahead = self._entered_after(self.position)
        except CorruptionError as error:
            self._give_up_one(error, segments)

    def _give_up_one(self, error: CorruptionError, segments: Segments) -> None:
        """Give up the file that an error names; raises the error if it names no index file."""
        path = str(error.facts.get("file", ""))
        name = next((file.name for file in self.files if file.path == path), None)
        if name is None:
            raise error
        self.give_up(name, error.text, segments)

    def _close(self) -> None:
        if self._current is not None:
            self._current.closed = True
        self._current = None

    def _reopen(self) -> None:
        """Make the last full file the growing one; after a cut it may have room."""
        if self._full:
            self._unseal(self._full[-1].name)
            self._current, _ = KeyFile.load(self._disk, self._full[-1], thorough=False)
            self._full.pop()

    def _unseal(self, name: str) -> None:
        """Forget the checksums of a file that is no longer full, or was replaced."""
        if self._flying is not None:
            self._flying.broken.add(name)  # a job may be about to write them
        break_seal(self._disk, name)
        self.seals.forget(name)
        self._unsealed = [file for file in self._unsealed if file.name != name]

    def _entered_after(self, border: int) -> int:
        """Return the number of cells of records at or after log offset ``border``."""
        count = 0
        for file in reversed(self.files):
            end = file.header.next_cell
            while end > 1:
                start = max(1, end - CELLS_AT_ONCE)
                cells = INDEX_CELL.iter_unpack(read_cells(self._disk, file, start, end))
                found = sum(1 for cell in cells if cell[1] >= border)
                count += found
                if found < end - start:
                    return count
                end = start
        return count

    def give_up(self, name: str, why: str, segments: Segments) -> None:
        """Set the file ``name`` aside, which a reader found damaged, and rebuild from there."""
        files = self.files
        number = next((at for at, file in enumerate(files) if file.name == name), None)
        if number is None:
            return
        self._full = list(files[:number])
        self._give_up(files[number], why, list(files[number:]), segments)

    # -- growing

    def step(self, segments: Segments, limit: int, max_bytes: int, wall_ms: int) -> bool:
        """Enter the keys of about ``max_bytes``, at least one batch; returns whether more is left.

        Args:
            segments: The log.
            limit: Confirm offset.
            max_bytes: How much log to scan.
            wall_ms: Names a new file; with 0 the store time of its first record does.

        Raises:
            DiskError: Everything below `position` is still entered; call again later.
            CorruptionError: The log is inconsistent.
        """
        if not segments.all:  # a cut has ended the log where retention had let it begin
            self.position, self._ahead = max(self.position, limit), 0
            return False
        if self.position < segments.all[0].start:
            self.position, self._ahead = segments.all[0].start, 0
        if self.position >= limit:
            return False
        data_end, end = stretch(segments, self.position, limit, max_bytes)
        if data_end > self.position:
            segments.prove(self.position, data_end)
            view = segments.view(self.position, data_end)
            self._enter(scan_keys(view, 0, len(view), self.position), wall_ms)
        self.position, self._ahead = end, 0
        return end < limit

    def follow(self, segments: Segments, limit: int, max_bytes: int, wall_ms: int) -> bool:
        """As `step`, for an index that no reader waits for; False if it cannot be written now.

        Then it stays behind, and later calls try again: writes do not depend on it. The first
        failure in a row is noted, and that it works again.

        Raises:
            CorruptionError: The log is inconsistent.
        """
        try:
            self.step(segments, limit, max_bytes, wall_ms)
        except DiskError as error:
            if not self._held:
                self.notes.append(f"{error.text}; the index stays behind until it can be written")
            self._held = True
            return False
        if self._held:
            self.notes.append("the index can be written again, and catches up")
        self._held = False
        return True

    def catch_up(self, segments: Segments, limit: int, wall_ms: int) -> bool:
        """Enter all keys up to ``limit``; False if that is more log than `CATCH_UP_MAX`."""
        if limit - self.position > CATCH_UP_MAX:
            return False
        while self.step(segments, limit, CATCH_UP_MAX, wall_ms):
            pass
        return True

    def enter(self, keys: bytes, wall_ms: int) -> None:
        """Enter keys (`scan_keys`) beyond all that is entered, of a log without a batch index.

        Raises:
            DiskError: Some keys may be entered; rebuild the index from its beginning.
        """
        self._ahead = 0
        self._enter(keys, wall_ms)

    def _enter(self, keys: bytes, wall_ms: int) -> None:
        at = self._ahead * _KEY
        while at < len(keys):
            if self._current is None or self._current.mark.full:
                stamp = wall_ms or int.from_bytes(keys[at + 12 : at + 20], "big", signed=True)
                self._roll(stamp)
            assert self._current is not None
            at += self._current.enter(keys, at)
            self._ahead = at // _KEY
            self._unflushed.files.add(self._current.mark.path)

    def _roll(self, stamp: int) -> None:
        """Begin a new file, after writing what the file before held only in memory."""
        before = self._current
        name, first = index_file_name(stamp), NO_KEYS
        if before is not None:
            # The clock may go back or not have moved; the order of files is the order of names.
            name = max(name, f"{int(before.mark.name) + 1:017d}")
            first = before.mark.header.following()
            before.write_header("key-index.roll")
            self._unflushed.files.add(before.mark.path)
            pages = before.take_dirty()
            if self._flying is not None and self._flying.current is before:
                # searches now read them from the file, maybe before the job has written them
                pages = bytes(a | b for a, b in zip(pages, self._flying.pages, strict=True))
            try:
                before.write_pages(pages, "key-index.roll")
            except DiskError:
                before.give_back(pages)
                raise
        settings = self._settings
        mark = FileMark(name, settings.index_slots, settings.index_cells, first)
        self._disk.make_dir(DIRECTORY, "key-index.make-dir")  # may have been removed by hand
        made = KeyFile.create(self._disk, mark)
        self._unflushed.directories.add(DIRECTORY)
        if before is not None:
            self._full.append(before.mark)
            self._unsealed.append(before.mark)
        self._close()
        self._current = made

    def leave(self, log_start: int) -> list[FileMark]:
        """Forget full files whose records are all below the start of the log; returns them.

        The caller removes the files after a snapshot without them is durable: the mark of an older
        snapshot names them.
        """
        gone = [file for file in self._full if file.header.end_offset < log_start]
        self._full = self._full[len(gone) :]
        return gone

    # -- going back

    def cut(self, end: int, segments: Segments, stamp_at: Callable[[int], int]) -> None:
        """Remove every entry of a record at or after ``end``, the log's new end.

        A damaged file is set aside, as at a start, and the cut continues with the older ones.

        Args:
            end: A batch border.
            segments: The log, which ends there.
            stamp_at: Store timestamp of the record at a log offset below it.
        """
        # Nothing at or after `end` is entered.
        if self.position < end and not self._ahead:
            return
        while True:
            try:
                self._cut_files(end, stamp_at)
                self.position = min(self.position, end)
                self._ahead = self._entered_after(self.position)
            except CorruptionError as error:
                self._give_up_one(error, segments)
            else:
                return

    def _cut_files(self, end: int, stamp_at: Callable[[int], int]) -> None:
        while self._current is not None and not self._current.cut(end, stamp_at):
            path = self._current.mark.path
            self._current.closed = True  # before the removal: a job may be writing its pages
            self._disk.remove(path, "key-index.cut.remove")
            self._unflushed.files.discard(path)
            self._unflushed.directories.add(DIRECTORY)
            self._close()
            self._reopen()
        if self._current is not None:
            self._unflushed.files.add(self._current.mark.path)

    # -- the disk

    def flush(self) -> Flush:
        """Return the writes that make the present mark durable.

        The header is written here and not by the job: the file may be full before the job runs.

        Raises:
            DiskError: Nothing has changed.
        """
        pages = b""
        if self._current is not None:
            self._current.write_header("key-index.flush")
            pages = self._current.take_dirty()
        full, self._unsealed = tuple(self._unsealed), []
        unflushed = self._unflushed.take()
        self._flying = Flush(self._disk, self.mark(), unflushed, self._current, pages, full)
        return self._flying

    def flushed(self, flush: Flush, *, done: bool) -> None:
        """Finish a flush, successful or not."""
        self._flying = None
        for file in flush.full:
            if file.name in flush.broken:  # it may have grown while its checksums were computed
                break_seal(self._disk, file.name)
                self.seals.forget(file.name)
        if done:
            for file in flush.full:
                self.seals.forget(file.name)
            newest = flush.mark.files[-2].header.end_timestamp if len(flush.mark.files) > 1 else 0
            self.full_timestamp = max(self.full_timestamp, newest)
            return
        self._unflushed.give_back(flush.unflushed)
        here = {file.name for file in self._full} - flush.broken
        again = [file for file in flush.full if file.name in here]
        self._unsealed = [*again, *self._unsealed]
        if flush.current is not None and not flush.current.closed:
            flush.current.give_back(flush.pages)
