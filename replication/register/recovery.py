"""Rebuilds the register from the nodes' promises, after it was lost or went back.

Every node durably keeps the newest group state that it has seen, because it promises never to act
on an older one. So the promises together cover every state that a node acted upon, and if **all**
nodes show theirs, nothing confirmed is forgotten: a master confirms only under a state that its
members had made durable before.

The state of the largest epoch, and within it of the largest revision, is taken. Nodes whose promise
is not on the way to it (they followed a copy of the register, or registered in a session unknown to
it) are on another branch: they leave both sets, and so do nodes that the operator excludes. The new
epoch and revision are so far above every known one that no change that only an absent node saw, or
no node at all, can have the same number.

If a node shows a revision whose state no node has, the members of that revision are unknown: then
both sets are emptied, and ``replication.register.vacancy`` decides (R58).

Pure. Not here: collecting the promises (``cli.cluster.recovery``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from replication.register.group_state import UNCLEAN_KEPT, GroupState, Unclean, shortened
from replication.register.operations import Recover, Voice
from replication.register.outcome import Outcome, Refused

REVISION_STEP = 1 << 20
"""More changes than only absent nodes can have seen; the register makes one per change of roles."""

EPOCH_STEP = 1 << 10
"""More epochs than the register can have granted without a present node seeing them: a grant may be
durable and its answer lost, and an epoch must not be granted twice (R22)."""


def newest_first(states: Iterable[GroupState], own: GroupState | None) -> list[GroupState]:
    """Return the states, best first: largest epoch, then what ``own`` does not hold, revision.

    ``own`` is the register's present state, which may be an old copy: states beyond it were granted
    by a register that knew more.
    """

    def key(state: GroupState) -> tuple[int, bool, int]:
        beyond = own is None or state.revision > own.revision or conflict(state, own)
        return state.epoch, beyond, state.revision

    return sorted(states, key=key, reverse=True)


def conflict(one: GroupState, other: GroupState) -> bool:
    """Whether two states cannot belong to one history of the register.

    In one history a larger revision never has a smaller epoch or session, and a revision has one
    tag.
    """
    if one.register_id != other.register_id:
        return True
    if one.revision == other.revision:
        return one.tag != other.tag
    low, high = (one, other) if one.revision < other.revision else (other, one)
    if low.epoch > high.epoch:
        return True
    common = set(low.reg) & set(high.reg)
    return any(low.session_of(name) > high.session_of(name) for name in common)


def is_on_branch(state: GroupState, voice: Voice) -> bool:
    """Whether a node's promise is on the way to ``state`` (R58)."""
    if voice.register_id != state.register_id or voice.promised > state.epoch:
        return False
    if voice.revision == state.revision and voice.tag != state.tag:
        return False
    return voice.session == state.session_of(voice.node)


def recovered(own: GroupState, op: Recover, wall_ms: int) -> Outcome:
    """Return the state from which the group continues; it has no master yet."""
    state = op.state
    if own.seeded and own.register_id != state.register_id and own.epoch:
        text = f"this is register {own.register_id}, and it has a history of its own"
        return Refused("not-empty", text, "start the coordinator on an empty data folder")
    voices = {voice.node: voice for voice in op.voices}
    silent = [n for n in state.replicas if n not in voices and n not in op.absent]
    if silent:
        names = ", ".join(silent)
        hint = f"start {names}; if one is gone for good: twinlog coordinator recover --without NODE"
        return Refused("reports-missing", f"{names} did not report what it has seen", hint)
    out = [n for n in state.replicas if n not in voices or not is_on_branch(state, voices[n])]
    # The members under that revision may have confirmed without any node known here.
    if any(is_ahead(state, voice) for voice in voices.values()):
        out = list(state.replicas)
    revision = max(own.revision, state.revision, *(voice.revision for voice in op.voices))
    epoch = max(own.epoch, state.epoch, *(max(v.promised, v.last_epoch) for v in op.voices))
    epoch += EPOCH_STEP
    after = _without_roles(state, out, op)
    if out:
        # The epoch of the next election: by it nodes may cut below their confirm offset (R40).
        entry = Unclean(epoch + 1, shortened(op.who), shortened(_why(op, out)), wall_ms)
        after = replace(after, unclean=(*state.unclean, entry)[-UNCLEAN_KEPT:])
    return replace(after, revision=revision + REVISION_STEP, epoch=epoch, vacant=0, ends={})


def is_ahead(state: GroupState, voice: Voice) -> bool:
    """Whether a node saw a revision of this register whose state no node has."""
    return voice.register_id == state.register_id and voice.revision > state.revision


def _without_roles(state: GroupState, out: list[str], op: Recover) -> GroupState:
    """Return ``state`` without a master; nodes of another branch must register again, unclean."""

    def kept(members: dict[str, int]) -> dict[str, int]:
        return {name: session for name, session in members.items() if name not in out}

    reg = dict(state.reg)
    suspect = kept(dict(state.suspect))
    for name in out:
        if name in reg:
            # An unknown start: its present process must register again, as unclean (R21).
            reg[name] = replace(reg[name], session=reg[name].session + 1, start="", clean=False)
            suspect[name] = reg[name].session
    previous = state.leader or state.previous
    return replace(
        state,
        leader=None,
        leader_session=0,
        previous=None if previous in out else previous,
        previous_session=state.leader_session or state.previous_session,
        isr=kept(dict(state.isr)),
        elr=kept(dict(state.elr)),
        suspect=dict(sorted(suspect.items())),
        reg=reg,
        transfer_to=None,
        reason=shortened(op.why or "recovered"),
        by=shortened(op.who),
    )


def _why(op: Recover, out: list[str]) -> str:
    return f"register recovered without {', '.join(out)}{': ' if op.why else ''}{op.why}"
