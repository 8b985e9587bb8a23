"""Both forms of the index kernels agree, with each other and with RocketMQ's words.

The reference below is RocketMQ's ``putKey``, entry by entry, on a whole file in memory.
"""

from __future__ import annotations

import importlib
import struct
from types import ModuleType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twinlog.kernels import key_cells

COMPILED: ModuleType = importlib.import_module("twinlog.kernels._compiled")
TWINS = (key_cells, COMPILED)
KEY = struct.Struct(">iqq")
CELL = struct.Struct(">iqii")

keys = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10**12), st.integers(0, 2**45)), max_size=40
).map(lambda rows: b"".join(KEY.pack(*row) for row in rows))


def put(slots: bytearray, key: bytes, number: int, began: int) -> tuple[bytes, bool]:
    """RocketMQ's putKey for one key; returns the cell and whether its slot was empty."""
    hashed, offset, stamp = KEY.unpack(key)
    at = hashed % (len(slots) // 4) * 4
    value = int.from_bytes(slots[at : at + 4], "big", signed=True)
    if value <= 0 or value > number:
        value = 0
    diff = (stamp - began) // 1000
    if began <= 0 or diff < 0:
        diff = 0
    cell = CELL.pack(hashed, offset, min(diff, 2**31 - 1), value)
    slots[at : at + 4] = number.to_bytes(4, "big")
    return cell, value == 0


@given(keys, st.integers(1, 7), st.integers(1, 9), st.integers(1, 60), st.integers(0, 2**41))
@settings(max_examples=200, deadline=None)
def test_cells_are_those_of_rocketmq(
    data: bytes, slots: int, number: int, room: int, began: int
) -> None:
    """Cells, slots, slots in use, the first cell's odd time; and no cell beyond the room."""
    for twin in TWINS:
        table, marks = bytearray(4 * slots), bytearray(1)
        cells, used = twin.enter_keys(data, 0, table, marks, (number, room, began))
        expected, mine, now, count = b"", bytearray(4 * slots), began, 0
        for at in range(0, 20 * max(min(len(data) // 20, room - number), 0), 20):
            cell, empty = put(mine, data[at : at + 20], number + at // 20, now)
            if number + at // 20 == 1:
                now = KEY.unpack(data[at : at + 20])[2]
            expected, count = expected + cell, count + empty
        assert (cells, used, table) == (expected, count, mine)
        assert bool(marks[0]) == bool(cells)


@given(keys, keys, st.integers(1, 7), st.data())
@settings(max_examples=200, deadline=None)
def test_slots_follow_from_cells(
    first: bytes, second: bytes, slots: int, data: st.DataObject
) -> None:
    """Linking the cells makes the same table, unlinking the newest takes them out again."""
    tables = []
    for twin in TWINS:
        table, marks = bytearray(4 * slots), bytearray(1)
        old, used = twin.enter_keys(first, 0, table, marks, (1, 1000, 0))
        before = bytes(table)
        new, more = twin.enter_keys(second, 0, table, marks, (1 + len(old) // 20, 1000, 5))
        linked = bytearray(4 * slots)
        split = 20 * data.draw(st.integers(0, len(old + new) // 20))
        one = twin.link_cells((old + new)[:split], 1, linked)
        two = twin.link_cells((old + new)[split:], 1 + split // 20, linked)
        assert (one[1], two[1], linked) == (-1, -1, table)
        assert one[0] + two[0] == used + more
        tables.append(bytes(table))
        assert twin.unlink_cells(new, table, marks) == more
        assert table == before
    assert tables[0] == tables[1]


@given(keys, st.integers(1, 7), st.integers(0, 10_000), st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_a_cell_that_breaks_its_chain_is_named(data: bytes, slots: int, at: int, bit: int) -> None:
    """Whatever bit turns in hash or chain, both find the same first cell at fault, or none."""
    cells, _ = key_cells.enter_keys(data, 0, bytearray(4 * slots), bytearray(1), (1, 1000, 0))
    if not cells:
        return
    hurt = bytearray(cells)
    place = at % len(cells)
    hurt[place] ^= 1 << bit
    answers = []
    for twin in TWINS:
        table = bytearray(4 * slots)
        answers.append((twin.link_cells(hurt, 1, table), bytes(table)))
    assert answers[0] == answers[1]
    if place % 20 >= 16:
        assert answers[0][0][1] == 1 + place // 20


@pytest.mark.parametrize("twin", TWINS)
def test_short_tables_are_refused(twin: ModuleType) -> None:
    """Nothing is written outside a table."""
    with pytest.raises(ValueError, match="too short"):
        twin.enter_keys(b"", 0, bytearray(3), bytearray(1), (1, 2, 0))
    with pytest.raises(ValueError, match="too short"):
        twin.enter_keys(b"", 0, bytearray(8192), bytearray(1), (1, 2, 0))
    with pytest.raises(ValueError, match="too short"):
        twin.link_cells(b"", 1, bytearray(0))
    with pytest.raises(ValueError, match="too short"):
        twin.unlink_cells(b"", bytearray(5000), bytearray(1))
    with pytest.raises(ValueError, match="no bytes from"):
        twin.enter_keys(bytes(20), 40, bytearray(8), bytearray(1), (1, 2, 0))
