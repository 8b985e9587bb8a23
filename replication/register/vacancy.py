"""When nobody is known to have everything: both sets are empty, and there is no leader.

It comes from a power failure of all members at once (each may have lost acknowledged records that
were in its memory only), or from the loss of the last member's disk. Nobody is elected then by the
usual rule. But once **every** replica has, since that moment, read the state, given up its role,
promised not to take part in an older epoch and reported its end, the log with the greatest (last
epoch, end) of all holds everything that still exists: logs that agree on the last epoch are
prefixes of one another. It is elected when an operator says so, or by itself where the group's
``after_power_loss`` is ``best``; either way the election is recorded as unclean, because records
that were confirmed may have been lost before it.

A replica that is missing may hold more, and a member whose disk was lost held what nobody can
compare: then only an operator decides, with `UncleanElect`.

Pure. Not here: who asks (``replication.register.rules``), how a node learns that it must report
(``replication.core.register_questions``).
"""

from __future__ import annotations

from dataclasses import dataclass

from replication.register.group_state import GroupState


@dataclass(frozen=True, slots=True)
class Best:
    """The replica that holds everything that still exists; without a name: why it is unknown."""

    name: str | None
    text: str = ""
    hint: str = ""


def best_of_all(state: GroupState) -> Best:
    """Say which replica holds everything that still exists."""
    known = furthest(state) if state.ends else (state.replicas or ("NODE",))[0]
    force = f"twinlog cluster failover --unclean {known}"
    if missing := missing_ends(state):
        names = ", ".join(missing)
        text = f"no node is known to have everything, and {names} did not report how much it has"
        return Best(None, text, f"start {names}, or accept the loss: {force}")
    if lost := lost_stores(state):
        text = f"no node is known to have everything, and the disk of {', '.join(lost)} was lost"
        return Best(None, text, f"accept the loss: {force}")
    return Best(furthest(state))


def missing_ends(state: GroupState) -> tuple[str, ...]:
    """Return the replicas that have not reported their ends since nobody has everything."""
    sessions = {name: end.session for name, end in state.ends.items()}
    return tuple(n for n in state.replicas if sessions.get(n) != (state.session_of(n) or None))


def lost_stores(state: GroupState) -> tuple[str, ...]:
    """Return the former members whose disks were lost: what they held cannot be compared."""
    return state.wiped


def furthest(state: GroupState) -> str:
    """Return the replica whose reported end is the greatest; there must be one."""
    ends = state.ends
    return max(
        sorted(ends),
        key=lambda name: (ends[name].last_epoch, ends[name].end, state.priorities.get(name, 0)),
    )
