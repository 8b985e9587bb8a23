"""Key index files: published bytes, building, checking and walking chains."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog.errors import CorruptionError
from twinlog.format.key_index import (
    INDEX_CELL,
    INDEX_KEY,
    INDEX_SLOT,
    BrokenChain,
    IndexHeader,
    build,
    cell_at,
    chain_fault,
    slot_at,
    walk,
)


def test_index_header() -> None:
    """The published header; a file never used has next cell 1; a short one is damaged."""
    header = IndexHeader(1700000000123, 1700000000123, 1000, 1000, 3, 4)
    assert header.pack().hex() == (
        "0000018bcfe5687b0000018bcfe5687b00000000000003e800000000000003e80000000300000004"
    )
    assert IndexHeader.unpack(header.pack()) == header
    assert IndexHeader.unpack(bytes(40)).next_cell == 1
    with pytest.raises(CorruptionError):
        IndexHeader.unpack(bytes(39))


KEYS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10), st.integers(0, 2_000_000)), max_size=60
)


@given(KEYS, st.integers(1, 7), st.integers(3, 9))
def test_index_files_are_chains_that_hold(
    keys: list[tuple[int, int, int]], slots: int, cells: int
) -> None:
    """Each key is reached from its slot, newest first, and a flipped field is noticed."""
    offset, packed = 0, b""
    for hashed, step, stamp in keys:
        offset += step
        packed += INDEX_KEY.pack(hashed, offset, stamp)
    images = list(build([packed], slots=slots, cells=cells))
    found: list[tuple[int, int]] = []
    for image in images:
        assert chain_fault(slots, image.header, image.slots, image.cells) is None
        for hashed, at, _, _ in INDEX_CELL.iter_unpack(image.cells[20:]):
            found.append((hashed, at))
        assert image.header.next_cell <= cells
    assert found == [(hashed, at) for hashed, at, _ in INDEX_KEY.iter_unpack(packed)]
    for image in images:
        table = struct.unpack(f">{slots}i", image.slots)
        wrong = struct.pack(f">{slots}i", *[value ^ 1 for value in table])
        found_in = chain_fault(slots, image.header, wrong, image.cells)
        assert found_in is not None and found_in[0] < slot_at(slots)
        less = IndexHeader(*[*_fields(image.header)[:4], 99, image.header.next_cell])
        found_in = chain_fault(slots, less, image.slots, image.cells)
        assert found_in is not None and found_in[0] == 32


def _fields(header: IndexHeader) -> list[int]:
    return [getattr(header, name) for name in IndexHeader.__slots__]


Read = Callable[[int], bytes]


def reader(cells: bytes | bytearray) -> Read:
    """Reads cells by number."""
    return lambda number: bytes(cells[20 * number : 20 * number + 20])


def packed(keys: list[tuple[int, int, int]]) -> bytes:
    """The keys as records at 0, 1, 2 would have them."""
    stamped = enumerate(keys)
    return b"".join(INDEX_KEY.pack(hashed, at, stamp) for at, (hashed, _, stamp) in stamped)


@given(KEYS, st.integers(1, 7))
def test_a_walk_finds_every_key_newest_first(keys: list[tuple[int, int, int]], slots: int) -> None:
    """Each slot's chain holds exactly the keys whose hash belongs there."""
    for image in build([packed(keys)], slots=slots, cells=len(keys) + 1):
        for slot, (newest,) in enumerate(INDEX_SLOT.iter_unpack(image.slots)):
            chain = walk(slots, image.header, slot, newest, reader(image.cells))
            wanted = [at for at, (hashed, _, _) in enumerate(keys) if hashed % slots == slot]
            assert [cell.offset for _, cell in chain] == wanted[::-1]


@given(KEYS.filter(len), st.integers(1, 7), st.data())
def test_a_walk_over_damage_ends(
    keys: list[tuple[int, int, int]], slots: int, data: st.DataObject
) -> None:
    """Whatever a byte of a cell becomes; and what a walk notices, the check notices too."""
    [image] = build([packed(keys)], slots=slots, cells=len(keys) + 1)
    cells = bytearray(image.cells)
    cells[data.draw(st.integers(20, len(cells) - 1))] ^= data.draw(st.integers(1, 255))
    broken = False
    for slot, (newest,) in enumerate(INDEX_SLOT.iter_unpack(image.slots)):
        try:
            chain = list(walk(slots, image.header, slot, newest, reader(cells)))
            assert len(chain) <= len(keys)
        except BrokenChain:
            broken = True
    if broken:
        assert chain_fault(slots, image.header, image.slots, bytes(cells)) is not None


@given(KEYS.filter(len), st.integers(1, 7), st.data())
def test_any_damaged_link_is_noticed(
    keys: list[tuple[int, int, int]], slots: int, data: st.DataObject
) -> None:
    """A check names the cell whose link to the one before it is another."""
    [image] = build([packed(keys)], slots=slots, cells=len(keys) + 1)
    cells = bytearray(image.cells)
    number = data.draw(st.integers(1, len(keys)))
    cells[20 * number + data.draw(st.integers(16, 19))] ^= data.draw(st.integers(1, 255))
    found = chain_fault(slots, image.header, image.slots, bytes(cells))
    assert found is not None
    assert found[0] == cell_at(slots, number)
    assert f"cell {number} " in found[1]
