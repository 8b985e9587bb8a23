"""When producers are asked what became of a transaction, and who waits to be asked. Pure.

A transaction that nothing ends is asked about for the first time some seconds after the birth of
its oldest message that is open, then after pauses that double up to a minute. All its open messages
are asked about together, so they can be ended together. A question counts when it is handed out,
never while no producer waits for it. Some questions later the transaction is *exhausted*: the
master gives it up.

The order of due times is kept here; what is open, and how often it was asked about, is in the fold
(`storage.messaging.halves`), so the next master goes on where this one was.

Times are ms since 1970, but for waiting requests: seconds of the loop's clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import Protocol, cast

from storage.messaging.halves import Half
from twinlog.errors import Busy, TwinlogError, UsageError
from twinlog.format.waiting.halves import HALVES_MAX, KEEP_MS

PAUSE_MS_MAX = 60_000
"""Longest pause between two questions, unless the first one is longer."""
PER_SECOND = 1_000
"""Messages of one producer group that are asked about in a second; the next ones wait."""
ASKS_MAX = 4_096
"""Requests that wait to be asked; the next one is refused."""
ASKS_OF_ONE_MAX = 16
"""Those of one connection."""
_SPARE = 1_024
"""Entries beyond the open ones before they are tidied."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """When transactions are asked about and given up; defaults are those of ``cluster.toml``."""

    first_ms: int = 6_000
    """From a message's birth to the first question, unless the message says otherwise."""
    checks: int = 15
    """So often a transaction is asked about before it is given up."""
    keep_ms: int = KEEP_MS
    """What is open for that time is given up."""

    def due(self, half: Half) -> int:
        """Return when a message is asked about next."""
        if half.checks:
            return half.next_ms
        wait = half.immunity_ms if half.immunity_ms >= 0 else self.first_ms
        return half.stored_ms + wait

    def pause(self, checks: int) -> int:
        """Return the pause after that many questions.

        >>> [CheckSettings().pause(checks) // 1000 for checks in range(1, 6)]
        [12, 24, 48, 60, 60]
        """
        return max(self.first_ms, min(self.first_ms << min(checks, 30), PAUSE_MS_MAX))


class Asker(Protocol):
    """The connection of a producer; see `node.turns.parked.Asker`."""

    @property
    def gone(self) -> bool:
        """Whether it has ended."""
        ...

    @property
    def congested(self) -> bool:
        """Whether it has not taken its answers."""
        ...


class Done(Protocol):
    """Answers a request; see `node.turns.context.Done`."""

    def __call__(
        self, outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
    ) -> None:
        """Answer with fields and payload, or with an error."""
        ...


class Found(Protocol):
    """What is open; see `storage.messaging.halves.HalvesAhead`."""

    def get(self, number: int) -> Half | None:
        """Return an open half."""
        ...

    def open(self) -> Iterator[Half]:
        """Yield all of them."""
        ...

    @property
    def end(self) -> int:
        """Queue offset after the newest one."""
        ...


_Name = tuple[str, str]
_Entry = tuple[int, str, str]


