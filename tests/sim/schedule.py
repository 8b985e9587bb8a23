"""Simulated time: one heap of events, one clock, one source of chance.

Everything that happens in a run is an entry here. Two entries of the same instant run in the
order in which they were added, so a run is a function of its seed alone. Time is seconds since
the start of the run; it moves only from event to event and costs nothing.

Not here: what the events mean; a paused node's events (`tests.sim.machines.node`).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from random import Random


class Schedule:
    """The queue of future events.

    Attributes:
        now: Simulated time, seconds.
        rng: The run's only source of chance.
        events: How many events ran.
    """

    __slots__ = ("_added", "_heap", "events", "now", "rng")

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = Random(seed)
        self.events = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[object, ...]]] = []
        self._added = 0

    def at(self, when: float, call: Callable[..., None], *args: object) -> None:
        """Run ``call(*args)`` at ``when`` (seconds), or now if that has passed."""
        self._added += 1
        heapq.heappush(self._heap, (max(when, self.now), self._added, call, args))

    def after(self, delay: float, call: Callable[..., None], *args: object) -> None:
        """Run ``call(*args)`` in ``delay`` seconds."""
        self._added += 1
        heapq.heappush(self._heap, (self.now + delay, self._added, call, args))

    def run_until(self, end: float) -> None:
        """Run every event before ``end`` and leave the clock there."""
        heap = self._heap
        while heap and heap[0][0] < end:
            self.now, _, call, args = heapq.heappop(heap)
            self.events += 1
            call(*args)
        self.now = end
