"""A slave at work: dial the master, handshake, cut if needed, store batches, acknowledge.

One object per (leader, epoch); the core makes a new one for the next. Invariants:

* only batches stored with their entries are acknowledged, and only after the revision that the
master showed is durable here (R29);
* an APPEND before READY, of another epoch or of another session changes nothing;
* the confirm offset here follows the master's, at most to the end of this log;
* a node whose disk is full reports it, leaves, and retries by itself.

Units: bytes, seconds. Not here: the checks themselves (``peer_checks``), files, sockets.
Rules: docs/protocol.md R38 to R44.
"""

from __future__ import annotations

from math import inf

from replication.core import commands, messages, peer_checks
from replication.core.context import Context
from replication.core.peer_checks import part_around
from replication.core.roles import SLAVE_SESSION, FollowingInput, FollowingState, Machine
from replication.pacing import Backoff
from replication.register.group_state import GroupState
from replication.register.operations import Annotate
from replication.settings import (
    CHAIN_CHECK_BYTES,
    DISK_FULL,
    FEATURES,
    SEED_BYTES_MAX,
    SEED_SECONDS,
    VERSION,
)
from storage import Token

SLOW_RETRY_SECONDS = 5.0
"""Pause before dialing a master again that refused until an operator acts."""

BEHIND = ("FENCED", "NEWER_EPOCH", "NOT_MASTER", "OTHER_QUALITY", "UNKNOWN_REPLICA")
"""Refusals after which one of the two must read the group state."""

FULL_RETRY_SECONDS = 1.0
"""Pause before a full log tries again; space does not come back in milliseconds."""


