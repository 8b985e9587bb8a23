"""The fold of rows: total, the same on every node, and the same again from a snapshot."""

from __future__ import annotations

from dataclasses import replace

import msgpack
from hypothesis import example, given
from hypothesis import strategies as st

from storage.messaging.ahead import Ahead
from storage.messaging.fold import Messaging, Values
from twinlog.format.group_rows import (
    LETTERS,
    ROWS_VERSION,
    AckRow,
    CancelRow,
    CheckRow,
    ExtendRow,
    ForgottenRow,
    HalfRow,
    LeaseRow,
    MemberRow,
    OpenRow,
    PositionRow,
    ReleaseRow,
    ResetRow,
    Row,
    ShareRow,
    TimerRow,
    WaitsRow,
    decode_rows,
    encode_rows,
)

SMALL = st.integers(0, 4)
NAMES = st.sampled_from(["g", "h", "g~m"])
ROWS: st.SearchStrategy[Row] = st.one_of(
    st.builds(ShareRow, SMALL, NAMES, st.just("t"), st.just(0), SMALL, SMALL),
    st.builds(LeaseRow, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL, SMALL),
    st.builds(AckRow, SMALL, SMALL, SMALL, SMALL),
    st.builds(ReleaseRow, SMALL, SMALL, SMALL, SMALL, SMALL, st.integers(0, 1)),
    st.builds(ExtendRow, SMALL, SMALL, SMALL, SMALL, SMALL),
    st.builds(PositionRow, SMALL, SMALL, SMALL, SMALL),
    st.builds(ResetRow, SMALL, SMALL, st.just("x")),
    st.builds(ForgottenRow, SMALL),
    st.builds(MemberRow, st.sampled_from(["g", "h"]), SMALL, st.just("m"), st.integers(0, 1)),
    st.builds(TimerRow, SMALL, SMALL, SMALL),
    st.builds(CancelRow, SMALL, SMALL),
    st.builds(WaitsRow, SMALL, SMALL, SMALL),
    st.builds(HalfRow, SMALL, SMALL),
    st.builds(CheckRow, SMALL, SMALL, SMALL),
    st.builds(OpenRow, SMALL, SMALL, SMALL, SMALL, NAMES, NAMES),
)
STEPS = st.lists(st.one_of(st.lists(ROWS, max_size=8), st.sampled_from(["g", "h"])), max_size=12)
"""Records, and groups that are deleted between them."""


def state(fold: Messaging) -> Values:
    """The values of a fold, those that wait within a second in one order: it says nothing."""
    values = fold.values()
    seconds = tuple(
        (second, b"".join(sorted(entries[at : at + 28] for at in range(0, len(entries), 28))))
        for second, entries in values.timers.seconds
    )
    return replace(values, timers=values.timers._replace(seconds=seconds))


def feed(fold: Messaging, steps: list[list[Row] | str]) -> None:
    """Give a fold records and deletions, ten bytes each, from log offset 0 on."""
    for number, step in enumerate(steps):
        start, end = 10 * number, 10 * number + 10
        if isinstance(step, str):
            fold.drop_all([step], "", start, end)
        else:
            fold.apply_body(encode_rows(step), 77, start, end)


ODD_ROWS = [
    ["A", True, 1, 0, 2],
    ["A", 1, 1, "x", 2],
    ["A", 1, 1, 0],
    ["L", 1, 2, 3, 1, 1, 1, 9, True],
]


@example([LeaseRow(1, 1, 0, 3, 1, 1, 9, 1), *ODD_ROWS, AckRow(1, 1, 1, 2)])
@given(st.lists(ROWS | st.sampled_from(ODD_ROWS)))
def test_a_body_changes_what_its_rows_change(items: list[Row | list[object]]) -> None:
    """Rows of most kinds are not made for it; a row of an odd shape changes nothing."""
    rows = [item if isinstance(item, list) else [LETTERS[type(item)], *item] for item in items]
    body = msgpack.packb([ROWS_VERSION, ["S", 1, "g", "t", 0, 0, 0], *rows])
    by_body, by_rows = Messaging(), Messaging()
    by_body.apply_body(body, 77, 0, 10)
    for row in decode_rows(body):
        by_rows.apply(row, 77)
    by_rows.position = 10
    assert state(by_body) == state(by_rows)


