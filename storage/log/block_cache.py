"""What was read last of files that are too many to be kept in memory: whole blocks, by file.

Any thread may ask and keep; the lock is held to find or count a block, never across a read. What is
kept never changes: whoever holds a block goes on with it after it went out of the cache. A file
gets a place of its own (`Blocks.place`) each time it is opened, so a block of a file that was cut
or removed is never taken for one of a file that got its name.

Units: blocks. Not here: reading, and what a block holds (`storage.log.sealed_index`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import count

BLOCK_ENTRIES = 1024
"""Batch entries of a block: 48 KiB, one read of a disk."""
BLOCKS_KEPT = 256
"""Blocks that are kept of all files of a store together: 12 MiB."""


class Blocks:
    """The blocks that were used last.

    Args:
        most: So many are kept; the one that was used longest ago goes first.
        entries: Batch entries of a block.
    """

    def __init__(self, most: int = BLOCKS_KEPT, *, entries: int = BLOCK_ENTRIES) -> None:
        self.entries = entries
        self._most = most
        self._kept: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._guard = threading.Lock()
        self._places = count()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def place(self) -> int:
        """Return what names one opening of a file from now on."""
        return next(self._places)

    def get(self, place: int, number: int) -> bytes | None:
        """Return a block that is kept; None for another."""
        key = place, number
        with self._guard:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, place: int, number: int, block: bytes) -> None:
        """Keep a block; others may go for it."""
        with self._guard:
            self._kept[place, number] = block
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