class Following:
    """See the module's text.

    Attributes:
        leader: The master's name. ``epoch``: its epoch.
        why: Why the link does not stream; empty if it does.
        heard_at: When the master was last heard in this epoch; None if never.
    """

    def __init__(self, context: Context, state: GroupState) -> None:
        assert state.leader is not None
        self._context = context
        self.leader = state.leader
        self.leader_session = state.leader_session
        self.epoch = state.epoch
        self._token = Token("slave", self.epoch, context.session)
        self.machine: Machine[FollowingState, FollowingInput] = Machine(SLAVE_SESSION)
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
        self._agreed_at = 0
        self._said: messages.Ack | None = None
        self._nacked = False
        self._confirm = 0
        self._seed: bytearray | None = None
        """The received part of the seed; None while this log is kept."""
        self._part: int | None = None
        self._asked_whether_member = False

    @property
    def streaming(self) -> bool:
        """Whether batches are received."""
        return self.machine.state is FollowingState.STREAMING

    def is_of(self, state: GroupState) -> bool:
        """Whether ``state`` names the same master in the same epoch, and this node belongs to it.

        A node without a session was removed from the group, or must register again.
        """
        same = (self.leader, self.leader_session, self.epoch)
        belongs = self._context.session > 0
        return belongs and same == (state.leader, state.leader_session, state.epoch)

    # -- the link

    def begin(self, now: float) -> None:
        """Become the writer of the log and dial the master."""
        self._context.do(commands.TakeToken(self._token))
        self._dial(now)

    def _dial(self, now: float) -> None:
        self.conn = self._context.next_conn()
        self._link_at = now
        # The new link's master has heard nothing yet: what was said on the last one must be said
        # again.
        self._said = None
        self._nacked = False
        if self._seed is not None:
            self._seed = bytearray()  # pieces of another link's seed do not fit this one's
        self._context.do(commands.Dial(self.conn, self.leader))

    def on_dialed(self, now: float) -> None:
        """The link is up: say HELLO."""
        self._link_at = now
        self.machine.move(FollowingInput.DIALED)
        self._hello()

    def _hello(self) -> None:
        context, log = self._context, self._context.log
        newest = log.last_epoch if self._part is None else self._part
        hello = messages.Hello(
            epoch=context.promise.epoch,
            session=context.session,
            node=context.node.name,
            store=context.node.store,
            start=log.start,
            end=log.end,
            flushed=log.flushed,
            confirm=log.confirm,
            # The chain of CRCs needs a border that both sides have: batch borders are equal on all
            # nodes (R9).
            border=log.border_at_or_below(max(log.start, log.end - CHAIN_CHECK_BYTES)),
            epochs=part_around(log.epochs, newest),
            register_id=context.promise.register_id,
            revision=context.promise.revision,
            tag=context.promise.tag,
            family=context.node.family,
            segment_size=context.node.segment_size,
            least_version=VERSION,
            version=VERSION,
            features=FEATURES,
            quality=context.quality,
            seed_from=None if self._seed is None else len(self._seed),
        )
        assert self.conn is not None
        context.do(commands.Send(self.conn, hello))

    def on_closed(self, now: float, why: str) -> None:
        """The link ended, or the dial failed: try again after a pause."""
        self.conn = None
        # A full disk is the reason to show; the end of the link is only what followed from it.
        self.why = self.why if self.health else why
        if self.machine.can(FollowingInput.END):
            if self.machine.state is FollowingState.CUTTING:
                return  # the cut continues; on_cut finds no link and dials
            self.machine.move(FollowingInput.END)
        self._redial_at = now + self._backoff.pause()

    def _leave(self, now: float, code: str | None, text: str, pause: float | None = None) -> None:
        """End the link from our side and say why, unless ``code`` is None."""
        assert self.conn is not None, "leaving needs a link"
        if code is not None:
            bye = messages.Bye(self.epoch, self._context.session, code, text[:500])
            self._context.do(commands.Send(self.conn, bye))
        self._context.do(commands.Close(self.conn, text))
        self.why = text
        self.on_closed(now, text)
        # Only now: `on_closed` has set the usual pause.
        if pause is not None:
            self._redial_at = now + pause

    def end(self, why: str) -> None:
        """This leadership is over: close the link, stop being the log's writer."""
        if self.conn is not None:
            bye = messages.Bye(self.epoch, self._context.session, "role-changed", why[:500])
            self._context.do(commands.Send(self.conn, bye))
            self._context.do(commands.Close(self.conn, why))
            self.conn = None
        self._context.do(commands.DropToken())

    # -- frames

    def on_message(self, now: float, message: messages.Message) -> None:
        """Handle a message of the master."""
        self._link_at = now
        match message:
            case messages.Append():
                self._on_append(now, message)
            case messages.HelloOk():
                self._on_hello_ok(now, message)
            case messages.HelloErr():
                self._on_hello_err(now, message)
            case messages.Seed():
                self._on_seed(now, message)
            case messages.Ping():
                self._on_ping(now, message)
            case messages.Pong():
                pass
            case messages.Bye():
                self._leave(now, None, f"{self.leader} closed: {message.code} {message.text}")
                # A master says BYE because its role is over: who leads now stands in the register.
                self._context.want_read = True
            case _:
                self._leave(now, "odd", f"{type(message).__name__} from a master")

    def _own(self) -> peer_checks.Own:
        context, log = self._context, self._context.log
        return peer_checks.Own(
            epoch=context.promise.epoch,
            session=context.session,
            leader=self.leader,
            start=log.start,
            end=log.end,
            confirm=log.confirm,
            epochs=log.epochs,
        )

    def _on_hello_ok(self, now: float, ok: messages.HelloOk) -> None:
        context = self._context
        if self.machine.state is not FollowingState.HANDSHAKE:
            self._leave(now, "odd", f"HELLO_OK while {self.machine.state.value}")
            return
        assert context.newest is not None
        # Computed here from our own entries: the master's word alone must not cut this log (R40).
        chain = self._own_chain(ok.chain_start, ok.point)
        verdict = peer_checks.judge_hello_ok(ok, self._own(), context.newest, chain)
        match verdict:
            case peer_checks.Drop(why):
                self._leave(now, "drop", why)
            case peer_checks.Divergence(what):
                self._leave(now, "quarantined", what)
                context.damage = f"differs from {self.leader}: {what}"
            case _:
                self._agreed(now, ok, verdict.point)

    def _own_chain(self, start: int, point: int) -> int | None:
        log = self._context.log
        # None equals no CRC: a point that is no border of our own batches is never cut at (R40).
        if not log.start <= start <= point <= log.end:
            return None
        if log.border_at_or_below(start) != start or log.border_at_or_below(point) != point:
            return None
        return log.chain_crc(start, point)

    def _agreed(self, now: float, ok: messages.HelloOk, point: int) -> None:
        context, end = self._context, self._context.log.end
        # With the old part of the epochs the next HELLO would seem to differ from a longer log.
        self._seed = self._part = None
        self.master_end, self.master_confirm = ok.end, ok.confirm
        if point < end:
            self.machine.move(FollowingInput.AHEAD)
            context.cutting = True
            self.why = f"cutting {end - point} bytes that {self.leader} does not have"
            own_last = context.log.last_epoch
            # The first epoch that our log lacks is the one whose election left these bytes behind.
            later = [epoch.epoch for epoch in ok.epochs if epoch.epoch > own_last]
            row = later[0] if later else self.epoch
            note = Annotate(context.node.name, row, lost=end - point)
            context.notes.append(note)
            context.tell("log-cut", "warning", to=point, bytes=end - point, master=self.leader)
            context.do(commands.Cut(point))
            return
        self.machine.move(FollowingInput.EQUAL)
        self._agreed_at = point
        self.why = ""
        # Not when the dial succeeds: a master that accepts and then refuses would be dialed without
        # pause.
        self._backoff.reset()
        self.heard_at = now
        assert self.conn is not None
        ready = messages.Ready(self.epoch, context.session, point)
        context.do(commands.Send(self.conn, ready))
        context.tell("following", master=self.leader, epoch=self.epoch, offset=point)
        context.do(commands.Changed())
        self._ack()

    def on_cut(self, now: float) -> None:
        """The log was cut, durably: repeat the handshake, which checks everything again (R41)."""
        if self.machine.state is not FollowingState.CUTTING:
            return
        if self.conn is None:
            self.machine.move(FollowingInput.END)
            self._redial_at = now
            return
        self.machine.move(FollowingInput.CUT)
        self._hello()

    def _on_hello_err(self, now: float, error: messages.HelloErr) -> None:
        context = self._context
        if self.machine.state is not FollowingState.HANDSHAKE:
            self._leave(now, "odd", f"HELLO_ERR while {self.machine.state.value}")
            return
        text = f"{self.leader} refuses: {error.code} {error.text}"
        pause = None
        # These verdicts on a log count only in the epoch of the handshake: the master of another
        # epoch never compared its log with this one.
        foreign = error.epoch != self.epoch and error.code in ("DIVERGED", "RESEED")
        if foreign or error.code in (
            "FENCED",
            "NEWER_EPOCH",
            "NOT_MASTER",
            "OTHER_QUALITY",
            "UNKNOWN_REPLICA",
        ):
            context.want_read = True
        elif error.code == "PART":
            # At once: nothing is wrong, the history is only longer than a frame.
            self._part, pause = error.newest, 0.0
        elif error.code == "INCOMPLETE":
            # The register must learn it, although the start seemed clean: it removes this node from
            # the sets (R21, R38).
            context.lacking = text
            context.tell("acknowledged-bytes-missing", "alarm", master=self.leader, text=error.text)
        # Nothing proves which of the two logs is right, and a cut could take confirmed records
        # (R40).
        elif error.code == "DIVERGED":
            context.damage = text
        elif error.code == "RESEED":
            assert context.newest is not None
            if not peer_checks.may_begin_again(context.newest, context.node.name):
                # A node that slept, or cannot read the register, may have left the sets since.
                if self._asked_whether_member and not context.want_read:
                    context.damage = text
                elif not self._asked_whether_member:
                    self._asked_whether_member = context.want_read = True
            else:
                # Not a member: everything confirmed is on others, so this log may be deleted (R57).
                context.tell("beginning-again", "warning", master=self.leader, text=error.text)
                self._seed, pause = bytearray(), 0.0
        elif error.code != "BUSY":
            context.tell("handshake-refused", "alarm", master=self.leader, text=text)
            pause = SLOW_RETRY_SECONDS
        self._leave(now, "refused", text, pause)

    def _on_seed(self, now: float, seed: messages.Seed) -> None:
        """Handle a piece of the seed; after the last one this log is deleted."""
        context, have = self._context, self._seed
        ours = (self.epoch, context.session, self.leader)
        # Only in answer to our own HELLO with `seed_from`: a stray seed must not delete a log.
        if self.machine.state is not FollowingState.HANDSHAKE or have is None:
            self._leave(now, "odd", "a seed that was not requested")
            return
        if (seed.epoch, seed.session, seed.leader) != ours:
            self._leave(now, "drop", f"a seed of {seed.leader}, epoch {seed.epoch}")
            return
        # A seed is of one moment: pieces of two would be a state that no log ever had.
        if seed.at != len(have) or not 0 < len(have) + len(seed.payload) <= seed.total:
            self._leave(now, "odd", f"a piece of the seed at {seed.at}, {len(have)} have arrived")
            return
        if seed.total > SEED_BYTES_MAX:
            self._leave(now, "odd", f"a seed of {seed.total} bytes")
            return
        assert context.newest is not None
        if not peer_checks.may_begin_again(context.newest, context.node.name):
            # Never while a member: confirmed records may be nowhere else (R57).
            self._seed = None
            self._leave(now, "drop", "a member does not delete its log")
            return
        have += seed.payload
        self.heard_at = now
        self.why = f"fetching the state of {self.leader}: {len(have)} of {seed.total} bytes"
        if len(have) < seed.total:
            self._hello()
            return
        self.machine.move(FollowingInput.AHEAD)
        context.cutting = True
        self.why = f"beginning again with the log of {self.leader}"
        self._seed = None
        context.do(commands.BeginAgain(bytes(have)))

    def _on_ping(self, now: float, ping: messages.Ping) -> None:
        if ping.epoch == self.epoch:
            self.heard_at = now
        assert self.conn is not None
        pong = messages.Pong(self.epoch, self._context.session, ping.nonce)
        self._context.do(commands.Send(self.conn, pong))
        if self.streaming:
            self._ack()

    # -- batches

    def _on_append(self, now: float, append: messages.Append) -> None:
        context = self._context
        if not self.streaming:
            return  # R42: nothing is accepted before READY
        log = context.log
        own = peer_checks.Place(context.promise.epoch, context.session, log.end)
        if append.entries or append.offset != own.end:
            if self._nacked and append.offset > own.end and append.epoch == self.epoch:
                return  # sent before the master got the NACK
            why = peer_checks.judge_append(append, own, log.last_epoch)
            if why is not None:
                self._leave(now, "gap", why)
                return
        elif not peer_checks.is_of_epoch(append, own) or append.session != own.session:
            self._leave(now, "gap", f"APPEND of epoch {append.epoch}, session {append.session}")
            return
        if not self._take_revision(append):
            self._leave(now, "register", f"another revision {append.revision} than ours")
            return
        self.heard_at = now
        self.master_end = append.end
        if append.entries:
            assert self.conn is not None
            context.do(commands.Receive(self.conn, self._token, append))
        else:
            self._follow_confirm(append.confirm)
            self._ack()

    def _take_revision(self, append: messages.Append) -> bool:
        context = self._context
        # R29: the master counts this slave under this revision; it must be durable before the next
        # acknowledgement. Same number with another tag: a forked register (R14).
        if append.revision == context.promise.revision:
            return append.tag == context.promise.tag
        if append.revision > max(context.promise.revision, self._need_revision):
            self._need_revision = append.revision
            context.want_revision = (append.revision, append.tag)
        return True

    def on_received(self, now: float, append: messages.Append, outcome: commands.Received) -> None:
        """Handle the store's outcome for the batches of ``append``."""
        match outcome:
            case commands.Stored():
                self._on_stored(append)
            case commands.BatchDamaged(start, length, reason):
                self._on_bad_batch(start, length, reason)
            case commands.NoSpace(why):
                self._on_full(now, why)
            case commands.NotTaken(why):  # begin again with a handshake
                self._leave(now, "gap", why)

    def _on_stored(self, append: messages.Append) -> None:
        self._nacked = False
        self.health = ""
        self._follow_confirm(append.confirm)
        # Its acknowledgement counts nothing before the flush, and writers of the master wait for
        # it.
        if self._context.counts_flushed:
            self._context.do(commands.Flush())
        self._ack()

    def _follow_confirm(self, confirm: int) -> None:
        self.master_confirm = max(self.master_confirm, confirm)
        log = self._context.log
        # R1: what the others have confirmed is not confirmed here before it is here.
        confirm = min(confirm, log.end)
        if confirm > log.confirm:
            # The log has it once the command below is executed; the acknowledgement that follows in
            # this event already reports it.
            self._confirm = confirm
            self._context.do(commands.Confirm(confirm))

    def _on_bad_batch(self, start: int, length: int, reason: str) -> None:
        """Request the batch again; batches sent after it are ignored (R43)."""
        assert self.conn is not None
        if start != self._context.log.end:
            # The good batches before it are stored: acknowledge them.
            self._ack()
        self._nacked = True
        nack = messages.Nack(self.epoch, self._context.session, start, length, reason[:500])
        self._context.do(commands.Send(self.conn, nack))
        self._context.tell("batch-damaged", "warning", offset=start, length=length, what=reason)

    def _on_full(self, now: float, why: str) -> None:
        """No space is left: report it, leave, and retry after a pause."""
        self.health = f"{DISK_FULL}: {why}"
        self._context.tell("disk-full", "alarm", what=why)
        self._leave(now, "disk-full", self.health, FULL_RETRY_SECONDS)

    def on_flushed(self) -> None:
        """More of the log is flushed."""
        if self._context.counts_flushed:
            self._ack()

    def on_promised(self) -> None:
        """A promise is durable: an acknowledgement may have waited for it."""
        self._ack()

    def may_ack(self) -> bool:
        """Whether the revision that the master showed is durable here (R29)."""
        return self._context.promise.revision >= self._need_revision

    def _ack(self) -> None:
        if not self.streaming or self.conn is None or not self.may_ack():
            return
        context, log = self._context, self._context.log
        end = log.end
        if context.settings.flush_first:
            # With quality "received" the master counts `end`, so it must not be ahead of the flush.
            # Bytes agreed in the handshake may not be flushed either: acknowledge nothing before.
            end = log.flushed
            if end < self._agreed_at:
                return
        ack = messages.Ack(
            epoch=self.epoch,
            session=context.session,
            end=end,
            flushed=log.flushed,
            confirm=max(self._confirm, log.confirm),
            revision=context.promise.revision,
            health=self.health,
        )
        # The same acknowledgement again moves nothing.
        if ack != self._said:
            self._said = ack
            context.do(commands.Send(self.conn, ack))

    # -- time

    def on_tick(self, now: float) -> None:
        """Close a silent link, dial after a pause."""
        state = self.machine.state
        if state is FollowingState.WAITING:
            if now >= self._redial_at:
                self.machine.move(FollowingInput.REDIAL)
                self._dial(now)
        elif state is not FollowingState.CUTTING and now >= self._silent_at():
            self._leave(now, "silence", f"{self.leader} said nothing for too long")

    def _silent_at(self) -> float:
        # The master needs time to make a seed; until its first piece the link may be silent.
        making = self._seed is not None and not self._seed
        return self._link_at + (SEED_SECONDS if making else self._context.settings.silence_seconds)

    def next_deadline(self) -> float:
        """Return when `on_tick` is due."""
        if self.machine.state is FollowingState.WAITING:
            return self._redial_at
        if self.machine.state is FollowingState.CUTTING:
            return inf  # the end of the cut is an event
        return self._silent_at()
