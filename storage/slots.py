"""A small file of two slots that are written in turn: a value survives a crash in its writing.

A slot is: magic ``TLSL`` (4), crc32c of the rest (4), sequence (8), length of the payload (4), the
payload. The valid slot with the higher sequence counts. Slots lie in pages of their own, so that a
torn write can only ever hurt the older value. One fsync for each write, no rename: this is for
values that are written often (checkpoint, promise) or must keep their inode (run).

Not here: what the payloads mean (`storage.checkpoint`, `storage.identity`).
"""

from __future__ import annotations

import struct

from storage.disk import Disk
from twinlog.errors import UsageError
from twinlog.kernels import crc32c

_HEAD = struct.Struct(">4sIQI")
assert _HEAD.size == 20
_CHECKED = struct.Struct(">QI")
_MAGIC = b"TLSL"


class Slots:
    """The file ``path`` of two slots.

    Args:
        disk: Where it lies.
        path: Its path; made by the first `store`.
        slot_size: Bytes of each slot; the payload has 20 less.
    """

    def __init__(self, disk: Disk, path: str, *, slot_size: int = 4096) -> None:
        self._disk = disk
        self._size = slot_size
        self._sequence = 0
        self.path = path

    def load(self, op: str) -> bytes | None:
        """Return the newest valid payload; None when there is none."""
        if not self._disk.exists(self.path):
            return None
        data = self._disk.read(self.path, op)
        newest: bytes | None = None
        self._sequence = 0
        for at in (0, self._size):
            found = _unpack(data[at : at + self._size])
            if found is not None and found[0] > self._sequence:
                self._sequence, newest = found
        return newest

    def secure(self, op: str) -> None:
        """Make what `load` returned durable; the process that wrote it may have died before."""
        self._disk.fsync(self.path, op)

    def written(self, op: str) -> bool:
        """Whether anything but zeros lies in the file."""
        return self._disk.exists(self.path) and any(self._disk.read(self.path, op))

    def create(self, op: str) -> None:
        """Make the file, both slots empty; durable. An old one is replaced."""
        self._disk.write_file(self.path, bytes(2 * self._size), op)

    def store(self, payload: bytes, op: str) -> None:
        """Write and fsync; the older value stays until then.

        Raises:
            UsageError: The payload is larger than a slot.
            DiskError: Which of the two values counts is not known until the next `store`.
        """
        if len(payload) + _HEAD.size > self._size:
            raise UsageError(f"{len(payload)} bytes do not fit a slot of {self.path}")
        sequence = self._sequence + 1
        checked = _CHECKED.pack(sequence, len(payload)) + payload
        data = _MAGIC + crc32c(checked).to_bytes(4, "big") + checked
        self._disk.write_at(self.path, sequence % 2 * self._size, data, op + ".write")
        self._disk.fsync(self.path, op + ".fsync")
        self._sequence = sequence


def _unpack(slot: bytes) -> tuple[int, bytes] | None:
    if len(slot) < _HEAD.size:
        return None
    magic, crc, sequence, length = _HEAD.unpack_from(slot)
    if magic != _MAGIC or length > len(slot) - _HEAD.size:
        return None
    payload = slot[_HEAD.size : _HEAD.size + length]
    if crc32c(_CHECKED.pack(sequence, length) + payload) != crc:
        return None
    return sequence, payload
