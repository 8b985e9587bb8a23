"""The register: the one place that says who is master. Pure: operations in, answers out.

`Register.apply` takes one operation, the wall clock (for people) and a random tag, and either
changes the state and answers with it, or refuses and answers with the unchanged state. The
coordinator makes a change durable before it lets the answer out; the simulator uses the same class.

Rules that hold on every call:

* an epoch is granted once, to one (node, session); the leader is elected only while there is none;
* only members of the in-sync set or of ELR, with their registered session, are elected cleanly;
* a store that may lack something it acknowledged (unclean, wiped, copied) leaves both sets, even
  when it is the last;
* **the register never goes back**: a caller that has seen a larger revision, another tag of a
  revision, or a larger epoch turns it read-only for ever (``alarm``); after its own start it makes
  no change until more than half of the replicas have reported what they saw (``missing``).

Not here: files and sockets (``coordinator_store``, ``coordinator_service``), leases.
Sources: replication.md G.2, G.7 case 8, G.14; protocol.md 5 and 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from replication import register_rules as rules
from replication.group_state import GroupState
from replication.register_ops import (
    Annotate,
    Elect,
    Failover,
    Operation,
    Read,
    RegisterNode,
    Report,
    UncleanElect,
    Vouch,
    parse_op,
)
from replication.register_rules import Refused
from twinlog.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an operation.

    Attributes:
        ok: It was done (or had been done by an earlier copy of the same call).
        state: The state after it; for a refusal the unchanged one.
        changed: The state is new and must be durable before the answer goes out.
        code, text, hint: Why not, and what to do; empty when ``ok``.
    """

    ok: bool
    state: GroupState
    changed: bool = False
    code: str = ""
    text: str = ""
    hint: str = ""

    def to_wire(self) -> dict[str, object]:
        """Return the answer as a map of plain values."""
        return {
            "ok": self.ok,
            "state": self.state.to_json(),
            "code": self.code,
            "text": self.text,
            "hint": self.hint,
        }


