"""A cache of the blocks of old batch indexes that were read last.

Any thread may use it; the lock is held to find or count a block, never across a read. Blocks are
immutable, so a caller may go on using one after its eviction. A file gets a new number
(`Blocks.place`) each time it is opened, so a block of a file that was cut or removed is never taken
for one of a later file of the same name.

Units: blocks. Not here: reading blocks, and their content (`storage.log.sealed_index`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from itertools import count

BLOCK_ENTRIES = 1024
"""Batch entries of a block: 48 KiB, one read of a disk."""
BLOCKS_KEPT = 256
"""Blocks that are kept for all files of a store together: 12 MiB."""


class Blocks:
    """A cache with least-recently-used eviction.

    Args:
        most: How many blocks are kept.
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
        """Return a new number, which identifies one opening of a file."""
        return next(self._places)

    def get(self, place: int, number: int) -> bytes | None:
        """Return a block; None if it is not in the cache."""
        key = place, number
        with self._guard:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def keep(self, place: int, number: int, block: bytes) -> None:
        """Add a block; may evict others."""
        with self._guard:
            self._kept[place, number] = block
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
