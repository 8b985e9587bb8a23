"""What rows tell as steps: who was given what, and what became of it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twinlog.format.group_history import History, Step
from twinlog.format.group_rows import (
    DEAD_LETTER,
    DROPPED,
    LEFT_OUT,
    AckRow,
    ExtendRow,
    ForgottenRow,
    GivenUpRow,
    LeaseRow,
    MemberRow,
    PositionRow,
    ReleaseRow,
    ResetRow,
    Row,
    ShareRow,
    UnknownRow,
    encode_rows,
)

SHARE = ShareRow(1, "g", "t", 0, 2, 0)


def told(*rows: Row, history: History | None = None) -> list[tuple[object, ...]]:
    """(what, first, last, name, attempt) of each step."""
    steps = (history or History()).told(encode_rows(rows), 5)
    return [(step.what, step.first, step.last, step.name, step.attempt) for step in steps]


def lease(n: int, first: int, count: int, attempt: int = 1, member: int = 7) -> LeaseRow:
    """A lease of share 1."""
    return LeaseRow(1, n, first, count, member, n, 99, attempt)


def test_a_message_from_lease_to_dead_letter() -> None:
    """Each row is a step with the member that had the lease and its attempt."""
    history = History()
    assert told(SHARE, MemberRow("g", 7, "w", 1), lease(1, 0, 3), history=history) == [
        ("begun", 0, -1, "", 0),
        ("joined", -1, -1, "w", 0),
        ("leased", 0, 2, "w", 1),
    ]
    assert told(
        AckRow(1, 1, 0, 0),
        ReleaseRow(1, 1, 1, 1, 50, 0),
        ExtendRow(1, 1, 2, 2, 200),
        lease(2, 1, 1, 2),
        GivenUpRow(1, 2, 1, 1, DEAD_LETTER),
        GivenUpRow(1, 1, 2, 2, DROPPED),
        MemberRow("g", 7, "w", 0),
        history=history,
    ) == [
        ("acked", 0, 0, "w", 1),
        ("given back", 1, 1, "w", 1),
        ("extended", 2, 2, "w", 1),
        ("leased", 1, 1, "w", 2),
        ("dead", 1, 1, "w", 2),
        ("dropped", 2, 2, "w", 1),
        ("left", -1, -1, "w", 0),
    ]
    one = History()
    one.told(encode_rows([SHARE]), 5)
    assert one.told(encode_rows([lease(1, 0, 3)]), 6) == [
        Step(6, "g", "leased", 7, "", "t", 2, 0, 2, 1, 99)
    ]


def test_a_row_speaks_of_what_its_lease_still_holds() -> None:
    """What was handed out again, or settled before, is left out of a range."""
    rows = [SHARE, lease(1, 0, 10), AckRow(1, 1, 3, 4), lease(2, 6, 2, 2)]
    assert told(*rows, GivenUpRow(1, 1, 0, 9, LEFT_OUT))[-3:] == [
        ("left out", 0, 2, "", 1),
        ("left out", 5, 5, "", 1),
        ("left out", 8, 9, "", 1),
    ]
    assert told(*rows, AckRow(1, 1, 6, 7))[-1][0] == "leased", "the newer lease holds these"


def test_offsets_that_a_lease_passes_over_were_left_out() -> None:
    """A filter left them out, or the log had them no more; a lease of none says only that."""
    assert told(SHARE, lease(1, 4, 2), lease(2, 9, 0))[1:] == [
        ("left out", 0, 3, "", 0),
        ("leased", 4, 5, "", 1),
        ("left out", 6, 8, "", 0),
    ]


def test_what_was_handed_out_before_the_rows_begin_is_told_as_the_row_says() -> None:
    """Nobody knows who had it; what the rows do tell about is not told twice."""
    history = History()
    document = {
        "name": "g",
        "queues": [{"share": 1, "topic": "t", "queue": 2, "name": ""}],
        "people": [{"member": 7, "name": "w"}],
    }
    history.know(document)
    assert told(lease(9, 10, 2), AckRow(1, 4, 8, 10), AckRow(1, 9, 10, 11), history=history) == [
        ("leased", 10, 11, "w", 1),
        ("acked", 8, 9, "", 0),
        ("acked", 10, 11, "w", 1),
    ]


def test_positions_and_resets() -> None:
    """Of a broadcast group the member is in the name of the share."""
    member = ShareRow(1, "g~anna", "t", 0, 2, 4)
    history = History()
    assert told(member, PositionRow(1, 0, 0, 9), ResetRow(1, 2, "again"), history=history) == [
        ("begun", 4, -1, "anna", 0),
        ("position", 4, 8, "anna", 0),
        ("reset", 2, -1, "anna", 0),
    ]
    step = history.told(encode_rows([ResetRow(1, 3, "why not"), ForgottenRow(1)]), 5)
    assert [(one.group, one.what, one.why) for one in step] == [
        ("g", "reset", "why not"),
        ("g", "forgotten", ""),
    ]
    assert told(AckRow(1, 1, 0, 0), history=history) == [], "of a queue that nothing tells of"
    assert list(history.steps(UnknownRow(3), 5)) == []


def test_a_reset_ends_leases() -> None:
    """A late word about one of them says nothing."""
    assert told(SHARE, lease(1, 0, 3), ResetRow(1, 0, ""), AckRow(1, 1, 0, 2))[-1][0] == "reset"


SPAN = 12


@given(st.lists(st.tuples(st.integers(0, SPAN), st.integers(1, 4), st.integers(0, 3)), max_size=30))
def test_steps_agree_with_a_table_of_offsets(rows: list[tuple[int, int, int]]) -> None:
    """Leases, acknowledgements and give-backs over a few offsets, each offset by itself."""
    history, holder, newest = History(), dict[int, int](), 0
    history.told(encode_rows([SHARE]), 0)
    for first, count, kind in rows:
        last = first + count - 1
        n = max(newest - kind // 2, 1)
        expected = {at for at in range(first, last + 1) if holder.get(at) == n}
        row: Row
        if kind == 0 or not newest:
            newest += 1
            row = lease(newest, first, count)
            holder |= dict.fromkeys(range(first, last + 1), newest)
            expected = set(range(first, last + 1))
        elif kind == 1:
            row = ReleaseRow(1, n, first, last, 9, 0)
        else:
            row = AckRow(1, n, first, last)
            holder = {at: one for at, one in holder.items() if at not in expected}
        found = [step for step in history.steps(row, 1) if step.what != "left out"]
        assert sorted(at for step in found for at in range(step.first, step.last + 1)) == sorted(
            expected
        )
