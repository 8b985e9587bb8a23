"""Positions of broadcast members: each has its own, kept under ``group~name``. Pure.

A position only rises; setting it back is a reset. The same position once more is no error and no
row.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from node.groups.context import Context, Turn
from node.groups.joining import Request
from node.groups.members import Session
from storage.messaging.fold import MEMBER_SIGN
from twinlog.format.group_rows import PositionRow
from twinlog.wire.groups import DONE, POSITION_OFFSET, RECEIPT_UNKNOWN

OFTEN: Final = 20
OFTEN_SECONDS: Final = 0.1
"""As many COMMITs within this time are many: 200 a second."""

JOIN_SECONDS: Final = 0.01
"""How long the first of those that are joined waits."""

JOINED_MAX: Final = 256
"""So many are not let wait any longer."""


def commit(
    context: Context, session: Session, turn: Turn, rows: Iterable[tuple[int, int]]
) -> list[list[object]]:
    """Return for each (share, position) of a COMMIT its code and the position after it."""
    name, member = session.group + MEMBER_SIGN + session.name, session.member
    records, where, move = context.records, turn.scratch.position, turn.scratch.move
    found, ends = list[list[object]](), turn.ends
    for number, position in rows:
        at = where(number)
        if at is None or at[0].group != name:
            found.append([RECEIPT_UNKNOWN, 0])
            continue
        share, now = at
        place = share.topic, share.queue
        end = ends[place] if place in ends else turn.end(records, share)
        if end is None:
            found.append([RECEIPT_UNKNOWN, 0])
        elif now <= position <= end or now == position:
            if position > now:  # else it stands there already
                move(share, PositionRow(number, member, 0, position))
            found.append([DONE, position])
        else:
            found.append([POSITION_OFFSET, now])
    return found


class Commits:
    """COMMITs wait for each other while many come: `OFTEN` of them within `OFTEN_SECONDS`.

    A turn costs the same for one position as for a hundred: a record, a batch, its way to the
    slaves and back. Where fewer come, each is decided at once.

    Attributes:
        deadline: When those that wait are to be decided, seconds; infinite: none wait.
    """

    def __init__(self) -> None:
        self._waiting: list[Request] = []
        self._times: deque[float] = deque(maxlen=OFTEN)
        self.deadline = float("inf")

    def __len__(self) -> int:
        """Return how many wait."""
        return len(self._waiting)

    def add(self, request: Request, now: float) -> bool:
        """Let a COMMIT wait for others if many come; False: it is to be decided at once.

        Args:
            request: What it asks.
            now: The loop's clock, seconds.
        """
        times = self._times
        times.append(now)
        often = len(times) == OFTEN and now - times[0] <= OFTEN_SECONDS
        if len(self._waiting) >= JOINED_MAX or not (often or self._waiting):
            return False
        if not self._waiting:
            self.deadline = now + JOIN_SECONDS
        self._waiting.append(request)
        return True

    def take(self) -> list[Request]:
        """Return those that wait, oldest first; they wait no more."""
        found, self._waiting = self._waiting, []
        self.deadline = float("inf")
        return found
