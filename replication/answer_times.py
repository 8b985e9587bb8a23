"""How long a slave takes to acknowledge what it is sent, and whether that makes it slow.

One frame at a time is timed, from its sending until the acknowledgement that counts. A slave is
slow if it took longer than allowed for *every* timed frame of two spans in a row: the shortest time
of a span is that of the link and of the slave's disk, while the others also contain what a busy
machine adds. Bytes that were under way before a frame are allowed for, so that a full window is not
taken for a slow link.

Without frames nothing is known: a slave that no write waits for is not slow.

Units: bytes, seconds. Not here: who is in sync (``core.in_sync``), what is said about a slow slave
(``core.leading``).
"""

from __future__ import annotations

SPAN_SECONDS = 2.0
"""Two of these in a row decide."""

SAMPLES_MIN = 5
"""Frames that must have been timed in a span, unless they fill half of it."""

ALLOWED_BYTES_PER_SECOND = 64 << 20
"""A slave that takes less than this under load is slow, too."""

SHARE = 1 / 8
"""Weight of the newest time in the mean (RFC 6298)."""

NEVER = 1 << 63
"""Above every log offset: no frame is timed."""


class AnswerTimes:
    """See the module.

    Args:
        slow: A slave that always takes longer than this is slow, seconds.
        now: Clock.

    Attributes:
        end: End of the timed frame; `NEVER` without one.
        mean: Smoothed round trip, seconds; None: nothing was answered yet.
        is_slow: See the module.
    """

    __slots__ = (
        "_allowed",
        "_asked",
        "_asked_at",
        "_best",
        "_busy",
        "_count",
        "_sent_at",
        "_slow",
        "_span_at",
        "_suspect",
        "end",
        "is_slow",
        "mean",
    )  # fmt: skip

    def __init__(self, slow: float, now: float) -> None:
        self._slow = slow
        self.mean: float | None = None
        self.is_slow = False
        self._asked, self._asked_at = 0, now
        self._sent_at = self._allowed = 0.0
        self.clear(now)

    def clear(self, now: float) -> None:
        """Begin a new span: the link begins again, or this process itself was stopped."""
        self.end = NEVER
        self._suspect = False
        self._begin(now)

    def _begin(self, now: float) -> None:
        self._span_at = now
        self._best, self._busy, self._count = 0.0, 0.0, 0

    def sent(self, end: int, before: int, now: float) -> None:
        """A frame up to ``end`` was sent while ``before`` bytes were under way."""
        if self.end == NEVER:
            self.end, self._sent_at = end, now
            self._allowed = self._slow + before / ALLOWED_BYTES_PER_SECOND

    def counted(self, end: int, now: float) -> None:
        """Everything below ``end`` is acknowledged, in the quality that counts."""
        if end >= self.end:
            self.end = NEVER
            self._take(now - self._sent_at)

    def asked(self, nonce: int, now: float) -> None:
        """A PING was sent: on a quiet link its answer is the round trip."""
        self._asked, self._asked_at = nonce, now

    def answered(self, nonce: int, now: float) -> None:
        """A PONG came."""
        if nonce == self._asked:
            self._asked = 0
            self._mean(now - self._asked_at)

    def _mean(self, seconds: float) -> None:
        self.mean = seconds if self.mean is None else self.mean + SHARE * (seconds - self.mean)

    def _take(self, seconds: float) -> None:
        self._mean(seconds)
        over = seconds / self._allowed
        self._best = over if not self._count else min(self._best, over)
        self._count += 1
        self._busy += seconds

    def seconds(self, now: float) -> float | None:
        """Return the round trip: the mean, or how long the timed frame has waited if longer."""
        if self.end == NEVER:
            return self.mean
        return max(self.mean or 0.0, now - self._sent_at)

    def look(self, now: float) -> bool:
        """Judge at the end of a span; return whether `is_slow` has changed."""
        if now - self._span_at < SPAN_SECONDS:
            return False
        open_ = now - max(self._sent_at, self._span_at) if self.end != NEVER else 0.0
        over = self._best if self._count else open_ / self._allowed if open_ else 0.0
        known = self._count >= SAMPLES_MIN or self._busy + open_ >= SPAN_SECONDS / 2
        late = known and over >= 1.0
        before, self.is_slow = self.is_slow, late and (self._suspect or self.is_slow)
        self._suspect = late
        self._begin(now)
        return self.is_slow is not before
