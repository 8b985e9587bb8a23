"""The batch index of one log file: one 48-byte entry for each batch, in order.

Path ``twinlog/batches/{20 digits}``, the layout is `twinlog.format.batch_index.BatchEntry`. A batch
exists when its entry exists; the entry is written after the batch's bytes are in the log file.

Invariants: entry 0 starts at the file's start, entry n + 1 starts where n ends, beyond the last
entry there are only zeros. The file grows in steps (48 KiB for large log files), so that most
appends allocate nothing and a flush rarely has to make a new length durable.

The entries of the newest files are held in memory as they are on the disk, 48 bytes each, without
an object per batch. Lookups use binary search, with the last answer as the first guess.

Not here: which entries are believed after a crash (`storage.recovery.log_end`), CRCs of log bytes,
the indexes of older files (`storage.log.sealed_index`).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from storage.disk.disk import Disk
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import BatchEntry
from twinlog.format.log_file import file_name
from twinlog.kernels import crc32c

DIRECTORY = "twinlog/batches"
ENTRY_SIZE = 48
GROWTH_MAX = 1024 * ENTRY_SIZE
GROWTH_MIN = 64 * ENTRY_SIZE
_START = struct.Struct(">QI")
_CHAIN = 24
"""Start, length, count, epoch and CRC: the part of an entry that is equal on all nodes (R9)."""
_FEW = 16 * ENTRY_SIZE
_MANY = 1024 * ENTRY_SIZE
"""Entries added to a chain at once: they and their shared parts fit into the CPU cache."""
CATCH_UP = _MANY
"""Bytes of older entries that each append adds to a chain that lags."""


def growth_for(segment_size: int) -> int:
    """Return by how much the index of a log file of ``segment_size`` bytes grows."""
    wanted = segment_size // 32
    return min(max(wanted - wanted % ENTRY_SIZE, GROWTH_MIN), GROWTH_MAX)


def index_path(start: int) -> str:
    """Return the path of the index of the log file that starts at ``start``."""
    return f"{DIRECTORY}/{file_name(start)}"


def damaged_entry(path: str, number: int) -> CorruptionError:
    """Return the error for an entry that does not match its own CRC, or the entries around it."""
    return CorruptionError(
        f"entry {number} of {path} is damaged",
        file=path,
        offset=number * ENTRY_SIZE,
        length=ENTRY_SIZE,
        what="batch index entry",
    )


def shared_crc(raw: bytes | bytearray, first: int, last: int, crc: int) -> int:
    """Return crc32c, on from ``crc``, over what nodes share of the entries in ``first..last``.

    ``first`` and ``last`` are byte positions in ``raw``.
    """
    if last - first <= _FEW:
        parts = [raw[at : at + _CHAIN] for at in range(first, last, ENTRY_SIZE)]
        return crc32c(b"".join(parts), crc)
    for at in range(first, last, _MANY):
        rows = raw[at : min(at + _MANY, last)]
        shared = bytearray(len(rows) // ENTRY_SIZE * _CHAIN)
        for place in range(_CHAIN):  # column by column: far fewer slices than entries
            shared[place::_CHAIN] = rows[place::ENTRY_SIZE]
        crc = crc32c(shared, crc)
    return crc


class BatchIndex:
    """Entries of one log file.

    Args:
        disk: The data directory.
        start: Log offset of the log file's first byte.
        entries: Entries that are known to be there, packed.
        growth: Bytes by which the file is extended.
        size: Length of the file on the disk, bytes.
        path: Its path, while it has a temporary one.
    """

    def __init__(
        self,
        disk: Disk,
        start: int,
        entries: bytes = b"",
        *,
        growth: int,
        size: int = 0,
        path: str = "",
    ) -> None:
        self._disk = disk
        self._raw = bytearray(entries)
        self._size = size
        self._growth = growth
        self._guess = 0
        self._chained = self._chain_crc = 0
        self._stale = 0
        self.start = start
        self.path = path or index_path(start)

    @property
    def count(self) -> int:
        """Batches in the file."""
        return len(self._raw) // ENTRY_SIZE

    @property
    def end(self) -> int:
        """Log offset after the last batch."""
        if not self._raw:
            return self.start
        start, length = _START.unpack_from(self._raw, len(self._raw) - ENTRY_SIZE)
        return int(start + length)

    def create(self, op: str) -> None:
        """Create the file, all zeros; replaces an existing one."""
        if self._disk.exists(self.path):
            self._disk.remove(self.path, op + ".remove")
        self._disk.create_sparse(self.path, self._growth, op)
        self._disk.write_at(self.path, 0, bytes(self._growth), op + ".allocate")
        self._size = self._growth

    def append(self, packed: bytes, op: str) -> None:
        """Write entries at the end; they exist when this returns.

        Raises:
            DiskError: None of them exists. Bytes that were written of them are after the last
                entry; the next append, which may be shorter, overwrites all of them.
        """
        at = len(self._raw)
        if at + len(packed) > self._size:
            more = len(packed) + -len(packed) % self._growth
            self._disk.write_at(self.path, self._size, bytes(more), op + ".grow")
            self._size += more
        # R8: leftovers of a longer failed append must not survive after this entry; recovery would
        # read them as entries.
        stale = max(self._stale - at - len(packed), 0)
        self._stale = at + len(packed) + stale
        self._disk.write_at(self.path, at, packed + bytes(stale) if stale else packed, op)
        self._stale = 0
        self._raw += packed
        if self._chained == at:
            self._chain_on(len(self._raw))
        else:  # after a cut: catch up a little with each append
            self._chain_on(min(self._chained + CATCH_UP, len(self._raw)))

    def take_back(self, op: str) -> None:
        """Zero the bytes that a failed `append` may have written."""
        self._zero_from(len(self._raw), op)

    def _zero_from(self, at: int, op: str) -> None:
        size = self._disk.size(self.path)
        if at >= size:
            return
        if any(self._disk.read_at(self.path, at, size - at, op + ".look")):
            self._disk.write_at(self.path, at, bytes(size - at), op)

    def forget(self, end: int) -> None:
        """Forget the entries from log offset ``end`` on; a cut has zeroed them on disk."""
        del self._raw[self.find(end) * ENTRY_SIZE :]
        self._guess = self._chained = self._chain_crc = 0

    def flush_with(self, other: Callable[[], None], op: str) -> None:
        """Return when all entries are on the disk and ``other``, done meanwhile, has ended too."""
        self._disk.together(other, lambda: self._disk.fsync(self.path, op + ".index"))

    def entry(self, number: int) -> BatchEntry:
        """Return entry ``number``.

        Raises:
            CorruptionError: It does not match its own CRC.
        """
        found = BatchEntry.unpack(self.packed(number, number + 1))
        if found is None:
            raise damaged_entry(self.path, number)
        return found

    def span(self, number: int) -> tuple[int, int]:
        """Return (start, end) of batch ``number`` without looking at the entry's CRC."""
        start, length = _START.unpack_from(self._raw, number * ENTRY_SIZE)
        return start, start + length

    def packed(self, first: int, last: int) -> bytes:
        """Return entries ``first..last`` (exclusive) as they are stored."""
        return bytes(self._raw[first * ENTRY_SIZE : last * ENTRY_SIZE])

    def find(self, offset: int) -> int:
        """Return the number of the batch that holds ``offset``; `count` when none does."""
        count = self.count
        guess = self._guess
        for at in (count - 1, guess, guess + 1):  # the newest, the last answer, or the next
            if 0 <= at < count:
                start, end = self.span(at)
                if start <= offset < end:
                    self._guess = at
                    return at
        if offset >= self.end:
            return count
        low, high = 0, count
        while high - low > 1:
            middle = (low + high) // 2
            if self.span(middle)[0] <= offset:
                low = middle
            else:
                high = middle
        self._guess = low
        return low

    def iterate(self, start: int, end: int) -> Iterator[BatchEntry]:
        """Yield the entries of the batches that begin in ``start..end``."""
        for number in range(self.find(start), self.count):
            found = self.entry(number)
            if found.start >= end:
                return
            yield found

    def chain(self, start: int, end: int, crc: int = 0) -> int:
        """Return crc32c, on from ``crc``, over what nodes share of the entries in a range."""
        last = self.find(end) * ENTRY_SIZE
        first = self.find(start) * ENTRY_SIZE
        if first == 0 and crc == 0 and self._chained <= last:
            self._chain_on(last)
            return self._chain_crc
        return shared_crc(self._raw, first, last, crc)

    def chain_whole(self) -> int:
        """Return `chain` over all entries; from then on appends keep it."""
        if self._chained != len(self._raw):
            self._chain_on(len(self._raw))
        return self._chain_crc

    def _chain_on(self, last: int) -> None:
        """Extend the chain from the file's start to the entries up to byte ``last``.

        A file change needs the chain over the whole file: it is computed a little with each append,
        not all at once.
        """
        raw = self._raw
        if last - self._chained == ENTRY_SIZE:
            shared = raw[self._chained : self._chained + _CHAIN]
            self._chain_crc, self._chained = crc32c(shared, self._chain_crc), last
            return
        self._chain_crc = shared_crc(raw, self._chained, last, self._chain_crc)
        self._chained = last
