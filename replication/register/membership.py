"""Changes by operators other than elections: members of the group, and its facts.

A replica that is removed and added again continues to count its sessions: a delayed message of an
earlier process must never carry a session that is current again.

Pure. Not here: elections (``replication.register.rules``). Rules: docs/protocol.md R24, R25.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from replication.register.group_state import (
    ACKS,
    FAILOVER,
    POWER_LOSS,
    RETIRED_FLOOR,
    RETIRED_KEPT,
    GroupState,
)
from replication.register.operations import NAMES_MAX, AddReplica, Change, RemoveReplica
from replication.register.outcome import Outcome, Refused
from twinlog.levels import FIRST, LEVEL


def add(state: GroupState, op: AddReplica, wall_ms: int) -> Outcome:
    """Add a full member, which does not count before it joins the in-sync set; or a learner."""
    name = op.node
    if not state.seeded or name in state.replicas:
        return Refused("known-node", f"{name} is a member already, or the group has not begun")
    if name not in state.learners and len(state.followers) >= NAMES_MAX:
        return Refused("too-many", f"a group has at most {NAMES_MAX} members")
    learners = tuple(other for other in state.learners if other != name)
    if op.learner:
        if name in state.learners:
            return Refused("known-node", f"{name} is a learner already")
        return replace(state, learners=(*learners, name))
    # A learner keeps its registration: its session goes on, and it is in no set (R70).
    priorities = {**state.priorities, name: op.priority}
    return replace(
        state, replicas=(*state.replicas, name), learners=learners, priorities=priorities
    )


def remove(state: GroupState, op: RemoveReplica, wall_ms: int) -> Outcome:
    """Remove a member, unless the group needs it or it alone may have everything."""
    name = op.node
    if name in state.learners:
        return _without_learner(state, name)
    if name not in state.replicas:
        return Refused("unknown-node", f"{name} is not a member: {', '.join(state.replicas)}")
    if name == state.leader:
        return Refused("leader-stays", f"{name} is the master; hand over first")
    # R56: the election compares the ends of all replicas; removing one could hide the greatest.
    if state.vacant:
        text = f"no node is known to have everything: {name} may have what the others lack"
        return Refused("last-member", text, "choose a master first: twinlog cluster failover")
    if len(state.replicas) <= state.min_isr:
        least = len(state.replicas) - 1
        text = f"{least} members would be left, and {state.min_isr} must be in sync for a write"
        hint = f"need fewer first: twinlog cluster set in_sync_min {least}" if least else ""
        return Refused("too-few", text, hint)
    # Its records may exist nowhere else.
    if state.counts(name) and not any(
        state.counts(other) for other in state.replicas if other != name
    ):
        return Refused("last-member", f"{name} is the only node known to have everything")
    # `retired` keeps its session: if it is added again, sessions continue from there.
    return replace(
        state,
        replicas=tuple(other for other in state.replicas if other != name),
        isr=without(state.isr, name),
        elr=without(state.elr, name),
        suspect=without(state.suspect, name),
        priorities=without(state.priorities, name),
        reg={other: reg for other, reg in state.reg.items() if other != name},
        retired=retire(state, name),
        previous=None if state.previous == name else state.previous,
        transfer_to=None if state.transfer_to == name else state.transfer_to,
        first=None if state.first == name else state.first,
        levels=without(state.levels, name),
        maintenance={other: hold for other, hold in state.maintenance.items() if other != name},
    )


def _without_learner(state: GroupState, name: str) -> GroupState:
    """Return the state without a learner; nothing depended on it."""
    return replace(
        state,
        learners=tuple(other for other in state.learners if other != name),
        reg={other: reg for other, reg in state.reg.items() if other != name},
        levels=without(state.levels, name),
        retired=retire(state, name),
    )


def why_no_fact(name: str, value: str) -> str:
    """Return why a group has no such fact, with all that there are; empty if it may have it."""
    choices = {"ack": ACKS, "after_power_loss": POWER_LOSS, "failover": FAILOVER}
    counts = name == "in_sync_min" and value.isdecimal() and 0 < int(value) <= NAMES_MAX
    raised = name == "level" and value.isdecimal() and FIRST <= int(value) <= LEVEL
    if counts or raised or value in choices.get(name, ()):
        return ""
    known = [f"in_sync_min = 1 to {NAMES_MAX}"]
    known += [f"{one} = {' or '.join(allowed)}" for one, allowed in choices.items()]
    known.append(f"level = {FIRST} to {LEVEL}")
    return f"{name} = {value} is not a fact of the group: {', '.join(known)}"


def change(state: GroupState, op: Change, wall_ms: int) -> Outcome:
    """Change one fact of the group; the refusal of an unknown one lists the known ones."""
    if why := why_no_fact(op.name, op.value):
        return Refused("fields", why)
    after = state
    match op.name:
        case "in_sync_min" if int(op.value) > len(state.replicas):
            return Refused("too-few", f"the group has {len(state.replicas)} replicas")
        case "in_sync_min":
            after = replace(state, min_isr=int(op.value))
        case "level" if (refused := _level_refusal(state, int(op.value))) is not None:
            return refused
        case "level":
            after = replace(state, level=int(op.value))
        case "ack":
            after = replace(state, ack=op.value)
        case "after_power_loss":
            after = replace(state, after_power_loss=op.value)
        case _:
            after = replace(state, failover=op.value)
    return state if after == state else after


def knows_level(state: GroupState, name: str, level: int) -> bool:
    """Whether the registered process of ``name`` knows the records of ``level`` (R74)."""
    # One that never registered is judged when it does (R74).
    return name not in state.reg or state.levels.get(name, FIRST) >= level


def _level_refusal(state: GroupState, level: int) -> Refused | None:
    if level < state.level:
        text = f"the group is at level {state.level}: its log may hold records of that level"
        return Refused("level", text)
    lacking = [name for name in state.followers if not knows_level(state, name, level)]
    if not lacking:
        return None
    known = ", ".join(f"{name} knows {state.levels.get(name, FIRST)}" for name in lacking)
    return Refused("level", f"not every node knows level {level}: {known}", UPGRADE)


UPGRADE = "run the newer release on each node first: twinlog version --check"
"""What ends the refusal of a level."""


def no_member(state: GroupState, name: str) -> Refused:
    """Return the refusal of an unknown member, with the command that adds it."""
    if name in state.learners:
        text = f"{name} is a learner of this group, which counts nowhere"
        return Refused(
            "unknown-node", text, f"make it a full member: twinlog cluster promote {name}"
        )
    text = f"{name} is not a member of this group: {', '.join(state.replicas)}"
    return Refused("unknown-node", text, f"add it: twinlog cluster add {name}")


def retired_session(state: GroupState, name: str) -> int:
    """Return the last session that ``name`` can have had before it was removed, 0 for none."""
    return state.retired.get(name, state.retired.get(RETIRED_FLOOR, 0))


def retire(state: GroupState, name: str) -> Mapping[str, int]:
    """Return ``retired`` with ``name``; beyond the limit the smallest sessions become the floor."""
    if name not in state.reg:
        return state.retired
    retired = {**state.retired, name: max(state.session_of(name), retired_session(state, name))}
    floor = retired.pop(RETIRED_FLOOR, 0)
    while len(retired) > RETIRED_KEPT:
        floor = max(floor, retired.pop(min(retired, key=lambda one: (retired[one], one))))
    return retired | ({RETIRED_FLOOR: floor} if floor else {})


def without(members: Mapping[str, int], name: str) -> Mapping[str, int]:
    """Return ``members`` without ``name``."""
    return {other: session for other, session in members.items() if other != name}
