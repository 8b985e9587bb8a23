"""Do the queue files of a store directory say what its log says?

Each record of the log has an entry in its queue, at its queue offset; what the files hold there is
compared byte by byte with what must be there. An entry that differs is looked at by itself: in
RocketMQ's queues, where an entry's place may be another than the number in its record, it is right
if it points to a record of that queue, after that of the entry before it. In ours (epoch 1 and
later) the place is the number.

A missing entry is no damage in a twinlog store: recovery adds it. Unless it is a hole: zeros in a
file that has entries after them, below the newest snapshot, up to which a start trusts the files.

Entries that no record asked for point to files that no longer exist, after the end of the log, or
are those of light queues: one record is entered in several. These are looked at one by one, and
each record that names light queues must have been entered in as many of them.

Units: log offsets in bytes, queue offsets in records, ``position`` a byte in the named file.

Not here: the records themselves (`twinlog.store.verify.check`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import BATCH_QUEUE_UNIT, QUEUE_ENTRY
from twinlog.format.inner_batches import is_inner_batch
from twinlog.format.light_queues import LIGHT_PROPERTY
from twinlog.format.record import decode
from twinlog.store.damage import Grade
from twinlog.store.log import Run
from twinlog.store.queues import AnyQueue, BatchQueue, Entry, Queue, is_folder_name, light_places
from twinlog.store.reader import StoreReader
from twinlog.store.topics import Deleted, queues_in_database
from twinlog.store.verify.findings import FINDINGS_MAX, Finding, Judgement

Key = tuple[str, int]
"""Topic and number of a queue."""
_ZEROS = bytes(QUEUE_ENTRY.size)
_FILLED = 0x7FFFFFFF
"""Size in the entries that fill a queue up to its first one."""
_SHOWN = 80
"""Characters of an odd name that are shown."""
_FILL = _FILLED.to_bytes(4, "big")


@dataclass(slots=True)
class Compared:
    """What comparing a run, or all runs, has shown.

    Attributes:
        entries: Entries that are what the log says.
        spans: Stretches of queue offsets that were compared, of each queue, in order of the log.
        units: Units of batch queues that were compared.
        missing: Records without an entry.
        odd: Batch queues that hold something else.
        cut: Batch queues that lack units of records up to which a start trusts them.
        light: Records that must be in each light queue.
        findings: At most `FINDINGS_MAX` of a run.
    """

    entries: int = 0
    spans: dict[Key, list[tuple[int, int]]] = field(
        default_factory=dict[Key, list[tuple[int, int]]]
    )
    units: dict[Key, int] = field(default_factory=dict[Key, int])
    missing: dict[Key, int] = field(default_factory=dict[Key, int])
    odd: set[Key] = field(default_factory=set[Key])
    cut: set[Key] = field(default_factory=set[Key])
    light: dict[Key, int] = field(default_factory=dict[Key, int])
    findings: list[Finding] = field(default_factory=list[Finding])

    def join(self, part: Compared) -> None:
        """Take over what a later run has shown; its findings are not."""
        self.entries += part.entries
        for key, spans in part.spans.items():
            for span in spans:
                self.cover(key, *span)
        pairs = (self.units, part.units), (self.missing, part.missing), (self.light, part.light)
        for to, of in pairs:
            for key, count in of.items():
                to[key] = to.get(key, 0) + count
        self.odd |= part.odd
        self.cut |= part.cut

    def cover(self, key: Key, first: int, end: int) -> None:
        """Note that the entries ``first..end`` of a queue were compared."""
        spans = self.spans.setdefault(key, [])
        if spans and spans[-1][1] == first:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((first, end))


def compare_run(store: StoreReader, run: Run) -> Compared:
    """Compare what the queues' files hold for the records of a run with what they must hold."""
    found = Compared()
    queues = store.stored_queues
    for key, first, entries, each in _expected(store, run):
        queue = queues.get(key)
        count = len(entries) // each
        if queue is None:
            found.missing[key] = found.missing.get(key, 0) + count
        elif isinstance(queue, Queue) and each == QUEUE_ENTRY.size:
            found.cover(key, first, first + count)
            if queue.raw(first, count) == entries:
                found.entries += count
            else:
                _Differing(store, queue, found).look(first, entries)
        elif not isinstance(queue, Queue) and each != QUEUE_ENTRY.size:
            held = queue.stored(first, count)
            found.entries += len(held) // each
            found.units[key] = found.units.get(key, 0) + len(held) // each
            if held != entries[: len(held)]:
                found.odd.add(key)
            if len(held) < len(entries):
                found.missing[key] = found.missing.get(key, 0) + count - len(held) // each
                (last,) = struct.unpack_from(">q", entries, len(entries) - each)
                if store.ours and last < store.trusted_queues:
                    found.cut.add(key)
    for key in _light(store, run):
        found.light[key] = found.light.get(key, 0) + 1
    return found


