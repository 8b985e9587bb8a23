"""What each operation does to the group state, or why not. Pure functions, one per operation.

`decide` returns the state after an operation (revision and tag still the old ones), the same object
when the operation had been done before, or a `Refused`. After every change `settle_sets` applies
the rule of the eligible-though-not-in-sync set.

Each check that the proof leans on is a small function with a name, so that a test can take it away
(see the table of mutants in ``replication/__init__.py``).

Sources: replication.md G.2 (operations), protocol.md 5 (unclean) and 8.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from replication.group_state import STARTS_KEPT, GroupState, Registration, Unclean
from replication.register_ops import (
    AddReplica,
    Adopt,
    AlterInSync,
    Annotate,
    Depose,
    Elect,
    Failover,
    Operation,
    RegisterNode,
    RemoveReplica,
    SetMinInSync,
    Transfer,
    UncleanElect,
)


@dataclass(frozen=True, slots=True)
class Refused:
    """Why not. ``alarm``: the caller proves that the register went back."""

    code: str
    text: str
    hint: str = ""
    alarm: bool = False


Outcome = GroupState | Refused


def decide(state: GroupState, op: Operation, wall_ms: int) -> Outcome:
    """Return what ``op`` makes of ``state``; see the module."""
    rule = _RULES.get(type(op))
    if rule is None:
        return Refused("fields", f"{type(op).__name__} is no change")
    after = rule(state, op, wall_ms)
    if isinstance(after, Refused) or after is state:
        return after
    return settle_sets(state, after)


def settle_sets(before: GroupState, after: GroupState) -> GroupState:
    """Apply the rule of ELR: who leaves a set that is too small stays eligible.

    A member leaves without a trace when its registration says that it may lack something: then it
    is among ``suspect`` with its registered session.
    """
    if len(after.isr) >= after.min_isr:
        return replace(after, elr={}) if after.elr else after
    elr = dict(after.elr)
    for name in before.isr:
        known = name in after.replicas and name not in after.isr and name not in after.suspect
        if known and after.unclean == before.unclean:
            elr[name] = after.session_of(name)
    for name in after.isr:
        elr.pop(name, None)
    return replace(after, elr=dict(sorted(elr.items())))


# -- registration


def _seeded(state: GroupState, op: RegisterNode) -> Outcome:
    if state.seeded:
        return state
    if op.seed is None:
        return Refused("not-seeded", "the register is empty and the node brings no members")
    seed = op.seed
    return replace(
        state,
        replicas=seed.replicas,
        priorities=dict(sorted(seed.priorities.items())),
        min_isr=seed.min_isr,
        first=seed.first,
        seeded=True,
    )


def is_other_store(known: Registration | None, op: RegisterNode) -> bool:
    """Whether it is not the directory that registered last: wiped, exchanged or an old copy."""
    if known is None:
        return False
    return known.store != op.store or known.start not in op.known


def loses_membership(known: Registration | None, op: RegisterNode) -> bool:
    """Whether the store may lack something it acknowledged."""
    return not op.clean or is_other_store(known, op)


def is_said_again(known: Registration, op: RegisterNode) -> bool:
    """Whether this start has said before that it is unclean, and left both sets for it.

    A call whose answer was lost may arrive long after it: the node may be in the set again, or
    lead. Who has something new to say knows the session that it was given for what it said first.
    """
    return not known.clean and op.session < known.session


def register(state: GroupState, op: RegisterNode, wall_ms: int) -> Outcome:
    """Give the node a session; an unclean or other store leaves both sets."""
    seeded = _seeded(state, op)
    if isinstance(seeded, Refused):
        return seeded
    state_before, state = state, seeded
    if op.node not in state.replicas and op.node not in state.learners:
        text = f"{op.node} is no member of this group: {', '.join(state.replicas)}"
        hint = f"its members are those of the first registration: take {op.node} out of the file"
        return Refused("unknown-node", text, hint)
    if op.promised > state.epoch > 0:
        text = f"{op.node} has promised epoch {op.promised}, this register is at {state.epoch}"
        return Refused("read-only", text, "put the coordinator's newer file back", alarm=True)
    known = state.reg.get(op.node)
    out = loses_membership(known, op)
    if known is not None and known.store == op.store and op.start in known.earlier:
        return Refused("old-start", f"{op.node} has started again since start {op.start}")
    if known is not None and known.start == op.start and known.store == op.store:
        gone = op.node not in state.isr and op.node not in state.elr
        if not out or (gone and state.leader != op.node) or is_said_again(known, op):
            return state_before
    return _with_session(state, op, known, out)


def _with_session(
    state: GroupState, op: RegisterNode, known: Registration | None, out: bool
) -> GroupState:
    name = op.node
    session = 1 + (known.session if known is not None else state.retired.get(name, 0))
    earlier: tuple[str, ...] = ()
    if known is not None and known.store == op.store:
        earlier = (*known.earlier, known.start)
    # Starts that never reached us count too: their calls may still be under way.
    starts = dict.fromkeys((*earlier, *op.known))
    starts.pop(op.start, None)
    earlier = tuple(starts)[-STARTS_KEPT:]
    reg = Registration(
        session,
        op.store,
        op.start,
        earlier,
        op.empty,
        op.last_epoch,
        op.end,
        op.promised,
        not out,
    )
    sets: dict[str, Mapping[str, int]] = {}
    for label, members in (("isr", state.isr), ("elr", state.elr), ("suspect", state.suspect)):
        sets[label] = {**members, name: session} if name in members else members
    if out:
        was = name in state.isr or name in state.elr or name in state.suspect
        sets["isr"], sets["elr"] = without(state.isr, name), without(state.elr, name)
        sets["suspect"] = {**state.suspect, name: session} if was or not op.clean else state.suspect
    after = replace(
        state,
        isr=sets["isr"],
        elr=sets["elr"],
        suspect=sets["suspect"],
        reg=dict(sorted({**state.reg, name: reg}.items())),
        retired=without(state.retired, name),
    )
    if state.leader == name:
        # Whatever led in the old session cannot come back: the directory is locked by this one.
        after = leaderless(after, reason="restart", by=name)
    return after


def without(members: Mapping[str, int], name: str) -> Mapping[str, int]:
    """Return ``members`` without ``name``."""
    return {other: session for other, session in members.items() if other != name}


def leaderless(state: GroupState, *, reason: str, by: str) -> GroupState:
    """Return the state with its leader gone and remembered."""
    return replace(
        state,
        leader=None,
        leader_session=0,
        previous=state.leader,
        previous_session=state.leader_session,
        transfer_to=None,
        reason=reason,
        by=by,
    )


# -- election


def has_current_session(state: GroupState, node: str, session: int) -> bool:
    """Whether ``session`` is the registered one, so that the caller is no former incarnation."""
    return session > 0 and state.session_of(node) == session


def is_eligible(state: GroupState, node: str) -> bool:
    """Whether ``node`` holds everything that was confirmed: a member of either set."""
    return state.counts(node)


def first_election(state: GroupState, node: str) -> Refused | None:
    """Say why ``node`` may not be the first master; None when it may."""
    full = sorted(name for name, reg in state.reg.items() if not reg.empty)
    if full:
        text = f"{', '.join(full)} came with a log, and this register knows of none"
        return Refused("adopt-needed", text, f"choose the log: twinlog coordinator adopt {full[0]}")
    if state.first is not None:
        if state.first == node:
            return None
        return Refused("not-first", f"{state.first} is configured as the first master")
    absent = [name for name in state.replicas if name not in state.reg]
    if absent:
        text = f"the first election waits until all have registered: {', '.join(absent)}"
        return Refused("not-first", text)
    return None


def _elect(state: GroupState, op: Elect, wall_ms: int) -> Outcome:
    if state.leader is not None:
        return Refused("leader-present", f"{state.leader} is master of epoch {state.epoch}")
    if not has_current_session(state, op.node, op.session):
        text = f"session {op.session} of {op.node} is over, {state.session_of(op.node)} is current"
        return Refused("old-session", text)
    if op.node not in state.replicas:
        return Refused("unknown-node", f"{op.node} is no full member")
    if state.epoch == 0 and not state.isr and not state.elr:
        refused = first_election(state, op.node)
        if refused is not None:
            return refused
        state = replace(state, reason="first election", by=op.node)
    elif not is_eligible(state, op.node):
        return _not_eligible(state, op.node)
    if state.transfer_to not in (None, op.node) and not op.overdue:
        return Refused("transfer", f"{state.transfer_to} is to take over")
    return crowned(state, op.node)


def _not_eligible(state: GroupState, node: str) -> Refused:
    able = [name for name in state.replicas if is_eligible(state, name)]
    text = f"{node} may lack confirmed records"
    if not able:
        hint = "keep the data of every node; no command elects one that may lack records yet"
        return Refused("not-eligible", f"{text}, and no node is known to have them all", hint)
    hint = f"{able[0]} has everything: twinlog cluster failover --to {able[0]}"
    return Refused("not-eligible", text, hint)


def crowned(state: GroupState, node: str) -> GroupState:
    """Return the state of the next epoch with ``node`` as its master.

    The old master leaves the in-sync set, unless it handed over: then it is alive and equal.
    """
    session = state.session_of(node)
    isr = {**state.isr, node: session}
    if state.previous is not None and state.previous != node and state.transfer_to is None:
        isr.pop(state.previous, None)
    return replace(
        state,
        epoch=state.epoch + 1,
        leader=node,
        leader_session=session,
        previous=None,
        previous_session=0,
        isr=dict(sorted(isr.items())),
        elr=without(state.elr, node),
        suspect=without(state.suspect, node),
        transfer_to=None,
    )


# -- what the master changes


def is_leader(state: GroupState, node: str, session: int, epoch: int) -> bool:
    """Whether the caller is the master of this very epoch."""
    return (state.leader, state.leader_session, state.epoch) == (node, session, epoch)


def _no_leader(state: GroupState, node: str, epoch: int) -> Refused:
    text = f"{node} is not the master: epoch {state.epoch} belongs to {state.leader or 'nobody'}"
    return Refused("not-leader", f"{text}, the caller says {epoch}")


def has_registered_session(state: GroupState, name: str, session: int) -> bool:
    """Whether a proposal means the present incarnation of ``name``."""
    return state.session_of(name) == session > 0


def _alter(state: GroupState, op: AlterInSync, wall_ms: int) -> Outcome:
    if not is_leader(state, op.leader, op.session, op.epoch):
        return _no_leader(state, op.leader, op.epoch)
    if state.revision != op.revision:
        text = f"the proposal is for revision {op.revision}, the register is at {state.revision}"
        return Refused("other-revision", text)
    if op.leader in op.remove:
        return Refused("leader-stays", "a master never leaves its own in-sync set")
    for name, session in op.add.items():
        if name not in state.replicas or name in state.learners:
            return Refused("unknown-node", f"{name} is no full member")
        if not has_registered_session(state, name, session):
            text = f"session {session} of {name} is over, {state.session_of(name)} is current"
            return Refused("old-session", text)
    isr = {name: session for name, session in state.isr.items() if name not in op.remove}
    isr.update(op.add)
    suspect = {name: at for name, at in state.suspect.items() if name not in op.add}
    return replace(state, isr=dict(sorted(isr.items())), suspect=suspect)


def _transfer(state: GroupState, op: Transfer, wall_ms: int) -> Outcome:
    if not is_leader(state, op.leader, op.session, op.epoch):
        return _no_leader(state, op.leader, op.epoch)
    if op.to == op.leader or op.to not in state.isr:
        return Refused("not-in-sync", f"{op.to} is not a slave of the in-sync set")
    after = leaderless(state, reason="switchover", by=op.who or op.leader)
    return replace(after, transfer_to=op.to)


def _annotate(state: GroupState, op: Annotate, wall_ms: int) -> Outcome:
    return state


# -- what operators change


def _depose(state: GroupState, op: Depose, wall_ms: int) -> Outcome:
    if state.leader != op.leader or op.session not in (0, state.leader_session):
        text = f"{op.leader} is not the master; that is {state.leader or 'nobody'}"
        return Refused("not-leader", text)
    return leaderless(state, reason=op.why or "deposed", by=op.who)


def _failover(state: GroupState, op: Failover, wall_ms: int) -> Outcome:
    old = state.leader or state.previous
    to = op.to or _best(state, old)
    if to is None:
        hint = f"bring back {old}, or wait until another one is in sync: twinlog cluster status"
        return Refused("nobody-left", "no other node is known to have everything", hint)
    if to not in state.replicas:
        return Refused("unknown-node", f"{to} is no member: {', '.join(state.replicas)}")
    if to == state.leader:
        return Refused("leader-present", f"{to} is master of epoch {state.epoch} already")
    if not is_eligible(state, to):
        return _not_eligible(state, to)
    if state.leader is not None:
        state = leaderless(state, reason="", by="")
    state = replace(state, transfer_to=None, reason=op.why or "failover", by=op.who)
    return crowned(state, to)


def _best(state: GroupState, old: str | None) -> str | None:
    able = [name for name in state.replicas if is_eligible(state, name) and name != state.leader]
    able.sort(key=lambda name: standing_order(state, name, old))
    return able[0] if able else None


def standing_order(state: GroupState, name: str, old: str | None) -> tuple[bool, bool, int, str]:
    """Sort key of candidates, best first: not the old master, in sync, priority, name."""
    return (name == old, name not in state.isr, -state.priorities.get(name, 0), name)


def _unclean_elect(state: GroupState, op: UncleanElect, wall_ms: int) -> Outcome:
    session = state.session_of(op.to)
    if op.to not in state.replicas or not session:
        return Refused("unknown-node", f"{op.to} never registered")
    if state.leader == op.to:
        return Refused("leader-present", f"{op.to} is master of epoch {state.epoch} already")
    state = leaderless(state, reason=op.why or "unclean failover", by=op.who)
    after = crowned(replace(state, isr={}, elr={}, previous=None), op.to)
    entry = Unclean(after.epoch, op.who, op.why, wall_ms)
    return replace(after, unclean=(*state.unclean, entry))


def _adopt(state: GroupState, op: Adopt, wall_ms: int) -> Outcome:
    if state.epoch or state.isr or state.elr:
        return Refused("not-empty", "the group has a history; nothing is adopted any more")
    reg = state.reg.get(op.node)
    if reg is None:
        return Refused("unknown-node", f"{op.node} has not registered")
    # Above every promise anybody made under a lost register, so that no epoch is granted twice.
    epoch = max(max(other.promised, other.last_epoch) for other in state.reg.values())
    isr = {op.node: reg.session}
    return replace(state, isr=isr, epoch=epoch, reason=op.why or "adopted", by=op.who)


def _add(state: GroupState, op: AddReplica, wall_ms: int) -> Outcome:
    if not state.seeded or op.node in state.replicas:
        return Refused("known-node", f"{op.node} is a member, or the group has not begun")
    priorities = {**state.priorities, op.node: op.priority}
    return replace(state, replicas=(*state.replicas, op.node), priorities=priorities)


def _remove(state: GroupState, op: RemoveReplica, wall_ms: int) -> Outcome:
    name = op.node
    if name not in state.replicas:
        return Refused("unknown-node", f"{name} is no member: {', '.join(state.replicas)}")
    if name == state.leader:
        return Refused("leader-stays", f"{name} is the master; hand over first")
    if len(state.replicas) <= state.min_isr:
        return Refused("too-few", f"{state.min_isr} in-sync members need as many replicas")
    if is_eligible(state, name) and not any(
        is_eligible(state, other) for other in state.replicas if other != name
    ):
        return Refused("last-member", f"{name} is the only node known to have everything")
    # A node that is added again goes on counting its sessions: nothing that an earlier incarnation
    # still has under way may carry a number that is current.
    retired = (
        {**state.retired, name: state.session_of(name)} if name in state.reg else state.retired
    )
    return replace(
        state,
        replicas=tuple(other for other in state.replicas if other != name),
        isr=without(state.isr, name),
        elr=without(state.elr, name),
        suspect=without(state.suspect, name),
        priorities=without(state.priorities, name),
        reg={other: reg for other, reg in state.reg.items() if other != name},
        retired=retired,
        previous=None if state.previous == name else state.previous,
        transfer_to=None if state.transfer_to == name else state.transfer_to,
        first=None if state.first == name else state.first,
    )


def _min_in_sync(state: GroupState, op: SetMinInSync, wall_ms: int) -> Outcome:
    if op.least > len(state.replicas):
        return Refused("too-few", f"the group has {len(state.replicas)} replicas")
    return state if op.least == state.min_isr else replace(state, min_isr=op.least)


_RULES: Mapping[type, Callable[..., Outcome]] = {
    RegisterNode: register,
    Elect: _elect,
    AlterInSync: _alter,
    Transfer: _transfer,
    Annotate: _annotate,
    Depose: _depose,
    Failover: _failover,
    UncleanElect: _unclean_elect,
    Adopt: _adopt,
    AddReplica: _add,
    RemoveReplica: _remove,
    SetMinInSync: _min_in_sync,
}
