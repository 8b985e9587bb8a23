"""A segment: one log file, mapped, with its batch index.

Path ``commitlog/{20 digits}``, always of full length and allocated; the name is the log offset of
its first byte. Beyond the log's end it holds zeros.

Not here: the order of segments (`storage.log.segments`), what is appended
(`storage.log.commit_log`).
"""

from __future__ import annotations

from storage.disk.disk import Disk, Mapping
from storage.log.batch_index import DIRECTORY as INDEX_DIRECTORY
from storage.log.batch_index import BatchIndex, growth_for, index_path
from storage.log.block_cache import Blocks
from storage.log.sealed_index import SealedIndex
from twinlog.format.log_file import file_name

DIRECTORY = "commitlog"
AHEAD_LOG = "twinlog/ahead.log"
AHEAD_INDEX = "twinlog/ahead.index"
"""Temporary names of the file made ahead: a worker thread and the log's owner never use the same
name."""


def log_path(start: int) -> str:
    """Return the path of the log file that starts at ``start``."""
    return f"{DIRECTORY}/{file_name(start)}"


class Segment:
    """One log file and its index.

    Attributes:
        start: Log offset of the first byte.
        size: Bytes of the file.
        end: Log offset after its last byte.
        mapping: Its bytes.
        index: Its batches; of an older file read in parts. The object is replaced, never changed
        from one kind to the other, so a thread can continue with the one it has.
        names_durable: Whether the directories of its two files were flushed since it was made.
    """

    def __init__(
        self, start: int, mapping: Mapping, index: BatchIndex | SealedIndex, *, durable: bool
    ) -> None:
        self.start = start
        self.size = mapping.size
        self.end = start + mapping.size
        self.mapping = mapping
        self.index: BatchIndex | SealedIndex = index
        self.names_durable = durable

    @property
    def path(self) -> str:
        """Path of the log file."""
        return log_path(self.start)

    @property
    def growing(self) -> BatchIndex:
        """The index of a file that is written, or was cut: it is wholly in memory."""
        assert isinstance(self.index, BatchIndex)
        return self.index

    def seal(self, disk: Disk, blocks: Blocks) -> bool:
        """Drop the entries of a full, flushed file from memory; False if that was done before.

        Raises:
            CorruptionError: The last entry was damaged in memory.
        """
        index = self.index
        if isinstance(index, SealedIndex):
            return False
        if index.end == self.end:
            newest = index.entry(index.count - 1)
            self.index = SealedIndex(disk, self.start, index.count, newest, blocks)
        return True

    def hold(self) -> None:
        """Load all entries, for a cut; raises as `SealedIndex.whole`."""
        if isinstance(self.index, SealedIndex):
            self.index = self.index.whole(growth_for(self.size))

    def view(self, start: int, end: int) -> memoryview:
        """Return the bytes between two log offsets.

        Raises:
            IndexError: The file was removed from the log while a thread used it; not damage.
        """
        buffer = self.mapping.buffer  # read once: the owner may retire the mapping at any time
        if not buffer.nbytes:
            raise IndexError(f"{self.path} was removed from the log")
        return buffer[start - self.start : end - self.start]

    def flush(self, start: int, end: int, op: str) -> None:
        """Return when the bytes between two log offsets and all entries are on the disk.

        Log and index are flushed at the same time, in two threads.
        """
        start, end = start - self.start, end - self.start
        self.index.flush_with(lambda: self.mapping.flush_range(start, end, op + ".log"), op)


def create_segment(disk: Disk, start: int, size: int, op: str, *, ahead: bool = False) -> Segment:
    """Make a segment of zeros; its names are not durable yet.

    With ``ahead`` it has temporary names; `adopt` gives it its own.

    Raises:
        DiskFull: No file remains that a later attempt would fail on.
    """
    path = AHEAD_LOG if ahead else log_path(start)
    mapping = disk.map(path, size, op=op + ".create", create=True)
    name = AHEAD_INDEX if ahead else ""
    index = BatchIndex(disk, start, growth=growth_for(size), path=name)
    try:
        index.create(op + ".index")
    except BaseException:
        mapping.close()
        raise
    return Segment(start, mapping, index, durable=False)


def adopt(disk: Disk, made: Segment, op: str) -> None:
    """Give a segment that was made ahead its own names; not durable yet."""
    # The index first: a log file without an index holds no batch, an index without its log file
    # would be damage.
    disk.rename(AHEAD_INDEX, index_path(made.start), op + ".index")
    made.index.path = index_path(made.start)
    disk.rename(AHEAD_LOG, log_path(made.start), op + ".log")


def remove_ahead(disk: Disk, op: str) -> None:
    """Remove a file that was made ahead and not adopted."""
    for path in (AHEAD_INDEX, AHEAD_LOG):
        if disk.exists(path):
            disk.remove(path, op)


def remove_segment(disk: Disk, start: int, op: str) -> None:
    """Remove both files of a segment, if they exist; the index first.

    A log file without an index holds no batch; an index without its log file would be damage.
    """
    for path in (index_path(start), log_path(start)):
        if disk.exists(path):
            disk.remove(path, op)


def flush_names(disk: Disk, op: str) -> None:
    """Make creations and removals of log and index files durable."""
    disk.fsync_dir(DIRECTORY, op + ".log-dir")
    disk.fsync_dir(INDEX_DIRECTORY, op + ".index-dir")
