"""The dispatcher: enters records below the confirm offset into their queues.

It reads the log in stretches of whole batches with one kernel call each and writes each queue's new
entries with one call, so nothing runs in Python per record. The same stretch gives the sections of
idempotent producers for the confirmed layer.

``position`` is the dispatched offset: below it, every record has its entry. A stretch that met an
error is done again from its beginning; queues skip what they have.

Not here: how far it may go (the store passes the confirm offset), the key index
(`storage.key_index`, which goes over the log by itself).
"""

from __future__ import annotations

from storage.consume_queue import ConsumeQueues
from storage.producers import Producers
from storage.sections import Gathered, idempotent_sections
from storage.segments import Segments
from twinlog.errors import CorruptionError
from twinlog.kernels import gather_queues
from twinlog.layout import KIND_FILLER

STRETCH_MAX = 4 * 1024 * 1024


def scan(segments: Segments, start: int, end: int) -> tuple[Gathered, memoryview]:
    """Scan the whole batches ``start..end`` of one segment; returns queue entries and bytes."""
    view = segments.view(start, end)
    return gather_queues(view, 0, end - start, start), view


def stretch(segments: Segments, start: int, limit: int, max_bytes: int) -> tuple[int, int]:
    """Choose whole batches of one segment from border ``start`` on, which is below ``limit``.

    Args:
        segments: The log.
        start: Where to begin.
        limit: Confirm offset.
        max_bytes: About how many bytes; at least one batch.

    Returns:
        Where their records end, and where to go on: behind a filler, if one follows.

    Raises:
        CorruptionError: ``limit`` lies inside a batch.
    """
    segment = segments.at(start)
    index = segment.index
    number = index.find(start)
    stop = min(limit, start + min(max(max_bytes, 1), STRETCH_MAX))
    end = segments.border_at_or_below(min(stop, segment.end))
    if end <= start:
        end = index.span(number)[1]
    if end > limit:
        raise CorruptionError(f"confirm offset {limit} is no batch border", offset=limit)
    if end == segment.end:
        filler = index.entry(index.count - 1)
        return (filler.start if filler.kind == KIND_FILLER else end), end
    return end, end


class Dispatcher:
    """Builds queues and the confirmed layer of producers.

    Args:
        segments: The log.
        queues: What is written.
        producers: Whose confirmed layer follows.
        position: Where to begin; a batch border.
    """

    def __init__(
        self, segments: Segments, queues: ConsumeQueues, producers: Producers, position: int
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._producers = producers
        self.position = position

    def step(self, confirm: int, max_bytes: int) -> bool:
        """Dispatch about ``max_bytes``, at least one batch; returns whether more is left.

        Raises:
            DiskError: Nothing below ``position`` is in doubt; call again later.
            CorruptionError: The log or a queue does not hold together.
        """
        if self.position >= confirm:
            return False
        start = self.position
        data_end, end = stretch(self._segments, start, confirm, max_bytes)
        if data_end > start:
            self._segments.prove(start, data_end)
            self._enter(*scan(self._segments, start, data_end), start)
        self.position = end
        return end < confirm

    def _enter(self, gathered: Gathered, view: memoryview, base: int) -> None:
        for name, queue, first, entries in gathered:
            self._queues.write(name.decode(), queue, first, entries)
        for producer, topic, queue, epoch, done in idempotent_sections(view, base, gathered):
            self._producers.rebuild((producer, topic, queue), epoch, done, confirmed=True)
