"""The vacant register: both sets are empty, and there is no leader (R56).

It results from a power failure of all members at once (each may have lost acknowledged records that
were only in its memory), or from the loss of the last member's disk. The usual rule then elects no
node. But once **every** replica has, since that moment, read the state, ended its role, promised
not to take part in an older epoch and reported its end, the log with the greatest (last epoch, end)
has everything that still exists: logs with the same last epoch are prefixes of one another. It is
elected by an operator's command, or automatically if the group's ``after_power_loss`` is ``best``;
either way the election is recorded as unclean, because confirmed records may have been lost before
it.

A missing replica may have more, and the records of a lost disk cannot be compared: then only an
operator can decide, with `UncleanElect`.

Pure. Not here: the operations (``replication.register.rules``), when a node reports
(``replication.core.register_questions``).
"""

from __future__ import annotations

from dataclasses import dataclass

from replication.register.group_state import GroupState


@dataclass(frozen=True, slots=True)
class Best:
    """The replica that has everything that still exists; without a name: why it is unknown."""

    name: str | None
    text: str = ""
    hint: str = ""


def best_of_all(state: GroupState) -> Best:
    """Return which replica has everything that still exists."""
    known = furthest(state) if state.ends else (state.replicas or ("NODE",))[0]
    force = f"twinlog cluster failover --unclean {known}"
    if missing := missing_ends(state):
        names = ", ".join(missing)
        text = f"no node is known to have everything, and {names} did not report its end"
        return Best(None, text, f"start {names}, or accept the loss: {force}")
    if lost := lost_stores(state):
        names = ", ".join(lost)
        text = f"no node is known to have everything, and the disk of {names} was lost or exchanged"
        return Best(None, text, f"accept the loss: {force}")
    return Best(furthest(state))


def missing_ends(state: GroupState) -> tuple[str, ...]:
    """Return the replicas that have not reported their ends since the vacancy began."""
    sessions = {name: end.session for name, end in state.ends.items()}
    return tuple(n for n in state.replicas if sessions.get(n) != (state.session_of(n) or None))


def lost_stores(state: GroupState) -> tuple[str, ...]:
    """Return the former members whose disks were lost, with records that cannot be compared."""
    return state.wiped


def furthest(state: GroupState) -> str:
    """Return the replica with the greatest reported end; there must be one."""
    ends = state.ends
    return max(
        sorted(ends),
        # The epoch first: the master of a newer epoch had everything that an older one could
        # confirm.
        key=lambda name: (ends[name].last_epoch, ends[name].end, state.priorities.get(name, 0)),
    )
