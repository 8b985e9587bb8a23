"""The memory pool of ``async-buffered``: batches in memory that are not in the log yet. Pure.

They continue the log at its committed end, one after the other without a gap; position 0 of the
buffer is that end. They are numbered, stamped and have their entries; `CommitLog.commit` copies
whole batches into the file, writes their entries, and empties the pool. The pool's content is lost
when the process dies.

Not here: when to commit (`storage.flush_policy`), locking the memory (`storage.disk.mapping`), that
only a master buffers (`storage.store`).
"""

from __future__ import annotations

from collections.abc import Sequence

from twinlog.format.batch_index import BatchEntry


class Pool:
    """See the module's text.

    Args:
        buffer: The memory.
    """

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self.entries: list[BatchEntry] = []
        self.length = 0
        """Bytes of the batches in it."""

    def fits(self, length: int) -> bool:
        """Whether ``length`` bytes from the committed end on fit."""
        return length <= len(self._buffer)

    def part(self, start: int, length: int) -> memoryview:
        """Return ``length`` bytes, ``start`` bytes after the committed end."""
        return self._buffer[start : start + length]

    def enter(self, entries: Sequence[BatchEntry]) -> None:
        """Add batches whose bytes were placed after those in the pool."""
        self.entries.extend(entries)
        self.length += sum([entry.length for entry in entries])

    def clear(self) -> None:
        """Forget everything."""
        self.entries.clear()
        self.length = 0
