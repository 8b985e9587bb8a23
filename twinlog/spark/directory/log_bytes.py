"""Bytes of a directory's log, read into one buffer that is used again and again.

``preadv`` and not a mapping: a node may truncate a file while it is read, and under a mapping that
kills the process; here fewer bytes come. It is also faster, because the decoder then finds its
bytes in the cache.

Not here: which bytes are wanted (`twinlog.spark.directory.split_reader`).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from twinlog.spark.arrow import np
from twinlog.store.files import FileSeries, log_folders

GAP = 64 << 10
"""Records closer than this are read in one go; below it the bytes between cost less than a call."""
OPEN_MAX = 16
"""Log files that one reader holds open."""


class LogBytes:
    """The log of one directory, open for reading; close it.

    Args:
        root: The directory that holds ``commitlog``.
        room: Bytes of the buffer; it grows for a record that is larger.
    """

    def __init__(self, root: str, room: int) -> None:
        self._paths = [file.path for file in FileSeries(*log_folders(root)).files]
        self._starts = [int(path.name) for path in self._paths]
        self._opened: dict[int, int] = {}
        self.buffer: Any = np.empty(room, np.uint8)

    def close(self) -> None:
        """Close the files."""
        for opened in self._opened.values():
            os.close(opened)
        self._opened.clear()

    def name(self, offset: int) -> str:
        """Return the file that holds the byte at ``offset``, for messages."""
        i = bisect_right(self._starts, offset) - 1
        return str(self._paths[i]) if i >= 0 else f"commitlog, offset {offset}"

    def file_end(self, offset: int) -> int:
        """Return where the file that holds ``offset`` ends; without such a file, ``offset``.

        The next file's start, or the last file's present size.
        """
        i = bisect_right(self._starts, offset) - 1
        if i < 0:
            return offset
        opened = self._open(i)
        return offset if opened is None else self._starts[i] + os.fstat(opened).st_size

    def next_start(self, offset: int) -> int | None:
        """Return the start of the first file after ``offset``; None without one."""
        i = bisect_right(self._starts, offset)
        return self._starts[i] if i < len(self._starts) else None

    def _open(self, i: int) -> int | None:
        opened = self._opened.get(i)
        if opened is None:
            if len(self._opened) >= OPEN_MAX:
                os.close(self._opened.pop(next(iter(self._opened))))
            try:
                opened = self._opened[i] = os.open(self._paths[i], os.O_RDONLY)
            except FileNotFoundError:  # retention was here
                return None
        return opened

    def read(self, offset: int, length: int, at: int = 0) -> int:
        """Read into the buffer from index ``at`` on; return how many bytes came.

        Fewer than ``length`` when the file ends or is gone. Makes the buffer larger when needed,
        and keeps what is before ``at``.
        """
        if at + length > len(self.buffer):
            larger = np.empty(at + length, np.uint8)
            larger[:at] = self.buffer[:at]
            self.buffer = larger
        i = bisect_right(self._starts, offset) - 1
        opened = self._open(i) if i >= 0 else None
        if opened is None:
            return 0
        place, done = offset - self._starts[i], 0
        while done < length:
            room = memoryview(self.buffer)[at + done : at + length]
            count = os.preadv(opened, [room], place + done)
            if count == 0:
                break
            done += count
        return done

    def gather(self, offsets: Any, sizes: Any) -> tuple[int, Any]:
        """Read the records at ``offsets``, which ascend, as many as the buffer holds.

        Returns:
            (count, starts): how many records were read whole, at least one when it is there, and
            the index of each in the buffer. 0: the first one cannot be read.
        """
        ends = offsets + sizes
        breaks = np.flatnonzero(offsets[1:] - ends[:-1] > GAP) + 1
        groups: Sequence[int] = [0, *breaks.tolist()]
        stops: Sequence[int] = [*breaks.tolist(), len(offsets)]
        starts = np.empty(len(offsets), np.int64)
        used = count = 0
        for first, stop in zip(groups, stops, strict=True):
            base = int(offsets[first])
            room = len(self.buffer) - used
            last = first + int(np.searchsorted(ends[first:stop], base + room, "right"))
            if last == first:
                if count:
                    break
                last = first + 1  # larger than the buffer: alone
            length = int(ends[last - 1]) - base
            got = self.read(base, length, used)
            starts[first:last] = offsets[first:last] - base + used
            if got < length:
                whole = int(np.searchsorted(ends[first:last], base + got, "right"))
                return first + whole, starts[: first + whole]
            used, count = used + length, last
            if last < stop:
                break
        return count, starts[:count]
