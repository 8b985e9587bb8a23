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


def add(state: GroupState, op: AddReplica, wall_ms: int) -> Outcome:
    """Add a full member; it does not count before it joins the in-sync set."""
    if not state.seeded or op.node in state.replicas:
        return Refused("known-node", f"{op.node} is a member already, or the group has not begun")
    if len(state.replicas) + len(state.learners) >= NAMES_MAX:
        return Refused("too-many", f"a group has at most {NAMES_MAX} members")
    priorities = {**state.priorities, op.node: op.priority}
    return replace(state, replicas=(*state.replicas, op.node), priorities=priorities)


def remove(state: GroupState, op: RemoveReplica, wall_ms: int) -> Outcome:
    """Remove a member, unless the group needs it or it alone may have everything."""
    name = op.node
    if name not in state.replicas:
        return Refused("unknown-node", f"{name} is not a member: {', '.join(state.replicas)}")
    if name == state.leader:
        return Refused("leader-stays", f"{name} is the master; hand over first")
    # R56: the election compares the ends of all replicas; removing one could hide the greatest.
    if state.vacant:
        text = f"no node is known to have everything: {name} may have what the others lack"
        return Refused("last-member", text, "choose a master first: twinlog cluster failover")
    if len(state.replicas) <= state.min_isr:
        return Refused("too-few", f"{state.min_isr} in-sync members need as many replicas")
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
    )


def change(state: GroupState, op: Change, wall_ms: int) -> Outcome:
    """Change one fact of the group; the refusal of an unknown one lists the known ones."""
    after: GroupState | None = None
    match op.name:
        case "in_sync_min" if op.value.isdecimal() and 0 < int(op.value) <= NAMES_MAX:
            if int(op.value) > len(state.replicas):
                return Refused("too-few", f"the group has {len(state.replicas)} replicas")
            after = replace(state, min_isr=int(op.value))
        case "ack" if op.value in ACKS:
            after = replace(state, ack=op.value)
        case "after_power_loss" if op.value in POWER_LOSS:
            after = replace(state, after_power_loss=op.value)
        case "failover" if op.value in FAILOVER:
            after = replace(state, failover=op.value)
        case _:
            known = f"in_sync_min = 1 to {NAMES_MAX}, ack = {' or '.join(ACKS)}"
            known += f", after_power_loss = {' or '.join(POWER_LOSS)}"
            known += f", failover = {' or '.join(FAILOVER)}"
            return Refused("fields", f"{op.name} = {op.value} is not a fact of the group: {known}")
    return state if after == state else after


def no_member(state: GroupState, name: str) -> Refused:
    """Return the refusal of an unknown member, with the command that adds it."""
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
