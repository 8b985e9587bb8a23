"""A planned change of master: nothing is lost, and writes pause for milliseconds.

    CHECKING   the coordinator must answer first; writes go on
    LEVELLING  writes are refused, the target gets everything and learns that it is confirmed
    ASKED      the register was asked to hand over

A switchover that cannot complete must not stop the group (R36). So the coordinator must answer
before a write is refused, and each phase has a time limit. If the register does not answer in
ASKED, the master accepts writes again and reports "unknown": a late copy of the request may still
hand over. That is safe, because the target is a member of the in-sync set, and it ends this
leadership like any newer state.

Units: bytes, seconds. Not here: the register's part (``register.rules``), the request itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from replication.core import commands
from replication.core.context import Context
from replication.core.master.in_sync import InSyncSet
from replication.core.roles import Role, RoleInput
from replication.register.operations import Transfer

STOP_CHECK_SECONDS = 1.0
"""How long a stopping master waits for the coordinator before it stops without handing over."""


class Phase(Enum):
    """The phase of a switchover."""

    CHECKING = "checking"
    LEVELLING = "levelling"
    ASKED = "asked"


@dataclass(slots=True)
class Handover:
    """A running switchover.

    Attributes:
        request: Number of the request to answer; 0 for the node's own stop.
        to: The target.
        who: Who requested it, for the history.
        until: When its present phase is given up.
        phase: Its phase.
        leaving: The node stops afterwards.
    """

    request: int
    to: str
    who: str
    until: float
    phase: Phase = Phase.CHECKING
    leaving: bool = False

    @property
    def asked(self) -> bool:
        """Whether the register was asked; now only its answer or the time limit ends it."""
        return self.phase is Phase.ASKED


class Switchover:
    """See the module's text.

    Attributes:
        under_way: The running switchover, if any.
        outcome: How the last one ended, for people.
    """

    def __init__(self, context: Context, insync: InSyncSet) -> None:
        self._context = context
        self._insync = insync
        self.under_way: Handover | None = None
        self.outcome = ""

    def begin(self, handover: Handover) -> None:
        """Begin a switchover; refused at once if it cannot be quick."""
        why = self.why_not(handover.to)
        if why is not None:
            self._answer(handover, *why)
            return
        self.under_way = handover
        # The answer to this read proves that the coordinator is reachable.
        self._context.want_read = True
        self._context.tell("switchover", to=handover.to, by=handover.who)

    def why_not(self, to: str) -> tuple[str, str] | None:
        """Return code and text of why ``to`` cannot take over quickly; None if it can."""
        context, insync = self._context, self._insync
        if context.role.state is not Role.ACTIVE:
            return "not-enough-in-sync", f"the master is {context.role.state.value}"
        member = insync.members.get(to)
        if member is None or to not in insync.state.isr:
            names = ",".join(insync.effective)
            return "not-in-sync", f"{to} is not a slave of the in-sync set: {names}"
        if to in insync.state.maintenance:
            return "in-maintenance", f"{to} is in maintenance"
        if insync.proposal is not None:
            return "busy", "the in-sync set is being changed"
        behind = context.log.committed - member.acked
        if member.linked_at is None or behind > context.settings.transfer_lag_bytes_max:
            return "not-in-sync", f"{to} is {behind} bytes behind"
        return None

    def best_target(self) -> str | None:
        """Return the slave that can take over first; None if no slave can."""
        able = [name for name in self._insync.members if self.why_not(name) is None]
        members, priorities = self._insync.members, self._insync.state.priorities
        able.sort(key=lambda name: (-priorities.get(name, 0), -members[name].received, name))
        return able[0] if able else None

    def on_register_heard(self, now: float) -> bool:
        """The coordinator answered: begin to refuse writes; return whether that was due."""
        handover = self.under_way
        if handover is None or handover.phase is not Phase.CHECKING:
            return False
        why = self.why_not(handover.to)
        if why is not None:
            self.give_up(*why)
            return False
        handover.phase = Phase.LEVELLING
        handover.until = now + self._context.settings.transfer_seconds
        self._context.role.move(RoleInput.TRANSFER)
        self._context.do(commands.Changed())
        return True

    def is_level(self, to: str, confirm: int) -> bool:
        """Whether the target has the whole log and knows that all of it is confirmed (R36)."""
        member, end = self._insync.members.get(to), self._context.log.end
        if member is None or member.linked_at is None or confirm != end:
            return False
        # The target must know the confirm offset: it serves reads up to there at once, and readers
        # must not see the queue ends go back.
        return member.received == end and member.confirm == end

    def look(self, now: float, confirm: int) -> None:
        """Enter the next phase, or give up after the time limit."""
        handover = self.under_way
        if handover is None:
            return
        if handover.phase is Phase.LEVELLING and self.is_level(handover.to, confirm):
            handover.phase = Phase.ASKED
            handover.until = now + self._context.settings.transfer_seconds
        elif handover.phase is Phase.LEVELLING and self._insync.members[handover.to].is_away:
            self.give_up("not-in-sync", f"the link to {handover.to} has ended")
        elif now >= handover.until:
            self.give_up(*self._too_late(handover))

    def _too_late(self, handover: Handover) -> tuple[str, str]:
        match handover.phase:
            case Phase.CHECKING:
                return "coordinator-away", "the coordinator does not answer; nothing was changed"
            case Phase.LEVELLING:
                return "timeout", f"{handover.to} was not level in time"
            case Phase.ASKED:
                text = "the coordinator did not answer in time; it may still hand over"
                return "unknown", text

    def operation(self) -> Transfer | None:
        """Return the operation that hands the leadership over, once it is due."""
        handover, insync = self.under_way, self._insync
        if handover is None or not handover.asked:
            return None
        return Transfer(
            insync.node,
            insync.session,
            insync.epoch,
            handover.to,
            handover.who,
            leaving=handover.leaving,
        )

    def give_up(self, code: str, text: str) -> None:
        """Give up and continue as master; does nothing without a switchover."""
        handover, self.under_way = self.under_way, None
        if handover is None:
            return
        self._answer(handover, code, text)
        if self._context.role.state is Role.TRANSFERRING:
            self._context.role.move(RoleInput.TRANSFER_OVER)
        self._context.tell("switchover-over", "warning", to=handover.to, code=code, why=text)
        self._context.do(commands.Changed())

    def too_few(self) -> None:
        """The in-sync set became too small for writes."""
        # Once asked, the register may still hand over, and only its answer settles that.
        if self.under_way is not None and not self.under_way.asked:
            self.give_up("not-enough-in-sync", "too few members are in sync")

    def end(self, why: str, *, done: bool) -> None:
        """The leadership is over. ``done``: by this switchover."""
        handover, self.under_way = self.under_way, None
        if handover is not None:
            self._answer(handover, "ok" if done else "unknown", why)

    def _answer(self, handover: Handover, code: str, text: str) -> None:
        done = code == "ok"
        self.outcome = f"handed over to {handover.to}" if done else f"not handed over: {text}"
        if handover.request:
            self._context.do(commands.Answer(handover.request, code, text))
