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

from collections.abc import Collection, Iterator

from storage.light import light_runs
from storage.producers import Producers
from storage.queues import ConsumeQueues
from storage.sections import Gathered, Marks, idempotent_sections, marks_of
from storage.segments import Segments
from storage.state import ForgetProducers, decode_control
from twinlog import record
from twinlog.errors import CorruptionError
from twinlog.kernels import gather_queues, gather_units
from twinlog.layout import KIND_FILLER, QUEUE_ENTRY, SYSTEM_TOPIC_META

STRETCH_MAX = 4 * 1024 * 1024
_META = SYSTEM_TOPIC_META.encode()


def scan(
    segments: Segments, start: int, end: int, batched: Collection[bytes]
) -> tuple[Gathered, memoryview]:
    """Scan the whole batches ``start..end`` of one segment; returns queue entries and bytes.

    ``batched`` names the topics with batch queues.
    """
    view, length = segments.view(start, end), end - start
    entries = gather_queues(view, 0, length, start)
    if not batched:
        return Gathered(entries), view
    entries = [one for one in entries if one[0] not in batched]
    return Gathered(entries, gather_units(view, 0, length, start, batched)), view


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


def touched(segments: Segments, start: int, end: int) -> set[tuple[str, int]]:
    """Return the (topic, queue) that the records of ``start..end`` are entered in.

    Raises:
        CorruptionError: The log does not hold together there.
    """
    found: set[tuple[str, int]] = set()
    while start < end:
        data_end, after = stretch(segments, start, end, STRETCH_MAX)
        if data_end > start:
            segments.prove(start, data_end)
            gathered, view = scan(segments, start, data_end, ())
            found.update((name.decode(), queue) for name, queue, _, _ in gathered.entries)
            lights = marks_of(view)[1]
            found.update((name, 0) for name, _, _ in light_runs(view, start, lights))
        start = after
    return found


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
        self.control_bytes = 0
        """Bytes of control records entered since it was set to 0: a snapshot is due by them."""

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
            batched = self._queues.batched_names
            self._enter(*scan(self._segments, start, data_end, batched), start)
        self.position = end
        return end < confirm

    def _enter(self, gathered: Gathered, view: memoryview, base: int) -> None:
        for name, queue, first, _, units in gathered.units:
            self._queues.write(name.decode(), queue, first, units)
        for name, queue, first, entries in gathered.entries:
            self._queues.write(name.decode(), queue, first, entries)
            if name == _META:
                self.control_bytes += sum(size for _, size, _ in QUEUE_ENTRY.iter_unpack(entries))
        sequences, lights = marks_of(view)
        for light, first, entries in light_runs(view, base, lights):
            self._queues.write_light(light, first, entries)
        enter_sections(self._producers, view, base, gathered, marks=sequences, confirmed=True)


def enter_sections(
    producers: Producers,
    view: memoryview,
    base: int,
    gathered: Gathered,
    *,
    marks: Marks,
    confirmed: bool,
) -> None:
    """Give whole batches to a layer of producers: their sections, and what forgets producers.

    In log order, for a section behind such a record belongs to a producer that begins anew.

    Args:
        producers: What is changed.
        view: Bytes of the batches.
        base: Log offset of its first byte.
        gathered: Queue entries of their records.
        marks: Where TL_SEQ stands.
        confirmed: Which layer.
    """
    forgets = list(_forgets(view, base, gathered))
    for producer, topic, queue, epoch, done in idempotent_sections(view, base, gathered, marks):
        while forgets and forgets[0][0] < done.log_offset:
            producers.forget(forgets.pop(0)[1], confirmed=confirmed)
        producers.rebuild((producer, topic, queue), epoch, done, confirmed=confirmed)
    for _, below in forgets:
        producers.forget(below, confirmed=confirmed)


def _forgets(view: memoryview, base: int, gathered: Gathered) -> Iterator[tuple[int, int]]:
    """Yield (log offset, below) of the records that forget producers."""
    for name, _, _, entries in gathered.entries:
        if name != _META:
            continue
        for offset, size, _ in QUEUE_ENTRY.iter_unpack(entries):
            found = record.decode(bytes(view[offset - base : offset - base + size]))
            change = decode_control(found.body)
            if isinstance(change, ForgetProducers):
                yield offset, min(change.below, offset)
