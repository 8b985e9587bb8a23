"""The dispatcher: enters records below the confirm offset into their queues.

It reads the log in stretches of whole batches with one kernel call each and writes each queue's new
entries with one call, so nothing runs in Python per record. The same stretch gives the sections of
idempotent producers for the confirmed layer.

``position`` is the dispatched offset: below it, every record has its entry. A stretch that met an
error is done again from its beginning; queues skip what they have.

Not here: how far it may go (the store passes the confirm offset), the key index.
"""

from __future__ import annotations

from storage.consume_queue import ConsumeQueues
from storage.producers import Producers
from storage.sections import idempotent_sections
from storage.segments import Segments
from twinlog.errors import CorruptionError
from twinlog.kernels import scan_queues
from twinlog.layout import KIND_FILLER

STRETCH_MAX = 4 * 1024 * 1024

Runs = list[tuple[bytes, int, int, bytes]]


def scan(segments: Segments, start: int, end: int) -> tuple[Runs, memoryview]:
    """Scan the whole batches ``start..end`` of one segment; returns runs and the bytes.

    Raises:
        CorruptionError: The records do not reach to the end of the range.
    """
    view = segments.view(start, end)
    runs = scan_queues(view, 0, end - start, start)
    return runs, view


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
        segment = self._segments.at(self.position)
        index = segment.index
        number = index.find(self.position)
        stop = min(confirm, self.position + min(max(max_bytes, 1), STRETCH_MAX))
        end = self._segments.border_at_or_below(min(stop, segment.end))
        if end <= self.position:
            end = index.span(number)[1]
        if end > confirm:
            raise CorruptionError(f"confirm offset {confirm} is no batch border", offset=confirm)
        start = self.position
        data_end = end
        if end == segment.end:
            filler = index.entry(index.count - 1)
            data_end = filler.start if filler.kind == KIND_FILLER else end
        if data_end > start:
            self._segments.prove(start, data_end)
            self._enter(*scan(self._segments, start, data_end), start)
        self.position = end
        return end < confirm

    def _enter(self, runs: Runs, view: memoryview, base: int) -> None:
        joined: dict[tuple[bytes, int], tuple[int, list[bytes]]] = {}
        for topic, queue, first, entries in runs:
            known = joined.get((topic, queue))
            if known is None:
                joined[topic, queue] = (first, [entries])
            else:
                known[1].append(entries)
        for (topic, queue), (first, parts) in joined.items():
            self._queues.write(topic.decode(), queue, first, b"".join(parts))
        for topic, queue, first, entries in runs:
            for producer, epoch, done in idempotent_sections(view, base, first, entries):
                key = (producer, topic.decode(), queue)
                self._producers.rebuild(key, epoch, done, confirmed=True)