class Checks:
    """The open transactions in the order in which they are due.

    Each has one entry, in the line of its group or among the exhausted ones, but while it is taken:
    `taken` messages are put back by `put`. Entries of what was settled go when their time comes.

    Args:
        settings: When they are due.
    """

    def __init__(self, settings: CheckSettings) -> None:
        self._settings = settings
        self.clear()

    def clear(self) -> None:
        """Forget all: a reign has ended, or begins."""
        self._end: int | None = None
        self._messages: dict[_Name, deque[int]] = {}
        self._lines: dict[str, list[_Entry]] = {}
        self._exhausted: list[_Entry] = []
        self._spent: dict[str, tuple[int, int]] = {}

    def follow(self, halves: Found, count: int) -> None:
        """Take in what was dispatched since the last call; ``count`` messages are open."""
        if self._end is None:
            for one in halves.open():
                self._enter(one, halves)
        else:
            for number in range(self._end, halves.end):
                half = halves.get(number)
                if half is not None:
                    self._enter(half, halves)
        self._end = halves.end
        if len(self._messages) > 2 * count + _SPARE:
            self._tidy(halves)

    def _enter(self, half: Half, halves: Found) -> None:
        name = half.group, half.name
        known = self._messages.get(name)
        if known is None:
            self._messages[name] = deque([half.number])
            self._push(half)
            return
        over = self._oldest(name, halves) is None
        known.append(half.number)
        # A name that is used again after its end: its entry has the pause of the one that ended. No
        # entry: it is taken, and `put` makes one.
        if over and self._drop(name):
            self._push(half)

    def _drop(self, name: _Name) -> bool:
        """Take the entry of a transaction out; whether there was one."""
        for line in (self._lines.get(name[0], []), self._exhausted):
            kept = [entry for entry in line if entry[1:] != name]
            if len(kept) < len(line):
                line[:] = kept
                heapify(line)
                return True
        return False

    def _push(self, oldest: Half, not_before: int = 0) -> None:
        at = max(self._settings.due(oldest), not_before)
        line = self._exhausted
        if oldest.checks < self._settings.checks:
            line = self._lines.setdefault(oldest.group, [])
        heappush(line, (at, oldest.group, oldest.name))

    def _tidy(self, halves: Found) -> None:
        """Forget transactions that were ended before their time came."""
        for name in [one for one in self._messages if self._oldest(one, halves) is None]:
            del self._messages[name]
        for line in (*self._lines.values(), self._exhausted):
            line[:] = [entry for entry in line if entry[1:] in self._messages]
            heapify(line)
        self._lines = {group: line for group, line in self._lines.items() if line}

    def _oldest(self, name: _Name, halves: Found) -> Half | None:
        numbers = self._messages[name]
        while numbers:
            half = halves.get(numbers[0])
            if half is not None:
                return half
            numbers.popleft()
        return None

    def take(self, group: str, now_ms: int, halves: Found) -> list[Half]:
        """Take the open messages of the transaction that is due first; none: nothing is due."""
        second, spent = self._spent.get(group, (0, 0))
        if second == now_ms // 1000 and spent >= PER_SECOND:
            return []
        line = self._lines.get(group, [])
        found = self._first(line, now_ms, halves)
        if found:
            heappop(line)
            before = spent if second == now_ms // 1000 else 0
            self._spent[group] = now_ms // 1000, before + len(found)
        return found

    def exhausted(self, now_ms: int, halves: Found) -> list[Half]:
        """Return those of one that was asked about often enough; it stays until they are ended."""
        return self._first(self._exhausted, now_ms, halves)

    def exhausted_ms(self) -> int | None:
        """Return when `exhausted` finds something; None: never."""
        return self._exhausted[0][0] if self._exhausted else None

    def _first(self, line: list[_Entry], now_ms: int, halves: Found) -> list[Half]:
        """Return the open messages of the entry that is due first, which stays there."""
        while line and line[0][0] <= now_ms:
            at, *named = line[0]
            name = named[0], named[1]
            oldest = self._oldest(name, halves)
            if oldest is None:
                heappop(line)
                del self._messages[name]
                continue
            if self._settings.due(oldest) > at:  # the one that was due was ended by itself
                heappop(line)
                self._push(oldest, self._settings.due(oldest))
                continue
            found = map(halves.get, islice(self._messages[name], HALVES_MAX))
            return [half for half in found if half is not None]
        return []

    def put(self, taken: Sequence[Half], halves: Found, not_before: int = 0) -> None:
        """Put a transaction back, as it is now, to be taken at ``not_before`` at the earliest."""
        name = taken[0].group, taken[0].name
        if name not in self._messages:
            return
        oldest = self._oldest(name, halves)
        if oldest is None:
            del self._messages[name]
        else:
            self._push(oldest, not_before)

    def next_ms(self, groups: Sequence[str], now_ms: int) -> int | None:
        """Return when `take` of one of the groups finds something; None: never."""
        found = list[int]()
        for group in groups:
            if line := self._lines.get(group):
                second, spent = self._spent.get(group, (0, 0))
                full = second == now_ms // 1000 and spent >= PER_SECOND
                found.append(max(line[0][0], (second + 1) * 1000 if full else 0))
        return min(found) if found else None


