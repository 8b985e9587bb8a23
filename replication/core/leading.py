"""One leadership: from the epoch record to stepping down.

Created once an election is durable here, discarded when the leadership ends. It appends and flushes
the epoch record before it answers anything, streams whole batches to every slave, moves the confirm
offset, proposes changes of the in-sync set, and hands over on request.

Invariants:

* nothing is confirmed before the epoch record is, nor beyond the acknowledgements of the effective
in-sync set (``in_sync``);
* an appended batch is sent to every streaming slave in the same call;
* every waiting append is answered exactly once: released, expired, or unknown at the end.

Units: bytes, seconds. Not here: who may become master (``core``). Rules:
docs/protocol.md R27 to R37.
"""

from __future__ import annotations

from replication.core import commands, messages
from replication.core.context import Context
from replication.core.in_sync import InSyncSet
from replication.core.master_session import MasterSession
from replication.core.peer_checks import (
    Master,
    Refusal,
    chain_start,
    check_hello,
    epoch_before,
    find_point,
)
from replication.core.roles import Role, RoleInput, SendingState
from replication.core.seeding import Seeds
from replication.core.switchover import Switchover
from replication.core.waiters import CONFIRMED, FLUSHED, REPLICATED, Waiters
from replication.register.group_state import GroupState
from replication.register.operations import AlterInSync, Annotate
from storage import Token

TICK_SECONDS = 0.1
"""How often a master checks its links and its set; every limit it checks is far larger."""

SLEPT_SECONDS = 1.0
"""A tick this late means that this process was stopped, not its slaves."""


