"""What a start may trust: our checkpoint and RocketMQ's.

``twinlog/checkpoint`` (slots): flushed offset, confirm offset, start of the log. Written each
second and each 64 MiB, after the flush it names, so it never leads. The log's start is made durable
before a file below it is deleted (R51), and opening the store removes files that are still below.
``checkpoint`` is RocketMQ's file of timestamps.

Not here: when they are written (`storage.background`).
"""

from __future__ import annotations

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
    """``twinlog/checkpoint``.

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
        self._last = value
        start = self.start
        fields = {
            "flushed": value.flushed, "confirm": value.confirm, "start": start,
            "untidy": int(self.untidy),
        }  # fmt: skip
        self._slots.store(pack(fields), op)
        self.durable = max(self.durable, start)

    def advance(self, start: int, op: str) -> None:
        """Make durable that the log starts at ``start``; then files below may be deleted.

        Raises:
            DiskError: It is unknown whether it is durable; nothing may be deleted yet.
        """
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
