"""Appends that wait for their acknowledgement: released in order, each answered exactly once.

A waiter waits until one of three offsets reaches its end: the flushed offset (``flushed``), the end
that one slave has (``replicated``), the confirm offset (``confirmed``). Releasing costs time per
released waiter, none per waiting one.

Invariants:

* a waiter leaves by exactly one of `release`, `expire` and `drain`;
* waiters of one kind leave in the order of their ends;
* ``count`` and ``bytes`` include all present waiters; `fits` keeps them within the limits.

Units: ends are log offsets, sizes bytes, deadlines seconds of the caller's clock. Requests are the
caller's numbers. Not here: replies.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from heapq import heapify, heappop, heappush

WRITTEN = "written"
"""Does not wait: answered when appended."""

FLUSHED = "flushed"
REPLICATED = "replicated"
CONFIRMED = "confirmed"
KINDS = (FLUSHED, REPLICATED, CONFIRMED)


class Waiter:
    """One append that waits."""

    __slots__ = ("deadline", "end", "gone", "request", "size")

    def __init__(self, request: int, end: int, size: int, deadline: float) -> None:
        self.request = request
        self.end = end
        self.size = size
        self.deadline = deadline
        self.gone = False

    def __lt__(self, other: Waiter) -> bool:
        # A duplicate has the end of its original: then the order of the requests decides.
        return (self.end, self.request) < (other.end, other.request)


class Waiters:
    """See the module."""

    def __init__(self, count_max: int, bytes_max: int) -> None:
        self.count_max = count_max
        self.bytes_max = bytes_max
        self.count = 0
        self.bytes = 0
        self._queues: dict[str, deque[Waiter]] = {kind: deque() for kind in KINDS}
        self._deadlines: list[tuple[float, int, Waiter]] = []

    def fits(self, size: int) -> bool:
        """Whether one more append of ``size`` bytes may wait."""
        # One append always fits, or a large one could never be sent.
        if not self.count:
            return True
        return self.count < self.count_max and self.bytes + size <= self.bytes_max

    def waits_for(self, kind: str) -> bool:
        """Whether there is a waiter of ``kind``."""
        return bool(self._queues[kind])

    def add(self, request: int, kind: str, *, end: int, size: int, deadline: float) -> None:
        """Add a waiter: ``request`` waits until the offset of ``kind`` reaches ``end``."""
        waiter = Waiter(request, end, size, deadline)
        queue = self._queues[kind]
        # R47: a duplicate waits for its original's end, which may be below ends already waiting.
        if queue and queue[-1].end > end:  # a duplicate of an older section
            ordered = list(queue)
            insort(ordered, waiter)
            self._queues[kind] = deque(ordered)
        else:
            queue.append(waiter)
        heappush(self._deadlines, (deadline, request, waiter))
        self.count += 1
        self.bytes += size

    def release(self, kind: str, upto: int) -> list[int]:
        """Remove and return the requests of ``kind`` whose end is at most ``upto``."""
        queue = self._queues[kind]
        released: list[int] = []
        # Expired ones are passed here: to take one out of the middle would cost a search of the
        # queue.
        while queue and queue[0].end <= upto:
            waiter = queue.popleft()
            if not waiter.gone:
                self._forget(waiter)
                released.append(waiter.request)
        return released

    def expire(self, now: float) -> list[int]:
        """Remove and return the requests whose deadline has passed; their outcome is unknown."""
        expired: list[int] = []
        deadlines = self._deadlines
        while deadlines and (deadlines[0][2].gone or deadlines[0][0] <= now):
            waiter = heappop(deadlines)[2]
            if not waiter.gone:
                self._forget(waiter)
                expired.append(waiter.request)
        if sum(map(len, self._queues.values())) > 2 * self.count + 1024:
            # While nothing is confirmed nothing is released, and expired waiters would accumulate.
            for kind, queue in self._queues.items():
                self._queues[kind] = deque(waiter for waiter in queue if not waiter.gone)
        return expired

    def drain(self) -> list[int]:
        """Remove and return all requests, in the order of their ends."""
        left = [waiter for queue in self._queues.values() for waiter in queue if not waiter.gone]
        left.sort()
        for queue in self._queues.values():
            queue.clear()
        self._deadlines.clear()
        self.count = self.bytes = 0
        return [waiter.request for waiter in left]

    def next_deadline(self) -> float | None:
        """Return when `expire` has something to do."""
        deadlines = self._deadlines
        while deadlines and deadlines[0][2].gone:
            heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def _forget(self, waiter: Waiter) -> None:
        waiter.gone = True
        self.count -= 1
        self.bytes -= waiter.size
        if len(self._deadlines) > 2 * self.count + 1024:
            # Deadlines are far later than releases: without this the heap keeps seconds of traffic.
            self._deadlines = [item for item in self._deadlines if not item[2].gone]
            heapify(self._deadlines)
