"""Which messages wait for a time, and up to which of them all were delivered. Pure.

Part of the fold of the log (`storage.messaging.fold`): the dispatcher enters each record of
``rmq_sys_wheel_timer`` when it enters its queue, rows take out what was delivered or cancelled.
The same log gives the same state on every node.

*Order and progress.* The key of a waiting message is (due time, log offset of its record); one that
arrives when its due time has been passed gets the time of the progress instead, so it comes next.
*Progress* is the key up to which everything was delivered; it only rises. A row that raises it says
what its master had *seen*: a message that lies in the log from there on was not delivered by it.
Such a message keeps waiting and gets the new progress' time: no row passes what its master had not
seen.

*Rescue.* Before a log file leaves, what waits in it is appended once more (`Timers.move`). Such a
record names the one it takes the place of, and the message keeps its key: only where its bytes are
changes. So it is delivered once, whichever of the records is read, and may still be cancelled by
the address that its sender knows.

*Ahead*, the acting master goes by the rows that it has appended and that are not dispatched yet.

Memory: 28 bytes a message, packed by the second in which it is due, and some 150 bytes for each
such second; the second in progress is kept as a sorted list.

Units: times ms since 1970, offsets and sizes bytes of the log.

Not here: when they are delivered (``node.delivery``), what a record says
(`twinlog.format.waiting.timers`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from struct import Struct
from typing import NamedTuple

from twinlog.format.group_rows import CancelRow, TimerRow

_ENTRY = Struct(">qqqi")
_KEY = Struct(">qq")
_GRAIN_BITS = 16
GRAIN = 1 << _GRAIN_BITS
"""Waiting messages are counted for each 64 KiB of the log: from it follows what must be kept."""
REMEMBERED_MS = 600_000
"""A cancel is known until progress is that far beyond the time: repeated, it is answered alike."""
LARGE = 20_000
"""Messages of one second; beyond it they are sorted once, not for each page that is shown."""
MARKS_MAX = 16
"""Rows of deliveries under way; then the master waits for the dispatcher."""


Key = tuple[int, int]
"""(due time, log offset)."""


class Waiting(NamedTuple):
    """A message that waits.

    Attributes:
        due: When it is delivered.
        offset: Log offset of the record that it was stored as; what it is called by.
        at: Log offset of the record that it is in now.
        size: Bytes of that record.
    """

    due: int
    offset: int
    at: int
    size: int


class TimerValues(NamedTuple):
    """The state as of one log offset, for a snapshot; plain values.

    Attributes:
        progress: See `Timers`.
        seconds: For each second with waiting messages: the second, entries of 28 bytes: `Waiting`,
            three i64 and an i32.
        grains: For each stretch of 64 KiB of the log: its number, how many wait there.
        cancelled: Keys of what was cancelled lately.
        last: Log offset and size of the newest record that waited or waits.
    """

    progress: Key = (0, -1)
    seconds: tuple[tuple[int, bytes], ...] = ()
    grains: tuple[tuple[int, int], ...] = ()
    cancelled: tuple[Key, ...] = ()
    last: tuple[int, int] = (-1, 0)


NOTHING = TimerValues()


class Timers:
    """The messages that wait; see the module.

    Attributes:
        progress: Key up to which all that was entered is delivered.
        count: How many wait.
        changes: Rises with each change.
        last: Log offset and size of the newest record that was entered; (-1, 0) before the first.
    """

    __slots__ = (
        "_cancelled", "_gone", "_grains", "_open", "_order", "_packed",
        "changes", "count", "last", "progress",
    )  # fmt: skip

    def __init__(self) -> None:
        self.progress: Key = (0, -1)
        self.count = self.changes = 0
        self.last = (-1, 0)
        self._packed: dict[int, bytearray] = {}
        self._open: dict[int, list[Waiting]] = {}
        self._order: list[int] = []
        self._grains: dict[int, int] = {}
        self._cancelled: list[Key] = []
        self._gone: set[int] = set()

    # -- what the log says

    def enter(self, due: int, offset: int, size: int) -> None:
        """Let the message of the record at ``offset`` wait until ``due``."""
        self.changes += 1
        self.last = max(self.last, (offset, size))
        # R73: what comes late takes the time of progress, so no key that waits is below it.
        self._put(Waiting(max(due, self.progress[0]), offset, offset, size))
        self._count(offset, 1)

    def move(self, due: int, offset: int, at: int, size: int) -> None:
        """Let the message with that key be in the record at ``at``; nothing if it waits no more."""
        self.changes += 1
        self.last = max(self.last, (at, size))
        # Only what waits: a record that rescues what was delivered meanwhile must not bring it back
        # (mutant rescued_though_delivered).
        if self._take_out(due, offset) is not None:
            # Under its first key: its place in the order and its address for a cancel stay (mutant
            # rescued_anew).
            self._put(Waiting(due, offset, at, size))
            self._count(at, 1)

    def apply(self, row: TimerRow | CancelRow) -> bool:
        """Take out what a row names; return whether anything changed. Never raises."""
        self.changes += 1
        if isinstance(row, CancelRow):
            taken = self._take_out(row.due, row.offset) is not None
            if taken:
                insort(self._cancelled, (row.due, row.offset))
                self._gone.add(row.offset)
            return taken
        return self._advance((row.due, row.offset), row.seen)

    def _put(self, one: Waiting) -> None:
        second = one.due // 1000
        opened = self._open.get(second)
        if opened is not None:
            insort(opened, one)
            return
        packed = self._packed.get(second)
        if packed is None:
            packed = self._packed[second] = bytearray()
            insort(self._order, second)
        packed += _ENTRY.pack(*one)

    def _count(self, offset: int, change: int) -> None:
        self.count += change
        grain = offset >> _GRAIN_BITS
        left = self._grains.get(grain, 0) + change
        if left > 0:
            self._grains[grain] = left
        else:
            self._grains.pop(grain, None)

    def _advance(self, mark: Key, seen: int) -> bool:
        # R73: progress only rises; a row of an older master that comes late delivers nothing again.
        if mark <= self.progress:
            return False
        last, unseen = mark[0] // 1000, list[Waiting]()
        passed = bisect_right(self._order, last)
        for second in self._order[:passed]:
            entries = self._opened(second)
            # Beyond every place: the key alone decides, and entries of that key are passed with it.
            upto = bisect_right(entries, (*mark, 1 << 62, 0))
            for one in entries[:upto]:
                # Dispatched after its master had decided: not in its batch, so not delivered by it
                # (mutant timer_unseen_passed).
                if one.offset >= seen:
                    unseen.append(one)
                else:
                    self._count(one.at, -1)
            del entries[:upto]
        for second in self._order[:passed]:
            if not self._open[second]:
                del self._open[second]
        self._order[:passed] = [one for one in self._order[:passed] if one in self._open]
        self.progress = mark
        long_ago = bisect_left(self._cancelled, (mark[0] - REMEMBERED_MS, -1))
        self._gone.difference_update([offset for _, offset in self._cancelled[:long_ago]])
        del self._cancelled[:long_ago]
        # After `progress` has moved, and with its time: so the next row finds them, in both folds
        # alike.
        for one in unseen:
            self._put(one._replace(due=mark[0]))
        return True

    def _take_out(self, due: int, offset: int) -> Waiting | None:
        place, second = self._place(due, offset), due // 1000
        if place < 0:
            return None
        packed = self._packed.get(second)
        if packed is not None:
            one = Waiting._make(_ENTRY.unpack_from(packed, place))
            del packed[place : place + _ENTRY.size]
            if not packed:
                del self._packed[second]
        else:
            one = self._open[second].pop(place)
            if not self._open[second]:
                del self._open[second]
        if second not in self._packed and second not in self._open:
            del self._order[bisect_left(self._order, second)]
        # Where its bytes are, not what it is called by: retention asks for the former (mutant
        # rescued_and_gone).
        self._count(one.at, -1)
        return one

    def _place(self, due: int, offset: int) -> int:
        """Return where the entry with a key is in its second; -1: no such entry."""
        second = due // 1000
        packed = self._packed.get(second)
        if packed is not None:
            at, key = -1, _KEY.pack(due, offset)
            # The bytes of a key may also lie across two entries: only at the start of one they are
            # a key.
            while (at := packed.find(key, at + 1)) >= 0 and at % _ENTRY.size:
                pass
            return at
        opened = self._open.get(second, [])
        at = bisect_left(opened, (due, offset, 0, 0))
        return at if at < len(opened) and opened[at][:2] == (due, offset) else -1

    def _opened(self, second: int) -> list[Waiting]:
        found = self._open.get(second)
        if found is None:
            packed = self._packed.pop(second)
            found = self._open[second] = sorted(map(Waiting._make, _ENTRY.iter_unpack(packed)))
        return found

    # -- what is true now

    def after(self, second: int = 0) -> Iterator[Waiting]:
        """Yield what waits, by key, from a second on; nothing may change meanwhile."""
        at = bisect_left(self._order, second)
        while at < len(self._order):
            yield from self._opened(self._order[at])
            at += 1

    def page(self, after: Key, most: int) -> list[Waiting]:
        """Return the next messages by key, at most ``most``, of those after a key."""
        found: list[Waiting] = []
        at = bisect_left(self._order, after[0] // 1000)
        while at < len(self._order) and len(found) < most:
            entries = self._in_order(self._order[at])
            first = bisect_right(entries, (*after, 1 << 62, 0))
            found += entries[first : first + most - len(found)]
            at += 1
        return found

    def _in_order(self, second: int) -> list[Waiting]:
        """Return what waits for a second, by key; only a large one stays unpacked."""
        packed = self._packed.get(second, b"")
        if not packed or len(packed) > LARGE * _ENTRY.size:
            return self._opened(second)
        return sorted(map(Waiting._make, _ENTRY.iter_unpack(packed)))

    def find(self, due: int, offset: int) -> Waiting | None:
        """Return the waiting message with this key."""
        place, second = self._place(due, offset), due // 1000
        if place < 0:
            return None
        packed = self._packed.get(second)
        if packed is not None:
            return Waiting._make(_ENTRY.unpack_from(packed, place))
        return self._open[second][place]

    def may_be_at(self, at: int) -> bool:
        """Whether a message may wait in the record at a log offset; False: none does."""
        return at >> _GRAIN_BITS in self._grains

    def was_cancelled(self, offset: int) -> bool:
        """Whether the message of that record was cancelled; long after its time: False."""
        return offset in self._gone

    def counts(self, first: int = 0) -> Iterator[tuple[int, int]]:
        """Yield each second from ``first`` on with waiting messages, and how many they are.

        They come in order; nothing may change meanwhile.
        """
        for at in range(bisect_left(self._order, first), len(self._order)):
            second = self._order[at]
            packed = self._packed.get(second)
            yield second, len(packed) // _ENTRY.size if packed else len(self._open[second])

    def least(self) -> int | None:
        """Return a log offset, at most 64 KiB before the first record that waits; None: none."""
        return min(self._grains) << _GRAIN_BITS if self._grains else None

    # -- snapshots

    def values(self) -> TimerValues:
        """Return the whole state, for `restore`."""
        seconds = tuple(
            (second, bytes(self._packed[second]) if second in self._packed else _pack(opened))
            for second in self._order
            for opened in (self._open.get(second, ()),)
        )
        grains = tuple(sorted(self._grains.items()))
        return TimerValues(self.progress, seconds, grains, tuple(self._cancelled), self.last)

    @classmethod
    def restore(cls, values: TimerValues) -> Timers:
        """Return the state that `values` gave."""
        made = cls()
        made.progress = values.progress
        made._packed = {second: bytearray(entries) for second, entries in values.seconds}
        made._order = sorted(made._packed)
        made._grains = dict(values.grains)
        made._cancelled = list(values.cancelled)
        made._gone = {offset for _, offset in values.cancelled}
        made.last = values.last
        # Derived, so a snapshot cannot say two things that differ.
        made.count = sum(made._grains.values())
        return made


def with_places(entries: bytes) -> bytes:
    """Return what `TimerValues.seconds` has of a second, of what it had before rescues.

    Those entries of 20 bytes name no place: each message is in the record it was stored as.
    """
    older = Struct(">qqi").iter_unpack(entries)
    return _pack(Waiting(due, offset, offset, size) for due, offset, size in older)


def _pack(entries: Iterable[Waiting]) -> bytes:
    return b"".join(_ENTRY.pack(*one) for one in entries)


class TimersAhead:
    """What waits for the acting master: less what it has delivered or cancelled since.

    Args:
        base: What waits as of the dispatcher.
    """

    def __init__(self, base: Timers) -> None:
        self._base = base
        self._marks: list[TimerRow] = []
        self._cancelled: set[int] = set()
        self._by_due: list[Key] = []

    def forget(self) -> None:
        """Begin again with what is dispatched: the reign has ended."""
        self._marks.clear()
        self._cancelled.clear()
        self._by_due.clear()

    def apply(self, row: TimerRow | CancelRow) -> bool:
        """Take a row that was appended."""
        if isinstance(row, CancelRow):
            self._cancelled.add(row.offset)
            heappush(self._by_due, (row.due, row.offset))
        else:
            self._marks.append(row)
        return True

    def _tidy(self) -> None:
        progress = self._base.progress
        # What is dispatched is in the base: its mark would take messages out twice.
        while self._marks and self._marks[0][:2] <= progress:
            del self._marks[0]
        # Strictly below: at progress' own time messages may wait that our mark has put there.
        while self._by_due and self._by_due[0][0] < progress[0]:
            self._cancelled.discard(heappop(self._by_due)[1])

    @property
    def full(self) -> bool:
        """Whether the next delivery waits: `MARKS_MAX` of them are under way."""
        self._tidy()
        return len(self._marks) >= MARKS_MAX

    def _key(self, one: Waiting) -> Key | None:
        """Return the key of a message as of the end of the log; None: it waits no more."""
        key = one.due, one.offset
        if one.offset in self._cancelled:
            return None
        # In the order of their appends: each mark may move the key that the next one is compared
        # with.
        for mark in self._marks:
            if key <= mark[:2]:
                if one.offset < mark.seen:
                    return None
                key = mark.due, one.offset
        return key

    def waiting(self) -> Iterator[Waiting]:
        """Yield what waits, by key; nothing may change meanwhile."""
        self._tidy()
        passing, rest = self._marks[-1].due if self._marks else -1, list[Waiting]()
        base = self._base.after()
        beyond = None
        # What is due up to the last mark is not in the order of its present keys.
        for one in base:
            if one.due > passing:
                beyond = one
                break
            key = self._key(one)
            if key is not None:
                rest.append(one._replace(due=key[0]))
        yield from sorted(rest)
        if beyond is not None and self._key(beyond) is not None:
            yield beyond
        for one in base:
            if one.offset not in self._cancelled:
                yield one

    def next_due(self) -> int | None:
        """Return when the next message is due; None when none waits."""
        return next((one.due for one in self.waiting()), None)

    def due(self, now_ms: int, records: int, size: int) -> list[Waiting]:
        """Return the messages to be delivered next, by key.

        Args:
            now_ms: The clock of the master; what is due later is not among them.
            records: At most this many.
            size: At most this many bytes of records, but at least one.
        """
        found: list[Waiting] = []
        if self.full:
            return found
        for one in self.waiting():
            size -= one.size
            # One at least, even a record larger than `size`: else nothing behind it would ever be
            # delivered.
            if one.due > now_ms or len(found) == records or (found and size < 0):
                break
            found.append(one)
        return found

    def was_cancelled(self, offset: int) -> bool:
        """Whether the message of that record was cancelled; long after its time: False."""
        return offset in self._cancelled or self._base.was_cancelled(offset)

    def cancelling(self, due: int, offset: int) -> CancelRow | None:
        """Return the row that cancels the message with that key; None: it waits no more.

        Rows that are appended and not dispatched may have moved the message to a later key, at
        which the row will meet it.
        """
        self._tidy()
        one = self._base.find(due, offset)
        key = self._key(one) if one is not None else None
        return CancelRow(*key) if key is not None else None

    def is_at(self, due: int, offset: int, at: int) -> bool:
        """Whether a message waits with that key, and in the record at ``at``."""
        self._tidy()
        one = self._base.find(due, offset)
        return one is not None and one.at == at and self._key(one) == (due, offset)
