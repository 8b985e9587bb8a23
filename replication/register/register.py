"""The register: the single source of who is master. Pure: operations in, answers out.

`Register.apply` takes one operation, the wall clock (for people) and a random tag, and either
changes the state and answers with it, or refuses and answers with the unchanged state. The
coordinator makes a change durable before it sends the answer (R17); the simulator uses the same
class.

Rules that hold on every call:

* an epoch is granted once, to one (node, session); a leader is elected only while there is no
other;
* only members of the in-sync set or of ELR, with their registered session, are elected cleanly;
* a store that may lack records it acknowledged (unclean, wiped, copied) leaves both sets, even if
it is the last member;
* **the register never goes back**: a member that has seen a larger revision, another tag of a
  revision, or a larger epoch turns it read-only (``alarm``) until an operator decides; after its
  own start it makes no change until more than half of the replicas have reported what they have
  seen (``missing``).

A report counts only for what its sender can know. It raises the alarm only if the sender shows a
replica's session (or registers as one), so a stranger's frame cannot. It counts towards "more than
half" only if it comes from the registered store and names this register: a wiped disk, or a
directory of another register, has forgotten what it saw.

Not here: files and sockets (``replication.coordinator``), when a master is gone (``leases``).
Rules: docs/protocol.md R17 to R25.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from replication.register import rules
from replication.register.group_state import STATE_BYTES_MAX, GroupState
from replication.register.operations import (
    AddReplica,
    Adopt,
    Annotate,
    Change,
    ClearAlarm,
    Maintain,
    Operation,
    Pause,
    Read,
    Recover,
    RegisterNode,
    RemoveReplica,
    Report,
    Resume,
    Vouch,
    parse_op,
)
from replication.register.outcome import Refused
from replication.register.recovery import recovered
from twinlog.errors import ProtocolError


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of an operation.

    Attributes:
        ok: It was executed (or had been, by an earlier copy of the same call).
        state: The state after it; unchanged after a refusal.
        changed: The state is new and must be durable before the answer is sent.
        afresh: The register was recovered: all older pairs of revision and tag are void.
        code, text, hint: Why it was refused, and what to do; empty if ``ok``.
    """

    ok: bool
    state: GroupState
    changed: bool = False
    code: str = ""
    text: str = ""
    hint: str = ""
    afresh: bool = False

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
    """See the module's text.

    Args:
        register_id: Random id, made with the register.

    Attributes:
        state: The present state.
        history: One map per epoch (epoch, since_ms, master, start, reason, by, lost), and one per
            operator's change of anything else (epoch, since_ms, reason, by).
        pairs: Revision to tag, for every change ever made.
        alarm: Why the register is read-only; None if it is not.
    """

    def __init__(self, register_id: str) -> None:
        self.state = GroupState(register_id=register_id)
        self.history: list[dict[str, object]] = []
        self.pairs: dict[int, int] = {}
        self.alarm: str | None = None
        self._reported: set[str] = set()
        self._unrecorded: list[Vouch | ClearAlarm] = []
        self._restarted = False

    # -- persistence

    def dump(self) -> dict[str, object]:
        """Return everything except ``pairs`` and ``history`` as plain values, for `load`."""
        return {"version": 1, "state": self.state.to_json(), "alarm": self.alarm}

    @classmethod
    def load(
        cls,
        document: Mapping[str, object],
        pairs: Mapping[int, int] | None = None,
        history: Iterable[Mapping[str, object]] = (),
    ) -> Register:
        """Return the register after a restart: closed until more than half have reported (R19).

        Args:
            document: The result of `dump`.
            pairs: Revision to tag; the present pair is added if missing.
            history: Entries, oldest first.

        Raises:
            ProtocolError: It is not a document of this version.
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

    # -- operations

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
        """Apply an operation in its wire form; see `apply`.

        Raises:
            ProtocolError: It is not a valid operation.
        """
        return self.apply(parse_op(wire), wall_ms=wall_ms, tag=tag)

    def apply(self, op: Operation, *, wall_ms: int, tag: int) -> Answer:
        """Execute ``op`` or refuse it.

        Args:
            op: The operation.
            wall_ms: Wall clock, ms; only displayed, never compared.
            tag: Random 64-bit number for a new revision.
        """
        if isinstance(op, Recover):
            return self._recover(op, wall_ms, tag)
        refused = self._take_report(op)
        if isinstance(op, Read):
            return Answer(True, self.state) if refused is None else self._refuse(refused)
        if refused is None and isinstance(op, ClearAlarm):
            return self._clear_alarm(op)
        # Reports first: a call that will be refused may still be the one that shows a newer
        # revision.
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
        # Done before by a copy of the same call: the same answer, no new revision.
        if after is self.state and not isinstance(op, Annotate):
            return Answer(True, self.state, text=told(self.state, op))
        if isinstance(op, Annotate) and not self._complete_history(op):
            return Answer(True, self.state)
        return self._change(op, after, wall_ms, tag)

    # -- the register never goes back

    def _take_report(self, op: Operation) -> Refused | None:
        """Record a caller's report; a member that saw more than this register stops all changes."""
        report, ours = op.report, self.state
        if report.register_id and report.register_id != ours.register_id:
            text = f"the caller is of register {report.register_id}, this is {ours.register_id}"
            hint = (
                "start the coordinator on the data folder that it had before; "
                "if that is lost: twinlog coordinator recover"
            )
            return Refused("other-register", text, hint)
        if report.register_id and not self._knows(report.revision, report.tag):
            if not may_alarm(ours, op):
                text = f"revision {report.revision} is unknown, and {report.node} is not a member"
                return Refused("not-a-member", text, "register first")
            text = f"{report.node} has seen revision {report.revision}, which this register has not"
            # The first finding stays: later ones follow from it.
            self.alarm = self.alarm or text
        elif report.node is not None and can_know(ours, op):
            self._reported.add(report.node)
        return None

    def _knows(self, revision: int, tag: int) -> bool:
        """Whether the pair belongs to this register; larger revisions never do (R18)."""
        # A revision without a pair here, as all are from before a recovery (R58), proves nothing.
        return revision <= self.state.revision and self.pairs.get(revision, tag) == tag

    def _read_only(self) -> Refused | None:
        if self.alarm is None:
            return None
        hint = (
            "the coordinator's file is older than what its nodes saw: put the newer file back; "
            "if it is lost: twinlog coordinator recover; "
            "if the alarm is false: twinlog coordinator clear-alarm"
        )
        return Refused("read-only", f"the register makes no changes: {self.alarm}", hint)

    def _closed(self) -> Refused | None:
        if self.is_open():
            return None
        absent = ", ".join(self._absent())
        text = f"the register started again and waits for the reports of more than half: {absent}"
        first = self._absent()[0]
        hint = (
            f"start these nodes: twinlog node start {first}; "
            f"if one does not come back: twinlog coordinator vouch {first}"
        )
        return Refused("reports-missing", text, hint)

    def _recover(self, op: Recover, wall_ms: int, tag: int) -> Answer:
        """Recover from the nodes' promises; only if the register itself cannot continue (R58)."""
        if self.alarm is None and self.state.epoch and self.is_open():
            text = f"the register works: revision {self.state.revision}, epoch {self.state.epoch}"
            return self._refuse(Refused("not-needed", text, "twinlog cluster status"))
        after = recovered(self.state, op, wall_ms)
        if isinstance(after, Refused):
            return self._refuse(after)
        answer = self._change(op, rules.settle_vacancy(after), wall_ms, tag)
        if answer.changed:
            self.alarm, self._restarted = None, False
            self.pairs = {self.state.revision: tag}
        return replace(answer, afresh=answer.changed)

    def _clear_alarm(self, op: ClearAlarm) -> Answer:
        """Clear the alarm and wait for reports as after a start: a true one returns at once.

        The order itself makes no revision, and is recorded with the next change. If the alarm was
        true, its revision would be one that the nodes know with another tag.
        """
        if self.alarm is not None:
            self.alarm = None
            self._restarted, self._reported = True, set()
            self._unrecorded.append(op)
        return Answer(True, self.state)

    def _vouch(self, op: Vouch, wall_ms: int, tag: int) -> Answer:
        unknown = [name for name in op.nodes if name not in self.state.replicas]
        if unknown or not op.nodes:
            text = f"unknown replica: {', '.join(unknown) or 'none was named'}"
            return self._refuse(Refused("unknown-node", text))
        if self.is_open():
            return Answer(True, self.state)
        self._reported.update(op.nodes)
        self._unrecorded.append(op)
        if not self.is_open():
            return Answer(True, self.state)
        return self._change(op, self.state, wall_ms, tag)

    # -- changing

    def _refuse(self, refused: Refused) -> Answer:
        return Answer(False, self.state, False, refused.code, refused.text, refused.hint)

    def _change(self, op: Operation, after: GroupState, wall_ms: int, tag: int) -> Answer:
        # Larger only after a recovery, which leaves out a million numbers.
        revision = max(self.state.revision, after.revision) + 1
        # The random tag tells two registers apart that went on from one copy (R17).
        state = replace(after, revision=revision, tag=tag)
        if state.bytes() > STATE_BYTES_MAX:
            text = f"the group state would take more than {STATE_BYTES_MAX} bytes"
            hint = "remove replicas that are no longer used: twinlog cluster remove NODE"
            return self._refuse(Refused("too-large", text, hint))
        before, self.state = self.state, state
        self.pairs[revision] = tag
        for done in self._unrecorded:
            self.history.append(_entry(state, done, wall_ms))
        self._unrecorded = []
        if state.leader is not None and state.epoch > before.epoch:
            self.history.append(_epoch_entry(state, wall_ms))
        elif isinstance(op, RECORDED):
            self.history.append(_entry(state, op, wall_ms))
        return Answer(True, state, True, text=told(state, op))

    def _complete_history(self, op: Annotate) -> bool:
        """Add a node's facts about an epoch to the history; False if nothing is new."""
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


