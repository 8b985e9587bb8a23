"""What groups have consumed, as an open store knows it: the door to both folds.

Decisions are made from `StoreMessaging.ahead`, on the acting master only; what must not be lost is
answered when its row is confirmed. Everything else (questions, slaves, snapshots) goes by
`StoreMessaging.confirmed`. A cut replaces both, so hold on to this object and not to them.

Not here: appending rows (`storage.store`), what they mean (`storage.messaging`).
"""

from __future__ import annotations

from collections.abc import Collection

from storage.messaging.ahead import Ahead
from storage.messaging.fold import Messaging
from storage.messaging.groups import START_BEGIN, START_END, Group
from storage.messaging.share import Share
from storage.recovery.opened import Opened
from twinlog.errors import CorruptionError


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
