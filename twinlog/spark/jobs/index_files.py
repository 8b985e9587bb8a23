"""Key index files from keys, by RocketMQ's sequential algorithm; pure.

A file is a hash table: ``slot = hash % slots``; a new cell names the cell that was newest in its
slot, and becomes the newest itself. Cells are numbered from 1, so a file for ``cells`` holds one
less. Seconds in a cell count from the file's first store time; the first cell of a follow-up file
counts from the end of the file before.

Sizes are bytes, times milliseconds unless they say seconds.

Not here: where keys come from (`kernels.scan_keys`), names and places of files (`jobs.rebuild`).

Sources: RocketMQ 5.3 (``IndexFile.putKey``, ``IndexService``).
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from twinlog.layout import INDEX_CELL, INDEX_HEADER, INDEX_SLOT, IndexHeader

KEY = struct.Struct(">iqq")
"""Of `kernels.scan_keys`: hash, log offset, store timestamp."""
assert KEY.size == 20

_SECONDS_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Image:
    """The content of one file: header, slot table, and the cells from number 0 to the last used."""

    header: IndexHeader
    slots: bytes
    cells: bytes

    def size(self, cells: int) -> int:
        """Return the length of the file for ``cells`` cells."""
        return INDEX_HEADER.size + len(self.slots) + INDEX_CELL.size * cells

    def pieces(self) -> list[tuple[int, bytes]]:
        """Return (place in the file, bytes) of what is not zero."""
        at = INDEX_HEADER.size
        return [(0, self.header.pack()), (at, self.slots), (at + len(self.slots), self.cells)]


def build(keys: Iterable[bytes], *, slots: int, cells: int) -> Iterator[Image]:
    """Yield the files for packed ``keys`` (multiples of 20 bytes, in log order).

    >>> image, = build([KEY.pack(7, 100, 5000), ], slots=5, cells=20)
    >>> image.header.next_cell, image.slots.hex()
    (2, '0000000000000000000000010000000000000000')
    """
    growing = _Growing(slots, 0)
    for packed in keys:
        for hashed, offset, stamp in KEY.iter_unpack(packed):
            if growing.next >= cells:
                image = growing.image()
                yield image
                growing = _Growing(slots, image.header.end_timestamp)
            growing.put(hashed, offset, stamp)
    if growing.next > 1:
        yield growing.image()


class _Growing:
    """A file being filled."""

    def __init__(self, slots: int, before: int) -> None:
        self._slots = _no_cells(slots)
        self._count = slots
        self._cells = bytearray(INDEX_CELL.size)
        self._begin = before
        self._first = self._last = self._end = 0
        self._used = 0
        self.next = 1

    def put(self, hashed: int, offset: int, stamp: int) -> None:
        """Enter one key."""
        slot = hashed % self._count
        before = self._slots[slot]
        seconds = (stamp - self._begin) // 1000 if self._begin > 0 else 0
        seconds = min(max(seconds, 0), _SECONDS_MAX)
        self._cells += INDEX_CELL.pack(hashed, offset, seconds, before)
        self._slots[slot] = self.next
        if self.next == 1:
            self._first, self._begin = offset, stamp
        self._used += before == 0
        self._last, self._end = offset, stamp
        self.next += 1

    def image(self) -> Image:
        header = IndexHeader(self._begin, self._end, self._first, self._last, self._used, self.next)
        return Image(header, _packed(self._slots), bytes(self._cells))


def _no_cells(slots: int) -> array[int]:
    """Return the table of a file without cells; compact, for a file has five million slots."""
    return array("i", bytes(INDEX_SLOT.size * slots))


def _packed(table: array[int]) -> bytes:
    """Return a slot table as it is stored."""
    stored = array("i", table)
    if sys.byteorder == "little":
        stored.byteswap()
    return stored.tobytes()


def chain_fault(slots: int, header: IndexHeader, table: bytes, cells: bytes) -> tuple[int, str]:
    """Follow a file's cells anew and return (place in the file, what is wrong); (-1, "") if fine.

    Args:
        slots: Number of slots.
        header: The file's header.
        table: Its slot table.
        cells: Its cells from number 0 to the last used.
    """
    newest = _no_cells(slots)
    base = INDEX_HEADER.size + INDEX_SLOT.size * slots
    used = 0
    found = INDEX_CELL.iter_unpack(cells[INDEX_CELL.size :])
    for number, (hashed, offset, _, before) in enumerate(found, 1):
        at = base + INDEX_CELL.size * number
        if hashed < 0 or not header.begin_offset <= offset <= header.end_offset:
            return at, f"cell {number} holds no key of this file's records"
        slot = hashed % slots
        if before != newest[slot]:
            return at, f"cell {number} continues at cell {before}, not at {newest[slot]}"
        used += before == 0
        newest[slot] = number
    must = _packed(newest)
    if table != must:
        slot = next(n for n in range(slots) if table[4 * n : 4 * n + 4] != must[4 * n : 4 * n + 4])
        (held,) = INDEX_SLOT.unpack_from(table, 4 * slot)
        at = INDEX_HEADER.size + INDEX_SLOT.size * slot
        return at, f"slot {slot} names cell {held}, its newest is {newest[slot]}"
    if header.slots_used != used:
        return 32, f"the header counts {header.slots_used} slots in use, there are {used}"
    return -1, ""