Recorded = (
    Adopt | ClearAlarm | Recover | AddReplica | RemoveReplica | Change | Vouch | Pause | Resume
    | Maintain
)  # fmt: skip
"""Operators' changes other than elections; each is an entry of the history."""

RECORDED = (Adopt, Recover, AddReplica, RemoveReplica, Change, Pause, Resume, Maintain)
"""Changes recorded at once; the others are recorded with the next change."""


def _entry(state: GroupState, op: Recorded, wall_ms: int) -> dict[str, object]:
    return {"epoch": state.epoch, "since_ms": wall_ms, "reason": _words(op), "by": op.who}


def _words(op: Recorded) -> str:
    """Describe an operator's change, for the history."""
    match op:
        case Adopt():
            return f"log of {op.node} adopted{_because(op.why)}"
        case Vouch():
            return f"vouched for {', '.join(op.nodes)}{_because(op.why)}"
        case Recover():
            without = f" without {', '.join(op.absent)}" if op.absent else ""
            return f"register recovered{without}{_because(op.why)}"
        case ClearAlarm():
            return f"alarm cleared{_because(op.why)}"
        case AddReplica():
            return f"{op.node} added{' as a learner' if op.learner else ''}"
        case RemoveReplica():
            return f"{op.node} removed"
        case Change():
            return f"{op.name} = {op.value}"
        case Pause():
            return f"automatic failover paused for {op.seconds} s{_because(op.why)}"
        case Resume():
            return f"automatic failover resumed{_because(op.why)}"
        case Maintain():
            return f"{op.node} {'in' if op.on else 'released from'} maintenance{_because(op.why)}"