@dataclass(slots=True, eq=False)
class Ask:
    """A request that waits to be asked.

    Attributes:
        asker: Where it came from.
        group: Whose transactions.
        most: How many transactions its answer may name.
        arrived: When it came; ``deadline``: until when it waits.
        done: Answers it.
    """

    asker: Asker
    group: str
    most: int
    arrived: float
    deadline: float
    done: Done


def parse_checks(
    fields: Mapping[str, object], asker: Asker, done: Done, now: float, seconds_max: float
) -> Ask:
    """Return what a CHECKS asks for; it waits for ``seconds_max`` at most.

    Raises:
        UsageError: It makes no sense.
    """
    most, wait_ms = cast("int", fields["max"]), cast("int", fields["wait_ms"])
    if not 0 < most <= HALVES_MAX or wait_ms < 0:
        text = f"{most} transactions, {wait_ms} ms: 1 to {HALVES_MAX} are asked for, from 0 ms on"
        raise UsageError(text, code="fields")
    group = str(fields["group"])
    if not group:
        raise UsageError("a producer group has a name", code="fields")
    return Ask(asker, group, most, now, now + min(wait_ms / 1000, seconds_max), done)


class Asks:
    """Requests that wait to be asked, those of a group first come, first served."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[Ask, None]] = {}
        self._ends: list[tuple[float, int, Ask]] = []
        self._of: dict[Asker, int] = {}
        self._number = 0
        self.count = 0
        """How many there are."""

    def add(self, ask: Ask) -> None:
        """Let one wait.

        Raises:
            Busy: Too many do.
        """
        for waiting, most, limit in (
            (self.count, ASKS_MAX, "asks_max"),
            (self._of.get(ask.asker, 0), ASKS_OF_ONE_MAX, "asks_of_one_max"),
        ):
            if waiting >= most:
                text = f"{waiting} requests wait already to be asked about transactions ({limit})"
                raise Busy(text, limit=limit)
        self._lines.setdefault(ask.group, {})[ask] = None
        self._of[ask.asker] = self._of.get(ask.asker, 0) + 1
        self._number += 1
        heappush(self._ends, (ask.deadline, self._number, ask))
        self.count += 1

    def __contains__(self, ask: Ask) -> bool:
        """Whether one waits."""
        return ask in self._lines.get(ask.group, ())

    def remove(self, ask: Ask) -> None:
        """Take one out."""
        line = self._lines[ask.group]
        del line[ask]
        if not line:
            del self._lines[ask.group]
        self._of[ask.asker] -= 1
        if not self._of[ask.asker]:
            del self._of[ask.asker]
        self.count -= 1
        if len(self._ends) > 2 * self.count + _SPARE:
            self._ends = [end for end in self._ends if end[2] in self]
            heapify(self._ends)

    def groups(self) -> list[str]:
        """Return the groups with a producer that waits."""
        return list(self._lines)

    def first(self, group: str) -> Ask | None:
        """Return who of a group is asked next: who is there, and takes its answers."""
        for ask in self._lines.get(group, ()):
            if not ask.asker.gone and not ask.asker.congested:
                return ask
        return None

    def over(self, now: float) -> list[Ask]:
        """Take those whose time is over."""
        found: list[Ask] = []
        while self._ends and (self._ends[0][0] <= now or self._ends[0][2] not in self):
            ask = heappop(self._ends)[2]
            if ask in self:
                self.remove(ask)
                found.append(ask)
        return found

    def drain(self, wanted: Callable[[Ask], bool] = lambda ask: True) -> list[Ask]:
        """Take all, or those that are wanted."""
        found = [ask for line in self._lines.values() for ask in line if wanted(ask)]
        for ask in found:
            self.remove(ask)
        return found

    def next_deadline(self) -> float:
        """Return when `over` finds something, or an earlier time."""
        return self._ends[0][0] if self._ends else float("inf")


def refuse(asks: Sequence[Ask], error: TwinlogError) -> None:
    """Answer requests with an error."""
    for ask in asks:
        ask.done(error)
