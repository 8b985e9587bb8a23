"""What a master goes by: the confirmed fold and the rows it has appended since. Pure.

A restriction binds from its append: what was leased must not be leased to another member before
that row is confirmed. So the acting master applies each row when it is appended, to a copy of
what the confirmed fold knows of that group, taken at the first touch and kept until the reign ends.
It begins empty: services run only once the confirmed fold holds everything that the reign inherited
(``docs/protocol.md``). When all is dispatched both say the same.

What the copies are taken from may itself be such a fold: a turn of requests is decided on one of
its own, which is given up with the turn where nothing is appended.

Not here: what rows do (`storage.messaging.fold`), when it is dropped (`storage.store`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from storage.messaging.fold import Member, Messaging, Shares, dropped_names
from storage.messaging.halves import Halves, HalvesAhead
from storage.messaging.share import Share
from storage.messaging.timers import Timers, TimersAhead
from twinlog.format.group_rows import (
    AckRow,
    CancelRow,
    CheckRow,
    DelayRow,
    ExtendRow,
    ForgottenRow,
    GivenUpRow,
    HalfRow,
    LeaseRow,
    MemberRow,
    OpenRow,
    PositionRow,
    ReleaseRow,
    ResetRow,
    Row,
    ShareRow,
    TimerRow,
    WaitsRow,
)

_OF_SHARES = frozenset({
    AckRow, ExtendRow, ForgottenRow, GivenUpRow, LeaseRow, PositionRow, ReleaseRow, ResetRow,
})  # fmt: skip
"""Rows that begin with the number of a share which they change."""


class Ahead:
    """The acting master's fold; see the module.

    Args:
        base: The fold that follows the dispatcher, or one that is ahead of it.

    Attributes:
        since: Log offset after the record that opened this reign; None: there is no reign.
        timers: What waits for a time, less what the master has delivered or cancelled.
        halves: Messages of transactions, less what the master has settled.
    """

    def __init__(self, base: Messaging | Ahead) -> None:
        self._base = base
        self.timers = TimersAhead(base.timers if isinstance(base, Messaging) else Timers())
        self.halves = HalvesAhead(base.halves if isinstance(base, Messaging) else Halves())
        self._own = Messaging()
        self._touched: set[str] = set()
        self.since: int | None = None

    def forget(self) -> None:
        """Begin again with what is confirmed: the reign has ended."""
        self._own = Messaging()
        self._touched.clear()
        self.timers.forget()
        self.halves.forget()
        self.since = None

    def ready(self, dispatched: int) -> bool:
        """Whether rows may be appended: nothing of the reigns before is missing any more.

        ``dispatched`` says how far the confirmed fold is.
        """
        return self.since is not None and dispatched >= self.since

    # -- what is true now, see `storage.messaging.fold.Shares`

    def share(self, number: int) -> Share | None:
        """See `storage.messaging.fold.Shares`."""
        found = self._own.share(number)
        if found is None:
            found = self._base.share(number)
            # The copy of its group lacks it: it was dropped by a row that is appended and not
            # dispatched.
            if found is not None and found.group in self._touched:
                return None
        return found

    def find(self, group: str, topic: str, queue: int) -> Share | None:
        """See `storage.messaging.fold.Shares`."""
        return self._fold_of(group).find(group, topic, queue)

    def shares_of(self, group: str) -> Collection[Share]:
        """See `storage.messaging.fold.Shares`."""
        return self._fold_of(group).shares_of(group)

    def members(self, group: str) -> Mapping[int, Member]:
        """See `storage.messaging.fold.Shares`."""
        return self._fold_of(group).members(group)

    def next_share(self) -> int:
        """See `storage.messaging.fold.Shares`."""
        # The larger one: our own fold starts at 1, and the confirmed one may lack what we appended.
        return max(self._own.next_share(), self._base.next_share())

    def names(self) -> Iterable[str]:
        """See `storage.messaging.fold.Shares`."""
        return [name for name in self._base.names() if name not in self._touched] + [
            *self._own.names()
        ]

    def shares(self) -> Iterable[Share]:
        """Return the shares of which there may be more than is confirmed."""
        return self._own.shares()

    def delay_next(self, level: int) -> int:
        """See `storage.messaging.fold.Messaging`: progress only rises, so the larger one counts."""
        return max(self._own.delay_next(level), self._base.delay_next(level))

    def _fold_of(self, group: str) -> Shares:
        return self._own if group in self._touched else self._base

    @property
    def touched(self) -> frozenset[str]:
        """The names of which there is more than is confirmed, or was since the reign began."""
        return frozenset(self._touched)

    # -- what is appended

    def apply(self, row: Row, at: int) -> bool:
        """Take a row that was appended; return whether it changed anything. Never raises."""
        own = self._own
        number = row[0]
        if type(row) in _OF_SHARES and type(number) is int and own.share(number) is not None:
            return own.apply(row, at)  # as most are
        if isinstance(row, DelayRow):
            return row.next > self.delay_next(row.level) and self._own.apply(row, at)
        if isinstance(row, (WaitsRow, OpenRow)):
            return True  # it waits once it is dispatched
        if isinstance(row, (TimerRow, CancelRow)):
            return self.timers.apply(row)
        if isinstance(row, HalfRow):
            return self.halves.apply(row)
        if isinstance(row, CheckRow):
            return self.halves.check(row)
        if isinstance(row, (ShareRow, MemberRow)):
            self._touch(row.group)
            # Before the row: the copy alone does not know which numbers were given before this
            # reign.
            self._own.number_from(self.next_share())
        elif self._own.share(row[0]) is None:
            share = self._base.share(row[0])
            if share is None or share.group in self._touched:
                return False
            self._touch(share.group)
        return self._own.apply(row, at)

    def drop(self, group: str) -> None:
        """Forget a group whose deletion was appended: it binds from now on."""
        # Touched first: else `find` would ask the confirmed fold, which knows it until this is
        # dispatched.
        for name in {group, *dropped_names(self._base, group)}:
            self._touch(name)
        self._own.drop(group)

    def drop_topic(self, topic: str) -> None:
        """Forget what groups have consumed of a topic whose deletion was appended: it binds."""
        for name in list(self.names()):
            if any(share.topic == topic for share in self.shares_of(name)):
                self._touch(name)
        self._own.drop_topic(topic)

    def _touch(self, group: str) -> None:
        if group in self._touched:
            return
        # Copied, not shared: what is only appended may be cut, and the confirmed fold must not know
        # it.
        self._touched.add(group)
        for share in self._base.shares_of(group):
            self._own.adopt(share.copy())
        self._own.adopt_members(group, self._base.members(group))
