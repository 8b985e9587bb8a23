"""State that is derived from the log: control layers, queues, key index, producers, epochs.

It is made from the newest snapshot at S and from the log after S, in the same way at a start and
after a cut below the dispatcher. Derived files are not trusted beyond S.

Not here: the pending layer of a master (`storage.append.appender`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from storage.damage import Damage, damage_of
from storage.disk.disk import Disk
from storage.errors import DiskError, DiskFull
from storage.key_index.index import IndexMark, KeyIndex
from storage.log.commit_log import CommitLog
from storage.log.epoch_history import EpochHistory, decode_epoch, wrong_chain
from storage.log.segment import log_path
from storage.log.segments import Segments
from storage.log.stretches import STRETCH_MAX, stretch
from storage.messaging.ahead import Ahead
from storage.messaging.fold import Messaging
from storage.messaging.holds import Holds
from storage.messaging.share import Share
from storage.queues.batch_queue import BatchQueue
from storage.queues.queues import ConsumeQueues
from storage.recovery.group_export import Position
from storage.recovery.snapshot import DIRECTORY, Snapshot, Snapshots
from storage.recovery.timer_export import LastRecord, TimerFiles, timer_files
from storage.settings import StoreSettings
from storage.state.control import Control
from storage.state.controls import decode_control
from storage.state.dispatcher import Dispatcher, apply_rows, entered, scan, touched
from storage.state.layers import Layers
from storage.state.producers import Producers
from storage.state.topics import State
from twinlog.errors import CorruptionError
from twinlog.format import record
from twinlog.format.batch_index import (
    KIND_EPOCH,
    KIND_FILLER,
    KIND_REBUILT,
    KIND_RECORDS,
    BatchEntry,
)
from twinlog.format.record import FLAG_BORN_V6
from twinlog.format.system_topics import (
    DELAY_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    SYSTEM_TOPIC_META,
    TIMER_TOPIC,
)
from twinlog.format.waiting.delay_levels import LEVELS
from twinlog.format.waiting.halves import CHECKER
from twinlog.format.waiting.timers import due_of, out_ms

_META = SYSTEM_TOPIC_META.encode()


class Doubt(Enum):
    """What queue files may hold beyond the queues' ends at a start.

    Entries are only made of confirmed records, so with an intact log and page cache only queues
    that have records after the snapshot hold any: with many queues these are few.
    """

    NOTHING = "stopped cleanly"
    TOUCHED = "entries of records that the log has after the snapshot"
    ANYTHING = "entries of records that a cut, or a copy of the directory, took from the log"
    LOST = "anything, with holes: pages that were not flushed may be gone"


@dataclass(slots=True)
class Derived:
    """All derived state.

    Attributes:
        layers: Topics, and control records that are not confirmed yet.
        queues: Consume queues up to the dispatcher.
        producers: Both layers; the confirmed one follows the dispatcher.
        messaging: What groups have consumed; follows the dispatcher.
        ahead: The same with what the acting master has appended since.
        dispatcher: Its position is the dispatched offset.
        keys: The key index; None while it is turned off.
        index_mark: How far the key index was built that the newest snapshot names.
        snapshots: The directory of snapshots.
        holds: Knows which part of the log groups need.
        snapshot_at: S of the newest snapshot.
        rebuilt: Queue files were rebuilt from the start of the log.
        damage: Damage that was found; None normally.
    """

    layers: Layers
    queues: ConsumeQueues
    producers: Producers
    messaging: Messaging
    ahead: Ahead
    dispatcher: Dispatcher
    keys: KeyIndex | None
    index_mark: IndexMark | None
    snapshots: Snapshots
    holds: Holds
    snapshot_at: int
    rebuilt: bool
    damage: Damage | None

    def note_controls(self, log: CommitLog, entries: Sequence[BatchEntry], start: int) -> None:
        """Note the control records among received batches that are in the log."""
        for entry in entries:
            if start <= entry.start and entry.end <= log.end and entry.count == 1:
                change = find_control(log, entry)
                if change is not None:
                    self.layers.append(entry.end, change)

    def snapshot(self, log: CommitLog) -> Snapshot:
        """Return the confirmed layer as of the dispatcher, which must be at confirm."""
        at = self.dispatcher.position
        for queue in self.queues:
            queue.noted = queue.start
        return Snapshot(
            at,
            tuple(epoch for epoch in log.history.epochs if epoch.start < at),
            tuple(self.layers.confirmed.topics.values()),
            tuple((one.topic, one.queue, one.start, one.end) for one in self.queues),
            tuple(self.producers.confirmed()),
            log.timestamp,
            self.keys.mark() if self.keys is not None else self.index_mark,
            log.start,
            tuple(sorted(self.layers.confirmed.batched)),
            min((one.low for one in self.queues if one.start < one.end), default=log.start),
            tuple(self.layers.confirmed.groups.values()),
            self.messaging.values(),
            self.layers.confirmed.access,
            tuple(self.layers.confirmed.deleted.values()),
        )

    def whole_messaging(self, log: CommitLog) -> Messaging:
        """Return what groups have consumed as of the end of the log.

        Raises:
            CorruptionError: The log is damaged after the dispatcher.
        """
        at, messaging = self.dispatcher.position, self.messaging
        if at < log.end:
            messaging = Messaging.restore(messaging.values())
        while at < log.end:
            data_end, after = stretch(log.segments, at, log.end, STRETCH_MAX)
            if data_end > at:
                log.segments.prove(at, data_end)
                gathered, view = scan(log.segments, at, data_end, self.queues.batched_names)
                apply_rows(messaging, log.segments, view, at, gathered)
            at = after
        return messaging

    def held(self, most: int) -> int:
        """Return the least log offset below ``most`` of a message that is leased or waiting.

        Waiting: for another attempt of a group, a delay level, a time, or the end of a
        transaction. Both folds count: what is leased must not lose its record, and what an
        unconfirmed row settles or delivers may still come back. ``most`` without such a message.
        """
        shares = min((at for _, at in self.holding(most)), default=most)
        return min(shares, self.delayed_from(), self.timed_from(), self.halved_from())

    def timer_files(
        self, messaging: Messaging, log: CommitLog, file_size: int
    ) -> TimerFiles | None:
        """Return RocketMQ's timer files for what waits; None where nothing ever did.

        Raises:
            CorruptionError: The newest record of the timer topic is damaged.
        """
        queue, timers = self.queues.get(TIMER_TOPIC, 0), messaging.timers
        last, size = timers.last
        if last < 0:
            return None  # RocketMQ's own files, if there are any, are as it left them
        if queue is not None and queue.start < queue.end:
            offset, length, _ = queue.entry(queue.end - 1)
            last, size = max((last, size), (offset, length))
        if last < log.start:
            return None
        log.segments.prove(last, last + size)
        found = record.decode(bytes(log.segments.view(last, last + size)))
        due = due_of(found.properties, found.store_timestamp) or found.store_timestamp
        newest = LastRecord(last, size, found.queue_offset, out_ms(due))
        return timer_files(timers.after(), newest, log.timestamp, file_size=file_size)

    def checked(self, messaging: Messaging) -> tuple[Position, ...]:
        """Return from where on RocketMQ looks for open halves, and for what ended them.

        It begins with the oldest open half and asks about each that no record which it reads names
        as ended. Such a record lies behind its halves in the log: it reads those behind the oldest
        open half. Nothing where there was never a half.
        """
        halves, ends = self.queues.get(HALF_TOPIC, 0), self.queues.get(OP_TOPIC, 0)
        if halves is None and not messaging.halves.end:
            return ()
        after = max(halves.end if halves is not None else 0, messaging.halves.end)
        first = next(messaging.halves.open(), None)
        found = [(HALF_TOPIC, CHECKER, 0, after if first is None else first.number)]
        if ends is not None:
            try:
                behind = ends.end if first is None else ends.at_log(first.offset)
            except (CorruptionError, DiskError):
                behind = ends.start  # it reads more of them
            found.append((OP_TOPIC, CHECKER, 0, behind))
        return tuple(found)

    def timed_from(self) -> int:
        """Return a log offset that no record lies before which waits for a time.

        By the confirmed fold: a delivery that is not confirmed may still be cut.
        """
        least = self.messaging.timers.least()
        return least if least is not None else sys.maxsize

    def halved_from(self) -> int:
        """Return the log offset of the oldest half, by the confirmed fold; else a huge one."""
        least = self.messaging.halves.least()
        return least if least is not None else sys.maxsize

    def delayed_from(self) -> int:
        """Return the least log offset of a record that waits for a delay level; else a huge one."""
        return min(
            _kept_at(self.queues, DELAY_TOPIC, level - 1, self.messaging.delay_next(level))
            for level in range(1, LEVELS + 1)
        )

    def holding(self, below: int) -> list[tuple[Share, int]]:
        """Return the shares that hold a message below a log offset, and where it lies."""
        return list(self.holds.below([*self.messaging.shares(), *self.ahead.shares()], below))

    @property
    def full_index_timestamp(self) -> int:
        """End timestamp of the newest full, flushed index file; 0 without one."""
        return self.keys.full_timestamp if self.keys is not None else 0

    def cut_keys(self, end: int, segments: Segments) -> None:
        """Remove the entries of records that a cut to ``end`` loses from the key index."""
        if self.keys is not None:
            self.keys.cut(end, segments, lambda offset: stamp_at(segments, offset))


def _kept_at(queues: ConsumeQueues, topic: str, queue: int, number: int) -> int:
    """Return where the first message lies that a queue keeps from ``number`` on.

    What cannot be read counts as the oldest of all: then nothing goes.
    """
    found = queues.get(topic, queue)
    if found is None or max(number, found.start) >= found.end:
        return sys.maxsize
    try:
        if isinstance(found, BatchQueue):
            return found.units(max(number, found.start), 1)[0].log_offset
        return found.entry(max(number, found.start))[0]
    except (CorruptionError, DiskError):
        return 0


def stamp_at(segments: Segments, offset: int) -> int:
    """Return the store timestamp of the record that begins at ``offset``; 0 if it is deleted."""
    if not segments.all or offset < segments.all[0].start:
        return 0
    segment = segments.at(offset)
    view = segment.view(offset, min(offset + 80, segment.end))
    at = 68 if view[39] & FLAG_BORN_V6 else 56
    return int.from_bytes(view[at : at + 8], "big", signed=True)


def find_control(log: CommitLog, entry: BatchEntry) -> Control | None:
    """Return the control record of a batch: a single record in the META topic; else None."""
    rebuilt = entry.kind == KIND_REBUILT and entry.epoch > 0  # epoch 0: of RocketMQ
    if not (entry.kind == KIND_RECORDS or rebuilt) or entry.count != 1 or entry.length > 64 * 1024:
        return None
    data = bytes(log.segments.view(entry.start, entry.end))
    if _META not in data:
        return None
    found = record.decode(data, check_crc=False)
    return decode_control(found.body) if found.topic == SYSTEM_TOPIC_META else None


def derive(
    disk: Disk,
    settings: StoreSettings,
    log: CommitLog,
    confirm: int,
    *,
    rebuild: bool,
    doubt: Doubt,
    keys: KeyIndex | None = None,
) -> Derived:
    """Make the derived state up to ``confirm`` (or S, if that is higher) and the log's history.

    Args:
        disk: The data directory.
        settings: Sizes.
        log: The log; its history is made here.
        confirm: Confirm offset.
        rebuild: Build all queue files from the start of the log.
        doubt: What queue files may hold beyond the queues' ends; it is removed.
        keys: The key index, if it is in use and was cut; else it is opened here, and catches up
            while the store is in use.
    """
    snapshots = Snapshots(disk)
    base = _newest(snapshots, log)
    lost = _without_state(log) if base is None and log.start else None
    base = base or Snapshot(log.start)
    # R50: a snapshot is never above confirm, so it proves that much, even if the checkpoint lags.
    confirm = max(confirm, base.offset)
    rebuild_keys = rebuild
    layers = Layers(State(base.topics, base.batched, base.groups, base.access, base.deleted))
    queues = ConsumeQueues(disk, settings.queue_file_size, layers.confirmed.batched)
    rebuild |= not _load(queues, base)
    producers, position = Producers(), base.offset
    for key, line in base.producers:
        producers.load(key, line)
    if rebuild:
        position = log.start
        _empty(queues, base if log.start else Snapshot(0))
    else:
        if doubt is Doubt.TOUCHED:
            confirm = _entered(log, queues, confirm)
        _tidy(queues, doubt, log, base)
    if keys is None and settings.key_index:
        keys = _take_up_keys(disk, settings, log, None if rebuild_keys else base.index, doubt)
    messaging, history = Messaging.restore(base.messaging), EpochHistory(base.epochs)
    dispatcher = Dispatcher(log.segments, queues, producers, messaging, position)
    log.timestamp = max(log.timestamp, base.timestamp)
    damage = lost or _history_and_controls(log, history, layers, max(base.offset, log.start))
    layers.confirm(confirm)
    damage = damage or _dispatch(dispatcher, min(confirm, log.end))
    return Derived(
        layers, queues, producers, messaging, Ahead(messaging), dispatcher, keys, base.index,
        snapshots, Holds(partial(_kept_at, queues)), base.offset, rebuild, damage,
    )  # fmt: skip


def _newest(snapshots: Snapshots, log: CommitLog) -> Snapshot | None:
    """Return the newest snapshot that a start of ``log`` can use."""
    base = snapshots.newest(log.end)
    # Newer ones are above the damage that ends this log; the records after this one are deleted.
    return base if base is not None and base.offset >= log.start else None


def _empty(queues: ConsumeQueues, base: Snapshot) -> None:
    """Begin all queues again; one without a retained record continues where it ended."""
    queues.reset()
    for topic, queue, _, end in base.queues:
        queues.load(topic, queue, end, end)


def _load(queues: ConsumeQueues, base: Snapshot) -> bool:
    """Take queues as a snapshot names them; return whether their files are whole."""
    whole = True
    for topic, queue, start, end in base.queues:
        made = queues.load(topic, queue, start, end, low=base.lowest)
        whole &= made.whole(end, base.lowest)
    return whole


def _take_up_keys(
    disk: Disk, settings: StoreSettings, log: CommitLog, mark: IndexMark | None, doubt: Doubt
) -> KeyIndex:
    """Open the key index as far as ``mark`` says; without a mark it begins with the log."""
    keys = KeyIndex(disk, settings)
    tidy = doubt is not Doubt.NOTHING or mark is None
    keys.load(mark, log.segments, tidy=tidy, thorough=doubt is Doubt.LOST)
    keys.position = max(keys.position, log.start)
    return keys


def _entered(log: CommitLog, queues: ConsumeQueues, confirm: int) -> int:
    """Return the confirm offset that queue files prove; after a kill it is beyond the checkpoint.

    Otherwise confirm would fall back to the checkpoint, and the check against cuts below confirm
    (R40) would not protect the records confirmed since.
    """
    try:
        return max(confirm, entered(log.segments, queues, max(confirm, log.start)))
    except CorruptionError:  # reported when the record is needed
        return confirm


def _tidy(queues: ConsumeQueues, doubt: Doubt, log: CommitLog, base: Snapshot) -> None:
    """Remove entries beyond the queues' ends, if there may be any."""
    if doubt is Doubt.TOUCHED and not base.queues:
        doubt = Doubt.ANYTHING  # without a snapshot, unknown queues may have files
    if doubt is Doubt.TOUCHED:
        try:
            queues.tidy_some(touched(log.segments, max(base.offset, log.start), log.end))
        except CorruptionError:  # reported when the record is needed; here: check all queues
            doubt = Doubt.ANYTHING
    if doubt in (Doubt.ANYTHING, Doubt.LOST):
        queues.tidy(thorough=doubt is Doubt.LOST)


