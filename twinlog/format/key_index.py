"""Files of the key index: their bytes, how keys enter them, and what makes a chain whole.

A header of 40 bytes, slots of 4 bytes (number of the newest cell of the slot's chain, 0: empty),
cells of 20 bytes (cell 0 is never used):

    offset  size  header field                       offset  size  cell field
         0     8  store timestamp of the first            0     4  hash of topic#key, >= 0
         8     8  store timestamp of the last             4     8  log offset
        16     8  log offset of the first                12     4  seconds since the header's first
        24     8  log offset of the last                 16     4  previous cell of the slot, 0 none
        32     4  slots in use
        36     4  number of the next cell, from 1

A file is a hash table: ``slot = hash % slots``; a new cell names the cell that was newest in its
slot and becomes the newest itself. So the slot table follows from the cells: cell n names the cell
that its slot named before, and the slot then names n.

Seconds in a cell count from the file's first store time; those of the first cell of a file that
follows another count from the end of the file before.

Keys come packed, 20 bytes each, as `twinlog.kernels.scan_keys` returns them: hash, log offset,
store timestamp. Times are milliseconds since 1970 unless named seconds.

Not here: files (``storage.key_index``, `twinlog.store.key_index`), comparing cells with the log
(`twinlog.store.verify.keys_against_log`), proof that a record has a key.

Sources: RocketMQ's ``IndexFile``, ``IndexHeader``, ``IndexService``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from twinlog.errors import CorruptionError
from twinlog.kernels import enter_keys, link_cells

INDEX_HEADER = struct.Struct(">qqqqii")
assert INDEX_HEADER.size == 40
INDEX_SLOT = struct.Struct(">i")
assert INDEX_SLOT.size == 4
INDEX_CELL = struct.Struct(">iqii")
assert INDEX_CELL.size == 20
INDEX_KEY = struct.Struct(">iqq")
assert INDEX_KEY.size == 20

INDEX_SLOTS_DEFAULT = 5_000_000
INDEX_CELLS_DEFAULT = 20_000_000
CELLS_PER_SLOT = 4
"""RocketMQ's proportion; the number of slots is written nowhere in a file."""

_SLOTS_USED_AT, _NEXT_CELL_AT = 32, 36


def slot_at(slot: int) -> int:
    """Return the byte of a file where a slot begins."""
    return INDEX_HEADER.size + INDEX_SLOT.size * slot


def cell_at(slots: int, number: int) -> int:
    """Return the byte where a cell begins in a file of this many slots."""
    return INDEX_HEADER.size + INDEX_SLOT.size * slots + INDEX_CELL.size * number


def index_size(slots: int, cells: int) -> int:
    """Return the bytes of a file of this many slots and cells."""
    return cell_at(slots, cells)


def slots_for(size: int) -> int:
    """Return the slots of a file of ``size`` bytes with four cells a slot; 0: no such file.

    >>> slots_for(index_size(5_000_000, 20_000_000)), slots_for(1000)
    (5000000, 0)
    """
    slots, rest = divmod(size - INDEX_HEADER.size, INDEX_SLOT.size + CELLS_PER_SLOT * 20)
    return 0 if rest or slots < 1 else slots


