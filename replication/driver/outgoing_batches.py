"""The content of one APPEND: whole batches of one file, as views of the log.

The frame for one offset is the same for every slave, so it is built once per turn;
`OutgoingBatches.clear` ends the turn, because a view must not outlive the file it maps.

Bytes older than what is hot may have to come from the disk, and the event loop would wait for each
page. So the system is asked to read them `AHEAD_BYTES` before a slave gets there.

Units: bytes. Not here: the recipients and the other fields (``leading``).
Rules: docs/protocol.md R42, R44.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from replication.core import messages
from replication.settings import FRAME_BYTES_MAX, MiB
from storage import Store
from twinlog import kernels
from twinlog.format.batch_index import KIND_FILLER, BatchEntry

FILLER_BYTES = 8
"""Bytes of a filler that are sent; the rest is zero."""

AHEAD_BYTES = 16 * MiB
"""How far ahead of a slave that catches up the log is read: one default window."""

AHEAD_STEP = 4 * MiB
"""Bytes of the log for which the system is asked once."""

AHEAD_STEPS = 64
"""Steps that are remembered: those of four slaves at different places, four times over."""

FrameBatches = tuple[bytes, memoryview | bytes, int]
"""Packed entries, bytes, end."""


def one_file(entries: Sequence[BatchEntry], segment_size: int) -> Sequence[BatchEntry]:
    """Return the first entries that are in one file: their bytes are one view."""
    file = entries[0].start // segment_size
    for at, entry in enumerate(entries):
        if entry.start // segment_size != file:
            return entries[:at]
    return entries


class OutgoingBatches:
    """See the module's text."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._held: tuple[int, int, FrameBatches] | None = None
        self._asked: deque[int] = deque(maxlen=AHEAD_STEPS)

    def at(self, start: int) -> FrameBatches:
        """Return the batches of one frame from border ``start``, which is below the end."""
        store = self._store
        end = store.committed
        held = self._held
        if held is not None and held[0] == start and held[1] == end:
            return held[2]
        if end - start <= FRAME_BYTES_MAX and (batch := store.lone_batch(start)) is not None:
            lone: FrameBatches = batch[0][: messages.ENTRY.size], batch[1], end
            self._held = (start, end, lone)
            return lone
        self._read_ahead(start, end)
        entries = one_file(
            store.entries(start, max_bytes=FRAME_BYTES_MAX), store.settings.segment_size
        )
        last = entries[-1]
        stop = last.start + covered(last)
        batches = (
            messages.pack_entries(entries),
            store.view(start, stop),
            last.start + last.length,
        )
        self._held = (start, end, batches)
        return batches

    def _read_ahead(self, start: int, end: int) -> None:
        """Ask the system to read what a slave at ``start`` gets next, if that is not hot."""
        cold, step = end - self._store.settings.hot_bytes, start // AHEAD_STEP
        if start >= cold or step in self._asked:
            return
        new = AHEAD_BYTES if step - 1 in self._asked else 0
        self._asked.append(step)
        begin = step * AHEAD_STEP + new
        stop = min((step + 1) * AHEAD_STEP + AHEAD_BYTES, end)
        if max(begin, start) < stop:
            self._store.read_ahead(max(begin, start), stop - max(begin, start))

    def clear(self) -> None:
        """Release the views."""
        self._held = None

    def damage_at(self, start: int) -> str | None:
        """Return what is wrong with our own batch at ``start``; None if it is good."""
        store = self._store
        if store.border_at_or_below(start) != start or start >= store.committed:
            return "no batch begins there"
        entry = store.entries(start, max_bytes=1)[0]
        if kernels.crc32c(store.view(start, start + covered(entry))) == entry.crc:
            return None
        return "its bytes do not match its CRC"


def covered(entry: BatchEntry) -> int:
    """Return how many bytes of a batch are sent and covered by its CRC."""
    return FILLER_BYTES if entry.kind == KIND_FILLER else entry.length
