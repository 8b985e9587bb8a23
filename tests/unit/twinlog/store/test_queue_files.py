"""Where the entries of a queue file end, found without reading what lies behind."""

from __future__ import annotations

import tracemalloc

import pytest

from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.store.queues import _PIECE, _valid_entries

HELD = _PIECE // 20


def entries(count: int) -> bytes:
    """Valid entries of records of 100 bytes, one after the other."""
    return b"".join(QUEUE_ENTRY.pack(100 * n, 100, 5) for n in range(count))


@pytest.mark.parametrize("count", [0, 1, HELD - 1, HELD, HELD + 1, 2 * HELD, 2 * HELD + 7])
@pytest.mark.parametrize("behind", [b"", bytes(20), b"\xff" * 20, bytes(19)])
def test_entries_end_where_the_first_is_none(count: int, behind: bytes) -> None:
    """Also at a border of what is looked at together, and at a piece of an entry."""
    found = _valid_entries(memoryview(entries(count) + behind))
    assert found == (count, 100 * count if count else -1)


def test_valid_entries_behind_one_that_is_none_do_not_count() -> None:
    """They are what an older life of the file left."""
    data = entries(HELD) + bytes(20) + entries(3)
    assert _valid_entries(memoryview(data)) == (HELD, 100 * HELD)


def test_a_sparse_file_is_not_copied() -> None:
    """Sixty-four MiB of zeros behind ten entries cost a piece."""
    data = memoryview(bytearray(64 << 20))
    data[:200] = entries(10)
    tracemalloc.start()
    try:
        assert _valid_entries(data) == (10, 1000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
