"""The judge notices each kind of harm in a good history, and knows when it cannot tell."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cli.drill.judge import HARMS, Outcome, judge
from cli.drill.scenario import Promises
from cli.history.operations import Operation, write
from tests.fakes.cli_cluster import FakeCluster

NODES = ("n1", "n2")


def sent(number: int, *, outcome: str = "ok", queue: int = 0, ack: str = "confirmed") -> Operation:
    """A send that took half a second, one each second."""
    value = f"w{queue}:{number}"
    return Operation(
        value, f"w{queue}", "send", "drill", queue, float(number), number + 0.5, outcome,
        (value,), number if outcome == "ok" else None, ack, f"w{queue}", number,
    )  # fmt: skip


def read(begin: float, first: int, values: list[str], *, node: str = "") -> Operation:
    """An answer to a reader; of a node: the read of a whole queue at the end."""
    return Operation(
        f"r{begin}{node}", f"end:{node}" if node else "r1", "read", "drill", 0, begin, begin + 0.5,
        "ok", records=tuple(values), start=first, settled=bool(node),
    )  # fmt: skip


def good(count: int = 6) -> list[Operation]:
    """A history in which nothing went wrong: sends, two reads on the way, each node's end."""
    values = [f"w0:{number}" for number in range(count)]
    return [
        *(sent(number) for number in range(count)),
        read(3.1, 0, values[:2]),
        read(5.1, 2, values[2:4]),
        *(read(90.0, 0, values, node=node) for node in NODES),
    ]


def outcomes(history: list[Operation], promises: Promises | None = None) -> dict[str, Outcome]:
    """Each promise with how it ended; a fault began at 2.7 s."""
    found = judge(history, promises or Promises(), [(2.7, "kill n1")])
    return {one.promise: one.outcome for one in found.findings}


def test_a_good_history_holds() -> None:
    """Every promise holds, and the counts are right."""
    found = judge(good(), Promises())
    assert found.outcome is Outcome.HELD
    assert set(outcomes(good())) == set(HARMS)
    counts = found.counts
    assert (counts.acknowledged, counts.found, counts.read, counts.lost) == (6, 6, 4, 0)


def planted(harm: str) -> list[Operation]:
    """A good history with one harm put into it."""
    history = good()
    whole = list(history[-1].records)
    match harm:
        case "lost":
            for at in (-2, -1):
                history[at] = replace(history[at], records=tuple(whole[:-1]))
        case "duplicate":
            history[-1] = replace(history[-1], records=(*whole, "w0:2"))
        case "disagreement":
            history[-1] = replace(history[-1], records=(*whole[:4], "w0:5", "w0:4"))
        case "order":
            history[4:6] = [replace(history[4], sequence=5), replace(history[5], sequence=4)]
        case "phantom":
            history[-1] = replace(history[-1], records=(*whole, "w9:0"))
        case _:
            history[-3] = replace(history[-3], start=3, records=("w0:3",))
    return history


@pytest.mark.parametrize("harm", [one for one in HARMS if one not in ("gap", "not-linearizable")])
def test_a_planted_harm_is_found(harm: str) -> None:
    """It breaks its promise, and the first counter-example is in words."""
    found = judge(planted(harm), Promises())
    broken = next(one for one in found.findings if one.promise == harm)
    assert broken.outcome is found.outcome is Outcome.BROKEN
    assert broken.examples[0].text


def test_a_queue_that_was_not_read_is_unknown() -> None:
    """Nothing can be said about what was not looked at; harm that is seen stays broken."""
    assert outcomes([*good(), sent(7, queue=1)])["lost"] is Outcome.UNKNOWN
    assert judge([*good(), sent(7, queue=1)], Promises()).outcome is Outcome.UNKNOWN
    found = judge([*planted("duplicate"), sent(7, queue=1)], Promises())
    assert found.outcome is Outcome.BROKEN


def test_without_an_acknowledgement_nothing_was_tested() -> None:
    """An empty history is no good one."""
    assert judge([read(90.0, 0, [], node="n1")], Promises()).outcome is Outcome.UNKNOWN
    assert judge([], Promises()).outcome is Outcome.UNKNOWN