def _expected(store: StoreReader, run: Run) -> Iterator[tuple[Key, int, bytes, int]]:
    """Yield (queue, where its entries begin, entries, size of one) of what a run must have.

    They begin at a queue offset, those of a batch queue at the log offset of the first.
    """
    view, start = store.series.view(run.file), run.file.start
    batched = store.batch_names
    span = (view, run.offset - start, run.end - start, run.offset)
    for topic, number, first, entries in kernels.gather_queues(*span):
        if topic not in batched:
            yield (topic.decode("utf-8", "replace"), number), first, entries, QUEUE_ENTRY.size
    for topic, number, _, _, units in kernels.gather_units(*span, batched) if batched else ():
        (first,) = struct.unpack_from(">q", units)
        key = topic.decode("utf-8", "replace"), number
        yield key, first, units, BATCH_QUEUE_UNIT.size


def _light(store: StoreReader, run: Run) -> Iterator[Key]:
    """Yield the light queues that records of a run must be in, one time for each record."""
    view, start = store.series.view(run.file), run.file.start
    for at, _ in kernels.find_property(view, run.offset - start, run.end - start, LIGHT_PROPERTY):
        try:
            record = decode(view, at, check_crc=False)
        except CorruptionError:
            continue
        for name, _ in light_places(record, store.batch_topics):
            yield name, 0


class _Differing:
    """Entries of one queue, some of which are not what the log says."""

    def __init__(self, store: StoreReader, queue: Queue, found: Compared) -> None:
        self._store = store
        self._queue = queue
        self._found = found
        self._written: dict[int, int] = {}

    def look(self, first: int, entries: bytes) -> None:
        """Judge the entries from ``first`` on that should be ``entries``."""
        found, key = self._found, (self._queue.topic, self._queue.queue)
        count, size = len(entries) // QUEUE_ENTRY.size, QUEUE_ENTRY.size
        held = self._queue.raw(first, count)
        missing, holes = 0, 0
        for i in range(count):
            one = held[size * i : size * (i + 1)]
            if one == entries[size * i : size * (i + 1)]:
                found.entries += 1
                continue
            offset, length, _ = QUEUE_ENTRY.unpack_from(entries, size * i)
            if one == _ZEROS:
                missing += 1
                if self._hole(first + i, offset):
                    holes += 1
                    if holes == 1:
                        self._add(first + i, offset, length, "is zeros, though entries follow")
            elif not self._exact(offset) and _leads_there(self._store, self._queue, first + i, one):
                if self._in_order(first + i, one):
                    found.entries += 1
                else:
                    self._add(first + i, offset, length, "is out of order")
            elif one[8:12] == _FILL and not self._store.ours:
                missing += 1
            else:
                self._add(first + i, offset, length, "is not what the log says")
        if missing:
            found.missing[key] = found.missing.get(key, 0) + missing

    def _exact(self, offset: int) -> bool:
        """Whether the place of a record's entry is its number: we wrote it."""
        return self._store.ours and offset >= self._store.adopted

    def _in_order(self, number: int, one: bytes) -> bool:
        """Whether an entry at another place points after the one before it: both append only."""
        before = self._queue.raw(number - 1, 1) if number > self._queue.min else b""
        return len(before) < len(one) or before[8:12] == _FILL or before[:8] < one[:8]

    def _hole(self, number: int, offset: int) -> bool:
        """Whether the entry is missing where a start looks no more."""
        if not self._store.ours or offset >= self._store.trusted_queues:
            return False
        return self._queue.written_behind(number, self._written)

    def _add(self, number: int, offset: int, length: int, what: str) -> None:
        if len(self._found.findings) >= FINDINGS_MAX:
            return
        name, position = self._queue.place(number)
        path = f"{self._queue.folder}/{self._queue.topic}/{self._queue.queue}/{name}"
        grade = Grade.DAMAGE
        text, readable = f"entry {number} {what}", "the records, through the log"
        self._found.findings.append(Finding(grade, path, position, offset, length, text, readable))


