"""The effect of each operation on the group state, or its refusal. Pure, one function each.

`decide` returns the state after an operation (revision and tag still the old ones), the same object
if the operation had been executed before, or a `Refused`. After every change `settle_sets` applies
the rule of the ELR (R25).

Each check that the safety proof depends on is a small named function, so that a test can remove it
(see the table in ``replication/__init__.py``).

Rules: docs/protocol.md R20 to R25.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from replication.register.group_state import (
    STARTS_KEPT,
    UNCLEAN_KEPT,
    End,
    GroupState,
    Registration,
    Unclean,
    shortened,
)
from replication.register.holds import held_back, is_in_maintenance, maintain, pause, resume
from replication.register.membership import (
    add,
    change,
    no_member,
    remove,
    retired_session,
    without,
)
from replication.register.operations import (
    AddReplica,
    Adopt,
    AlterInSync,
    Annotate,
    Change,
    Depose,
    Elect,
    Failover,
    Maintain,
    Operation,
    Pause,
    RegisterNode,
    RemoveReplica,
    ReportEnd,
    Resume,
    Transfer,
    UncleanElect,
)
from replication.register.outcome import Outcome, Refused
from replication.register.vacancy import best_of_all
from twinlog.levels import FIRST


def decide(state: GroupState, op: Operation, wall_ms: int) -> Outcome:
    """Return the state after ``op``, or a refusal; see the module's text."""
    rule = _RULES.get(type(op))
    if rule is None:
        return Refused("fields", f"{type(op).__name__} is not a change")
    after = rule(state, op, wall_ms)
    if isinstance(after, Refused) or after is state:
        return after
    return settle_vacancy(settle_sets(state, after))


def settle_vacancy(after: GroupState) -> GroupState:
    """Update the facts of a vacancy: since when, reported ends, lost stores (R56)."""
    wiped = tuple(name for name in after.wiped if name in after.suspect)
    if after.epoch == 0 or after.leader is not None or after.isr or after.elr:
        return replace(after, vacant=0, ends={}, wiped=wiped)
    # A node that registered again may have lost or cut something since: it has to report again.
    ends = {n: end for n, end in after.ends.items() if end.session == after.session_of(n)}
    # Plus one: the revision is still that of before, and this change gets the next one.
    return replace(after, vacant=after.vacant or after.revision + 1, ends=ends, wiped=wiped)


def settle_sets(before: GroupState, after: GroupState) -> GroupState:
    """Apply the rule of the ELR: members that leave a too small set stay eligible (R25).

    Not a member whose registration says that it may lack records: that one is in ``suspect``, with
    its registered session.
    """
    # Enough again: from now on records are confirmed that those in ELR may lack.
    if len(after.isr) >= after.min_isr:
        return replace(after, elr={}) if after.elr else after
    elr = dict(after.elr)
    for name in before.isr:
        # From this change on the set is too small to confirm (R27), so who leaves still has
        # everything.
        known = name in after.replicas and name not in after.isr and name not in after.suspect
        # Not after an unclean election: the new master's log need not be that of the old set.
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
        return Refused("not-seeded", "the register is empty and the node names no members")
    seed = op.seed
    return replace(
        state,
        replicas=seed.replicas,
        priorities=dict(sorted(seed.priorities.items())),
        min_isr=seed.min_isr,
        first=seed.first,
        ack=seed.ack,
        after_power_loss=seed.after_power_loss,
        failover=seed.failover,
        level=max(op.level, FIRST),
        seeded=True,
    )


def is_other_store(known: Registration | None, op: RegisterNode) -> bool:
    """Whether it is not the directory that registered last: wiped, replaced or an old copy."""
    if known is None:
        return False
    return known.store != op.store or known.start not in op.known


def loses_membership(known: Registration | None, op: RegisterNode) -> bool:
    """Whether the store may lack records that it acknowledged (R21)."""
    return not op.clean or is_other_store(known, op)


def is_said_again(known: Registration, op: RegisterNode) -> bool:
    """Whether this start has already registered as unclean, and left both sets for it.

    A delayed copy of that call may arrive when the node is in a set again, or leads. A new unclean
    registration shows the session that the first one got; a copy does not.
    """
    return not known.clean and op.session < known.session


def is_new_enough(state: GroupState, op: RegisterNode) -> bool:
    """Whether the process knows every kind of record that the log may hold (R74)."""
    return max(op.level, FIRST) >= state.level


