"""A slave at work: dial the master, shake hands, cut if needed, store what comes, acknowledge.

Lives as long as one (leader, epoch); the core makes a new one for the next. Invariants:

* an acknowledgement is given for what is stored with its entries, never before, and only after the
  revision that the master showed is on our disk;
* an APPEND before READY, of another epoch or of another session changes nothing;
* our confirm offset follows the master's, at most to our own end;
* a log that is full says so, leaves, and comes back by itself.

Units: bytes, seconds. Not here: the checks themselves (``slave_session``), files, sockets.
Sources: replication.md G.7 and G.19, protocol.md 8 and 9.
"""

from __future__ import annotations

from math import inf

from replication import commands, frames, slave_session
from replication.context import COMPARED, Context
from replication.group_state import GroupState
from replication.pacing import Backoff
from replication.register_ops import Annotate
from replication.roles import SLAVE_SESSION, Following, FollowingInput, Machine
from replication.settings import CHAIN_CHECK_BYTES, FEATURES, VERSION
from storage import Token

SLOW_RETRY_SECONDS = 5.0
"""Pause before asking again a master that cannot help until a person acts."""

FULL_RETRY_SECONDS = 1.0
"""Pause before a full log tries again; space does not come back in milliseconds."""


class FollowingMaster:
    """See the module.

    Attributes:
        leader: The master's name. ``epoch``: its epoch.
        why: Why the link does not stream; empty when it does.
        heard_at: When the master was heard in this epoch; None if never.
    """

    def __init__(self, context: Context, state: GroupState) -> None:
        assert state.leader is not None
        self._context = context
        self.leader = state.leader
        self.leader_session = state.leader_session
        self.epoch = state.epoch
        self.machine: Machine[Following, FollowingInput] = Machine(SLAVE_SESSION)
        self.conn: int | None = None
        self.why = "connecting"
        self.health = ""
        self.heard_at: float | None = None
        self._link_at = 0.0
        self._redial_at = 0.0
        self._backoff = Backoff(
            context.settings.redial_seconds,
            context.settings.redial_seconds_max,
            context.jitter,
        )
        self.master_end = 0
        self.master_confirm = 0
        self._need_revision = 0
        self._said: frames.Ack | None = None
        self._nacked = False
        self._confirm = 0

    @property
    def streaming(self) -> bool:
        """Whether batches flow."""
        return self.machine.state is Following.STREAMING

    def is_of(self, state: GroupState) -> bool:
        """Whether ``state`` names the same master in the same epoch."""
        same = (self.leader, self.leader_session, self.epoch)
        return same == (state.leader, state.leader_session, state.epoch)

    # -- the link

    def begin(self, now: float) -> None:
        """Make the log ours to receive into and dial."""
        context = self._context
        context.do(commands.TakeToken(Token("slave", self.epoch, context.session)))
        self._dial(now)

    def _dial(self, now: float) -> None:
        self.conn = self._context.next_conn()
        self._link_at = now
        self._said = None
        self._nacked = False
        self._context.do(commands.Dial(self.conn, self.leader))

    def on_dialed(self, now: float) -> None:
        """The link stands: say who we are."""
        self._link_at = now
        self.machine.move(FollowingInput.DIALED)
        self._hello()

    def _hello(self) -> None:
        context, log = self._context, self._context.log
        below = min(context.compared, log.end - CHAIN_CHECK_BYTES)
        hello = frames.Hello(
            epoch=context.promise.epoch,
            session=context.session,
            node=context.node.name,
            store=context.node.store,
            start=log.start,
            end=log.end,
            flushed=log.flushed,
            confirm=log.confirm,
            border=log.border_at_or_below(max(log.start, below)),
            epochs=tuple(log.epochs),
            register_id=context.promise.register_id,
            revision=context.promise.revision,
            tag=context.promise.tag,
            family=context.node.family,
            segment_size=context.node.segment_size,
            least_version=VERSION,
            version=VERSION,
            features=FEATURES,
        )
        assert self.conn is not None
        context.do(commands.Send(self.conn, hello))

    def on_closed(self, now: float, why: str) -> None:
        """The link ended, or a dial found nobody: try again after a pause."""
        self.conn = None
        self.why = self.why if self.health else why
        if self.machine.can(FollowingInput.END):
            if self.machine.state is Following.CUTTING:
                return  # the cut goes on; on_cut finds no link and dials
            self.machine.move(FollowingInput.END)
        self._redial_at = now + self._backoff.pause()

    def _leave(self, now: float, code: str | None, text: str, pause: float | None = None) -> None:
        """End the link from our side and say why, unless ``code`` is None."""
        assert self.conn is not None, "whoever leaves has a link"
        if code is not None:
            bye = frames.Bye(self.epoch, self._context.session, code, text[:500])
            self._context.do(commands.Send(self.conn, bye))
        self._context.do(commands.Close(self.conn, text))
        self.why = text
        self.on_closed(now, text)
        if pause is not None:
            self._redial_at = now + pause

    def end(self, why: str) -> None:
        """This mastership is over; the log is no longer ours to write."""
        if self.conn is not None:
            bye = frames.Bye(self.epoch, self._context.session, "role-changed", why[:500])
            self._context.do(commands.Send(self.conn, bye))
            self._context.do(commands.Close(self.conn, why))
            self.conn = None
        self._context.do(commands.DropToken())

    # -- frames

    def on_message(self, now: float, message: frames.Message) -> None:
        """Take what the master sent."""
        self._link_at = now
        match message:
            case frames.Append():
                self._on_append(now, message)
            case frames.HelloOk():
                self._on_hello_ok(now, message)
            case frames.HelloErr():
                self._on_hello_err(now, message)
            case frames.Ping():
                self._on_ping(now, message)
            case frames.Pong():
                pass
            case frames.Bye():
                self._leave(now, None, f"{self.leader} closed: {message.code} {message.text}")
                self._context.want_read = True
            case _:
                self._leave(now, "odd", f"{type(message).__name__} from a master")

    def _own(self) -> slave_session.Own:
        context, log = self._context, self._context.log
        return slave_session.Own(
            epoch=context.promise.epoch,
            session=context.session,
            leader=self.leader,
            start=log.start,
            end=log.end,
            confirm=log.confirm,
            epochs=log.epochs,
        )

    def _on_hello_ok(self, now: float, ok: frames.HelloOk) -> None:
        context = self._context
        if self.machine.state is not Following.HANDSHAKE:
            self._leave(now, "odd", f"HELLO_OK while {self.machine.state.value}")
            return
        assert context.newest is not None
        chain = self._own_chain(ok.chain_start, ok.point)
        verdict = slave_session.judge_hello_ok(ok, self._own(), context.newest, chain)
        match verdict:
            case slave_session.Drop(why):
                self._leave(now, "drop", why)
            case slave_session.Divergence(what):
                self._leave(now, "quarantined", what)
                context.damage = f"differs from {self.leader}: {what}"
            case _:
                self._agreed(now, ok, verdict.point)

    def _own_chain(self, start: int, point: int) -> int | None:
        log = self._context.log
        if not log.start <= start <= point <= log.end:
            return None
        if log.border_at_or_below(start) != start or log.border_at_or_below(point) != point:
            return None
        return log.chain_crc(start, point)

    def _agreed(self, now: float, ok: frames.HelloOk, point: int) -> None:
        context, end = self._context, self._context.log.end
        self.master_end, self.master_confirm = ok.end, ok.confirm
        if point < end:
            self.machine.move(FollowingInput.AHEAD)
            context.cutting = True
            self.why = f"cutting {end - point} bytes that {self.leader} never had"
            own_last = context.log.last_epoch
            later = [epoch.epoch for epoch in ok.epochs if epoch.epoch > own_last]
            row = later[0] if later else self.epoch
            note = Annotate(context.node.name, row, lost=end - point)
            context.notes.append(note)
            context.tell("log-cut", "warning", to=point, bytes=end - point, master=self.leader)
            context.do(commands.Cut(point))
            return
        self.machine.move(FollowingInput.EQUAL)
        context.compared = COMPARED
        self.why = ""
        self._backoff.reset()
        self.heard_at = now
        assert self.conn is not None
        ready = frames.Ready(self.epoch, context.session, point)
        context.do(commands.Send(self.conn, ready))
        context.tell("following", master=self.leader, epoch=self.epoch, offset=point)
        context.do(commands.Changed())
        self._ack()

    def on_cut(self, now: float) -> None:
        """The log is cut and durable: shake hands again, everything is checked anew."""
        if self.machine.state is not Following.CUTTING:
            return
        if self.conn is None:
            self.machine.move(FollowingInput.END)
            self._redial_at = now
            return
        self.machine.move(FollowingInput.CUT)
        self._hello()

    def _on_hello_err(self, now: float, error: frames.HelloErr) -> None:
        context = self._context
        if self.machine.state is not Following.HANDSHAKE:
            self._leave(now, "odd", f"HELLO_ERR while {self.machine.state.value}")
            return
        text = f"{self.leader} refuses: {error.code} {error.text}"
        pause = None
        # Words that condemn a log count in the epoch of the handshake alone: another epoch is
        # another master's, whose log was never compared with ours.
        foreign = error.epoch != self.epoch and error.code in ("DIVERGED", "RESEED")
        if foreign or error.code in ("FENCED", "NEWER_EPOCH", "NOT_MASTER", "UNKNOWN_REPLICA"):
            context.want_read = True
        elif error.code == "DIVERGED":
            context.damage = text
        elif error.code == "RESEED":
            assert context.newest is not None
            if context.newest.counts(context.node.name):
                context.damage = text
            else:
                context.tell("reseed-comes-later", "alarm", master=self.leader, text=error.text)
                pause = SLOW_RETRY_SECONDS
        elif error.code != "BUSY":
            context.tell("handshake-refused", "alarm", master=self.leader, text=text)
            pause = SLOW_RETRY_SECONDS
        self._leave(now, "refused", text, pause)

    def _on_ping(self, now: float, ping: frames.Ping) -> None:
        if ping.epoch == self.epoch:
            self.heard_at = now
        assert self.conn is not None
        pong = frames.Pong(self.epoch, self._context.session, ping.nonce)
        self._context.do(commands.Send(self.conn, pong))
        if self.streaming:
            self._ack()

    # -- batches

    def _on_append(self, now: float, append: frames.Append) -> None:
        context = self._context
        if not self.streaming:
            return  # before READY nothing is taken
        log = context.log
        own = slave_session.Place(context.promise.epoch, context.session, log.end)
        if append.entries or append.offset != own.end:
            if self._nacked and append.offset > own.end and append.epoch == self.epoch:
                return  # sent before the master heard of the damaged one
            why = slave_session.judge_append(append, own, log.last_epoch)
            if why is not None:
                self._leave(now, "gap", why)
                return
        elif not slave_session.is_of_epoch(append, own) or append.session != own.session:
            self._leave(now, "gap", f"APPEND of epoch {append.epoch}, session {append.session}")
            return
        if not self._take_revision(append):
            self._leave(now, "register", f"another revision {append.revision} than ours")
            return
        self.heard_at = now
        self.master_end = append.end
        if append.entries:
            assert self.conn is not None
            context.do(commands.Receive(self.conn, append))
        else:
            self._follow_confirm(append.confirm)
            self._ack()

    def _take_revision(self, append: frames.Append) -> bool:
        context = self._context
        if append.revision == context.promise.revision:
            return append.tag == context.promise.tag
        if append.revision > max(context.promise.revision, self._need_revision):
            self._need_revision = append.revision
            context.want_revision = (append.revision, append.tag)
        return True

    def on_received(self, append: frames.Append) -> None:
        """The batches are stored, with their entries."""
        self._nacked = False
        self.health = ""
        self._follow_confirm(append.confirm)
        if self._context.settings.ack == "durable":
            self._context.do(commands.Flush())
        self._ack()

    def _follow_confirm(self, confirm: int) -> None:
        self.master_confirm = max(self.master_confirm, confirm)
        log = self._context.log
        confirm = min(confirm, log.end)
        if confirm > log.confirm:
            self._confirm = confirm  # the log knows it once the command below is carried out
            self._context.do(commands.Confirm(confirm))

    def on_bad_batch(self, now: float, start: int, length: int, reason: str) -> None:
        """A batch came damaged: ask for it once more, ignore what was sent behind it."""
        assert self.conn is not None
        if start != self._context.log.end:
            # The good batches before it are stored; the master learns that from the answer.
            self._ack()
        self._nacked = True
        nack = frames.Nack(self.epoch, self._context.session, start, length, reason[:500])
        self._context.do(commands.Send(self.conn, nack))
        self._context.tell("batch-damaged", "warning", offset=start, length=length, what=reason)

    def on_refused(self, now: float, why: str) -> None:
        """The store does not take the batches: begin anew with a handshake."""
        self._leave(now, "gap", why)

    def on_full(self, now: float, why: str) -> None:
        """No space is left: say so, leave, come back by itself."""
        self.health = f"disk full: {why}"
        self._context.tell("disk-full", "alarm", what=why)
        self._leave(now, "disk-full", self.health, FULL_RETRY_SECONDS)

    def on_flushed(self) -> None:
        """More is on the disk."""
        if self._context.settings.ack == "durable":
            self._ack()

    def on_promised(self) -> None:
        """A promise is on the disk; an answer may have waited for it."""
        self._ack()

    def may_ack(self) -> bool:
        """Whether the revision that the master showed is on our disk."""
        return self._context.promise.revision >= self._need_revision

    def _ack(self) -> None:
        if not self.streaming or self.conn is None or not self.may_ack():
            return
        context, log = self._context, self._context.log
        ack = frames.Ack(
            epoch=self.epoch,
            session=context.session,
            end=log.end,
            flushed=log.flushed,
            confirm=max(self._confirm, log.confirm),
            revision=context.promise.revision,
            health=self.health,
        )
        if ack != self._said:
            self._said = ack
            context.do(commands.Send(self.conn, ack))

    # -- time

    def on_tick(self, now: float) -> None:
        """Close a silent link, dial after a pause."""
        state = self.machine.state
        if state is Following.WAITING:
            if now >= self._redial_at:
                self.machine.move(FollowingInput.REDIAL)
                self._dial(now)
        elif state is not Following.CUTTING and now >= self._silent_at():
            self._leave(now, "silence", f"{self.leader} said nothing for too long")

    def _silent_at(self) -> float:
        return self._link_at + self._context.settings.silence_seconds

    def next_deadline(self) -> float:
        """Return when `on_tick` has something to do."""
        if self.machine.state is Following.WAITING:
            return self._redial_at
        if self.machine.state is Following.CUTTING:
            return inf  # the end of the cut is an event of its own
        return self._silent_at()
