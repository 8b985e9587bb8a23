"""Windows, rates and back-off, as values.

A `Window` bounds what a master sends ahead of a slave's acknowledgements, in bytes and in frames;
one frame is always allowed, so that a single large batch never blocks (R44). A `Pace` spreads
bytes over time. A `Backoff` doubles a pause up to a limit.

Units: bytes, seconds. Not here: clocks; ``now`` arrives as an argument.
"""

from __future__ import annotations

from collections import deque


class Window:
    """Frames that were sent and not yet acknowledged, oldest first.

    Invariants: ends rise; ``bytes`` is the sum of the lengths of the frames held.
    """

    __slots__ = ("_frames", "bytes", "bytes_max", "frames_max")

    def __init__(self, bytes_max: int, frames_max: int) -> None:
        self.bytes_max = bytes_max
        self.frames_max = frames_max
        self.bytes = 0
        self._frames: deque[tuple[int, int]] = deque()

    @property
    def frames(self) -> int:
        """Unacknowledged frames."""
        return len(self._frames)

    @property
    def open(self) -> bool:
        """Whether another frame may be sent."""
        frames = len(self._frames)
        return not frames or (self.bytes < self.bytes_max and frames < self.frames_max)

    def sent(self, end: int, length: int) -> None:
        """Add a sent frame of ``length`` bytes that ends at log offset ``end``."""
        self._frames.append((end, length))
        self.bytes += length

    def acked(self, end: int) -> None:
        """Remove the frames that end at or below ``end``: they were acknowledged."""
        frames = self._frames
        while frames and frames[0][0] <= end:
            self.bytes -= frames.popleft()[1]

    def clear(self) -> None:
        """Remove all frames."""
        self._frames.clear()
        self.bytes = 0


class Pace:
    """At most ``rate`` bytes a second on average, a frame at a time; None: as many as there are.

    >>> pace = Pace(1000)
    >>> pace.spent(500, 10.0)
    >>> pace.resume_at
    10.5
    >>> pace.resumed(10.4), pace.resumed(10.5), pace.resumed(10.6)
    (False, True, False)
    """

    __slots__ = ("rate", "resume_at")

    def __init__(self, rate: int | None) -> None:
        self.rate = rate
        self.resume_at = 0.0
        """When the next frame may be sent; 0: at once."""

    def spent(self, length: int, now: float) -> None:
        """Take note that a frame was sent."""
        if self.rate is not None:
            self.resume_at = max(self.resume_at, now) + length / self.rate

    def resumed(self, now: float) -> bool:
        """Return whether a pause has just ended."""
        if not 0.0 < self.resume_at <= now:
            return False
        self.resume_at = 0.0
        return True


class Jitter:
    """Pseudo-random factors between 0.8 and 1.2 from a seed (xorshift).

    So nodes that lost the same peer do not retry in step."""

    __slots__ = ("_state",)

    def __init__(self, seed: int) -> None:
        self._state = (seed * 0x9E3779B97F4A7C15 + 1) & 0xFFFFFFFFFFFFFFFF

    def factor(self) -> float:
        """Return the next factor."""
        state = self._state
        state ^= (state << 13) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 7
        state ^= (state << 17) & 0xFFFFFFFFFFFFFFFF
        self._state = state
        return 0.8 + 0.4 * (state >> 11) / (1 << 53)


class Backoff:
    """A doubling pause: about ``first``, twice that, ... up to ``most`` seconds."""

    __slots__ = ("_first", "_jitter", "_most", "_next")

    def __init__(self, first: float, most: float, jitter: Jitter) -> None:
        self._first = first
        self._most = most
        self._next = first
        self._jitter = jitter

    def pause(self) -> float:
        """Return the next pause; the one after it is longer."""
        pause = self._next
        self._next = min(self._next * 2, self._most)
        return pause * self._jitter.factor()

    def reset(self) -> None:
        """Begin again with the shortest pause, after a success."""
        self._next = self._first
