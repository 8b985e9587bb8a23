"""The batch index of a full log file, read in blocks on demand.

The newest files, which the writer, flushes and most reads need, keep their entries in memory
(`storage.log.batch_index`). For older files that memory would grow with the log, 48 bytes per batch
for ever, so only the number of entries and the last one are kept; the rest is read in blocks of
`storage.log.block_cache.BLOCK_ENTRIES`, with file reads and not mapped: an unreadable sector is an
error that names the file and does not kill the process. One bounded cache holds the blocks used
last, for all files of the store.

A start reads one block of each file: the last entry is in the last block, unless the log was cut
and filled again with larger batches; then a binary search finds it, 48 bytes per probe.

Lookups read few blocks. `SealedIndex.find` alternates interpolation and binary search: one to three
blocks if batches are of similar size, never more than twice the logarithm of their number (28 for
16 million batches). That is acceptable on the event loop, which also reads 80 KiB of a queue file
for a read of old records; walks over many entries run in a thread, or are bounded by the caller: a
frame to a slave by 1 MiB of the log, a piece of the log by its entries (`storage.read.raw`), a
chain of a handshake by the log that both sides compare.

Invariants: the file is full, so ``end`` is the log file's end, and it is flushed; nothing is added
to it. Every entry that is returned or found matches its own CRC. Other entries that a search reads
are not checked, but damage there cannot give a wrong result: the entry found must hold the offset.

Files may be deleted or cut while a thread searches: it then finds a missing file, or zeros. The
store's owner judges results of threads, and tells the client to ask again.

Not here: CRCs of log bytes, which indexes stay in memory (`storage.log.segments`).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator

from storage.disk.disk import Disk
from storage.errors import DiskError
from storage.log.batch_index import ENTRY_SIZE, BatchIndex, damaged_entry, index_path, shared_crc
from storage.log.block_cache import BLOCK_ENTRIES, Blocks
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import BatchEntry

_START = struct.Struct(">QI")


def open_sealed(disk: Disk, start: int, end: int, blocks: Blocks) -> SealedIndex | None:
    """Return the index of the full log file ``start..end``; None unless its last entry ends there.

    Raises:
        DiskError: It cannot be read.
    """
    path = index_path(start)
    if not disk.exists(path):
        return None
    count, last = _last(disk, path)
    newest = BatchEntry.unpack(last)
    if newest is None or newest.end != end or newest.start < start:
        return None
    return SealedIndex(disk, start, count, newest, blocks)


def _last(disk: Disk, path: str) -> tuple[int, bytes]:
    """Return how many entries there are, and the last one; beyond it there are only zeros."""
    size = disk.size(path)
    first = max(size // ENTRY_SIZE - BLOCK_ENTRIES, 0)
    tail = disk.read_at(path, first * ENTRY_SIZE, size - first * ENTRY_SIZE, "open.index")
    used = -(-len(tail.rstrip(b"\0")) // ENTRY_SIZE)
    # Zeros in the whole last block: the log was cut and filled again with fewer batches.
    if used or not first:
        return first + used, tail[max(used - 1, 0) * ENTRY_SIZE : used * ENTRY_SIZE]
    low, high, last = 0, first, b""
    while low < high:
        middle = (low + high) // 2
        found = disk.read_at(path, middle * ENTRY_SIZE, ENTRY_SIZE, "open.index")
        if any(found):
            low, last = middle + 1, found
        else:
            high = middle
    return low, last


class SealedIndex:
    """Entries of one full log file; see the module's text.

    Args:
        disk: The data directory.
        start: Log offset of the log file's first byte.
        count: Batches in the file.
        newest: The last entry.
        blocks: The store's cache of blocks.
    """

    def __init__(
        self, disk: Disk, start: int, count: int, newest: BatchEntry, blocks: Blocks
    ) -> None:
        self._disk = disk
        self._blocks = blocks
        self._place = blocks.place()
        self._newest = newest
        self._chain: int | None = None
        self.start = start
        self.count = count
        self.end = newest.end
        self.path = index_path(start)

    def whole(self, growth: int) -> BatchIndex:
        """Load all entries: a cut will end the log in this file, and appends continue there.

        Raises:
            CorruptionError: The file is missing or too short.
            DiskError: It cannot be read.
        """
        raw = b"".join(block for block, _, _ in self._parts(0, self.count))
        size = self._disk.size(self.path)
        return BatchIndex(self._disk, self.start, raw, size=size, growth=growth)

    def flush_with(self, other: Callable[[], None], op: str) -> None:
        """As `BatchIndex.flush_with`, for a flush that began before the index was sealed."""
        self._disk.together(other, lambda: self._disk.fsync(self.path, op + ".index"))

    def entry(self, number: int) -> BatchEntry:
        """Return entry ``number``; the last one is in memory.

        Raises:
            CorruptionError: It does not match its own CRC, or its file is missing or too short.
            DiskError: It cannot be read.
        """
        if number == self.count - 1:
            return self._newest
        block, at = self._at(number)
        return self._checked(block, at, number)

    def span(self, number: int) -> tuple[int, int]:
        """Return (start, end) of batch ``number`` without looking at the entry's CRC."""
        block, at = self._at(number)
        start, length = _START.unpack_from(block, at)
        return start, start + length

    def packed(self, first: int, last: int) -> bytes:
        """Return entries ``first..last`` (exclusive) as they are stored."""
        return b"".join([block[low:high] for block, low, high in self._parts(first, last)])

    def find(self, offset: int) -> int:
        """Return the number of the batch that holds ``offset``; `count` when none does.

        Raises:
            CorruptionError: The entries there are inconsistent; raises as `entry`, too.
        """
        if offset >= self.end:
            return self.count
        if offset <= self.start:
            return 0
        number, block = self._holding(offset)
        low, high = 0, len(block) // ENTRY_SIZE
        while high - low > 1:
            middle = (low + high) // 2
            if _START.unpack_from(block, middle * ENTRY_SIZE)[0] <= offset:
                low = middle
            else:
                high = middle
        found = number * self._blocks.entries + low
        entry = self._checked(block, low * ENTRY_SIZE, found)
        # A damaged neighbour may have misled the search; the checked entry itself decides.
        if not entry.start <= offset < entry.end:
            raise damaged_entry(self.path, found)
        return found

    def iterate(self, start: int, end: int) -> Iterator[BatchEntry]:
        """Yield the entries of the batches that begin in ``start..end``."""
        first = self.find(start)
        for block, low, high in self._parts(first, self.count):
            for number, at in enumerate(range(low, high, ENTRY_SIZE), first):
                found = self._checked(block, at, number)
                if found.start >= end:
                    return
                yield found
            first += (high - low) // ENTRY_SIZE

    def chain(self, start: int, end: int, crc: int = 0) -> int:
        """Return crc32c, on from ``crc``, over what nodes share of the entries in a range."""
        first, last = self.find(start), self.find(end)
        if first == 0 and last == self.count and crc == 0:
            return self.chain_whole()
        return self._chained(first, last, crc)

    def chain_whole(self) -> int:
        """Return `chain` over all entries; read once."""
        if self._chain is None:
            self._chain = self._chained(0, self.count, 0)
        return self._chain

    def _chained(self, first: int, last: int, crc: int) -> int:
        for block, low, high in self._parts(first, last):
            crc = shared_crc(block, low, high, crc)
        return crc

    def _holding(self, offset: int) -> tuple[int, bytes]:
        """Return the block that holds the entry of the batch around ``offset``, and its number."""
        low, high = 0, -(-self.count // self._blocks.entries)
        begin, end, halve = self.start, self.end, False
        number, block = 0, b""
        while low < high:
            wide = high - low
            # Interpolation alone may need a step per block if batch sizes are skewed; halving every
            # other step keeps the worst case logarithmic.
            number = low + (wide // 2 if halve else (offset - begin) * wide // (end - begin))
            halve = not halve
            block = self._block(number)
            first = _START.unpack_from(block)[0]
            start, length = _START.unpack_from(block, len(block) - ENTRY_SIZE)
            after = start + length
            # A block outside the bounds known so far: some entry is damaged; which one is found
            # below.
            if not begin <= first < after <= end:
                break
            if offset < first:
                high, end = number, first
            elif offset >= after:
                low, begin = number + 1, after
            else:
                return number, block
        wrong, most = number * self._blocks.entries, len(block) - ENTRY_SIZE
        self._checked(block, 0, wrong)
        self._checked(block, most, wrong + most // ENTRY_SIZE)
        raise damaged_entry(self.path, wrong)

    def _parts(self, first: int, last: int) -> Iterator[tuple[bytes, int, int]]:
        """Yield blocks with the byte range of the entries ``first..last`` in each."""
        size = self._blocks.entries
        while first < last:
            number, at = divmod(first, size)
            many = min(last - first, size - at)
            yield self._block(number), at * ENTRY_SIZE, (at + many) * ENTRY_SIZE
            first += many

    def _at(self, number: int) -> tuple[bytes, int]:
        block, at = divmod(number, self._blocks.entries)
        return self._block(block), at * ENTRY_SIZE

    def _checked(self, block: bytes, at: int, number: int) -> BatchEntry:
        found = BatchEntry.unpack(block, at)
        if found is None:
            raise damaged_entry(self.path, number)
        return found

    def _block(self, number: int) -> bytes:
        found = self._blocks.get(self._place, number)
        if found is not None:
            return found
        at = number * self._blocks.entries
        length = min(self._blocks.entries, self.count - at) * ENTRY_SIZE
        at *= ENTRY_SIZE
        try:
            found = self._disk.read_at(self.path, at, length, "index.read")
        except DiskError as error:
            if error.errno != errno.ENOENT:
                raise
            found = b""
        if len(found) != length:
            raise CorruptionError(
                f"{self.path}: the file is missing or too short",
                file=self.path,
                offset=at + len(found),
                length=length - len(found),
                what="batch index entry",
            )
        self._blocks.keep(self._place, number, found)
        return found
