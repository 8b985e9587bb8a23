"""How long members hold messages: from when they were handed out until an outcome came. Pure.

Kept for the newest `LEASES_MAX` leases; of older ones that are still out the time is not known.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LEASES_MAX: Final = 16_384


class LeaseTimes:
    """See the module.

    Args:
        took: Told the seconds of each outcome.
    """

    def __init__(self, took: Callable[[float], None]) -> None:
        self._took = took
        self._begun: dict[tuple[int, int], int] = {}

    def begun(self, share: int, n: int, now_ms: int) -> None:
        """Lease ``n`` of a share was handed out; once more for a repeated request counts not.

        >>> times = LeaseTimes(print)
        >>> times.begun(1, 1, 1_000)
        >>> times.begun(1, 1, 9_000)
        >>> times.ended(1, 1, 3_500)
        2.5
        """
        if len(self._begun) >= LEASES_MAX:
            del self._begun[next(iter(self._begun))]
        self._begun.setdefault((share, n), now_ms)

    def ended(self, share: int, n: int, now_ms: int) -> None:
        """An outcome of messages of a lease came."""
        begun = self._begun.get((share, n))
        if begun is not None:
            self._took(max(0, now_ms - begun) / 1000)
