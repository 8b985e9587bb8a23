"""What waits for a time: each is delivered once, in order, whatever the master has not seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from storage.messaging.timers import Timers, TimersAhead, TimerValues, Waiting, with_places
from twinlog.format.group_rows import CancelRow, TimerRow


def entered(*waiting: tuple[int, int]) -> Timers:
    made = Timers()
    for due, offset in waiting:
        made.enter(due, offset, 100)
    return made


def keys(timers: Timers) -> list[tuple[int, int]]:
    return [(one.due, one.offset) for one in timers.after()]


def test_they_come_by_time_and_then_by_place_in_the_log() -> None:
    timers = entered((5_001, 10), (2_000, 20), (5_000, 30), (2_000, 15))
    assert keys(timers) == [(2_000, 15), (2_000, 20), (5_000, 30), (5_001, 10)]
    assert timers.count == 4


def test_one_that_comes_late_is_next() -> None:
    timers = entered((5_000, 10), (6_000, 20))
    timers.apply(TimerRow(5_000, 10, 30))
    timers.enter(1_000, 40, 100)
    assert keys(timers) == [(5_000, 40), (6_000, 20)]


def test_a_row_passes_nothing_that_its_master_had_not_seen() -> None:
    """Mutant: the row takes out all up to its time, and the message at 40 never comes."""
    timers = entered((5_000, 10), (4_000, 40))
    timers.apply(TimerRow(5_000, 10, 30))
    assert keys(timers) == [(5_000, 40)]


def test_progress_does_not_fall() -> None:
    timers = entered((5_000, 10), (6_000, 20))
    assert timers.apply(TimerRow(5_000, 10, 30))
    assert not timers.apply(TimerRow(4_000, 10, 30))
    assert not timers.apply(TimerRow(5_000, 10, 30))
    assert timers.progress == (5_000, 10)


def test_a_cancelled_one_waits_no_more() -> None:
    timers = entered((5_000, 10), (5_000, 20), (7_000, 30))
    assert timers.find(5_000, 20)
    assert timers.apply(CancelRow(5_000, 20))
    assert not timers.find(5_000, 20)
    assert not timers.apply(CancelRow(5_000, 20))
    assert not timers.apply(CancelRow(5_000, 11))
    assert timers.apply(CancelRow(7_000, 30))
    assert keys(timers) == [(5_000, 10)]
    assert list(timers.counts()) == [(5, 1)]


def test_the_log_is_kept_from_the_first_that_waits() -> None:
    timers = entered((9_000, 200_000), (5_000, 100_000))
    assert timers.least() == 65_536
    timers.apply(TimerRow(5_000, 100_000, 300_000))
    assert timers.least() == 196_608
    timers.apply(CancelRow(9_000, 200_000))
    assert timers.least() is None


def test_the_master_delivers_each_once_before_its_rows_are_dispatched() -> None:
    timers = entered((5_000, 10), (5_000, 20), (6_000, 30))
    ahead = TimersAhead(timers)
    assert ahead.next_due() == 5_000
    assert ahead.due(5_500, 1, 1_000) == [Waiting(5_000, 10, 10, 100)]
    ahead.apply(TimerRow(5_000, 10, 40))
    assert ahead.due(5_500, 9, 1_000) == [Waiting(5_000, 20, 20, 100)]
    ahead.apply(TimerRow(5_000, 20, 40))
    assert not ahead.due(5_500, 9, 1_000)
    assert ahead.next_due() == 6_000
    ahead.apply(CancelRow(6_000, 30))
    assert ahead.next_due() is None
    assert ahead.cancelling(6_000, 30) is None
    assert ahead.was_cancelled(30)


def test_what_is_dispatched_after_a_delivery_was_decided_is_not_passed_by_the_next() -> None:
    """It lies below both rows in the log, and only the second one's master had seen it."""
    timers = entered((5_000, 10))
    ahead = TimersAhead(timers)
    ahead.apply(TimerRow(5_000, 10, 20))
    timers.enter(4_000, 25, 100)  # dispatched before the row is
    timers.enter(6_000, 28, 100)
    assert ahead.due(6_500, 9, 1_000) == [Waiting(5_000, 25, 25, 100), Waiting(6_000, 28, 28, 100)]
    ahead.apply(TimerRow(6_000, 28, 30))
    timers.apply(TimerRow(5_000, 10, 20))
    assert keys(timers) == [(5_000, 25), (6_000, 28)]
    assert ahead.next_due() is None
    timers.apply(TimerRow(6_000, 28, 30))
    assert not keys(timers)
    assert timers.count == 0


