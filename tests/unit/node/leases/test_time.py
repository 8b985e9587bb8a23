"""The clock of leases, and when something is due."""

from __future__ import annotations

import pytest

from node.leases.clock import LEAP_MS, MessagingClock
from node.leases.due import Due, over
from node.leases.scratch import Scratch
from node.leases.times import LeaseTimes
from storage.messaging.fold import Messaging
from storage.messaging.share import LEASED, SETTLED, WAITING, Run, Share
from twinlog.format.group_rows import AckRow, LeaseRow, MemberRow, ShareRow


def test_the_clock_never_falls() -> None:
    """While the wall clock is behind it stands still."""
    clock = MessagingClock()
    clock.begin(100_000, 0.0, 90_000)
    assert clock.read(40_000, 5.0) == 100_000
    assert clock.read(100_001, 6.0) == 100_001


def test_a_step_ahead_counts_once_it_has_stood() -> None:
    """Until then time goes on as if there had been none; one that is taken back never counts."""
    clock = MessagingClock()
    clock.begin(0, 0.0, 0)
    ahead = 2 * LEAP_MS
    assert clock.read(ahead, 1.0) == 1_000
    assert clock.read(ahead + 5_000, 6.0) == 6_000
    assert clock.read(7_000, 7.0) == 7_000, "it is taken back"
    assert clock.read(ahead + 8_000, 8.0) == 8_000
    assert clock.read(ahead + 17_000, 17.0) == 17_000
    assert clock.read(ahead + 18_000, 18.0) == ahead + 18_000
    assert clock.leaps == 2


def test_a_new_reign_begins_after_the_newest_record() -> None:
    """Whatever the wall clock of this machine says."""
    clock = MessagingClock()
    clock.begin(5_000, 0.0, 9_000)
    assert clock.read(6_000, 1.0) == 9_000
    clock.begin(20_000, 2.0, 9_000)
    assert clock.read(20_500, 2.5) == 20_500


def share_of(*runs: Run) -> Share:
    """A share that begins with these runs."""
    share = Share(1, "g", "t", 0, 0, runs[0].first)
    share.runs = list(runs)
    share.next, share.n = runs[-1].last + 1, 9
    return share


def test_due_is_made_from_shares_in_order_of_time() -> None:
    """Settled messages are never due."""
    share = share_of(Run(0, 1, LEASED, 1, 1, 300), Run(2, 2, SETTLED), Run(3, 4, LEASED, 2, 1, 200))
    due = Due()
    assert due.next_ms() is None
    due.begin(iter([share]))
    assert due.next_ms() == 200
    assert [entry[0] for entry in due.passed(250)] == [200]
    assert due.passed(250) == []
    due.clear()
    assert due.next_ms() is None


def test_ready_entries_are_taken_oldest_first_and_put_back_in_front() -> None:
    """By group and share; a share without entries is forgotten."""
    due = Due()
    assert due.take("g", 1) is None
    first, second = (1, 1, 1, 0, 0), (2, 1, 2, 5, 6)
    due.ready("g", first)
    due.ready("g", second)
    assert due.shares("g") == [1]
    assert due.take("g", 2) is None
    assert due.take("g", 1) == first
    due.put_back("g", first)
    assert due.take("g", 1) == first
    due.ready("g", (3, 2, 1, 0, 0))
    assert due.take("g", 1) == second
    assert due.shares("g") == [2]
    assert due.take("g", 2) == (3, 2, 1, 0, 0)
    assert due.shares("g") == []


def test_an_entry_counts_as_far_as_it_is_true() -> None:
    """What was settled, extended or handed out again meanwhile is not over."""
    share = share_of(
        Run(0, 1, LEASED, 1, 1, 100), Run(2, 2, SETTLED), Run(3, 4, LEASED, 1, 1, 900),
        Run(5, 6, LEASED, 2, 2, 100), Run(7, 9, LEASED, 1, 1, 100),
    )  # fmt: skip
    found = over(share, (100, 1, 1, 0, 8), 200)
    assert [(run.first, run.last) for run in found] == [(0, 1), (7, 8)]
    assert over(share, (100, 1, 1, 20, 30), 200) == []


def test_entries_that_are_no_longer_true_are_dropped_once_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Leases of 12 hours that were settled at once would be kept for 12 hours."""
    monkeypatch.setattr("node.leases.due.TIDY_ENTRIES", 4)
    share = share_of(Run(0, 1, LEASED, 1, 1, 100), Run(2, 2, SETTLED), Run(3, 4, WAITING, 2, 1, 50))
    due = Due()
    due.add(100, 1, 1, 0, 1)
    due.add(50, 1, 2, 3, 4)
    due.add(70, 1, 1, 2, 2)
    due.tidy({1: share}.get)
    assert due.next_ms() == 50
    for number in range(9):
        due.add(40, 7, number, 0, 0)
    due.tidy({1: share}.get)
    assert due.passed(200) == [(50, 1, 2, 3, 4), (100, 1, 1, 0, 1)]


def test_a_clock_that_is_set_back_is_a_leap_too() -> None:
    """Once, until it has caught up; a reign that begins behind its log says so at once."""
    clock = MessagingClock()
    clock.begin(100_000 + 2 * LEAP_MS, 0.0, 0)
    assert clock.read(100_000, 1.0) == 100_000 + 2 * LEAP_MS
    assert (clock.leaps, clock.leapt_ms) == (1, -2 * LEAP_MS)
    clock.read(100_500, 1.5)
    assert clock.leaps == 1
    clock.read(100_000 + 2 * LEAP_MS, 121.0)
    clock.begin(0, 0.0, 2 * LEAP_MS)
    clock.read(1_000, 1.0)
    assert clock.leaps == 2


def test_the_times_of_old_leases_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the newest ones it is known how long they were held."""
    monkeypatch.setattr("node.leases.times.LEASES_MAX", 2)
    took: list[float] = []
    times = LeaseTimes(took.append)
    for n in (1, 2, 3):
        times.begun(1, n, n * 1_000)
    times.ended(1, 1, 9_000)
    times.ended(1, 3, 9_000)
    assert took == [6.0]


def test_a_scratch_keeps_what_it_decides_to_itself() -> None:
    """Until the rows are applied the fold is as it was; rows that change nothing are not kept."""
    fold = Messaging()
    fold.apply(ShareRow(1, "g", "t", 0, 0, 0), 0)
    scratch = Scratch(fold)
    assert scratch.next_share() == 2
    assert scratch.shares_of("g") == list(fold.shares_of("g"))
    assert scratch.write(LeaseRow(1, 1, 0, 2, 7, 1, 100, 1))
    assert not scratch.write(LeaseRow(1, 1, 0, 2, 7, 1, 100, 1))
    assert not scratch.write(AckRow(9, 1, 0, 0))
    assert scratch.write(ShareRow(scratch.next_share(), "g", "t", 0, 1, 0))
    assert scratch.write(MemberRow("g", 5, "w", 1))
    assert [share.queue for share in scratch.shares_of("g")] == [0, 1]
    kept = fold.share(1)
    assert kept is not None
    assert kept.n == 0
    held = scratch.share(1)
    assert held is not None
    assert held.n == 1
    assert scratch.find("g", "t", 0) is held
    assert scratch.find("g", "t", 2) is None
    assert len(scratch.rows) == 3
    for row in scratch.rows:
        assert fold.apply(row, 0)
