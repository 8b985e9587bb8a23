"""The state machines of a node, as data, and the diagrams drawn from them.

Three tables map (state, input) to the next state; a pair that is not in a table must not happen,
and `Machine.move` raises if it does. States change only through the tables. `mermaid` renders a
table; ``docs/`` has the result, and a test compares both.

* `ROLES`: what a node is. Every process begins fenced; only a new epoch makes a master.
* `MASTER_SESSION`: what the master does with one slave.
* `SLAVE_SESSION`: what a slave does with its master.

Not here: what causes an input (``replica``, ``leading``, ``following``).
Rules: docs/protocol.md R13 to R15; drawn in docs/state-machines.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar


class Role(Enum):
    """The role of a node."""

    FENCED = "fenced"
    CANDIDATE = "candidate"
    SLAVE = "slave"
    STARTING = "starting"
    ACTIVE = "active"
    DEGRADED = "degraded"
    TRANSFERRING = "transferring"
    QUARANTINED = "quarantined"
    STOPPED = "stopped"


class RoleInput(Enum):
    """The inputs that change a role."""

    NO_LEADER = "no leader, and we may stand"
    OTHER_LEADER = "another node leads"
    ELECTED = "elected, promise on disk"
    EPOCH_FLUSHED = "epoch record flushed, enough in sync"
    EPOCH_FLUSHED_ALONE = "epoch record flushed, too few in sync"
    ENOUGH = "enough in sync"
    TOO_FEW = "too few in sync"
    TRANSFER = "switchover asked"
    TRANSFER_OVER = "switchover given up"
    FENCE = "newer state, other leader or no right to stand"
    DAMAGE = "log damaged or divergent"
    REPAIRED = "damage repaired"
    STOP = "stop"


class SendingState(Enum):
    """The state of a master's link to one slave."""

    GREETING = "greeting"
    OFFERED = "offered"
    STREAMING = "streaming"
    DAMAGED = "damaged"
    CLOSED = "closed"


class SendingInput(Enum):
    """The inputs that change it."""

    HELLO = "hello accepted"
    READY = "ready at the point"
    OWN_COPY_BAD = "own copy of a batch is bad"
    END = "link ended or rule broken"


class FollowingState(Enum):
    """The state of a slave's link to its master."""

    DIALING = "dialing"
    HANDSHAKE = "handshake"
    CUTTING = "cutting"
    STREAMING = "streaming"
    WAITING = "waiting"


class FollowingInput(Enum):
    """The inputs that change it."""

    DIALED = "link stands: hello"
    EQUAL = "point is our end: ready"
    AHEAD = "point is before our end: cut"
    CUT = "cut done: hello again"
    END = "link ended or refused"
    REDIAL = "pause over: dial"


S = TypeVar("S", bound=Enum)
I = TypeVar("I", bound=Enum)  # noqa: E741


@dataclass(frozen=True)
class Table(Generic[S, I]):
    """A state machine: its start and its moves."""

    name: str
    start: S
    moves: Mapping[tuple[S, I], S]


class Machine(Generic[S, I]):
    """One run of a table."""

    __slots__ = ("_table", "state")

    def __init__(self, table: Table[S, I]) -> None:
        self._table = table
        self.state: S = table.start

    def can(self, given: I) -> bool:
        """Whether the table has a move for ``given``."""
        return (self.state, given) in self._table.moves

    def move(self, given: I) -> S:
        """Apply the move for ``given`` and return the new state.

        Raises:
            AssertionError: The table has no such move: a bug here, not an error of a peer.
        """
        state = self._table.moves.get((self.state, given))
        if state is None:
            raise AssertionError(f"{self._table.name}: {given.name} in {self.state.name}")
        self.state = state
        return state


_R, _RI = Role, RoleInput

_MASTERS = (Role.STARTING, Role.ACTIVE, Role.DEGRADED, Role.TRANSFERRING)

