"""A share: what one group knows of one queue. Pure.

Below ``low`` everything is settled; at and above ``next`` nothing was handed out; between the two
*runs* lie one after the other without a gap: leased, waiting (given back, to be handed out from a
time on) or settled. The first run is never a settled one, for ``low`` moves over it. Neighbours
that differ in nothing but their offsets are one run, so equal histories give equal shares.

``n`` is the number of the newest lease. A row about a lease counts only where that lease is still
the newest of its messages: a row that came too late changes nothing.

Units: queue offsets, ends inclusive in runs and rows; ms since 1970. Nothing here looks at a clock:
a lease whose time has passed is still a lease, until a row says otherwise.

Not here: who gets what (``node.groups``), rows and their order (`storage.messaging.fold`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from operator import itemgetter
from typing import NamedTuple, cast

LEASED, WAITING, SETTLED = 1, 2, 3

SPAN_MAX = 65_536
"""Offsets between low and next, beyond which nothing new is handed out."""
OFFSET_MAX = 1 << 63
"""Queue offsets are below it."""
RUNS_MAX = 2_048
"""Runs, beyond which nothing new is handed out."""


class Run(NamedTuple):
    """Messages of one fate.

    Attributes:
        first: Queue offset of the first one.
        last: Queue offset of the last one.
        state: `LEASED`, `WAITING` or `SETTLED`; of a settled run all that follows is 0.
        n: Their newest lease.
        attempt: How often they were handed out and not given back unused.
        until: When the lease ends, or from when on they may be handed out again.
        member: Who has, or had, them.
        pop: With which request.
    """

    first: int
    last: int
    state: int
    n: int = 0
    attempt: int = 0
    until: int = 0
    member: int = 0
    pop: int = 0


_FIRST: Callable[[Run], int] = itemgetter(0)
_run = cast("Callable[[tuple[int, ...]], Run]", partial(tuple.__new__, Run))  # pyright: ignore
"""Makes a run of a tuple, in half the time: a start applies hundreds of thousands of rows."""


class Share:
    """One share; see the module.

    Attributes:
        id: Its number in rows.
        group: Its group; with ``~name`` of one member of a broadcast group.
        topic: Topic name.
        incarnation: Which topic of that name.
        queue: Queue number.
        low: Everything below is settled.
        next: Nothing from here on was handed out.
        n: Number of the newest lease.
        runs: What lies between the two, in order; not to be changed from outside.
    """

    __slots__ = ("group", "id", "incarnation", "low", "n", "next", "queue", "runs", "topic")

    def __init__(
        self, share: int, group: str, topic: str, incarnation: int, queue: int, start: int
    ) -> None:
        self.id, self.group, self.topic = share, group, topic
        self.incarnation, self.queue = incarnation, queue
        self.low = self.next = start
        self.n = 0
        self.runs: list[Run] = []

    def copy(self) -> Share:
        """Return another share that says the same."""
        made = Share(self.id, self.group, self.topic, self.incarnation, self.queue, self.low)
        made.next, made.n, made.runs = self.next, self.n, self.runs.copy()
        return made

    # -- what is true now

    @property
    def span(self) -> int:
        """Offsets between low and next."""
        return self.next - self.low

    def full(self, span_max: int = SPAN_MAX, runs_max: int = RUNS_MAX) -> bool:
        """Whether nothing new may be handed out before something is settled."""
        return self.next - self.low >= span_max or len(self.runs) >= runs_max

    def count(self, state: int) -> int:
        """Return how many messages are `LEASED`, or `WAITING`."""
        return sum(run.last - run.first + 1 for run in self.runs if run.state == state)

    def due(self, now: int) -> Iterator[Run]:
        """Yield what may be handed out again: waiting until now, or leased and not answered."""
        return (run for run in self.runs if run.state != SETTLED and run.until <= now)

    def run_at(self, offset: int) -> Run | None:
        """Return the run that holds an offset; None below low and from next on."""
        if not self.low <= offset < self.next:
            return None
        return self.runs[bisect_right(self.runs, offset, key=_FIRST) - 1]

    def holds(self, n: int, first: int, last: int) -> bool:
        """Whether lease ``n`` is the newest of all of ``first..last`` and none of it is settled."""
        at = first
        while self.low <= at <= last and at < self.next:
            run = self.runs[bisect_right(self.runs, at, key=_FIRST) - 1]
            if run.n != n or run.state == SETTLED:
                return False
            at = run.last + 1
        return first <= last < at

    # -- what rows change; each returns whether it changed anything

    def lease(
        self, n: int, first: int, count: int, member: int, pop: int, until: int, attempt: int
    ) -> bool:
        """Hand out ``count`` messages from ``first`` on: new ones, or some that are not settled.

        New ones may leave some out before ``first``: those are settled. A lease of none does only
        that.
        """
        # The next number and no other: a row of an older reign that was decided on other leases is
        # void (mutant n_not_compared).
        if n != self.n + 1 or count < 0 or first < self.low or first + count > OFFSET_MAX:
            return False
        run = _run((first, first + count - 1, LEASED, n, attempt, until, member, pop))
        if first >= self.next:
            if first > self.next:
                # Left out by a filter: unsettled they would keep `low` where it is, and their file,
                # for ever.
                self._append(Run(self.next, first - 1, SETTLED))
                self._trim()
            if count:  # of a number that no other run has: it is joined with none
                self.runs.append(run)
                self.next = first + count
        elif not count or not self._lease_again(run):
            return False
        self.n = n
        return True

    def _lease_again(self, run: Run) -> bool:
        if run.last >= self.next:
            return False
        begin = bisect_right(self.runs, run.first, key=_FIRST) - 1
        end = bisect_right(self.runs, run.last, key=_FIRST)
        old = self.runs[begin:end]
        # All or nothing: a lease of a part would be another lease than the one that its member
        # knows.
        if any(one.state == SETTLED for one in old):
            return False
        made = [old[0]._replace(last=run.first - 1)] if old[0].first < run.first else []
        made.append(run)
        if old[-1].last > run.last:
            made.append(old[-1]._replace(first=run.last + 1))
        self._put(begin, end, made)
        return True

    def settle(self, n: int, first: int, last: int) -> bool:
        """Settle what of ``first..last`` lease ``n`` is the newest of, waiting ones too."""
        runs = self.runs
        at = 0
        # Mostly the oldest message is settled first: then nothing is searched.
        if runs and runs[0][1] < first:
            at = bisect_right(runs, first, key=_FIRST) - 1
        if runs and (run := runs[at])[0] == first and run[1] == last and run[3] == n:
            if run[2] == SETTLED:
                return False
            # Behind it nothing is settled, so `low` moves over this run alone.
            if at == 0 and (len(runs) == 1 or runs[1][2] != SETTLED):  # as most are
                del runs[0]
                self.low = last + 1
            else:
                self._settle_run(at)
            return True
        if not self._change(n, first, last, (LEASED, WAITING), _settled):
            return False
        self._trim()
        return True

    def _settle_run(self, at: int) -> None:
        """Settle one whole run; its neighbours that are settled become one with it."""
        runs = self.runs
        first, last = runs[at][:2]
        begin, end = at, at + 1
        if begin and runs[begin - 1][2] == SETTLED:
            begin -= 1
            first = runs[begin][0]
        if end < len(runs) and runs[end][2] == SETTLED:
            last = runs[end][1]
            end += 1
        if begin:
            runs[begin:end] = [_run((first, last, SETTLED, 0, 0, 0, 0, 0))]
        else:
            del runs[:end]
            self.low = last + 1

    def release(self, n: int, first: int, last: int, at: int, unused: int) -> bool:
        """Give back what of ``first..last`` is leased under ``n``, to be handed out from ``at``."""

        def waiting(run: Run) -> Run:
            # What no member has looked at was no attempt (mutant unused_counts); not below 0,
            # whatever a row says.
            attempt = max(0, run.attempt - 1) if unused else run.attempt
            return run._replace(state=WAITING, attempt=attempt, until=at)

        return self._change(n, first, last, (LEASED,), waiting)

    def extend(self, n: int, first: int, last: int, until: int) -> bool:
        """Let what of ``first..last`` is leased under ``n`` end at ``until``."""
        return self._change(n, first, last, (LEASED,), lambda run: run._replace(until=until))

    def move(self, to: int) -> bool:
        """Take everything below ``to`` for settled: a position. Never back, nor over a lease."""
        # With runs `low` would pass messages that a member still has (mutant low_over_waiting).
        if to <= self.next or self.runs:
            return False
        self.low = self.next = to
        return True

    def reset(self, to: int) -> bool:
        """Go on at ``to``, back or ahead; leases end."""
        self.low = self.next = to
        # Rows about the leases that end here name smaller numbers, so they change nothing any more.
        self.n += 1
        self.runs.clear()
        return True

    # -- runs

    def _append(self, run: Run) -> None:
        # Two stretches left out one after the other are one run: runs are limited (`RUNS_MAX`).
        if self.runs and self.runs[-1][2:] == run[2:]:
            run = run._replace(first=self.runs.pop().first)
        self.runs.append(run)
        self.next = run.last + 1

    def _trim(self) -> None:
        runs = self.runs
        while runs and runs[0].state == SETTLED:
            self.low = runs[0].last + 1
            del runs[0]

    def _change(
        self,
        n: int,
        first: int,
        last: int,
        states: tuple[int, ...],
        make: Callable[[Run], Run],
    ) -> bool:
        """Put what ``make`` returns in the place of each part that ``n`` is the newest lease of."""
        begin = end = max(0, bisect_right(self.runs, first, key=_FIRST) - 1)
        made: list[Run] = []
        found = False
        while end < len(self.runs) and (run := self.runs[end]).first <= last:
            end += 1
            low, high = max(first, run.first), min(last, run.last)
            if run.n != n or run.state not in states or low > high:
                made.append(run)
                continue
            found = True
            if run.first < low:
                made.append(run._replace(last=low - 1))
            made.append(make(run._replace(first=low, last=high)))
            if high < run.last:
                made.append(run._replace(first=high + 1))
        if found:
            self._put(begin, end, made)
        return found

    def _put(self, begin: int, end: int, made: Iterable[Run]) -> None:
        """Replace runs, joined with each other and with their neighbours."""
        # Neighbours too: what a row divided and is alike again must not count twice (`RUNS_MAX`).
        left = self.runs[begin - 1 : begin] if begin else []
        right = self.runs[end : end + 1]
        joined: list[Run] = []
        for run in (*left, *made, *right):
            same = joined and joined[-1][2:] == run[2:]
            joined.append(run._replace(first=joined.pop().first) if same else run)
        self.runs[begin - len(left) : end + len(right)] = joined


def _settled(run: Run) -> Run:
    return Run(run.first, run.last, SETTLED)
