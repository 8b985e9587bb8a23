"""One file of the key index: a table of slots, cells, and a header; RocketMQ's bytes.

Path ``index/{17 digits}``, the digits a creation time; layout in `twinlog.format.key_index`. Files
are sparse, made at full length and written with ``pwrite``. The newest file, which grows, keeps its
slot table in memory (4 bytes per slot, 20 MB with RocketMQ's 5,000,000): new cells are written at
once, one call per stretch, header and changed slots when the file is flushed or full.

So only the cells are reliable. A `FileMark` in the state snapshot says how many count; the slot
table follows from the cells (`twinlog.kernels.link_cells`), and a load rebuilds it and compares
each cell with its chain. Cells after the marked ones are not part of the file and are zeroed.

Units: cell and slot numbers count from 1 and 0, times are ms since 1970, offsets log offsets.

Not here: the order of files, which keys are entered (`storage.key_index.index`), searching
(`storage.key_index.search`).

Sources: RocketMQ 5.3 (``IndexFile``, ``IndexHeader``).
"""

from __future__ import annotations

import errno
from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from storage.disk.disk import Disk
from storage.errors import DiskError
from twinlog.errors import CorruptionError
from twinlog.format.key_index import (
    INDEX_CELL,
    INDEX_SLOT,
    IndexHeader,
    cell_at,
    index_size,
    slot_at,
)
from twinlog.kernels import crc32c, enter_keys, link_cells, unlink_cells

DIRECTORY = "index"
CELLS_AT_ONCE = 50_000
"""Cells that are read or scanned at once: one megabyte."""
_PAGE = 4096
_PIECE = 64 * _PAGE
_CELL, _SLOT = INDEX_CELL.size, INDEX_SLOT.size


@dataclass(frozen=True, slots=True)
class FileMark:
    """The valid content of an index file: its header and sizes.

    Attributes:
        name: Its name in the directory.
        slots: Slots of its table.
        cells: Its capacity; cell 0 is never used.
        header: Its header once it is flushed.
        crc: crc32c of its cells from 1 on; negative if unknown.
    """

    name: str
    slots: int
    cells: int
    header: IndexHeader
    crc: int = 0

    @property
    def path(self) -> str:
        """Its path in the data directory."""
        return f"{DIRECTORY}/{self.name}"

    @property
    def size(self) -> int:
        """Its length, bytes."""
        return index_size(self.slots, self.cells)

    @property
    def full(self) -> bool:
        """Whether the next key goes into another file."""
        return self.header.next_cell >= self.cells

    def cell_at(self, number: int) -> int:
        """Return where in the file a cell begins."""
        return cell_at(self.slots, number)

    def damaged(self, what: str) -> CorruptionError:
        """Return the error for an inconsistent file."""
        return CorruptionError(f"{self.path}: {what}", file=self.path, offset=0, what=what)


def read_cells(disk: Disk, mark: FileMark, start: int, end: int) -> bytes:
    """Return the cells ``start..end`` of a file.

    Raises:
        CorruptionError: The file ends before them, or is missing.
    """
    return _read(disk, mark, mark.cell_at(start), _CELL * (end - start))


def read_slot(disk: Disk, mark: FileMark, slot: int) -> int:
    """Return the newest cell of a slot's chain, read from the file.

    Raises:
        CorruptionError: The file ends before it, or is missing.
    """
    return int(INDEX_SLOT.unpack(_read(disk, mark, slot_at(slot), _SLOT))[0])


def _read(disk: Disk, mark: FileMark, at: int, length: int) -> bytes:
    try:
        data = disk.read_at(mark.path, at, length, "key-index.read")
    except DiskError as error:
        if error.errno != errno.ENOENT:
            raise
        raise mark.damaged("the file is missing") from None
    if len(data) != length:
        raise mark.damaged("the file is too short")
    return data


