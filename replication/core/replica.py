"""The replica core: the role of this node and its changes. Pure.

Events are method calls with ``now``; commands go out through ``Context.out``, in order, and are
executed before the next event. No clock, socket, file, task or random number. Production and the
simulator run this same object.

There is one path that changes a role:

    a group state arrives  ->  seen at once (an old leadership ends now)
                           ->  promised: epoch, session, revision, tag fsynced
                           ->  acted upon: master, slave, candidate or fenced

so nothing of an epoch is sent or written before its promise is durable. A process begins fenced; it
becomes master only by an election of its own session, in an epoch in which it has not led. States
of another register, of a smaller revision or of a smaller epoch are refused.

Not here: the leadership itself (``leading``), following (``following``), bytes (``driver``).
Rules: docs/protocol.md R13 to R16, R34 to R37.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from replication.core import commands, messages
from replication.core.commands import Received
from replication.core.context import Context, Log, Node
from replication.core.following import Following
from replication.core.master.leading import Leading
from replication.core.master.switchover import STOP_CHECK_SECONDS, Handover
from replication.core.master.waiters import REPLICATED, WRITTEN, Waiters
from replication.core.peer_checks import is_of_group
from replication.core.promises import Promises
from replication.core.register_questions import Questions, Verdict
from replication.core.roles import Role, RoleInput
from replication.register.group_state import GroupState
from replication.register.operations import Elect, Operation, RegisterNode
from replication.settings import ReplicationSettings
from storage import Promise
from twinlog.errors import ProtocolError

MASTER_ROLES = (Role.STARTING, Role.ACTIVE, Role.DEGRADED, Role.TRANSFERRING)


class ReplicaCore:
    """See the module.

    Attributes:
        context: State shared by the parts.
        leading: The leadership, while this node leads. ``following``: while it follows.
        waiters: Appends that wait for an acknowledgement.
        questions: Calls to the register. ``promises``: states that may be acted upon.
        trouble: Why the node has no role, for people; empty if it has one.
    """

    def __init__(
        self,
        node: Node,
        settings: ReplicationSettings,
        log: Log,
        promise: Promise,
        *,
        seed: int,
        now: float,
    ) -> None:
        self.context = Context(node, settings, log, promise, seed)
        self.questions = Questions(self.context, now)
        self.waiters = Waiters(settings.waiters_max, settings.waiters_bytes_max)
        self.leading: Leading | None = None
        self.following: Following | None = None
        self.trouble = "starting"
        self.promises = Promises(self.context)
        self._mastered = 0
        self._strangers: dict[int, float] = {}
        self._stop: tuple[int, float] | None = None
        self._stopping = 0
        self._why_stopped = self._handed_over = ""

    @property
    def role(self) -> Role:
        """The role of this node."""
        return self.context.role.state

    @property
    def standing(self) -> tuple[object, ...]:
        """What a view depends on besides offsets and ages; cheap to compare."""
        context = self.context
        return context.role.state, context.promise, context.newest

    # -- boot

    def start(self, now: float) -> None:
        """Begin fenced, and register (R15)."""
        if self.context.damage is not None:
            self.context.role.move(RoleInput.DAMAGE)
            self.trouble = self.context.damage
            self.context.tell("quarantined", "alarm", what=self.context.damage)
        self.questions.ask(now, self.leading)

    # -- the group state

    def on_group_state(self, now: float, value: Mapping[str, object]) -> None:
        """A state of the register was read outside of a call of the core."""
        self._read_state(now, value)
        self._after(now)

    def _read_state(self, now: float, value: Mapping[str, object]) -> None:
        try:
            state = GroupState.from_json(value)
        except ProtocolError as error:
            self.context.alarm("odd-group-state", what=str(error))
            return
        self.see(now, state)

    def see(self, now: float, state: GroupState) -> None:
        """Handle a state: end a contradicting role at once, then promise, then act (R13)."""
        context = self.context
        if self.promises.refuses(state):
            return
        self.questions.calls.heard_at = now
        newest = context.newest
        if newest is not None and state.revision == newest.revision:
            return
        context.newest = state  # acted on by `_act`, once promised
        if (state.ack, state.level) != (context.quality, context.level):
            # Before anything is acknowledged by it: a start must know the quality (R26).
            context.quality, context.level = state.ack, state.level
            context.do(commands.SetFacts(state.ack, state.level))
        if state.ack != context.settings.ack:
            configured = context.settings.ack
            context.alarm("quality-differs", configured=configured, group=state.ack)
        self._find_session(state)
        if self.leading is not None and not self.is_our_leadership(state):
            self._step_down(now, state)
        if self.following is not None and not self.following.is_of(state) and not context.cutting:
            self._stop_following(f"epoch {state.epoch} of {state.leader or 'no leader'}")
        self.promises.save()

    def is_our_leadership(self, state: GroupState) -> bool:
        """Whether ``state`` still names this node as master of the epoch that it leads (R13)."""
        leading = self.leading
        ours = (self.context.node.name, leading.session, leading.epoch) if leading else None
        return ours == (state.leader, state.leader_session, state.epoch)

    def _find_session(self, state: GroupState) -> None:
        context = self.context
        known = state.reg.get(context.node.name)
        if known is None or (known.store == context.node.store and not known.start):
            # Removed, and maybe added again later; or the register was recovered (R58).
            context.session = 0
        elif (known.store, known.start) == (context.node.store, context.node.start):
            if known.session != context.session:
                context.session = known.session
                context.do(commands.Registered())
                context.tell("registered", session=known.session, complete=self.questions.is_clean)
        elif context.session and not self.questions.displaced:
            self.questions.displaced = True
            self.context.alarm("registered-elsewhere", session=context.session)

    # -- acting

    def on_promised(self, now: float, promise: Promise) -> None:
        """The promise is durable."""
        done = self.promises.on_saved(promise)
        if self.following is not None:
            self.following.on_promised()
        if done:
            self._act(now)
        self._after(now)

    def _act(self, now: float) -> None:
        context, state = self.context, self.context.newest
        if (
            state is None
            or not context.session
            or context.cutting
            or not self.promises.has_promised(state)
        ):
            return
        if self.role in (Role.STOPPED, Role.QUARANTINED) or self._stop is not None:
            return
        if self._stopping and self.leading is None:
            return  # a stopping node takes no new role
        if self.questions.displaced:
            self._fence("another process registered under this name")
            return
        name = context.node.name
        if state.leader == name and state.leader_session == context.session:
            self._lead(now, state)
        elif state.leader is not None and state.leader != name:
            self._follow(now, state)
        elif state.leader is None:
            self._stand(now, state)
        else:
            self._fence("the register names an earlier session of this node")

    def _lead(self, now: float, state: GroupState) -> None:
        if self.leading is not None:
            self.leading.adopt(state, now)
            return
        if not self.may_begin_leading(state):
            self._fence(f"epoch {state.epoch} was ours and has ended here")
            return
        self._fence("")
        self._mastered = state.epoch  # never led again, even if this leadership fails
        self.questions.stand_at = None
        self.trouble = ""
        self.context.role.move(RoleInput.ELECTED)
        self.leading = Leading(self.context, state, self.waiters, now)
        self.leading.begin(now)
        self.context.do(commands.Changed())

    def may_begin_leading(self, state: GroupState) -> bool:
        """Whether this node never led in the epoch; an epoch is never continued (R15)."""
        return state.epoch > self._mastered and state.epoch > self.context.log.last_epoch

    def _follow(self, now: float, state: GroupState) -> None:
        if self.following is not None and self.following.is_of(state):
            return
        self._fence("")
        self.questions.stand_at = None
        self.trouble = ""
        self.context.role.move(RoleInput.OTHER_LEADER)
        self.following = Following(self.context, state)
        self.following.begin(now)
        self.context.do(commands.Changed())

    def _stand(self, now: float, state: GroupState) -> None:
        if not self.may_stand(state):
            self._fence("no master, and this node may not stand")
            return
        if self.role is Role.FENCED:  # `see` has ended any other role
            self.context.role.move(RoleInput.NO_LEADER)
            self.trouble = "standing for master"
            self.context.do(commands.Changed())
        self.questions.stand(now, state)

    def may_stand(self, state: GroupState) -> bool:
        """Whether an election of this node can be granted."""
        name = self.context.node.name
        if self.context.damage is not None or name not in state.replicas:
            return False
        if state.epoch == 0 and not state.isr and not state.elr:
            if any(not reg.empty for reg in state.reg.values()):
                return False
            everybody = all(other in state.reg for other in state.replicas)
            return everybody and state.first in (None, name)
        return state.may_lead(name)

    def _fence(self, why: str) -> None:
        """End any role; ``why`` is for people, empty if another role follows at once."""
        if self.leading is not None:
            self._end_leading(why or "the role changes", done=False)
        if self.following is not None:
            self._stop_following(why or "the role changes")
        if self.role is Role.CANDIDATE:
            self.context.role.move(RoleInput.FENCE)
        self.questions.stand_at = None
        if why and why != self.trouble:
            self.trouble = why
            self.context.tell("fenced", "warning", why=why)
            self.context.do(commands.Changed())

    def _step_down(self, now: float, state: GroupState) -> None:
        leading = self.leading
        assert leading is not None
        done = state.previous == self.context.node.name or state.epoch == leading.epoch + 1
        handover = leading.switchover.under_way
        done = done and handover is not None and handover.to in (state.transfer_to, state.leader)
        leader = state.leader or "no node"
        self._end_leading(f"epoch {state.epoch} belongs to {leader}", done=done)

    def _end_leading(self, why: str, *, done: bool) -> None:
        leading, self.leading = self.leading, None
        assert leading is not None
        leading.end(why, done=done)
        self._handed_over = leading.switchover.outcome
        self.context.role.move(RoleInput.FENCE)
        self.trouble = why
        self.context.do(commands.Changed())

    def _stop_following(self, why: str) -> None:
        following, self.following = self.following, None
        assert following is not None
        following.end(why)
        self.context.role.move(RoleInput.FENCE)
        self.trouble = why
        self.context.do(commands.Changed())

    def _quarantine(self, now: float) -> None:
        what = self.context.damage or ""
        log = self.context.log
        # First the finding, durably: a node that ends its role and dies must not return as clean.
        self.context.do(commands.Quarantine(log.start, log.end - log.start, what))
        self._fence("quarantined")
        self.context.role.move(RoleInput.DAMAGE)
        self.trouble = what
        self.context.tell("quarantined", "alarm", what=what)
        self.context.do(commands.Changed())

    # -- answers of the register

    def on_answer(self, now: float, number: int, answer: Mapping[str, object] | None) -> None:
        """The register answered a call; None: its outcome is unknown."""
        call = self.questions.calls.answered(number, heard=answer is not None)
        if answer is None:
            if call is not None:
                self.questions.calls.pause(now)
            self._after(now)
            return
        # The state first: it may show that an earlier copy of a refused call was executed.
        state = answer.get("state")
        if isinstance(state, Mapping):
            self._read_state(now, cast("Mapping[str, object]", state))
        if call is not None:
            self._settle(now, call.op, Verdict.of(answer))
        if self.leading is not None:
            self.leading.on_register_heard(now)
            if call is not None:
                self.leading.on_confirmed_by_register(now, call.sent_at)
        self._after(now)

    def _settle(self, now: float, op: Operation, verdict: Verdict) -> None:
        alarm = self.questions.settle(now, op, verdict, self.leading)
        if alarm is None:
            return
        if self.context.session == 0 or isinstance(op, (RegisterNode, Elect)):
            self.trouble = verdict.text or self.trouble
        self.context.alarm(alarm, text=verdict.text, hint=verdict.hint)

    # -- links

    def on_accept(self, now: float, conn: int) -> None:
        """A link was accepted."""
        self._strangers[conn] = now

    def on_dialed(self, now: float, conn: int) -> None:
        """A dialed link is up."""
        if self.following is not None and self.following.conn == conn:
            self.following.on_dialed(now)
        else:
            self.context.do(commands.Close(conn, "dialed for a role that is over"))
        self._after(now)

    def on_closed(self, now: float, conn: int, why: str) -> None:
        """A link ended."""
        self._strangers.pop(conn, None)
        if self.following is not None and self.following.conn == conn:
            self.following.on_closed(now, why)
        elif self.leading is not None:
            self.leading.slaves.on_closed(now, conn, why)
        self._after(now)

    def on_message(self, now: float, conn: int, message: messages.Message) -> None:
        """A message arrived."""
        if self.leading is not None and conn in self.leading.slaves.sessions:
            self.leading.on_message(now, conn, message)
        elif self.following is not None and self.following.conn == conn:
            self.following.on_message(now, message)
        else:
            self._greet(now, conn, message)
        if self._stop is not None or not self.questions.has_none(self.leading):
            self._after(now)

    def _greet(self, now: float, conn: int, message: messages.Message) -> None:
        self._strangers.pop(conn, None)
        if not isinstance(message, messages.Hello):
            self.context.do(commands.Close(conn, f"{type(message).__name__} before HELLO"))
            return
        context = self.context
        if (message.epoch, message.revision) > (context.promise.epoch, context.promise.revision):
            context.want_read = True
        if self.leading is not None:
            if message.epoch > self.leading.epoch and is_of_group(message, self.leading.state):
                self.leading.on_newer_epoch(now, message.node, message.epoch)
            self.leading.slaves.on_hello(now, conn, message)
            return
        leader = context.newest.leader if context.newest is not None else None
        text, epoch = f"{context.node.name} is not the master", context.promise.epoch
        error = messages.HelloErr(epoch, message.session, "NOT_MASTER", text, leader)
        self.context.do(commands.Send(conn, error))
        self.context.do(commands.Close(conn, text))

    # -- the log

    def on_flushed(self, now: float) -> None:
        """More of the log is flushed."""
        if self.leading is not None:
            self.leading.on_flushed(now)
        elif self.following is not None:
            self.following.on_flushed()
        self._after(now)

    def on_damage(self, now: float, what: str) -> None:
        """The store found its log damaged."""
        self.context.damage = what
        self._after(now)

    def on_repaired(self, now: float) -> None:
        """All damage is repaired; the register is first informed that there was damage."""
        if self.leading is not None:
            self.leading.slaves.on_repaired(now)
        if self.role is Role.QUARANTINED:
            self.context.repair()
            self.trouble = "repaired"
            self._act(now)
        self._after(now)

    def on_cut(self, now: float) -> None:
        """The cut is done."""
        self.context.cutting = False
        if self.following is not None:
            newest = self.context.newest
            if newest is not None and not self.following.is_of(newest):
                self._stop_following("the role changed during the cut")
            else:
                self.following.on_cut(now)
        self._act(now)
        self._after(now)

    # -- answers to commands

    def on_shipped(self, now: float, conn: int, append: messages.Append, end: int) -> None:
        """The frame of `commands.Ship` was sent with the batches up to ``end``."""
        if self.leading is not None:
            self.leading.slaves.on_shipped(now, conn, append, end)

    def on_received(
        self, now: float, conn: int, append: messages.Append, outcome: Received
    ) -> None:
        """The outcome of `commands.Receive`."""
        if self.following is not None and self.following.conn == conn:
            self.following.on_received(now, append, outcome)

    def on_epoch_appended(self, now: float, epoch: int, end: int | None) -> None:
        """The record of `commands.AppendEpoch` ends at ``end``; None: the disk has no space."""
        if self.leading is not None and self.leading.epoch == epoch:
            self.leading.on_epoch_appended(now, end)
            self._after(now)

    def on_seed(self, now: float, conn: int, data: bytes | None) -> None:
        """The seed of `commands.MakeSeed` is made; None: the log changed meanwhile."""
        if self.leading is not None:
            self.leading.slaves.on_seed(now, conn, data)
            self._after(now)

    def on_verified(self, now: float, conn: int, start: int, what: str | None, soon: bool) -> None:
        """The batch of `commands.Verify` is good (None), or not; ``soon``: it is being repaired."""
        if self.leading is not None:
            self.leading.slaves.on_verified(now, conn, start, what, soon)
            self._after(now)

    # -- clients

    @property
    def leads(self) -> bool:
        """Whether this node is master, in any state."""
        return self.leading is not None

    @property
    def oldest_stranger(self) -> int | None:
        """The oldest accepted link that has not said HELLO."""
        return next(iter(self._strangers), None)

    def overtake(self, now: float, start: int) -> int:
        """End the links of slaves that lack bytes below ``start``; return how many lack them."""
        return self.leading.slaves.overtake(now, start) if self.leading is not None else 0

    def admission(self, ack: str, size: int) -> tuple[str, str] | None:
        """Return code and text of a refusal, before anything is written; None to continue."""
        role = self.role
        if self.leading is None or self._stop is not None:
            return "not-master", f"{self.context.node.name} is not the master"
        if self.leading.superseded:
            return "not-master", f"epoch {self.leading.superseded} was seen; asking the coordinator"
        if role in (Role.STARTING, Role.TRANSFERRING):
            return "not-master", f"the master is {role.value}"
        if role is Role.DEGRADED and ack in ("replicated", "confirmed"):
            state = self.leading.state
            text = f"{len(state.isr)} in sync ({', '.join(state.isr)}), {state.min_isr} needed"
            return "not-enough-in-sync", text
        if ack == REPLICATED and len(self.leading.state.replicas) < 2:
            return "not-enough-in-sync", "replicated needs a slave, and this group has one node"
        if (refusal := self.questions.refuses(ack)) is not None:
            return refusal
        if ack != WRITTEN and not self.waiters.fits(size):
            return "busy", f"{self.waiters.count} appends of {self.waiters.bytes} bytes wait"
        return None

    def on_appended(self, now: float) -> None:
        """Batches were appended: send them to slaves, confirm what can be confirmed."""
        assert self.leading is not None, "only a master appends"
        self.leading.stream(now)

    def transfer(self, now: float, request: int, to: str, who: str) -> None:
        """Hand the mastership to ``to``; answered by an ``Answer`` command."""
        leading = self.leading
        if leading is None:
            text = f"{self.context.node.name} is not the master"
            if self.context.newest is not None and self.context.newest.leader is None:
                text = "no node is master: a switchover needs one (see cluster failover)"
            self.context.do(commands.Answer(request, "not-master", text))
        elif leading.switchover.under_way is not None:
            self.context.do(commands.Answer(request, "busy", "a switchover is under way"))
        else:
            until = now + self.context.settings.transfer_seconds
            leading.switchover.begin(Handover(request, to, who, until))
        self._after(now)

    def stop(self, now: float, request: int) -> None:
        """Hand over, refuse new work, wait for pending answers, then stop.

        A master with a slave that can take over hands over first. It waits `STOP_CHECK_SECONDS`
        for the coordinator, then ``transfer_seconds`` for the slave and as long for the register,
        and stops in any case. The text of its ``Answer`` says what became of the leadership.
        """
        if self.role is Role.STOPPED or self._stop is not None or self._stopping:
            self.context.do(commands.Answer(request, "busy", "stopping already"))
            return
        self._stopping = request
        leading, why = self.leading, ""
        if leading is not None and leading.switchover.under_way is None:
            to = leading.switchover.best_target()
            if to is None:
                why = "not handed over: no slave can take over"
            else:
                until = now + STOP_CHECK_SECONDS
                leading.switchover.begin(Handover(0, to, "stop", until, leaving=True))
        self._why_stopped = why
        self._after(now)

    def _begin_to_stop(self, now: float) -> None:
        """Refuse new work, once no switchover is running."""
        if self.leading is not None and self.leading.switchover.under_way is not None:
            return
        self._stop = (self._stopping, now + self.context.settings.stop_seconds)
        self._stopping = 0
        self.context.do(commands.Changed())

    def _stopped(self, now: float) -> None:
        assert self._stop is not None
        request, until = self._stop
        if self.context.cutting or (self.waiters.count and now < until):
            return
        self._fence("stopping")
        text = self._why_stopped or self._handed_over
        self.context.role.move(RoleInput.STOP)
        self.trouble = "stopped"
        self._stop = None
        self.context.do(commands.Answer(request, "ok", text))
        self.context.do(commands.Changed())

    # -- time

    def on_tick(self, now: float) -> None:
        """Do what is due."""
        self.questions.look(now)
        if self.leading is not None:
            self.leading.on_tick(now)
        if self.following is not None:
            self.following.on_tick(now)
        silence = self.context.settings.silence_seconds
        for conn in [conn for conn, at in self._strangers.items() if now >= at + silence]:
            del self._strangers[conn]
            self.context.do(commands.Close(conn, "no HELLO"))
        if expired := self.waiters.expire(now):
            self.context.do(commands.GiveUp(tuple(expired)))
        self._after(now)

    def _after(self, now: float) -> None:
        """Do what any event may have made due."""
        over = self.role in (Role.QUARANTINED, Role.STOPPED) or self.context.cutting
        if self.context.damage is not None and not over:
            self._quarantine(now)
        if self.context.want_revision[0] > self.context.promise.revision:
            self.promises.save()
        if self._stopping:
            self._begin_to_stop(now)
        if self._stop is not None:
            self._stopped(now)
        if self.role is not Role.STOPPED:
            self.questions.ask(now, self.leading)

    def next_deadline(self) -> float | None:
        """Return when `on_tick` is due, None for never."""
        if self.role is Role.STOPPED:
            return None
        due: list[float] = []
        for part in (self.leading, self.following, self.questions):
            if part is not None:
                due.append(part.next_deadline())
        if (waiting := self.waiters.next_deadline()) is not None:
            due.append(waiting)
        if self._strangers:
            first = next(iter(self._strangers.values()))
            due.append(first + self.context.settings.silence_seconds)
        if self._stop is not None and not self.context.cutting:  # else `on_cut` continues it
            due.append(self._stop[1])
        return min(due)