def register(state: GroupState, op: RegisterNode, wall_ms: int) -> Outcome:
    """Give the node a session; an unclean or other store leaves both sets (R20, R21)."""
    seeded = _seeded(state, op)
    if isinstance(seeded, Refused):
        return seeded
    state_before, state = state, seeded
    if op.node not in state.followers:
        return no_member(state, op.node)
    if not is_new_enough(state, op):
        text = f"{op.node} knows level {max(op.level, FIRST)}, the group is at {state.level}"
        return Refused(
            "too-old", text, f"run a newer release on {op.node}: twinlog version --check"
        )
    # R18: the node followed a master that this register never elected.
    # At epoch 0 there was no election here: the promise is of a lost register, and `_adopt` goes
    # above it.
    if op.promised > state.epoch > 0:
        text = f"{op.node} has promised epoch {op.promised}, this register is at {state.epoch}"
        return Refused("read-only", text, "put the coordinator's newer file back", alarm=True)
    known = state.reg.get(op.node)
    out = loses_membership(known, op)
    # A delayed call of an older process: granting it would end the session of the present one.
    if known is not None and known.store == op.store and op.start in known.earlier:
        return Refused("old-start", f"{op.node} has started again since start {op.start}")
    if known is not None and known.start == op.start and known.store == op.store:
        # The same start once more is a copy of its call, unless it found damage since and still
        # counts.
        gone = op.node not in state.isr and op.node not in state.elr
        if not out or (gone and state.leader != op.node) or is_said_again(known, op):
            return state_before
    return _with_session(state, op, known, out)


def _with_session(
    state: GroupState, op: RegisterNode, known: Registration | None, out: bool
) -> GroupState:
    name = op.node
    session = 1 + (known.session if known is not None else retired_session(state, name))
    earlier: tuple[str, ...] = ()
    if known is not None and known.store == op.store:
        earlier = (*known.earlier, known.start)
    # Starts that never registered count too: their calls may still be on the way.
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
    wiped = state.wiped
    sets: dict[str, Mapping[str, int]] = {}
    for label, members in (("isr", state.isr), ("elr", state.elr), ("suspect", state.suspect)):
        sets[label] = {**members, name: session} if name in members else members
    if out:
        was = name in state.isr or name in state.elr or name in state.suspect
        sets["isr"], sets["elr"] = without(state.isr, name), without(state.elr, name)
        if was or (not op.clean and name in state.replicas):  # a learner acknowledged nothing
            sets["suspect"] = {**state.suspect, name: session}
        # Only a disk that counted can have taken records with it that no end is compared with
        # (R56).
        if was and is_other_store(known, op):
            wiped = tuple(dict.fromkeys((*wiped, name)))
    after = replace(
        state,
        isr=sets["isr"],
        elr=sets["elr"],
        suspect=sets["suspect"],
        wiped=wiped,
        reg=dict(sorted({**state.reg, name: reg}.items())),
        retired=without(state.retired, name),
        levels=dict(sorted({**state.levels, name: max(op.level, FIRST)}.items())),
    )
    if state.leader == name:
        # The process that led in the old session is dead: this one has the directory's lock.
        after = leaderless(after, reason="restart", by=name)
    return after


def leaderless(state: GroupState, *, reason: str, by: str) -> GroupState:
    """Return the state without a leader; the old one is kept as ``previous``."""
    return replace(
        state,
        leader=None,
        leader_session=0,
        previous=state.leader,
        previous_session=state.leader_session,
        transfer_to=None,
        reason=shortened(reason),
        by=shortened(by),
    )


# -- election


def has_current_session(state: GroupState, node: str, session: int) -> bool:
    """Whether ``session`` is the registered one, so that the caller is not an older process."""
    return session > 0 and state.session_of(node) == session


def is_eligible(state: GroupState, node: str) -> bool:
    """Whether ``node`` has all confirmed records: it is a member of a set (R22)."""
    return state.counts(node)


