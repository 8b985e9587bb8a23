"""The master's links to its slaves: who may continue, what each is sent, what each has.

A link begins with a slave's HELLO, is refused, offered a point or given a seed, and streams whole
batches until it ends. Here is what concerns one slave. What follows for the group, the confirm
offset above all, is decided by the leadership (``leading``), after every acknowledgement that
counts.

Units: bytes, seconds. Not here: the state of one link (``session``), the in-sync set
(``in_sync``), whether a HELLO may continue (``peer_checks``). Rules: docs/protocol.md R38 to R45,
R53, R57.
"""

from __future__ import annotations

from replication.core import commands, messages
from replication.core.context import Context
from replication.core.master.in_sync import InSyncSet
from replication.core.master.seeding import Seeds
from replication.core.master.session import MasterSession
from replication.core.peer_checks import (
    Master,
    Refusal,
    chain_start,
    check_hello,
    epoch_before,
    find_point,
)
from replication.core.roles import SendingState

TICK_SECONDS = 0.1
"""How often a master checks its links and its set; every limit it checks is far larger."""

SLEPT_SECONDS = 1.0
"""A tick this late means that this process was stopped, not its slaves."""


class SlaveLinks:
    """See the module.

    Attributes:
        sessions: Links by number. ``links``: number of the link by slave.
        why_not: Why a slave has no link, or none that streams, by name; for people.
        notice_at: When slaves hear of a confirm offset that no batch carried; None: they know it.
    """

    def __init__(self, context: Context, insync: InSyncSet, now: float) -> None:
        self._context = context
        self.insync = insync
        self.sessions: dict[int, MasterSession] = {}
        self.links: dict[str, int] = {}
        self.why_not: dict[str, str] = {}
        self.notice_at: float | None = None
        self._seeds = Seeds(context, insync.epoch)
        self._tick_at = now
        self._nonce = 0
        self._sure_from = 0

    # -- the handshake

    def on_hello(self, now: float, conn: int, hello: messages.Hello) -> None:
        """Answer a slave's HELLO: accept or refuse it."""
        context, log = self._context, self._context.log
        session = self.sessions.get(conn)
        if session is None:
            session = MasterSession(conn, context.settings, now)
        session.heard_at = now
        master = Master(
            name=context.node.name,
            epoch=self.insync.epoch,
            family=context.node.family,
            segment_size=context.node.segment_size,
            start=log.start,
            end=log.committed,
            epochs=log.epochs,
            state=self.insync.state,
            acknowledged=self.insync.must_hold(hello.node),
        )
        refusal = check_hello(hello, master)
        if refusal is None and self.insync.epoch_end is None:
            refusal = Refusal("BUSY", f"epoch {self.insync.epoch} begins")
        point = find_point(hello, master) if refusal is None else refusal
        if isinstance(point, int):
            self._welcome(now, session, hello, master, point)
            return
        if point.code == "RESEED" and hello.seed_from is not None:
            self.insync.members[hello.node].heard_at = now  # retention waits for it
            self.why_not[hello.node] = "begins again: it lacks what retention deleted here"
            why = self._seeds.ask(conn, hello, hello.seed_from)
            if why:
                self.drop(conn, why, now)
            return
        if point.reread:
            context.want_read = True
        self.why_not[hello.node] = f"{point.code}: {point.text}"
        level = "alarm" if point.code == "INCOMPLETE" else "warning"
        context.tell("slave-refused", level, node=hello.node, code=point.code, why=point.text)
        error = messages.HelloErr(
            self.insync.epoch, hello.session, point.code, point.text, newest=point.newest
        )
        context.do(commands.Send(conn, error))
        self.drop(conn, point.text, now)

    def _welcome(
        self, now: float, session: MasterSession, hello: messages.Hello, master: Master, point: int
    ) -> None:
        context, log, conn = self._context, self._context.log, session.conn
        start = chain_start(hello, point, log, context.node.segment_size)
        # R9: batches have the same borders on all nodes, so a point that is no border here proves a
        # difference.
        if log.border_at_or_below(start) != start or log.border_at_or_below(point) != point:
            text = f"no batch begins at {start} or {point} here"
            context.tell("slave-refused", "alarm", node=hello.node, code="DIVERGED", why=text)
            error = messages.HelloErr(self.insync.epoch, hello.session, "DIVERGED", text)
            context.do(commands.Send(conn, error))
            self.drop(conn, text, now)
            return
        older = self.links.get(hello.node)
        if older is not None and older != conn:
            self.drop(older, "a newer link of the same node", now)
        session.greet(hello, point)
        session.asked = self._nonce  # READY will answer all PINGs up to this one
        self.sessions[conn] = session
        self.links[hello.node] = conn
        member = self.insync.members[hello.node]
        member.greeted(hello.session)
        if not self.insync.must_hold(hello.node):
            member.held = 0  # not a member any more: it may continue with less
        member.heard_at = now
        offer = session.offer(master, (start, log.chain_crc(start, point)), self.insync.confirmed)
        context.do(commands.Send(conn, offer))

    def on_seed(self, now: float, conn: int, data: bytes | None) -> None:
        """Handle the seed of `commands.MakeSeed`; None: the log changed meanwhile."""
        why = self._seeds.on_made(conn, data)
        if why:
            self.drop(conn, why, now)

    def why_behind(self, name: str, now: float) -> str:
        """Return why a replica is not level or not in the in-sync set, for people."""
        return self.insync.why_behind(name, now, self.why_not.get(name, "no link"))

    # -- what slaves say

    def on_message(self, now: float, conn: int, message: messages.Message) -> bool:
        """Handle a message of a slave.

        Returns:
            Whether an acknowledgement counts: the confirm offset may move, then `ship` is due.
        """
        session = self.sessions.get(conn)
        if isinstance(message, messages.Hello):
            if session is not None and not (session.may_greet and session.node == message.node):
                self.drop(conn, f"HELLO of {message.node} while {session.state.value}", now)
            else:
                self.on_hello(now, conn, message)
            return False
        if session is None:
            self.drop(conn, f"{type(message).__name__} before HELLO", now)
            return False
        session.heard_at = self.insync.members[session.node].heard_at = now
        match message:
            case messages.Ack():
                return self._on_ack(now, session, message)
            case messages.Ready():
                self._on_ready(now, session, message)
            case messages.Nack():
                self._on_nack(now, session, message)
            case messages.Bye():
                self._on_bye(now, session, message)
            case messages.Ping():
                pong = messages.Pong(self.insync.epoch, session.session, message.nonce)
                self._context.do(commands.Send(conn, pong))
            case messages.Pong():
                session.on_pong(message.nonce, now)
            case _:
                self.drop(conn, f"{type(message).__name__} from a slave", now)
        return False

    def _on_ready(self, now: float, session: MasterSession, ready: messages.Ready) -> None:
        why = session.on_ready(ready, now)
        member = self.insync.members.get(session.node)
        if why is not None or member is None:
            self.drop(session.conn, why or "no replica of the group", now)
            return
        session.pong = max(session.pong, session.asked)  # READY answers our offer
        member.linked_at = now
        member.level_at = now
        # Its lag begins here: the time without a link is judged by `lost_at`.
        member.mark_end, member.mark_at = self._context.log.committed, now
        self.why_not.pop(session.node, None)
        self._context.tell("slave-streams", node=session.node, offset=ready.end)
        self._context.do(commands.Changed())
        self._ship(session)
        self.show_revision(now)

    def _on_ack(self, now: float, session: MasterSession, ack: messages.Ack) -> bool:
        """Apply an acknowledgement; return whether it counts."""
        why = session.on_ack(ack, self.insync.epoch)
        member = self.insync.members.get(session.node)
        if why is not None or member is None:
            self._context.tell("odd-acknowledgement", "warning", node=session.node, why=why)
            self.drop(session.conn, why or "no replica of the group", now)
            return False
        member.received = ack.end
        member.flushed = min(ack.flushed, ack.end)
        member.confirm = ack.confirm
        member.acked = max(member.acked, self.quality_of(ack))
        member.held = max(member.held, member.acked)
        session.answers.counted(member.acked, now)
        if ack.revision > member.revision:
            member.revision = ack.revision
        # The tick, which looks at who must leave, is due now: writes wait for a member with a bad
        # disk.
        if ack.health != member.health:
            member.health = ack.health
            self._tick_at = now
        member.progressed(now, self._context.log.committed)
        return True

    def quality_of(self, ack: messages.Ack) -> int:
        """Return the end that an acknowledgement proves, by the quality in force (R27)."""
        durable = self._context.quality == "durable"
        return min(ack.flushed, ack.end) if durable else ack.end

    def _on_nack(self, now: float, session: MasterSession, nack: messages.Nack) -> None:
        why = session.on_nack(nack)
        if why is None and self._context.log.border_at_or_below(nack.start) != nack.start:
            why = f"NACK of {nack.start}, where no batch begins"
        if why is not None:
            self.drop(session.conn, why, now)
            return
        self._context.tell("batch-refused", "warning", node=session.node, offset=nack.start)
        self._context.do(commands.Verify(session.conn, nack.start, nack.length))

    def _on_bye(self, now: float, session: MasterSession, bye: messages.Bye) -> None:
        member = self.insync.members.get(session.node)
        text = f"{bye.code}: {bye.text}"
        if member is not None and bye.code in ("disk-full", "quarantined"):
            member.health = text
        self.why_not[session.node] = text
        self._context.tell("slave-left", "warning", node=session.node, why=text)
        self.drop(session.conn, text, now)
        self._tick_at = now

    # -- our own copy

    def on_verified(self, now: float, conn: int, start: int, what: str | None, soon: bool) -> None:
        """Our own copy of a batch that a slave refused is good (None), or ``what`` is wrong."""
        session = self.sessions.get(conn)
        if session is None or not session.streaming:
            return
        if what is None:
            # The good batches before it in the same frame may not be stored either.
            session.rewind(session.acked, now)
            self._ship(session)
            return
        session.own_copy_bad()
        self._context.tell("own-copy-damaged", "alarm", offset=start, what=what)
        if not (soon or self.insync.is_only_copy):
            # Others have all confirmed records. The only copy stays: a damaged log beats none.
            self._context.damage = f"batch at {start}: {what}"

    def on_repaired(self, now: float) -> None:
        """Bytes that could not be sent are whole again: the slaves connect again."""
        for conn, session in list(self.sessions.items()):
            if session.state is SendingState.DAMAGED:
                self.drop(conn, "the batch that was damaged here is whole again", now)

    # -- the end of a link

    def drop(self, conn: int, why: str, now: float) -> None:
        """Close a link."""
        self._context.do(commands.Close(conn, why))
        self.on_closed(now, conn, why)

    def on_closed(self, now: float, conn: int, why: str) -> None:
        """A link has ended."""
        self._seeds.forget(conn)
        session = self.sessions.pop(conn, None)
        if session is None:
            return
        session.end()
        del self.links[session.node]
        # The first reason is the cause; the end of the link only followed from it.
        self.why_not.setdefault(session.node, why)
        member = self.insync.members.get(session.node)
        if member is not None:
            member.linked_at = None
            member.lost_at = now
        self._context.do(commands.Changed())

    def overtake(self, now: float, start: int) -> int:
        """See `replica.ReplicaCore.overtake`."""
        why = f"retention deleted bytes that it lacks: the log begins at {start}"
        for conn, session in list(self.sessions.items()):
            if session.kept < start:
                self.drop(conn, why, now)
        behind = [one.name for one in self.insync.members.values() if one.received < start]
        self._context.tell("slaves-overtaken", "alarm", start=start, members=",".join(behind))
        return len(behind)

    def leave(self, why: str) -> None:
        """End every link: the leadership is over (R37)."""
        for conn, session in self.sessions.items():
            bye = messages.Bye(self.insync.epoch, session.session, "role-changed", why[:500])
            self._context.do(commands.Send(conn, bye))
            self._context.do(commands.Close(conn, why))
        self.sessions.clear()
        self.links.clear()

    # -- batches and notices

    def stream(self) -> None:
        """Batches were appended: send them where windows have room."""
        for session in self.sessions.values():
            self._ship(session)

    def ship(self, conn: int) -> None:
        """Send what the window of a link allows, if the link is still there."""
        if (session := self.sessions.get(conn)) is not None:
            self._ship(session)

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
        # Never one of the effective set: each confirmed write would wait for its pause.
        if session.pace.rate and session.node not in self.insync.counted_names():
            session.hold_back(end - append.offset, self._context.log.committed, now)
        self._ship(session)
        if self.notice_at is not None and not self._stale():
            self.notice_at = None  # the batches carried it

    def _frame_at(self, session: MasterSession, offset: int) -> messages.Append:
        log, insync, state = self._context.log, self.insync, self.insync.state
        return messages.Append(
            epoch=insync.epoch, session=session.session, offset=offset,
            prev_epoch=epoch_before(log.epochs, offset), confirm=insync.confirmed,
            end=log.committed, time_ms=0, revision=state.revision, tag=state.tag,
        )  # fmt: skip

    def show_revision(self, now: float) -> None:
        """Send the revision soon: acknowledgements count only if they show it (R29)."""
        revision = self.insync.state.revision
        if any(one.streaming and one.shown < revision for one in self.sessions.values()):
            self.notice_at = now

    def notify_at(self, at: float) -> None:
        """Let slaves hear of the confirm offset at ``at``, unless a batch carries it before."""
        if self.sessions and self.notice_at is None:
            self.notice_at = at

    def _stale(self) -> list[MasterSession]:
        confirm, revision = self.insync.confirmed, self.insync.state.revision
        return [one for one in self.sessions.values() if one.is_stale(confirm, revision)]

    def _send_notices(self) -> None:
        self.notice_at = None
        for session in self._stale():
            # The others hear it with the batches that they still get.
            if session.may_ship and session.next >= self._context.log.committed:
                self._order_frame(session, session.next)

    # -- time

    def is_sure(self, now: float) -> bool:
        """Whether every in-sync slave has been heard since this process last slept (R53)."""
        # After a pause of this process every in-sync member must answer a PING sent since: frames
        # in the sockets' buffers may be older than an election.
        if now - self._tick_at > SLEPT_SECONDS:
            return False
        insync = self.insync
        links = (self.links.get(name) for name in insync.state.isr if name != insync.node)
        return not self._sure_from or all(
            conn is not None and self.sessions[conn].pong >= self._sure_from for conn in links
        )

    def on_tick(self, now: float) -> bool:
        """Send notices that are due; every `TICK_SECONDS` check links and members.

        Returns:
            Whether links and members were checked.
        """
        if self.notice_at is not None and now >= self.notice_at:
            self._send_notices()
        for session in self.sessions.values():
            if session.pace.resumed(now):
                self._ship(session)
        if now < self._tick_at:
            return False
        # Before the links are judged: after a pause of this process all of them would seem silent.
        if (slept := now - self._tick_at) > SLEPT_SECONDS:
            self._forgive_sleep(now, slept)
        self._tick_at = now + TICK_SECONDS
        for conn, session in list(self.sessions.items()):
            if session.is_silent(now):
                self.drop(conn, f"{session.node} said nothing for too long", now)
            elif session.owes_word(now) and session.node:
                self._ping(now, session)
            if session.answers.look(now) and session.node in self.insync.state.isr:
                name, level, facts = session.speed(now)
                self._context.tell(name, level, **facts)
        for member in self.insync.members.values():
            member.progressed(now, self._context.log.committed)
            if member.name in self.insync.state.isr:
                self.insync.forgive(member, now)
        return True

    def _ping(self, now: float, session: MasterSession) -> None:
        self._nonce += 1
        ping = session.ping(self._nonce, self.insync.epoch, now)
        self._context.do(commands.Send(session.conn, ping))

    def _forgive_sleep(self, now: float, slept: float) -> None:
        """This process was stopped: frames of slaves may still be unread, so restart all limits."""
        self._context.tell("slept", "warning", seconds=round(slept, 3))
        self._nonce += 1
        self._sure_from = self._nonce
        for session in self.sessions.values():
            session.heard_at = min(now, session.heard_at + slept)
            session.answers.clear(now)
            self._ping(now, session)
        for member in self.insync.members.values():
            member.slept(now, slept)

    def next_deadline(self) -> float:
        """Return when `on_tick` is due."""
        paused = (one.pace.resume_at for one in self.sessions.values() if one.pace.resume_at)
        due = min(paused, default=self._tick_at)
        return min(due, self._tick_at, self.notice_at or self._tick_at)
