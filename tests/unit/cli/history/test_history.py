"""The history checker: a right history holds, and each planted fault is found under its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations, permutations
from math import inf
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cli.history import __main__ as command
from cli.history.checker import check
from cli.history.linearizable import Call, linearizable
from cli.history.operations import Operation, Recorder, load, write
from twinlog.errors import UsageError

History = dict[str, Operation]


def send(name: str, begin: float, end: float | None, *records: str, **more: object) -> Operation:
    """A confirmed send to queue 0 of ``t``, or with other facts."""
    one = Operation(name, "p", "send", "t", 0, begin, end, "ok", records)
    return replace(one, **more)  # type: ignore[arg-type]


def read(
    name: str, begin: float, end: float, start: int, *records: str, **more: object
) -> Operation:
    """A read by any node, or with other facts."""
    one = Operation(name, "r", "read", "t", 0, begin, end, "ok", records, start=start)
    return replace(one, **more)  # type: ignore[arg-type]


def ends(name: str, begin: float, end: float, value: int, **more: object) -> Operation:
    """A master says where the queue ends."""
    one = Operation(name, "r", "end", "t", 0, begin, end, "ok", value=value, settled=True)
    return replace(one, **more)  # type: ignore[arg-type]


def good() -> History:
    """Sends that overlap, one unknown and seen, one unknown and gone, one refused, one weak."""
    line = {"producer": "p1"}
    some = [
        send("a", 0, 3, "a0", "a1", offset=0, sequence=0, **line),
        send("b", 1, 5, "b0", offset=2, sequence=2, **line),
        send("c", 2, None, "c0", outcome="unknown", sequence=3, **line),
        send("d", 3, 9, "d0", outcome="unknown"),
        send("e", 4, 6, "e0", outcome="fail"),
        send("f", 4, 7, "f0", ack="written", offset=3),
        send("g", 6, 8, "g0", offset=4, epoch=2),
        ends("end1", 3.5, 5.5, 2),
        ends("end2", 10, 11, 5),
        read("early", 4, 4.5, 0, "a0"),
        read("all", 12, 13, 0, "a0", "a1", "b0", "c0", "g0", settled=True, epoch=2),
        read("slave", 14, 15, 0, "a0", "a1"),
    ]
    return {one.id: one for one in some}


def test_a_right_history_holds() -> None:
    """Unknown and weak sends may be there or not; a slave may answer with less."""
    verdict = check(good().values())
    assert verdict.holds, verdict.findings
    assert verdict.counts["messages seen"] == 5
    assert verdict.counts["send unknown"] == 2


Change = Callable[[History], None]


def setting(name: str, **fields: object) -> Change:
    """Change one operation."""

    def change(history: History) -> None:
        history[name] = replace(history[name], **fields)  # type: ignore[arg-type]

    return change


def adding(*some: Operation) -> Change:
    """Add operations."""

    def change(history: History) -> None:
        history.update((one.id, one) for one in some)

    return change


PLANTED: dict[str, tuple[str, Change]] = {
    "never sent": ("phantom", adding(read("x", 16, 17, 5, "x0"))),
    "refused and there": ("phantom", adding(read("x", 16, 17, 5, "e0"))),
    "read before it was sent": ("phantom", adding(read("x", 1, 1.5, 0, "a0", "a1", "b0", "c0"))),
    "stored twice": ("duplicate", adding(read("x", 16, 17, 5, "b0"))),
    "readers disagree": ("disagreement", adding(read("x", 16, 17, 0, "a0", "d0"))),
    "another place than told": ("disagreement", setting("b", offset=3)),
    "a section is torn": ("gap", setting("all", records=("a0", "b0", "c0", "a1", "g0"))),
    "another one in its place": (
        "lost", setting("all", records=("a0", "a1", "b0", "c0", "d0"), settled=False),
    ),
    "confirmed and beyond the end": ("lost", setting("end2", value=4)),
    "confirmed and nowhere": ("lost", adding(send("x", 6, 7, "x0"))),
    "places of nobody": ("gap", adding(send("x", 16, 17, "x0", offset=9))),
    "a producer's order": ("order", setting("a", sequence=9)),
    "an end that nothing explains": ("not-linearizable", adding(ends("x", 1, 1.9, 4))),
    "seen, and then not yet": (
        "not-linearizable",
        adding(read("x", 6, 6.5, 3, "c0"), ends("y", 7, 7.2, 3)),
    ),
    "one overtakes another": (
        "not-linearizable",
        adding(send("x", 20, 21, "x0", offset=6), send("y", 22, 23, "y0", offset=5)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name: str) -> None:
    """Each kind of fault, put into the right history, is reported as what it is."""
    kind, plant = PLANTED[name]
    history = good()
    plant(history)
    verdict = check(history.values())
    assert not verdict.holds
    assert kind in {finding.kind for finding in verdict.findings}, verdict.findings


def test_an_old_master_may_be_old_and_a_new_one_may_not() -> None:
    """A settled answer of a smaller epoch than one heard before counts as old."""
    history = good()
    history["x"] = ends("x", 20, 21, 2, epoch=1)
    verdict = check(history.values())
    assert verdict.holds, verdict.findings
    assert verdict.counts["old"] == 1
    history["x"] = ends("x", 20, 21, 2, epoch=2)
    assert not check(history.values()).holds


def test_what_no_read_saw_may_fill_a_hole() -> None:
    """An unknown send explains places that no read covered; with too few of them it is a gap."""
    some = [
        send("a", 0, 1, "a0", offset=0),
        send("b", 2, None, "b0", "b1", outcome="unknown"),
        send("c", 3, 4, "c0", offset=3),
    ]
    assert check(some).holds
    verdict = check([replace(some[1], records=("b0",)), some[0], some[2]])
    assert [finding.kind for finding in verdict.findings] == ["gap"]
    verdict = check([some[0], replace(some[1], begin=5.0), some[2]])
    assert [finding.kind for finding in verdict.findings] == ["not-linearizable"]


def test_what_no_read_saw_may_be_the_end() -> None:
    """Seed 287: the last sends were unknown, and an answer about the end was all that told."""
    some = [
        send("a", 0, 1, "a0", offset=0),
        send("b", 2, None, "b0", "b1", outcome="unknown"),
        read("all", 3, 4, 0, "a0"),
        ends("end", 5, 6, 3),
    ]
    assert check(some).holds
    (found,) = check([*some[:3], ends("end", 5, 6, 4)]).findings
    assert found.kind == "gap"


def test_two_sends_of_one_name_are_refused() -> None:
    """Then nothing can be said about either."""
    with pytest.raises(UsageError, match="name the message"):
        check([send("a", 0, 1, "a0"), send("b", 0, 1, "a0")])


# -- the search


Made = tuple[float, float, int, int]
CALLS = st.lists(
    st.tuples(st.integers(0, 8), st.integers(0, 6), st.integers(0, 4), st.integers(-1, 2)).map(
        lambda one: (float(one[0]), float(one[0] + one[1]), one[2], one[3])
    ),
    max_size=4,
)


def made(calls: list[Made]) -> list[Call]:
    """Calls on a number: those of size -1 read it, others add their size where it is as stated."""

    def step(expected: int, size: int) -> Callable[[int], int | None]:
        return lambda state: None if state != expected else state + max(size, 0)

    return [
        Call(begin, inf if number == 3 else end, step(expected, size), "")
        for number, (begin, end, expected, size) in enumerate(calls)
    ]


def by_trying(calls: list[Call]) -> bool:
    """The definition: some order of all that ended, and some of the others, explains all."""
    must = [call for call in calls if call.end < inf]
    may = [call for call in calls if call.end == inf]
    for size in range(len(may) + 1):
        for some in combinations(may, size):
            for order in permutations([*must, *some]):
                if any(a.begin > b.end for n, a in enumerate(order) for b in order[n:]):
                    continue
                state: int | None = 0
                for call in order:
                    state = call.step(state) if state is not None else None
                if state is not None:
                    return True
    return False


@settings(max_examples=200, deadline=None)
@given(CALLS)
def test_the_search_says_what_trying_everything_says(calls: list[Made]) -> None:
    """Every order of up to four operations, one of which may never have ended."""
    some = made(calls)
    assert linearizable(some, 0).holds == by_trying(some)


# -- files


def test_a_recorder_that_is_killed_leaves_what_it_may_have_caused(tmp_path: Path) -> None:
    """The last line of an operation counts; a torn line at the end is passed over."""
    path = tmp_path / "history.jsonl"
    with Recorder(path) as recorder:
        first = recorder.begin("send", "p", "t", 0, records=("a",), producer="p", sequence=0)
        recorder.begin("send", "p", "t", 0, records=("b",))
        recorder.done(first, "ok", offset=0, epoch=3)
        looked = recorder.begin("read", "r", "t", 0)
        recorder.done(looked, "ok", records=("a",), settled=True)
    with path.open("a") as file:
        file.write('{"id": 9, "cli')
    ok, unknown, seen = load(path)
    assert (ok.outcome, ok.offset, ok.epoch, ok.sequence) == ("ok", 0, 3, 0)
    assert (unknown.outcome, unknown.end) == ("unknown", None)
    assert (seen.records, seen.settled) == (("a",), True)
    again = tmp_path / "again.jsonl"
    write(again, [ok, unknown, seen])
    assert load(again) == [ok, unknown, seen]


@pytest.mark.parametrize(
    "line",
    ["[]", "{}", "x", '{"id": 1, "op": "send", "outcome": "perhaps"}',
     '{"id": 1, "op": "end", "outcome": "ok", "client": "c", "topic": "t", "queue": -1}'],
)  # fmt: skip
def test_what_is_no_history_is_refused(tmp_path: Path, line: str) -> None:
    """With the line that is wrong."""
    path = tmp_path / "history.jsonl"
    path.write_text(f"{line}\n\n")
    with pytest.raises(UsageError, match="line 1"):
        load(path)


def test_the_command_says_it_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Right, wrong, unreadable."""
    right, wrong = tmp_path / "right.jsonl", tmp_path / "wrong.jsonl"
    write(right, good().values())
    history = good()
    history["x"] = read("x", 16, 17, 5, "x0")
    wrong.write_text("".join(json.dumps(one.to_json()) + "\n" for one in history.values()))
    assert command.main([str(right)]) == command.RIGHT
    assert command.main([str(right), str(wrong)]) == command.WRONG
    assert "phantom: t/0: 'x0' at 5 was never sent" in capsys.readouterr().out
    assert command.main([str(tmp_path / "nowhere")]) == command.UNREADABLE