def first_election(state: GroupState, node: str) -> Refused | None:
    """Return why ``node`` may not be the first master; None if it may (R23)."""
    full = sorted(name for name, reg in state.reg.items() if not reg.empty)
    if full:
        text = f"{', '.join(full)} came with a log, which this register does not know"
        hint = f"choose the log: twinlog coordinator adopt --to {full[0]}"
        return Refused("adopt-needed", text, hint)
    if absent := absent_at_first(state):
        names = ", ".join(absent)
        text = f"the first election waits until all nodes have registered, and {names} did not"
        hint = f"start {names}; if what it has does not count: twinlog coordinator adopt"
        return Refused("not-first", text, hint)
    if state.first not in (None, node):
        return Refused("not-first", f"{state.first} is configured as the first master")
    return None


def absent_at_first(state: GroupState) -> list[str]:
    """Return the replicas that have not registered, so may have a log.

    An empty node that was elected without them would have a restored log cut to nothing.
    """
    return [name for name in state.replicas if name not in state.reg]


def is_next_epoch(state: GroupState, op: Elect) -> bool:
    """Whether the candidate saw the newest epoch; a delayed copy names an older one (R22)."""
    return op.epoch == state.epoch + 1


def _elect(state: GroupState, op: Elect, wall_ms: int) -> Outcome:
    if state.leader is not None:
        return Refused("leader-present", f"{state.leader} is master of epoch {state.epoch}")
    if not has_current_session(state, op.node, op.session):
        text = f"session {op.session} of {op.node} is over, {state.session_of(op.node)} is current"
        return Refused("old-session", text)
    if op.node not in state.replicas:
        return Refused("unknown-node", f"{op.node} is not a full member")
    if is_in_maintenance(state, op.node):
        return held_back(op.node)
    if not is_next_epoch(state, op):
        text = f"{op.node} stands for epoch {op.epoch}, the last one is {state.epoch}"
        return Refused("other-epoch", text)
    if state.epoch == 0 and not state.isr and not state.elr:
        refused = first_election(state, op.node)
        if refused is not None:
            return refused
        state = replace(state, reason="first election", by=op.node)
    elif not is_eligible(state, op.node):
        return _not_eligible(state, op.node)
    # A switchover chose its target for a reason; the others stand only when it failed to.
    if state.transfer_to not in (None, op.node) and not op.overdue:
        return Refused("transfer", f"{state.transfer_to} is to take over")
    return crowned(state, op.node)


def _not_eligible(state: GroupState, node: str) -> Refused:
    able = [name for name in state.replicas if is_eligible(state, name)]
    text = f"{node} may lack confirmed records"
    if not able:
        best = best_of_all(state)
        if best.name is None:
            return Refused("not-eligible", best.text, best.hint)
        hint = f"{best.name} has the most of all: twinlog cluster failover"
        return Refused("not-eligible", f"{text}, and no node is known to have them all", hint)
    hint = f"{able[0]} has everything: twinlog cluster failover --to {able[0]}"
    return Refused("not-eligible", text, hint)


def crowned(state: GroupState, node: str) -> GroupState:
    """Return the state of the next epoch with ``node`` as its master.

    The old master leaves the in-sync set, unless it handed over: then it is alive and level.
    """
    session = state.session_of(node)
    isr = {**state.isr, node: session}
    if state.previous is not None and state.previous != node and state.transfer_to is None:
        # It may have crashed, and may have unconfirmed records to cut: it must join again (R32).
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
    """Whether the caller is the master of the present epoch and session (R24)."""
    return (state.leader, state.leader_session, state.epoch) == (node, session, epoch)


def _no_leader(state: GroupState, node: str, epoch: int) -> Refused:
    text = f"{node} is not the master: epoch {state.epoch} belongs to {state.leader or 'no node'}"
    return Refused("not-leader", f"{text}, the caller says {epoch}")


def may_be_in_sync(state: GroupState, name: str) -> bool:
    """Whether ``name`` may be in the in-sync set: a full member, not a learner (R70)."""
    return name in state.replicas


def has_registered_session(state: GroupState, name: str, session: int) -> bool:
    """Whether a proposal names the registered session of ``name`` (R24)."""
    return state.session_of(name) == session > 0


