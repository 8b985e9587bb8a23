"""The simulated coordinator: the production Register on a database that keeps what it committed.

Each change is one transaction: the register's document, the pair (revision, tag) and the history
are kept as SQLite would keep them (as text, so that nothing is shared with the living object), and
only then the answer leaves. A crash loses the process, never a transaction; sometimes it comes
between a transaction and its answer.

A call has a deadline at the caller; the request itself may lie in the network for much longer and
take effect long after its caller has given up: the outcome is *unknown* until a newer state is
seen.

Not here: what operators want (`tests.sim.users.operator`).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

from replication.register.group_state import GroupState
from replication.register.leases import Leases
from replication.register.operations import (
    AlterInSync,
    Failover,
    Operation,
    Recover,
    Vouch,
    parse_op,
)
from replication.register.register import Register
from tests.sim.judge.ledger import Violation

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

NAME = "coord"
CALL_SECONDS = 1.0
LOOK_SECONDS = 0.1
_LATE_SHARE = 0.3  # of the requests that would be lost, so many arrive late instead
_LATE_SECONDS = 10.0
_CRASH_AFTER_CHANGE = 0.3  # of the crashes, so many wait for the next change


class SimCoordinator:
    """The coordinator's machine.

    Attributes:
        alive: Its process runs.
        state: The group state as committed.
        changes: Number of changes.
        leaving: Members that requests on their way would take out of the in-sync set.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.alive = False
        self.changes = 0
        self.leaving: Counter[str] = Counter()
        self._register = Register("register-1")
        self.state: GroupState = self._register.state
        self._document = json.dumps(self._register.dump())
        self._history = "[]"
        self._pairs: dict[int, int] = {}
        self._doomed = False
        self._first = True
        self._old = False
        self._process = 0
        self._copies: list[tuple[int, str, str]] = []
        self._leases = Leases(0.0)
        self.deposed = 0
        """Leaderships that ended because their master was gone."""
        self.masters = 0
        """How often the register named a master."""
        self.recovered = 0
        """How often an operator had the register made again."""
        self.always_durable = True
        """The group has never acknowledged what a loss of power can take."""
        self._gone = False
        self._registers = 1
        self._disks = 0
        """How many disks were exchanged: what an earlier one said is not heard any more."""

    def start(self) -> None:
        """Start the process, unless it runs; a crash that was to come does not."""
        self._doomed = False
        if self.alive or (self._old and not self._gone):
            return
        self.alive = True
        self._process += 1
        self.world.trace(NAME, "start")
        self._watch()
        if self._first:
            self._first = False
            return
        if not self._gone:
            self._load(self.state.revision, self._document, self._history)
        elif self.own.seeded:
            own = self._register
            self._register = Register.load(own.dump(), own.pairs, own.history)

    def _load(self, revision: int, document: str, history: str) -> None:
        pairs = {number: tag for number, tag in self._pairs.items() if number <= revision}
        self._register = Register.load(json.loads(document), pairs, json.loads(history))

    def copy_of_this_epoch(self) -> bool:
        """Start on a copy of this leadership from before the set under which was confirmed last.

        Only where more than half of the nodes hold a member of any set that confirms: each of those
        has fsynced the revision of its set, so that it is reported, whoever is away.
        """
        plan = self.world.plan
        epoch, revision = self.world.confirmed_under
        few = plan.in_sync_min + len(plan.nodes) // 2 + 1 <= len(plan.nodes)
        if few or epoch != self.state.epoch:
            return False
        return self._start_on_one_of(
            [
                copy
                for copy in self._copies
                if copy[0] < revision
                and f'"epoch": {self.state.epoch},' in copy[1]
                and f'"leader": "{self.state.leader}"' in copy[1]
            ]
        )

    def old_copy(self, *, for_good: bool = False, last: bool = False) -> bool:
        """Start on an old copy of the database, if enough nodes have fsynced that there is more.

        Enough are those of whom every majority has one. The protocol states, and does not solve,
        the cases in which only absent nodes know better, and of a copy from before the first
        registration: it knows nobody to wait for. ``for_good``: the newest one is lost. ``last``:
        the newest of those copies.
        """
        nodes = self.world.nodes.values()
        seen = sorted(node.store.promise.revision if node.store else 0 for node in nodes)
        known = seen[len(seen) // 2]
        older = [copy for copy in self._copies if 0 < copy[0] < known]
        if not self._start_on_one_of(older[-1:] if last else older):
            return False
        self._gone = for_good
        self._disks += for_good
        return True

    def lose(self) -> bool:
        """Exchange the disk for an empty one: the register begins again and knows nothing."""
        if self._old or not self.state.epoch:
            return False
        self._end()
        self._old = self._gone = self.alive = True
        self._process += 1
        self._registers += 1
        self._disks += 1
        self._watch()
        self.world.trace(NAME, "lost", f"r{self.state.revision}")
        self._register = Register(f"register-{self._registers}")
        return True

    def _start_on_one_of(self, older: list[tuple[int, str, str]]) -> bool:
        if not older or self._old:
            return False
        self._end()
        self._old = self.alive = True
        self._process += 1
        self._watch()
        copy = self.world.schedule.rng.choice(older)
        self.world.trace(NAME, "old copy", f"r{copy[0]} of r{self.state.revision}")
        self._load(*copy)
        return True

    def newest_back(self) -> None:
        """Put the newest database back, after an old copy."""
        if self._old and not self._gone:
            self._end()
            self._old = False
            self.start()

    @property
    def gone(self) -> bool:
        """Whether the newest database is lost, so that the register must be recovered."""
        return self._gone

    @property
    def own(self) -> GroupState:
        """The state that this coordinator has, which may be an old or an empty one."""
        return self._register.state

    def recover(self, op: Recover) -> bool:
        """An operator has the register made again from what the nodes promised."""
        if not self.alive:
            return False
        answer = self._apply(op, f"recover without {op.absent}")
        return answer is None or bool(answer["ok"])

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

    # -- masters that are gone

    def _watch(self) -> None:
        self._leases = Leases(self.world.schedule.now)
        if self.world.plan.failover == "automatic":
            self.world.schedule.after(LOOK_SECONDS, self._look, self._process)

    def _look(self, process: int) -> None:
        if not self.alive or process != self._process:
            return
        self.world.schedule.after(LOOK_SECONDS, self._look, process)
        self._leases.awake(self.world.schedule.now)
        due = self._leases.due(self.world.schedule.now, self._register.state, self.world.wall_ms())
        if due is not None:
            answer = self._apply(due, due.why)
            self.deposed += answer is None or bool(answer["ok"])

    def hang_up(self, name: str, session: int) -> None:
        """The connections of a process that died end, as far as the network lets that through."""
        self.world.network.post(name, NAME, self._hung_up, name, session)

    def _hung_up(self, name: str, session: int) -> None:
        self._leases.ended(self.world.schedule.now, (name, session))

    # -- calls

    def ask(self, node: SimNode, incarnation: int, call_id: int, op: dict[str, object]) -> None:
        """A node asks; it hears an answer within its deadline or that the outcome is unknown."""
        world = self.world
        call = _Call(node, incarnation, call_id, self._process)
        world.schedule.after(CALL_SECONDS, self._give_up, call)
        self.leaving.update(_removed(op))
        if not world.network.post(node.name, NAME, self._arrived, call, op):
            rng = world.schedule.rng
            if rng.random() < _LATE_SHARE:
                world.schedule.after(rng.random() * _LATE_SECONDS, self._arrived, call, op)
            else:
                self.leaving.subtract(_removed(op))

    def _give_up(self, call: _Call) -> None:
        if not call.settled:
            call.settled = True
            call.node.answered(call.incarnation, call.number, None)

    def _arrived(self, call: _Call, op: dict[str, object]) -> None:
        self.leaving.subtract(_removed(op))
        if not self.alive or call.process != self._process:
            return  # the connection on which it was said ended with the process
        answer = self._apply(parse_op(op), f"{call.node.name} {op['op']}")
        if answer is not None:
            self.world.network.post(NAME, call.node.name, self._answer, call, answer, self._disks)

    def _answer(self, call: _Call, answer: dict[str, object], disk: int) -> None:
        if not call.settled and disk == self._disks:
            call.settled = True
            call.node.answered(call.incarnation, call.number, answer)

    def _apply(self, op: Operation, what: str) -> dict[str, object] | None:
        """Carry out one operation; None when the process died before it could answer."""
        rng = self.world.schedule.rng
        answer = self._register.apply(op, wall_ms=self.world.wall_ms(), tag=rng.getrandbits(64))
        self._leases.heard(self.world.schedule.now, self._register.state, op.report)
        if answer.changed and self._old and isinstance(op, Recover):
            self._old = self._gone = False
            self.recovered += 1
        if answer.changed and self._is_empty():
            return answer.to_wire()  # a group that has not begun, on the wrong disk
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

    def _is_empty(self) -> bool:
        """Whether the register began on an empty disk and has not granted anything."""
        return (
            self._gone
            and self._register.state.register_id != self.state.register_id
            and (self._register.state.epoch == 0)
        )

    def _commit(self) -> None:
        if self._old:
            raise Violation(
                "RegisterNeverGoesBack",
                f"an old copy makes revision {self._register.state.revision}, which was another",
            )
        self.changes += 1
        before, after = self.state, self._register.state
        self.masters += after.leader is not None and after.epoch != before.epoch
        self._copies.append((self.state.revision, self._document, self._history))
        self.state = self._register.state
        self._document = json.dumps(self._register.dump())
        self._history = json.dumps(self._register.history)
        self._pairs[self.state.revision] = self.state.tag
        self.always_durable = self.always_durable and self.state.ack == "durable"

    def poll(self, node: SimNode, incarnation: int) -> None:
        """A node looks at the state, as its watch does."""
        self.world.network.post(node.name, NAME, self._polled, node, incarnation)

    def _polled(self, node: SimNode, incarnation: int) -> None:
        state = self._register.state
        if self.alive and state.seeded:
            self.world.network.post(
                NAME, node.name, self._read, node, incarnation, state.to_json(), self._disks
            )

    def _read(self, node: SimNode, incarnation: int, state: dict[str, object], disk: int) -> None:
        if disk == self._disks:
            node.group_state(incarnation, state)

    def order_failover(self, to: str | None) -> None:
        """An operator's order; refused or done, and nothing when nobody answers."""
        self.order(Failover(to, self.state.epoch, "operator", "simulated"))

    def order(self, op: Operation) -> bool:
        """Any order of an operator; returns whether it was done."""
        if not self.alive:
            return False
        answer = self._apply(op, f"{type(op).__name__} of an operator")
        return answer is not None and bool(answer["ok"])

    @property
    def missing(self) -> tuple[str, ...]:
        """Replicas whose reports the register waits for."""
        return self._register.missing if self.alive else ()

    def order_vouch(self, nodes: tuple[str, ...]) -> None:
        """An operator's word for replicas that cannot say what they saw."""
        if self.alive:
            self._apply(Vouch(nodes, "operator", "simulated"), f"vouch for {nodes}")


def _removed(op: dict[str, object]) -> list[str]:
    parsed = parse_op(op)
    return list(parsed.remove) if isinstance(parsed, AlterInSync) else []


class _Call:
    __slots__ = ("incarnation", "node", "number", "process", "settled")

    def __init__(self, node: SimNode, incarnation: int, number: int, process: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.number = number
        self.process = process
        self.settled = False
