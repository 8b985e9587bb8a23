"""The clock that leases and pauses go by: wall time that never falls and does not leap. Pure.

Lease ends are wall-clock milliseconds, decided by the acting master alone. A wall clock is set back
and ahead, so what counts here is:

* never back: while the wall clock is behind, this one stands still until it has caught up;
* a step ahead of more than `LEAP_MS` beyond the monotonic clock counts only after it has stood for
  `STANDS_SECONDS`; until then time goes on as if there had been none;
* never before the newest record of the log that a reign began with.

Another master with another clock ends leases early or late by the difference; nothing here can
know it.
"""

from __future__ import annotations

from typing import Final

LEAP_MS: Final = 60_000
STANDS_SECONDS: Final = 10.0


class MessagingClock:
    """See the module.

    Attributes:
        ms: What was read last.
        leaps: How many steps of the wall clock were met since the start, ahead or back.
        leapt_ms: How far the newest one was; below 0: back.
    """

    def __init__(self) -> None:
        self.ms = 0
        self._at = 0.0
        self._leapt_at: float | None = None
        self._behind = False
        self.leaps = self.leapt_ms = 0

    def begin(self, wall_ms: int, now: float, newest_ms: int) -> None:
        """A reign begins at monotonic ``now``, seconds, on a log whose newest record is that old.

        >>> clock = MessagingClock()
        >>> clock.begin(5_000, 0.0, 9_000)
        >>> clock.read(6_000, 1.0)
        9000
        """
        self.ms, self._at = max(wall_ms, newest_ms), now
        self._leapt_at, self._behind = None, False

    def read(self, wall_ms: int, now: float) -> int:
        """Return the time, ms since 1970.

        >>> clock = MessagingClock()
        >>> clock.begin(0, 0.0, 0)
        >>> clock.read(3_600_000, 1.0), clock.read(3_610_000, 11.0), clock.read(3_611_000, 12.0)
        (1000, 3610000, 3611000)
        """
        steady = self.ms + int((now - self._at) * 1000)
        if wall_ms - steady <= LEAP_MS:
            self._leapt_at = None
            found = max(self.ms, wall_ms)
        elif self._leapt_at is None:
            self._leap(wall_ms - steady)
            self._leapt_at, found = now, steady
        elif now - self._leapt_at < STANDS_SECONDS:
            found = steady
        else:
            self._leapt_at, found = None, wall_ms
        behind = self.ms - wall_ms > LEAP_MS
        if behind and not self._behind:
            self._leap(wall_ms - self.ms)
        self._behind = behind
        if found > self.ms:
            self.ms, self._at = found, now
        return self.ms

    def _leap(self, ms: int) -> None:
        self.leaps += 1
        self.leapt_ms = ms