def _alter(state: GroupState, op: AlterInSync, wall_ms: int) -> Outcome:
    if not is_leader(state, op.leader, op.session, op.epoch):
        return _no_leader(state, op.leader, op.epoch)
    # R31: of all copies of a proposal at most one can match, so an unknown outcome settles itself.
    if state.revision != op.revision:
        text = f"the proposal is for revision {op.revision}, the register is at {state.revision}"
        return Refused("other-revision", text)
    if op.leader in op.remove:
        return Refused("leader-stays", "a master never leaves its own in-sync set")
    for name, session in op.add.items():
        if not may_be_in_sync(state, name):
            return Refused("unknown-node", f"{name} is not a full member")
        if not has_registered_session(state, name, session):
            text = f"session {session} of {name} is over, {state.session_of(name)} is current"
            return Refused("old-session", text)
    isr = {name: session for name, session in state.isr.items() if name not in op.remove}
    isr.update(op.add)
    # Its master has compared the logs: who joins has everything that was confirmed (R32).
    suspect = {name: at for name, at in state.suspect.items() if name not in op.add}
    return replace(state, isr=dict(sorted(isr.items())), suspect=suspect)


def _transfer(state: GroupState, op: Transfer, wall_ms: int) -> Outcome:
    if not is_leader(state, op.leader, op.session, op.epoch):
        return _no_leader(state, op.leader, op.epoch)
    # R36: only a member of the set is safe, even for a late copy of this call.
    if op.to == op.leader or op.to not in state.isr:
        return Refused("not-in-sync", f"{op.to} is not a slave of the in-sync set")
    if is_in_maintenance(state, op.to):
        return held_back(op.to)
    after = leaderless(state, reason="switchover", by=op.who or op.leader)
    # Who stops acknowledges nothing more: its successor would wait for it until it noticed that.
    isr = without(after.isr, op.leader) if op.leaving else after.isr
    return replace(after, isr=isr, transfer_to=op.to)


def _annotate(state: GroupState, op: Annotate, wall_ms: int) -> Outcome:
    return state


# -- what operators change


def _depose(state: GroupState, op: Depose, wall_ms: int) -> Outcome:
    if state.leader != op.leader or op.session not in (0, state.leader_session):
        text = f"{op.leader} is not the master; the master is {state.leader or 'no node'}"
        return Refused("not-leader", text)
    return leaderless(state, reason=op.why or "deposed", by=op.who)


def _failover(state: GroupState, op: Failover, wall_ms: int) -> Outcome:
    if is_done_already(state, op):
        return state
    if not is_planned_epoch(state, op):
        return _planned_for_another(state, op)
    if state.vacant and op.to in (None, (best := best_of_all(state)).name):
        if best.name is None:
            return Refused("not-eligible", best.text, best.hint)
        if is_in_maintenance(state, best.name):
            return held_back(best.name)
        return crowned_uncleanly(state, best.name, op.who, op.why or "failover", wall_ms)
    old = state.leader or state.previous
    to = op.to or _best(state, old)
    if to is None:
        hint = f"bring back {old}, or wait until another one is in sync: twinlog cluster status"
        return Refused("no-successor", "no other node is known to have everything", hint)
    if to not in state.replicas:
        return no_member(state, to)
    if to == state.leader:
        return Refused("leader-present", f"{to} is master of epoch {state.epoch} already")
    if is_in_maintenance(state, to):
        return held_back(to)
    if not is_eligible(state, to):
        return _not_eligible(state, to)
    # So that `crowned` knows the old master and takes it out of the set.
    if state.leader is not None:
        state = leaderless(state, reason="", by="")
    reason, by = shortened(op.why or "failover"), shortened(op.who)
    # A switchover that was under way is void: `crowned` would take this election for its end.
    return crowned(replace(state, transfer_to=None, reason=reason, by=by), to)


def is_planned_epoch(state: GroupState, op: Failover | UncleanElect) -> bool:
    """Whether the newest epoch is the one that the operator saw when planning (R22)."""
    return op.epoch == state.epoch


def is_done_already(state: GroupState, op: Failover | UncleanElect) -> bool:
    """Whether an earlier copy of this command was executed."""
    by = shortened(op.who)
    return (state.leader, state.epoch, state.by) == (op.to or state.leader, op.epoch + 1, by)


def _planned_for_another(state: GroupState, op: Failover | UncleanElect) -> Refused:
    text = f"the change was planned for epoch {op.epoch}, the newest is {state.epoch}"
    text += f" of {state.leader}" if state.leader else ""
    return Refused("other-epoch", text, "look at the cluster again: twinlog cluster status")


