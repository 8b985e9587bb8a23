"""RocketMQ's ``checkpoint`` file: up to when files are known to be flushed.

4096 bytes of which 40 are used: physic, logics and index timestamps (ms since 1970), the master's
flushed offset, the confirm offset.

Sources: RocketMQ's ``StoreCheckpoint``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_FIELDS = struct.Struct(">qqqqq")
assert _FIELDS.size == 40
CHECKPOINT_FILE_SIZE = 4096


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """RocketMQ's ``checkpoint``: times (ms) up to which files are known to be flushed."""

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    master_flushed: int = 0
    confirm: int = 0

    @property
    def trusted_timestamp(self) -> int:
        """Records stored at or before it are in the flushed log and queues (3 s of margin)."""
        return max(0, min(self.physic_timestamp, self.logics_timestamp) - 3000)

    def pack(self) -> bytes:
        """Return the whole file, 4096 bytes."""
        used = _FIELDS.pack(
            self.physic_timestamp,
            self.logics_timestamp,
            self.index_timestamp,
            self.master_flushed,
            self.confirm,
        )
        return used.ljust(CHECKPOINT_FILE_SIZE, b"\0")

    @staticmethod
    def unpack(data: bytes | memoryview) -> Checkpoint:
        """Return the checkpoint in ``data``; fewer than 40 bytes count as all zeros."""
        if len(data) < _FIELDS.size:
            return Checkpoint()
        return Checkpoint(*_FIELDS.unpack_from(data))
