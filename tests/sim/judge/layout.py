"""The judge's look at a node's files, past all production code.

It knows three facts of the format: log files are ``commitlog/{20 digits}``, batch index files are
``twinlog/batches/{20 digits}`` with 48 bytes per batch in order, and a filler's checksum covers its
first 8 bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from tests.sim.judge.ledger import Batch, Shadow

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode

LOG = "commitlog/{:020d}"
INDEX = "twinlog/batches/{:020d}"
_ENTRY = 48
_FILLER = 1


class Layout:
    """Raw files of the nodes of one world."""

    def __init__(self, segment_size: int) -> None:
        self._segment_size = segment_size

    def first_not_durable(self, node: SimNode, shadow: Shadow, flushed: int) -> str | None:
        """Return what a power loss could take between the old and the new flushed offset."""
        size = self._segment_size
        low, high = shadow.count_up_to(shadow.flushed), shadow.count_up_to(flushed)
        if high < len(shadow.batches) and shadow.batches[high].start < flushed:
            return f"the borders: {flushed} is inside {shadow.batches[high]}"
        for at in range(low, high):
            batch = shadow.batches[at]
            base = batch.start - batch.start % size
            number = at - shadow.count_up_to(base)
            start = batch.start - base
            if not node.disk.is_durable(LOG.format(base), start, start + batch.length):
                return f"the bytes of {batch}"
            where = number * _ENTRY
            if not node.disk.is_durable(INDEX.format(base), where, where + _ENTRY):
                return f"the entry of {batch}"
        return None

    def first_wrong(self, node: SimNode, shadow: Shadow) -> str | None:
        """Return what is not as it must be in log and index, or None."""
        size = self._segment_size
        by_file: dict[int, list[Batch]] = {}
        kept = node.store.start if node.store is not None else 0
        for batch in shadow.batches:
            if batch.start >= kept:
                by_file.setdefault(batch.start - batch.start % size, []).append(batch)
        last = max(by_file, default=0)
        for name in node.disk.list("commitlog"):
            if name.isdigit() and int(name) >= kept:
                by_file.setdefault(int(name), [])
        for base, batches in by_file.items():
            wrong = self._wrong_file(node, base, batches)
            if wrong is not None and (batches or base > last or not shadow.batches):
                return wrong
        return None

    def _wrong_file(self, node: SimNode, base: int, batches: list[Batch]) -> str | None:
        log = node.disk.peek(LOG.format(base))
        index = node.disk.peek(INDEX.format(base))
        if log is None or (index is None and batches):
            return f"file {base} is missing" if batches else None
        end = 0
        view = memoryview(log)
        for number, batch in enumerate(batches):
            at = batch.start - base
            end = at + batch.length
            covered = view[at : at + 8] if batch.kind == _FILLER else view[at:end]
            if crc32c(covered) != batch.crc:
                return f"bytes of {batch} do not fit their checksum"
            assert index is not None
            if index[number * _ENTRY : number * _ENTRY + 8] != batch.start.to_bytes(8, "big"):
                return f"entry {number} of file {base} is not that of {batch}"
        if batches and batches[-1].kind == _FILLER:
            end = batches[-1].start - base + 8
        if log.count(0, end) != len(log) - end:
            return f"file {base} has bytes beyond {end}"
        if index is not None:
            after = len(batches) * _ENTRY
            if index.count(0, after) != len(index) - after:
                return f"index of file {base} has bytes beyond entry {len(batches)}"
        return None
