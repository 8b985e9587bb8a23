"""What the reports say of groups, from their rows in the log; without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from tests.stores.consumed import BEGIN, MINUTE, consumed
from twinlog.format.group_history import History
from twinlog.format.group_rows import AckRow, LeaseRow, ResetRow, ShareRow, encode_rows
from twinlog.spark.jobs.reports.groups import taken

PLAIN = {"TWINLOG_SPARK_ENGINE": "plain"}


def rows(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, Any]]:
    """The rows of a report."""
    assert main(["spark", *words, "-o", "json"], PLAIN) == 0
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["rows"]
    return found


def test_lag_over_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each minute in which the group or its queue moved; what is given back is left."""
    root = str(consumed(tmp_path / "s"))
    found = rows(capsys, "lag", "--path", root, "--every", "1m")
    minutes = [
        (
            (row["until_ms"] - BEGIN) // MINUTE,
            row["group"],
            row["committed"],
            row["end"],
            row["behind"],
        )
        for row in found
    ]
    assert minutes == [
        (1, "b~m", 4, 4, 0),
        (1, "g", 0, 4, 4),
        (2, "b~m", 4, 6, 2),
        (2, "g", 0, 6, 6),
        (4, "g", 3, 6, 3),
    ]


@pytest.mark.parametrize("word", ["soon", "0s"])
def test_a_span_is_a_duration(word: str, tmp_path: Path) -> None:
    """Exit 64."""
    root = str(consumed(tmp_path / "s"))
    assert main(["spark", "lag", "--path", root, "--every", word], PLAIN) == 64


def test_a_trace_tells_what_groups_did(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stored, leased, given back, leased again, dead; and read by a member of another group."""
    root = str(consumed(tmp_path / "s"))
    found = rows(capsys, "trace", "k0", "--path", root, "--scan")
    told = [(row["kind"], row["group"], row["member"], row["again"]) for row in found]
    assert told == [
        ("message", None, None, 0),
        ("leased", "g", "w1", 1),
        ("given back", "g", "w1", 1),
        ("position", "b", "m", None),
        ("leased", "g", "w1", 2),
        ("dead", "g", "w1", 2),
    ]
    assert {row["key"] for row in found} == {"k0"}
    assert [row["kind"] for row in rows(capsys, "trace", "ID1", "--path", root, "--scan")] == [
        "message",
        "leased",
        "acked",
        "position",
    ]


def test_a_timeline_has_what_was_given_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One came again, late; the other is still to come."""
    root = str(consumed(tmp_path / "s"))
    found = rows(capsys, "timeline", "--path", root)
    assert [(row["state"], row["late"], row["group"], row["address"]) for row in found] == [
        ("delivered", MINUTE + 2500, "g", "t/0@0"),
        ("pending", None, "g", "t/0@3"),
    ]


def test_a_group_whose_beginning_is_gone_is_unknown_until_a_reset() -> None:
    """Rows of a share that nothing names, and of one that only a document names."""
    history = History()
    history.know({"name": "g", "queues": [{"share": 1, "topic": "t", "queue": 0}]})
    lost = [
        (encode_rows([LeaseRow(1, 9, 40, 2, 7, 1, 0, 1), AckRow(1, 9, 40, 41)]), 10),
        (encode_rows([AckRow(5, 1, 0, 0)]), 20),
    ]
    assert taken(lost, history, 100) == []
    told = [(encode_rows([ResetRow(1, 60, "test")]), 310)]
    assert taken(told, history, 100) == [(400, "g", "t", 0, 60)]


def test_light_queues_are_left_out() -> None:
    """The reports do not know where they end."""
    told = [(encode_rows([ShareRow(1, "g", "%LMQ%x", 0, 0, 0)]), 10)]
    assert taken(told, History(), 100) == []