def test_those_that_come_late_are_delivered_by_their_place_in_the_log() -> None:
    """Else the row of the one at 30 passes the one at 25, which its master had seen by then."""
    timers = entered((5_000, 10))
    ahead = TimersAhead(timers)
    ahead.apply(TimerRow(5_000, 10, 20))
    timers.enter(4_000, 25, 100)
    timers.enter(3_000, 30, 100)
    assert ahead.due(6_000, 1, 1_000) == [Waiting(5_000, 25, 25, 100)]


def test_a_snapshot_has_everything() -> None:
    timers = entered((5_000, 10), (5_500, 15), (7_000, 30), (9_000, 40))
    timers.apply(TimerRow(5_000, 10, 50))
    timers.apply(CancelRow(7_000, 30))
    again = Timers.restore(timers.values())
    assert again.progress == (5_000, 10)
    assert again.was_cancelled(30)
    assert keys(again) == [(5_500, 15), (9_000, 40)]
    assert (again.count, again.last) == (2, (40, 100))
    again.enter(1_000, 60, 100)
    assert keys(again)[0] == (5_000, 60)


def test_those_of_the_marks_own_time_are_between_those_that_come_late() -> None:
    """Found by the simulator: the row named the one at 30, and that at 40 came twice."""
    timers = entered((5_000, 10))
    ahead = TimersAhead(timers)
    ahead.apply(TimerRow(5_000, 10, 20))
    for due, offset in ((4_000, 25), (5_000, 30), (3_000, 40)):
        timers.enter(due, offset, 100)
    assert [one.offset for one in ahead.due(6_000, 9, 1_000)] == [25, 30, 40]


def test_a_cancel_meets_its_message_where_earlier_rows_have_moved_it() -> None:
    """Found by the simulator: the row named the old time, changed nothing, and the message came."""
    timers = entered((5_000, 10))
    ahead = TimersAhead(timers)
    ahead.apply(TimerRow(5_000, 10, 20))
    timers.enter(4_000, 25, 100)
    row = ahead.cancelling(4_000, 25)
    assert row == CancelRow(5_000, 25)
    ahead.apply(row)
    assert ahead.next_due() is None
    for one in (TimerRow(5_000, 10, 20), row):
        timers.apply(one)
    assert not keys(timers)
    assert ahead.was_cancelled(25)


def test_one_that_is_rescued_keeps_its_key_and_changes_its_place() -> None:
    """It is delivered once and may be cancelled; what it waited in holds the log no more."""
    timers = entered((5_000, 10), (5_000, 20), (9_000, 30))
    for offset, at in ((10, 200_000), (20, 200_100), (30, 200_200)):
        timers.move(9_000 if offset == 30 else 5_000, offset, at, 150)
    assert timers.least() == 196_608
    assert next(timers.after()) == Waiting(
        5_000, 10, 200_000, 150,
    )  # fmt: skip
    assert timers.apply(CancelRow(5_000, 20))
    timers.apply(TimerRow(5_000, 20, 60))
    timers.move(5_000, 10, 300_000, 150)
    timers.move(5_000, 20, 300_100, 150)
    assert keys(Timers.restore(timers.values())) == [(9_000, 30)]
    assert (timers.count, timers.last) == (1, (300_100, 150))


def test_a_state_of_before_there_were_rescues_is_read() -> None:
    """Its entries of 20 bytes name no place."""
    older = Struct(">qqi").pack(5_000, 10, 100) + Struct(">qqi").pack(5_001, 7, 90)
    values = TimerValues(seconds=((5, with_places(older)),), grains=((0, 2),))
    assert list(Timers.restore(values).after()) == [
        Waiting(5_000, 10, 10, 100), Waiting(5_001, 7, 7, 90),
    ]  # fmt: skip


def test_few_deliveries_are_under_way() -> None:
    timers = entered(*[(5_000, offset) for offset in range(100)])
    ahead = TimersAhead(timers)
    taken = 0
    while found := ahead.due(9_000, 1, 1_000):
        ahead.apply(TimerRow(found[0].due, found[0].offset, 1_000))
        taken += 1
    assert taken == 16
    assert ahead.full
    timers.apply(TimerRow(5_000, 0, 1_000))
    assert not ahead.full


