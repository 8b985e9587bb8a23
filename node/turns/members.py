"""Who is a member, and since when each was not heard. Pure.

A membership is in the log (row ``M``); when its member was heard last is known to the acting
master alone, so a new master gives everybody one whole session. POP, SETTLE, COMMIT and BEAT are
heard; a parked POP stands for its member until it is answered. A broken connection is not a leave.

A member speaks from the connection on which it joined last: a number that was guessed is of no use
on another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from storage.messaging.fold import Member


@dataclass(slots=True, eq=False)
class Session:
    """A member as this master knows it.

    Attributes:
        group, member, name: Of its row.
        heard_at: Clock of its last word, seconds.
        seconds: How long it may be silent.
        peer: The connection it speaks from; None: it has not joined since the reign began.
        address: The same for people.
        topics: Of a broadcast member: what it reads.
        pop: Its newest POP of this reign; 0: none yet.
        parked: Its POPs that wait for messages.
    """

    group: str
    member: int
    name: str
    heard_at: float
    seconds: float
    peer: object | None = None
    address: str = ""
    topics: tuple[str, ...] = ()
    pop: int = 0
    parked: int = 0


@dataclass(slots=True)
class Members:
    """The sessions of all members.

    Attributes:
        lost: Sessions that ended by silence, since the start.
    """

    _sessions: dict[int, Session] = field(default_factory=dict[int, Session])
    _groups: dict[str, dict[int, Session]] = field(default_factory=dict[str, dict[int, Session]])
    _look_at: float = float("inf")
    lost: int = 0

    def __len__(self) -> int:
        """Return how many members there are."""
        return len(self._sessions)

    def begin(self, groups: Iterable[tuple[str, Member]], now: float, seconds: float) -> None:
        """A reign begins: everybody has ``seconds`` to come back."""
        self.clear()
        for group, member in groups:
            self.join(Session(group, member.id, member.name, now, seconds))

    def clear(self) -> None:
        """A reign has ended."""
        self._sessions.clear()
        self._groups.clear()
        self._look_at = float("inf")

    def join(self, session: Session) -> None:
        """Take a member, or another session of it."""
        self._sessions[session.member] = session
        self._groups.setdefault(session.group, {})[session.member] = session
        self._look_at = min(self._look_at, session.heard_at + session.seconds)

    def leave(self, session: Session) -> None:
        """Forget a member."""
        self._sessions.pop(session.member, None)
        members = self._groups.get(session.group, {})
        members.pop(session.member, None)
        if not members:
            self._groups.pop(session.group, None)

    def get(self, group: str, member: int) -> Session | None:
        """Return a member of a group; None: no member has that number."""
        session = self._sessions.get(member)
        return session if session is not None and session.group == group else None

    def of(self, group: str) -> list[Session]:
        """Return the members of a group, oldest first."""
        return list(self._groups.get(group, {}).values())

    def on(self, topic: str) -> list[Session]:
        """Return the members who consume a topic, as far as they said so in this reign."""
        return [one for one in self._sessions.values() if topic in one.topics]

    def silent(self, now: float) -> list[Session]:
        """Return the members whose session is over; they are still here."""
        if now < self._look_at:
            return []
        found: list[Session] = []
        self._look_at = float("inf")
        for session in self._sessions.values():
            if session.parked:
                session.heard_at = now
            ends = session.heard_at + session.seconds
            if ends <= now:
                found.append(session)
            else:
                self._look_at = min(self._look_at, ends)
        return found

    def next_deadline(self) -> float:
        """Return when `silent` has something to do, seconds of the same clock."""
        return self._look_at