def _without_state(log: CommitLog) -> Damage:
    """Return the damage of a log whose start is deleted and whose snapshots are unreadable."""
    what = "no state snapshot can be read, and part of the log that it was made from is deleted"
    return Damage(DIRECTORY, log.start, 0, what)


def _history_and_controls(
    log: CommitLog, history: EpochHistory, layers: Layers, start: int
) -> Damage | None:
    """Add the epochs and control records of the batches from ``start`` on."""
    log.history = history
    try:
        for entry in log.segments.entries(start, log.end):
            if entry.kind == KIND_EPOCH:
                value = decode_epoch(log.segments.view(entry.start, entry.end))
                held = log.segments.chain_before(entry.start) if value.chain else None
                reason = history.refusal(value, entry.start) or wrong_chain(value, held)
                if reason is not None:
                    path = log_path(entry.start - entry.start % log.segments.size)
                    return Damage(path, entry.start, entry.length, reason)
                history.add(value)
            elif entry.epoch == 0:
                history.adopt(entry.start)
            elif entry.kind == KIND_FILLER:
                history.open(entry.epoch, entry.start)
            else:
                change = find_control(log, entry)
                if change is not None:
                    layers.append(entry.end, change)
    except CorruptionError as error:
        return damage_of(error)
    return None


def _dispatch(dispatcher: Dispatcher, confirm: int) -> Damage | None:
    try:
        while dispatcher.step(confirm, STRETCH_MAX):
            pass
    except DiskFull:
        return None  # the rest follows when there is space again
    except CorruptionError as error:
        return damage_of(error)
    return None
