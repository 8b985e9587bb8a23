"""The replica core: who this node is, and what it does about it. Pure.

Events come in as method calls with ``now``; commands go out through ``Context.out``, in order, and
are carried out before the next event. No clock, socket, file, task or random number. Production and
the simulator run this very object.

The one path that changes a role:

    a group state arrives  ->  seen at once (an old reign ends now)
                           ->  promised: epoch, session, revision, tag fsynced
                           ->  acted upon: master, slave, candidate or fenced

so nothing of an epoch is said or written before its promise is on the disk. A process begins
fenced; it becomes master only by an election of its own session, in an epoch in which it has not
led. The register of another id, of a smaller revision or of a smaller epoch is refused.

Not here: the reign itself (``mastership``), following (``following``), bytes (``driver``).
Sources: replication.md G.4, G.9, G.10, G.19; protocol.md 5, 7, 8.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from replication import commands, frames
from replication.context import Context
from replication.events import Later, Log, Node
from replication.following import FollowingMaster
from replication.group_state import GroupState
from replication.mastership import Handover, Mastership
from replication.questions import Questions, Verdict
from replication.register_ops import Elect, Operation, RegisterNode
from replication.roles import Role, RoleInput
from replication.settings import ReplicationSettings
from replication.waiters import Waiters
from storage import Promise
from twinlog.errors import ProtocolError

MASTER_ROLES = (Role.STARTING, Role.ACTIVE, Role.DEGRADED, Role.TRANSFERRING)


class ReplicaCore:
    """See the module.

    Attributes:
        context: What the parts share.
        mastership: The reign, while this node leads. ``following``: while it follows.
        waiters: Appends that wait.
        questions: What is asked of the register.
        trouble: Why the node has no role, for people; empty when it has one.
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
        self.mastership: Mastership | None = None
        self.following: FollowingMaster | None = None
        self.trouble = "starting"
        self._saving: Promise | None = None
        self._mastered = 0
        self._strangers: dict[int, float] = {}
        self._stop: tuple[int, float] | None = None
        self._alarms: set[str] = set()

    @property
    def role(self) -> Role:
        """What this node is."""
        return self.context.role.state

    # -- boot

    def start(self, now: float) -> None:
        """Begin: fenced, and register."""
        if self.context.damage is not None:
            self.context.role.move(RoleInput.DAMAGE)
            self.trouble = self.context.damage
            self.context.tell("quarantined", "alarm", what=self.context.damage)
        self.questions.ask(now, self.mastership)

    # -- the group state

    def on_group_state(self, now: float, value: Mapping[str, object]) -> None:
        """The register's state as somebody read it."""
        self._read_state(now, value)
        self._after(now)

    def _read_state(self, now: float, value: Mapping[str, object]) -> None:
        try:
            state = GroupState.from_json(value)
        except ProtocolError as error:
            self._alarm("odd-group-state", what=str(error))
            return
        self.see(now, state)

    def see(self, now: float, state: GroupState) -> None:
        """Take a state: end what it ends at once, then promise, then act."""
        context = self.context
        if self._refuses(state):
            return
        self.questions.calls.heard_at = now
        newest = context.newest
        if newest is not None and state.revision == newest.revision:
            return
        context.newest = state
        self._find_session(state)
        if self.mastership is not None and not self.is_our_reign(state):
            self._step_down(now, state)
        if self.following is not None and not self.following.is_of(state) and not context.cutting:
            self._stop_following(f"epoch {state.epoch} of {state.leader or 'nobody'}")
        self._promise()

    def _refuses(self, state: GroupState) -> bool:
        """Whether ``state`` is of another register, or older than what we fsynced."""
        promise, newest = self.context.promise, self.context.newest
        if promise.register_id and state.register_id != promise.register_id:
            self._alarm("other-register", ours=promise.register_id, theirs=state.register_id)
            return True
        floor = promise.revision
        if newest is not None and newest.revision > floor:
            floor = newest.revision
        if self.is_older(state, floor):
            return True
        known = promise if state.revision == promise.revision else newest
        if known is not None and state.revision == known.revision and state.tag != known.tag:
            self._alarm("register-branched", revision=state.revision)
            return True
        if state.epoch < promise.epoch:
            self._alarm("register-went-back", promised=promise.epoch, epoch=state.epoch)
            return True
        return False

    def is_older(self, state: GroupState, floor: int) -> bool:
        """Whether a state is older than what this node has seen."""
        return state.revision < floor

    def is_our_reign(self, state: GroupState) -> bool:
        """Whether ``state`` still names us as the master of the epoch that we lead."""
        reign = self.mastership
        ours = (self.context.node.name, reign.session, reign.epoch) if reign else None
        return ours == (state.leader, state.leader_session, state.epoch)

    def _find_session(self, state: GroupState) -> None:
        context = self.context
        known = state.reg.get(context.node.name)
        if known is None or known.store != context.node.store:
            ours = False
        else:
            ours = known.start == context.node.start
        if ours and known is not None:
            if known.session != context.session:
                context.session = known.session
                context.do(commands.Registered())
                context.tell("registered", session=known.session, clean=self.questions.is_clean)
        elif context.session and not self.questions.displaced:
            self.questions.displaced = True
            self._alarm("registered-elsewhere", session=context.session)

    # -- promises

    def _promise(self) -> None:
        """Have the newest state and revision fsynced, one save at a time."""
        if self._saving is not None:
            return
        context, old = self.context, self.context.promise
        newest = context.newest
        epoch, register_id, revision, tag, state = (
            old.epoch, old.register_id, old.revision, old.tag, old.state,
        )  # fmt: skip
        if newest is not None and newest.revision >= revision:
            epoch, register_id = max(epoch, newest.epoch), newest.register_id
            revision, tag = newest.revision, newest.tag
            state = json.dumps(newest.to_json(), sort_keys=True).encode()
        if context.want_revision[0] > revision:
            revision, tag = context.want_revision
        promise = Promise(epoch, context.session or old.session, register_id, revision, tag, state)
        if promise == old:
            return
        self._saving = promise
        context.do(commands.SavePromise(promise))

    def on_promised(self, now: float, promise: Promise) -> None:
        """The promise is on the disk."""
        self.context.promise = promise
        self._saving = None
        self._promise()
        if self.following is not None:
            self.following.on_promised()
        if self._saving is None:
            self._act(now)
        self._after(now)

    def has_promised(self, state: GroupState) -> bool:
        """Whether the promise for ``state`` is on the disk."""
        promise = self.context.promise
        return promise.revision >= state.revision and promise.epoch >= state.epoch

    # -- acting

    def _act(self, now: float) -> None:
        context, state = self.context, self.context.newest
        if state is None or not context.session or context.cutting or not self.has_promised(state):
            return
        if self.role in (Role.STOPPED, Role.QUARANTINED) or self._stop is not None:
            return
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
        if self.mastership is not None:
            self.mastership.adopt(state, now)
            return
        if not self.may_begin_reign(state):
            self._fence(f"epoch {state.epoch} was ours and has ended here")
            return
        self._fence("")
        self._mastered = state.epoch
        self.questions.stand_at = None
        self.trouble = ""
        self.context.role.move(RoleInput.ELECTED)
        self.mastership = Mastership(self.context, state, self.waiters, now)
        self.mastership.begin(now)
        self.context.do(commands.Changed())

    def may_begin_reign(self, state: GroupState) -> bool:
        """Whether the epoch is one in which this node never led; an epoch is never continued."""
        return state.epoch > self._mastered and state.epoch > self.context.log.last_epoch

    def _follow(self, now: float, state: GroupState) -> None:
        if self.following is not None and self.following.is_of(state):
            return
        self._fence("")
        self.questions.stand_at = None
        self.trouble = ""
        self.context.role.move(RoleInput.OTHER_LEADER)
        self.following = FollowingMaster(self.context, state)
        self.following.begin(now)
        self.context.do(commands.Changed())

    def _stand(self, now: float, state: GroupState) -> None:
        if not self.may_stand(state):
            self._fence("no master, and this node may not stand")
            return
        if self.role is Role.FENCED:  # `see` ended whatever role there was
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
            return state.first == name or (state.first is None and everybody)
        return state.counts(name)

    def _fence(self, why: str) -> None:
        """Have no role; ``why`` is for people, empty when another role follows at once."""
        if self.mastership is not None:
            self._end_reign(why or "the role changes", done=False)
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
        reign = self.mastership
        assert reign is not None
        done = state.previous == self.context.node.name or state.epoch == reign.epoch + 1
        handover = reign.handover
        done = done and handover is not None and handover.to in (state.transfer_to, state.leader)
        leader = state.leader or "nobody"
        self._end_reign(f"epoch {state.epoch} belongs to {leader}", done=done)

    def _end_reign(self, why: str, *, done: bool) -> None:
        reign, self.mastership = self.mastership, None
        assert reign is not None
        reign.end(why, done=done)
        self.context.compared = reign.confirm
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
        self._fence("quarantined")
        self.context.role.move(RoleInput.DAMAGE)
        self.trouble = what
        log = self.context.log
        self.context.do(commands.Quarantine(log.start, log.end - log.start, what))
        self.context.tell("quarantined", "alarm", what=what)
        self.context.do(commands.Changed())

    # -- answers of the register

    def on_answer(self, now: float, number: int, answer: Mapping[str, object] | None) -> None:
        """The register answered; None: nobody knows whether it did what was asked."""
        op = self.questions.calls.answered(number)
        if answer is None:
            if op is not None:
                self.questions.calls.pause(now)
            self._after(now)
            return
        # The state first: it may show that an earlier copy of a refused question was carried out.
        state = answer.get("state")
        if isinstance(state, Mapping):
            self._read_state(now, cast("Mapping[str, object]", state))
        if op is not None:
            self._settle(now, op, Verdict.of(answer))
        self._after(now)

    def _settle(self, now: float, op: Operation, verdict: Verdict) -> None:
        alarm = self.questions.settle(now, op, verdict, self.mastership)
        if alarm is None:
            return
        if self.context.session == 0 or isinstance(op, (RegisterNode, Elect)):
            self.trouble = verdict.text or self.trouble
        self._alarm(alarm, text=verdict.text, hint=verdict.hint)

    # -- links

    def on_accept(self, now: float, conn: int) -> None:
        """Somebody dialed us."""
        self._strangers[conn] = now

    def on_dialed(self, now: float, conn: int) -> None:
        """Our dial stands."""
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
        elif self.mastership is not None:
            self.mastership.on_closed(now, conn, why)
        self._after(now)

    def on_message(self, now: float, conn: int, message: frames.Message) -> None:
        """A message arrived."""
        if self.mastership is not None and conn in self.mastership.sessions:
            self.mastership.on_message(now, conn, message)
        elif self.following is not None and self.following.conn == conn:
            self.following.on_message(now, message)
        else:
            self._greet(now, conn, message)
        if self._stop is not None or not self.questions.has_none(self.mastership):
            self._after(now)

    def _greet(self, now: float, conn: int, message: frames.Message) -> None:
        self._strangers.pop(conn, None)
        if not isinstance(message, frames.Hello):
            self.context.do(commands.Close(conn, f"{type(message).__name__} before HELLO"))
            return
        if message.epoch > self.context.promise.epoch:
            self.context.want_read = True
        if self.mastership is not None:
            self.mastership.on_hello(now, conn, message)
            return
        state = self.context.newest
        leader = state.leader if state is not None else None
        text = f"{self.context.node.name} is not the master"
        epoch = self.context.promise.epoch
        error = frames.HelloErr(epoch, message.session, "NOT_MASTER", text, leader)
        self.context.do(commands.Send(conn, error))
        self.context.do(commands.Close(conn, text))

    # -- the log

    def on_flushed(self, now: float) -> None:
        """More of the log is on the disk."""
        if self.mastership is not None:
            self.mastership.on_flushed(now)
        elif self.following is not None:
            self.following.on_flushed()
        self._after(now)

    def on_damage(self, now: float, what: str) -> None:
        """The store found its log damaged."""
        self.context.damage = what
        self._after(now)

    def on_cut(self, now: float) -> None:
        """The log is cut."""
        context = self.context
        context.cutting = False
        if self.following is not None:
            newest = context.newest
            if newest is not None and not self.following.is_of(newest):
                self._stop_following("the role changed during the cut")
            else:
                self.following.on_cut(now)
        self._act(now)
        self._after(now)

    # -- clients

    def admission(self, ack: str, size: int) -> tuple[str, str] | None:
        """Return code and text of a refusal before anything is written; None to go on."""
        role = self.role
        if self.mastership is None or self._stop is not None:
            return "not-master", f"{self.context.node.name} is not the master"
        if role in (Role.STARTING, Role.TRANSFERRING):
            return "not-master", f"the master is {role.value}"
        if role is Role.DEGRADED and ack in ("replicated", "confirmed"):
            state = self.mastership.state
            text = f"{len(state.isr)} in sync ({', '.join(state.isr)}), {state.min_isr} needed"
            return "not-enough-in-sync", text
        if ack != "written" and not self.waiters.fits(size):
            return "busy", f"{self.waiters.count} appends of {self.waiters.bytes} bytes wait"
        return None

    def on_appended(self, now: float) -> None:
        """Batches were appended: send them on, confirm what can be."""
        assert self.mastership is not None, "only a master appends"
        self.mastership.stream(now)

    def transfer(self, now: float, request: int, to: str, who: str) -> None:
        """Hand the mastership to ``to``; answered by an ``Answer`` command."""
        reign = self.mastership
        if reign is None:
            text = f"{self.context.node.name} is not the master"
            self.context.do(commands.Answer(request, "not-master", text))
        elif reign.handover is not None:
            self.context.do(commands.Answer(request, "busy", "a switchover is under way"))
        else:
            until = now + self.context.settings.transfer_seconds
            reign.hand_over(now, Handover(request, to, who, until))
        self._after(now)

    def stop(self, now: float, request: int) -> None:
        """Take no new work, wait for what is owed, end; answered by an ``Answer`` command."""
        if self.role is Role.STOPPED or self._stop is not None:
            self.context.do(commands.Answer(request, "busy", "stopping already"))
            return
        self._stop = (request, now + self.context.settings.stop_seconds)
        self.context.do(commands.Changed())
        self._after(now)

    def _stopped(self, now: float) -> None:
        assert self._stop is not None
        request, until = self._stop
        if self.context.cutting or (self.waiters.count and now < until):
            return
        self._fence("stopping")
        self.context.role.move(RoleInput.STOP)
        self.trouble = "stopped"
        self._stop = None
        self.context.do(commands.Answer(request, "ok", ""))
        self.context.do(commands.Changed())

    def on_later(self, now: float, event: Later) -> None:
        """Take an event of a later version: nothing changes, and it is said loudly."""
        what = type(event).__name__
        self.context.tell("comes-later", "alarm", what=what, facts=repr(event))

    # -- time

    def on_tick(self, now: float) -> None:
        """Do what is due."""
        if self.mastership is not None:
            self.mastership.on_tick(now)
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
        """What every event may have made due."""
        over = self.role in (Role.QUARANTINED, Role.STOPPED) or self.context.cutting
        if self.context.damage is not None and not over:
            self._quarantine(now)
        if self.context.want_revision[0] > self.context.promise.revision:
            self._promise()
        if self._stop is not None:
            self._stopped(now)
        if self.role is not Role.STOPPED:
            self.questions.ask(now, self.mastership)

    def next_deadline(self) -> float | None:
        """Return when `on_tick` is due, None for never."""
        if self.role is Role.STOPPED:
            return None
        due: list[float] = []
        if self.mastership is not None:
            due.append(self.mastership.next_deadline())
        if self.following is not None:
            due.append(self.following.next_deadline())
        if (waiting := self.waiters.next_deadline()) is not None:
            due.append(waiting)
        if self._strangers:
            first = next(iter(self._strangers.values()))
            due.append(first + self.context.settings.silence_seconds)
        if self._stop is not None and not self.context.cutting:  # the cut's end goes on with it
            due.append(self._stop[1])
        due.append(self.questions.next_deadline())
        return min(due)

    def _alarm(self, name: str, /, **facts: object) -> None:
        """Tell something that a person must know, once until it changes."""
        key = f"{name} {facts}"
        if key not in self._alarms:
            if len(self._alarms) > 256:
                self._alarms.clear()
            self._alarms.add(key)
            self.context.tell(name, "alarm", **facts)
