"""Faults that a drill asks a node to meet: a disk that is slow, errs or is full, a wrong clock.

Only a node with ``storage.drill_faults`` set looks for them, in ``DATA/twinlog/drill-faults.json``:

    {"slow_seconds": 2.0}     each flush takes this much longer
    {"error": 5}              each flush and each new file ends with this errno
    {"full": true}            each new file ends with ENOSPC, and the disk shows as full
    {"clock_ms": 3600000}     the wall clock is ahead by this much

The file is read again when it has changed, at most every `LOOK_SECONDS`; without the file nothing
is wrong.  A flush that waits looks again meanwhile, so removing the file ends the wait.

A loss of power cannot be made on a running kernel, so it is imitated: such a node notes how far it
has flushed each mapped file (`FLUSHED`), and once it was killed `lose_power` deletes what lies
beyond that in its log files and gives the directory another boot id (`BOOT`).

Not here: which call is a flush (`storage.disk.disk`, `storage.disk.mapping`).
"""

from __future__ import annotations

import errno
import json
import os
import struct
import threading
import time
import uuid
from pathlib import Path
from typing import cast

PATH = "twinlog/drill-faults.json"
"""Below the data directory."""
FLUSHED = "twinlog/drill-flushed"
"""Below the data directory: inode and flushed end of each mapped file, `_SLOT` by `_SLOT`.  It is
not made durable itself: only a process ends here, never the kernel."""
BOOT = "twinlog/drill-boot"
"""Below the data directory: what is added to the kernel's boot id."""
LOOK_SECONDS = 0.05
WAIT_MAX = 600.0
"""Longest wait of one flush."""
_SLOT = struct.Struct("<QQ")
_LOG = "commitlog"


class DrillFaults:
    """What is wrong with one data directory now; may be asked from any thread.

    Args:
        root: The data directory.
        look_seconds: The file is not read again before that.
    """

    def __init__(self, root: Path, *, look_seconds: float = LOOK_SECONDS) -> None:
        self._look_seconds = look_seconds
        self._path = root / PATH
        self._guard = threading.Lock()
        self._looked = 0.0
        self._version: tuple[int, int] | None = None
        self._now: dict[str, object] = {}
        self._notes = root / FLUSHED
        self._boot = root / BOOT
        self._noted = _read_notes(self._notes)
        self._slots = {inode: number for number, inode in enumerate(self._noted)}

    def _faults(self) -> dict[str, object]:
        with self._guard:
            now = time.monotonic()
            if now - self._looked >= self._look_seconds:
                self._looked = now
                self._look()
            return self._now

    def _look(self) -> None:
        try:
            found = os.stat(self._path)
            version = found.st_mtime_ns, found.st_ino
            if version != self._version:
                read: object = json.loads(self._path.read_text(encoding="utf-8"))
                self._now = cast("dict[str, object]", read) if isinstance(read, dict) else {}
                self._version = version
        except (OSError, ValueError):
            self._now, self._version = {}, None

    def _number(self, name: str) -> float:
        value = self._faults().get(name)
        return float(value) if isinstance(value, (int, float)) else 0.0

    def flush(self) -> None:
        """Meet what is wrong before bytes are made durable.

        Raises:
            OSError: The disk errs.
        """
        began = time.monotonic()
        while time.monotonic() - began < min(self._number("slow_seconds"), WAIT_MAX):
            time.sleep(LOOK_SECONDS)
        self._raise()

    def flushed(self, descriptor: int, end: int) -> None:
        """Note that a mapped file is on the disk up to ``end``; never less than noted before."""
        inode = os.fstat(descriptor).st_ino
        with self._guard:
            if end <= self._noted.get(inode, -1):
                return
            self._noted[inode] = end
            slot = self._slots.setdefault(inode, len(self._slots))
            self._notes.parent.mkdir(parents=True, exist_ok=True)
            self._notes.touch()
            with self._notes.open("r+b", buffering=0) as notes:
                os.pwrite(notes.fileno(), _SLOT.pack(inode, end), slot * _SLOT.size)

    def boot_id(self, kernel: str) -> str:
        """The kernel's boot id, or another one after each loss of power."""
        try:
            return kernel + self._boot.read_text(encoding="ascii")
        except OSError:
            return kernel

    def create(self) -> None:
        """Meet what is wrong before a file is made.

        Raises:
            OSError: The disk errs, or is full.
        """
        self._raise()
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _raise(self) -> None:
        number = int(self._number("error"))
        if number:
            raise OSError(number, os.strerror(number))

    @property
    def full(self) -> bool:
        """Whether no space is left."""
        return self._faults().get("full") is True

    @property
    def clock_ms(self) -> int:
        """How far the wall clock is ahead, milliseconds."""
        return int(self._number("clock_ms"))


def _read_notes(path: Path) -> dict[int, int]:
    """Inode to flushed end, in the order of the file."""
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    whole = len(data) - len(data) % _SLOT.size
    return dict(_SLOT.iter_unpack(data[:whole]))


def lose_power(root: Path) -> int:
    """Do to the data directory of a killed node what a loss of power may do; bytes that were lost.

    Of each log file everything beyond its flushed end becomes zeros.  All else stays: a kernel may
    have written any of it in time.
    """
    noted, lost = _read_notes(root / FLUSHED), 0
    folder = root / _LOG
    for path in folder.iterdir() if folder.exists() else ():
        found = path.stat()
        end = min(noted.get(found.st_ino, 0), found.st_size)
        with path.open("r+b") as file:
            file.seek(end)
            lost += len(file.read().rstrip(b"\0"))
            file.truncate(end)
            file.truncate(found.st_size)
            if hasattr(os, "posix_fallocate") and found.st_size:
                os.posix_fallocate(file.fileno(), 0, found.st_size)
    (root / BOOT).parent.mkdir(parents=True, exist_ok=True)
    (root / BOOT).write_text(f"+{uuid.uuid4().hex}", encoding="ascii")
    return lost
