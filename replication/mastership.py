"""One reign: from the epoch record to stepping down.

Made when an election is on our disk, thrown away when the reign ends; a node that leads again does
so in another epoch with another object. It begins with the epoch record, flushed before anything
else is answered; it streams whole batches to every slave; it moves the confirm offset; it proposes
changes of the in-sync set; it hands over when asked.

Invariants:

* nothing is confirmed before the epoch record is, and nothing below which the effective in-sync set
  has not acknowledged (``in_sync``);
* a batch that was appended goes to every slave that streams, in the same call;
* every append that waits is answered exactly once: released, expired, or unknown at the end.

Units: bytes, seconds. Not here: who may become master (``core``). Sources: replication.md G.6-G.9,
G.13.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from replication import commands, frames
from replication.context import Context
from replication.group_state import GroupState
from replication.in_sync import InSyncSet
from replication.master_session import (
    Master,
    MasterSession,
    Refusal,
    check_hello,
    find_point,
)
from replication.register_ops import AlterInSync, Annotate, Transfer
from replication.roles import Role, RoleInput
from replication.waiters import CONFIRMED, FLUSHED, REPLICATED, Waiters
from storage import Epoch, Token

TICK_SECONDS = 0.1
"""How often a master looks at its links and its set; every limit it watches is far larger."""


SLEPT_SECONDS = 1.0
"""A tick this late says that the process was stopped, not that its slaves were."""


def epoch_before(epochs: Sequence[Epoch], offset: int) -> int:
    """Return the epoch of the byte before ``offset``, 0 at the beginning.

    >>> epoch_before([Epoch(1, 0), Epoch(4, 100)], 100)
    1
    """
    if epochs and epochs[-1].start < offset:
        return epochs[-1].epoch
    at = bisect_right(epochs, offset - 1, key=lambda epoch: epoch.start)
    return epochs[at - 1].epoch if at else 0


@dataclass(slots=True)
class Handover:
    """A switchover under way. ``asked``: the register was told, only it can end this now."""

    request: int
    to: str
    who: str
    until: float
    asked: bool = False


class Mastership:
    """See the module.

    Attributes:
        epoch, session: Of this reign.
        insync: The in-sync set and its confirm offset.
        sessions: Links by number. ``links``: number of the link by slave.
        handover: A switchover under way.
    """

    def __init__(self, context: Context, state: GroupState, waiters: Waiters, now: float) -> None:
        self._context = context
        self.state = state
        self.epoch = state.epoch
        self.session = state.leader_session
        self.insync = InSyncSet(context.node.name, state, context.settings, now)
        self.sessions: dict[int, MasterSession] = {}
        self.links: dict[str, int] = {}
        self.waiters = waiters
        self.handover: Handover | None = None
        self.confirm = context.log.confirm
        self.why_not: dict[str, str] = {}
        self._tick_at = now
        self._notice_at: float | None = None
        self._epoch_asked = False
        self._nonce = 0
        self.names = ",".join(self.insync.effective)

    # -- the beginning

    def begin(self, now: float) -> None:
        """Make the log ours, number on behind what is there, write the first record."""
        context = self._context
        context.do(commands.TakeToken(Token("master", self.epoch, self.session)))
        context.do(commands.RebuildPending())
        self._ask_epoch()

    def _ask_epoch(self) -> None:
        self._epoch_asked = True
        state = self.state
        self._context.do(commands.AppendEpoch(self.epoch, self.session, state.reason, state.by))

    def on_epoch_appended(self, now: float, end: int | None) -> None:
        """The epoch record ends at ``end``, or there was no space for it: tried again."""
        self._epoch_asked = False
        if end is None:
            return
        self.insync.epoch_end = end
        self.stream(now)
        self._open(now)

    def _open(self, now: float) -> None:
        """Become active once the epoch record is on the disk."""
        context, end = self._context, self.insync.epoch_end
        if context.role.state is not Role.STARTING or end is None or context.log.flushed < end:
            return
        enough = self.insync.enough
        context.role.move(RoleInput.EPOCH_FLUSHED if enough else RoleInput.EPOCH_FLUSHED_ALONE)
        start = next(e.start for e in context.log.epochs if e.epoch == self.epoch)
        context.notes.append(Annotate(context.node.name, self.epoch, start=start))
        context.tell("master", epoch=self.epoch, start=start, in_sync=self.names)
        context.do(commands.Changed())
        self.advance(now)

    # -- the set

    def adopt(self, state: GroupState, now: float) -> None:
        """Take a newer state of this reign, which is on our disk."""
        before = self.insync.effective
        self.state = state
        self.insync.adopt(state, now)
        for name in [name for name in self.links if name not in self.insync.members]:
            self._drop(self.links[name], "removed from the group", now)
        role = self._context.role
        if role.state in (Role.ACTIVE, Role.TRANSFERRING) and not self.insync.enough:
            if self.handover is not None and not self.handover.asked:
                self._give_up_handover("not-enough-in-sync", "too few members are in sync")
            # Asked is asked: the register may hand over still, and only its answer settles that.
            role.move(RoleInput.TOO_FEW)
        elif role.state is Role.DEGRADED and self.insync.enough:
            role.move(RoleInput.ENOUGH)
        self.names = ",".join(self.insync.effective)
        if before != self.insync.effective:
            self._context.tell(
                "in-sync-set", members=self.names, revision=state.revision, epoch=self.epoch
            )
        self._context.do(commands.Changed())
        self._show_revision(now)
        self.advance(now)

    def _show_revision(self, now: float) -> None:
        """Let the members see the revision soon: their answers count only when they show it."""
        if any(s.streaming and s.shown < self.state.revision for s in self.sessions.values()):
            self._notice_at = now

    def propose(self, now: float) -> AlterInSync | None:
        """Return a change of the set that is due; it counts from now on."""
        insync = self.insync
        if self._context.role.state in (Role.STARTING, Role.TRANSFERRING):
            return None
        add, remove = insync.change(now, self._context.log.committed, self.confirm)
        if not add and not remove:
            return None
        proposal = insync.proposal_for(add, remove)
        insync.propose(proposal)
        self.names = ",".join(insync.effective)
        for name in remove:
            self._context.tell("leaves-in-sync", "warning", node=name, why=self.why_behind(name))
        return proposal

    def why_behind(self, name: str) -> str:
        """Return why a replica is not level, for people."""
        member = self.insync.members.get(name)
        if member is None:
            return "no replica"
        if member.health:
            return member.health
        if member.linked_at is None:
            return self.why_not.get(name, "no link")
        if name not in self.state.isr and not self.insync.is_of_session(member):
            return "not the registered session"
        return "" if member.acked >= self.confirm else "behind"

    # -- links

    def on_hello(self, now: float, conn: int, hello: frames.Hello) -> None:
        """Greet a slave, or say why not."""
        context, log = self._context, self._context.log
        session = self.sessions.get(conn)
        if session is None:
            session = MasterSession(conn, context.settings, now)
        session.heard_at = now
        master = Master(
            name=context.node.name,
            epoch=self.epoch,
            family=context.node.family,
            segment_size=context.node.segment_size,
            start=log.start,
            end=log.committed,
            epochs=log.epochs,
            state=self.state,
        )
        refusal = check_hello(hello, master)
        if refusal is None and self.insync.epoch_end is None:
            refusal = Refusal("BUSY", f"epoch {self.epoch} begins")
        point = find_point(hello, master) if refusal is None else refusal
        if isinstance(point, int):
            self._welcome(now, session, hello, master, point)
            return
        if point.reread:
            context.want_read = True
        self.why_not[hello.node] = f"{point.code}: {point.text}"
        context.tell("slave-refused", "warning", node=hello.node, code=point.code, why=point.text)
        error = frames.HelloErr(self.epoch, hello.session, point.code, point.text)
        context.do(commands.Send(conn, error))
        self._drop(conn, point.text, now)

    def _welcome(
        self, now: float, session: MasterSession, hello: frames.Hello, master: Master, point: int
    ) -> None:
        context, log, conn = self._context, self._context.log, session.conn
        start = min(max(hello.border, log.start), point)
        if log.border_at_or_below(start) != start or log.border_at_or_below(point) != point:
            text = f"no batch begins at {start} or {point} here"
            context.tell("slave-refused", "alarm", node=hello.node, code="DIVERGED", why=text)
            error = frames.HelloErr(self.epoch, hello.session, "DIVERGED", text)
            context.do(commands.Send(conn, error))
            self._drop(conn, text, now)
            return
        older = self.links.get(hello.node)
        if older is not None and older != conn:
            self._drop(older, "a newer link of the same node", now)
        session.greet(hello, point)
        self.sessions[conn] = session
        self.links[hello.node] = conn
        member = self.insync.members[hello.node]
        member.greeted(hello.session)
        member.heard_at = now
        offer = session.offer(master, (start, log.chain_crc(start, point)), self.confirm)
        context.do(commands.Send(conn, offer))

    def on_message(self, now: float, conn: int, message: frames.Message) -> None:
        """Take what a slave sent."""
        session = self.sessions.get(conn)
        if isinstance(message, frames.Hello):
            if session is not None and not (session.may_greet and session.node == message.node):
                self._drop(conn, f"HELLO of {message.node} while {session.state.value}", now)
                return
            self.on_hello(now, conn, message)
            return
        if session is None:
            self._drop(conn, f"{type(message).__name__} before HELLO", now)
            return
        session.heard_at = self.insync.members[session.node].heard_at = now
        match message:
            case frames.Ack():
                self.on_ack(now, session, message)
            case frames.Ready():
                self._on_ready(now, session, message)
            case frames.Nack():
                self._on_nack(now, session, message)
            case frames.Bye():
                self._on_bye(now, session, message)
            case frames.Ping():
                pong = frames.Pong(self.epoch, session.session, message.nonce)
                self._context.do(commands.Send(conn, pong))
            case frames.Pong():
                pass
            case _:
                self._drop(conn, f"{type(message).__name__} from a slave", now)

    def _on_ready(self, now: float, session: MasterSession, ready: frames.Ready) -> None:
        why = session.on_ready(ready, now)
        member = self.insync.members.get(session.node)
        if why is not None or member is None:
            self._drop(session.conn, why or "no replica of the group", now)
            return
        member.linked_at = now
        member.level_at = now
        member.mark_end, member.mark_at = self._context.log.committed, now
        self.why_not.pop(session.node, None)
        self._context.tell("slave-streams", node=session.node, offset=ready.end)
        self._context.do(commands.Changed())
        self._ship(session)
        self._show_revision(now)

    def on_ack(self, now: float, session: MasterSession, ack: frames.Ack) -> None:
        """An acknowledgement: move the confirm offset, send what the window now allows."""
        why = session.on_ack(ack, self.epoch)
        member = self.insync.members.get(session.node)
        if why is not None or member is None:
            self._context.tell("odd-acknowledgement", "warning", node=session.node, why=why)
            self._drop(session.conn, why or "no replica of the group", now)
            return
        member.received = ack.end
        member.flushed = min(ack.flushed, ack.end)
        member.confirm = ack.confirm
        member.acked = max(member.acked, self.quality_of(ack))
        if ack.revision > member.revision:
            member.revision = ack.revision
        if ack.health != member.health:
            member.health = ack.health
            self._tick_at = now
        member.progressed(now, self._context.log.committed)
        self._ship(session)
        self.advance(now)

    def quality_of(self, ack: frames.Ack) -> int:
        """Return what an acknowledgement is worth by the quality in force."""
        durable = self._context.settings.ack == "durable"
        return min(ack.flushed, ack.end) if durable else ack.end

    def _on_nack(self, now: float, session: MasterSession, nack: frames.Nack) -> None:
        why = session.on_nack(nack)
        if why is None and self._context.log.border_at_or_below(nack.start) != nack.start:
            why = f"NACK of {nack.start}, where no batch begins"
        if why is not None:
            self._drop(session.conn, why, now)
            return
        self._context.tell("batch-refused", "warning", node=session.node, offset=nack.start)
        self._context.do(commands.Verify(session.conn, nack.start, nack.length))

    def on_verified(self, now: float, conn: int, start: int, what: str | None) -> None:
        """Our own copy of a batch that a slave refused is good (None), or ``what`` is wrong."""
        session = self.sessions.get(conn)
        if session is None or not session.streaming:
            return
        if what is None:
            # Of a frame of several batches the good ones before it were not stored either.
            session.rewind(session.acked)
            self._ship(session)
            return
        session.own_copy_bad()
        self._context.tell("own-copy-damaged", "alarm", offset=start, what=what)
        if len(self.state.isr) > 1 or self.state.elr:
            # Others hold everything that was confirmed; alone, this damaged log is still the best.
            self._context.damage = f"batch at {start}: {what}"

    def _on_bye(self, now: float, session: MasterSession, bye: frames.Bye) -> None:
        member = self.insync.members.get(session.node)
        text = f"{bye.code}: {bye.text}"
        if member is not None and bye.code in ("disk-full", "quarantined"):
            member.health = text
        self.why_not[session.node] = text
        self._context.tell("slave-left", "warning", node=session.node, why=text)
        self._drop(session.conn, text, now)
        self._tick_at = now

    def _drop(self, conn: int, why: str, now: float) -> None:
        self._context.do(commands.Close(conn, why))
        self.on_closed(now, conn, why)

    def on_closed(self, now: float, conn: int, why: str) -> None:
        """A link is gone."""
        session = self.sessions.pop(conn, None)
        if session is None:
            return
        session.end()
        del self.links[session.node]
        self.why_not.setdefault(session.node, why)
        member = self.insync.members.get(session.node)
        if member is not None:
            member.linked_at = None
            member.lost_at = now
        self._context.do(commands.Changed())

    # -- batches

    def stream(self, now: float) -> None:
        """Batches were appended: send them to everybody whose window has room, and confirm."""
        for session in self.sessions.values():
            self._ship(session)
        if self.insync.is_alone:  # with others nothing moves before one of them acknowledges
            self.advance(now)

    def _ship(self, session: MasterSession) -> None:
        start = session.next_ship(self._context.log.committed)
        if start is not None:
            self._context.do(commands.Ship(session.conn, start))

    def on_shipped(self, now: float, conn: int, end: int) -> None:
        """One frame went out; more may follow."""
        session = self.sessions.get(conn)
        if session is None:
            return
        session.shipped(end, self.confirm, self.state.revision, now)
        self._ship(session)
        if self._notice_at is not None and not any(map(self._is_stale, self.sessions.values())):
            self._notice_at = None  # the batches have told it

    def frame_at(
        self,
        session: MasterSession,
        offset: int,
        time_ms: int,
        *,
        entries: bytes = b"",
        payload: memoryview | bytes = b"",
    ) -> frames.Append:
        """Return an APPEND at ``offset``; without entries it is a notice."""
        log = self._context.log
        return frames.Append(
            epoch=self.epoch,
            session=session.session,
            offset=offset,
            prev_epoch=epoch_before(log.epochs, offset),
            confirm=self.confirm,
            end=log.committed,
            time_ms=time_ms,
            revision=self.state.revision,
            tag=self.state.tag,
            entries=entries,
            payload=payload,
        )

    # -- confirming

    def advance(self, now: float) -> None:
        """Move the confirm offset as far as it may go and release who waited for it."""
        context, waiters = self._context, self.waiters
        own = context.own_end()
        confirm = self.insync.confirm(own, self.confirm)
        if confirm > self.confirm:
            self.confirm = confirm
            context.do(commands.Confirm(confirm))
            if released := waiters.release(CONFIRMED, confirm):
                context.do(commands.Release(tuple(released)))
            if self.sessions and self._notice_at is None:
                self._notice_at = now + context.settings.confirm_notice_seconds
        if waiters.waits_for(REPLICATED):
            reached = min(own, self.insync.one_slave())
            if released := waiters.release(REPLICATED, reached):
                context.do(commands.Release(tuple(released)))
        if self.handover is not None:
            self._look_at_handover(now)

    def on_flushed(self, now: float) -> None:
        """More of our own log is on the disk."""
        self._open(now)
        if released := self.waiters.release(FLUSHED, self._context.log.flushed):
            self._context.do(commands.Release(tuple(released)))
        if self._context.role.state is not Role.STARTING:
            self.advance(now)

    def _is_stale(self, session: MasterSession) -> bool:
        return session.told < self.confirm or session.shown < self.state.revision

    def _send_notices(self) -> None:
        self._notice_at = None
        for session in list(self.sessions.values()):
            caught_up = session.next >= self._context.log.committed
            if session.streaming and self._is_stale(session) and caught_up:
                self._context.do(commands.Ship(session.conn, session.next))

    # -- switchover

    def hand_over(self, now: float, handover: Handover) -> None:
        """Begin a switchover; refused at once when it cannot be quick."""
        why = self._why_no_handover(handover.to)
        if why is not None:
            self._context.do(commands.Answer(handover.request, why[0], why[1]))
            return
        self._context.role.move(RoleInput.TRANSFER)
        self.handover = handover
        self._context.tell("switchover", to=handover.to, by=handover.who)
        self._context.do(commands.Changed())
        self._notice_at = now
        self._look_at_handover(now)

    def _why_no_handover(self, to: str) -> tuple[str, str] | None:
        if self._context.role.state is not Role.ACTIVE:
            return "not-enough-in-sync", f"the master is {self._context.role.state.value}"
        member = self.insync.members.get(to)
        if member is None or to not in self.state.isr:
            return "not-in-sync", f"{to} is not a slave of the in-sync set: {self.names}"
        if self.insync.proposal is not None:
            return "busy", "the in-sync set is being changed"
        behind = self._context.log.committed - member.acked
        if member.linked_at is None or behind > self._context.settings.transfer_lag_bytes_max:
            return "not-in-sync", f"{to} is {behind} bytes behind"
        return None

    def is_level(self, to: str) -> bool:
        """Whether the target has all, knows that all is confirmed, and nothing waits."""
        member, end = self.insync.members.get(to), self._context.log.end
        if member is None or member.linked_at is None or self.confirm != end:
            return False
        return member.received == end and member.confirm == end

    def _look_at_handover(self, now: float) -> None:
        handover = self.handover
        if handover is None or handover.asked:
            return
        if self.is_level(handover.to):
            handover.asked = True
        elif now >= handover.until:
            self._give_up_handover("timeout", f"{handover.to} was not level in time")

    def transfer_op(self) -> Transfer | None:
        """Return the operation that ends this reign in favour of another, once it is due."""
        handover = self.handover
        if handover is None or not handover.asked:
            return None
        return Transfer(
            self._context.node.name, self.session, self.epoch, handover.to, handover.who
        )

    def transfer_refused(self, code: str, text: str) -> None:
        """The register says no for certain: go on as master."""
        self._give_up_handover(code, text)

    def _give_up_handover(self, code: str, text: str) -> None:
        handover, self.handover = self.handover, None
        if handover is None:
            return
        self._context.do(commands.Answer(handover.request, code, text))
        if self._context.role.state is Role.TRANSFERRING:
            self._context.role.move(RoleInput.TRANSFER_OVER)
        self._context.tell("switchover-over", "warning", to=handover.to, code=code, why=text)
        self._context.do(commands.Changed())

    # -- the end

    def end(self, why: str, *, done: bool) -> None:
        """The reign is over. ``done``: it ended by a switchover of ours."""
        context = self._context
        if left := self.waiters.drain():
            context.do(commands.GiveUp(tuple(left)))
        handover, self.handover = self.handover, None
        if handover is not None:
            code = "ok" if done else "unknown"
            context.do(commands.Answer(handover.request, code, why))
        for conn, session in list(self.sessions.items()):
            bye = frames.Bye(self.epoch, session.session, "role-changed", why[:500])
            context.do(commands.Send(conn, bye))
            context.do(commands.Close(conn, why))
        self.sessions.clear()
        self.links.clear()
        context.do(commands.DropToken())
        context.tell("stepped-down", "warning", epoch=self.epoch, why=why)

    # -- time

    def on_tick(self, now: float) -> None:
        """Look at links, heartbeats, notices, the epoch record and the switchover."""
        if self._notice_at is not None and now >= self._notice_at:
            self._send_notices()
        if now < self._tick_at:
            return
        if (slept := now - self._tick_at) > SLEPT_SECONDS:
            self._forgive_sleep(now, slept)
        self._tick_at = now + TICK_SECONDS
        if self.insync.epoch_end is None and not self._epoch_asked:
            self._ask_epoch()
        for conn, session in list(self.sessions.items()):
            if session.is_silent(now):
                self._drop(conn, f"{session.node} said nothing for too long", now)
            elif session.owes_word(now) and session.node:
                self._nonce += 1
                session.said_at = now
                ping = frames.Ping(self.epoch, session.session, self._nonce)
                self._context.do(commands.Send(conn, ping))
        for member in self.insync.members.values():
            member.progressed(now, self._context.log.committed)
            if member.name in self.state.isr:
                self.insync.forgive(member, now)
        self._look_at_handover(now)

    def _forgive_sleep(self, now: float, slept: float) -> None:
        """This process stood still: what slaves said meanwhile has not been read yet."""
        self._context.tell("slept", "warning", seconds=round(slept, 3))
        for session in self.sessions.values():
            session.heard_at = min(now, session.heard_at + slept)
        for member in self.insync.members.values():
            member.slept(now, slept)

    def next_deadline(self) -> float:
        """Return when `on_tick` has something to do."""
        if self._notice_at is not None and self._notice_at < self._tick_at:
            return self._notice_at
        return self._tick_at
