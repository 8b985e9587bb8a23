"""Batch index entries: their bytes and their own CRC."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinlog.format.batch_index import KIND_EPOCH, BatchEntry, is_zero

ENTRY = BatchEntry(1 << 40, 4096, 3, 7, 0xDEADBEEF, 1700000000123, KIND_EPOCH, 512)


def test_batch_entry() -> None:
    """48 bytes in the order of the box, its own CRC last."""
    data = ENTRY.pack()
    assert len(data) == 48
    assert data[:44].hex() == (
        "0000010000000000000010000000000300000007deadbeef0000018bcfe5687b000000030000000000000200"
    )
    assert BatchEntry.unpack(data) == ENTRY
    assert BatchEntry.unpack(memoryview(bytes(5) + data), 5) == ENTRY
    assert ENTRY.end == (1 << 40) + 4096
    assert not is_zero(data)


@given(st.integers(0, 47), st.integers(0, 7))
def test_any_flipped_bit_of_a_batch_entry_is_noticed(at: int, bit: int) -> None:
    """Each entry carries a CRC of its own."""
    data = bytearray(ENTRY.pack())
    data[at] ^= 1 << bit
    assert BatchEntry.unpack(bytes(data)) is None


def test_invalid_batch_entries() -> None:
    """Zeros, a cut entry, an entry of no bytes."""
    assert BatchEntry.unpack(bytes(48)) is None
    assert is_zero(bytes(48))
    assert is_zero(memoryview(b"x" + bytes(48)), 1)
    assert not is_zero(bytes(47))
    assert BatchEntry.unpack(ENTRY.pack()[:47]) is None
    assert BatchEntry.unpack(BatchEntry(0, 0, 0, 0, 0, 0, 0, 0).pack()) is None
