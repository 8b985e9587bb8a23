"""Views of a node's role: values for status, metrics, routing and the simulator.

Made at each call; keeps no state. Offsets are bytes, times seconds. ``role`` is one of
``master``, ``slave``, ``fenced``, ``candidate``, ``quarantined``, ``stopped``.
"""

from __future__ import annotations

from dataclasses import dataclass

from replication.core.master.in_sync import Member
from replication.core.master.leading import Leading
from replication.core.master.waiters import CONFIRMED
from replication.core.replica import MASTER_ROLES, ReplicaCore
from replication.core.roles import Role


@dataclass(frozen=True, slots=True)
class PeerView:
    """This node's knowledge of another node; None: unknown to this node.

    Attributes:
        role: ``master``, ``slave``, or ``learner`` (R70).
        acked: Received end, bytes. ``flushed``: flushed end.
        lag_bytes, lag_seconds: Distance to the master's end; time since it was level.
        contact_seconds: Time since it was heard.
        round_trip_seconds: Time from sending until the acknowledgement that counts.
        unacknowledged_bytes: Sent and not acknowledged yet.
        slow: In sync, and so slow that confirmed writes wait for it.
        state: ``streaming``, ``connecting`` ...; ``why`` says why it does not stream or count.
    """

    name: str
    role: str
    acked: int | None
    flushed: int | None
    lag_bytes: int | None
    lag_seconds: float | None
    contact_seconds: float | None
    in_sync: bool
    state: str
    why: str | None
    round_trip_seconds: float | None = None
    unacknowledged_bytes: int | None = None
    slow: bool = False


@dataclass(frozen=True, slots=True)
class RoleView:
    """The role of this node.

    Attributes:
        role, state: See the module; ``state`` is finer, ``why`` is for people.
        epoch: Epoch of the role; the promised one without a role.
        leader: The master, None if unknown.
        in_sync, effective: Recorded and effective in-sync set.
        admission: Code with which a confirmed write would be refused now; None if accepted.
        age_seconds: Age of this node's data: 0 on a master, None if no master was heard.
        quality: Meaning of an acknowledgement in this group.
        sure: A master has no sign that another node may lead by now.
        quarantined: Why the log is quarantined, else None.
    """

    role: str
    state: str
    epoch: int
    leader: str | None
    session: int
    in_sync: tuple[str, ...]
    min_in_sync: int
    effective: tuple[str, ...]
    confirm: int
    end: int
    flushed: int
    peers: tuple[PeerView, ...]
    quarantined: str | None
    admission: str | None
    age_seconds: float | None
    why: str | None
    register_id: str
    revision: int
    sure: bool = True
    quality: str = "received"


def holds(core: ReplicaCore, ack: str, end: int) -> bool:
    """Return whether all below ``end`` is confirmed, or on a slave (``replicated``)."""
    leading = core.leading
    if leading is None:
        return False
    if ack == CONFIRMED:
        return end <= leading.confirm
    # Two copies: our own counts too, and by the same quality (R27).
    return end <= min(core.context.own_end(), leading.insync.one_slave())


def holders(core: ReplicaCore) -> str:
    """Return the names of the nodes that have all confirmed records, comma-separated."""
    return core.leading.names if core.leading is not None else core.context.node.name


def needed(core: ReplicaCore, now: float, absent_seconds: float) -> int | None:
    """Return the lowest log offset that linked or recent slaves still need; None: no such slave.

    A slave is recent if it was heard within ``absent_seconds``.
    """
    leading = core.leading
    if leading is None:
        return None
    linked = (session.kept for session in leading.slaves.sessions.values())
    return min((*linked, *leading.insync.needed(now, absent_seconds)), default=None)


def is_only_copy(core: ReplicaCore) -> bool:
    """Return whether this master is alone in its set: damage then does not end its role."""
    return core.leading is not None and core.leading.insync.is_only_copy


def role_view(core: ReplicaCore, now: float, *, full: bool) -> RoleView:
    """Return the view of ``core``; ``full``: the last append found no space."""
    context, leading, following = core.context, core.leading, core.following
    state, log = context.newest, context.log
    role = core.role
    epoch = context.promise.epoch
    age: float | None = None
    admission: str | None = "not-master"
    fine = role.value
    peers: tuple[PeerView, ...] = ()
    effective: tuple[str, ...] = tuple(sorted(state.isr)) if state is not None else ()
    if leading is not None:
        refused = core.admission("confirmed", 0)
        admission = refused[0] if refused is not None else ("disk-full" if full else None)
        epoch, age, effective = leading.epoch, 0.0, leading.insync.effective
        peers = tuple(
            _member(leading, member, log.end, now)
            for _, member in sorted(leading.insync.members.items())
        )
    elif following is not None:
        epoch, fine = following.epoch, following.machine.state.value
        heard = following.heard_at
        age = now - heard if heard is not None else None
        peers = (
            PeerView(
                following.leader, "master", None, None, None, None, age, True, fine,
                following.why or None,
            ),
        )  # fmt: skip
    return RoleView(
        role="master" if role in MASTER_ROLES else role.value,
        state=fine,
        epoch=epoch,
        leader=state.leader if state is not None else None,
        session=context.session,
        in_sync=tuple(sorted(state.isr)) if state is not None else (),
        min_in_sync=state.min_isr if state is not None else context.settings.in_sync_min,
        effective=effective,
        confirm=log.confirm,
        end=log.end,
        flushed=log.flushed,
        peers=peers,
        quarantined=context.damage,
        admission=admission,
        age_seconds=age,
        why=_why(core),
        register_id=context.promise.register_id,
        revision=context.promise.revision,
        quality=context.quality,
        sure=leading is None or leading.is_sure(now),
    )


def _why(core: ReplicaCore) -> str | None:
    if core.role is Role.SLAVE and core.following is not None:
        return core.following.why or None
    return core.trouble or None


def _member(leading: Leading, member: Member, end: int, now: float) -> PeerView:
    linked = leading.slaves.links.get(member.name)
    session = leading.slaves.sessions.get(linked) if linked is not None else None
    known = member.session > 0
    level = member.received >= end
    return PeerView(
        name=member.name,
        role="learner" if leading.insync.is_learner(member.name) else "slave",
        acked=member.received if known else None,
        flushed=member.flushed if known else None,
        lag_bytes=max(0, end - member.received) if known else None,
        lag_seconds=0.0 if level else now - member.level_at,
        contact_seconds=now - member.heard_at if member.heard_at is not None else None,
        in_sync=member.name in leading.state.isr,
        state=session.state.value if session is not None else "away",
        why=leading.slaves.why_behind(member.name, now) or None,
        round_trip_seconds=session.answers.seconds(now) if session is not None else None,
        unacknowledged_bytes=session.window.bytes if session is not None else None,
        slow=session is not None and session.answers.is_slow and member.name in leading.state.isr,
    )