class Register:
    """See the module.

    Args:
        register_id: Random id, made with the register.

    Attributes:
        state: The present state.
        history: One map per epoch (epoch, since_ms, master, start, reason, by, lost) and per vouch.
        pairs: Revision to tag, for every change that ever was.
        alarm: Why the register is read-only; None while it is not.
    """

    def __init__(self, register_id: str) -> None:
        self.state = GroupState(register_id=register_id)
        self.history: list[dict[str, object]] = []
        self.pairs: dict[int, int] = {}
        self.alarm: str | None = None
        self._reported: set[str] = set()
        self._vouched: list[Vouch] = []
        self._restarted = False

    # -- persistence

    def dump(self) -> dict[str, object]:
        """Return everything but ``pairs`` and ``history`` as plain values, for `load`."""
        return {"version": 1, "state": self.state.to_json(), "alarm": self.alarm}

    @classmethod
    def load(
        cls,
        document: Mapping[str, object],
        pairs: Mapping[int, int] | None = None,
        history: Iterable[Mapping[str, object]] = (),
    ) -> Register:
        """Return the register as it starts again: closed until more than half have reported.

        Args:
            document: What `dump` returned.
            pairs: Revision to tag; the present pair is known even without.
            history: Entries, oldest first.

        Raises:
            ProtocolError: The document is not one of ours.
        """
        state, alarm = document.get("state"), document.get("alarm")
        if document.get("version") != 1 or not isinstance(state, Mapping):
            raise ProtocolError("the register's document is not one of version 1", code="fields")
        register = cls("")
        register.state = GroupState.from_json(state)  # pyright: ignore[reportUnknownArgumentType]
        register.alarm = str(alarm) if alarm is not None else None
        register.pairs = dict(pairs or {})
        if register.state.revision:
            register.pairs[register.state.revision] = register.state.tag
        register.history = [dict(entry) for entry in history]
        register._restarted = True
        return register

    # -- asking

    @property
    def missing(self) -> tuple[str, ...]:
        """Replicas that have not reported; empty once changes are allowed."""
        return () if self.is_open() else self._absent()

    def is_open(self) -> bool:
        """Whether changes are allowed: more than half have reported since the register's start."""
        replicas = self.state.replicas
        if not self._restarted or not replicas:
            return True
        return 2 * sum(name in self._reported for name in replicas) > len(replicas)

    def _absent(self) -> tuple[str, ...]:
        return tuple(name for name in self.state.replicas if name not in self._reported)

    def call(self, wire: Mapping[str, object], *, wall_ms: int, tag: int) -> Answer:
        """Do as `apply` for an operation in its wire form.

        Raises:
            ProtocolError: It is none.
        """
        return self.apply(parse_op(wire), wall_ms=wall_ms, tag=tag)

    def apply(self, op: Operation, *, wall_ms: int, tag: int) -> Answer:
        """Do ``op`` or refuse it.

        Args:
            op: What is asked.
            wall_ms: Wall clock, ms; only shown, never compared.
            tag: Random 64-bit number for the revision this may make.
        """
        refused = self._take_report(op.report)
        if isinstance(op, Read):
            return Answer(True, self.state) if refused is None else self._refuse(refused)
        refused = refused or self._read_only()
        if refused is None and isinstance(op, Vouch):
            return self._vouch(op, wall_ms, tag)
        refused = refused or self._closed()
        if refused is not None:
            return self._refuse(refused)
        after = rules.decide(self.state, op, wall_ms)
        if isinstance(after, Refused):
            if after.alarm:
                self.alarm = after.text
            return self._refuse(after)
        if after is self.state and not isinstance(op, Annotate):
            return Answer(True, self.state)
        if isinstance(op, Annotate) and not self._complete_history(op):
            return Answer(True, self.state)
        return self._change(op, after, wall_ms, tag)

    # -- the register never goes back

    def _take_report(self, report: Report) -> Refused | None:
        """Learn what a caller saw; a caller that saw more than we hold ends all changes."""
        ours = self.state
        if report.register_id and report.register_id != ours.register_id:
            text = f"the caller is of register {report.register_id}, this is {ours.register_id}"
            return Refused(
                "other-register", text, "start the coordinator on the data folder it had before"
            )
        if report.register_id and not self._knows(report.revision, report.tag):
            text = f"{report.node} has seen revision {report.revision}, which this register has not"
            self.alarm = self.alarm or text
        if report.node is not None and report.node in ours.replicas:
            self._reported.add(report.node)
        return None

    def _knows(self, revision: int, tag: int) -> bool:
        """Whether the pair is one of ours; larger revisions never are."""
        return revision <= self.state.revision and self.pairs.get(revision, tag) == tag

    def _read_only(self) -> Refused | None:
        if self.alarm is None:
            return None
        hint = "the coordinator's file is older than what its nodes saw: put the newer file back"
        return Refused("read-only", f"the register makes no changes: {self.alarm}", hint)

    def _closed(self) -> Refused | None:
        if self.is_open():
            return None
        absent = ", ".join(self._absent())
        text = f"the register started again and waits for the reports of more than half: {absent}"
        hint = f"start these nodes: twinlog node start {self._absent()[0]}"
        return Refused("reports-missing", text, hint)

    def _vouch(self, op: Vouch, wall_ms: int, tag: int) -> Answer:
        unknown = [name for name in op.nodes if name not in self.state.replicas]
        if unknown or not op.nodes:
            return self._refuse(Refused("unknown-node", f"no replica is named {unknown}"))
        if self.is_open():
            return Answer(True, self.state)
        self._reported.update(op.nodes)
        self._vouched.append(op)
        if not self.is_open():
            return Answer(True, self.state)
        return self._change(op, self.state, wall_ms, tag)

    # -- changing

    def _refuse(self, refused: Refused) -> Answer:
        return Answer(False, self.state, False, refused.code, refused.text, refused.hint)

    def _change(self, op: Operation, after: GroupState, wall_ms: int, tag: int) -> Answer:
        for vouched in self._vouched:
            self.history.append(_vouch_entry(self.state, vouched, wall_ms))
        self._vouched = []
        revision = self.state.revision + 1
        before, self.state = self.state, replace(after, revision=revision, tag=tag)
        self.pairs[revision] = tag
        if self.state.epoch > before.epoch and isinstance(op, (Elect, Failover, UncleanElect)):
            self.history.append(_epoch_entry(self.state, wall_ms))
        return Answer(True, self.state, True)

    def _complete_history(self, op: Annotate) -> bool:
        """Fill in what a node knows of an epoch; False when nothing is new."""
        for entry in reversed(self.history):
            if entry.get("epoch") != op.epoch or "master" not in entry:
                continue
            news: dict[str, object] = {}
            if op.start is not None and entry.get("start") is None:
                news["start"] = op.start
            if op.lost is not None:
                lost = entry.get("lost")
                news["lost"] = max(op.lost, lost if isinstance(lost, int) else 0)
            moved = any(entry.get(name) != value for name, value in news.items())
            entry.update(news)
            return moved
        return False


def _epoch_entry(state: GroupState, wall_ms: int) -> dict[str, object]:
    return {
        "epoch": state.epoch,
        "since_ms": wall_ms,
        "master": state.leader,
        "start": None,
        "reason": state.reason,
        "by": state.by,
        "lost": None,
    }


def _vouch_entry(state: GroupState, op: Vouch, wall_ms: int) -> dict[str, object]:
    return {
        "epoch": state.epoch,
        "since_ms": wall_ms,
        "vouched": list(op.nodes),
        "reason": op.why,
        "by": op.who,
    }


__all__ = ["Answer", "Operation", "Refused", "Register", "RegisterNode", "Report", "parse_op"]
