"""RocketMQ's checkpoint against the published bytes."""

from __future__ import annotations

from twinlog.format.checkpoint import Checkpoint


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
