"""When a master counts as gone: the coordinator's last contact with each member.

Every node calls the coordinator each second; a call names the node and its session. A master is
gone when

* it was not heard for `LEASE_SECONDS`, or
* its last connection has ended `GONE_SECONDS` ago and it has not called since: the kernel closes
  the connections of a process that dies, and a process that lives connects again at once, or
* its last connection has ended, and the process that started it says that it has ended, too. That
  word alone ends nothing, so a wrong one does no harm to a master that lives.

Then its leadership is ended, so that a member stands for election, as after an operator's command.
This needs a successor: a master keeps its leadership unless a member that has everything was heard
within `LIVE_SECONDS`. Confirmed records do not depend on any of these times: confirming needs the
in-sync set of an epoch, and the register grants an epoch once. So clocks that drift cost
availability, or allow a stale read from a master that is cut off, but never lose a record.

After the coordinator's own start every master has a full `LEASE_SECONDS`. So it has when the
coordinator slept, for its machine stood still or its disk did: meanwhile it heard no node, and
nodes gave up connections that did not answer. Each living node has called again `LIVE_SECONDS`
later; until then a connection that ended says nothing.

Pure: events and the time in, an operation out. Units: seconds of a clock that does not jump.
Not here: elections (``replication.register.rules``). Rules: docs/protocol.md R59.
"""

from __future__ import annotations

from replication.register.group_state import GroupState
from replication.register.holds import is_paused
from replication.register.operations import Depose, Report, Resume

LEASE_SECONDS = 5.0
"""A master that the coordinator has not heard for this long is gone; every node calls each second.
This long after its last answered call a master refuses weak acknowledgements."""

GONE_SECONDS = 0.2
"""A master whose connections to the coordinator ended has this long to reconnect: a dead process
does not, a living one reconnects at once."""

LIVE_SECONDS = 2.5
"""A member that was heard this recently can take over; it calls each second."""

ASLEEP_SECONDS = 0.8
"""A coordinator that was not awake for this long has slept: nodes wait hardly longer for an answer
before they close the connection."""

WHO = "coordinator"

Incarnation = tuple[str, int]
"""A node's name and its session."""


class Leases:
    """See the module.

    Args:
        now: When the coordinator started.
    """

    def __init__(self, now: float) -> None:
        self._began = self._awake_at = now
        self._woke_at = float("-inf")
        self._heard: dict[str, tuple[int, float]] = {}
        self._ended: dict[str, tuple[int, float]] = {}
        self._reaped: dict[str, int] = {}

    def heard(self, now: float, state: GroupState, report: Report) -> None:
        """Record a call; ignored unless it names a registered session."""
        name = report.node
        # One entry is kept: the call of an older process would hide those of the registered one.
        if name is None or report.session == 0 or report.session != state.session_of(name):
            return
        self._heard[name] = (report.session, now)
        self._ended.pop(name, None)
        self._reaped.pop(name, None)

    def ended(self, now: float, who: Incarnation) -> None:
        """Record that the last connection of a node ended."""
        name, session = who
        self._ended[name] = (session, now)

    def reaped(self, state: GroupState, name: str) -> int:
        """Record that the process which started a node saw it end; return the session it had.

        0: no such node has registered, and nothing is recorded.
        """
        session = state.session_of(name)
        if session:
            self._reaped[name] = session
        return session

    def awake(self, now: float) -> None:
        """Record that calls are heard now; to be called several times in `ASLEEP_SECONDS`."""
        if now - self._awake_at > ASLEEP_SECONDS:
            self._began = self._woke_at = now
            # Heirs are forgotten too: no master is deposed in favour of a node that is not heard
            # now.
            self._heard.clear()
        self._awake_at = now

    def due(self, now: float, state: GroupState, wall_ms: int) -> Depose | Resume | None:
        """Return the operation that ends the leadership of a master that is gone; else None.

        Or the one that ends a pause whose time is over by the wall clock (R68): a clock that is
        wrong lets a pause end early or late, and changes nothing else.
        """
        leader, session = state.leader, state.leader_session
        if state.pause is not None and wall_ms >= state.pause.until_ms:
            return Resume(WHO, "its time is over")
        if is_paused(state):
            return None
        if leader is None or state.failover != "automatic" or not self._has_heir(now, state):
            return None
        # A new connection clears this entry (`heard`), so a master that only reconnects stays.
        if self._has_ended(now, leader, session):
            reaped = self._reaped.get(leader) == session
            why = "its process ended" if reaped else "its connections to the coordinator ended"
        elif now >= self._last(leader, session) + LEASE_SECONDS:
            why = f"not heard for {LEASE_SECONDS:g} s"
        else:
            return None
        return Depose(leader, session, WHO, f"{leader} is gone: {why}")

    def _has_ended(self, now: float, name: str, session: int) -> bool:
        ended = self._ended.get(name)
        if ended is None or ended[0] != session or now < self._woke_at + LIVE_SECONDS:
            return False
        return self._reaped.get(name) == session or now >= ended[1] + GONE_SECONDS

    def _last(self, name: str, session: int) -> float:
        heard = self._heard.get(name)
        return heard[1] if heard is not None and heard[0] == session else self._began

    def _has_heir(self, now: float, state: GroupState) -> bool:
        return any(
            # Only with a successor that has everything: ending the leadership alone would just stop
            # writes.
            state.may_lead(name)
            and name != state.leader
            and (heard := self._heard.get(name)) is not None
            and heard[0] == state.session_of(name)
            and now - heard[1] <= LIVE_SECONDS
            for name in state.replicas
        )
