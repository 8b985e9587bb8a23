"""The in-sync set as its master sees it, and the confirm offset that follows from it.

The coordinator's register holds the set; the master proposes changes. While the outcome of a
proposal is unknown both sets count: the *effective* set is the recorded one plus every node of an
unsettled proposal. Only a newer revision settles a proposal: the register compares revisions, so no
copy of it can succeed any more.

The confirm offset is the smallest end acknowledged within the effective set, the master's own
included. It moves only

* while the recorded set has at least ``min_isr`` members,
* from the end of this epoch's first record on,
* by acknowledgements of this epoch and of the member's registered session that show at least the
  revision under which the set was recorded.

Cost: an acknowledgement costs work proportional to the number of members, never of records.

Each check is a method of its own; the simulator removes them one by one.

Units: offsets bytes, times seconds. Not here: sending (``session``), asking the coordinator
(``core``). Rules: docs/protocol.md R27 to R33.
"""

from __future__ import annotations

from collections.abc import Mapping

from replication.register.group_state import GroupState
from replication.register.operations import AlterInSync
from replication.settings import ReplicationSettings


class Member:
    """The master's knowledge of another replica, across its links.

    Attributes:
        session: Of its last accepted HELLO, 0 before.
        acked: End that it acknowledged in this epoch and session, by the quality in force.
        held: Largest end that it acknowledged in this epoch, in any session since it became a
        member.
        revision: Largest revision that its acknowledgements showed.
        level_at: When it last was level with the master.
        linked_at: Since when its link streams; None without a link.
        lost_at: Since when it has no link.
        health: Why it cannot continue; empty if it can.
    """

    __slots__ = (
        "acked", "confirm", "flushed", "health", "heard_at", "held", "left_at", "level_at",
        "linked_at", "lost_at", "mark_at", "mark_end", "name", "pause", "received", "revision",
        "session",
    )  # fmt: skip

    def __init__(self, name: str, now: float) -> None:
        self.name = name
        self.session = 0
        self.acked = 0
        self.held = 0
        self.received = 0
        self.flushed = 0
        self.confirm = 0
        self.revision = 0
        self.mark_end = 0
        self.mark_at = now
        self.level_at = now
        self.linked_at: float | None = None
        self.lost_at = now
        self.heard_at: float | None = None
        self.health = ""
        self.left_at: float | None = None
        self.pause = 0.0

    @property
    def is_away(self) -> bool:
        """Whether it has no streaming link."""
        return self.linked_at is None

    def greeted(self, session: int) -> None:
        """A link of ``session`` begins; acknowledgements of an older session no longer count."""
        # `held` stays: what was acknowledged once must still be there, whichever process answers
        # (R38).
        if session != self.session:
            self.session = session
            self.acked = self.received = self.flushed = 0
            self.revision = 0

    def progressed(self, now: float, end: int) -> None:
        """Update its lag: it is level if it has everything the master had at the last mark."""
        # Level as of the mark, however much came since: so a busy master's member is not late for
        # ever.
        if self.acked >= self.mark_end:
            self.level_at = self.mark_at
            self.mark_end, self.mark_at = end, now
        if self.acked >= end:
            self.level_at = now

    def slept(self, now: float, seconds: float) -> None:
        """The master itself was stopped for ``seconds``: that is not the member's lag."""
        self.level_at = min(now, self.level_at + seconds)
        self.mark_at = min(now, self.mark_at + seconds)
        if self.linked_at is None:
            self.lost_at = min(now, self.lost_at + seconds)


