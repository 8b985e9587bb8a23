"""What was promised against what is there: the demo's bookkeeping.

A message is known by the number of its row (property ``row``).  The ledger holds what was sent and
how it ended; `Comparison` holds it against what a reader found:

* *lost*: acknowledged and not there; one of them breaks the promise;
* *duplicated*: there more than once; one of them breaks the promise;
* *different*: there, but body, key or tag are not those of the row; breaks the promise;
* *extra*: there without an acknowledgement: sends whose outcome stayed unknown.  No promise.

`Handlings` does the same for a group: every acknowledged message is *handled*, and *again* only
after the lease of the handling before had ended.

Times are seconds on the monotonic clock.  Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from cli.demo.input import Flight
from twinlog.format.messages import Message


@dataclass
class Ledger:
    """What was sent, and how each message ended."""

    sent: int = 0
    acknowledged: set[int] = field(default_factory=set[int])
    unknown: set[int] = field(default_factory=set[int])
    refused: set[int] = field(default_factory=set[int])
    times: list[float] = field(default_factory=list[float])

    def acknowledge(self, rows: Iterable[int], at: float) -> None:
        """The cluster said that these rows are confirmed; ``at`` never goes back by much."""
        self.acknowledged.update(rows)
        if not self.times or at > self.times[-1]:
            self.times.append(at)

    def first_after(self, moment: float) -> float | None:
        """When the first acknowledgement after ``moment`` came; None: none yet."""
        at = bisect_right(self.times, moment)
        return self.times[at] if at < len(self.times) else None

    def gap(self, moment: float) -> float | None:
        """Seconds between the acknowledgements before and after ``moment``; None: one is missing.

        >>> ledger = Ledger()
        >>> for row, at in enumerate((1.0, 1.2, 2.0)):
        ...     ledger.acknowledge([row], at)
        >>> ledger.gap(1.5)
        0.8
        """
        after = self.first_after(moment)
        at = bisect_right(self.times, moment)
        if after is None or at == 0:
            return None
        return round(after - self.times[at - 1], 6)


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a reader found, held against a ledger; row numbers."""

    found: int
    lost: tuple[int, ...]
    duplicated: tuple[int, ...]
    different: tuple[int, ...]
    extra: int

    @property
    def kept(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.duplicated or self.different)


def compare(
    acknowledged: Iterable[int], messages: Iterable[Message], expected: Callable[[int], Flight]
) -> Comparison:
    """Hold what was read against what was acknowledged and what was sent.

    ``found`` counts acknowledged rows that are there.

    Args:
        acknowledged: Rows the cluster said are confirmed.
        messages: Everything that can be read.
        expected: The row of a number, as it was sent.
    """
    seen: Counter[int] = Counter()
    different: list[int] = []
    for message in messages:
        row = int(message.properties.get("row", "-1"))
        seen[row] += 1
        if row < 0:
            different.append(row)
            continue
        flight = expected(row)
        if (message.body, message.key, message.tag) != (flight.body, flight.key, flight.tag):
            different.append(row)
    wanted = set(acknowledged)
    found = len(wanted & seen.keys())
    return Comparison(
        found=found,
        lost=tuple(sorted(wanted - seen.keys())),
        duplicated=tuple(sorted(row for row, times in seen.items() if times > 1)),
        different=tuple(different),
        extra=len(seen.keys() - wanted),
    )


@dataclass
class Handlings:
    """What the members of a group handled; rows by number.

    Attributes:
        again: How often a row was handled again after its lease had ended.
        too_early: Rows that were handled again while the lease before still held.
    """

    again: int = 0
    too_early: list[int] = field(default_factory=list[int])
    _ends: dict[int, float] = field(default_factory=dict[int, float])

    def note(self, row: int, now: float, ends: float) -> None:
        """A row is handled ``now``, under a lease that ends at ``ends`` or later.

        >>> handlings = Handlings()
        >>> for now, ends in ((1.0, 3.0), (3.5, 5.0), (4.0, 9.0)):
        ...     handlings.note(7, now, ends)
        >>> handlings.again, handlings.too_early
        (1, [7])
        """
        before = self._ends.get(row)
        self._ends[row] = ends
        if before is None:
            return
        if now < before:
            self.too_early.append(row)
        else:
            self.again += 1

    def handled(self, rows: Collection[int]) -> int:
        """How many of the rows were handled."""
        return sum(row in self._ends for row in tuple(rows))

    def missing(self, rows: Collection[int]) -> int:
        """How many of the rows were not handled."""
        return len(rows) - self.handled(rows)
