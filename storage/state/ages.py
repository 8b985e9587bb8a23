"""How old the bytes of a log are at least, by a monotonic clock. Pure.

The store timestamps of records come from wall clocks, which jump; a decision that depends on how
long ago something was appended must not. So the end of the log is noted now and then: what lies
below an end that was noted a while ago is at least as old as that. Nothing is known of the time
before this object was made, and nothing after a cut, which makes room for younger bytes: then
everything counts as young.

Units: seconds of a monotonic clock, log offsets in bytes.

Not here: what follows from an age (`storage.state.producers`).
"""

from __future__ import annotations

from collections import deque

STEPS = 60
"""Ends that are kept for a span; so ages are exact to a part in sixty."""


class Ages:
    """The ends of a log over the last ``span`` seconds.

    >>> ages = Ages(600.0)
    >>> [ages.older(float(at), 100 + at, 0) for at in (0, 300, 599, 600, 900)]
    [0, 0, 0, 100, 400]
    """

    def __init__(self, span: float) -> None:
        self._span = span
        self._ends: deque[tuple[float, int]] = deque()
        self._cuts = 0

    def older(self, now: float, end: int, cuts: int) -> int:
        """Note the log's end; return the offset below which all is older than the span.

        Args:
            now: The clock.
            end: End of the log.
            cuts: Changes whenever the log was cut.
        """
        if cuts != self._cuts:
            self._ends.clear()
            self._cuts = cuts
        ends = self._ends
        if not ends or now >= ends[-1][0] + self._span / STEPS:
            ends.append((now, end))
        while len(ends) > 1 and ends[1][0] <= now - self._span:
            ends.popleft()
        at, old = ends[0]
        return old if at <= now - self._span else 0
