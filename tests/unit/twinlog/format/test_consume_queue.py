"""Queue files against the published bytes."""

from __future__ import annotations

from twinlog.format.consume_queue import BATCH_QUEUE_UNIT, QUEUE_ENTRY, QUEUE_EXT_UNIT


def test_queue_entry() -> None:
    """The published entry, and a negative hash sign-extended."""
    assert QUEUE_ENTRY.pack(1000, 178, 2598919).hex() == (
        "00000000000003e8000000b2000000000027a807"
    )
    assert QUEUE_ENTRY.pack(1000, 178, -786681338).hex()[24:] == "ffffffffd11c3206"


def test_batch_queue_unit_and_extension() -> None:
    """Published units of the batch queue and of the queue extension."""
    unit = BATCH_QUEUE_UNIT.pack(1000, 178, 2598919, 1700000000123, 7, 3, -1, 0)
    assert unit.hex() == (
        "00000000000003e8000000b2000000000027a8070000018bcfe5687b00000000000000070003ffffffff00000000"
    )
    extension = QUEUE_EXT_UNIT.pack(28, 2598919, 1700000000123, 8)
    assert extension.hex() == "001c000000000027a8070000018bcfe5687b0008"
