"""Small maps as bytes: msgpack, with or without a CRC in front. Pure.

Used for the bodies of the store's own records and for its small files. A *sealed* map is crc32c of
the rest (4 bytes, big-endian), then the map.

Not here: the meaning of the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import msgpack

from twinlog.errors import CorruptionError
from twinlog.kernels import crc32c

_packb = cast("Callable[[object], bytes]", msgpack.packb)  # pyright: ignore
_unpackb = cast("Callable[..., object]", msgpack.unpackb)  # pyright: ignore


def pack(fields: Mapping[str, object]) -> bytes:
    """Return a map as msgpack."""
    return _packb(fields)


def unpack(data: bytes) -> Mapping[str, object]:
    """Return the map in ``data``.

    Raises:
        CorruptionError: The data is not a msgpack map.
    """
    try:
        found = _unpackb(data, strict_map_key=False)
    except Exception as error:  # msgpack raises several unrelated types
        raise CorruptionError(f"not a msgpack map: {error!r}") from None
    if not isinstance(found, dict):
        raise CorruptionError("not a msgpack map")
    fields = cast("dict[object, object]", found)
    return {key: value for key, value in fields.items() if isinstance(key, str)}


def seal(fields: Mapping[str, object]) -> bytes:
    """Return a map with its CRC in front.

    >>> dict(unseal(seal({"a": 1})))
    {'a': 1}
    """
    body = pack(fields)
    return crc32c(body).to_bytes(4, "big") + body


def unseal(data: bytes) -> Mapping[str, object]:
    """Return the map of `seal`.

    Raises:
        CorruptionError: The CRC or the map is wrong.
    """
    if len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        raise CorruptionError("the CRC of a small file is wrong")
    return unpack(data[4:])


def number(fields: Mapping[str, object], name: str) -> int:
    """Return an integer field; raises `CorruptionError` when it is not one."""
    value = fields.get(name)
    if not isinstance(value, int):
        raise CorruptionError(f"field {name} is not a number")
    return value


def text(fields: Mapping[str, object], name: str) -> str:
    """Return a text field; raises `CorruptionError` when it is not one."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise CorruptionError(f"field {name} is not a text")
    return value
