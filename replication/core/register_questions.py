"""The calls of this node to the register: their order, and the meaning of answers.

One call at a time (`Calls`). First the registration, without which nothing counts; then a change
that the master proposes, repeated unchanged until it is settled; then the election; then reads and
notes.

Candidacy is here, too: the best candidate stands first, the others wait. That is for speed, not for
safety: the register grants an epoch once (R34).

Units: seconds. Not here: acting on a new state (``replica``). Rules:
docs/protocol.md R20, R31, R34, R36.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from replication.core.commands import Coordinate
from replication.core.context import Context
from replication.core.master.leading import Leading
from replication.core.master.waiters import CONFIRMED
from replication.register.group_state import End, GroupState
from replication.register.leases import LEASE_SECONDS
from replication.register.operations import (
    AlterInSync,
    Annotate,
    Elect,
    Operation,
    Read,
    RegisterNode,
    Report,
    ReportEnd,
    Transfer,
)
from replication.register.rules import standing_order

RETRIED = (
    "reports-missing",
    "read-only",
    "other-register",
    "unknown-node",
    "not-seeded",
    "too-old",
)
"""Refusals that only an operator or another node can end; the call is repeated after a pause."""


LOST_SECONDS = 10.0
"""After this long a call without a reported answer counts as lost; normally the outcome is reported
after about 1 s."""


@dataclass(frozen=True, slots=True)
class Call:
    """The call in progress."""

    number: int
    op: Operation
    sent_at: float


class Calls:
    """Calls to the register: one at a time, each with three outcomes.

    A call without an answer may still be executed at any later time. So it is repeated, unchanged,
    until an answer or a newer revision settles it; the answer to an older copy is as good, because
    it carries the state.

    Attributes:
        under_way: The call that waits for its answer.
        quiet_until: No call before this time.
        heard_at: When the register was last heard.
    """

    def __init__(self, context: Context, now: float) -> None:
        self._context = context
        self._number = 0
        self.under_way: Call | None = None
        self.quiet_until = now
        self.heard_at: float | None = None
        self.leased_at = now
        """When the newest answered call was sent: the coordinator heard this node then or later."""

    def may_ask(self, now: float) -> bool:
        """Whether a call may be made now."""
        call = self.under_way
        # Given up, but maybe still executed: the repetition must be safe, which R22, R24 and R31
        # ensure.
        if call is not None and now >= call.sent_at + LOST_SECONDS:
            self.under_way = call = None
        return call is None and now >= self.quiet_until

    def ask(self, now: float, op: Operation) -> None:
        """Make a call, with the newest register state that this node has seen (R18)."""
        context = self._context
        seen = context.newest
        # The promise may be ahead of the newest state: a master has shown a revision that is not
        # read yet.
        if seen is not None and seen.revision >= context.promise.revision:
            known = (seen.register_id, seen.revision, seen.tag)
        else:
            promise = context.promise
            known = (promise.register_id, promise.revision, promise.tag)
        self._number += 1
        op = replace(op, report=Report(context.node.name, *known, context.session))
        self.under_way = Call(self._number, op, now)
        context.do(Coordinate(self._number, op))

    def answered(self, number: int, *, heard: bool) -> Call | None:
        """Return the call that ``number`` answers; None if it was given up before.

        ``heard``: there is an answer. A call that was lost renews no lease (R59).
        """
        call = self.under_way
        if call is None or call.number != number:
            return None
        self.under_way = None
        if heard:
            self.leased_at = call.sent_at
        return call

    def pause(self, now: float) -> None:
        """Make no call for a while."""
        context = self._context
        self.quiet_until = (
            now + context.settings.coordinator_retry_seconds * context.jitter.factor()
        )

    def next_deadline(self) -> float:
        """Return when a call may be made again."""
        if self.under_way is not None:
            return self.under_way.sent_at + LOST_SECONDS
        return self.quiet_until


@dataclass(frozen=True, slots=True)
class Verdict:
    """The register's decision on a call; ``code`` and ``text`` are empty if it was executed."""

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
    # The target of a switchover and the configured first master need not wait.
    if name in (state.transfer_to, state.first if state.epoch == 0 else None):
        return 0.0
    restarted = state.previous is not None and (
        state.session_of(state.previous) != state.previous_session
    )
    # The old master restarted, so it cannot still be leading under its old session.
    if restarted and state.previous == name:
        return 0.0
    old = None if restarted else state.previous
    # At the first election no node is in a set: then all replicas take turns.
    able = [other for other in state.replicas if state.may_lead(other)] or list(state.replicas)
    able.sort(key=lambda other: standing_order(state, other, old))
    # The best stands at once: all writes wait for it. Only a master that has restarted goes before.
    rank = (able.index(name) if name in able else len(able)) + restarted
    delay = rank * settings.stand_seconds
    return delay + (settings.transfer_stand_seconds if overdue else 0.0)


