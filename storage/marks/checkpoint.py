"""What a start may trust: our checkpoint and RocketMQ's.

``twinlog/checkpoint`` (slots): flushed offset, confirm offset, start of the log. Written after each
flush, before what it flushed counts as flushed (R67), so a start knows of every byte that was ever
promised as flushed. The confirm offset is renewed each second and each 64 MiB. Neither leads. The
log's start is made durable before a file below it is deleted (R51), and opening the store removes
files that are still below. ``checkpoint`` is RocketMQ's file of timestamps.

Not here: when they are written (`storage.background`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from storage.disk.disk import Disk
from storage.disk.packing import number, pack, unpack
from storage.marks.two_slots import Slots
from twinlog.format.checkpoint import Checkpoint

CHECKPOINT = "twinlog/checkpoint"
ROCKETMQ_CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Trusted:
    """Positions of a checkpoint, log offsets."""

    flushed: int = 0
    confirm: int = 0


class CheckpointFile:
    """``twinlog/checkpoint``. Flushes, checkpoints and retention write it from several threads.

    Attributes:
        start: First log offset that is kept, as every later `write` says too; never falls.
        durable: The start that is certainly on the disk.
        lost: The file was missing or unreadable.
        untidy: Queue files may hold entries of records that a cut or a recovery removed from the
            log: all of them must be checked. Every later `write` records it too.
    """

    def __init__(self, disk: Disk) -> None:
        self._slots = Slots(disk, CHECKPOINT)
        self._last = Trusted()
        self._lock = threading.RLock()
        self.start = self.durable = 0
        self.lost = False
        self.untidy = True

    def create(self) -> None:
        """Make the file again, without a value."""
        self._slots.create("open.checkpoint.create")

    def load(self) -> Trusted:
        """Return the positions; zeros if the file cannot be read."""
        data = self._slots.load("open.checkpoint")
        self.lost = data is None
        if data is None:
            return Trusted()
        fields = unpack(data)
        # A checkpoint of a version without retention has no start.
        self.start = self.durable = number(fields, "start") if "start" in fields else 0
        self.untidy = bool(number(fields, "untidy")) if "untidy" in fields else True
        self._last = Trusted(number(fields, "flushed"), number(fields, "confirm"))
        return self._last

    def write(self, value: Trusted, op: str) -> None:
        """Write it durably."""
        with self._lock:
            self._last = value
            start = self.start
            fields = {
                "flushed": value.flushed, "confirm": value.confirm, "start": start,
                "untidy": int(self.untidy),
            }  # fmt: skip
            self._slots.store(pack(fields), op)
            self.durable = max(self.durable, start)

    def trace(self, flushed: int, overtaken: Callable[[], bool], op: str) -> None:
        """Make durable that the log is flushed up to ``flushed``; only then it counts as flushed.

        Args:
            flushed: Log offset.
            overtaken: Whether a cut has begun since the flush, which lowers the offset: nothing is
                written then.
            op: Name of the operation.

        Raises:
            DiskError: It is unknown whether it is durable.
        """
        # The lock is held over the question and the write: a cut begins first and writes its own
        # offset later, so the higher one is never written after it.
        with self._lock:
            if not overtaken() and flushed > self._last.flushed:
                self.write(Trusted(flushed, self._last.confirm), op)

    def renew(self, value: Trusted, op: str) -> None:
        """Write it durably, with the flushed offset of a trace that was written meanwhile."""
        with self._lock:
            self.write(Trusted(max(value.flushed, self._last.flushed), value.confirm), op)

    def advance(self, start: int, op: str) -> None:
        """Make durable that the log starts at ``start``; then files below may be deleted.

        Raises:
            DiskError: It is unknown whether it is durable; nothing may be deleted yet.
        """
        with self._lock:
            self.start = max(self.start, start)
            self.write(self._last, op)


def write_rocketmq_checkpoint(disk: Disk, value: Checkpoint, op: str) -> bytes:
    """Write RocketMQ's ``checkpoint`` durably; returns its content."""
    data = value.pack()
    if not disk.exists(ROCKETMQ_CHECKPOINT):
        disk.write_file(ROCKETMQ_CHECKPOINT, data, op)
    else:
        disk.write_at(ROCKETMQ_CHECKPOINT, 0, data, op + ".write")
        disk.fsync(ROCKETMQ_CHECKPOINT, op + ".fsync")
    return data
