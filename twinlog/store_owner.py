"""Whose store a directory of ours is: what ``twinlog/identity`` says.

The file is written once, when a node makes or adopts the directory: crc32c of the rest (4 bytes,
big-endian), then a msgpack map with at least ``cluster``, ``group``, ``node`` and ``store``.

Not here: writing it, and refusing to serve another one's directory (``storage.identity``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgpack

from twinlog.errors import CorruptionError
from twinlog.kernels import crc32c
from twinlog.store_files import head_of, store_root

IDENTITY = "twinlog/identity"
_MOST = 64 * 1024
"""Bytes of an identity; they are some hundred."""
_unpack = cast("Callable[[bytes], object]", msgpack.unpackb)  # pyright: ignore


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose store it is.

    Attributes:
        cluster: Name of the cluster.
        group: Name of its group.
    """

    cluster: str
    group: str


def segment_size_of(path: Path | str) -> int:
    """Return how long the log files of a store of ours are, bytes; 0 where nothing says so."""
    data = head_of(store_root(path) / IDENTITY, _MOST)
    good = len(data) > 4 and crc32c(data[4:]) == int.from_bytes(data[:4], "big")
    fields = _unpack(data[4:]) if good else None
    size = fields.get("segment_size") if isinstance(fields, dict) else None  # pyright: ignore
    return size if isinstance(size, int) else 0


def owner_of(path: Path | str) -> Owner | None:
    """Return whose store a directory is; None where nothing says so, as for RocketMQ's.

    Raises:
        CorruptionError: The file that says so is damaged.
    """
    file = store_root(path) / IDENTITY
    if not file.is_file():
        return None
    data = file.read_bytes()
    good = len(data) > 4 and crc32c(data[4:]) == int.from_bytes(data[:4], "big")
    fields = _unpack(data[4:]) if good else None
    if isinstance(fields, dict):
        cluster, group = (fields.get(name) for name in ("cluster", "group"))  # pyright: ignore
        if isinstance(cluster, str) and isinstance(group, str):
            return Owner(cluster, group)
    raise CorruptionError(f"{file} is damaged", file=str(file), offset=0)