def _because(why: str) -> str:
    return f": {why}" if why else ""


def told(state: GroupState, op: Operation) -> str:
    """Return a notice for the caller of an executed operation; else empty.

    A node whose file names another quality than the group's uses the group's, and its operator is
    notified.
    """
    if isinstance(op, RegisterNode) and op.seed is not None and op.seed.ack != state.ack:
        text = f"{op.node} is configured with ack = {op.seed.ack}, the group has {state.ack}"
        return f"{text}, which holds; to change it: twinlog cluster set ack {op.seed.ack}"
    return ""


# -- which reports count


def may_alarm(state: GroupState, op: Operation) -> bool:
    """Whether the caller is a member, so that its report may raise the alarm (R18).

    A session beyond the registered one is accepted, too: a register that went back has forgotten
    it. A register without members yet accepts any node that registers.
    """
    node = op.report.node
    if isinstance(op, RegisterNode):
        return node == op.node and (node in state.replicas or not state.seeded)
    return node in state.replicas and op.report.session >= state.session_of(node) > 0


def can_know(state: GroupState, op: Operation) -> bool:
    """Whether the caller can know the newest revision that it ever saw (R19).

    True for the registered session, for a new start of its store, and for a replica that never
    registered, which has seen nothing. A store without a promise knows only that it never took part
    in an epoch.
    """
    report = op.report
    if report.node is None or report.node not in state.replicas:
        return False
    known = state.reg.get(report.node)
    if known is None:
        return True
    if isinstance(op, RegisterNode):
        same = op.node == report.node and not rules.is_other_store(known, op)
        return same and (report.register_id == state.register_id or state.epoch == 0)
    return report.register_id == state.register_id and report.session == known.session


__all__ = ["Answer", "Operation", "Refused", "Register", "RegisterNode", "Report", "parse_op"]
