"""What became of messages, joined into as few rows as they can be said in.

An outcome is noted when the caller says it and leaves with the next request of the kind: neighbours
of one lease with the same outcome are one row. Rows that were sent and not answered are sent again
to the next master; each is the same however often it is carried out.

Pure. Not here: when they are sent (``twinlog.groups.core``).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from twinlog.wire.groups import ROWS_MAX, What

URGENT: Final = -math.inf
"""What `Outcomes.since` is when they are to leave with the next request."""


class Told(NamedTuple):
    """One outcome: what it is, with its number (ms of a release or an extension) and reason.

    ``late`` says that the lease was over by this machine's clock; it is not sent.
    """

    what: What
    number: int = 0
    why: str = ""
    late: bool = False


class Row(NamedTuple):
    """One row of a SETTLE: an outcome for ``first`` to ``last``, both included, of one lease.

    ``again`` says that it may have been carried out already.
    """

    share: int
    n: int
    told: Told
    first: int
    last: int
    again: bool = False

    def wire(self) -> list[object]:
        """Return the columns as they are sent."""
        told = self.told
        row: list[object] = [self.share, self.n, int(told.what), self.first, self.last, told.number]
        return [*row, told.why] if told.why else row


@dataclass(slots=True)
class Outcomes:
    """What was noted and not sent.

    Attributes:
        since: When the oldest was noted, seconds; of no meaning while nothing is noted.
    """

    since: float = 0.0
    _runs: dict[tuple[int, int, Told], list[list[int]]] = field(
        default_factory=dict[tuple[int, int, Told], list[list[int]]]
    )
    _again: list[Row] = field(default_factory=list[Row])

    def __bool__(self) -> bool:
        """Whether anything is noted."""
        return bool(self._runs or self._again)

    @property
    def urgent(self) -> bool:
        """Whether something is noted that is to leave before anything else is asked."""
        return bool(self) and self.since == URGENT

    def note(self, share: int, n: int, offset: int, told: Told, now: float) -> None:
        """Note one outcome."""
        if not self:
            self.since = now
        runs = self._runs.get((share, n, told))
        if runs is None:
            self._runs[share, n, told] = [[offset, offset]]
        elif runs[-1][1] + 1 == offset:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])

    def back(self, rows: list[Row]) -> None:
        """Take back rows that were sent and not answered: they are sent again, first."""
        self._again = [row._replace(again=True) for row in rows] + self._again
        self.since = URGENT

    def take(self) -> list[Row]:
        """Return the rows to send now, at most `ROWS_MAX`; the rest stays."""
        rows, self._again = self._again[:ROWS_MAX], self._again[ROWS_MAX:]
        while self._runs and len(rows) < ROWS_MAX:
            (share, n, told), runs = next(iter(self._runs.items()))
            joined = joined_runs(runs)
            room = ROWS_MAX - len(rows)
            rows += [Row(share, n, told, first, last) for first, last in joined[:room]]
            if len(joined) > room:
                self._runs[share, n, told] = joined[room:]
            else:
                del self._runs[share, n, told]
        return rows


def joined_runs(runs: list[list[int]]) -> list[list[int]]:
    """Return inclusive ranges in order, neighbours joined.

    >>> joined_runs([[4, 5], [1, 1], [2, 3], [9, 9]])
    [[1, 5], [9, 9]]
    """
    found: list[list[int]] = []
    for first, last in sorted(runs):
        if found and found[-1][1] + 1 == first:
            found[-1][1] = last
        else:
            found.append([first, last])
    return found
