"""The starts of a store: the marks of a running store and of a clean stop.

``twinlog/run`` (slots): facts that the current or last start wrote before it registered. They tell
a later start whether the page cache may have been lost, and whether the directory is a copy.
``abort`` is RocketMQ's mark of a running store; while twinlog runs it holds one line (store id,
start id, previous start id), so that a RocketMQ that opened the store in between is noticed.
``twinlog/clean`` is the mark of a clean stop.

Not here: the conclusions of a start (`storage.marks.clean_start`), when they are written
(`storage.recovery.open`, `storage.recovery.close`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from storage.disk.disk import Disk
from storage.disk.packing import number, pack, seal, text, unpack, unseal
from storage.errors import DiskError
from storage.log.segment import log_path
from storage.marks.two_slots import Slots
from twinlog.errors import CorruptionError

RUN = "twinlog/run"

CLEAN = "twinlog/clean"

ABORT = "abort"

STARTS_KEPT = 64
"""Start ids kept that the coordinator has not seen."""


@dataclass(frozen=True, slots=True)
class Run:
    """The facts of one start.

    Attributes:
        boot_id: Boot of the kernel; None where it cannot be read.
        device: Number of the data directory's device.
        start_id: Random id of the start.
        unseen: Earlier start ids that the coordinator has not seen, oldest first.
        inode: Inode of the run file itself; another one means a copied directory.
        unclean_since: Wall time (ms) of the first unclean start whose registration the coordinator
        has not answered; None without one.
        io_error: A flush failed during this run.
        quality: The acknowledgement quality of this run.
        log_start: Log offset where the newest log file begins; -1 without one.
        log_inode: That file's inode: another one means that log files were copied back.
    """

    boot_id: str | None
    device: int
    start_id: str
    unseen: tuple[str, ...]
    inode: int
    unclean_since: int | None = None
    io_error: bool = False
    quality: str = "received"
    log_start: int = -1
    log_inode: int = 0


class RunFile:
    """``twinlog/run``.

    Attributes:
        value: The content; None before the first start.
        lost: It had a content, which is unreadable now.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._slots = Slots(disk, RUN)
        self.value: Run | None = None
        self.lost = False

    def load(self) -> None:
        """Read it; a missing file is made again in a state that counts as unreadable."""
        data = self._slots.load("open.run")
        self.value = _run(unpack(data)) if data is not None else None
        self.lost = self.value is None and self._slots.lost("open.run")
        if self.lost and not self._slots.exists:
            self._slots.create_unreadable("open.run.create")

    def create(self) -> None:
        """Make the file, so that it has an inode."""
        self._slots.create("open.run.create")

    def write(self, value: Run, op: str) -> None:
        """Write it durably, keeping the inode."""
        self._slots.store(pack({name: getattr(value, name) for name in Run.__slots__}), op)
        self.value = value

    def note_log(self, start: int) -> None:
        """Record which log file is the newest: a cut removes files, and new ones reuse their names.

        Raises:
            DiskError: The record may name a deleted file, which proves nothing.
        """
        if self.value is not None:
            inode = self._disk.inode(log_path(start)) if start >= 0 else 0
            self.write(replace(self.value, log_start=start, log_inode=inode), "cut.run")

    @property
    def copied(self) -> bool:
        """Whether the directory, or the log in it, is a copy: the recorded inodes differ."""
        last = self.value
        if last is None:
            return False
        if last.inode != self._disk.inode(RUN):
            return True
        path = log_path(max(last.log_start, 0))
        there = last.log_start >= 0 and self._disk.exists(path)  # retention may have deleted it
        return there and self._disk.inode(path) != last.log_inode

    def note_io_error(self) -> None:
        """Record that a flush failed; errors of this write itself are ignored."""
        if self.value is not None and not self.value.io_error:
            with suppress(DiskError):
                self.write(replace(self.value, io_error=True), "io-error")


def _run(fields: Mapping[str, object]) -> Run:
    unclean = fields.get("unclean_since")
    boot = fields.get("boot_id")
    return Run(
        boot if isinstance(boot, str) else None,
        number(fields, "device"),
        text(fields, "start_id"),
        tuple(cast("Sequence[str]", fields["unseen"])),
        number(fields, "inode"),
        unclean if isinstance(unclean, int) else None,
        bool(fields.get("io_error")),
        text(fields, "quality"),
        number(fields, "log_start") if "log_start" in fields else -1,
        number(fields, "log_inode") if "log_inode" in fields else 0,
    )


@dataclass(frozen=True, slots=True)
class CleanMark:
    """The mark of a clean stop.

    Attributes:
        end: End of the log.
        start_id: The start that stopped.
        checkpoint: crc32c of RocketMQ's ``checkpoint`` as the stop wrote it.
    """

    end: int
    start_id: str
    checkpoint: int


def write_clean_mark(disk: Disk, value: CleanMark) -> None:
    """Write ``twinlog/clean`` durably."""
    fields = {"end": value.end, "start": value.start_id, "checkpoint": value.checkpoint}
    disk.write_file(CLEAN, seal(fields), "close.clean")


def read_clean_mark(disk: Disk) -> CleanMark | None:
    """Return the mark of a clean stop; None if it is missing or unreadable."""
    if not disk.exists(CLEAN):
        return None
    try:
        fields = unseal(disk.read(CLEAN, "open.clean"))
        names = number(fields, "end"), text(fields, "start"), number(fields, "checkpoint")
    except CorruptionError:
        return None
    return CleanMark(*names)


def abort_line(store_id: str, start_id: str, before: str) -> bytes:
    """Return the line that ``abort`` holds while this store runs."""
    return f"{store_id} {start_id} {before or '-'}\n".encode()


def abort_is_ours(line: bytes, store_id: str, start_id: str) -> bool:
    """Whether ``abort`` was left by the start that ``twinlog/run`` names, or by one after it.

    A start writes ``abort`` before ``run``; after a crash between the two, the start id of ``run``
    is in the third place.
    """
    parts = line.split()
    ours = len(parts) == 3 and parts[0] == store_id.encode()
    return ours and start_id.encode() in parts[1:]