def _leads_there(store: StoreReader, queue: Queue, number: int, data: bytes) -> bool:
    """Whether an entry as it is points to a record of its queue."""
    offset, size, code = struct.unpack(">qiq", data)
    return _right(store, queue, queue.resolved(number, (offset, size, code)))


def _right(store: StoreReader, queue: Queue, entry: Entry) -> bool:
    """Whether an entry points to a record that belongs into its queue, in ours at that place."""
    record = store.record_at(entry.log_offset)
    if record is None or record.size != entry.size or entry.tags_code != record.tags_code:
        return False
    exact = store.ours and entry.log_offset >= store.adopted
    if (record.topic, record.queue) == (queue.topic, queue.queue):
        return not exact or record.queue_offset == entry.queue_offset
    places = dict(light_places(record))
    return queue.topic in places and not (exact and places[queue.topic] != entry.queue_offset)


def _right_unit(store: StoreReader, queue: BatchQueue, unit: Entry, data: bytes) -> bool:
    """Whether a unit of a batch queue says of its record what the record says."""
    record = store.record_at(unit.log_offset)
    if record is None or (record.topic, record.queue) != (queue.topic, queue.queue):
        return False
    if store.ours and unit.log_offset >= store.adopted:
        view = store.series.read(unit.log_offset, record.size)
        made = kernels.gather_units(view, 0, len(view), unit.log_offset, store.batch_names)
        return bool(made) and made[0][4] == data
    number = record.properties.get("INNER_NUM") if is_inner_batch(record) else "1"
    said = unit.queue_offset, unit.store_timestamp, str(unit.count), unit.size
    codes = record.tags_code, 0
    stored = record.queue_offset, record.store_timestamp, number, record.size
    return said == stored and unit.tags_code in codes


def judge_queues(store: StoreReader, whole: Compared, judgement: Judgement) -> None:
    """Look at each entry that no record asked for, and say which records have none."""
    for key, queue in store.stored_queues.items():
        _check_tail(store, queue, whole.spans.get(key, []), judgement)
        if isinstance(queue, Queue):
            for span in _others(queue, whole.spans.get(key, [])):
                _one_by_one(store, queue, span, judgement)
        elif key in whole.odd or whole.units.get(key, 0) != queue.held:
            _each_unit(store, queue, judgement, cut=key in whole.cut)
    for key, count in whole.light.items():
        light = store.stored_queues.get(key)
        held = light.leading_into(store.start, store.end) if isinstance(light, Queue) else 0
        if held < count:
            whole.missing[key] = whole.missing.get(key, 0) + count - held
    _report_missing(store, whole.missing, judgement)


def _check_tail(
    store: StoreReader, queue: AnyQueue, spans: list[tuple[int, int]], judgement: Judgement
) -> None:
    """Look at the bytes of a twinlog file after its last entry; RocketMQ leaves cut entries there.

    Zeros before entries are what a crash may leave; a start fills them again.
    """
    found = queue.broken() if store.ours and not store.adopted else None
    if found is None:
        return
    name, position, number, zeros = found
    if any(first <= number < end for first, end in spans):
        return
    grade = Grade.DAMAGE if store.clean or not zeros else Grade.NOTE
    path = f"{queue.folder}/{queue.topic}/{queue.queue}/{name}"
    text = f"entry {number} is missing, though later ones exist"
    judgement.add(Finding(grade, path, position, None, 0, text, _READABLE))


