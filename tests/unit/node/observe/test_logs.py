"""Logs: one event a line, both forms, repeated warnings counted, a dead stream survived."""

from __future__ import annotations

import ast
import io
import json
from pathlib import Path

import pytest

from node.observe.logs import EVENTS, LEVELS, REPEAT_SECONDS, NodeLog

ROOT = Path(__file__).parents[4]
START = 1_795_256_102.118


class Clock:
    """A wall clock that the test moves."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        """Seconds since 1970."""
        return self.now


def logged(stream: io.StringIO) -> list[dict[str, object]]:
    """The lines of a JSON log."""
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_text_for_people() -> None:
    out = io.StringIO()
    log = NodeLog(style="text", stream=out, wall=Clock(), node="n1")
    log.bind(role="master", epoch=7)
    log("in_sync_grew", "info", peer="n2", in_sync=["n1", "n2"], lag=0.25, why="it is back")
    assert out.getvalue() == (
        "10:15:02.118 info    in_sync_grew         node=n1 role=master epoch=7 peer=n2 "
        'in_sync=n1,n2 lag=0.25 why="it is back"\n'
    )


def test_json_for_machines() -> None:
    out = io.StringIO()
    log = NodeLog(stream=out, wall=Clock(), node="n1")
    log("coordinator_back", "info", after=1.5, path=Path("x"))
    assert logged(out) == [
        {
            "time": "2026-11-21T10:15:02.118Z",
            "level": "info",
            "event": "coordinator_back",
            "node": "n1",
            "after": 1.5,
            "path": "x",
        }
    ]


def test_a_value_cannot_forge_a_line() -> None:
    """A client's text with line breaks stays one line in both forms."""
    for style in ("text", "json"):
        out = io.StringIO()
        NodeLog(style=style, stream=out)("frame_refused", "info", why="x\nerror forged y=1", v="")
        assert out.getvalue().count("\n") == 1


def test_levels() -> None:
    out = io.StringIO()
    log = NodeLog(level="warning", stream=out)
    for level in LEVELS:
        log("x", level)
    assert [line["level"] for line in logged(out)] == ["warning", "error"]
    assert log.counts[("x", "debug")] == 1


def test_a_repeated_warning_is_counted() -> None:
    """A minute of trouble is two lines; another peer's trouble is its own."""
    out, clock = io.StringIO(), Clock()
    log = NodeLog(stream=out, wall=clock)
    for _ in range(5):
        log("slave_lagging", "warning", peer="n2", lag=1)
    log("slave_lagging", "warning", peer="n3")
    clock.now += REPEAT_SECONDS + 1
    log("slave_lagging", "warning", peer="n2", lag=9)
    lines = logged(out)
    assert [(line["peer"], line.get("repeats")) for line in lines] == [
        ("n2", None), ("n3", None), ("n2", 4),
    ]  # fmt: skip
    assert log.counts[("slave_lagging", "warning")] == 7


def test_kinds_of_warnings_are_bounded() -> None:
    """A peer that invents names cannot make the node remember them all."""
    log = NodeLog(stream=io.StringIO())
    for number in range(3000):
        log("x", "warning", peer=f"p{number}")
    assert len(log._repeated) <= 1024


def test_errors_that_differ_are_all_written() -> None:
    """Only the very same error is counted: one that says more is never lost."""
    out = io.StringIO()
    log = NodeLog(stream=out)
    for offset in (1, 1, 2):
        log("own-copy-damaged", "alarm", offset=offset)
    assert [(line["event"], line["level"], line["offset"]) for line in logged(out)] == [
        ("own_copy_damaged", "error", 1),
        ("own_copy_damaged", "error", 2),
    ]


def test_a_fact_cannot_take_the_place_of_level_or_time() -> None:
    out = io.StringIO()
    NodeLog(stream=out)("x", "info", event="y", level=5, name="n")
    (line,) = logged(out)
    assert (line["event"], line["level"], line["name"]) == ("x", "info", "n")
    assert (line["fact_event"], line["fact_level"]) == ("y", 5)


def test_a_stream_that_is_gone_costs_lines_and_not_the_node() -> None:
    out = io.StringIO()
    log = NodeLog(stream=out)
    out.close()
    log("x", "error")


def test_two_nodes_write_to_two_streams() -> None:
    first, second = io.StringIO(), io.StringIO()
    NodeLog(stream=first, node="n1")("x", "info")
    NodeLog(stream=second, node="n2")("x", "info")
    assert [logged(first)[0]["node"], logged(second)[0]["node"]] == ["n1", "n2"]


CALLS = ("event", "log", "tell", "debug", "alarm")


def event_names(path: Path) -> set[str]:
    """Literal names given to something called event, log, tell or debug (or ``_log`` and so on)."""
    found: set[str] = set()
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(call, ast.Call) or not call.args:
            continue
        name = ast.unparse(call.func).split(".")[-1].lstrip("_")
        first = call.args[0]
        if isinstance(first, ast.Constant) and isinstance(first.value, str) and name in CALLS:
            found.add(first.value.replace("-", "_"))
    return found


SOURCES = sorted([*(ROOT / "node").glob("*.py"), *(ROOT / "replication").glob("*.py")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_event_has_a_meaning(path: Path) -> None:
    """A name that the table lacks is a line nobody can look up."""
    assert event_names(path) <= EVENTS.keys()


def test_names_are_lower_case_and_meanings_are_there() -> None:
    for name, meaning in EVENTS.items():
        assert name.replace("_", "").isalpha()
        assert name == name.lower()
        assert meaning
