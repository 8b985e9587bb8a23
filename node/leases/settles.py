"""What becomes of messages that a member settles: a code for each row, rows for the log. Pure.

A row is judged by (share, lease number, range) alone, so a member that joined again under another
number can still settle what it holds, and a repeated row is no error. What was handed out to
another member meanwhile is not touched.

Failed for good, by the group's attempts or because a member says so: such messages are handed to
`Settling.dead`, and stay leased until copy and settling are in the log, in one batch
(`node.groups.dead_letters`).

Units: ms since 1970; offsets are inclusive.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from node.leases.due import Due
from node.leases.limits import DELAY_MS_MAX, INVISIBLE_MS_MAX
from node.leases.scratch import Scratch
from node.leases.times import LeaseTimes
from storage.messaging.groups import Group
from storage.messaging.share import LEASED, SETTLED, WAITING, Run, Share
from twinlog.errors import TwinlogError
from twinlog.format.group_rows import AckRow, ExtendRow, ReleaseRow
from twinlog.wire.groups import BACK_OFF, DONE, LEAVING, RECEIPT_EXPIRED, RECEIPT_UNKNOWN, What

WHY_MAX = 200
"""Characters of the words that a member says about a dead letter."""
DYING_MS = 30_000
"""A rejected message of an ordered group that is no dead letter after this is handed out again."""


class Settle(NamedTuple):
    """One row of SETTLE; see `twinlog.wire.groups`."""

    share: int
    n: int
    what: int
    first: int
    last: int
    argument: int
    why: str = ""


class Dying(NamedTuple):
    """Messages that are to become dead letters.

    Attributes:
        group: Of the share.
        share: Number of the share.
        n: Their lease.
        first: Queue offset of the first one.
        last: Queue offset of the last one.
        why: ``attempts`` or ``rejected``, then the member's own words, if any.
        attempt: How often they were handed out.
    """

    group: str
    share: int
    n: int
    first: int
    last: int
    why: str
    attempt: int


Late = Callable[[str | TwinlogError], None]
"""Told the code of a row once its dead letters are in the log, or the error that kept them out."""


class SettleCounts:
    """Messages by group and what became of them, since the start.

    Args:
        times: Told when messages of a lease have an outcome.
    """

    def __init__(self, times: LeaseTimes) -> None:
        self.times = times
        self.settled: dict[tuple[str, str], int] = {}

    def add(self, group: str, how: str, count: int) -> None:
        """Count messages."""
        self.settled[group, how] = self.settled.get((group, how), 0) + count


class Settling:
    """Decides rows of one turn.

    Args:
        scratch: What the turn has decided so far.
        due: Told when messages are visible again.
        now_ms: The clock.
        counts: Of messages.
        dead: Takes messages that are to become dead letters; ``done`` of `settle` tells the end.
        leaving: Says below which queue offset of a share the log file is about to leave.
    """

    def __init__(
        self,
        scratch: Scratch,
        due: Due,
        now_ms: int,
        counts: SettleCounts,
        dead: Callable[[Dying, Late | None], None],
        leaving: Callable[[Share], int] = lambda share: 0,
    ) -> None:
        self._scratch = scratch
        self._due = due
        self._now_ms = now_ms
        self._counts = counts
        self._dead = dead
        self._leaving = leaving

    def settle(self, group: Group, row: Settle, late: Late) -> tuple[str, int] | None:
        """Return code and number of a row's answer; None: ``late`` is called with the code."""
        share = self._scratch.share(row.share)
        if share is None or share.group != group.name or not 0 <= row.first <= row.last:
            return RECEIPT_UNKNOWN, 0
        if not 0 < row.n <= share.n or (row.n == share.n and row.last >= share.next):
            return RECEIPT_UNKNOWN, 0
        if row.last >= share.next:  # the group went back since
            return RECEIPT_EXPIRED, 0
        runs, lost = held(share, row.n, row.first, row.last)
        if not runs:
            return (RECEIPT_EXPIRED if lost else DONE), 0
        if row.what not in (What.EXTEND, What.UNUSED):
            self._counts.times.ended(row.share, row.n, self._now_ms)
        match row.what:
            case What.ACK:
                self._scratch.write(AckRow(row.share, row.n, row.first, row.last))
                self._counts.add(group.name, "ack", sum([run.last - run.first + 1 for run in runs]))
            case What.RELEASE | What.UNUSED:
                self._release(group, row, runs)
            case What.EXTEND:
                return self._extend(share, row, runs, lost)
            case _:
                run = runs[0]
                why = reason("rejected", row.why)
                for each in runs:
                    self._hold(group, row, each)
                dying = Dying(
                    group.name, row.share, row.n, run.first, runs[-1].last, why, run.attempt
                )
                self._dead(dying, late)
                return None
        return (RECEIPT_EXPIRED if lost else DONE), 0

    def _release(self, group: Group, row: Settle, runs: list[Run]) -> None:
        for run in runs:
            if run.state == WAITING:  # a repetition
                continue
            if row.what == What.RELEASE and run.attempt >= group.attempts:
                why = reason("attempts", row.why)
                self._hold(group, row, run)
                self._dead(
                    Dying(group.name, row.share, row.n, run.first, run.last, why, run.attempt), None
                )
                continue
            pause = row.argument
            if row.what == What.RELEASE and pause == BACK_OFF:
                pause = group.retry.delay_ms(run.attempt)
            at = self._now_ms + min(max(pause, 0), DELAY_MS_MAX)
            unused = int(row.what == What.UNUSED)
            released = ReleaseRow(row.share, row.n, run.first, run.last, at, unused)
            self._scratch.write(released)
            self._due.add(at, row.share, row.n, run.first, run.last)
            how = "unused" if unused else "release"
            self._counts.add(group.name, how, run.last - run.first + 1)

    def _hold(self, group: Group, row: Settle, run: Run) -> None:
        """Let what is to become a dead letter block its queue, where order is kept.

        It is not the member's any more, so nothing that comes after it is handed out, until copy
        and settling are in the log.
        """
        if group.mode == "ordered" and run.state == LEASED:
            at = self._now_ms + DYING_MS
            self._scratch.write(ReleaseRow(row.share, row.n, run.first, run.last, at, 0))
            self._due.add(at, row.share, row.n, run.first, run.last)

    def _extend(self, share: Share, row: Settle, runs: list[Run], lost: bool) -> tuple[str, int]:
        leased = [run for run in runs if run.state == LEASED]
        if not leased:
            return RECEIPT_EXPIRED, 0
        if leased[0].first < self._leaving(share):  # its file waits for the end of this lease
            return LEAVING, leased[0].until
        until = self._now_ms + min(max(row.argument, 0), INVISIBLE_MS_MAX)
        self._scratch.write(ExtendRow(row.share, row.n, row.first, row.last, until))
        for run in leased:
            self._due.add(until, row.share, row.n, run.first, run.last)
        return (RECEIPT_EXPIRED if lost else DONE), until


def reason(what: str, words: str) -> str:
    """Return why messages are dead letters, as a property can hold it.

    >>> reason("rejected", "cannot\\nparse")
    'rejected: cannot parse'
    """
    said = "".join(each if each.isprintable() else " " for each in words[:WHY_MAX])
    return f"{what}: {said}" if said.strip() else what


def held(share: Share, n: int, first: int, last: int) -> tuple[list[Run], bool]:
    """Return the parts of a range whose newest lease is ``n``, not settled; and whether another's
    are between them."""
    found: list[Run] = []
    lost = False
    at = max(first, share.low)
    while at <= last and (run := share.run_at(at)) is not None:
        if run.state != SETTLED:
            if run.n == n:
                found.append(run._replace(first=max(run.first, first), last=min(run.last, last)))
            else:
                lost = True
        at = run.last + 1
    return found, lost
