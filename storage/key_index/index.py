"""The key index: which records may carry a key, in RocketMQ's files.

Built behind the confirm offset, in stretches of whole batches: one kernel call finds the keys of a
stretch (``topic#key`` for ``UNIQ_KEY`` and each word of ``KEYS``), another makes their cells, one
call writes them. A file that is full is followed by a new one, named by the wall clock (local time,
``yyyyMMddHHmmssSSS``) and always by a later name than the one before: RocketMQ's order is by name.

``position`` is the log offset up to which every key is entered. It lags behind the dispatcher by at
most `LAZY_BYTES` of a quiet store (`catch_up` closes the gap for a reader), and by more while an
index is rebuilt, which runs beside everything else.

What is sure is an `IndexMark`: position and files as of a state snapshot, which is written once all
of it is on the disk. A start takes the index up at its mark and goes on from there. A file that is
missing or damaged is set aside (``twinlog/damaged-index-{name}``), newer ones go, and the index is
built again from the first record that the lost file held. `notes` tells what was found.

Not here: one file (`storage.key_index.file`), searching (`storage.key_index.search`), when to go on
(`storage.store`).

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
"""How much log may wait for a reader or for more: small appends share a call into the kernels."""
CATCH_UP_MAX = 4 * 1024 * 1024
"""Bytes of log that a reader may have entered while it waits; further behind is a refusal."""
CLOSE_MAX = 256 * 1024 * 1024
"""Bytes of log that a clean stop still enters; the next start goes on with the rest."""
SET_ASIDE_KEPT = 2
"""Damaged files that are kept for people to look at."""
NOTES_MAX = 16
_ASIDE = "damaged-index-"
_KEY = INDEX_KEY.size


@dataclass(frozen=True, slots=True)
class IndexMark:
    """How far an index is built.

    Attributes:
        position: Keys of all records below this log offset are entered.
        ahead: So many keys behind it are, too.
        files: The files, oldest first.
    """

    position: int = 0
    ahead: int = 0
    files: tuple[FileMark, ...] = ()


@dataclass(frozen=True, slots=True)
class Flush:
    """What a flush of the index has to write; `KeyIndex.flush` makes it, a job runs it."""

    disk: Disk
    mark: IndexMark
    unflushed: Unflushed
    current: KeyFile | None
    pages: bytes
    full: tuple[FileMark, ...] = ()
    broken: set[str] = field(default_factory=set[str])
    """Names of full files that grow again, or are gone, since this was made: no seal fits them."""

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
                raise  # else its owner has removed it under the job: nothing is missing


class KeyIndex:
    """All index files of a store; made by `load`.

    Args:
        disk: Where they lie.
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
        """What full files are compared with when they are searched."""
        self._flying: Flush | None = None
        self.position = 0
        self.full_timestamp = 0
        """End timestamp of the newest full file that is on the disk; RocketMQ's checkpoint."""
        self.notes: deque[str] = deque(maxlen=NOTES_MAX)
        """What was found damaged and what was done about it; whoever tells it takes it out."""

    @property
    def files(self) -> tuple[FileMark, ...]:
        """The files as they stand, oldest first."""
        return (*self._full, *((self._current.mark,) if self._current is not None else ()))

    @property
    def current(self) -> KeyFile | None:
        """The file that grows; None before the first key."""
        return self._current

    @property
    def unflushed(self) -> bool:
        """Whether there is something that is not on the disk."""
        return bool(self._unflushed.files or self._unflushed.directories)

    def mark(self) -> IndexMark:
        """Return how far the index is built."""
        return IndexMark(self.position, self._ahead, self.files)

    # -- taking up

    def load(
        self, mark: IndexMark | None, segments: Segments, *, tidy: bool, thorough: bool
    ) -> None:
        """Take up what lies there as far as ``mark`` says; without one, begin again.

        Args:
            mark: Of the newest snapshot; None when it knows of no index.
            segments: The log.
            tidy: The last stop was not clean, or others were there.
            thorough: Pages may have been lost that were not flushed.

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
            raise file.damaged(f"it has {disk.size(file.path)} bytes instead of {file.size}")
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
                disk.write_at(file.path, 0, file.header.pack(), "key-index.mend")
                self._unflushed.files.add(file.path)
                self.notes.append(f"{file.path}: its header was rebuilt")
            self._full.append(file)

    def _remove_others(self, known: set[str]) -> None:
        for name in self._disk.list(DIRECTORY):
            if name.isdigit() and name not in known:
                self._disk.remove(f"{DIRECTORY}/{name}", "key-index.remove")
                self._unflushed.directories.add(DIRECTORY)

    def _give_up(self, bad: FileMark, why: str, lost: list[FileMark], segments: Segments) -> None:
        """Set a damaged file aside, drop those after it, and go back to where it began."""
        disk = self._disk
        self._close()  # before its file goes: a job may be writing its pages
        self._full = [file for file in self._full if file not in lost]
        first = bad.header.begin_offset if bad.header.next_cell > 1 else self.position
        start = segments.all[0].start if segments.all else 0
        self.position = segments.border_at_or_below(max(min(first, self.position), start))
        self._ahead = 0  # until it is counted: an error of the disk here must cost no key
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
        self.notes.append(f"{why}; set aside, the index is built again from {self.position} on")
        try:
            self._reopen()
            self._ahead = self._entered_behind(self.position)
        except CorruptionError as error:
            self._give_up_one(error, segments)

    def _give_up_one(self, error: CorruptionError, segments: Segments) -> None:
        """Give up the file that an error names; raise it when it is none of ours."""
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
        """Make the last full file the one that grows; it may have room after a cut."""
        if self._full:
            self._unseal(self._full[-1].name)
            self._current, _ = KeyFile.load(self._disk, self._full[-1], thorough=False)
            self._full.pop()

    def _unseal(self, name: str) -> None:
        """Forget the check sums of a file that is no full one any more, or another one."""
        if self._flying is not None:
            self._flying.broken.add(name)  # a job may be about to write them
        break_seal(self._disk, name)
        self.seals.forget(name)
        self._unsealed = [file for file in self._unsealed if file.name != name]

    def _entered_behind(self, border: int) -> int:
        """Return how many cells there are of records at or after a log offset."""
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
        """A reader found the file ``name`` damaged: set it aside and build again from there."""
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
            max_bytes: How much to look at.
            wall_ms: Names a new file; at 0 the store time of its first record does.

        Raises:
            DiskError: Nothing below `position` is in doubt; call again later.
            CorruptionError: The log does not hold together.
        """
        if segments.all and self.position < segments.all[0].start:
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

    def catch_up(self, segments: Segments, limit: int, wall_ms: int) -> bool:
        """Enter what waits up to ``limit``; False when that is more than `CATCH_UP_MAX`."""
        if limit - self.position > CATCH_UP_MAX:
            return False
        while self.step(segments, limit, CATCH_UP_MAX, wall_ms):
            pass
        return True

    def enter(self, keys: bytes, wall_ms: int) -> None:
        """Enter keys (`scan_keys`) beyond all that is entered, of a log without a batch index.

        Raises:
            DiskError: Some may be entered; the index is to be built from its beginning.
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
        """Begin a new file; what was only in memory of the one before is written."""
        before = self._current
        name, first = index_file_name(stamp), NO_KEYS
        if before is not None:
            name = max(name, f"{int(before.mark.name) + 1:017d}")
            first = before.mark.header.following()
            before.write_header("key-index.roll")
            self._unflushed.files.add(before.mark.path)
            pages = before.take_dirty()
            if self._flying is not None and self._flying.current is before:
                # a search reads them from the file from now on, before the job has run
                pages = bytes(a | b for a, b in zip(pages, self._flying.pages, strict=True))
            try:
                before.write_pages(pages, "key-index.roll")
            except DiskError:
                before.give_back(pages)
                raise
        settings = self._settings
        mark = FileMark(name, settings.index_slots, settings.index_cells, first)
        self._disk.make_dir(DIRECTORY, "key-index.make-dir")  # somebody may have removed it
        made = KeyFile.create(self._disk, mark)
        self._unflushed.directories.add(DIRECTORY)
        if before is not None:
            self._full.append(before.mark)
            self._unsealed.append(before.mark)
        self._close()
        self._current = made

    def leave(self, log_start: int) -> list[FileMark]:
        """Forget full files whose records all lie before the start of the log; returns them.

        The files stay until a snapshot without them is durable: its mark would miss them.
        """
        gone = [file for file in self._full if file.header.end_offset < log_start]
        self._full = self._full[len(gone) :]
        return gone

    # -- going back

    def cut(self, end: int, segments: Segments, stamp_at: Callable[[int], int]) -> None:
        """Remove every entry of a record at or after ``end``, the log's new end.

        A file that is damaged is set aside, as at a start, and the cut goes on before it.

        Args:
            end: A batch border.
            segments: The log, which ends there.
            stamp_at: Store timestamp of the record at a log offset below it.
        """
        if self.position < end and not self._ahead:
            return
        while True:
            try:
                self._cut_files(end, stamp_at)
                self.position = min(self.position, end)
                self._ahead = self._entered_behind(self.position)
            except CorruptionError as error:
                self._give_up_one(error, segments)
            else:
                return

    def _cut_files(self, end: int, stamp_at: Callable[[int], int]) -> None:
        while self._current is not None and not self._current.cut(end, stamp_at):
            path = self._current.mark.path
            self._current.closed = True  # before its file goes: a job may be writing its pages
            self._disk.remove(path, "key-index.cut.remove")
            self._unflushed.files.discard(path)
            self._unflushed.directories.add(DIRECTORY)
            self._close()
            self._reopen()
        if self._current is not None:
            self._unflushed.files.add(self._current.mark.path)

    # -- the disk

    def flush(self) -> Flush:
        """Return what has to be written so that the present mark is durable.

        The header is written here and not by the job: a file may be full before the job runs.

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
        """Take a flush back, done or not."""
        self._flying = None
        for file in flush.full:
            if file.name in flush.broken:  # it may have grown while its check sums were taken
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
