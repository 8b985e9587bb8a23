"""The clocks of one machine: one that only rises, fast or slow, and one on the wall that jumps.

As Linux keeps them: the first stands still while the machine is suspended, and no two machines
agree on how long a second is.

Not here: who suspends (`tests.sim.faults`).
"""

from __future__ import annotations

from random import Random

from tests.sim.schedule import Schedule

_WALL_START_MS = 1_700_000_000_000


class Clock:
    """See the module.

    Args:
        schedule: Has the true time.
        drift: Largest share by which this clock is fast or slow.
        rng: Draws by how much it is.
    """

    def __init__(self, schedule: Schedule, drift: float, rng: Random) -> None:
        self._schedule = schedule
        self._rate = 1.0 + drift * (2 * rng.random() - 1) if drift else 1.0
        self._suspended_at: float | None = None
        self._lost = 0.0
        self._wall_ms = 0

    def now(self) -> float:
        """The clock that only rises, seconds."""
        at = self._schedule.now if self._suspended_at is None else self._suspended_at
        return (at - self._lost) * self._rate

    def true_time(self, local: float) -> float:
        """When this clock will show ``local``, if the machine is not suspended."""
        return local / self._rate + self._lost

    def wall_ms(self) -> int:
        """The clock on the wall, ms."""
        return _WALL_START_MS + int(self._schedule.now * 1000) + self._wall_ms

    def jump(self, ms: int) -> None:
        """Set the clock on the wall wrong by so much."""
        self._wall_ms = ms

    @property
    def was_suspended(self) -> bool:
        """Whether it has ever stood still."""
        return self._lost > 0

    def suspend(self) -> None:
        """Stand still from now on."""
        if self._suspended_at is None:
            self._suspended_at = self._schedule.now

    def resume(self) -> None:
        """Go on from where it stood."""
        if self._suspended_at is not None:
            self._lost += self._schedule.now - self._suspended_at
            self._suspended_at = None
