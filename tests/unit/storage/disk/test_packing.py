"""Small maps are proven by their check sum."""

from __future__ import annotations

import pytest

from storage.disk.packing import number, seal, text, unpack, unseal
from twinlog.errors import CorruptionError


def test_sealed_maps_are_proven() -> None:
    """A wrong CRC, a short file, another shape and another type are all corruption."""
    sealed = seal({"a": 1, "b": "x"})
    fields = unseal(sealed)
    assert (number(fields, "a"), text(fields, "b")) == (1, "x")
    for bad in (sealed[:-1], b"", b"\0" * 5, bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(CorruptionError):
            unseal(bad)
    with pytest.raises(CorruptionError):
        unpack(b"\x01")
    with pytest.raises(CorruptionError):
        number(fields, "b")
    with pytest.raises(CorruptionError):
        text(fields, "a")
