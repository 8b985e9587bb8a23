"""The dispatcher: enters records below the confirm offset into their queues.

It reads the log in stretches of whole batches with one kernel call each and writes each queue's new
entries with one call, so nothing runs in Python per record. The same stretch yields the sections of
idempotent producers for the confirmed layer, and the rows that say what groups have consumed.

``position`` is the dispatched offset: below it, every record has its entry. After an error a
stretch is repeated from its beginning; queues skip entries that they have.

Not here: how far it may go (the store passes the confirm offset, R3), the key index
(`storage.key_index.index`, which scans the log by itself).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from storage.log.segments import Segments
from storage.log.stretches import STRETCH_MAX, stretch
from storage.messaging.fold import Messaging
from storage.messaging.halves import Half
from storage.queues.light_queues import light_runs
from storage.queues.queues import ConsumeQueues
from storage.state.control import Control
from storage.state.controls import decode_control
from storage.state.gathered import Gathered, idempotent_sections
from storage.state.producers import Producers
from storage.state.sequences import Marks, marks_of
from twinlog.format import record
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.system_topics import (
    DELAY_TOPIC,
    HALF_TOPIC,
    SYSTEM_TOPIC_GROUP,
    SYSTEM_TOPIC_META,
    TIMER_TOPIC,
)
from twinlog.format.waiting import halves
from twinlog.format.waiting.timers import due_of, origin_of
from twinlog.kernels import gather_queues, gather_units

_META = SYSTEM_TOPIC_META.encode()
_GROUP = SYSTEM_TOPIC_GROUP.encode()
_DELAY = DELAY_TOPIC.encode()
_TIMER = TIMER_TOPIC.encode()
_HALF = HALF_TOPIC.encode()
_FOLDED = frozenset({_META, _GROUP, _TIMER, _HALF})
DROPPED_FILES = 64
"""Queue files of a deleted topic that one step removes."""
DUE_NOW = 1 << 62
"""So many bytes of control records make a snapshot due at once: until then a start that was not
clean finds queue files missing and builds all queues again."""


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


def touched(segments: Segments, start: int, end: int) -> set[tuple[str, int]]:
    """Return the (topic, queue) that the records of ``start..end`` are entered in.

    Raises:
        CorruptionError: The log is inconsistent there.
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


def entered(segments: Segments, queues: ConsumeQueues, start: int) -> int:
    """Return the log offset up to which queue files prove that batches were confirmed.

    Only confirmed batches are entered in queues, in log order and whole stretches: if a queue file
    holds the entry of a record, the batch of that record was below confirm, and so was everything
    before it. The walk goes from border ``start`` to the first stretch without any entry. Must not
    be used if a cut may have left entries in the files.

    Raises:
        CorruptionError: The log is inconsistent there.
    """
    end = segments.last.index.end if segments.last is not None else start
    proven = start
    while start < end:
        data_end, after = stretch(segments, start, end, STRETCH_MAX)
        if data_end > start:
            segments.prove(start, data_end)
            gathered, _ = scan(segments, start, data_end, ())
            last = -1
            for name, queue, first, entries in gathered.entries:
                if held := queues.held(name.decode(), queue, first, entries):
                    last = max(last, QUEUE_ENTRY.unpack_from(entries, (held - 1) * 20)[0])
            if last < 0:
                break
            index = segments.at(last).index
            proven = index.span(index.find(last))[1]
        start = after
    return proven


class Dispatcher:
    """Builds queues, the confirmed layer of producers and the confirmed fold of groups.

    Args:
        segments: The log.
        queues: The queues to write.
        producers: Its confirmed layer is updated.
        messaging: The fold of groups; updated last, after the queues of a stretch are written.
        position: Where to begin; a batch border.
    """

    def __init__(
        self,
        segments: Segments,
        queues: ConsumeQueues,
        producers: Producers,
        messaging: Messaging,
        position: int,
    ) -> None:
        self._segments = segments
        self._queues = queues
        self._producers = producers
        self._messaging = messaging
        self.position = position
        self._deleting: tuple[int, str] | None = None
        self.control_bytes = 0
        """Bytes of control records entered since it was reset; they make a snapshot due."""
        self.group_bytes = 0
        """The same for records of rows, which say what groups have consumed."""
        self.delayed = 0
        """Stretches with records that wait for a delay level, entered since the start."""

    def step(self, confirm: int, max_bytes: int) -> bool:
        """Dispatch about ``max_bytes``, at least one batch; returns whether more is left.

        Raises:
            DiskError: Everything below ``position`` is entered; call again later.
            CorruptionError: The log or a queue is inconsistent.
        """
        if self._deleting is not None:
            return self._delete(*self._deleting, confirm)
        if self.position >= confirm:
            return False
        start = self.position
        data_end, end = stretch(self._segments, start, confirm, max_bytes)
        if data_end > start:
            # A queue must never be built from bytes that no longer match their CRC.
            self._segments.prove(start, data_end)
            batched = self._queues.batched_names
            gathered, view = scan(self._segments, start, data_end, batched)
            deletion = self._deletion(gathered, view, start)
            if deletion is not None:
                # What is after the record may be of a topic made again: it is the next stretch.
                self._enter(*scan(self._segments, start, deletion[0], batched), start)
                self._queues.drop(deletion[1])
                self._deleting = deletion
                return self._delete(*deletion, confirm)
            self._enter(gathered, view, start)
        # Last: after an error the whole stretch is entered again.
        self.position = end
        return end < confirm

    def _delete(self, end: int, topic: str, confirm: int) -> bool:
        """Remove some of a deleted topic's files; with the last ones ``position`` becomes ``end``.

        Before, no reader sees a topic made again: it begins at ``end``.
        """
        if self._queues.remove_files(topic, DROPPED_FILES):
            return True
        self._deleting = None
        self.position, self.control_bytes = end, DUE_NOW
        return end < confirm

    def _deletion(self, gathered: Gathered, view: memoryview, base: int) -> tuple[int, str] | None:
        """Return end and topic of the first record of a stretch that deletes a topic.

        Not those that an adoption found (epoch 0): it took the store over as it was.
        """
        for at, size, change in _controls(view, base, gathered):
            if change.deleted and self._segments.batch_at(at).epoch:
                return at + size, change.deleted
        return None

    def _enter(self, gathered: Gathered, view: memoryview, base: int) -> None:
        for name, queue, first, _, units in gathered.units:
            self._queues.write(name.decode(), queue, first, units)
        for name, queue, first, entries in gathered.entries:
            self._queues.write(name.decode(), queue, first, entries)
            if name == _META:
                self.control_bytes += sum(size for _, size, _ in QUEUE_ENTRY.iter_unpack(entries))
            elif name == _GROUP:
                self.group_bytes += sum(size for _, size, _ in QUEUE_ENTRY.iter_unpack(entries))
            elif name == _DELAY:
                self.delayed += 1
        sequences, lights = marks_of(view)
        for light, first, entries in light_runs(view, base, lights):
            self._queues.write_light(light, first, entries)
        enter_sections(self._producers, view, base, gathered, marks=sequences, confirmed=True)
        apply_rows(self._messaging, self._segments, view, base, gathered)


