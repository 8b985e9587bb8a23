"""The key index of a store directory: which records may carry a key.

An index file is a hash table: slots that name the newest cell of a chain, cells that name a hash
and a log offset. It knows hashes, not keys: the caller compares the record. The newest cells come
first, over all files, as RocketMQ answers.

The number of slots is written nowhere. It is taken from the file's size by RocketMQ's proportion of
four cells for each slot, and believed only when header and cells agree with it.

After a crash RocketMQ throws away the files that were not full and enters the records again that
recovery reads; `add` does that in memory.

Sources: RocketMQ 5.3 (``IndexFile``, ``IndexService``).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from twinlog.errors import UsageError
from twinlog.format.key_index import (
    CELLS_PER_SLOT,
    INDEX_CELL,
    INDEX_HEADER,
    INDEX_KEY,
    INDEX_SLOT,
    IndexHeader,
    cell_at,
    index_size,
    slot_at,
    slots_for,
)
from twinlog.kernels import key_hash
from twinlog.store.files import is_number, listed

TIME_MAX = (1 << 63) - 1
HITS_MAX = 64
"""RocketMQ's ``maxMsgsNumBatch``."""

SIZE_MAX = 1 << 36
"""Bytes of a file: RocketMQ counts its slots and cells with 31 bits."""

SAY_IT = "say how many it has: --index-slots N --index-cells M"
"""What to do about a file whose capacity is unknown."""


@dataclass(frozen=True, slots=True)
class IndexFile:
    """One index file: its bytes, header and number of slots (0: it cannot be determined)."""

    name: str
    view: memoryview
    header: IndexHeader
    slots: int

    @property
    def table(self) -> memoryview:
        """The slot table."""
        return self.view[slot_at(0) : slot_at(self.slots)]

    @property
    def cells(self) -> memoryview:
        """The cells from number 0 to the last used, as far as the file has them."""
        return self.view[slot_at(self.slots) : cell_at(self.slots, self.header.next_cell)]

    def hits(self, wanted: int, begin: int = 0, end: int = TIME_MAX) -> Iterator[int]:
        """Yield the log offsets under the hash ``wanted``, newest first.

        Between two store times (ms) by RocketMQ's rule: a cell's time is the file's begin and whole
        seconds, so a record less than a second after ``begin`` may be missed.
        """
        if not self.slots:
            return
        (cell,) = INDEX_SLOT.unpack_from(self.view, slot_at(wanted % self.slots))
        seen = 0
        while 0 < cell <= self.header.next_cell and seen < self.header.next_cell:
            at = cell_at(self.slots, cell)
            if at + INDEX_CELL.size > len(self.view):
                return
            found, offset, seconds, before = INDEX_CELL.unpack_from(self.view, at)
            if seconds < 0:
                return
            stamp = self.header.begin_timestamp + 1000 * seconds
            if found == wanted and begin <= stamp <= end:
                yield offset
            if before == cell or stamp < begin:
                return
            cell, seen = before, seen + 1


def _slots(view: memoryview, header: IndexHeader, capacity: tuple[int, int] | None) -> int:
    """Return the number of slots that the file's size and contents agree on; 0 when they do not.

    ``capacity`` (slots, cells) wins over RocketMQ's proportion where the file's size fits it.
    """
    count = slots_for(len(view))
    cells = CELLS_PER_SLOT * count
    if capacity and len(view) == index_size(*capacity):
        count, cells = capacity
    if count <= 0:
        return 0
    for cell in range(1, min(header.next_cell, cells, 5)):
        found, offset, _, before = INDEX_CELL.unpack_from(view, cell_at(count, cell))
        if found < 0 or not 0 <= before < cell or not 0 <= offset <= header.end_offset:
            return 0
    return count


class KeyIndex:
    """All index files of a directory, oldest first, and what recovery adds.

    Args:
        folder: The directory ``index``.
        trusted: After a crash: files whose last entry is newer than this time (ms) are thrown
            away. None for a clean stop: all count.
        capacity: Slots and cells of the files, where they are not RocketMQ's four cells for each
            slot.
    """

    def __init__(
        self, folder: Path, trusted: int | None, *, capacity: tuple[int, int] | None = None
    ) -> None:
        self._capacity = capacity
        self.files: list[IndexFile] = []
        self.unreadable: list[str] = []
        self.unread: dict[str, str] = {}
        """Why nothing is known of some of them: they are not files, or the system refuses."""
        for path, size, why in listed(folder):
            if is_number(path.name) and (size > SIZE_MAX or why):
                self.unreadable.append(path.name)
                self.unread.update({path.name: f"it is {why}"} if why else {})
            elif is_number(path.name):
                self._load(path, size, trusted)
        self._added: list[tuple[int, int]] = []
        self._end = self.files[-1].header.end_offset if self.files else 0

    def _load(self, path: Path, size: int, trusted: int | None) -> None:
        if size < INDEX_HEADER.size:
            self.unreadable.append(path.name)
            return
        try:
            view = _map(path, size)
        except FileNotFoundError:  # retention has it
            return
        except (OSError, ValueError) as error:  # ValueError: it is shorter now
            self.unreadable.append(path.name)
            self.unread[path.name] = str(error)
            return
        header = IndexHeader.unpack(view)
        if trusted is not None and header.end_timestamp > trusted:
            return
        slots = _slots(view, header, self._capacity)
        if not slots:
            self.unreadable.append(path.name)
        self.files.append(IndexFile(path.name, view, header, slots))

    def add(self, keys: bytes) -> None:
        """Enter the keys of records that recovery reads again (`kernels.scan_keys`)."""
        done, end = self._end, self._end
        for wanted, offset, _ in INDEX_KEY.iter_unpack(keys):
            if offset >= done:
                self._added.append((wanted, offset))
                end = max(end, offset)
        self._end = end

    @property
    def end(self) -> int:
        """Log offset of the last record that is entered; 0 for none."""
        return self._end

    def refuse(self) -> None:
        """Raise when a file could not be read: then it is unknown what it holds.

        Raises:
            UsageError: Code ``index-capacity``; names the file. ``unreadable-store`` where the
                system would not let it be read.
        """
        for name, why in self.unread.items():
            text = f"index/{name} cannot be read, so the keys in it are unknown: {why}"
            raise UsageError(text, code="unreadable-store")
        if self.unreadable:
            raise UsageError(
                f"index/{self.unreadable[0]} is not an index file with four cells for each slot",
                code="index-capacity",
                hint=SAY_IT,
                files=self.unreadable,
            )

    def find(
        self,
        topic: str,
        key: str,
        *,
        most: int = HITS_MAX,
        begin: int = 0,
        end: int = TIME_MAX,
    ) -> list[int]:
        """Return up to ``most`` log offsets of records that may carry ``key``, newest first.

        Between two store times (ms) by RocketMQ's rule, which ends with the first file that begins
        before ``begin``. Times of records that `add` entered do not count.
        """
        wanted = key_hash(f"{topic}#{key}".encode())
        found = [offset for hashed, offset in reversed(self._added) if hashed == wanted][:most]
        for file in reversed(self.files):
            first, last = file.header.begin_timestamp, file.header.end_timestamp
            if first <= end and last >= begin:
                for offset in file.hits(wanted, begin, end):
                    if len(found) >= most:
                        return found
                    found.append(offset)
            if first < begin:
                break
        return found


def _map(path: Path, size: int) -> memoryview:
    with path.open("rb") as opened:
        return memoryview(mmap.mmap(opened.fileno(), size, access=mmap.ACCESS_READ))
