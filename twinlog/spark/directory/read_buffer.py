"""One buffer for each thread, lent for reading a piece of a log.

Bytes read into fresh memory cost more than checking them: the kernel clears every page first. A job
reads one piece after the other and is done with each before the next, so they share a buffer, in
large pages where the system has them.

What is lent is valid until the same thread borrows again. Sizes are bytes.

Not here: which bytes are wanted.
"""

from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

from twinlog.units import MiB

KEPT_MAX = 128 * MiB
"""A larger buffer is given back when what was lent is dropped."""
_STEP = 2 * MiB
"""Buffers are multiples of it: of a large page."""


class _Kept(threading.local):
    held: memoryview = memoryview(b"")


_kept = _Kept()


def lend(length: int) -> memoryview:
    """Return ``length`` writable bytes of any content, valid until this thread borrows again."""
    if length <= len(_kept.held):
        return _kept.held[:length]
    size = -(-length // _STEP) * _STEP
    room = mmap.mmap(-1, size)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        room.madvise(mmap.MADV_HUGEPAGE)
    view = memoryview(room)
    if size <= KEPT_MAX:
        _kept.held = view
    return view[:length]


def read(path: Path, at: int, length: int) -> memoryview:
    """Return up to ``length`` bytes of a file from byte ``at`` on, valid until the next of these.

    Raises:
        OSError: The file is gone or cannot be read.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        room, done = lend(length), 0
        while done < length:
            count = os.preadv(fd, [room[done:]], at + done)
            if not count:
                break
            done += count
        return room[:done]
    finally:
        os.close(fd)
