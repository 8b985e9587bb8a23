"""How many messages a member may hold: as many as its body handles in half a lease.

The average is a moving one over the last bodies. Until bodies have been seen, little is held: the
first pop asks for one message, and what may be held doubles with what was handled.

Pure. Source: nats-io/nats.go#1929, where prefetched messages outlive their lease in a buffer.
"""

from __future__ import annotations

from typing import Final

WEIGHT: Final = 0.2
"""Of the newest body in the average."""


class Speed:
    """See the module.

    Args:
        most: Never more than this many messages.

    Attributes:
        average: Seconds for one body; 0 before the first.
    """

    def __init__(self, most: int) -> None:
        self.average = 0.0
        self._most = most
        self._handled = 0

    def took(self, seconds: float) -> None:
        """Take note how long one body took."""
        first = not self._handled
        self._handled = min(self._handled + 1, self._most)
        self.average = seconds if first else self.average + WEIGHT * (seconds - self.average)

    def allowance(self, invisible: float) -> int:
        """Return how many messages may be held, at least one, under leases of ``invisible`` s.

        >>> speed = Speed(64)
        >>> speed.allowance(60)
        1
        >>> speed.took(10.0)
        >>> speed.took(10.0)
        >>> speed.allowance(60)
        3
        """
        most = min(self._most, 2 * self._handled)
        if self.average > 0:
            most = min(most, int(invisible / 2 / self.average))
        return max(1, most)

    def needed(self, invisible: float) -> float:
        """Return how much of a lease must be left for a body to begin, seconds."""
        return min(invisible / 2, 2 * self.average)
