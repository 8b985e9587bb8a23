"""What this node asks of the register, in which order, and what an answer means.

One question at a time (``calls``). First the registration, without which nothing counts; then what
the master wants changed, unchanged until it is settled; then the election; then reads and notes.

The candidacy lives here, too: the best candidate stands first, the others give it time. That is a
matter of order, not of safety: the register grants an epoch once.

Units: seconds. Not here: what a new state leads to (``core``). Sources: replication.md G.8, G.9,
G.19 "Coordinator adapter".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from replication.calls import Calls
from replication.context import Context
from replication.group_state import GroupState
from replication.mastership import Mastership
from replication.register_ops import (
    AlterInSync,
    Annotate,
    Elect,
    Operation,
    Read,
    RegisterNode,
    Transfer,
)
from replication.register_rules import standing_order

RETRIED = ("reports-missing", "read-only", "other-register", "unknown-node", "not-seeded")
"""Refusals that a person or another node ends; the same is asked again after a pause."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the register said of a question; ``code`` and ``text`` are empty when it was done."""

    ok: bool
    code: str = ""
    text: str = ""
    hint: str = ""

    @classmethod
    def of(cls, answer: Mapping[str, object]) -> Verdict:
        """Return the verdict in an answer of the register."""
        code, text = str(answer.get("code", "")), str(answer.get("text", ""))
        return cls(answer.get("ok") is True, code, text, str(answer.get("hint", "")))


def stand_delay(context: Context, state: GroupState, *, overdue: bool) -> float:
    """Return how long this node waits before it stands, seconds."""
    name, settings = context.node.name, context.settings
    if name in (state.transfer_to, state.first if state.epoch == 0 else None):
        return 0.0
    restarted = state.previous is not None and (
        state.session_of(state.previous) != state.previous_session
    )
    if restarted and state.previous == name:
        return 0.0
    old = None if restarted else state.previous
    able = [other for other in state.replicas if state.counts(other)] or list(state.replicas)
    able.sort(key=lambda other: standing_order(state, other, old))
    rank = able.index(name) + 1 if name in able else len(able) + 1
    delay = rank * settings.stand_seconds
    return delay + (settings.transfer_stand_seconds if overdue else 0.0)


class Questions:
    """See the module.

    Attributes:
        calls: The question under way.
        stand_at: When this node stands; None while it does not.
        displaced: Another process registered under our name: nothing is asked any more.
    """

    def __init__(self, context: Context, now: float) -> None:
        self._context = context
        self.calls = Calls(context, now)
        self.stand_at: float | None = None
        self.displaced = False
        self._overdue = False

    @property
    def is_clean(self) -> bool:
        """Whether nothing that was acknowledged can be missing from our log."""
        return self._context.node.clean and self._context.damage is None

    def stand(self, now: float, state: GroupState) -> None:
        """Stand for master, in turn; harmless when repeated."""
        if self.stand_at is None:
            self._overdue = state.transfer_to not in (None, self._context.node.name)
            self.stand_at = now + stand_delay(self._context, state, overdue=self._overdue)

    def ask(self, now: float, reign: Mastership | None) -> None:
        """Ask what is due, if anything may be asked now."""
        if not self.displaced and self.calls.may_ask(now):
            op = self._due(now, reign)
            if op is not None:
                self.calls.ask(now, op)

    def has_none(self, reign: Mastership | None) -> bool:
        """Whether nothing but time can make a question or a promise due.

        True after nearly every message, so that an acknowledgement does not pay for the search.
        """
        context = self._context
        return (
            context.session > 0
            and self.stand_at is None
            and context.damage is None
            and not context.want_read
            and not context.notes
            and context.want_revision[0] <= context.promise.revision
            and (reign is None or (reign.handover is None and reign.insync.is_quiet))
        )

    def must_register(self) -> bool:
        """Whether the register does not yet know what it must know of this process."""
        context = self._context
        if not context.session:
            return True
        state, name = context.newest, context.node.name
        if context.damage is None or state is None:
            return False
        return name in state.isr or name in state.elr or state.leader == name

    def _due(self, now: float, reign: Mastership | None) -> Operation | None:
        context = self._context
        if self.must_register():
            return self._registration()
        if reign is not None and (change := self._change(now, reign)) is not None:
            return change
        if self.stand_at is not None and now >= self.stand_at:
            return Elect(context.node.name, context.session, self._overdue)
        if context.want_read:
            return Read()
        if context.notes:
            return context.notes[0]
        heard = self.calls.heard_at
        if heard is None or now >= heard + context.settings.coordinator_poll_seconds:
            return Read()
        return None

    def _change(self, now: float, reign: Mastership) -> Operation | None:
        proposal, newest = reign.insync.proposal, self._context.newest
        if proposal is not None:
            settled = newest is not None and reign.insync.settles(newest, proposal)
            return None if settled else proposal  # settled: adopted as soon as it is promised
        return reign.transfer_op() or reign.propose(now)

    def _registration(self) -> RegisterNode:
        context = self._context
        node, log = context.node, context.log
        return RegisterNode(
            node=node.name,
            store=node.store,
            start=node.start,
            known=node.known,
            clean=self.is_clean,
            empty=log.committed == log.start == 0,
            last_epoch=log.last_epoch,
            end=log.committed,
            promised=context.promise.epoch,
            seed=context.settings.seed,
            session=context.session,
        )

    def settle(
        self, now: float, op: Operation, verdict: Verdict, reign: Mastership | None
    ) -> str | None:
        """Take the verdict on ``op``; return the name of an alarm when a person must act."""
        match op:
            case Read():
                self._context.want_read = False
                self.calls.heard_at = now
            case Annotate() if self._context.notes:
                self._context.notes.popleft()
            case Elect():
                again = now + 4 * self._context.settings.stand_seconds
                self.stand_at = None if verdict.ok else again
            case Transfer() if not verdict.ok and reign is not None:
                reign.transfer_refused(verdict.code, verdict.text)
            case AlterInSync() if not verdict.ok:
                self._context.want_read = True
                self.calls.pause(now)
            case _:
                pass
        if verdict.ok or verdict.code not in RETRIED:
            return None
        self.calls.pause(now)
        return f"register-{verdict.code}"

    def next_deadline(self) -> float:
        """Return when `ask` has something to do."""
        calls, context = self.calls, self._context
        if self.displaced:
            return inf
        earliest = calls.next_deadline()
        if calls.under_way is not None:
            return earliest
        poll = context.settings.coordinator_poll_seconds
        due = calls.heard_at + poll if calls.heard_at is not None else earliest
        if self.stand_at is not None:
            due = min(due, self.stand_at)
        if self.must_register() or context.want_read or context.notes:
            due = earliest
        return max(due, earliest)
