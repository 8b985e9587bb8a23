"""A history in which messages wait for a time: delivered, taken back, rescued; and its judge.

What waits must be what the log says: messages that were stored, less what rows deliver or take
back; and what is delivered must have one copy each, whichever record it waited in. The judge goes
by what the log holds and by what retention has deleted since, which the history remembers.

Not here: the rest of the history, and of the judge (`tests.stores.histories.history`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from storage import Outcome, Section, Store
from storage.messaging import timers as fold
from storage.messaging.copies import deliveries, rescued
from tests.fakes.disk import FakeDisk
from tests.stores.histories.delays import remembered
from tests.stores.histories.history import History
from tests.stores.records.timed import timed
from tests.stores.workbench import append, settle, token
from twinlog.format.group_rows import CancelRow, TimerRow, decode_rows
from twinlog.format.record import Record
from twinlog.format.system_topics import SYSTEM_TOPIC_GROUP, TIMER_TOPIC
from twinlog.format.waiting.timers import due_of, keys_of, origin_of

SOON_MS, LATER_MS = 10_000, 20_000_000_000
BATCH_BYTES = 8_000

Key = tuple[int, int]


@contextmanager
def small_grains() -> Iterator[None]:
    """Count what waits for each KiB of the log: it is short."""
    with mock.patch.object(fold, "_GRAIN_BITS", 10):
        yield


class TimerHistory(History):
    """Sends messages that wait, delivers some, takes some back, rescues the rest."""

    unnoted_max = 8

    def __init__(self, disk: FakeDisk) -> None:
        super().__init__(disk)
        self.told: list[Record] = []

    def step(self, number: int) -> None:
        """One step; then some wait, and one other thing happens to what waits."""
        super().step(number)
        store = self.store
        assert store is not None
        due = LATER_MS + number if number % 3 == 0 else SOON_MS + 100 * (number % 5)
        made = timed(due, 1 + number % 3, queue=number % 4, mark=number)
        [result] = append(store, made, epoch=self.epoch)
        assert result.outcome is Outcome.STORED
        self.note()
        if not store.messaging.ready:
            return
        if number % 4 == 1:
            self.cancel()
        elif number % 2 == 0:
            self.deliver(SOON_MS + 100 * (number % 5), most=1 + number % 5)
        if number % 6 == 5:
            self.rescue(store.end)

    def append(self, sections: list[Section], rows: list[TimerRow | CancelRow]) -> None:
        """Append a batch."""
        assert self.store is not None
        done = self.store.append_together(token(self.epoch), sections, rows, wall_ms=2000)
        assert done.outcome is Outcome.STORED, done
        self.note()

    def cancel(self) -> None:
        """Take back the message that comes last."""
        assert self.store is not None
        waiting = list(self.store.messaging.timers.waiting())
        if waiting:
            row = self.store.messaging.timers.cancelling(waiting[-1].due, waiting[-1].offset)
            assert row is not None
            self.append([], [row])

    def deliver(self, until_ms: int, *, most: int) -> bool:
        """Deliver what is due, as one batch; return whether anything was."""
        store = self.store
        assert store is not None
        due = store.messaging.timers.due(until_ms, most, BATCH_BYTES)
        if due:
            pieces = store.reads.stretches([(one.at, one.size) for one in due])
            assert isinstance(pieces, list)
            copies, taken = deliveries(
                pieces, store.messaging.destination, sections=64, size=BATCH_BYTES
            )
            last = due[taken - 1]
            sections = [Section(copy.topic, copy.queue, copy.records, copy.data) for copy in copies]
            self.append(sections, [TimerRow(last.due, last.offset, store.dispatched)])
        return bool(due)

    def rescue(self, below: int) -> int:
        """Append again what waits below a log offset; return how many messages."""
        store = self.store
        assert store is not None
        timers, count, at = store.messaging.timers, 0, 0

        def waits(one: Record) -> Key | None:
            keys = keys_of(one.properties, one.store_timestamp, one.log_offset)
            return next((key for key in keys if timers.is_at(*key, one.log_offset)), None)

        while at >= 0:
            places, at = store.messaging.timers_below(below, at, BATCH_BYTES // 2)
            pieces = store.reads.stretches(places) if places else []
            assert isinstance(pieces, list)
            copy = rescued(pieces, waits, size=BATCH_BYTES)
            if copy.records:
                section = Section(copy.topic, copy.queue, copy.records, copy.data, own=True)
                self.append([section], [])
                count += copy.records
        return count

    def note(self) -> None:
        """Also records that wait, rows and copies."""
        super().note()
        assert self.store is not None
        self.told = remembered(self.told, self.store)

    def retain(self, *, erase: bool) -> None:
        """Deliver what is due and rescue what waits, for it holds its files; then as ever."""
        assert self.store is not None
        settle(self.store)
        while self.deliver(SOON_MS + 1_000, most=50):
            settle(self.store)
        self.rescue(self.store.end)
        super().retain(erase=erase)


class _Model:
    """What the records say, in the plainest words."""

    def __init__(self) -> None:
        self.waiting: dict[Key, bytes] = {}
        self.progress: Key = (0, -1)
        self.gone: list[bytes] = []
        self.taken_back = 0
        self.rescued = 0

    def stored(self, one: Record) -> None:
        """A record of the timer topic."""
        if origin_of(one.properties) >= 0:
            self.rescued += 1
            return  # the message is the same
        due = due_of(one.properties, one.store_timestamp)
        assert due is not None
        self.waiting[max(due, self.progress[0]), one.log_offset] = one.body

    def row(self, row: object) -> None:
        """A row."""
        if isinstance(row, CancelRow):
            self.taken_back += self.waiting.pop((row.due, row.offset), None) is not None
        if not isinstance(row, TimerRow) or (row.due, row.offset) <= self.progress:
            return
        self.progress = row.due, row.offset
        for key in sorted(self.waiting):
            if key <= self.progress and key[1] < row.seen:
                self.gone.append(self.waiting.pop(key))
            elif key <= self.progress:
                self.waiting[row.due, key[1]] = self.waiting.pop(key)


def examine_timers(history: TimerHistory, store: Store) -> _Model:
    """What waits is what the log says, in a record that is there; what was delivered came once."""
    model, copies = _Model(), Counter[bytes]()
    for one in remembered(history.told, store):
        if one.topic == SYSTEM_TOPIC_GROUP:
            for row in decode_rows(one.body):
                model.row(row)
        elif one.topic == TIMER_TOPIC:
            model.stored(one)
        else:
            copies[one.body] += 1
    known = store.messaging.confirmed.timers
    waiting = list(known.after())
    assert [(one.due, one.offset) for one in waiting] == sorted(model.waiting)
    assert known.count == len(waiting)
    for one in waiting:
        assert one.at >= store.start, "it waits in a record that has left"
        pieces = store.reads.stretches([(one.at, one.size)])
        assert isinstance(pieces, list)
        assert model.waiting[one.due, one.offset] in bytes(pieces[0])
    assert copies == Counter(model.gone), "each once"
    return model
