"""When a master counts as gone: the coordinator's last contact with each member.

Every node calls the coordinator each second; a call names the node and its session. A master is
gone when

* it was not heard for `LEASE_SECONDS`, or
* its last connection has ended `GONE_SECONDS` ago and it has not called since: the kernel closes
  the connections of a process that dies, and a process that lives connects again at once.

Then its leadership is ended, so that a member stands for election, as after an operator's command.
This needs a successor: a master keeps its leadership unless a member that has everything was heard
within `LIVE_SECONDS`. Confirmed records do not depend on any of these times: confirming needs the
in-sync set of an epoch, and the register grants an epoch once. So clocks that drift cost
availability, or allow a stale read from a master that is cut off, but never lose a record.

After the coordinator's own start every master has a full `LEASE_SECONDS`.

Pure: events and the time in, an operation out. Units: seconds of a clock that does not jump.
Not here: elections (``replication.register.rules``). Rules: docs/protocol.md R59.
"""

from __future__ import annotations

from replication.register.group_state import GroupState
from replication.register.operations import Depose, Report

LEASE_SECONDS = 5.0
"""A master that the coordinator has not heard for this long is gone; every node calls each second.
This long after its last answered call a master refuses weak acknowledgements."""

GONE_SECONDS = 0.2
"""A master whose connections to the coordinator ended has this long to reconnect: a dead process
does not, a living one reconnects at once."""

LIVE_SECONDS = 2.5
"""A member that was heard this recently can take over; it calls each second."""

WHO = "coordinator"

Incarnation = tuple[str, int]
"""A node's name and its session."""


class Leases:
    """See the module.

    Args:
        now: When the coordinator started.
    """

    def __init__(self, now: float) -> None:
        self._began = now
        self._heard: dict[str, tuple[int, float]] = {}
        self._ended: dict[str, tuple[int, float]] = {}

    def heard(self, now: float, state: GroupState, report: Report) -> None:
        """Record a call; ignored unless it names a registered session."""
        name = report.node
        if name is None or report.session == 0 or report.session != state.session_of(name):
            return
        self._heard[name] = (report.session, now)
        self._ended.pop(name, None)

    def ended(self, now: float, who: Incarnation) -> None:
        """Record that the last connection of a node ended."""
        name, session = who
        self._ended[name] = (session, now)

    def due(self, now: float, state: GroupState) -> Depose | None:
        """Return the operation that ends the leadership of a master that is gone; else None."""
        leader, session = state.leader, state.leader_session
        if leader is None or state.failover != "automatic" or not self._has_heir(now, state):
            return None
        # A new connection clears this entry (`heard`), so a master that only reconnects stays.
        ended = self._ended.get(leader)
        if ended is not None and ended[0] == session and now >= ended[1] + GONE_SECONDS:
            why = "its connections to the coordinator ended"
        elif now >= self._last(leader, session) + LEASE_SECONDS:
            why = f"not heard for {LEASE_SECONDS:g} s"
        else:
            return None
        return Depose(leader, session, WHO, f"{leader} is gone: {why}")

    def _last(self, name: str, session: int) -> float:
        heard = self._heard.get(name)
        return heard[1] if heard is not None and heard[0] == session else self._began

    def _has_heir(self, now: float, state: GroupState) -> bool:
        return any(
            # Only with a successor that has everything: ending the leadership alone would just stop
            # writes.
            state.counts(name)
            and name != state.leader
            and (heard := self._heard.get(name)) is not None
            and heard[0] == state.session_of(name)
            and now - heard[1] <= LIVE_SECONDS
            for name in state.replicas
        )