def _others(queue: Queue, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the stretches of a queue's entries that are in none of ``spans``."""
    at = queue.min
    for first, end in sorted(spans):
        if first > at:
            yield at, min(first, queue.max)
        at = max(at, end)
    if at < queue.max:
        yield at, queue.max


def _report_missing(store: StoreReader, missing: dict[Key, int], judgement: Judgement) -> None:
    """Records without an entry: recovery adds them, except after a stop that claims to be clean.

    Nothing is known of a queue that cannot be read, or that is in a database; a deleted topic has
    no entries.
    """
    grade = Grade.DAMAGE if store.clean and not store.ours else Grade.NOTE
    deleted, in_database = Deleted(store), not store.ours and queues_in_database(store.root)
    gone: dict[str, int] = {}
    odd: dict[str, int] = {}
    for (topic, number), count in sorted(missing.items()):
        if not is_folder_name(topic):
            odd[topic] = odd.get(topic, 0) + count
            continue
        queue = store.stored_queues.get((topic, number))
        if in_database if queue is None else queue.unreadable():
            continue
        if queue is None and deleted.has(topic):
            gone[topic] = gone.get(topic, 0) + count
            continue
        folder = "batchconsumequeue" if topic in store.batch_topics else "consumequeue"
        name = f"{folder}/{topic}/{number}"
        text = f"{count} records of the log have no entry"
        judgement.add(Finding(grade, name, 0, None, 0, text, "all of them, through the log"))
    for topic, count in odd.items():
        text = f"{count} records name a topic {topic[:_SHOWN]!r}, which no folder can be called"
        judgement.add(Finding(Grade.DAMAGE, "commitlog", 0, None, 0, text, "their bodies"))
    for topic, count in gone.items():
        text = f"{count} records of the log have no entry: topics.json has no such topic any more"
        name = f"consumequeue/{topic}"
        judgement.add(Finding(Grade.NOTE, name, 0, None, 0, text, "all of them, through the log"))


_READABLE = "the records, through the log"
_Place = tuple[str, int, int, int]
"""File, byte in it, log offset and size that the entry says."""


class _Behind:
    """Entries that point after the end of the log: nothing but a tail that recovery drops.

    Where another entry follows they are damage.
    """

    def __init__(self, store: StoreReader, judgement: Judgement) -> None:
        self._verdict = judgement
        self._grade = Grade.DAMAGE if store.clean else Grade.NOTE
        self._first: tuple[_Place, int] | None = None
        self._more = 0

    def add(self, number: int, place: _Place) -> None:
        """Note that entry ``number`` leads there."""
        if self._first is None:
            self._first = place, number
        else:
            self._more += 1

    def tell(self, *, followed: bool = False) -> None:
        """Report what was added, as one finding, and begin again."""
        if self._first is not None:
            place, number = self._first
            text = f"entry {number} points after the end of the log"
            text += f", {self._more} after it" if self._more else ""
            text += ", though others follow" if followed else ""
            grade = Grade.DAMAGE if followed else self._grade
            self._verdict.add(Finding(grade, *place, text, _READABLE, beyond=not followed))
        self._first, self._more = None, 0


def _one_by_one(
    store: StoreReader, queue: Queue, span: tuple[int, int], judgement: Judgement
) -> None:
    """Look at entries that do not simply follow the log; those of light queues too."""
    behind, last = _Behind(store, judgement), -1
    for entry in queue.entries(*span):
        number, offset = entry.queue_offset, entry.log_offset
        if entry.size == _FILLED or offset < store.start:
            continue
        name, position = queue.place(number)
        place = f"consumequeue/{queue.topic}/{queue.queue}/{name}", position, offset, entry.size
        if offset >= store.end:
            if not store.in_damage(offset):  # the torn tail is reported already
                behind.add(number, place)
            continue
        behind.tell(followed=True)
        if offset < last:
            text = f"entry {number} is out of order"
            judgement.add(Finding(Grade.DAMAGE, *place, text, _READABLE))
        last = offset
        if not _right(store, queue, entry) and not store.in_damage(offset):
            text = f"entry {number} points at no such record"
            judgement.add(Finding(Grade.DAMAGE, *place, text, _READABLE))
    behind.tell(followed=span[1] < queue.max)


def _each_unit(store: StoreReader, queue: BatchQueue, judgement: Judgement, *, cut: bool) -> None:
    """Look at all units of a batch queue; ``cut``: some that a start takes for there are not."""
    behind = _Behind(store, judgement)
    for unit, data, name, position in queue.laid():
        number, offset = unit.queue_offset, unit.log_offset
        if offset < store.start:
            continue
        path = f"batchconsumequeue/{queue.topic}/{queue.queue}/{name}"
        if offset >= store.end:
            if not store.in_damage(offset):
                behind.add(number, (path, position, offset, unit.size))
            continue
        behind.tell(followed=True)
        if not _right_unit(store, queue, unit, data) and not store.in_damage(offset):
            text = f"entry {number} points at no such record"
            judgement.add(Finding(Grade.DAMAGE, path, position, offset, unit.size, text, _READABLE))
    behind.tell(followed=cut)
