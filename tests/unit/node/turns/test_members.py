"""Sessions of members: who was not heard for too long."""

from __future__ import annotations

from node.turns.members import Members, Session
from storage.messaging.fold import Member


def session(member: int, heard_at: float = 0.0, group: str = "g") -> Session:
    """A member with a session of ten seconds."""
    return Session(group, member, f"w{member}", heard_at, 10.0)


def test_who_is_silent_is_found_once_its_session_is_over() -> None:
    """Those who were heard stay, and nothing is looked at before the first could be over."""
    members = Members()
    first, second = session(1), session(2)
    members.join(first)
    members.join(second)
    assert len(members) == 2
    assert members.next_deadline() == 10.0
    assert members.silent(9.9) == []
    second.heard_at = 8.0
    assert members.silent(10.0) == [first]
    members.leave(first)
    members.leave(first)
    assert members.next_deadline() == 18.0
    assert members.of("g") == [second]
    members.leave(second)
    assert members.of("g") == []
    assert members.silent(30.0) == []


def test_a_parked_pop_stands_for_its_member() -> None:
    """It may wait longer than the session lasts."""
    members = Members()
    waiting = session(1)
    waiting.parked = 1
    members.join(waiting)
    assert members.silent(25.0) == []
    waiting.parked = 0
    assert members.silent(30.0) == []
    assert members.silent(35.0) == [waiting]


def test_a_reign_gives_everybody_one_session() -> None:
    """What was known of the reign before is gone."""
    members = Members()
    members.join(session(1))
    members.begin([("g", Member(7, "x", 0))], 100.0, 10.0)
    found = members.get("g", 7)
    assert found is not None
    assert (found.peer, found.heard_at, found.name) == (None, 100.0, "x")
    assert members.get("g", 1) is None
    assert members.get("other", 7) is None
    members.clear()
    assert len(members) == 0
