"""The epoch file against RocketMQ's published vector."""

from __future__ import annotations

import pytest

from twinlog.errors import CorruptionError
from twinlog.format.epoch_file import epoch_file_pack, epoch_file_unpack


def test_epoch_file() -> None:
    """The one vector that RocketMQ publishes, and each way to be damaged."""
    data = b"2\n773307083\n7-7000\n8-8000\n"
    assert epoch_file_pack([(7, 7000), (8, 8000)]) == data
    assert epoch_file_unpack(data) == [(7, 7000), (8, 8000)]
    assert epoch_file_unpack(b"1\n0\n7-7000\n") == [(7, 7000)]
    for bad in (
        b"",
        b"1\n2",
        b"x\n0\n7-7000\n",
        b"1\n773307083\n7-7000\n",
        b"2\n0\n7-7\n",
        b"1\n0\n7\n",
    ):
        with pytest.raises(CorruptionError):
            epoch_file_unpack(bad)
