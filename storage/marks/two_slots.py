"""A small file of two slots that are written in turn, so a crash keeps the older value.

A slot is: magic ``TLSL`` (4), crc32c of the rest (4), sequence (8), length of the payload (4), the
payload. The valid slot with the higher sequence counts. Slots are in pages of their own, so a torn
write can only damage the older value. One fsync for each write, no rename: this is for values that
are written often (checkpoint, promise) or must keep their inode (run).

Not here: what the payloads mean (`storage.marks.checkpoint`, `storage.marks.identity`).
"""

from __future__ import annotations

import struct

from storage.disk.disk import Disk
from twinlog.errors import UsageError
from twinlog.kernels import crc32c

_HEAD = struct.Struct(">4sIQI")
assert _HEAD.size == 20
_CHECKED = struct.Struct(">QI")
_MAGIC = b"TLSL"


class Slots:
    """The file ``path`` of two slots.

    Args:
        disk: The data directory.
        path: Its path; made by the first `store`.
        slot_size: Bytes of each slot; the payload has 20 less.
        most: Bytes that a slot may grow to: for a larger value the file is replaced, by a rename,
            by one with larger slots. By default ``slot_size``: the file keeps its inode.
    """

    def __init__(
        self, disk: Disk, path: str, *, slot_size: int = 4096, most: int | None = None
    ) -> None:
        self._disk = disk
        self._size = slot_size
        self._most = most or slot_size
        self._sequence = 0
        self.path = path

    def load(self, op: str) -> bytes | None:
        """Return the newest valid payload; None without one."""
        if not self._disk.exists(self.path):
            return None
        data = self._disk.read(self.path, op)
        self._size = max(self._size, len(data) // 2)  # it has grown
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
        """Whether the file holds anything but zeros."""
        return self._disk.exists(self.path) and any(self._disk.read(self.path, op))

    @property
    def exists(self) -> bool:
        """Whether there is such a file."""
        return self._disk.exists(self.path)

    def create_unreadable(self, op: str) -> None:
        """Make a missing file so that `lost` stays true until a value is stored in it."""
        self._disk.write_file(self.path, b"\xff" * 2 * self._size, op)

    def lost(self, op: str) -> bool:
        """Whether a file without a valid slot is not one that `create` has just made."""
        return not self._disk.exists(self.path) or self.written(op)

    def create(self, op: str) -> None:
        """Make the file with two empty slots, durably; replaces an old one."""
        self._disk.write_file(self.path, bytes(2 * self._size), op)

    def store(self, payload: bytes, op: str) -> None:
        """Write and fsync; the older value stays until then.

        Raises:
            UsageError: The payload is larger than a slot.
            DiskError: It is unknown which of the two values counts until the next `store`.
        """
        if not self.fits(payload):
            raise UsageError(f"{len(payload)} bytes do not fit a slot of {self.path}")
        sequence = self._sequence + 1
        checked = _CHECKED.pack(sequence, len(payload)) + payload
        data = _MAGIC + crc32c(checked).to_bytes(4, "big") + checked
        if len(data) > self._size:
            self._grow(sequence, data, op)
            return
        # The slot of the older value; the newer one stays intact until the fsync has returned.
        self._disk.write_at(self.path, sequence % 2 * self._size, data, op + ".write")
        self._disk.fsync(self.path, op + ".fsync")
        self._sequence = sequence

    def fits(self, payload: bytes) -> bool:
        """Whether a value of this size can be stored."""
        return len(payload) + _HEAD.size <= max(self._size, self._most)

    def _grow(self, sequence: int, data: bytes, op: str) -> None:
        """Replace the file by one with larger slots; the rename decides which value counts."""
        size = self._size
        while size < len(data):
            size *= 2
        slots = [bytes(size), bytes(size)]
        slots[sequence % 2] = data.ljust(size, b"\0")
        self._disk.write_file(self.path, b"".join(slots), op + ".grow")
        self._size, self._sequence = size, sequence


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
