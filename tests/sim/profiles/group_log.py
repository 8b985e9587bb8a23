"""What groups have consumed, by the judge's own account: one cell for each message.

Slow and plain on purpose: it shares nothing with production's runs but the rows in the log.

Not here: what must hold (`tests.sim.invariants.messaging`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

LEASED, WAITING, SETTLED = 1, 2, 3


class Cell(NamedTuple):
    """One message of a share that was handed out."""

    state: int
    n: int = 0
    attempt: int = 0
    until: int = 0
    member: int = 0
    pop: int = 0


DONE = Cell(SETTLED)
Row = list[Any]


class ShareLog:
    """One share: its cells lie from ``low`` to below ``next``.

    Attributes:
        resets: Lease numbers that resets and skips made.
    """

    def __init__(self, number: int, group: str, topic: str, queue: int, start: int) -> None:
        self.number, self.group, self.topic, self.queue = number, group, topic, queue
        self.low = self.next = start
        self.n = 0
        self.cells: dict[int, Cell] = {}
        self.resets: list[int] = []

    def trim(self) -> None:
        """Move low over what is settled."""
        while self.low < self.next and self.cells[self.low].state == SETTLED:
            del self.cells[self.low]
            self.low += 1

    def lease(self, n: int, first: int, count: int, member: int, pop: int, until: int,
              attempt: int) -> bool:  # fmt: skip
        """Hand messages out."""
        offsets = range(first, first + count)
        if n != self.n + 1:
            return False
        if first >= self.next:
            for left_out in range(self.next, first):
                self.cells[left_out] = DONE
        elif not count or any(self.cells.get(one, DONE).state == SETTLED for one in offsets):
            return False
        for one in offsets:
            self.cells[one] = Cell(LEASED, n, attempt, until, member, pop)
        self.next, self.n = max(self.next, first + count), n
        self.trim()
        return True

    def change(self, n: int, first: int, last: int, states: tuple[int, ...], to: Any) -> list[int]:
        """Change what lease ``n`` holds; return which offsets."""
        found = [
            one
            for one in range(max(first, self.low), min(last, self.next - 1) + 1)
            if self.cells[one].n == n and self.cells[one].state in states
        ]
        for one in found:
            self.cells[one] = to(self.cells[one])
        self.trim()
        return found


@dataclass(slots=True)
class GroupLog:
    """All shares and members, as the rows up to some place of the log make them."""

    shares: dict[int, ShareLog] = field(default_factory=dict)
    members: dict[tuple[str, int], str] = field(default_factory=dict)
    newest: int = 0

    def find(self, group: str, topic: str, queue: int) -> ShareLog | None:
        """Return a group's share of a queue."""
        for one in self.shares.values():
            if (one.group, one.topic, one.queue) == (group, topic, queue):
                return one
        return None

    def drop(self, group: str) -> None:
        """A group was deleted."""
        self.shares = {n: one for n, one in self.shares.items() if one.group != group}
        self.members = {key: name for key, name in self.members.items() if key[0] != group}

    def apply(self, row: Row) -> bool:
        """Take a row; say whether it changed anything."""
        letter, items = row[0], row[1:]
        if letter == "S":
            number, group, topic, _, queue, start = items
            if self.find(group, topic, queue) or number <= self.newest:
                return False
            self.shares[number] = ShareLog(number, group, topic, queue, start)
            self.newest = number
            return True
        if letter == "M":
            group, member, name, joined = items
            if bool(joined) == ((group, member) in self.members):
                return False
            if joined:
                self.members[group, member] = name
            else:
                del self.members[group, member]
            return True
        share = self.shares.get(items[0])
        return share is not None and _change(share, letter, items[1:])


def _change(share: ShareLog, letter: str, items: Row) -> bool:
    match letter:
        case "L":
            return share.lease(*items)
        case "A":
            n, first, last = items[:3]
            return bool(share.change(n, first, last, (LEASED, WAITING), lambda cell: DONE))
        case "R":
            n, first, last, at, unused = items

            def given(cell: Cell) -> Cell:
                attempt = max(0, cell.attempt - 1) if unused else cell.attempt
                return cell._replace(state=WAITING, attempt=attempt, until=at)

            return bool(share.change(n, first, last, (LEASED,), given))
        case "X":
            n, first, last, until = items
            return bool(
                share.change(n, first, last, (LEASED,), lambda cell: cell._replace(until=until))
            )
        case "Z":
            share.low = share.next = items[0]
            share.n += 1
            share.cells.clear()
            share.resets.append(share.n)
            return True
        case _:
            return False
