"""One leadership: from the epoch record to stepping down.

Created once an election is durable here, discarded when the leadership ends. It appends and flushes
the epoch record before it answers anything, moves the confirm offset, proposes changes of the
in-sync set, and hands over on request.

Invariants:

* nothing is confirmed before the epoch record is, nor beyond what the effective in-sync set has;
* an appended batch is sent to every streaming slave in the same call;
* every waiting append is answered exactly once: released, expired, or unknown at the end.

Units: bytes, seconds. Not here: who becomes master (``core``), the links to the slaves
(``slave_links``). Rules: docs/protocol.md R27 to R37.
"""

from __future__ import annotations

from replication.core import commands, messages
from replication.core.context import Context
from replication.core.master.in_sync import InSyncSet
from replication.core.master.slave_links import SlaveLinks
from replication.core.master.switchover import Switchover
from replication.core.master.waiters import CONFIRMED, FLUSHED, REPLICATED, Waiters
from replication.core.roles import Role, RoleInput
from replication.register.group_state import GroupState
from replication.register.operations import AlterInSync, Annotate
from storage import Token


class Leading:
    """See the module.

    Attributes:
        epoch, session: Of this leadership.
        insync: The in-sync set and the confirm offset.
        slaves: The links to the slaves.
        switchover: To another node, if one was requested.
        superseded: A newer epoch that a member has promised; 0 without one.
        names: The effective in-sync set, comma-separated.
    """

    def __init__(self, context: Context, state: GroupState, waiters: Waiters, now: float) -> None:
        self._context = context
        self.epoch = state.epoch
        self.session = state.leader_session
        self._token = Token("master", self.epoch, self.session)
        self.insync = InSyncSet(context.node.name, state, context.settings, now)
        self.insync.confirmed = context.log.confirm
        self.slaves = SlaveLinks(context, self.insync, now)
        self.waiters = waiters
        self.switchover = Switchover(context, self.insync)
        self._epoch_asked = False
        self.superseded = 0
        self._superseded_at = now
        self.names = ",".join(self.insync.effective)

    @property
    def state(self) -> GroupState:
        """The newest state of the group that is durable here."""
        return self.insync.state

    @property
    def confirm(self) -> int:
        """The confirm offset."""
        return self.insync.confirmed

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
        # Before it is flushed here: the slaves' flushes and ours then run at the same time.
        self.stream(now)
        self._open(now)

    def _open(self, now: float) -> None:
        """Become active once the epoch record is flushed."""
        # R35 (mutant active_before_flush): no write is taken in an epoch that a power failure here
        # could still take out of this log.
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
        self.insync.adopt(state, now)
        if changed:
            self._change_quality(now)
        slaves = self.slaves
        for name in [name for name in slaves.links if name not in self.insync.members]:
            slaves.drop(slaves.links[name], "removed from the group", now)
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
        slaves.show_revision(now)
        # A smaller set may confirm at once what its slowest member held up.
        self.advance(now)

    def _change_quality(self, now: float) -> None:
        """Count only acknowledgements of the new quality from now on."""
        # A slave may show the new revision before it has read the state: a HELLO names its quality.
        for conn in list(self.slaves.sessions):
            why = f"the group acknowledges what is {self.state.ack} from now on"
            self.slaves.drop(conn, why, now)
        for member in self.insync.members.values():
            # It may fall below the confirm offset, which stays where it is (R2).
            member.acked = member.flushed if self.state.ack == "durable" else member.acked

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
                "leaves-in-sync", "warning", node=name, why=self.slaves.why_behind(name, now)
            )
        return proposal

    @property
    def is_quiet(self) -> bool:
        """Whether only time can make a question to the register due."""
        return self.switchover.under_way is None and self.insync.is_quiet

    # -- slaves and batches

    def on_message(self, now: float, conn: int, message: messages.Message) -> None:
        """Handle a message of a slave."""
        if self.slaves.on_message(now, conn, message):
            # Confirm first: the next frame then carries it, and no notice is needed.
            self.advance(now)
            self.slaves.ship(conn)

    def stream(self, now: float) -> None:
        """Batches were appended: send them where windows have room, and confirm."""
        self.slaves.stream()
        if self.insync.is_alone:  # else an acknowledgement must come first
            self.advance(now)

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
        # Asked since: an older question may have been answered before the other election.
        if self.superseded and asked_at >= self._superseded_at:
            self.superseded = 0
            self._context.do(commands.Changed())
            # Everything that was held back meanwhile is due now.
            self.on_flushed(now)

    def is_sure(self, now: float) -> bool:
        """Whether this node has no sign that another node may lead by now (R53)."""
        return not self.superseded and self.slaves.is_sure(now)

    # -- confirming

    def advance(self, now: float) -> None:
        """Move the confirm offset as far as allowed and release the appends that waited."""
        context, waiters = self._context, self.waiters
        if self.superseded:
            return
        own = context.own_end()  # by the same quality as members (R27)
        confirm = self.insync.confirm(own, self.confirm)
        if confirm > self.confirm:
            self.insync.confirmed = confirm
            context.do(commands.Confirm(confirm))
            if released := waiters.release(CONFIRMED, confirm):
                context.do(commands.Release(tuple(released)))
            self.slaves.notify_at(now + context.settings.confirm_notice_seconds)
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

    def on_register_heard(self, now: float) -> None:
        """The coordinator answered a call: a switchover may have waited for that (R36)."""
        if self.switchover.on_register_heard(now):
            # The target must learn the confirm offset, and no append will carry it.
            self.slaves.notice_at = now
            self.switchover.look(now, self.confirm)

    # -- the end

    def end(self, why: str, *, done: bool) -> None:
        """The leadership is over (R37). ``done``: by a switchover of this node."""
        context = self._context
        if left := self.waiters.drain():
            context.do(commands.GiveUp(tuple(left)))  # R46: unknown, not failed
        self.switchover.end(why, done=done)
        self.slaves.leave(why)
        context.do(commands.DropToken())
        context.tell("stepped-down", "warning", epoch=self.epoch, why=why)

    # -- time

    def on_tick(self, now: float) -> None:
        """Check links and members, the epoch record and the switchover."""
        if self.slaves.on_tick(now):
            if self.insync.epoch_end is None and not self._epoch_asked:
                self._ask_epoch()
            self.switchover.look(now, self.confirm)

    def next_deadline(self) -> float:
        """Return when `on_tick` is due."""
        return self.slaves.next_deadline()
