"""Pops that wait for messages: first come, first served. Pure.

Pops of one group stand in one line, whatever topics they name. A group is looked at again when its
messages may have become available: a record was dispatched into one of the topics, messages were
given back or their lease ended, or a full share has room again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import Protocol

from node.clients.reads import ReadAsker
from node.leases.leasing import Wish
from node.turns.members import Session
from storage.messaging.groups import Group


class Asker(ReadAsker, Protocol):
    """Who waits for an answer: a client connection, or a test."""

    @property
    def congested(self) -> bool:
        """Whether it has not taken its answers: it is given no more messages now."""
        ...

    def sees(self, thing: str, name: str) -> bool:
        """Whether it may know of a topic or group."""
        ...


def _unheard(*outcome: object) -> None:
    """Take an answer before it is known how it is given."""


@dataclass(slots=True, eq=False)
class Pop:
    """One POP of a member.

    Attributes:
        asker: Where it came from.
        session: Of the member.
        group: Its definition when it came.
        wish: What it asks for.
        arrived: Clock, seconds. ``deadline``: until when it may be parked.
        fast: The answer leaves with the append of its lease.
        places: No records are wanted with the answer.
        answer: Called once: with a `Handed` or None and the ms it waited, or with an error.
        parked: Whether it is in a line.
    """

    asker: Asker
    session: Session
    group: Group
    wish: Wish
    arrived: float
    deadline: float
    fast: bool
    places: bool
    answer: Callable[..., None] = _unheard
    parked: bool = False


class Parked:
    """See the module."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[Pop, None]] = {}
        self._ends: list[tuple[float, int, Pop]] = []
        self._number = 0
        self.count = 0
        """Pops that wait now."""

    def add(self, pop: Pop) -> None:
        """Let a pop wait, after those that are there."""
        self._lines.setdefault(pop.group.name, {})[pop] = None
        self._number += 1
        heappush(self._ends, (pop.deadline, self._number, pop))
        pop.parked = True
        pop.session.parked += 1
        self.count += 1

    def remove(self, pop: Pop) -> None:
        """Take a pop out of its line, if it is there."""
        if not pop.parked:
            return
        line = self._lines[pop.group.name]
        del line[pop]
        pop.parked = False
        pop.session.parked -= 1
        self.count -= 1
        if not line:
            del self._lines[pop.group.name]
        if len(self._ends) > 2 * self.count + 1024:  # deadlines lie far ahead of answers
            self._ends = [end for end in self._ends if end[2].parked]
            heapify(self._ends)

    def line(self, group: str) -> list[Pop]:
        """Return the pops of a group, oldest first."""
        return list(self._lines.get(group, ()))

    def groups(self) -> list[str]:
        """Return the groups with a pop that waits."""
        return list(self._lines)

    def of(self, session: Session) -> list[Pop]:
        """Return the pops of one member."""
        return [pop for pop in self.line(session.group) if pop.session is session]

    def over(self, now: float) -> list[Pop]:
        """Take the pops whose time is over."""
        found: list[Pop] = []
        while self._ends and (self._ends[0][0] <= now or not self._ends[0][2].parked):
            pop = heappop(self._ends)[2]
            if pop.parked:
                self.remove(pop)
                found.append(pop)
        return found

    def drain(self, asker: Asker | None = None) -> list[Pop]:
        """Take all, or those of one asker."""
        found = [
            pop
            for line in self._lines.values()
            for pop in line
            if asker is None or pop.asker is asker
        ]
        for pop in found:
            self.remove(pop)
        return found

    def next_deadline(self) -> float:
        """Return when `over` has something to do."""
        while self._ends and not self._ends[0][2].parked:
            heappop(self._ends)
        return self._ends[0][0] if self._ends else float("inf")
