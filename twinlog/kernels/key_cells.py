"""Cells and slots of key index files: the plain twins of three compiled kernels.

A file of RocketMQ's key index is a table of slots (4 bytes: the number of the newest cell of a
chain, 0 none) and cells of 20 bytes, numbered from 1 (hash 4, log offset 8, seconds since the
file's begin 4, number of the cell before it in its chain 4). Slots follow from cells: `link_cells`
makes the table that `enter_keys` leaves behind, and `unlink_cells` is the way back.

Not here: files and their headers (``storage.key_index.file``), which keys a record has
(`twinlog.kernels.plain.scan_keys`).

Sources: RocketMQ 5.3 (``IndexFile.putKey``).
"""

from __future__ import annotations

import struct

_KEY = struct.Struct(">iqq")
_SLOT = struct.Struct(">i")
_CELL = struct.Struct(">iqii")
_SECONDS_MAX = 0x7FFF_FFFF

Buffer = bytes | bytearray | memoryview


def _check(slots: memoryview, dirty: memoryview | None) -> int:
    """Return the number of slots; raises ValueError when a table is too short."""
    if len(slots) < 4 or (dirty is not None and len(dirty) < (len(slots) // 4 * 4 + 4095) // 4096):
        raise ValueError("slots or their marks are too short")
    return len(slots) // 4


def enter_keys(
    keys: Buffer, start: int, slots: memoryview, dirty: memoryview, head: tuple[int, int, int]
) -> tuple[bytes, int]:
    """Make the key index cells of the keys from byte ``start`` on, as far as the file has room.

    Args:
        keys: What `scan_keys` returned.
        start: Where to begin in it, a multiple of 20.
        slots: The file's slot table, 4 bytes each; the new cells are entered.
        dirty: One byte for each 4096 bytes of ``slots``; set to 1 where a slot changed.
        head: Number of the next cell, number of cells of the file, begin timestamp of its header.

    Returns:
        The cells, 20 bytes each, one after the other, and how many slots came into use. The begin
        timestamp counts for the first cell of a file as well (RocketMQ's quirk); from then on it is
        that cell's own.
    """
    count = _check(slots, dirty)
    number, room, began = head
    if not 0 <= start <= len(keys):
        raise ValueError(f"no bytes from {start} on in {len(keys)}")
    out, used = bytearray(), 0
    for at in range(start, len(keys) - 19, 20):
        if number >= room:
            break
        hashed, offset, stamp = _KEY.unpack_from(keys, at)
        slot = max(hashed, 0) % count * 4
        (before,) = _SLOT.unpack_from(slots, slot)
        before = 0 if before <= 0 or before > number else before
        seconds = max(stamp - began, 0) // 1000 if began > 0 else 0
        out += _CELL.pack(hashed, offset, min(seconds, _SECONDS_MAX), before)
        _SLOT.pack_into(slots, slot, number)
        dirty[slot >> 12] = 1
        used += before == 0
        began = stamp if number <= 1 else began
        number += 1
    return bytes(out), used


def link_cells(cells: Buffer, number: int, slots: memoryview) -> tuple[int, int]:
    """Make the slot table of cells that are there: each slot names the newest of its cells.

    Args:
        cells: Cells one after the other.
        number: Number of the first of them; those before it have been linked already.
        slots: The slot table; changed.

    Returns:
        How many slots came into use, and the number of the first cell that names another cell
        before it than the slot did, or has a negative hash; -1 without such a cell. Linking stops
        there.
    """
    count, used = _check(slots, None), 0
    for at in range(0, len(cells) - 19, 20):
        hashed, _, _, before = _CELL.unpack_from(cells, at)
        slot = max(hashed, 0) % count * 4
        if hashed < 0 or _SLOT.unpack_from(slots, slot) != (before,):
            return used, number
        _SLOT.pack_into(slots, slot, number)
        used += before == 0
        number += 1
    return used, -1


def unlink_cells(cells: Buffer, slots: memoryview, dirty: memoryview) -> int:
    """Take the newest cells out of the slot table again; returns how many slots it emptied.

    Args:
        cells: The newest cells of the file, oldest first.
        slots: The slot table; changed.
        dirty: As in `enter_keys`.
    """
    count, freed = _check(slots, dirty), 0
    for at in range(len(cells) - len(cells) % 20 - 20, -1, -20):
        hashed, _, _, before = _CELL.unpack_from(cells, at)
        slot = max(hashed, 0) % count * 4
        _SLOT.pack_into(slots, slot, before)
        dirty[slot >> 12] = 1
        freed += before == 0
    return freed