def _best(state: GroupState, old: str | None) -> str | None:
    able = [
        name for name in state.replicas
        if is_eligible(state, name)
        and name != state.leader
        and not is_in_maintenance(state, name)
    ]  # fmt: skip
    able.sort(key=lambda name: standing_order(state, name, old))
    return able[0] if able else None


def standing_order(state: GroupState, name: str, old: str | None) -> tuple[bool, bool, int, str]:
    """Sort key of candidates, best first: not the old master, in sync, priority, name."""
    # The old master last: it is probably down, and to wait for it costs the time of an election.
    return (name == old, name not in state.isr, -state.priorities.get(name, 0), name)


def _unclean_elect(state: GroupState, op: UncleanElect, wall_ms: int) -> Outcome:
    session = state.session_of(op.to)
    if is_done_already(state, op):
        return state
    if not is_planned_epoch(state, op):
        return _planned_for_another(state, op)
    if op.to not in state.replicas or not session:
        return Refused("unknown-node", f"{op.to} never registered")
    if state.leader == op.to:
        return Refused("leader-present", f"{op.to} is master of epoch {state.epoch} already")
    if is_in_maintenance(state, op.to):
        return held_back(op.to)
    return crowned_uncleanly(state, op.to, op.who, op.why or "unclean failover", wall_ms)


def crowned_uncleanly(state: GroupState, to: str, who: str, why: str, wall_ms: int) -> GroupState:
    """Return the state of the next epoch with ``to`` as its only member, recorded as unclean."""
    state = leaderless(state, reason=why, by=who)
    after = crowned(replace(state, isr={}, elr={}, previous=None), to)
    entry = Unclean(after.epoch, shortened(who), shortened(why), wall_ms)
    return replace(after, unclean=(*state.unclean, entry)[-UNCLEAN_KEPT:], wiped=())


def _report_end(state: GroupState, op: ReportEnd, wall_ms: int) -> Outcome:
    """Record the end of a replica's log; elect the best if no operator is needed (R56)."""
    if not state.vacant:
        return Refused("not-vacant", "a node is known to have everything")
    if op.node not in state.replicas or not has_current_session(state, op.node, op.session):
        text = f"session {op.session} of {op.node} is over, {state.session_of(op.node)} is current"
        return Refused("old-session", text)
    if not has_promised_vacancy(state, op):
        text = f"{op.node} has promised revision {op.revision}, not yet {state.vacant}"
        return Refused("other-revision", text)
    end = End(op.session, op.last_epoch, op.end)
    if state.ends.get(op.node) == end:
        return state
    state = replace(state, ends=dict(sorted({**state.ends, op.node: end}.items())))
    best = best_of_all(state).name
    if best is None or state.after_power_loss != "best" or is_in_maintenance(state, best):
        return state
    why = f"{best} has the most of all {len(state.replicas)} replicas"
    return crowned_uncleanly(state, best, "after_power_loss = best", why, wall_ms)


def has_promised_vacancy(state: GroupState, op: ReportEnd) -> bool:
    """Whether the replica has durably promised the vacant state, so left older epochs (R56)."""
    return op.revision >= state.vacant > 0


def _adopt(state: GroupState, op: Adopt, wall_ms: int) -> Outcome:
    if state.epoch or state.isr or state.elr:
        return Refused("not-empty", "the group has a history already, so no log can be adopted")
    if op.node in state.learners:
        return no_member(state, op.node)
    reg = state.reg.get(op.node)
    if reg is None:
        hint = "a node registers within a second of its start: ask again"
        return Refused("unknown-node", f"{op.node} has not registered", hint)
    # Above every promise made under a lost register, so that no epoch is granted twice.
    epoch = max(max(other.promised, other.last_epoch) for other in state.reg.values())
    isr = {op.node: reg.session}
    reason, by = shortened(op.why or "adopted"), shortened(op.who)
    return replace(state, isr=isr, epoch=epoch, reason=reason, by=by)


_RULES: Mapping[type, Callable[..., Outcome]] = {
    RegisterNode: register,
    Elect: _elect,
    AlterInSync: _alter,
    Transfer: _transfer,
    Annotate: _annotate,
    ReportEnd: _report_end,
    Depose: _depose,
    Failover: _failover,
    UncleanElect: _unclean_elect,
    Adopt: _adopt,
    AddReplica: add,
    RemoveReplica: remove,
    Change: change,
    Pause: pause,
    Resume: resume,
    Maintain: maintain,
}
