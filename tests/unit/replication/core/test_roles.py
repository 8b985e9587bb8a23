"""The tables of roles and sessions: their moves, and that nothing else is one."""

from __future__ import annotations

import pytest

from replication.core import roles
from replication.core.roles import (
    MASTER_SESSION,
    ROLES,
    SLAVE_SESSION,
    Machine,
    Role,
    RoleInput,
    diagrams,
)


def test_a_move_that_the_table_does_not_hold_is_an_error() -> None:
    """Our own code broke a rule; the process must end."""
    machine = Machine(ROLES)
    assert not machine.can(RoleInput.ENOUGH)
    with pytest.raises(AssertionError):
        machine.move(RoleInput.ENOUGH)


def test_a_master_is_made_only_by_an_election() -> None:
    """No other input leads to the master's states from outside."""
    masters = {Role.STARTING, Role.ACTIVE, Role.DEGRADED, Role.TRANSFERRING}
    entries = {
        given
        for (state, given), after in ROLES.moves.items()
        if after in masters and state not in masters
    }
    assert entries == {RoleInput.ELECTED}


def test_every_state_can_be_reached_and_every_role_can_stop() -> None:
    """A table with a state that nothing leads to is a wrong table."""
    for table in (ROLES, MASTER_SESSION, SLAVE_SESSION):
        reached = {table.start} | set(table.moves.values())
        assert reached == set(type(table.start))
    for role in Role:
        if role is not Role.STOPPED:
            assert ROLES.moves[role, RoleInput.STOP] is Role.STOPPED


def test_the_diagrams_show_every_move() -> None:
    """One line each, in the order of the table."""
    drawn = diagrams()
    assert list(drawn) == ["role", "master session", "slave session"]
    assert drawn["role"].startswith("stateDiagram-v2\n    [*] --> fenced\n")
    assert len(drawn["role"].splitlines()) == 2 + len(ROLES.moves)
    assert "    fenced --> starting: elected, promise on disk" in drawn["role"].splitlines()
    assert roles.mermaid(SLAVE_SESSION) == drawn["slave session"]