class Moved(NamedTuple):
    """A record that takes the place of another."""

    due: int
    offset: int


@dataclass
class Story:
    """A log of records and rows, a dispatcher behind it, and a master that goes by both."""

    timers: Timers = field(default_factory=Timers)
    log: list[tuple[int, object]] = field(default_factory=list[tuple[int, object]])
    dispatched: int = 0
    now: int = 0
    delivered: list[int] = field(default_factory=list[int])
    dues: dict[int, int] = field(default_factory=dict[int, int])

    def __post_init__(self) -> None:
        self.ahead = TimersAhead(self.timers)

    def send(self, after: int) -> None:
        offset = len(self.log)
        self.dues[offset] = self.now + after
        self.log.append((offset, self.dues[offset]))

    def dispatch(self, count: int) -> None:
        for offset, item in self.log[self.dispatched : self.dispatched + count]:
            if isinstance(item, Moved):
                self.timers.move(item.due, item.offset, offset, 11)
            elif isinstance(item, (TimerRow, CancelRow)):
                self.timers.apply(item)
            else:
                assert isinstance(item, int)
                self.timers.enter(item, offset, 10)
            self.dispatched += 1

    def deliver(self, most: int) -> None:
        found = self.ahead.due(self.now, most, 1_000)
        if found:
            row = TimerRow(found[-1].due, found[-1].offset, self.dispatched)
            self.delivered += [one.offset for one in found]
            assert all(self.dues[one.offset] <= self.now for one in found)
            self.log.append((len(self.log), row))
            self.ahead.apply(row)

    def rescue(self, number: int) -> None:
        """Enter what waits once more, as a master does whose oldest file is to leave."""
        for one in list(self.timers.after())[:number]:
            due = self.dues[one.offset]
            if self.ahead.is_at(due, one.offset, one.at):
                self.log.append((len(self.log), Moved(due, one.offset)))

    def fail_over(self) -> None:
        """The next master has the whole log, and begins when all of it is dispatched."""
        self.dispatch(len(self.log))
        self.timers = Timers.restore(self.timers.values())
        self.ahead = TimersAhead(self.timers)

    def cancel(self, number: int) -> None:
        waiting = list(self.ahead.waiting())
        if waiting:
            one = waiting[number % len(waiting)]
            row = self.ahead.cancelling(self.dues[one.offset], one.offset)
            if row is not None:
                self.log.append((len(self.log), row))
                self.ahead.apply(row)
                assert one.offset not in self.delivered
                self.delivered.append(one.offset)  # must not be delivered any more


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 30) | st.sampled_from([1_000, 12_000])),
        st.tuples(st.just("dispatch"), st.integers(1, 4)),
        st.tuples(st.just("deliver"), st.integers(1, 4)),
        st.tuples(st.just("wait"), st.integers(1, 20) | st.sampled_from([900, 5_000])),
        st.tuples(st.just("cancel"), st.integers(0, 4)),
        st.tuples(st.just("rescue"), st.integers(1, 4)),
        st.tuples(st.just("fail_over"), st.just(0)),
    ),
    max_size=60,
)


@given(STEPS)
def test_each_comes_once_and_never_early(steps: list[tuple[str, int]]) -> None:
    """Whatever the order of sends, dispatches, deliveries, cancels and failovers."""
    story = Story()
    for name, number in steps:
        match name:
            case "send":
                story.send(number)
            case "dispatch":
                story.dispatch(number)
            case "deliver":
                story.deliver(number)
            case "wait":
                story.now += number
            case "cancel":
                story.cancel(number)
            case "rescue":
                story.rescue(number)
            case _:
                story.fail_over()
    story.now += 20_000
    for _ in range(len(story.log) + 1):
        story.dispatch(len(story.log))
        story.deliver(3)
    story.dispatch(len(story.log))
    assert sorted(story.delivered) == sorted(story.dues)
    assert story.timers.count == 0
    assert story.timers.least() is None
    assert not list(story.timers.after())


@given(STEPS)
def test_a_snapshot_is_the_running_state(steps: list[tuple[str, int]]) -> None:
    story = Story()
    for name, number in steps:
        if name == "send":
            story.send(number)
        elif name == "wait":
            story.now += number
        elif name == "deliver":
            story.deliver(number)
        elif name == "rescue":
            story.rescue(number)
        story.dispatch(2)
        again = Timers.restore(story.timers.values())
        assert again.values() == story.timers.values()
        assert list(again.after()) == list(story.timers.after())