class KeyFile:
    """The file that grows.

    Args:
        disk: Where it lies.
        mark: Its valid content.
        slots: Its slot table; None for a new file.

    Attributes:
        closed: It no longer grows and its pages are written: a job that still holds pages of it
            must not write them.
    """

    def __init__(self, disk: Disk, mark: FileMark, slots: bytearray | None = None) -> None:
        self._disk = disk
        self.mark = mark
        self.closed = False
        table = slots if slots is not None else bytearray(_SLOT * mark.slots)
        self.slots = memoryview(table)
        self.dirty = memoryview(bytearray(-(-len(table) // _PAGE)))

    @classmethod
    def create(cls, disk: Disk, mark: FileMark) -> KeyFile:
        """Create the file that ``mark`` names, without keys.

        The header is written at once, so that its page is allocated: writing it later never needs
        disk space.
        """
        try:
            disk.create_sparse(mark.path, mark.size, "key-index.create")
            disk.write_at(mark.path, 0, mark.header.pack(), "key-index.create.header")
        except DiskError:
            if disk.exists(mark.path):
                disk.remove(mark.path, "key-index.create.remove")
            raise
        return cls(disk, mark)

    @classmethod
    def load(cls, disk: Disk, mark: FileMark, *, thorough: bool) -> tuple[KeyFile, bool]:
        """Open the file as its mark says; its slot table is rebuilt from its cells.

        Cells after those of the mark are zeroed: without ``thorough`` only up to the first stretch
        of zeros, which is enough if no page cache was lost.

        Returns:
            The file, and whether its own slot table was different; that will be written.

        Raises:
            CorruptionError: A cell of the mark is not as it was written.
        """
        slots = bytearray(_SLOT * mark.slots)
        used, end = 0, mark.header.next_cell
        last, crc = mark.header.begin_offset, 0
        for start in range(1, end, CELLS_AT_ONCE):
            data = read_cells(disk, mark, start, min(start + CELLS_AT_ONCE, end))
            more, bad = link_cells(data, start, memoryview(slots))
            if bad >= 0:
                raise mark.damaged(f"cell {bad} does not continue its chain")
            crc = crc32c(data, crc)
            used, last = used + more, INDEX_CELL.unpack_from(data, len(data) - _CELL)[1]
        if (used, last) != (mark.header.slots_used, mark.header.end_offset):
            raise mark.damaged("its cells are not those of its header")
        if mark.crc not in (crc, -1):
            raise mark.damaged("its cells do not match their CRC")
        made = cls(disk, replace(mark, crc=crc), slots)
        written = disk.read_at(mark.path, slot_at(0), len(slots), "key-index.read")
        table = bytes(slots)
        other = written != table
        for page in range(len(made.dirty) if other else 0):
            at = page * _PAGE
            made.dirty[page] = written[at : at + _PAGE] != table[at : at + _PAGE]
        made._zero(end, mark.cells, thorough=thorough)
        return made, other

    # -- growing

    def enter(self, keys: bytes, start: int) -> int:
        """Enter keys (`kernels.scan_keys`) from byte ``start`` on; returns the bytes consumed.

        Raises:
            DiskError: No key was entered; may be tried again.
        """
        header = self.mark.header
        head = (header.next_cell, self.mark.cells, header.begin_timestamp)
        cells, used = enter_keys(keys, start, self.slots, self.dirty, head)
        if not cells:
            return 0
        try:
            at = self.mark.cell_at(header.next_cell)
            self._disk.write_at(self.mark.path, at, cells, "key-index.cells")
        except DiskError:
            # The table must not point to cells that are not in the file.
            unlink_cells(cells, self.slots, self.dirty)
            raise
        made = header.entered(keys, start, len(cells) // _CELL, used)
        crc = crc32c(cells, self.mark.crc) if self.mark.crc >= 0 else -1
        self.mark = replace(self.mark, header=made, crc=crc)
        return len(cells)

    def cut(self, end: int, stamp_at: Callable[[int], int]) -> bool:
        """Remove every cell of a record at or after log offset ``end``; False if no cell is left.

        Args:
            end: The log's new end.
            stamp_at: Store timestamp of the record at a log offset below it.
        """
        header, number, freed = self.mark.header, self.mark.header.next_cell, 0
        for start, data in self._back():
            offsets = [cell[1] for cell in INDEX_CELL.iter_unpack(data)]
            keep = bisect_left(offsets, end)
            freed += unlink_cells(data[keep * _CELL :], self.slots, self.dirty)
            number = start + keep
            if keep:
                break
        if number == header.next_cell:
            return number > 1
        self._zero(number, header.next_cell, thorough=True)
        if number <= 1:
            return False
        last = INDEX_CELL.unpack(read_cells(self._disk, self.mark, number - 1, number))[1]
        made = replace(
            header, end_timestamp=stamp_at(last), end_offset=last, next_cell=number,
            slots_used=header.slots_used - freed,
        )  # fmt: skip
        crc = 0
        for start in range(1, number, CELLS_AT_ONCE):
            end = min(start + CELLS_AT_ONCE, number)
            crc = crc32c(read_cells(self._disk, self.mark, start, end), crc)
        self.mark = replace(self.mark, header=made, crc=crc)
        return True

    def _back(self) -> Iterator[tuple[int, bytes]]:
        """Yield stretches of cells with the number of their first one, the newest stretch first."""
        end = self.mark.header.next_cell
        while end > 1:
            start = max(1, end - CELLS_AT_ONCE)
            yield start, read_cells(self._disk, self.mark, start, end)
            end = start

    def _zero(self, start: int, end: int, *, thorough: bool) -> None:
        """Zero the cells ``start..end``, where they are not zeros."""
        for number in range(start, end, CELLS_AT_ONCE):
            length = _CELL * (min(number + CELLS_AT_ONCE, end) - number)
            at, zeros = self.mark.cell_at(number), bytes(length)
            if self._disk.read_at(self.mark.path, at, length, "key-index.zero.look") != zeros:
                self._disk.write_at(self.mark.path, at, zeros, "key-index.zero")
            elif not thorough:
                break

    # -- writing what is only in memory

    def take_dirty(self) -> bytes:
        """Return which pages of the slot table changed since the last call, and reset the marks."""
        pages = bytes(self.dirty)
        self.dirty[:] = bytes(len(pages))
        return pages

    def give_back(self, pages: bytes) -> None:
        """Mark pages dirty again that could not be written."""
        for page, changed in enumerate(pages):
            if changed:
                self.dirty[page] = 1

    def write_header(self, op: str) -> None:
        """Write the present header.

        Before the slots: RocketMQ deletes a file whose header names a newer record than its
        checkpoint, so it never uses a half-written table.
        """
        self._disk.write_at(self.mark.path, 0, self.mark.header.pack(), op + ".header")

    def write_pages(self, pages: bytes, op: str) -> None:
        """Write these pages of the slot table as they are now; may run in a worker thread.

        Raises:
            DiskError: Also ENOENT, with `closed` set, if its owner removed the file meanwhile.
        """
        end = 0
        while not self.closed and (start := pages.find(1, end)) >= 0:
            end = pages.find(0, start)
            end = len(pages) if end < 0 else end
            for at in range(start * _PAGE, min(end * _PAGE, len(self.slots)), _PIECE):
                if self.closed:
                    return
                part = self.slots[at : min(at + _PIECE, end * _PAGE)]
                self._disk.write_at(self.mark.path, slot_at(0) + at, part, op + ".slots")
