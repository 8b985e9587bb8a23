"""Which messages of transactions are not settled, and what became of those that are. Pure.

Part of the fold of the log (`storage.messaging.fold`): the dispatcher enters each record of
`HALF_TOPIC` when it enters its queue, a row settles it, once and for all. Other rows say that its
producers were asked what became of it, how often and when again. The same log gives the same state
on every node.

*Ahead*, the acting master goes by the rows that it has appended and that are not dispatched yet.

Memory: some 400 bytes for each open half; of the settled ones one byte each, of the last
`REMEMBERED` halves.

Units: offsets of the queue where it says so, else bytes of the log; times ms since 1970.

Not here: who settles them (``node.transactions``), what a record says
(`twinlog.format.waiting.halves`).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import NamedTuple

from twinlog.format.group_rows import GIVEN_UP, CheckRow, HalfRow, OpenRow

REMEMBERED = 1_000_000
"""Of that many halves the outcome is known: a client that asks again gets the same answer."""
OPEN = 0


class Half(NamedTuple):
    """A message whose transaction is not settled.

    Attributes:
        number: Its queue offset.
        offset: Log offset of its record.
        size: Bytes of it.
        stored_ms: When it was stored.
        group: Which producers may settle it.
        name: Its transaction.
        immunity_ms: How long after that no producer is asked about it; -1: as the master is set.
        checks: How often that was asked.
        next_ms: When it is asked again; 0: it was not asked yet.
    """

    number: int
    offset: int
    size: int
    stored_ms: int
    group: str
    name: str
    immunity_ms: int = -1
    checks: int = 0
    next_ms: int = 0


class HalfValues(NamedTuple):
    """The state as of one log offset, for a snapshot; plain values.

    Attributes:
        base: Queue offset of the first half whose outcome is known.
        outcomes: A byte for each half from there on: 0 open, or the outcome.
        halves: Those that are open, in the order of the log.
    """

    base: int = 0
    outcomes: bytes = b""
    halves: tuple[Half, ...] = ()


NO_HALVES = HalfValues()


class Halves:
    """The halves of the log; see the module.

    Attributes:
        changes: Rises with each change.
    """

    __slots__ = ("_base", "_open", "_outcomes", "changes")

    def __init__(self) -> None:
        self.changes = 0
        self._base = 0
        self._outcomes = bytearray()
        self._open: dict[int, Half] = {}

    # -- what the log says

    def enter(self, half: Half) -> None:
        """Let a half wait; the numbers of halves rise along the log."""
        if not self._outcomes:
            self._base = half.number
        missing = half.number - self._base - len(self._outcomes)
        # Numbers rise along the log: of one that does not, the outcome may be known already.
        if missing < 0:
            return
        self.changes += 1
        # Zeros: this half, which is open, and before it those that were never entered.
        self._outcomes += bytes(missing + 1)
        self._open[half.number] = half
        over = len(self._outcomes) - REMEMBERED
        if over > 0:
            del self._outcomes[:over]
            self._base += over

    def adopt(self, row: OpenRow) -> bool:
        """Let a half wait that an adoption found; return whether that is news. Never raises."""
        if row.half < self.end and self._outcomes:
            return False
        self.enter(Half(row.half, row.offset, row.size, row.stored, row.group, row.name))
        return True

    def apply(self, row: HalfRow) -> bool:
        """Settle a half; return whether it was open and the row says how. Never raises."""
        # Once only (R76): the first row counts, on every node alike, whatever was appended after
        # it.
        if not OPEN < row.outcome <= GIVEN_UP or self._open.pop(row.half, None) is None:
            return False
        self.changes += 1
        # An open half may be older than the outcomes that are remembered.
        if row.half >= self._base:
            self._outcomes[row.half - self._base] = row.outcome
        return True

    def check(self, row: CheckRow) -> bool:
        """Note that producers were asked; return whether that is news. Never raises."""
        half = self._open.get(row.half)
        if half is None or row.checks <= half.checks:
            return False
        self._open[row.half] = half._replace(checks=row.checks, next_ms=row.next)
        return True

    # -- what is true now

    @property
    def count(self) -> int:
        """How many halves are open."""
        return len(self._open)

    @property
    def end(self) -> int:
        """Queue offset after the newest half that was entered."""
        return self._base + len(self._outcomes)

    def get(self, number: int) -> Half | None:
        """Return an open half; None for another one."""
        return self._open.get(number)

    def outcome(self, number: int) -> int | None:
        """Return what became of a half, `OPEN` included; None: nothing is known of it."""
        if number in self._open:
            return OPEN
        at = number - self._base
        # 0 and not open: a half of which nothing is known, not one that waits.
        return self._outcomes[at] or None if 0 <= at < len(self._outcomes) else None

    def open(self) -> Iterator[Half]:
        """Yield the open halves in the order of the log; nothing may change meanwhile."""
        return iter(self._open.values())

    def least(self) -> int | None:
        """Return the log offset of the oldest open half; None: none is open."""
        first = next(iter(self._open.values()), None)
        return first.offset if first is not None else None

    # -- snapshots

    def values(self) -> HalfValues:
        """Return the whole state, for `restore`."""
        return HalfValues(self._base, bytes(self._outcomes), tuple(self._open.values()))

    @classmethod
    def restore(cls, values: HalfValues) -> Halves:
        """Return the state that `values` gave."""
        made = cls()
        made._base, made._outcomes = values.base, bytearray(values.outcomes)
        made._open = {half.number: half for half in values.halves}
        return made


class HalvesAhead:
    """The halves for the acting master: less what it has settled since.

    Args:
        base: The halves as of the dispatcher.
    """

    def __init__(self, base: Halves) -> None:
        self._base = base
        self._settled: dict[int, int] = {}
        self._checks: dict[int, CheckRow] = {}

    def forget(self) -> None:
        """Begin again with what is dispatched: the reign has ended."""
        self._settled.clear()
        self._checks.clear()

    def apply(self, row: HalfRow) -> bool:
        """Take a row that was appended; return whether the half was open."""
        if self.outcome(row.half) != OPEN:
            return False
        # Oldest first: what is dispatched needs no second word. Looked at only as far as that goes.
        told = takewhile(lambda number: self._base.get(number) is None, self._settled)
        for number in list(told):
            del self._settled[number]
        self._settled[row.half] = row.outcome
        # No question about it follows, and no dispatched row would take the entry away.
        self._checks.pop(row.half, None)
        return True

    def check(self, row: CheckRow) -> bool:
        """Take a row that was appended; return whether it is news."""
        half = self.get(row.half)
        if half is None or row.checks <= half.checks:
            return False
        self._checks[row.half] = row
        return True

    def get(self, number: int) -> Half | None:
        """Return a half that is open; None for another one."""
        if number in self._settled:
            return None
        half, row = self._base.get(number), self._checks.get(number)
        if half is None or row is None:
            return half
        if row.checks <= half.checks:  # it is dispatched by now
            del self._checks[number]
            return half
        return half._replace(checks=row.checks, next_ms=row.next)

    def outcome(self, number: int) -> int | None:
        """Return what became of a half, `OPEN` included; None: nothing is known of it."""
        return self._settled.get(number) or self._base.outcome(number)

    @property
    def end(self) -> int:
        """Queue offset after the newest half that is dispatched."""
        return self._base.end

    def open(self) -> Iterator[Half]:
        """Yield what is open, in the order of the log; nothing may change meanwhile."""
        return (half for one in self._base.open() if (half := self.get(one.number)) is not None)
