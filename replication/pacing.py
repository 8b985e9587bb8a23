"""How much is under way, and how long to wait: windows and back-off, as values.

A `Window` bounds what a master sends ahead of a slave's acknowledgements, in bytes and in frames; a
frame is always allowed when none is under way, so that one large batch never blocks. A `Backoff`
doubles a pause up to a limit.

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
        """Frames under way."""
        return len(self._frames)

    @property
    def open(self) -> bool:
        """Whether another frame may be sent."""
        frames = len(self._frames)
        return not frames or (self.bytes < self.bytes_max and frames < self.frames_max)

    def sent(self, end: int, length: int) -> None:
        """A frame of ``length`` bytes that ends at log offset ``end`` was sent."""
        self._frames.append((end, length))
        self.bytes += length

    def acked(self, end: int) -> None:
        """Everything below ``end`` arrived."""
        frames = self._frames
        while frames and frames[0][0] <= end:
            self.bytes -= frames.popleft()[1]

    def clear(self) -> None:
        """Nothing is under way any more."""
        self._frames.clear()
        self.bytes = 0


class Jitter:
    """A row of factors between 0.8 and 1.2 that a seed decides (xorshift), so that nodes that lost
    the same peer do not come back in step."""

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
    """A pause that doubles: about ``first``, twice that, ... up to ``most`` seconds."""

    __slots__ = ("_first", "_jitter", "_most", "_next")

    def __init__(self, first: float, most: float, jitter: Jitter) -> None:
        self._first = first
        self._most = most
        self._next = first
        self._jitter = jitter

    def pause(self) -> float:
        """Return the pause to make now; the next one is longer."""
        pause = self._next
        self._next = min(self._next * 2, self._most)
        return pause * self._jitter.factor()

    def reset(self) -> None:
        """It went well: begin again with the shortest pause."""
        self._next = self._first
