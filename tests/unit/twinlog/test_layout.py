"""The boxes against the published bytes of the format."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twinlog import layout
from twinlog.errors import CorruptionError
from twinlog.layout import BatchEntry, Checkpoint, IndexHeader

ENTRY = BatchEntry(1 << 40, 4096, 3, 7, 0xDEADBEEF, 1700000000123, layout.KIND_EPOCH, 512)


def test_queue_entry() -> None:
    """The published entry, and a negative hash sign-extended."""
    assert layout.QUEUE_ENTRY.pack(1000, 178, 2598919).hex() == (
        "00000000000003e8000000b2000000000027a807"
    )
    assert layout.QUEUE_ENTRY.pack(1000, 178, -786681338).hex()[24:] == "ffffffffd11c3206"


def test_batch_queue_unit_and_extension() -> None:
    """Published units of the batch queue and of the queue extension."""
    unit = layout.BATCH_QUEUE_UNIT.pack(1000, 178, 2598919, 1700000000123, 7, 3, -1, 0)
    assert unit.hex() == (
        "00000000000003e8000000b2000000000027a8070000018bcfe5687b00000000000000070003ffffffff00000000"
    )
    extension = layout.QUEUE_EXT_UNIT.pack(28, 2598919, 1700000000123, 8)
    assert extension.hex() == "001c000000000027a8070000018bcfe5687b0008"


def test_checkpoint() -> None:
    """The published checkpoint; its trusted time has a margin of 3 s and never falls below 0."""
    point = Checkpoint(1700000000123, 1700000000120, 0, 0, 1000)
    data = point.pack()
    assert len(data) == 4096
    assert data[:40].hex() == (
        "0000018bcfe5687b0000018bcfe56878000000000000000000000000000000000000000000000" + "3e8"
    )
    assert Checkpoint.unpack(data) == point
    assert point.trusted_timestamp == 1699999997120
    assert Checkpoint.unpack(b"").trusted_timestamp == 0


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


def test_epoch_file() -> None:
    """The one vector that RocketMQ publishes, and each way to be damaged."""
    data = b"2\n773307083\n7-7000\n8-8000\n"
    assert layout.epoch_file_pack([(7, 7000), (8, 8000)]) == data
    assert layout.epoch_file_unpack(data) == [(7, 7000), (8, 8000)]
    assert layout.epoch_file_unpack(b"1\n0\n7-7000\n") == [(7, 7000)]
    for bad in (
        b"",
        b"1\n2",
        b"x\n0\n7-7000\n",
        b"1\n773307083\n7-7000\n",
        b"2\n0\n7-7\n",
        b"1\n0\n7\n",
    ):
        with pytest.raises(CorruptionError):
            layout.epoch_file_unpack(bad)


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
    assert not layout.is_zero(data)


@given(st.integers(0, 47), st.integers(0, 7))
def test_any_flipped_bit_of_a_batch_entry_is_noticed(at: int, bit: int) -> None:
    """Each entry carries a CRC of its own."""
    data = bytearray(ENTRY.pack())
    data[at] ^= 1 << bit
    assert BatchEntry.unpack(bytes(data)) is None


def test_what_is_no_batch_entry() -> None:
    """Zeros, a cut entry, an entry of no bytes."""
    assert BatchEntry.unpack(bytes(48)) is None
    assert layout.is_zero(bytes(48))
    assert layout.is_zero(memoryview(b"x" + bytes(48)), 1)
    assert not layout.is_zero(bytes(47))
    assert BatchEntry.unpack(ENTRY.pack()[:47]) is None
    assert BatchEntry.unpack(BatchEntry(0, 0, 0, 0, 0, 0, 0, 0).pack()) is None
