"""Holds of operators: a pause of automatic failover, and replicas in maintenance (R68).

A hold only ever keeps something from happening: a leadership from being ended, a node from being
elected. So it costs availability at most, and no safety rule depends on it: an election that is
granted meanwhile needs what every other one needs.

* While automatic failover is paused, no master is deposed because it is not heard
  (``replication.register.leases``). Orders of operators go on, and so does the election after a
  master has stopped or started again: nothing but a new process could lead then. A pause ends by
  itself, because a forgotten one would be noticed in the night in which it is needed.
* A replica in maintenance keeps its place in the sets and acknowledges; it is not elected, by
  whatever operation. It may go on leading: handing over is the operator's next order.

Pure. Not here: the other rules of elections (``replication.register.rules``).
Rules: docs/protocol.md R68.
"""

from __future__ import annotations

from dataclasses import replace

from replication.register.group_state import GroupState, Hold, shortened
from replication.register.operations import Maintain, Pause, Resume
from replication.register.outcome import Outcome, Refused

PAUSE_SECONDS_MIN = 10
PAUSE_SECONDS_MAX = 30 * 86_400
"""Shortest and longest pause; a longer one is ``failover = manual``."""


def pause(state: GroupState, op: Pause, wall_ms: int) -> Outcome:
    """Pause automatic failover from now on; another pause replaces the present one."""
    if state.failover != "automatic":
        text = "failover is manual in this group, so there is nothing to pause"
        return Refused("not-automatic", text, "twinlog cluster set failover automatic")
    if not PAUSE_SECONDS_MIN <= op.seconds <= PAUSE_SECONDS_MAX:
        text = f"a pause of {op.seconds} s; it can be {PAUSE_SECONDS_MIN} s to 30 d"
        return Refused("fields", text, "for good: twinlog cluster set failover manual")
    hold = Hold(shortened(op.who), shortened(op.why), wall_ms, wall_ms + 1000 * op.seconds)
    return replace(state, pause=hold)


def resume(state: GroupState, op: Resume, wall_ms: int) -> Outcome:
    """End the pause; nothing changes where none holds."""
    return state if state.pause is None else replace(state, pause=None)


def is_paused(state: GroupState) -> bool:
    """Whether automatic failover is paused (R68)."""
    return state.pause is not None


def is_in_maintenance(state: GroupState, name: str) -> bool:
    """Whether ``name`` is kept from being elected (R68)."""
    return name in state.maintenance


def maintain(state: GroupState, op: Maintain, wall_ms: int) -> Outcome:
    """Take a replica into maintenance, or release it."""
    name = op.node
    if name not in state.replicas:
        return Refused("unknown-node", f"{name} is not a member: {', '.join(state.replicas)}")
    if op.on == is_in_maintenance(state, name):
        return state
    others = {other: hold for other, hold in state.maintenance.items() if other != name}
    if not op.on:
        return replace(state, maintenance=others)
    # By `may_lead`: one that is in maintenance itself could not be elected either.
    if not any(state.may_lead(other) for other in state.replicas if other != name):
        text = f"without {name} there is no node that could be elected"
        return Refused(
            "last-member", text, "wait until another one is in sync: twinlog cluster status"
        )
    hold = Hold(shortened(op.who), shortened(op.why), wall_ms)
    return replace(state, maintenance=dict(sorted({**others, name: hold}.items())))


def held_back(name: str) -> Refused:
    """Return the refusal of an election of a node in maintenance."""
    text = f"{name} is in maintenance"
    return Refused("in-maintenance", text, f"twinlog cluster maintenance {name} --off")
