"""The register made again from what the nodes promised, after its coordinator lost it or went back.

Every node keeps the newest group state that it has seen, durably, because it promises not to go
back behind it. So what the nodes show together is at least what any of them ever acted upon, and
when **all** of them show it, nothing that was confirmed is forgotten: whoever confirmed, did so
under a state that its members had made durable first.

The state of the largest epoch, and within it of the largest revision, is taken. Nodes whose promise
does not lie on the way to it (they followed a copy of the register, or registered with a process
that it does not know) are of another branch: they leave both sets, and so do nodes that are absent
by the operator's word. The new epoch and revision are so far above every known one that no change
which only an absent node saw, or none at all, can have the same number.

If a node shows a revision whose state nobody has, the members of that revision are unknown: then
both sets are emptied, and ``replication.register.vacancy`` decides.

Pure. Not here: who collects what the nodes promised (``cli.cluster.recovery``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from replication.register.group_state import UNCLEAN_KEPT, GroupState, Unclean, shortened
from replication.register.operations import Recover, Voice
from replication.register.outcome import Outcome, Refused

REVISION_STEP = 1 << 20
"""Changes that nobody who is present saw; the register makes one for each change of roles."""

EPOCH_STEP = 1 << 10
"""Epochs that the register granted and that nobody who is present saw: a grant may be made durable
and its answer lost, and an epoch must not be granted twice."""


def newest_first(states: Iterable[GroupState], own: GroupState | None) -> list[GroupState]:
    """Return the states, best first: largest epoch, then what ``own`` does not hold, revision.

    ``own`` is the register's present state, which may be an old copy: what goes beyond it was
    granted by a register that knew more.
    """

    def key(state: GroupState) -> tuple[int, bool, int]:
        beyond = own is None or state.revision > own.revision or conflict(state, own)
        return state.epoch, beyond, state.revision

    return sorted(states, key=key, reverse=True)


def conflict(one: GroupState, other: GroupState) -> bool:
    """Whether two states cannot lie on one history of the register.

    On one history a larger revision never has a smaller epoch or session, and a revision has one
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
    """Whether what a node promised lies on the way to ``state``."""
    if voice.register_id != state.register_id or voice.promised > state.epoch:
        return False
    if voice.revision == state.revision and voice.tag != state.tag:
        return False
    return voice.session == state.session_of(voice.node)


def recovered(own: GroupState, op: Recover, wall_ms: int) -> Outcome:
    """Return the state from which the group goes on; nobody is master in it yet."""
    state = op.state
    if own.seeded and own.register_id != state.register_id and own.epoch:
        text = f"this is register {own.register_id}, and it has a history of its own"
        return Refused("not-empty", text, "start the coordinator on an empty data folder")
    voices = {voice.node: voice for voice in op.voices}
    silent = [n for n in state.replicas if n not in voices and n not in op.absent]
    if silent:
        names = ", ".join(silent)
        hint = f"start {names}; if one is gone for good: twinlog coordinator recover --without NODE"
        return Refused("reports-missing", f"{names} did not say what it has seen", hint)
    out = [n for n in state.replicas if n not in voices or not is_on_branch(state, voices[n])]
    if any(is_ahead(state, voice) for voice in voices.values()):
        out = list(state.replicas)
    revision = max(own.revision, state.revision, *(voice.revision for voice in op.voices))
    epoch = max(own.epoch, state.epoch, *(max(v.promised, v.last_epoch) for v in op.voices))
    epoch += EPOCH_STEP
    after = _without_roles(state, out, op)
    if out:
        entry = Unclean(epoch + 1, shortened(op.who), shortened(_why(op, out)), wall_ms)
        after = replace(after, unclean=(*state.unclean, entry)[-UNCLEAN_KEPT:])
    return replace(after, revision=revision + REVISION_STEP, epoch=epoch, vacant=0, ends={})


def is_ahead(state: GroupState, voice: Voice) -> bool:
    """Whether a node saw a revision of this register whose state no node has shown."""
    return voice.register_id == state.register_id and voice.revision > state.revision


def _without_roles(state: GroupState, out: list[str], op: Recover) -> GroupState:
    """Return ``state`` without a master; nodes of another branch must register again, unclean."""

    def kept(members: dict[str, int]) -> dict[str, int]:
        return {name: session for name, session in members.items() if name not in out}

    reg = dict(state.reg)
    suspect = kept(dict(state.suspect))
    for name in out:
        if name in reg:
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
