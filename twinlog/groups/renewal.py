"""Extensions of leases: when one is due, and when a lease ends after it was answered.

An extension that is under way prolongs nothing: until the node has taken it, the lease ends when it
would have. Its new end counts from when the request was sent, so it never lies after the node's.

Pure; seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from twinlog.groups.leases import TICK_SECONDS, Held
from twinlog.groups.outcomes import Row


class Renewals:
    """See the module.

    Attributes:
        at: When the first lease of a body is to be extended.
    """

    def __init__(self) -> None:
        self.at = math.inf

    def begun(self, held: Held, invisible: float) -> None:
        """A body has a message: its lease is extended once half of it has passed."""
        if not held.extending:
            self.at = min(self.at, held.ends - invisible / 2)

    def due(self, handed: Iterable[Held], invisible: float, most: float, now: float) -> list[Held]:
        """Return whose lease is to be extended now.

        Args:
            handed: What bodies have.
            invisible: How long a lease is.
            most: For how long after its body began a lease is extended.
            now: Seconds.
        """
        if now < self.at or not most:
            return []
        found: list[Held] = []
        self.at = math.inf
        for held in handed:
            if now - held.begun >= most or now >= held.ends:
                continue
            if held.ends - now <= invisible / 2 and not held.extending:
                found.append(held)
            else:
                self.begun(held, invisible)
        return found

    def answered(
        self,
        row: Row,
        handed: Mapping[tuple[int, int, int], Held],
        sent: float,
        invisible: float,
        *,
        taken: bool,
    ) -> None:
        """Take the answer to an extension.

        Args:
            row: What was asked.
            handed: What bodies have, by share, lease and offset.
            sent: When it was sent.
            invisible: How long a lease is.
            taken: Whether the node prolonged the lease; else its end stays, and it is not extended
                again.
        """
        for offset in range(row.first, row.last + 1):
            held = handed.get((row.share, row.n, offset))
            if held is None or not taken or sent < held.extended:
                continue
            held.extending, held.extended = False, sent
            held.ends = sent + row.told.number / 1000 - TICK_SECONDS
            self.begun(held, invisible)
