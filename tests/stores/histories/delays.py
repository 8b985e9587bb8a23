"""A history in which messages wait for delay levels and are delivered, and the judge of them.

How far each level is delivered must be the fold of the rows in the log, and what those rows pass
must be what has copies: of what the log holds, and before that of what retention has deleted since,
which the history remembers.

Not here: the rest of the history, and of the judge (`tests.stores.histories`).
"""

from __future__ import annotations

from collections import Counter

from storage import Outcome, Section, Store
from storage.messaging.copies import deliveries
from storage.messaging.fold import Messaging
from tests.fakes.disk import FakeDisk
from tests.stores.histories.history import History
from tests.stores.records.delayed import delayed
from tests.stores.workbench import append, log_records, settle, token
from twinlog.format.group_rows import DelayRow
from twinlog.format.record import Record
from twinlog.format.system_topics import DELAY_TOPIC, SYSTEM_TOPIC_GROUP

LATER_MS = 1 << 50
LEVELS = (1, 2, 3)


class DelayHistory(History):
    """Sends delayed messages and delivers some, beside sections."""

    unnoted_max = 6

    def __init__(self, disk: FakeDisk) -> None:
        super().__init__(disk)
        self.told: list[Record] = []

    def step(self, number: int) -> None:
        """One step; then something waits, and something else is delivered."""
        super().step(number)
        store = self.store
        assert store is not None
        level = LEVELS[number % len(LEVELS)]
        made = delayed(level, 1 + number % 4, queue=number % 4, mark=number)
        [result] = append(store, made, epoch=self.epoch)
        assert result.outcome is Outcome.STORED
        self.note()
        if store.messaging.ready and number % 3:
            self.deliver(LEVELS[number // 2 % len(LEVELS)], most=1 + number % 5)

    def deliver(self, level: int, *, most: int) -> bool:
        """Deliver the next records of a level as one batch; returns whether there were any."""
        store = self.store
        assert store is not None
        due = store.messaging.due(level, LATER_MS, most)
        if not due:
            return False
        pieces = store.reads.stretches([(one.at, one.size) for one in due])
        assert isinstance(pieces, list)
        copies, taken = deliveries(pieces, store.messaging.destination, sections=64, size=8_000)
        sections = [Section(copy.topic, copy.queue, copy.records, copy.data) for copy in copies]
        row = DelayRow(level, store.messaging.delay_first(level) + taken)
        done = store.append_together(token(self.epoch), sections, [row], wall_ms=2000)
        assert done.outcome is Outcome.STORED, done
        self.note()
        return True

    def note(self) -> None:
        """Also what waits, rows and copies."""
        super().note()
        assert self.store is not None
        self.told = remembered(self.told, self.store)

    def retain(self, *, erase: bool) -> None:
        """Deliver what waits, for it holds its files; then as ever."""
        assert self.store is not None
        settle(self.store)
        for level in LEVELS:
            while self.deliver(level, most=50):
                settle(self.store)
        super().retain(erase=erase)


def remembered(known: list[Record], store: Store) -> list[Record]:
    """Records about delays that the log no longer has, and those that it has up to confirm."""
    gone = [one for one in known if one.log_offset < store.start]
    return gone + [
        one
        for one in log_records(store)
        if one.topic in (SYSTEM_TOPIC_GROUP, DELAY_TOPIC) or "REAL_TOPIC" in one.properties
    ]


def examine_delays(history: DelayHistory, store: Store) -> None:
    """Progress is the fold of the log, and what it passes has one copy each, nothing else any."""
    fold = Messaging()
    waiting: dict[int, list[bytes]] = {level: [] for level in LEVELS}
    copies: Counter[bytes] = Counter()
    for one in remembered(history.told, store):
        if one.topic == SYSTEM_TOPIC_GROUP:
            end = one.log_offset + one.size
            fold.apply_body(one.body, one.store_timestamp, one.log_offset, end)
        elif one.topic == DELAY_TOPIC:
            assert len(waiting[one.queue + 1]) == one.queue_offset
            waiting[one.queue + 1].append(one.body)
        else:
            copies[one.body] += 1
    assert store.messaging.confirmed.delays == fold.delays
    passed = Counter(body for level, after in fold.delays for body in waiting[level][:after])
    assert copies == passed
    for level, bodies in waiting.items():
        assert store.messaging.delays_waiting(level) == len(bodies) - fold.delay_next(level)
