"""What a twinlog store says about itself besides its log: checkpoint, owner, whether a node runs.

The checkpoint is a file of two slots, of which the valid one with the higher sequence counts:

    offset  size  field of a slot (4096 bytes each)
         0     4  magic "TLSL"
         4     4  crc32c of what follows, to the end of the payload
         8     8  sequence
        16     4  length of the payload
        20        payload

Its payload is msgpack with ``flushed``, ``confirm`` and ``start``, log offsets in bytes. A
directory is live while another process holds the lock on the first byte of ``lock``.

The identity file is written once, when a node creates or adopts the directory: crc32c of the rest
(4 bytes, big-endian), then a msgpack map with at least ``cluster``, ``group``, ``node`` and
``store``.

Not here: writing any of it, and refusing another node's directory (``storage.marks``).
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import msgpack

from twinlog.errors import CorruptionError
from twinlog.kernels import crc32c
from twinlog.store.files import head_of, store_root

_SLOT = struct.Struct(">4sIQI")
assert _SLOT.size == 20
_SLOT_SIZE = 4096
IDENTITY = "twinlog/identity"
_IDENTITY_MAX = 64 * 1024
"""Bytes of an identity file that are read; they are some hundred."""
_unpack = cast("Callable[[bytes], dict[str, object]]", msgpack.unpackb)  # pyright: ignore


@dataclass(frozen=True, slots=True)
class Marks:
    """Checkpointed offsets, 0 when there is no checkpoint, and whether a node is running.

    ``start`` is where the log begins: files below are rubbish that a start removes. None when
    nothing says so.
    """

    flushed: int = 0
    confirm: int = 0
    live: bool = False
    start: int | None = None


def newest_slot(data: bytes, slot_size: int = _SLOT_SIZE) -> bytes | None:
    """Return the payload of the valid slot with the higher sequence; None without a valid slot."""
    newest, found = 0, None
    for at in range(0, min(len(data) - _SLOT.size + 1, 2 * slot_size), slot_size):
        magic, crc, sequence, length = _SLOT.unpack_from(data, at)
        end = at + _SLOT.size + length
        fits = magic == b"TLSL" and sequence > newest and length <= slot_size - _SLOT.size
        if fits and crc32c(data[at + 8 : end]) == crc:
            newest, found = sequence, data[at + _SLOT.size : end]
    return found


def read_marks(root: Path, *, probe: bool = True) -> Marks:
    """Return the marks of the directory ``root``.

    Args:
        root: The data directory.
        probe: Whether to look if a node runs. A process that holds the lock itself must not: the
            system drops a POSIX lock when its process closes any descriptor of the file.
    """
    payload = newest_slot(head_of(root / "twinlog" / "checkpoint", 2 * _SLOT_SIZE))
    fields = _unpack(payload) if payload else {}
    flushed, confirm, start = (fields.get(name) for name in ("flushed", "confirm", "start"))
    return Marks(
        flushed=flushed if isinstance(flushed, int) else 0,
        confirm=confirm if isinstance(confirm, int) else 0,
        live=probe and _locked(root / "lock"),
        start=start if isinstance(start, int) else None,
    )


def _locked(path: Path) -> bool:
    """Return whether another process holds the POSIX lock on the first byte of ``path``."""
    if sys.platform != "linux":  # the question's layout is Linux's; nodes for production run there
        return False
    import fcntl

    if not path.is_file():
        return False
    with path.open("rb") as opened:
        wanted = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 1, 0)
        answer = fcntl.fcntl(opened, fcntl.F_GETLK, wanted)
    return bool(struct.unpack("hhqqi4x", answer)[0] != fcntl.F_UNLCK)


@dataclass(frozen=True, slots=True)
class Owner:
    """The cluster and the group that a store belongs to, by name."""

    cluster: str
    group: str


def segment_size_of(path: Path | str) -> int:
    """Return the length of a twinlog store's log files, bytes; 0 when its identity lacks it."""
    fields = identity_fields(head_of(store_root(path) / IDENTITY, _IDENTITY_MAX)) or {}
    size = fields.get("segment_size")
    return size if isinstance(size, int) else 0


def owner_of(path: Path | str) -> Owner | None:
    """Return the owner of a store; None without an identity file, as in a RocketMQ store.

    Raises:
        CorruptionError: The identity file is damaged.
    """
    file = store_root(path) / IDENTITY
    if not file.is_file():
        return None
    fields = identity_fields(file.read_bytes()) or {}
    cluster, group = fields.get("cluster"), fields.get("group")
    if isinstance(cluster, str) and isinstance(group, str):
        return Owner(cluster, group)
    raise CorruptionError(f"{file} is damaged", file=str(file), offset=0)


def identity_fields(data: bytes) -> dict[str, object] | None:
    """Return the fields of an identity file; None when it does not match its CRC."""
    if len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big"):
        return None
    fields = cast("object", _unpack(data[4:]))
    return cast("dict[str, object]", fields) if isinstance(fields, dict) else None