def index_file_name(ms: int) -> str:
    """Return the name of a file created at ``ms``: local time to the millisecond, as RocketMQ's."""
    return datetime.fromtimestamp(ms // 1000).strftime("%Y%m%d%H%M%S") + f"{ms % 1000:03d}"


@dataclass(frozen=True, slots=True)
class IndexHeader:
    """Header of a key index file."""

    begin_timestamp: int
    end_timestamp: int
    begin_offset: int
    end_offset: int
    slots_used: int
    next_cell: int

    def pack(self) -> bytes:
        """Return the header's 40 bytes."""
        return INDEX_HEADER.pack(
            self.begin_timestamp,
            self.end_timestamp,
            self.begin_offset,
            self.end_offset,
            self.slots_used,
            self.next_cell,
        )

    @staticmethod
    def unpack(data: bytes | memoryview) -> IndexHeader:
        """Return the header at the start of ``data``; a never-used file has next cell 1.

        Raises:
            CorruptionError: Fewer than 40 bytes.
        """
        if len(data) < INDEX_HEADER.size:
            raise CorruptionError("key index file is shorter than its header", length=len(data))
        begin, end, first, last, slots, cell = INDEX_HEADER.unpack_from(data)
        return IndexHeader(begin, end, first, last, slots, max(cell, 1))

    def entered(self, keys: bytes, start: int, cells: int, used: int) -> IndexHeader:
        """Return the header after the keys from byte ``start`` on made ``cells`` cells.

        Args:
            keys: Packed keys.
            start: Byte of the first key that was entered, a multiple of 20.
            cells: How many keys were entered, at least one.
            used: How many slots came into use.
        """
        _, first, began = INDEX_KEY.unpack_from(keys, start)
        _, last, ended = INDEX_KEY.unpack_from(keys, start + INDEX_KEY.size * (cells - 1))
        if self.next_cell > 1:
            first, began = self.begin_offset, self.begin_timestamp
        return IndexHeader(
            began, ended, first, last, self.slots_used + used, self.next_cell + cells
        )

    def following(self) -> IndexHeader:
        """Return the header of the next file, still without cells."""
        ended, last = self.end_timestamp, self.end_offset
        return IndexHeader(ended, ended, last, last, 0, 1)


NO_KEYS = IndexHeader(0, 0, 0, 0, 0, 1)
"""Header of the first file of an index, still without cells."""


# -- building -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Image:
    """The content of one file: header, slot table, and the cells from number 0 to the last used."""

    header: IndexHeader
    slots: bytes
    cells: bytes

    def pieces(self) -> list[tuple[int, bytes]]:
        """Return (byte in the file, bytes) of what is not zero."""
        at = slot_at(0)
        return [(0, self.header.pack()), (at, self.slots), (at + len(self.slots), self.cells)]


def build(keys: Iterable[bytes], *, slots: int, cells: int) -> Iterator[Image]:
    """Yield the files for packed ``keys`` in log order, each full but the last.

    >>> image, = build([INDEX_KEY.pack(7, 100, 5000)], slots=5, cells=20)
    >>> image.header.next_cell, image.slots.hex()
    (2, '0000000000000000000000010000000000000000')
    """
    growing = _Growing(NO_KEYS, slots, cells)
    for packed in keys:
        at = 0
        while at < len(packed):
            taken = growing.enter(packed, at)
            if not taken:
                yield growing.image()
                growing = _Growing(growing.header.following(), slots, cells)
            at += taken
    if growing.header.next_cell > 1:
        yield growing.image()


class _Growing:
    """A file being filled in memory."""

    def __init__(self, header: IndexHeader, slots: int, room: int) -> None:
        self.header = header
        self._room = room
        self._table = memoryview(bytearray(INDEX_SLOT.size * slots))
        self._dirty = memoryview(bytearray(-(-len(self._table) // 4096)))
        self._cells = bytearray(INDEX_CELL.size)

    def enter(self, keys: bytes, at: int) -> int:
        """Enter keys from byte ``at`` on; return the bytes taken, 0 when the file is full."""
        head = (self.header.next_cell, self._room, self.header.begin_timestamp)
        made, used = enter_keys(keys, at, self._table, self._dirty, head)
        if made:
            self._cells += made
            self.header = self.header.entered(keys, at, len(made) // INDEX_CELL.size, used)
        return len(made)

    def image(self) -> Image:
        return Image(self.header, bytes(self._table), bytes(self._cells))


# -- checking -------------------------------------------------------------------------------------


def chain_fault(
    slots: int, header: IndexHeader, table: bytes | memoryview, cells: bytes | memoryview
) -> tuple[int, str] | None:
    """Link all cells again and compare; return (byte in the file, what is wrong), None if nothing.

    Args:
        slots: Number of slots.
        header: The file's header.
        table: Its slot table.
        cells: Its cells from number 0 to the last used.
    """
    if len(cells) < INDEX_CELL.size * header.next_cell:
        text = f"the header says that cell {header.next_cell} is next; the file ends before it"
        return _NEXT_CELL_AT, text
    if header.next_cell <= 1 and bytes(table).count(0) != len(table):
        return _NEXT_CELL_AT, "the header counts no cell, and a slot points to one"
    wanted = memoryview(bytearray(INDEX_SLOT.size * slots))
    used, bad = link_cells(cells[INDEX_CELL.size : INDEX_CELL.size * header.next_cell], 1, wanted)
    if bad >= 0:
        hashed, _, _, before = INDEX_CELL.unpack_from(cells, INDEX_CELL.size * bad)
        if hashed < 0:
            return cell_at(slots, bad), f"cell {bad} has the negative hash {hashed}"
        (newest,) = INDEX_SLOT.unpack_from(wanted, INDEX_SLOT.size * (hashed % slots))
        text = f"cell {bad} continues its chain at cell {before}, not at {newest}"
        return cell_at(slots, bad), text
    if table != wanted:
        slot = next(
            n for n in range(slots) if table[4 * n : 4 * n + 4] != wanted[4 * n : 4 * n + 4]
        )
        (held,), (newest,) = (INDEX_SLOT.unpack_from(one, 4 * slot) for one in (table, wanted))
        return slot_at(slot), f"slot {slot} points to cell {held}, its newest is {newest}"
    if used != header.slots_used:
        text = f"the header counts {header.slots_used} slots in use, there are {used}"
        return _SLOTS_USED_AT, text
    return None


# -- reading --------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """One cell; ``seconds`` count from the header's first store time."""

    hashed: int
    offset: int
    seconds: int
    before: int


class BrokenChain(Exception):
    """A chain does not hold together; the text says where."""


def walk(
    slots: int, header: IndexHeader, slot: int, newest: int, read: Callable[[int], bytes]
) -> Iterator[tuple[int, Cell]]:
    """Yield (number, cell) of one slot's chain, newest first.

    Args:
        slots: Number of slots.
        header: The file's header.
        slot: The slot.
        newest: The cell that the slot names, 0 for none.
        read: Returns the 20 bytes of a cell; called once for each cell, when it is asked for.

    Raises:
        BrokenChain: A number is not one of an earlier cell, or a cell belongs to another slot.
    """
    if not 0 <= newest < header.next_cell:
        raise BrokenChain(f"slot {slot} points to cell {newest}")
    number = newest
    while number:
        cell = Cell._make(INDEX_CELL.unpack(read(number)))
        # Links must point back: a walk over damaged bytes then ends, whatever they are.
        if cell.hashed < 0 or cell.hashed % slots != slot or not 0 <= cell.before < number:
            raise BrokenChain(f"cell {number} is not a link of the chain of slot {slot}")
        yield number, cell
        number = cell.before