@given(STEPS, st.integers(0, 12))
def test_a_snapshot_and_the_rest_of_the_log_are_the_running_state(
    steps: list[list[Row] | str], cut: int
) -> None:
    """Also where the log is read again from further back than the snapshot."""
    running, before = Messaging(), Messaging()
    feed(running, steps)
    feed(before, steps[:cut])
    again = Messaging.restore(before.values())
    assert state(again) == state(before)
    feed(again, steps)
    assert state(again) == state(running)


@given(STEPS, st.integers(0, 12))
def test_ahead_and_confirmed_come_to_the_same(steps: list[list[Row] | str], cut: int) -> None:
    """Whatever the reign began with, and whenever the confirmed fold follows."""
    confirmed = Messaging()
    feed(confirmed, steps[:cut])
    ahead = Ahead(confirmed)
    for step in steps[cut:]:
        scratch = Ahead(ahead)
        for one in (scratch, ahead):
            before = seen(ahead)
            if isinstance(step, str):
                one.drop(step)
            else:
                for row in step:
                    one.apply(row, 77)
            assert one is ahead or seen(ahead) == before, "what a turn tries binds nothing"
        assert seen(scratch) == seen(ahead)
    ahead_says = seen(ahead)
    feed(confirmed, steps)
    assert ahead_says == seen(confirmed)
    assert seen(ahead) == ahead_says


def seen(fold: Messaging | Ahead) -> object:
    """Everything a decision can ask a fold."""
    shares = [fold.share(number) for number in range(6)]
    lists = [
        (name, [one.id for one in fold.shares_of(name)], dict(fold.members(name)))
        for name in ("g", "h", "g~m")
    ]
    places = [
        one and (one.group, one.queue, one.low, one.next, one.n, tuple(one.runs)) for one in shares
    ]
    found = [
        one.id
        for name in ("g", "h", "g~m")
        for queue in range(5)
        if (one := fold.find(name, "t", queue)) is not None
    ]
    return lists, places, found, fold.next_share()


def test_an_untouched_group_costs_nothing_ahead() -> None:
    """What was appended binds at once; the confirmed fold learns of it when it is dispatched."""
    confirmed = Messaging()
    confirmed.apply(ShareRow(1, "g", "t", 0, 0, 5), 1)
    confirmed.apply(ShareRow(2, "h", "t", 0, 0, 5), 1)
    ahead = Ahead(confirmed)
    assert ahead.apply(LeaseRow(1, 1, 5, 3, 9, 1, 100, 1), 1)
    assert ahead.share(1) is not confirmed.share(1)
    assert ahead.share(2) is confirmed.share(2)
    assert not ahead.apply(LeaseRow(1, 1, 5, 3, 9, 1, 100, 1), 1), "the number was given"
    assert ahead.touched == {"g"}
    ahead.forget()
    assert ahead.share(1) is confirmed.share(1)


def test_what_is_forgotten_ahead_is_gone_there_at_once() -> None:
    """One queue of a group, or all of it; the confirmed fold still has it."""
    confirmed = Messaging()
    for row in (ShareRow(1, "g", "t", 0, 0, 5), ShareRow(2, "g", "t", 0, 1, 5)):
        confirmed.apply(row, 1)
    ahead = Ahead(confirmed)
    assert ahead.apply(ForgottenRow(1), 1)
    assert not ahead.apply(ForgottenRow(1), 1)
    assert (ahead.share(1), [one.id for one in ahead.shares_of("g")]) == (None, [2])
    assert confirmed.share(1) is not None
    ahead.drop("g")
    assert (ahead.share(2), list(ahead.names())) == (None, [])
    confirmed.apply(ForgottenRow(1), 1)
    assert list(confirmed.names()) == ["g"]
    confirmed.apply(ForgottenRow(2), 1)
    assert not list(confirmed.names())
    assert not confirmed.apply(ForgottenRow(2), 1)