ROLES: Table[Role, RoleInput] = Table(
    "role",
    _R.FENCED,
    {
        (_R.FENCED, _RI.NO_LEADER): _R.CANDIDATE,
        (_R.FENCED, _RI.OTHER_LEADER): _R.SLAVE,
        (_R.FENCED, _RI.ELECTED): _R.STARTING,
        (_R.CANDIDATE, _RI.ELECTED): _R.STARTING,
        (_R.CANDIDATE, _RI.OTHER_LEADER): _R.SLAVE,
        (_R.CANDIDATE, _RI.FENCE): _R.FENCED,
        (_R.SLAVE, _RI.FENCE): _R.FENCED,
        (_R.STARTING, _RI.EPOCH_FLUSHED): _R.ACTIVE,
        (_R.STARTING, _RI.EPOCH_FLUSHED_ALONE): _R.DEGRADED,
        (_R.ACTIVE, _RI.TOO_FEW): _R.DEGRADED,
        (_R.DEGRADED, _RI.ENOUGH): _R.ACTIVE,
        (_R.ACTIVE, _RI.TRANSFER): _R.TRANSFERRING,
        (_R.TRANSFERRING, _RI.TRANSFER_OVER): _R.ACTIVE,
        (_R.TRANSFERRING, _RI.TOO_FEW): _R.DEGRADED,
        **{(role, _RI.FENCE): _R.FENCED for role in _MASTERS},
        **{
            (role, _RI.DAMAGE): _R.QUARANTINED
            for role in (_R.FENCED, _R.CANDIDATE, _R.SLAVE, *_MASTERS)
        },
        (_R.QUARANTINED, _RI.REPAIRED): _R.FENCED,
        **{(role, _RI.STOP): _R.STOPPED for role in _R if role is not _R.STOPPED},
    },
)

MASTER_SESSION: Table[SendingState, SendingInput] = Table(
    "master session",
    SendingState.GREETING,
    {
        (SendingState.GREETING, SendingInput.HELLO): SendingState.OFFERED,
        (SendingState.OFFERED, SendingInput.HELLO): SendingState.OFFERED,
        (SendingState.OFFERED, SendingInput.READY): SendingState.STREAMING,
        (SendingState.STREAMING, SendingInput.OWN_COPY_BAD): SendingState.DAMAGED,
        **{
            (state, SendingInput.END): SendingState.CLOSED
            for state in SendingState
            if state is not SendingState.CLOSED
        },
    },
)

SLAVE_SESSION: Table[FollowingState, FollowingInput] = Table(
    "slave session",
    FollowingState.DIALING,
    {
        (FollowingState.DIALING, FollowingInput.DIALED): FollowingState.HANDSHAKE,
        (FollowingState.HANDSHAKE, FollowingInput.EQUAL): FollowingState.STREAMING,
        (FollowingState.HANDSHAKE, FollowingInput.AHEAD): FollowingState.CUTTING,
        (FollowingState.CUTTING, FollowingInput.CUT): FollowingState.HANDSHAKE,
        (FollowingState.WAITING, FollowingInput.REDIAL): FollowingState.DIALING,
        **{
            (state, FollowingInput.END): FollowingState.WAITING
            for state in FollowingState
            if state is not FollowingState.WAITING
        },
    },
)


def diagrams() -> dict[str, str]:
    """Return the Mermaid diagram of every table, by its name."""
    return {
        ROLES.name: mermaid(ROLES),
        MASTER_SESSION.name: mermaid(MASTER_SESSION),
        SLAVE_SESSION.name: mermaid(SLAVE_SESSION),
    }


def mermaid(table: Table[S, I]) -> str:
    """Return the table as a Mermaid state diagram, in the order of its moves."""
    lines = ["stateDiagram-v2", f"    [*] --> {table.start.value}"]
    for (state, given), after in table.moves.items():
        label = given.value.replace(":", ",")  # Mermaid ends a label at a second colon
        lines.append(f"    {state.value} --> {after.value}: {label}")
    return "\n".join(lines) + "\n"
