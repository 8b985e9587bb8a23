"""Faults that a drill asks a node to meet: a disk that is slow, errs or is full, a wrong clock.

Only a node with ``storage.drill_faults`` set looks for them, in ``DATA/twinlog/drill-faults.json``:

    {"slow_seconds": 2.0}     each flush takes this much longer
    {"error": 5}              each flush and each new file ends with this errno
    {"full": true}            each new file ends with ENOSPC, and the disk shows as full
    {"clock_ms": 3600000}     the wall clock is ahead by this much

The file is read again when it has changed, at most every `LOOK_SECONDS`; without the file nothing
is wrong.  A flush that waits looks again meanwhile, so removing the file ends the wait.

Not here: which call is a flush (`storage.disk.disk`, `storage.disk.mapping`).
"""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import cast

PATH = "twinlog/drill-faults.json"
"""Below the data directory."""
LOOK_SECONDS = 0.05
WAIT_MAX = 600.0
"""Longest wait of one flush."""


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
