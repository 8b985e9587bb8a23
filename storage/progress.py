"""What groups have consumed and what waits for delay levels: the door to both folds of a store.

Decisions are made from `StoreMessaging.ahead`, on the acting master only; what must not be lost is
answered when its row is confirmed. Everything else (questions, slaves, snapshots) goes by
`StoreMessaging.confirmed`. A cut replaces both, so hold on to this object and not to them.

Not here: appending rows (`storage.store`), what they mean (`storage.messaging`).
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from storage.messaging.ahead import Ahead
from storage.messaging.fold import Messaging
from storage.messaging.groups import START_BEGIN, START_END, Group
from storage.messaging.share import Share
from storage.messaging.timers import TimersAhead, Waiting
from storage.recovery.opened import Opened
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.system_topics import DELAY_TOPIC, TIMER_TOPIC

LOOK_MAX = 4_096
"""Entries of a queue that are looked at in one turn: a millisecond."""


class StoreMessaging:
    """The messaging of one open store.

    Args:
        opened: The store.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened = opened

    @property
    def confirmed(self) -> Messaging:
        """Shares and members as of `storage.store.Store.dispatched`."""
        return self._opened.derived.messaging

    @property
    def ahead(self) -> Ahead:
        """The same with every row that the acting master has appended."""
        return self._opened.derived.ahead

    @property
    def ready(self) -> bool:
        """Whether rows may be appended: this is a master, and all it inherited is applied."""
        return self.ahead.ready(self._opened.derived.dispatcher.position)

    def group(self, name: str) -> Group | None:
        """Return a confirmed group."""
        return self._opened.derived.layers.confirmed.groups.get(name)

    def groups(self) -> Collection[str]:
        """Return the names of the confirmed groups."""
        return self._opened.derived.layers.confirmed.groups.keys()

    def defined(self, name: str) -> tuple[Group, int] | None:
        """Return a group as the whole log defines it, and the log offset that makes it so.

        See `storage.state.layers.Layers.group`: 0 where it is confirmed.
        """
        return self._opened.derived.layers.group(name)

    def standing(self, name: str) -> Group | None:
        """Return a group that may be served; see `storage.state.layers.Layers.standing_group`."""
        return self._opened.derived.layers.standing_group(name)

    def first_offset(self, group: Group, topic: str, queue: int) -> int | None:
        """Return where a group, or a member, begins in a queue; None: by the group's time.

        Then `storage.reads.StoreReads.offsets_at_time` knows.

        Raises:
            CorruptionError: The queue is damaged; the store is quarantined.
        """
        if group.start not in (START_END, START_BEGIN):
            return None
        if group.mode == "broadcast":  # an adopted group says where its members begin
            known = self.confirmed.find(group.name, topic, queue)
            if known is not None:
                return known.low
        if group.start == START_BEGIN:
            found = self._opened.derived.queues.get(topic, queue)
            return found.start if found is not None else 0
        return self.offset_at_log(topic, queue, group.created_at)

    def offset_at_log(self, topic: str, queue: int, log_offset: int) -> int:
        """Return the first queue offset whose record is at ``log_offset`` or after it.

        Raises:
            CorruptionError: The queue is damaged; the store is quarantined.
        """
        found = self._opened.derived.queues.get(topic, queue)
        if found is None:
            return 0
        try:
            return found.at_log(log_offset)
        except CorruptionError as error:
            self._opened.damaged(error)
            raise

    def held(self) -> int:
        """Return the least log offset of a message that is leased or waiting; else confirm."""
        return self._opened.derived.held(self._opened.confirm)

    def holding(self, below: int) -> list[tuple[Share, int]]:
        """Return the shares that hold a message below a log offset, and where that lies.

        In either fold: a share that the master has touched may be among them twice.
        """
        return self._opened.derived.holding(below)

    # -- delay levels

    @property
    def delayed(self) -> int:
        """Grows when records that wait for a delay level are dispatched; a cut begins it again."""
        return self._opened.derived.dispatcher.delayed

    @property
    def timers(self) -> TimersAhead:
        """What waits for a time, for the acting master."""
        return self.ahead.timers

    def destination(self, topic: str, stored: int = sys.maxsize) -> int | None:
        """Return how many queues a topic has that messages are sent to; None: there is no such.

        Nor for a message that is stored at log offset ``stored``, before the topic was deleted and
        made again.
        """
        found = self._opened.derived.layers.open.get(topic)
        return found.queues if found is not None and found.since <= stored else None

    def delay_first(self, level: int) -> int:
        """Return the queue offset of the first record that waits for a delay level, for the master.

        The queue's end, or beyond it, when none does.
        """
        found = self._opened.derived.queues.get(DELAY_TOPIC, level - 1)
        first = self.ahead.delay_next(level)
        return max(first, found.start) if found is not None else first

    def due(
        self, level: int, until_ms: int, records: int, size: int = sys.maxsize
    ) -> list[Waiting]:
        """Return the first messages that wait for a delay level and are due until then.

        Times of a level rise along its queue, because store times never fall along the log; in an
        adopted store a record may stand behind a later one, and waits for it. Arguments are those
        of `storage.messaging.timers.TimersAhead.due`.

        Raises:
            CorruptionError: The queue is damaged; the store is quarantined.
            DiskError: It cannot be read at present.
        """
        found: list[Waiting] = []
        for one in self._entries(level, self.delay_first(level), records):
            size -= one.size
            if one.due > until_ms or (found and size < 0):
                break
            found.append(one)
        return found

    def _entries(self, level: int, first: int, records: int) -> list[Waiting]:
        """Return the entries of a level's queue from an offset on."""
        queue = self._opened.derived.queues.get(DELAY_TOPIC, level - 1)
        if queue is None or (first := max(first, queue.start)) >= queue.end:
            return []
        try:
            raw = queue.read(first, records)
        except CorruptionError as error:
            self._opened.damaged(error)
            raise
        return [
            Waiting(due_ms, offset, offset, length)
            for offset, length, due_ms in QUEUE_ENTRY.iter_unpack(raw)
        ]

    def first_delayed(self, level: int) -> Waiting | None:
        """Return the first confirmed record that waits for a delay level; None: none does.

        Raises:
            CorruptionError: The queue is damaged; the store is quarantined.
            DiskError: It cannot be read at present.
        """
        return next(iter(self._entries(level, self.confirmed.delay_next(level), 1)), None)

    def timers_below(self, below: int, first: int, size: int) -> tuple[list[tuple[int, int]], int]:
        """Return records below a log offset in which a message may wait for a time.

        Args:
            below: The log offset.
            first: Where to begin in the queue of these records; 0: at its first one.
            size: Bytes of the records, but at least one.

        Returns:
            (log offset, bytes) of each, and where to go on; -1 when there are no more.

        Raises:
            CorruptionError: The queue is damaged; the store is quarantined.
            DiskError: It cannot be read at present.
        """
        queue, found = self._opened.derived.queues.get(TIMER_TOPIC, 0), list[tuple[int, int]]()
        if queue is None or (first := max(first, queue.start)) >= queue.end:
            return found, -1
        try:
            raw = queue.read(first, LOOK_MAX)
        except CorruptionError as error:
            self._opened.damaged(error)
            raise
        for offset, length, _ in QUEUE_ENTRY.iter_unpack(raw):
            if offset >= below:
                return found, -1
            if offset >= self._opened.log.start and self.confirmed.timers.may_be_at(offset):
                size -= length
                if found and size < 0:
                    break
                found.append((offset, length))
            first += 1
        return found, first

    def delays_waiting(self, level: int) -> int:
        """Return how many confirmed records wait for a delay level, as far as is dispatched."""
        found = self._opened.derived.queues.get(DELAY_TOPIC, level - 1)
        if found is None:
            return 0
        return found.end - min(max(self.confirmed.delay_next(level), found.start), found.end)
