"""Consume queues: queue offset to (log offset, size, tags code), in RocketMQ's files.

Path ``consumequeue/{topic}/{queue}/{20 digits}``; a file has a fixed length, and its name is the
byte position of its first byte in the queue (20 bytes per entry). Files are sparse, made at full
length and
written with ``pwrite``: a sparse mapping would turn a full disk into SIGBUS.

Rebuilt files are byte for byte what RocketMQ builds from the same log:

* entries in queue offset order, zeros after the last one;
* when a queue's first entry is not number 0, the first file starts at the entry's file border and
  is filled up to the entry with blanks (0, 0x7FFFFFFF, 0);
* a file is never left without an entry: RocketMQ reads an all-zero file as one entry.

Queue offsets count records. ``start`` is the first one that may be read, ``end`` the one after the
last. Entries that point below the start of the log are removed from the queue by `trim`; their
files are deleted once a snapshot has recorded the queue's new start, except the last one, from
which RocketMQ learns where the queue continues.

Not here: which records get an entry (`storage.state.dispatcher`), reading records
(`storage.read.reader`), all queues of a store (`storage.queues.queues`), queues of inner batches
(`storage.queues.batch_queue`).
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from itertools import pairwise

from storage.disk.disk import Disk
from storage.errors import DiskError
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.log_file import file_name

DIRECTORY = "consumequeue"
ENTRY_SIZE = 20
_BLANK_ENTRY = (0, 0x7FFFFFFF, 0)
_BLANK = QUEUE_ENTRY.pack(*_BLANK_ENTRY)
_FILL_MAX = 64 * 1024
_LOOK = 1024 * ENTRY_SIZE
_ZEROS = bytes(_LOOK)
LOOK_BACK = 8
"""Entries before a new start that are checked: a single damaged entry must not decide it."""
FLUSH_EACH_MAX = 256
"""Files that are flushed one by one; more are flushed with their file system."""


class Unflushed:
    """Names of queue files and directories that are not flushed yet.

    Filled by the store's owner; a job flushes what `take` returned.
    """

    def __init__(self) -> None:
        self.files: set[str] = set()
        self.directories: set[str] = set()

    def take(self) -> Unflushed:
        """Return all names and start an empty set."""
        taken = Unflushed()
        taken.files, self.files = self.files, set()
        taken.directories, self.directories = self.directories, set()
        return taken

    def give_back(self, taken: Unflushed) -> None:
        """Add names again that could not be flushed."""
        self.files |= taken.files
        self.directories |= taken.directories

    def flush(self, disk: Disk, op: str) -> None:
        """Make all of them durable; removed files are skipped.

        Many files are flushed with the whole file system: each fsync costs a journal commit, ten
        thousand of them most of a minute.
        """
        if len(self.files) + len(self.directories) > FLUSH_EACH_MAX and disk.sync_all(op + ".all"):
            return
        for path in sorted(self.files):
            if disk.exists(path):
                _fsync(disk, path, op)
        for path in sorted(self.directories):
            disk.fsync_dir(path, op + ".dir")


def _fsync(disk: Disk, path: str, op: str) -> None:
    try:
        disk.fsync(path, op)
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise  # else it was removed meanwhile


Check = Callable[["ConsumeQueue", int, int, int], object]
"""Compares an entry (queue, number, log offset, size) with the log; raises `CorruptionError`."""


class ConsumeQueue:
    """One queue of one topic.

    `storage.queues.batch_queue` is the other kind; it overrides the differences.

    Args:
        disk: The data directory.
        topic: Topic name.
        queue: Queue number.
        file_size: Bytes of a file, a multiple of 20.
        unflushed: Collects the names of files it wrote.
        start: First queue offset.
        end: Next queue offset.
        low: No entry is known to point below this log offset.

    Attributes:
        noted: The start that was last put into a snapshot.
        recorded: The start in the newest durable snapshot.
        removed: Byte of the queue below which its files are known to be deleted.
    """

    ROOT = DIRECTORY
    SIZE = ENTRY_SIZE

    def __init__(
        self,
        disk: Disk,
        topic: str,
        queue: int,
        file_size: int,
        unflushed: Unflushed,
        *,
        start: int = 0,
        end: int = 0,
        low: int = -1,
    ) -> None:
        self._disk = disk
        self._size = file_size
        self._unflushed = unflushed
        self.topic = topic
        self.queue = queue
        self.topic_directory = f"{self.ROOT}/{topic}"
        self.directory = f"{self.topic_directory}/{queue}"
        self._named = -1, ""
        """The file that was used last: its first byte in the queue, and its path."""
        self.light = topic.startswith(LIGHT_PREFIX)
        self.start = start
        self.end = end
        self.removed = 0
        self.noted = self.recorded = start
        self.low = low

    def _path(self, at: int) -> str:
        base = at - at % self._size
        known, path = self._named  # read once: threads look at queues, too
        if base != known:
            path = f"{self.directory}/{file_name(base)}"
            self._named = base, path
        return path

    def write(self, first: int, entries: bytes) -> None:
        """Write entries from queue offset ``first`` on; those below ``end`` are there already.

        Raises:
            CorruptionError: There is a gap between ``end`` and the entries.
            DiskError: Some may be written; the call can be repeated.
        """
        skip = self.end - first
        if self.start == self.end:
            self.low = QUEUE_ENTRY.unpack_from(entries)[0]
        if self._is_absent(first):
            self._begin(first)
        elif skip < 0:
            raise CorruptionError(
                f"queue {self.queue} of {self.topic} ends at {self.end}, the log goes on at {first}"
            )
        elif skip:
            entries = entries[skip * ENTRY_SIZE :]
        view, at = memoryview(entries), self.end * ENTRY_SIZE
        if len(view) <= self._size - at % self._size:  # into one file
            if view:
                self._put(at, view)
                self.end += len(view) // ENTRY_SIZE
            return
        while view:
            part = view[: self._size - at % self._size]
            self._put(at, part)
            at += len(part)
            self.end = at // ENTRY_SIZE
            view = view[len(part) :]

    def _put(self, at: int, part: memoryview) -> None:
        """Write bytes of one file; it is made if they are its first."""
        path = self._path(at)
        if at % self._size == 0:
            self._create(path)
        self._disk.write_at(path, at % self._size, part, "queue.write")
        self._unflushed.files.add(path)

    def _is_absent(self, first: int) -> bool:
        """Whether the queue has no file yet into which entry ``first`` could be written.

        True for a new queue, and for one whose files were rebuilt from a log that holds none of its
        records any more: it continues where the log says.
        """
        if self.start != self.end:
            return False
        return self.end == 0 or not self._disk.exists(self._path(max(self.end - 1, 0) * ENTRY_SIZE))

    def write_light(self, first: int, entries: bytes) -> None:
        """Write entries of a light queue; those up to the last entered record are there already.

        The log offset decides which entries are new, as in RocketMQ, whose records may name a queue
        offset other than their entry's (golden case 08b). ``first`` is used only if the queue is
        empty.
        """
        if self.start == self.end:
            absent = self._is_absent(first)  # built from a log whose beginning is deleted
            self.write(first if absent else max(first, self.end), entries)
            return
        last = self.entry(self.end - 1)[0]
        new = [entry for entry in QUEUE_ENTRY.iter_unpack(entries) if entry[0] > last]
        if new:
            self.write(self.end, b"".join([QUEUE_ENTRY.pack(*entry) for entry in new]))

    def _create(self, path: str) -> None:
        if not self._disk.exists(path):
            self._disk.make_dir(self.directory, "queue.make-dir")
            self._disk.create_sparse(path, self._size, "queue.create")
            names = (self.directory, self.topic_directory, self.ROOT)
            self._unflushed.directories.update(names)

    def _begin(self, first: int) -> None:
        """Fill the first file with blanks up to entry ``first``."""
        end = first * ENTRY_SIZE
        at = end - end % self._size
        path = self._path(at)
        self._create(path)
        while at < end:
            length = min(end - at, _FILL_MAX - _FILL_MAX % ENTRY_SIZE)
            blanks = _BLANK * (length // ENTRY_SIZE)
            self._disk.write_at(path, at % self._size, blanks, "queue.fill")
            at += length
        self._unflushed.files.add(path)
        self.start = self.end = first

    def trim(self, log_start: int, check: Check) -> None:
        """Set the start to the first entry that points to ``log_start`` or beyond it.

        Raises:
            CorruptionError: As `kept_from`; nothing has changed.
        """
        if self.low < log_start and self.start < self.end:
            self.start, self.low = self.kept_from(log_start, check)

    def kept_from(self, log_start: int, check: Check) -> tuple[int, int]:
        """Return the first queue offset whose record is kept, and the record's log offset.

        Changes nothing; entries below the start of the log never change, so a worker thread may
        call it while the queue grows. Without such an entry: the queue's end and ``log_start``.

        Args:
            log_start: Start of the log.
            check: Compares the entry that is found with its record.

        Raises:
            CorruptionError: An entry is damaged; the queue keeps its start, so it loses no records.
        """
        low, end = self.start, self.end
        if low == end:
            return end, log_start
        if self.entry(low)[0] < log_start:
            high = end if self.entry(end - 1)[0] >= log_start else low
            low = end if high == low else low
            while low < high:
                middle = (low + high) // 2
                if self.entry(middle)[0] < log_start:
                    low = middle + 1
                else:
                    high = middle
            self._look_back(low, log_start)
        if low == end:
            return end, log_start
        offset, size, _ = self.entry(low)
        check(self, low, offset, size)
        return low, offset

    def _look_back(self, number: int, log_start: int) -> None:
        """Check that the entries before ``number`` rise and point below ``log_start``."""
        first = max(self.start, number - LOOK_BACK)
        found = [entry[0] for entry in QUEUE_ENTRY.iter_unpack(self.read(first, number - first))]
        for at, (offset, after) in enumerate(pairwise([*found, log_start])):
            if offset > after:
                raise self._damaged(
                    first + at, f"entry {first + at} points beyond the one after it"
                )

    def move_start(self, start: int, low: int) -> None:
        """Apply the result of `kept_from`, unless the queue has changed meanwhile."""
        if self.start < start <= self.end:
            self.start, self.low = start, low

    def drop(self) -> None:
        """Forget all entries: the topic was deleted. If it is made again, it goes on at ``end``."""
        self.start = self.end

    def remove_files(self, most: int) -> int:
        """Remove up to ``most`` of its files, the newest first; return how many that were."""
        names = sorted(self._names(), reverse=True)[:most]
        for name in names:
            self._disk.remove(f"{self.directory}/{name}", "queue.drop.remove")
            self._unflushed.files.discard(f"{self.directory}/{name}")
        if names:
            self._unflushed.directories.add(self.directory)
        return len(names)

    def leads_below(self, log_start: int) -> bool:
        """Whether entries may point below ``log_start``."""
        return self.low < log_start and self.start < self.end

    def removable(self) -> int:
        """Return the byte below which files may be deleted: the newest snapshot records the start.

        0 if there is nothing new to delete. The last file always stays.
        """
        most = min(self.recorded, max(self.end - 1, 0)) * ENTRY_SIZE
        border = most - most % self._size
        return border if border > self.removed else 0

    def remove_below(self, border: int, op: str) -> bool:
        """Remove the files below byte ``border``; returns whether there were any."""
        names = [name for name in self._names() if int(name) < border]
        for name in names:
            path = f"{self.directory}/{name}"
            if self._disk.exists(path):  # a cut may rebuild all queues meanwhile
                self._disk.remove(path, op)
        return bool(names)

    def read(self, first: int, count: int) -> bytes:
        """Return up to ``count`` entries from queue offset ``first``, below `end`.

        Raises:
            CorruptionError: A file is missing or too short.
            DiskError: They cannot be read at present.
        """
        return self._bytes(first, min(first + count, self.end))

    def _bytes(self, first: int, end: int) -> bytes:
        """Return the entries from number ``first`` to ``end`` as stored."""
        parts: list[bytes] = []
        at, end = first * self.SIZE, end * self.SIZE
        while at < end:
            length = min(end - at, self._size - at % self._size)
            try:
                part = self._disk.read_at(self._path(at), at % self._size, length, "queue.read")
            except DiskError as error:
                if error.errno != errno.ENOENT:
                    raise
                part = b""
            if len(part) != length:
                raise self._damaged(
                    (at + len(part)) // ENTRY_SIZE, "its file is missing or too short"
                )
            parts.append(part)
            at += length
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def entry(self, number: int) -> tuple[int, int, int]:
        """Return (log offset, size, tags code) of one entry.

        Raises:
            CorruptionError: The entry is empty.
        """
        log_offset, size, code = QUEUE_ENTRY.unpack(self.read(number, 1))
        if size <= 0:
            raise self._damaged(number, "it is empty")
        return int(log_offset), int(size), int(code)

    def at_log(self, offset: int) -> int:
        """Return the queue offset of the first message at or after a log offset; `end` for none.

        Raises as `entry`.
        """
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            if self.entry(middle)[0] < offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _damaged(self, number: int, what: str) -> CorruptionError:
        at = number * self.SIZE
        text = f"entry {number} of queue {self.queue} of {self.topic}: {what}"
        return CorruptionError(text, file=self._path(at), offset=at, what="queue entry")

    def whole(self, end: int, log_start: int = 0) -> bool:
        """Whether the files seem to hold entries up to queue offset ``end``.

        The first entry and the last one of each file are checked: they must not be empty or blank
        (the topic was deleted and made again after the newest snapshot), must point to
        ``log_start`` or beyond, and rise. A queue whose first entry points to deleted records would
        silently lose its other records.
        """
        if end <= self.start:
            return True
        first, last = self.start * ENTRY_SIZE, (end - 1) * ENTRY_SIZE
        looked, lowest = first, log_start
        for base in range(first - first % self._size, last + 1, self._size):
            at = min(last, base + self._size - ENTRY_SIZE)
            places = (looked - base, at - base) if looked < at else (at - base,)
            found = self._disk.look(self._path(base), self._size, places, ENTRY_SIZE)
            if found is None:
                return False
            for raw in found:
                offset, size, _ = QUEUE_ENTRY.unpack(raw)
                if size in (0, _BLANK_ENTRY[1]) or offset < lowest:
                    return False
                lowest = offset
            looked = base + self._size
        return True

    def cut(self, end: int, *, thorough: bool = True) -> None:
        """Set the end back to queue offset ``end`` and remove every later entry from the files.

        Without ``thorough`` a file is checked up to its first stretch of zeros: enough if entries
        were written in order and no page cache was lost.
        """
        self.end = max(end, 0)
        self.start = min(self.start, self.end)
        self._cut(self.end * ENTRY_SIZE, thorough)

    def _names(self) -> list[str]:
        """Names of its files; other names in the directory are ignored."""
        return [name for name in self._disk.list(self.directory) if name.isdecimal()]

    def _cut(self, limit: int, thorough: bool) -> None:
        """Remove everything from byte ``limit`` of the queue on."""
        for name in self._names():
            path, base = f"{self.directory}/{name}", int(name)
            if base >= limit:
                self._disk.remove(path, "queue.cut.remove")
                self._unflushed.files.discard(path)
                self._unflushed.directories.add(self.directory)
            elif base + self._size > limit and self._zero(path, limit - base, thorough):
                self._unflushed.files.add(path)

    def _zero(self, path: str, start: int, thorough: bool) -> bool:
        """Zero a file from ``start`` on; returns whether it held anything but zeros."""
        found = False
        for at in range(start, self._size, _LOOK):
            part = self._disk.read_at(path, at, min(_LOOK, self._size - at), "queue.cut.look")
            if part != (_ZEROS if len(part) == _LOOK else bytes(len(part))):
                # Only the bytes that are not zero: their blocks are allocated, so the write
                # succeeds on a full disk. The zeros around them may be a hole.
                end, length = at + len(part.rstrip(b"\0")), len(part.strip(b"\0"))
                self._disk.write_at(path, end - length, bytes(length), "queue.cut.zero")
                found = True
            elif not thorough:
                break
        return found
