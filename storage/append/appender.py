"""The master's way into the log: sections are checked, numbered, stamped, and become batches.

A turn takes all sections that have arrived. Ordinary sections (fast path) are checked, copied
beyond the end, numbered, stamped and included in the batch's CRC by one kernel call for many. Any
other section is checked completely (topic, producer sequence, every record) before one of its bytes
is copied; then it is copied, numbered and stamped. When the batch is full or the turn is over, its
index entry is written, with a CRC over the bytes as stored. A section is never divided (R45).

The pending layer lives here: next queue offsets and producers' sections beyond the dispatcher. Only
a master has one: `rebuild` makes it at promotion by scanning, `forget` drops it (R49).

Not here: records of the store's own topics (`storage.append.own_records`), the change to the next
file (`storage.append.file_heads`); who may append (`storage.store` checks the token), when it is
confirmed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from storage.append.file_heads import FileHeads
from storage.append.halves import later_refusal
from storage.append.waiting import not_writable
from storage.append.waiting_timers import WAITING_QUEUES
from storage.errors import DiskFull
from storage.log.commit_log import CommitLog
from storage.log.epoch_history import EpochRecord
from storage.log.stretches import STRETCH_MAX
from storage.messaging.fold import Messaging
from storage.queues.light_queues import (
    QUEUES_MAX,
    LightRefused,
    Share,
    light_runs,
    shares,
    write_offset,
)
from storage.queues.names import topic_refusal
from storage.queues.queues import ConsumeQueues
from storage.settings import StoreSettings
from storage.state.dispatcher import enter_sections, scan
from storage.state.layers import Layers
from storage.state.producers import LINES_MAX, Done, Key, Line, Producers, Verdict, judge
from storage.state.sections import Outcome, Section, SectionResult, digest_of, refused
from storage.state.sequences import first_sequence, line_topic, marks_of, sequence_text
from twinlog import kernels
from twinlog.errors import NotYetConfirmed
from twinlog.format.batch_index import KIND_RECORDS, BatchEntry
from twinlog.format.record import pack_host
from twinlog.kernels.codes import LIGHT
from twinlog.kernels.single import Placing

BLANK_SIZE = 8
RUN_MAX = 64
"""At most this many sections are placed by one kernel call."""
DISK_FULL = "the disk is full: nothing was stored, reads go on"


@dataclass(slots=True)
class _Turn:
    """Sections copied into the log whose index entries are not written yet.

    The open batch begins at ``start``; ``crc`` covers its bytes below ``covered``. A section that
    ends at or below ``limit`` fits into the open batch and file as they are; with ``whole`` every
    section does: room for all of them was made before the first.
    """

    results: list[SectionResult | None]
    entries: list[BatchEntry] = field(default_factory=list[BatchEntry])
    start: int = 0
    cursor: int = 0
    covered: int = 0
    crc: int = 0
    limit: int = 0
    count: int = 0
    undo: list[tuple[Key, Line | None]] = field(default_factory=list[tuple[Key, Line | None]])
    numbers: list[tuple[tuple[str, int], int]] = field(
        default_factory=list[tuple[tuple[str, int], int]]
    )
    members: list[int] = field(default_factory=list[int])
    failures: int = 0
    whole: bool = False

    def begin(self, at: int) -> None:
        """Begin a batch at log offset ``at``."""
        self.start = self.cursor = self.covered = at
        self.crc = self.count = self.limit = 0


class Appender:
    """Appends to the log of a master; see the module's text."""

    def __init__(
        self,
        log: CommitLog,
        settings: StoreSettings,
        layers: Layers,
        queues: ConsumeQueues,
        producers: Producers,
        messaging: Callable[[], Messaging] = Messaging,
    ) -> None:
        self._messaging = messaging
        self._log = log
        self._settings = settings
        self._layers = layers
        self._queues = queues
        self._producers = producers
        self._numbers: dict[tuple[str, int], int] = {}
        self._host = pack_host(settings.store_host)
        self._family = 6 if len(self._host) == 20 else 4
        self._heads = FileHeads(log, settings, self._numbers, self.next_number)
        self._length_max = settings.batch_length_max
        self._limits = (settings.message_size_max, self._family)
        self._joined_max = min(settings.batch_size_max, settings.batch_length_max)

    # -- the pending layer

    def forget(self) -> None:
        """Drop the pending layer and the permission to begin files; `rebuild` makes the layer."""
        self._numbers.clear()
        self._producers.forget_pending()
        self._heads.forget()

    def rebuild(self, start: int) -> None:
        """Make the pending layer from the batches between ``start`` and the end."""
        self._numbers.clear()
        self._producers.forget_pending()
        segments, at, batched = self._log.segments, start, self._layers.batched()
        while at < self._log.end:
            segment = segments.at(at)
            end = segments.border_at_or_below(min(at + STRETCH_MAX, segment.end, self._log.end))
            if end <= at:
                # One batch longer than a stretch: take it whole, or the loop would never advance.
                end = segment.index.span(segment.index.find(at))[1]
            gathered, view = scan(segments, at, end, batched)
            for name, queue, first, entries in gathered.entries:
                self._numbers[name.decode(), queue] = first + len(entries) // 20
            for name, queue, _, after, _ in gathered.units:
                self._numbers[name.decode(), queue] = after
            sequences, lights = marks_of(view)
            for light, first, entries in light_runs(view, at, lights):
                self._numbers[light, 0] = first + len(entries) // 20
            # R49: without the sequences of unconfirmed sections, a resend after a failover would be
            # stored twice (mutant no_rebuild).
            enter_sections(self._producers, view, at, gathered, marks=sequences, confirmed=False)
            at = end

    def next_number(self, topic: str, queue: int) -> int:
        """Return the queue offset of the next record of a queue."""
        found = self._numbers.get((topic, queue))
        return found if found is not None else self._queues.end(topic, queue)

    def open_epoch(self, value: EpochRecord, wall_ms: int) -> None:
        """Append the record that opens an epoch; from now on this appender may begin files.

        Raises:
            DiskFull: Nothing was appended.
        """
        self._heads.open_epoch(value, wall_ms)

    # -- sections

    def append(
        self, sections: Sequence[Section], wall_ms: int, *, system: bool = False
    ) -> list[SectionResult]:
        """Append the sections that pass; return one result for each section, in order.

        With ``system`` the sections are the store's own and may name its topics.
        """
        log = self._log
        # The clock may go back; store timestamps never do.
        log.timestamp = max(log.timestamp, wall_ms)
        if len(sections) == 1:
            result = self._alone(sections[0], system)
            if result is not None:
                return [result]
        turn = _Turn([None] * len(sections))
        turn.begin(log.tail)
        self._set_limit(turn)
        number, many = 0, 0 if system else RUN_MAX
        while number < len(sections):
            placed = self._run(turn, number, sections[number : number + many]) if many else 0
            number += placed
            if placed or number == len(sections):
                continue
            many = min(many, 1)  # one unusual section is often followed by more
            try:
                turn.results[number] = self._one(turn, number, sections[number], system)
            except DiskFull:
                self._abandon(turn)
                turn.results[number] = refused("disk-full", DISK_FULL)
            number += 1
        self._finish(turn)
        return [result for result in turn.results if result is not None]

    def _alone(self, section: Section, system: bool) -> SectionResult | None:
        """Fast path: append the only section of a turn, if it needs no special handling.

        Returns None for anything else, refusals included: the general path decides. State changes
        only after the entry is written. It takes half the time (``benchmarks/log/fast_ways.py``).
        """
        log, topic, queue = self._log, section.topic, section.queue
        known, length = self._layers.open.get(topic), len(section.data)
        queues = int(system and not section.own)  # rows have no topic; copies need more checks
        if known is not None:
            queues = known.queues if system else known.writable
        if (known is not None and known.batch) or not 0 <= queue < queues:
            return None
        if not 0 < length <= self._length_max:
            return None
        key, mark = (section.producer, topic, queue), None
        if section.producer:
            if not self._producers.follows(key, section.producer_epoch, section.sequence):
                return None
            mark = sequence_text(section)
        at, room = log.end, log.place_alone(length, BLANK_SIZE)
        # No room: the file is full or new, or batches go through the memory pool.
        changes = room is None
        if room is None:  # checked in a scratch buffer: a refusal must not change the file
            at = self._heads.after_next_head(length + BLANK_SIZE)
            room = memoryview(bytearray(length))
            if at < 0:
                return None
        first = self.next_number(topic, queue)
        made = kernels.place_section(
            section.data, section.count, topic.encode(), queue, mark, self._limits,
            room, (at, first, log.timestamp, self._host), (log.history.last, log.flushed),
        )  # fmt: skip
        if made is None:
            return None
        digest, entry = made
        try:
            if changes and not self._change(at, room):
                return None
            log.add_one(entry, length, "log.append")
        except DiskFull:
            return refused("disk-full", DISK_FULL)
        # Only now does the section exist (R5); a failure above has changed nothing here.
        self._numbers[topic, queue] = first + section.count
        if section.producer:
            done = Done(section.sequence, section.count, first, at, at + length, digest)
            self._producers.append(key, section.producer_epoch, done)
        return SectionResult(Outcome.STORED, first, at, at + length)

    def _change(self, at: int, data: memoryview) -> bool:
        """Begin the next file and copy a section after its head, if the head ends at ``at``."""
        log = self._log
        self._heads.change()
        if log.end != at:
            return False
        log.window(at, len(data))[:] = data
        return True

    def _run(self, turn: _Turn, number: int, sections: Sequence[Section]) -> int:
        """Fast path for many: place the leading ordinary sections; returns how many.

        ``sections`` are those of the turn from ``number`` on. If the batch is full, they begin the
        next.
        """
        log, at, limit = self._log, turn.cursor, turn.limit
        after = at + len(sections[0].data)
        full = turn.count > 0 and after - turn.start > self._joined_max
        if full:
            limit = min(at + self._joined_max, log.reach() - BLANK_SIZE)
        rows, keys = self._ordinary(sections, limit - at)
        if not rows:
            return 0
        if turn.covered != at:
            self._cover(turn)
        digests, crc = kernels.place_sections(
            rows, self._limits, log.window(at, sum([len(row[0]) for row in rows])),
            (at, log.timestamp, self._host), 0 if full else turn.crc,
        )  # fmt: skip
        # The first record check failed: nothing was placed; the general path finds the reason.
        if not digests:
            return 0
        # The rows begin the next batch; the old one is closed only now that a row has passed.
        if full:
            self._close(turn)
            self._set_limit(turn)
        numbers, end = self._numbers, at
        for digest, key, row, section in zip(digests, keys, rows, sections, strict=False):
            count, first, begin = section.count, row[5], end
            end += len(row[0])
            place = key[1:]
            # -1: no pending number before; undo must remove the key, not store a number.
            turn.numbers.append((place, numbers.get(place, -1)))
            numbers[place] = first + count
            turn.count += count
            if section.producer:
                done = Done(section.sequence, count, first, begin, end, digest)
                turn.undo.append((key, self._producers.append(key, section.producer_epoch, done)))
            turn.members.append(number)
            turn.results[number] = SectionResult(Outcome.STORED, first, begin, end)
            number += 1
        turn.cursor = turn.covered = end
        turn.crc = crc
        return len(digests)

    def _ordinary(self, sections: Sequence[Section], room: int) -> tuple[list[Placing], list[Key]]:
        """Return the leading sections that pass every check except those of their records.

        Stops at a second section of the same producer and queue: whether it follows can only be
        judged after the first one is recorded.
        """
        topics, lines = self._layers.open, self._producers
        rows: list[Placing] = []
        keys: list[Key] = []
        following: dict[tuple[str, int], int] = {}
        for section in sections:
            topic, queue, data, mark = section.topic, section.queue, section.data, None
            known = topics.get(topic)
            room -= len(data)
            if known is None or known.batch or not 0 <= queue < known.writable or room < 0:
                break
            key = section.producer, topic, queue
            if section.producer:
                follows = lines.follows(key, section.producer_epoch, section.sequence)
                # The kernel call updates no producer: a second section of the key would be judged
                # by a line that is one section old.
                if key in keys or not follows:
                    break
                mark = sequence_text(section)
            place = topic, queue
            first = following.get(place, -1)
            if first < 0:
                first = self.next_number(topic, queue)
            following[place] = first + section.count
            rows.append((data, section.count, topic.encode(), queue, mark, first))
            keys.append(key)
        return rows, keys

    def append_whole(
        self, sections: Sequence[Section], own: Sequence[Section], wall_ms: int
    ) -> list[SectionResult]:
        """Append all of the sections in one batch, with records of the store's own, or nothing.

        They fit into one batch. Returns one result each, ``own`` last: all stored, or all
        duplicates (then without ``own``, which was stored with them). Anything else, up to the one
        that is to blame, means that nothing was stored.
        """
        log = self._log
        log.timestamp = max(log.timestamp, wall_ms)
        every = [*sections, *own]
        turn = _Turn([None] * len(every))
        turn.begin(log.tail)
        results: list[SectionResult] = []
        try:
            self._make_room(turn, sum(len(section.data) for section in every))
            turn.whole = True
            for number, section in enumerate(every):
                if number >= len(sections) and results and not turn.count:
                    break
                result = self._one(turn, number, section, number >= len(sections) or section.own)
                assert result is not None
                results.append(result)
                if result.outcome is Outcome.REFUSED:
                    break
            if turn.count == sum(section.count for section in every):
                self._finish(turn)
            elif turn.count:
                self._abandon(turn)
                return results
        except DiskFull:
            self._abandon(turn)
        return [refused("disk-full", DISK_FULL)] if turn.failures else results

    def _one(
        self, turn: _Turn, number: int, section: Section, system: bool
    ) -> SectionResult | None:
        """General path: place one section; an outcome of STORED is final only after `_finish`."""
        refusal = self._refusal(section, system)
        if isinstance(refusal, SectionResult):
            return refusal
        shared: Sequence[Share] = refusal or ()
        length = len(section.data)
        key = (section.producer, line_topic(section.topic, section.data), section.queue)
        digest = 0
        if section.producer:
            # Over the bytes as sent: `patch_section` changes them in place below.
            digest = digest_of(section.data, 0, length)
            repeated = self._judge(section, key, digest)
            if repeated is not None:
                return repeated
        # Sequences are judged before room is made: a duplicate must not begin a new file.
        failures = turn.failures
        self._make_room(turn, length)
        if section.producer and turn.failures != failures:  # those before were undone
            repeated = self._judge(section, key, digest)
            if repeated is not None:
                return repeated
        at, first = turn.cursor, self.next_number(section.topic, section.queue)
        view = self._log.place(at, length)
        view[:] = section.data
        messages = kernels.patch_section(
            view, 0, length, log_offset=at, queue_offset=first,
            store_timestamp=self._log.timestamp, store_host=self._host,
        )  # fmt: skip
        turn.cursor += length
        turn.count += section.count
        place = (section.topic, section.queue)
        turn.numbers.append((place, self._numbers.get(place, -1)))
        self._numbers[place] = first + messages
        for share in shared:
            self._number_light(turn, view, share)
        if section.producer:
            done = Done(section.sequence, section.count, first, at, at + length, digest)
            before = self._producers.append(key, section.producer_epoch, done)
            # Undone in reverse order: a producer may have several sections in one turn.
            turn.undo.append((key, before))
        turn.members.append(number)
        return SectionResult(Outcome.STORED, first, at, at + length)

    def _number_light(self, turn: _Turn, view: memoryview, share: Share) -> None:
        """Give a record its offset in each of its light queues, and write it into the record."""
        for name, place in zip(share.names, share.places, strict=True):
            number = self.next_number(name, 0)
            write_offset(view, place, number)
            turn.numbers.append(((name, 0), self._numbers.get((name, 0), -1)))
            self._numbers[name, 0] = number + 1

    def _shares(self, section: Section, first: int) -> SectionResult | list[Share]:
        """Return the light queues of a section's records, or why it is refused."""
        try:
            found = shares(memoryview(section.data), first)
        except LightRefused as error:
            return refused("light-queues", str(error))
        fresh = {n for share in found for n in share.names if not self.next_number(n, 0)}
        if fresh and self._queues.light + len(fresh) > QUEUES_MAX:
            return refused("light-queues", f"a store has at most {QUEUES_MAX} light queues")
        return found

    def _refusal(self, section: Section, system: bool) -> SectionResult | list[Share] | None:
        """Return why a section is refused, or the light queues it also goes to, if any."""
        topic = self._layers.open.get(section.topic)
        waits = WAITING_QUEUES.get(section.topic, 0)
        if topic is None and not waits and (section.own or not system):
            return self._no_topic(section.topic)
        queues = topic.queues if topic is not None else waits or 1
        if not 0 <= section.queue < queues:
            text = f"topic {section.topic} has queues 0 to {queues - 1}, not {section.queue}"
            return refused("unknown-queue", text)
        if topic is not None and section.queue >= topic.writable and not system:
            return not_writable(topic, section.queue)
        length, most = len(section.data), self._length_max
        if length > most:
            return refused("too-large", f"a section of {length} bytes, at most {most} fit")
        if section.count <= 0:
            return refused("count", "a section without records")
        found = kernels.check_section(
            section.data, 0, length, section.count, section.topic.encode(), section.queue,
            body_max=self._settings.message_size_max, family=self._family,
            inner=topic is not None and topic.batch,
        )  # fmt: skip
        light = found[0] if found is not None and found[1] == LIGHT else -1
        if found is not None and light < 0:
            record, code = found
            text = f"record {record}: {kernels.EXPLANATIONS[code]}"
            return refused(kernels.REFUSALS[code], text, record)
        # R47: a new master learns sequences from TL_SEQ in the log. A section that names another
        # one than its request would be deduplicated differently after a failover.
        named = first_sequence(section.data)
        if named != (sequence_text(section) if section.producer else None):
            return refused("sequence", "TL_SEQ of the first record is not the request's", 0)
        if light >= 0 and waits:
            return refused("light-queues", "what is delivered later goes to none", light)
        if light >= 0 and topic is not None and topic.batch:
            return refused("light-queues", "messages of a batch topic go to no light queue", light)
        if light >= 0:
            return self._shares(section, light)
        args = section, self._layers, self._log.timestamp, self._messaging(), most
        return later_refusal(*args) if waits and not system else None

    def _no_topic(self, name: str) -> SectionResult:
        reason = topic_refusal(name)
        if reason is not None:
            return refused("topic", reason)
        error = self._layers.missing(name)
        code = "busy" if isinstance(error, NotYetConfirmed) else error.code
        return refused(code, f"{error.text}; twinlog topic create {name}")

    def _judge(self, section: Section, key: Key, digest: int) -> SectionResult | None:
        line = self._producers.line(key)
        verdict, done = judge(line, section.producer_epoch, section.sequence, section.count, digest)
        match verdict:
            # A line younger than the longest retry is never dropped to make room: its producer may
            # still resend, and would be stored twice.
            case Verdict.NEXT if line is None and self._producers.full:
                text = f"{LINES_MAX} producers wrote lately; there is room again in a few minutes"
                return refused("busy", text)
            case Verdict.NEXT:
                return None
            case Verdict.DUPLICATE if done is not None:
                return SectionResult(
                    Outcome.DUPLICATE, done.queue_offset, done.log_offset, done.end
                )
            case Verdict.DUPLICATE:
                # Its position is forgotten, but it was before the oldest section still known: once
                # the log is confirmed up to that one, this section is confirmed too (R47).
                return SectionResult(Outcome.DUPLICATE, end=line.done[0].log_offset if line else 0)
            case Verdict.ANOTHER:
                return refused(verdict.value, "this sequence was stored with other records")
            case Verdict.OUT_OF_ORDER:
                text = "the sequence does not follow the last one; resend in order"
                return refused(verdict.value, text)
            case Verdict.UNKNOWN:
                text = (
                    "nothing is known of this producer: it was forgotten after a long pause, "
                    "and what it sent earlier may be stored"
                )
                return refused(verdict.value, text)
            case Verdict.OUT_OF_DATE:
                return refused(verdict.value, "a newer start of this producer has written")

    # -- batches

    def _make_room(self, turn: _Turn, length: int) -> None:
        """Close the batch if the section would make it too large; begin a file if it is full."""
        if turn.whole:
            return
        log = self._log
        if turn.count and turn.cursor + length - turn.start > self._joined_max:
            self._close(turn)
        last = log.segments.last
        fits = last is not None and turn.cursor + length + BLANK_SIZE <= last.end
        if not fits or log.file_is_new:
            self._finish(turn)
            # Entries first: the filler's entry must follow those of the file's last batches.
            self._heads.change()
            turn.begin(log.tail)
        if not log.has_place(turn.cursor + length):
            self._finish(turn)
            log.pass_pool("log.commit")
            turn.begin(log.tail)
        self._set_limit(turn)

    def _set_limit(self, turn: _Turn) -> None:
        most = turn.start + self._joined_max
        # A file must keep room for the filler's header, 8 bytes.
        turn.limit = min(most, self._log.reach() - BLANK_SIZE)

    def _cover(self, turn: _Turn) -> None:
        """Extend the CRC of the batch over the bytes placed since."""
        at, length = turn.covered, turn.cursor - turn.covered
        if length:
            turn.crc = kernels.crc32c(self._log.place(at, length), turn.crc)
            turn.covered += length

    def _close(self, turn: _Turn) -> None:
        """End the open batch: make its entry."""
        if not turn.count:
            return
        log, length = self._log, turn.cursor - turn.start
        self._cover(turn)
        entry = BatchEntry(
            turn.start, length, turn.count, log.history.last, turn.crc, log.timestamp, KIND_RECORDS,
            log.flushed,
        )  # fmt: skip
        turn.entries.append(entry)
        turn.begin(turn.cursor)

    def _finish(self, turn: _Turn) -> None:
        """Write the entries of the turn; from now on its sections are in the log."""
        self._close(turn)
        try:
            self._log.enter(turn.entries, "log.append")
        except DiskFull:
            self._abandon(turn)
        turn.entries.clear()
        turn.members.clear()
        turn.undo.clear()
        turn.numbers.clear()

    def _abandon(self, turn: _Turn) -> None:
        """Undo everything that has no entry: bytes, queue offsets, producers' sections, results."""
        turn.failures += 1
        # R8: bytes without an entry must not stay beyond the end.
        self._log.wipe("log.append")
        for key, before in reversed(turn.undo):
            self._producers.restore(key, before)
        for place, number in reversed(turn.numbers):
            if number < 0:
                self._numbers.pop(place, None)
            else:
                self._numbers[place] = number
        for member in turn.members:
            turn.results[member] = refused("disk-full", DISK_FULL)
        for number, result in enumerate(turn.results):
            # A duplicate of a section of this same turn would otherwise be answered as stored
            # although its original is gone.
            if result is None or result.outcome is not Outcome.DUPLICATE:
                continue
            if result.end > self._log.tail:  # the original was undone, too
                turn.results[number] = refused("disk-full", DISK_FULL)
        turn.entries.clear()
        turn.members.clear()
        turn.undo.clear()
        turn.numbers.clear()
        turn.begin(self._log.tail)