@pytest.mark.parametrize("there", [True, False])
def test_an_unknown_send_may_be_there_or_not(there: bool) -> None:
    """Neither is harm."""
    history = good()
    history[5] = replace(history[5], outcome="unknown", offset=None)
    if not there:
        for at in (-2, -1):
            history[at] = replace(history[at], records=history[at].records[:-1])
    assert judge(history, Promises()).outcome is Outcome.HELD


@pytest.mark.parametrize(("allowed", "outcome"), [(0, Outcome.BROKEN), (None, Outcome.HELD)])
def test_loss_of_weaker_acknowledgements_is_counted(allowed: int | None, outcome: Outcome) -> None:
    """The drill says whether it is allowed."""
    history = planted("lost")
    history[:6] = [replace(one, ack="written") for one in history[:6]]
    found = judge(history, Promises(lost_max=allowed))
    assert (found.outcome, found.counts.lost) == (outcome, 1)


def test_the_write_gap_is_judged() -> None:
    """From the last acknowledgement before a fault to the first after the silence."""
    history = good()
    history[3:5] = [replace(one, begin=3.0, end=5.4) for one in history[3:5]]
    found = judge(history, Promises(write_gap_max=1.0), [(2.7, "kill n1")])
    (gap,) = found.gaps
    assert (round(gap.seconds, 6), round(gap.recovery, 6)) == (2.9, 2.7)
    assert outcomes(history, Promises(write_gap_max=1.0))["write gap"] is Outcome.BROKEN
    assert outcomes(history, Promises(write_gap_max=4.0))["write gap"] is Outcome.HELD


def test_no_write_after_a_fault_is_unknown() -> None:
    """The gap has no end, so its length is not known."""
    found = judge(good(), Promises(write_gap_max=4.0), [(50.0, "kill n1")])
    assert found.outcome is Outcome.UNKNOWN


def test_refusals_are_judged() -> None:
    """Where a drill allows none."""
    history = [*good(), sent(20, outcome="fail")]
    history[-3:-1] = [replace(one, begin=91.0, end=92.0) for one in history[-3:-1]]
    assert outcomes(history, Promises(refused_max=0))["refused"] is Outcome.BROKEN
    assert outcomes(history, Promises(refused_max=1))["refused"] is Outcome.HELD


def replayed(path: Path, *words: str) -> tuple[int, dict[str, object]]:
    """Run ``drill replay``; its exit code and document."""
    code, out, _ = FakeCluster(path.parent).run("drill", "replay", str(path), *words, "-o", "json")
    document: dict[str, object] = json.loads(out)
    return code, document


def test_replay_judges_a_stored_history(tmp_path: Path) -> None:
    """Held, with a message taken out broken, without a read at the end unknown."""
    path = tmp_path / "history.jsonl"
    write(path, good())
    code, document = replayed(path)
    assert (code, document["verdict"], document["acknowledged"]) == (0, "held", 6)
    write(path, planted("lost"))
    code, document = replayed(path)
    assert (code, document["verdict"]) == (1, "broken")
    write(path, good()[:-2])
    code, document = replayed(path)
    assert (code, document["verdict"]) == (2, "unknown")


def test_what_retention_deleted_is_not_lost() -> None:
    """Only where the drill says so, and only before the first message that a node still has."""
    history = good()
    for at in (-2, -1):
        history[at] = replace(history[at], start=3, records=history[at].records[3:])
    # What the reader saw is known; what nobody saw and no node has any more is deleted.
    history = [one for one in history if one.op != "read" or one.settled]
    sends = [replace(one, ack="written") for one in history if one.op == "send"]
    weak = [*sends, *(one for one in history if one.op != "send")]
    assert judge(weak, Promises()).counts.lost == 3
    assert judge(weak, Promises(deleted=True)).counts.lost == 0
    for at in (-2, -1):
        weak[at] = replace(weak[at], records=weak[at].records[:-1])
    assert judge(weak, Promises(deleted=True)).counts.lost == 1
