"""What all groups have consumed, and what waits: the fold of ``rmq_sys_TWINLOG_GROUP``. Pure.

`Messaging.apply` is total and deterministic: the same rows in the same order give the same state on
every node, after any restart, and a row that does not fit changes nothing. Nothing expires by a
clock: the master writes a row. Groups that are deleted take their shares and members with them
(`Messaging.drop`, from a control record, in the order of the log), and topics that are deleted the
shares of them.

``position`` is the log offset after the last record that was applied. What lies below is not
applied again: queues may be built from further back than the state is known.

Not here: what a row says (`twinlog.format.group_rows`), what a group is
(`storage.messaging.groups`), rows that are appended and not dispatched (`storage.messaging.ahead`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, Protocol

from storage.messaging.halves import NO_HALVES, Half, HalfValues, Halves
from storage.messaging.share import Run, Share
from storage.messaging.timers import NOTHING, Timers, TimerValues
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
    UnknownRow,
    WaitsRow,
    tell_rows,
)
from twinlog.kernels.plain import Buffer

MEMBER_SIGN = "~"
"""Between a broadcast group and the name of a member: no group name has it."""


class Member(NamedTuple):
    """A member of a group.

    Attributes:
        id: Its number.
        name: What it calls itself.
        since: Store timestamp of the row by which it joined, ms.
    """

    id: int
    name: str
    since: int


class Shares(Protocol):
    """What decisions about groups are made from; both folds are such."""

    def share(self, number: int) -> Share | None:
        """Return a share; None when no share has that number."""
        ...

    def find(self, group: str, topic: str, queue: int) -> Share | None:
        """Return a group's share of a queue; None before its first lease or position."""
        ...

    def shares_of(self, group: str) -> Collection[Share]:
        """Return a group's shares, in the order they began."""
        ...

    def members(self, group: str) -> Mapping[int, Member]:
        """Return the members of a group by their numbers."""
        ...

    def next_share(self) -> int:
        """Return the number of the next share that begins."""
        ...

    def names(self) -> Iterable[str]:
        """Return the names that shares are kept under; of a broadcast group one a member."""
        ...


@dataclass(frozen=True, slots=True)
class Values:
    """The state as of one log offset, for a snapshot; rows of plain values.

    Attributes:
        position: See `storage.messaging.fold`.
        next_share: Number of the next share.
        shares: (share, group, topic, incarnation, queue, low, next, n, runs as `Run`).
        members: (group, member, name, since).
        delays: (level, offset of the first record that waits for it).
        timers: Messages that wait for a time.
        halves: Messages of transactions.
    """

    position: int = 0
    next_share: int = 1
    shares: tuple[tuple[int, str, str, int, int, int, int, int, tuple[Run, ...]], ...] = ()
    members: tuple[tuple[str, int, str, int], ...] = ()
    delays: tuple[tuple[int, int], ...] = ()
    timers: TimerValues = NOTHING
    halves: HalfValues = NO_HALVES


EMPTY = Values()
"""Before the first row."""