class Leading:
    """See the module.

    Attributes:
        epoch, session: Of this leadership.
        insync: The in-sync set and its confirm offset.
        sessions: Links by number. ``links``: number of the link by slave.
        seeds: Seeds of slaves that begin again.
        switchover: To another node, if one was requested.
        superseded: A newer epoch that a member has promised; 0 without one.
    """

    def __init__(self, context: Context, state: GroupState, waiters: Waiters, now: float) -> None:
        self._context = context
        self.state = state
        self.epoch = state.epoch
        self.session = state.leader_session
        self._token = Token("master", self.epoch, self.session)
        self.insync = InSyncSet(context.node.name, state, context.settings, now)
        self.sessions: dict[int, MasterSession] = {}
        self.links: dict[str, int] = {}
        self.seeds = Seeds(context, self.epoch)
        self.waiters = waiters
        self.switchover = Switchover(context, self.insync)
        self.confirm = context.log.confirm
        self.why_not: dict[str, str] = {}
        self._tick_at = now
        self._notice_at: float | None = None
        self._epoch_asked = False
        self._nonce = 0
        self._sure_from = 0
        self.superseded = 0
        self._superseded_at = now
        self.names = ",".join(self.insync.effective)

    # -- the beginning

    def begin(self, now: float) -> None:
        """Become the log's writer, rebuild the pending layer, append the epoch record (R35)."""
        context = self._context
        context.do(commands.TakeToken(self._token))
        context.do(commands.RebuildPending())
        self._ask_epoch()

    def _ask_epoch(self) -> None:
        self._epoch_asked = True
        state = self.state
        self._context.do(
            commands.AppendEpoch(self._token, self.epoch, self.session, state.reason, state.by)
        )

    def on_epoch_appended(self, now: float, end: int | None) -> None:
        """The epoch record ends at ``end``; None: no space for it, retried by `on_tick`."""
        self._epoch_asked = False
        if end is None:
            return
        self.insync.epoch_end = end
        self.stream(now)
        self._open(now)

    def _open(self, now: float) -> None:
        """Become active once the epoch record is flushed."""
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
        """Apply a newer state of this leadership, which is durable here."""
        before = self.insync.effective
        changed = state.ack != self.state.ack
        self.state = state
        self.insync.adopt(state, now)
        if changed:
            self._change_quality(now)
        for name in [name for name in self.links if name not in self.insync.members]:
            self._drop(self.links[name], "removed from the group", now)
        role = self._context.role
        if role.state in (Role.ACTIVE, Role.TRANSFERRING) and not self.insync.enough:
            self.switchover.too_few()
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

    def _change_quality(self, now: float) -> None:
        """Count only acknowledgements of the new quality from now on."""
        # A slave may show the new revision before it has read the state: a HELLO names its quality.
        for conn in list(self.sessions):
            self._drop(conn, f"the group acknowledges what is {self.state.ack} from now on", now)
        for member in self.insync.members.values():
            member.acked = member.flushed if self.state.ack == "durable" else member.acked

    def _show_revision(self, now: float) -> None:
        """Send the revision soon: acknowledgements count only if they show it (R29)."""
        if any(s.streaming and s.shown < self.state.revision for s in self.sessions.values()):
            self._notice_at = now

    def propose(self, now: float) -> AlterInSync | None:
        """Return a change of the set that is due; it counts from now on (R30)."""
        insync = self.insync
        if self._context.role.state in (Role.STARTING, Role.TRANSFERRING):
            return None
        add, remove = insync.change(now, self._context.log.committed, self.confirm)
        if not add and not remove:
            return None
        proposal = insync.proposal_for(add, remove)  # repeated unchanged until settled (R31)
        insync.propose(proposal)
        self.names = ",".join(insync.effective)
        for name in remove:
            self._context.tell(
                "leaves-in-sync", "warning", node=name, why=self.why_behind(name, now)
            )
        return proposal

    @property
    def is_only_copy(self) -> bool:
        """Whether no other node is known to have all confirmed records."""
        return len(self.state.isr) <= 1 and not self.state.elr

    @property
    def is_quiet(self) -> bool:
        """Whether only time can make a question to the register due."""
        return self.switchover.under_way is None and self.insync.is_quiet

    def why_behind(self, name: str, now: float) -> str:
        """Return why a replica is not level or not in the in-sync set, for people."""
        return self.insync.why_behind(name, now, self.confirm, self.why_not.get(name, "no link"))

    # -- links

    def on_hello(self, now: float, conn: int, hello: messages.Hello) -> None:
        """Answer a slave's HELLO: accept or refuse it."""
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
            acknowledged=self.insync.must_hold(hello.node),
        )
        refusal = check_hello(hello, master)
        if refusal is None and self.insync.epoch_end is None:
            refusal = Refusal("BUSY", f"epoch {self.epoch} begins")
        point = find_point(hello, master) if refusal is None else refusal
        if isinstance(point, int):
            self._welcome(now, session, hello, master, point)
            return
        if point.code == "RESEED" and hello.seed_from is not None:
            self.insync.members[hello.node].heard_at = now  # retention waits for it
            self.why_not[hello.node] = "begins again: it lacks what retention deleted here"
            why = self.seeds.ask(conn, hello, hello.seed_from)
            if why:
                self._drop(conn, why, now)
            return
        if point.reread:
            context.want_read = True
        self.why_not[hello.node] = f"{point.code}: {point.text}"
        level = "alarm" if point.code == "INCOMPLETE" else "warning"
        context.tell("slave-refused", level, node=hello.node, code=point.code, why=point.text)
        error = messages.HelloErr(
            self.epoch, hello.session, point.code, point.text, newest=point.newest
        )
        context.do(commands.Send(conn, error))
        self._drop(conn, point.text, now)

    def _welcome(
        self, now: float, session: MasterSession, hello: messages.Hello, master: Master, point: int
    ) -> None:
        context, log, conn = self._context, self._context.log, session.conn
        start = chain_start(hello, point, log, context.node.segment_size)
        if log.border_at_or_below(start) != start or log.border_at_or_below(point) != point:
            text = f"no batch begins at {start} or {point} here"
            context.tell("slave-refused", "alarm", node=hello.node, code="DIVERGED", why=text)
            error = messages.HelloErr(self.epoch, hello.session, "DIVERGED", text)
            context.do(commands.Send(conn, error))
            self._drop(conn, text, now)
            return
        older = self.links.get(hello.node)
        if older is not None and older != conn:
            self._drop(older, "a newer link of the same node", now)
        session.greet(hello, point)
        session.asked = self._nonce  # READY will answer all PINGs up to this one
        self.sessions[conn] = session
        self.links[hello.node] = conn
        member = self.insync.members[hello.node]
        member.greeted(hello.session)
        if not self.insync.must_hold(hello.node):
            member.held = 0  # not a member any more: it may continue with less
        member.heard_at = now
        offer = session.offer(master, (start, log.chain_crc(start, point)), self.confirm)
        context.do(commands.Send(conn, offer))

    def on_seed(self, now: float, conn: int, data: bytes | None) -> None:
        """Handle the seed of `commands.MakeSeed`; None: the log changed meanwhile."""
        why = self.seeds.on_made(conn, data)
        if why:
            self._drop(conn, why, now)

    def on_message(self, now: float, conn: int, message: messages.Message) -> None:
        """Handle a message of a slave."""
        session = self.sessions.get(conn)
        if isinstance(message, messages.Hello):
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
            case messages.Ack():
                self.on_ack(now, session, message)
            case messages.Ready():
                self._on_ready(now, session, message)
            case messages.Nack():
                self._on_nack(now, session, message)
            case messages.Bye():
                self._on_bye(now, session, message)
            case messages.Ping():
                pong = messages.Pong(self.epoch, session.session, message.nonce)
                self._context.do(commands.Send(conn, pong))
            case messages.Pong():
                session.pong = max(session.pong, message.nonce)
            case _:
                self._drop(conn, f"{type(message).__name__} from a slave", now)

    def _on_ready(self, now: float, session: MasterSession, ready: messages.Ready) -> None:
        why = session.on_ready(ready, now)
        member = self.insync.members.get(session.node)
        if why is not None or member is None:
            self._drop(session.conn, why or "no replica of the group", now)
            return
        session.pong = max(session.pong, session.asked)  # READY answers our offer
        member.linked_at = now
        member.level_at = now
        member.mark_end, member.mark_at = self._context.log.committed, now
        self.why_not.pop(session.node, None)
        self._context.tell("slave-streams", node=session.node, offset=ready.end)
        self._context.do(commands.Changed())
        self._ship(session)
        self._show_revision(now)

    def on_ack(self, now: float, session: MasterSession, ack: messages.Ack) -> None:
        """Apply an acknowledgement: move the confirm offset, send what the window allows."""
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
        member.held = max(member.held, member.acked)
        if ack.revision > member.revision:
            member.revision = ack.revision
        if ack.health != member.health:
            member.health = ack.health
            self._tick_at = now
        member.progressed(now, self._context.log.committed)
        # Confirm first: the next frame then carries it, and no notice is needed.
        self.advance(now)
        self._ship(session)

    def quality_of(self, ack: messages.Ack) -> int:
        """Return the end that an acknowledgement proves, by the quality in force (R27)."""
        durable = self._context.quality == "durable"
        return min(ack.flushed, ack.end) if durable else ack.end

    def _on_nack(self, now: float, session: MasterSession, nack: messages.Nack) -> None:
        why = session.on_nack(nack)
        if why is None and self._context.log.border_at_or_below(nack.start) != nack.start:
            why = f"NACK of {nack.start}, where no batch begins"
        if why is not None:
            self._drop(session.conn, why, now)
            return
        self._context.tell("batch-refused", "warning", node=session.node, offset=nack.start)
        self._context.do(commands.Verify(session.conn, nack.start, nack.length))

    def on_repaired(self, now: float) -> None:
        """Bytes that could not be sent are whole again: the slaves connect again."""
        for conn, session in list(self.sessions.items()):
            if session.state is SendingState.DAMAGED:
                self._drop(conn, "the batch that was damaged here is whole again", now)

    def on_verified(self, now: float, conn: int, start: int, what: str | None, soon: bool) -> None:
        """Our own copy of a batch that a slave refused is good (None), or ``what`` is wrong."""
        session = self.sessions.get(conn)
        if session is None or not session.streaming:
            return
        if what is None:
            # The good batches before it in the same frame may not be stored either.
            session.rewind(session.acked)
            self._ship(session)
            return
        session.own_copy_bad()
        self._context.tell("own-copy-damaged", "alarm", offset=start, what=what)
        if not (soon or self.is_only_copy):
            # Others have all confirmed records. The only copy stays: a damaged log beats none.
            self._context.damage = f"batch at {start}: {what}"

    def _on_bye(self, now: float, session: MasterSession, bye: messages.Bye) -> None:
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
        """A link has ended."""
        self.seeds.forget(conn)
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
        """Batches were appended: send them where windows have room, and confirm."""
        for session in self.sessions.values():
            self._ship(session)
        if self.insync.is_alone:  # else an acknowledgement must come first
            self.advance(now)

    def _ship(self, session: MasterSession) -> None:
        if (start := session.next_ship(self._context.log.committed)) is not None:
            self._order_frame(session, start)

    def _order_frame(self, session: MasterSession, start: int) -> None:
        session.shipping = True
        self._context.do(commands.Ship(session.conn, self._frame_at(session, start)))

    def on_shipped(self, now: float, conn: int, append: messages.Append, end: int) -> None:
        """The frame ``append`` was sent with the batches up to ``end``; more may follow."""
        session = self.sessions.get(conn)
        if session is None:
            return
        session.shipped(end, append.confirm, append.revision, now)
        self._ship(session)
        if self._notice_at is not None and not any(map(self._is_stale, self.sessions.values())):
            self._notice_at = None  # the batches carried it

    def _frame_at(self, session: MasterSession, offset: int) -> messages.Append:
        log = self._context.log
        return messages.Append(
            epoch=self.epoch,
            session=session.session,
            offset=offset,
            prev_epoch=epoch_before(log.epochs, offset),
            confirm=self.confirm,
            end=log.committed,
            time_ms=0,
            revision=self.state.revision,
            tag=self.state.tag,
        )

    # -- retention

    def overtake(self, now: float, start: int) -> int:
        """See `replica.ReplicaCore.overtake`."""
        why = f"retention deleted bytes that it lacks: the log begins at {start}"
        for conn, session in list(self.sessions.items()):
            if session.kept < start:
                self._drop(conn, why, now)
        behind = [one.name for one in self.insync.members.values() if one.received < start]
        self._context.tell("slaves-overtaken", "alarm", start=start, members=",".join(behind))
        return len(behind)

    # -- signs of a newer master

    def on_newer_epoch(self, now: float, node: str, epoch: int) -> None:
        """A member has promised a newer epoch: acknowledge nothing until the register answers.

        Only the register ends a leadership: a HELLO can be forged, and because an epoch is never
        led twice (R15), trusting it would leave the group without a master.
        """
        if not self.superseded:
            self._context.tell("newer-epoch-seen", "warning", node=node, epoch=epoch)
            self._context.do(commands.Changed())
        self.superseded, self._superseded_at = max(self.superseded, epoch), now

    def on_confirmed_by_register(self, now: float, asked_at: float) -> None:
        """The register answered a question sent at ``asked_at``: this node still leads."""
        if self.superseded and asked_at >= self._superseded_at:
            self.superseded = 0
            self._context.do(commands.Changed())
            self.on_flushed(now)

    def is_sure(self, now: float) -> bool:
        """Whether this node has no sign that another node may lead by now (R53)."""
        # After a pause of this process every in-sync member must answer a PING sent since: frames
        # in the sockets' buffers may be older than an election.
        if self.superseded or now - self._tick_at > SLEPT_SECONDS:
            return False
        links = (self.links.get(name) for name in self.state.isr if name != self.insync.node)
        return not self._sure_from or all(
            conn is not None and self.sessions[conn].pong >= self._sure_from for conn in links
        )

    # -- confirming

    def advance(self, now: float) -> None:
        """Move the confirm offset as far as allowed and release the appends that waited."""
        context, waiters = self._context, self.waiters
        if self.superseded:
            return
        own = context.own_end()  # by the same quality as members (R27)
        confirm = self.insync.confirm(own, self.confirm)
        if confirm > self.confirm:
            self.confirm = confirm
            context.do(commands.Confirm(confirm))
            if released := waiters.release(CONFIRMED, confirm):
                context.do(commands.Release(tuple(released)))
            if self.sessions and self._notice_at is None:
                self._notice_at = now + context.settings.confirm_notice_seconds
        if waiters.waits_for(REPLICATED):
            reached = min(own, self.insync.one_slave())  # our own copy counts, too
            if released := waiters.release(REPLICATED, reached):
                context.do(commands.Release(tuple(released)))
        self.switchover.look(now, self.confirm)

    def on_flushed(self, now: float) -> None:
        """More of our own log is flushed."""
        self._open(now)
        if self.superseded:
            return
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
            if session.may_ship and self._is_stale(session) and caught_up:
                self._order_frame(session, session.next)

    def on_register_heard(self, now: float) -> None:
        """The coordinator answered a call: a switchover may have waited for that (R36)."""
        if self.switchover.on_register_heard(now):
            # The target must learn the confirm offset, and no append will carry it.
            self._notice_at = now
            self.switchover.look(now, self.confirm)

    # -- the end

    def end(self, why: str, *, done: bool) -> None:
        """The leadership is over (R37). ``done``: by a switchover of this node."""
        context = self._context
        if left := self.waiters.drain():
            context.do(commands.GiveUp(tuple(left)))  # R46: unknown, not failed
        self.switchover.end(why, done=done)
        for conn, session in list(self.sessions.items()):
            bye = messages.Bye(self.epoch, session.session, "role-changed", why[:500])
            context.do(commands.Send(conn, bye))
            context.do(commands.Close(conn, why))
        self.sessions.clear()
        self.links.clear()
        context.do(commands.DropToken())
        context.tell("stepped-down", "warning", epoch=self.epoch, why=why)

    # -- time

    def on_tick(self, now: float) -> None:
        """Check links, heartbeats, notices, the epoch record and the switchover."""
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
                self._ping(now, session)
        for member in self.insync.members.values():
            member.progressed(now, self._context.log.committed)
            if member.name in self.state.isr:
                self.insync.forgive(member, now)
        self.switchover.look(now, self.confirm)

    def _ping(self, now: float, session: MasterSession) -> None:
        self._nonce += 1
        session.said_at = now
        ping = messages.Ping(self.epoch, session.session, self._nonce)
        self._context.do(commands.Send(session.conn, ping))

    def _forgive_sleep(self, now: float, slept: float) -> None:
        """This process was stopped: frames of slaves may still be unread, so restart all limits."""
        self._context.tell("slept", "warning", seconds=round(slept, 3))
        self._nonce += 1
        self._sure_from = self._nonce
        for session in self.sessions.values():
            session.heard_at = min(now, session.heard_at + slept)
            self._ping(now, session)
        for member in self.insync.members.values():
            member.slept(now, slept)

    def next_deadline(self) -> float:
        """Return when `on_tick` is due."""
        if self._notice_at is not None and self._notice_at < self._tick_at:
            return self._notice_at
        return self._tick_at