class Questions:
    """See the module.

    Attributes:
        calls: The call in progress.
        stand_at: When this node stands; None while it does not.
        displaced: Another process registered under this name: no more calls are made.
    """

    def __init__(self, context: Context, now: float) -> None:
        self._context = context
        self.calls = Calls(context, now)
        self.stand_at: float | None = None
        self.displaced = False
        self._overdue = False
        self._leased = True

    def look(self, now: float) -> None:
        """Check how long ago the register answered (R59)."""
        self._leased = now < self.calls.leased_at + LEASE_SECONDS

    def refuses(self, ack: str) -> tuple[str, str] | None:
        """Return why a master refuses this kind of acknowledgement; None if it does not.

        Confirmed writes need the in-sync set, not a lease. Weaker ones depend on this node alone,
        and the coordinator may have ended its leadership by now (R59).
        """
        state = self._context.newest
        if ack == CONFIRMED or self._leased or state is None or state.failover != "automatic":
            return None
        text = f"the coordinator has not answered for {LEASE_SECONDS:g} s and may have ended this"
        return "no-lease", f"{text} leadership; only acknowledge = confirmed is accepted"

    @property
    def is_clean(self) -> bool:
        """Whether no acknowledged record can be missing from this log (R26)."""
        context = self._context
        return context.node.clean and context.damage is None and not context.lacking

    def stand(self, now: float, state: GroupState) -> None:
        """Stand for master when it is this node's turn; repeated calls change nothing."""
        if self.stand_at is None:
            self._overdue = state.transfer_to not in (None, self._context.node.name)
            self.stand_at = now + stand_delay(self._context, state, overdue=self._overdue)

    def ask(self, now: float, leading: Leading | None) -> None:
        """Make the call that is due, if one may be made now."""
        if not self.displaced and self.calls.may_ask(now):
            op = self._due(now, leading)
            if op is not None:
                self.calls.ask(now, op)

    def has_none(self, leading: Leading | None) -> bool:
        """Whether only time can make a call or a promise due.

        True after nearly every message, so acknowledgements skip the search.
        """
        context = self._context
        return (
            context.session > 0
            and self.stand_at is None
            and context.damage is None
            and not context.want_read
            and not context.notes
            and context.want_revision[0] <= context.promise.revision
            and self._report_of_end() is None
            and (
                leading is None
                or (leading.switchover.under_way is None and leading.insync.is_quiet)
            )
        )

    def must_register(self) -> bool:
        """Whether this process must register, again if it found damage or a loss."""
        context = self._context
        if not context.session:
            return True
        state, name = context.newest, context.node.name
        # Only while this node counts: once it has left the sets, registering again would never end.
        if (context.damage is None and not context.lacking) or state is None:
            return False
        return name in state.isr or name in state.elr or state.leader == name

    def _due(self, now: float, leading: Leading | None) -> Operation | None:
        context = self._context
        if self.must_register():
            return self._registration()
        if leading is not None and (change := self._change(now, leading)) is not None:
            return change
        if self.stand_at is not None and now >= self.stand_at:
            # R22: a late copy of this call, after another election, asks for an epoch that is
            # taken.
            epoch = context.newest.epoch + 1 if context.newest is not None else 1
            return Elect(context.node.name, context.session, epoch, self._overdue)
        if (report := self._report_of_end()) is not None:
            return report
        if context.want_read:
            return Read()
        if context.notes:
            return context.notes[0]
        heard = self.calls.heard_at
        if heard is None or now >= heard + context.settings.coordinator_poll_seconds:
            return Read()
        return None

    def _change(self, now: float, leading: Leading) -> Operation | None:
        # R31: an open proposal is repeated unchanged; another one would make a third set count.
        proposal, newest = leading.insync.proposal, self._context.newest
        if proposal is not None:
            settled = newest is not None and leading.insync.settles(newest, proposal)
            return None if settled else proposal  # settled: adopted once it is promised
        return leading.switchover.operation() or leading.propose(now)

    def _report_of_end(self) -> ReportEnd | None:
        """Return the report of this log's end that a vacant register needs, if it is due (R56).

        Only after the vacant state is durable here: from then on this node takes no part in an
        older epoch. The end of a damaged log is not reported, so that an operator decides.
        """
        context = self._context
        state, name, log = context.newest, context.node.name, context.log
        if state is None or not state.vacant or context.cutting or context.damage is not None:
            return None
        if name not in state.replicas or not context.session:
            return None
        revision = context.promise.revision
        end = End(context.session, log.last_epoch, log.committed)
        if revision < state.vacant or state.ends.get(name) == end:
            return None
        return ReportEnd(name, end.session, revision, end.last_epoch, end.end)

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
            level=context.settings.level,
        )

    def settle(
        self, now: float, op: Operation, verdict: Verdict, leading: Leading | None
    ) -> str | None:
        """Apply the verdict on ``op``; return the name of an alarm if an operator must act."""
        match op:
            case Read():
                self._context.want_read = False
                self.calls.heard_at = now
            case RegisterNode() if verdict.ok and not op.clean:
                self._context.lacking = ""  # the register knows of the loss
            # Refused or not: one note that the register does not take would hold up all those
            # behind it.
            case Annotate() if self._context.notes:
                self._context.notes.popleft()
            case Elect():
                # Refused: another node may be standing; try again later, in case it died meanwhile.
                again = now + 4 * self._context.settings.stand_seconds
                self.stand_at = None if verdict.ok else again
            case Transfer() if not verdict.ok and leading is not None:
                leading.switchover.give_up(verdict.code, verdict.text)
            # Refused because the state is not the one that we know: unread, it would be refused
            # again.
            case AlterInSync() | ReportEnd() if not verdict.ok:
                self._context.want_read = True
                self.calls.pause(now)
            case _:
                pass
        if verdict.ok or verdict.code not in RETRIED:
            return None
        self.calls.pause(now)
        return f"register-{verdict.code}"

    def next_deadline(self) -> float:
        """Return when `ask` is due."""
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
        if self.must_register() or context.want_read or context.notes or self._report_of_end():
            due = earliest
        return max(due, earliest)