def apply_rows(
    messaging: Messaging, segments: Segments, view: memoryview, base: int, gathered: Gathered
) -> None:
    """Give the fold what whole batches say of groups and of what waits.

    These are rows, control records that delete groups, and records that wait for a time or for the
    end of a transaction, in log order. Epoch 0 says nothing: it is what an adoption found, and took
    over in its own way.
    Arguments as of `enter_sections`; the batches lie in one file, and with it in one such history.
    """
    names = _FOLDED.intersection([one[0] for one in gathered.entries])
    if not names:
        return
    # Epochs only rise along the log, and what the fold knows is of epochs above 0.
    if not 0 < messaging.position <= base and not segments.batch_at(base).epoch:
        return
    dropped: dict[int, tuple[Collection[str], str]] = {}
    if _META in names:
        dropped = {
            at: (one.dropped, one.deleted)
            for at, _, one in _controls(view, base, gathered)
            if one.dropped or one.deleted
        }
    places = sorted(
        (offset, size, name)
        for name, _, _, entries in gathered.entries
        if name in (_GROUP, _TIMER, _HALF) or (name == _META and dropped)
        for offset, size, _ in QUEUE_ENTRY.iter_unpack(entries)
    )
    for at, size, name in places:
        if name == _META:
            if at in dropped:
                messaging.drop_all(*dropped[at], at, at + size)
            continue
        if name == _GROUP:
            body, stored_ms = record.body_of(view, at - base)
            messaging.apply_body(body, stored_ms, at, at + size)
        else:
            apply_record(messaging, record.decode(view, at - base, check_crc=False))


def apply_record(messaging: Messaging, found: record.Record) -> None:
    """Give the fold a record of `SYSTEM_TOPIC_GROUP`, `TIMER_TOPIC` or `HALF_TOPIC`."""
    at, end = found.log_offset, found.log_offset + found.size
    if found.topic == SYSTEM_TOPIC_GROUP:
        messaging.apply_body(found.body, found.store_timestamp, at, end)
    elif found.topic == HALF_TOPIC:
        messaging.enter_half(_half(found))
    elif (due := due_of(found.properties, found.store_timestamp)) is not None:
        messaging.enter_timer(due, at, end, origin_of(found.properties))


def _half(found: record.Record) -> Half:
    named = found.properties
    return Half(
        found.queue_offset, found.log_offset, found.size, found.store_timestamp,
        named.get(halves.GROUP, ""), named.get(halves.NAME, ""),
        halves.immunity_ms(named.get(halves.IMMUNITY, "")),
    )  # fmt: skip


def enter_sections(
    producers: Producers,
    view: memoryview,
    base: int,
    gathered: Gathered,
    *,
    marks: Marks,
    confirmed: bool,
) -> None:
    """Apply whole batches to a layer of producers: sections, and records that forget producers.

    In log order, because a section after such a record belongs to a producer that begins again.

    Args:
        producers: The lines to change.
        view: Bytes of the batches.
        base: Log offset of its first byte.
        gathered: Queue entries of their records.
        marks: Records with the property TL_SEQ.
        confirmed: Which layer.
    """
    changes = [(at, change) for at, _, change in _controls(view, base, gathered)]
    for producer, topic, queue, epoch, done in idempotent_sections(view, base, gathered, marks):
        while changes and changes[0][0] < done.log_offset:
            at, change = changes.pop(0)
            change.forget(producers, at, confirmed=confirmed)
        producers.rebuild((producer, topic, queue), epoch, done, confirmed=confirmed)
    for at, change in changes:
        change.forget(producers, at, confirmed=confirmed)


def _controls(
    view: memoryview, base: int, gathered: Gathered
) -> Iterator[tuple[int, int, Control]]:
    """Yield (log offset, bytes, control) of the control records."""
    for name, _, _, entries in gathered.entries:
        if name != _META:
            continue
        for offset, size, _ in QUEUE_ENTRY.iter_unpack(entries):
            found = record.decode(bytes(view[offset - base : offset - base + size]))
            yield offset, size, decode_control(found.body)
