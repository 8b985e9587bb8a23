"""The simulated coordinator: the production Register on a database that keeps what it committed.

Each change is one transaction: the register's document, the pair (revision, tag) and the history
are kept as SQLite would keep them (as text, so that nothing is shared with the living object), and
only then the answer leaves. A crash loses the process, never a transaction; sometimes it comes
between a transaction and its answer.

A call has a deadline at the caller; the request itself may lie in the network for much longer and
take effect long after its caller has given up: the outcome is *unknown* until a newer state is
seen.

Not here: what operators want (`tests.sim.operator`).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from replication.group_state import GroupState
from replication.register import Register
from replication.register_ops import Failover, Operation, parse_op

if TYPE_CHECKING:
    from tests.sim.node import SimNode
    from tests.sim.world import World

NAME = "coord"
CALL_SECONDS = 1.0
_LATE_SHARE = 0.3  # of the requests that would be lost, so many arrive late instead
_LATE_SECONDS = 10.0
_CRASH_AFTER_CHANGE = 0.3  # of the crashes, so many wait for the next change


class SimCoordinator:
    """The coordinator's machine.

    Attributes:
        alive: Its process runs.
        state: The group state as committed.
        changes: Number of changes.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.alive = False
        self.changes = 0
        self._register = Register("register-1")
        self.state: GroupState = self._register.state
        self._document = json.dumps(self._register.dump())
        self._history = "[]"
        self._pairs: dict[int, int] = {}
        self._doomed = False
        self._first = True

    def start(self) -> None:
        """Start the process, unless it runs; a crash that was to come does not."""
        self._doomed = False
        if self.alive:
            return
        self.alive = True
        self.world.trace(NAME, "start")
        if self._first:
            self._first = False
            return
        self._register = Register.load(
            json.loads(self._document), dict(self._pairs), json.loads(self._history)
        )

    def crash(self) -> None:
        """End the process, now or right after its next change."""
        if self.world.schedule.rng.random() < _CRASH_AFTER_CHANGE:
            self._doomed = True
        else:
            self._end()

    def _end(self) -> None:
        self.alive = False
        self._doomed = False
        self.world.trace(NAME, "end")

    # -- calls

    def ask(self, node: SimNode, incarnation: int, call_id: int, op: dict[str, object]) -> None:
        """A node asks; it hears an answer within its deadline or that the outcome is unknown."""
        world = self.world
        call = _Call(node, incarnation, call_id)
        world.schedule.after(CALL_SECONDS, self._give_up, call)
        if not world.network.post(node.name, NAME, self._arrived, call, op):
            rng = world.schedule.rng
            if rng.random() < _LATE_SHARE:
                world.schedule.after(rng.random() * _LATE_SECONDS, self._arrived, call, op)

    def _give_up(self, call: _Call) -> None:
        if not call.settled:
            call.settled = True
            call.node.answered(call.incarnation, call.number, None)

    def _arrived(self, call: _Call, op: dict[str, object]) -> None:
        if not self.alive:
            return
        answer = self._apply(parse_op(op), f"{call.node.name} {op['op']}")
        if answer is not None:
            self.world.network.post(NAME, call.node.name, self._answer, call, answer)

    def _answer(self, call: _Call, answer: dict[str, object]) -> None:
        if not call.settled:
            call.settled = True
            call.node.answered(call.incarnation, call.number, answer)

    def _apply(self, op: Operation, what: str) -> dict[str, object] | None:
        """Carry out one operation; None when the process died before it could answer."""
        rng = self.world.schedule.rng
        answer = self._register.apply(
            op, wall_ms=self.world.wall_ms(), tag=rng.getrandbits(64)
        )
        if answer.changed:
            self._commit()
            state = self.state
            self.world.trace(
                NAME,
                "change",
                f"r{state.revision} e{state.epoch} {state.leader or '-'} isr {','.join(state.isr)}"
                f" elr {','.join(state.elr)} ({what})",
            )
            self.world.register_changed()
        elif not answer.ok:
            self.world.trace(NAME, "refuse", f"{what}: {answer.code}")
        if self._doomed and answer.changed:
            self._end()
            return None
        return answer.to_wire()

    def _commit(self) -> None:
        self.changes += 1
        self.state = self._register.state
        self._document = json.dumps(self._register.dump())
        self._history = json.dumps(self._register.history)
        self._pairs[self.state.revision] = self.state.tag

    def poll(self, node: SimNode, incarnation: int) -> None:
        """A node looks at the state, as its watch does."""
        self.world.network.post(node.name, NAME, self._polled, node, incarnation)

    def _polled(self, node: SimNode, incarnation: int) -> None:
        if self.alive and self.state.seeded:
            self.world.network.post(
                NAME, node.name, node.group_state, incarnation, self.state.to_json()
            )

    def order_failover(self, to: str) -> None:
        """An operator's order; refused or done, and nothing when nobody answers."""
        if self.alive:
            self._apply(Failover(to, "operator", "simulated"), f"failover to {to}")


class _Call:
    __slots__ = ("incarnation", "node", "number", "settled")

    def __init__(self, node: SimNode, incarnation: int, number: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.number = number
        self.settled = False