class Messaging:
    """Shares and members of all groups; see the module.

    Attributes:
        position: Log offset after the last record that was applied.
    """

    def __init__(self) -> None:
        self.position = 0
        self._next_share = 1
        self._shares: dict[int, Share] = {}
        self._places: dict[str, dict[tuple[str, int], Share]] = {}
        self._people: dict[str, dict[int, Member]] = {}
        self._delays: dict[int, int] = {}

    @cached_property
    def timers(self) -> Timers:
        """Messages that wait for a time; made when asked for: a turn of requests needs none."""
        return Timers()

    @cached_property
    def halves(self) -> Halves:
        """Messages of transactions; likewise."""
        return Halves()

    def __len__(self) -> int:
        """How many shares there are."""
        return len(self._shares)

    # -- what is true now

    def share(self, number: int) -> Share | None:
        """See `Shares`."""
        return self._shares.get(number)

    def find(self, group: str, topic: str, queue: int) -> Share | None:
        """See `Shares`."""
        return self._places.get(group, {}).get((topic, queue))

    def shares_of(self, group: str) -> Collection[Share]:
        """See `Shares`."""
        return self._places.get(group, {}).values()

    def next_share(self) -> int:
        """See `Shares`."""
        return self._next_share

    def members(self, group: str) -> Mapping[int, Member]:
        """See `Shares`."""
        return self._people.get(group, {})

    def shares(self) -> Iterable[Share]:
        """Return all shares, in the order they began."""
        return self._shares.values()

    def names(self) -> Iterable[str]:
        """See `Shares`."""
        return self._places

    def delay_next(self, level: int) -> int:
        """Return the offset, in a level's queue, of the first record that waits; 0: from its first.

        Retention deletes none that waits, so a queue may begin at it, and not after it.
        """
        return self._delays.get(level, 0)

    @property
    def delays(self) -> tuple[tuple[int, int], ...]:
        """The same of all levels of which anything is delivered: (level, offset)."""
        return tuple(sorted(self._delays.items()))

    # -- what rows change

    def apply(self, row: Row | UnknownRow, at: int) -> bool:
        """Change what a row says; return whether anything changed. Never raises.

        ``at`` is the store timestamp of its record, ms.
        """
        return self._CHANGES[type(row)](self, row, at)

    def apply_body(self, body: Buffer, at: int, start: int, end: int) -> None:
        """Apply the rows in the record at log offset ``start``, unless they were applied before."""
        # A start may build queues from further back than the fold is known: applied twice, a reset
        # would end leases that were made after it.
        if start < self.position:
            return
        tell_rows(
            body,
            settled=self._settled,
            leased=self._leased,
            moved=self._moved,
            other=lambda row: self._CHANGES[type(row)](self, row, at),
        )
        self.position = end

    def enter_timer(self, due: int, start: int, end: int, origin: int = -1) -> None:
        """Let the message of the record at ``start`` wait until ``due``, as `apply_body` does.

        With ``origin`` it waits already, as what was stored there, and its record is this one now.
        """
        if start < self.position:
            return
        if origin >= 0:
            self.timers.move(due, origin, start, end - start)
        else:
            self.timers.enter(due, start, end - start)
        self.position = end

    def enter_half(self, half: Half) -> None:
        """Let a message wait for the end of its transaction, as `apply_body` does."""
        if half.offset < self.position:
            return
        self.halves.enter(half)
        self.position = half.offset + half.size

    def _settled(self, number: int, n: int, first: int, last: int) -> None:
        share = self._shares.get(number)
        if share is not None:
            share.settle(n, first, last)

    def _leased(self, number: int, *lease: int) -> None:
        share = self._shares.get(number)
        if share is not None:
            share.lease(*lease)

    def _moved(self, number: int, member: int, generation: int, position: int) -> None:
        share = self._shares.get(number)
        if share is not None:
            share.move(position)

    def drop(self, group: str) -> None:
        """Forget everything of a group that was deleted."""
        for name in dropped_names(self, group):
            for share in self._places.pop(name).values():
                del self._shares[share.id]
        self._people.pop(group, None)

    def drop_topic(self, topic: str) -> None:
        """Forget all shares of a topic that was deleted."""
        for share in [one for one in self._shares.values() if one.topic == topic]:
            self._remove(share)

    def drop_all(self, groups: Iterable[str], topic: str, start: int, end: int) -> None:
        """Forget what the control record at ``start`` deletes, as `apply_body` does.

        Args:
            groups: Groups with all their shares and members.
            topic: A topic whose shares go; empty: none.
            start: Log offset of the record.
            end: Log offset after it.
        """
        if start < self.position:
            return
        for group in groups:
            self.drop(group)
        if topic:
            self.drop_topic(topic)
        self.position = end

    def number_from(self, share: int) -> None:
        """Give shares numbers from there on."""
        self._next_share = share

    def adopt(self, share: Share) -> None:
        """Take a share as it is."""
        self._shares[share.id] = share
        # By group and place as well: one group has at most one share of a queue, which `_begin`
        # holds.
        self._places.setdefault(share.group, {})[share.topic, share.queue] = share

    def adopt_members(self, group: str, members: Mapping[int, Member]) -> None:
        """Take a group's members as they are."""
        if members:
            self._people[group] = dict(members)

    def _begin(self, row: ShareRow, at: int) -> bool:
        place = row.topic, row.queue
        # Numbers only rise: one used again would let late rows of the old share change the new one.
        if row.share < self._next_share or place in self._places.get(row.group, {}):
            return False
        self.adopt(Share(*row))
        self._next_share = row.share + 1
        return True

    def _lease(self, row: LeaseRow, at: int) -> bool:
        share = self._shares.get(row[0])
        return share is not None and share.lease(*row[1:])

    def _settle(self, row: AckRow | GivenUpRow, at: int) -> bool:
        share = self._shares.get(row[0])
        return share is not None and share.settle(row[1], row[2], row[3])

    def _release(self, row: ReleaseRow, at: int) -> bool:
        share = self._shares.get(row[0])
        return share is not None and share.release(*row[1:])

    def _extend(self, row: ExtendRow, at: int) -> bool:
        share = self._shares.get(row[0])
        return share is not None and share.extend(*row[1:])

    def _move(self, row: PositionRow, at: int) -> bool:
        share = self._shares.get(row.share)
        return share is not None and share.move(row.next)

    def _reset(self, row: ResetRow, at: int) -> bool:
        share = self._shares.get(row.share)
        return share is not None and share.reset(row.next)

    def _forget(self, row: ForgottenRow, at: int) -> bool:
        share = self._shares.get(row.share)
        if share is not None:
            self._remove(share)
        return share is not None

    def _remove(self, share: Share) -> None:
        del self._shares[share.id]
        places = self._places[share.group]
        del places[share.topic, share.queue]
        if not places:
            del self._places[share.group]

    def _member(self, row: MemberRow, at: int) -> bool:
        members = self._people.get(row.group, {})
        if not row.joined:
            gone = members.pop(row.member, None) is not None
            if gone and not members:
                del self._people[row.group]
            return gone
        # The first row counts: repeated after a failover it must not make the member younger.
        if row.member in members:
            return False
        self._people.setdefault(row.group, members)[row.member] = Member(row.member, row.name, at)
        return True

    def _deliver(self, row: DelayRow, at: int) -> bool:
        # R71: progress only rises, or a row that came late would deliver a second time.
        if row.level < 1 or row.next <= self._delays.get(row.level, 0):
            return False
        self._delays[row.level] = row.next
        return True

    def _waits(self, row: WaitsRow, at: int) -> bool:
        self.timers.enter(*row)
        return True

    def _timer(self, row: TimerRow | CancelRow, at: int) -> bool:
        return self.timers.apply(row)

    def _half(self, row: HalfRow, at: int) -> bool:
        return self.halves.apply(row)

    def _check(self, row: CheckRow, at: int) -> bool:
        return self.halves.check(row)

    def _opened(self, row: OpenRow, at: int) -> bool:
        return self.halves.adopt(row)

    _CHANGES: ClassVar[Mapping[type[Row] | type[UnknownRow], Callable[[Any, Any, int], bool]]] = {
        ShareRow: _begin,
        LeaseRow: _lease,
        AckRow: _settle,
        GivenUpRow: _settle,
        ReleaseRow: _release,
        ExtendRow: _extend,
        PositionRow: _move,
        ResetRow: _reset,
        ForgottenRow: _forget,
        MemberRow: _member,
        DelayRow: _deliver,
        TimerRow: _timer,
        CancelRow: _timer,
        WaitsRow: _waits,
        HalfRow: _half,
        CheckRow: _check,
        OpenRow: _opened,
        UnknownRow: lambda fold, row, at: False,
    }

    # -- snapshots

    def values(self) -> Values:
        """Return the whole state, for `restore`."""
        shares = tuple(
            (
                one.id, one.group, one.topic, one.incarnation, one.queue, one.low, one.next, one.n,
                tuple(one.runs),
            )
            for one in self._shares.values()
        )  # fmt: skip
        members = tuple(
            (group, member.id, member.name, member.since)
            for group, members in self._people.items()
            for member in members.values()
        )
        return Values(
            self.position, self._next_share, shares, members, self.delays, self.timers.values(),
            self.halves.values(),
        )  # fmt: skip

    @classmethod
    def restore(cls, values: Values) -> Messaging:
        """Return the state that `values` gave."""
        made = cls()
        made.position = values.position
        made._next_share = values.next_share
        made.timers = Timers.restore(values.timers)
        made.halves = Halves.restore(values.halves)
        for number, group, topic, incarnation, queue, low, after, n, runs in values.shares:
            share = Share(number, group, topic, incarnation, queue, low)
            share.next, share.n = after, n
            share.runs = list(runs)
            made.adopt(share)
        for group, number, name, since in values.members:
            made._people.setdefault(group, {})[number] = Member(number, name, since)
        made._delays.update(values.delays)
        return made


def dropped_names(fold: Shares, group: str) -> list[str]:
    """Return the names that shares of a group are kept under, those of its members included."""
    begin = group + MEMBER_SIGN
    return [name for name in fold.names() if name == group or name.startswith(begin)]