class InSyncSet:
    """See the module.

    Args:
        node: The master.
        state: The group state that made it master.
        settings: Times of joining and leaving.
        now: Clock.
    """

    def __init__(
        self, node: str, state: GroupState, settings: ReplicationSettings, now: float
    ) -> None:
        self.node = node
        self._settings = settings
        self.epoch = state.epoch
        self.session = state.leader_session
        self.state = state
        self.set_revision = state.revision
        self.proposal: AlterInSync | None = None
        self.epoch_end: int | None = None
        self.confirmed = 0
        """The confirm offset; the leadership moves it (`confirm`)."""
        self.members: dict[str, Member] = {}
        self.began = now
        for name in state.followers:
            if name != node:
                self.members[name] = Member(name, now)
        self._others: tuple[Member, ...] = ()
        self.is_quiet = False
        """Every replica is in the recorded set and no proposal is open: only time can change it."""
        self.effective: tuple[str, ...] = ()
        self._remember()

    # -- the recorded and the effective set

    def adopt(self, state: GroupState, now: float) -> None:
        """Apply a newer state of this epoch, which is durable here."""
        # Only a change of set or quality raises the revision that acknowledgements must show: other
        # changes must not stall confirms.
        if self._is_another_set(state):
            self.set_revision = state.revision
        for name in self.state.isr:
            if name not in state.isr and name in self.members:
                self._left(self.members[name], now)
        self.state = state
        for name in state.followers:
            if name != self.node and name not in self.members:
                self.members[name] = Member(name, now)
        for name in [name for name in self.members if name not in state.followers]:
            del self.members[name]
        if self.proposal is not None and self.settles(state, self.proposal):
            self.proposal = None
        self._remember()

    def _is_another_set(self, state: GroupState) -> bool:
        return dict(state.isr) != dict(self.state.isr) or state.ack != self.state.ack

    def settles(self, state: GroupState, proposal: AlterInSync) -> bool:
        """Whether ``state`` settles ``proposal``: with a newer revision every copy of it fails."""
        return state.revision > proposal.revision

    def propose(self, proposal: AlterInSync) -> None:
        """Count a proposal from the moment it is sent (R30)."""
        assert self.proposal is None, "one proposal at a time"
        self.proposal = proposal
        self._remember()

    def counted_names(self) -> set[str]:
        """Names of the effective set: recorded, or proposed with an unknown outcome."""
        names = set(self.state.isr)
        if self.proposal is not None:
            # R30: added nodes count at once, removed ones until recorded (mutants no_maximal,
            # shrink_eager).
            names |= set(self.proposal.add)
        return names

    def _remember(self) -> None:
        names = sorted(self.counted_names() | {self.node})
        self.effective = tuple(names)
        self._others = tuple(self.members[name] for name in names if name in self.members)
        absent = self.members.keys() - self.state.isr.keys() - set(self.state.learners)
        self.is_quiet = self.proposal is None and not absent

    @property
    def is_alone(self) -> bool:
        """Whether the master's own end alone moves the confirm offset."""
        return not self._others

    def _left(self, member: Member, now: float) -> None:
        settings = self._settings
        member.left_at = now
        # A member that goes holds up all writes until it is out of the set: who flaps may do so
        # ever more rarely.
        member.pause = min(member.pause * 2 or settings.rejoin_seconds, settings.rejoin_seconds_max)

    # -- the confirm offset

    @property
    def enough(self) -> bool:
        """Whether the recorded set is large enough to confirm writes."""
        return len(self.state.isr) >= self.state.min_isr

    def confirm(self, own: int, confirm: int) -> int:
        """Return the confirm offset, given the master's own end and the offset so far."""
        # R27: below min_isr nothing is confirmed, whatever was acknowledged (mutant no_minisr).
        if not self.may_confirm():
            return confirm
        least = own
        for member in self._others:
            worth = self.worth(member)
            if worth < least:
                least = worth
        # R2: never back. R28: bytes of earlier epochs count only together with this epoch's record,
        # as in Raft (section 5.4.2 of its paper).
        if least <= confirm or not self.covers_epoch(least):
            return confirm
        return least

    def may_confirm(self) -> bool:
        """Whether enough members are recorded."""
        return self.enough

    def covers_epoch(self, offset: int) -> bool:
        """Whether ``offset`` is at or beyond the end of this epoch's first record (R28)."""
        return self.epoch_end is not None and offset >= self.epoch_end

    def worth(self, member: Member) -> int:
        """Return the end up to which a member's acknowledgements count."""
        # R29: an ack of a former session, or one given before the member knew the set, proves
        # nothing (mutants no_session_check, no_revision_in_ack).
        if not self.is_of_session(member) or not self.shows_revision(member):
            return 0
        return member.acked

    def is_of_session(self, member: Member) -> bool:
        """Whether the acknowledgements are of the registered session."""
        return member.session > 0 and member.session == self.state.session_of(member.name)

    def shows_revision(self, member: Member) -> bool:
        """Whether the member has fsynced the revision under which the set is recorded."""
        return member.revision >= self.set_revision

    def one_slave(self) -> int:
        """Return the largest end that one slave has."""
        # The revision is not compared, unlike in `worth`: no confirm rests on a second copy.
        full = (one for one in self.members.values() if not self.is_learner(one.name))
        return max((one.acked for one in full if self.is_of_session(one)), default=0)

    def is_learner(self, name: str) -> bool:
        """Whether ``name`` copies the log and counts nowhere (R70)."""
        return name in self.state.learners

    def must_hold(self, name: str) -> int:
        """Return the end that a member has acknowledged and must still have; 0 for non-members."""
        member = self.members.get(name)
        counted = member is not None and name in (*self.state.isr, *self.state.elr)
        return member.held if member is not None and counted else 0

    def needed(self, now: float, absent_seconds: float) -> list[int]:
        """Return the offset from which each member heard within ``absent_seconds`` needs bytes.

        A member not heard yet counts as heard when this leadership began.
        """
        return [
            # Not heard yet: it may need everything that is kept.
            member.received if member.session > 0 else 0
            for member in self.members.values()
            if now - (self.began if member.heard_at is None else member.heard_at) < absent_seconds
        ]

    # -- joining and leaving

    def change(self, now: float, end: int, confirm: int) -> tuple[dict[str, int], list[str]]:
        """Return who should join (name to session) and who should leave now."""
        # R31: one proposal at a time, so that at most two sets count.
        if self.proposal is not None or self.epoch_end is None:
            return {}, []
        leaving = [
            m.name for m in self._others if m.name in self.state.isr and self.must_leave(m, now)
        ]
        # Leaving first and alone: it is what unblocks writes.
        if leaving:
            return {}, leaving
        joining = {
            member.name: member.session
            for _, member in sorted(self.members.items())
            if member.name not in self.state.isr and self.may_join(member, now, confirm)
        }
        return joining, []

    def may_join(self, member: Member, now: float, confirm: int) -> bool:
        """Whether ``member`` has everything that was, or may still be, confirmed without it."""
        return (
            not self.is_learner(member.name)
            and self.is_of_session(member)
            and self.is_healthy(member, now)
            and self.has_confirmed(member, confirm)
            and self.has_epoch(member)
        )

    def has_confirmed(self, member: Member, confirm: int) -> bool:
        """Whether it has everything that this master confirmed."""
        return member.acked >= confirm

    def has_epoch(self, member: Member) -> bool:
        """Whether it has everything that earlier masters, even suspended ones, may confirm."""
        # R32: an earlier master may confirm anything below this record until its members promise
        # this epoch (mutant no_co_expand).
        return self.epoch_end is not None and member.acked >= self.epoch_end

    def is_healthy(self, member: Member, now: float) -> bool:
        """Whether its link is stable for long enough, its disk is good and its pause is over."""
        if member.linked_at is None or member.health:
            return False
        if not self.enough:  # writes are refused: any pause prolongs that
            return True
        if member.left_at is not None and now < member.left_at + member.pause:
            return False
        return now - member.linked_at >= self._settings.join_seconds

    @property
    def is_only_copy(self) -> bool:
        """Whether no other node is known to have all confirmed records."""
        return len(self.state.isr) <= 1 and not self.state.elr

    def why_behind(self, name: str, now: float, no_link: str) -> str:
        """Return why a replica is not level or not in the in-sync set, for people."""
        member = self.members.get(name)
        if member is None:
            return "not a replica"
        if member.health:
            return member.health
        if member.linked_at is None:
            return no_link
        if name not in self.state.isr and not self.is_of_session(member):
            return "not the registered session"
        if member.acked < self.confirmed:
            return "behind"
        return "" if name in self.state.isr else self._why_waiting(member, now)

    def _why_waiting(self, member: Member, now: float) -> str:
        if self.is_learner(member.name):
            return "a learner: it copies the log and counts nowhere"
        if not self.has_epoch(member):
            return "behind"
        assert member.linked_at is not None
        linked = member.linked_at + self._settings.join_seconds
        left = member.left_at + member.pause if member.left_at is not None else now
        if left > max(now, linked):
            return f"joins in {left - now:.0f} s: it has left the in-sync set before"
        return f"joins in {linked - now:.1f} s" if now < linked else "joining"

    def must_leave(self, member: Member, now: float) -> bool:
        """Whether ``member`` delays all confirms: no link, no progress, or a bad disk."""
        settings = self._settings
        if member.health:
            return True
        if member.linked_at is None:
            grace = settings.disconnect_seconds
            if member.lost_at <= self.began:  # never linked: it must first find the new master
                grace = max(grace, settings.lag_seconds_max)
            return now - member.lost_at >= grace
        # A member is late if it was not level for this long, not if it lags some bytes: a busy
        # master is always ahead.
        # Or the link: after a pause it first has to catch up, which is no fault of the new link.
        return now - max(member.level_at, member.linked_at) >= settings.lag_seconds_max

    def forgive(self, member: Member, now: float) -> None:
        """Reset the rejoin pause of a member that has been in sync for long."""
        # Longer than the longest pause, or a member that flaps at just that pace would be forgiven
        # each time.
        long = 4 * self._settings.rejoin_seconds_max
        if member.left_at is not None and now - member.left_at > long:
            member.left_at, member.pause = None, 0.0

    def proposal_for(self, add: Mapping[str, int], remove: list[str]) -> AlterInSync:
        """Return the operation that changes the recorded set."""
        return AlterInSync(
            self.node,
            self.session,
            self.epoch,
            self.state.revision,
            dict(sorted(add.items())),
            tuple(sorted(remove)),
        )
