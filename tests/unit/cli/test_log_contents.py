"""``twinlog log info`` with its parts: queues, timers, metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.app import main
from tests.stores.golden import manifest, unpack


def test_parts_of_rocketmqs_stores(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each part is a field of the document and has what the manifest has."""
    root = unpack("05-timer", tmp_path)
    assert main(["log", "info", str(root), "--timers", "--metadata", "--queues", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    wanted = manifest("05-timer")
    assert [slot["time_ms"] for slot in found["timers"]] == [
        slot["time_ms"] for slot in wanted["timer"]["slots"]
    ]
    assert sum(unit["cancels"] for slot in found["timers"] for unit in slot["units"]) == 2
    assert {one["file"]: one["content"] for one in found["metadata"]} == wanted["config"]
    assert [(q["topic"], q["queue"], q["end"]) for q in found["queues"]] == [
        (q["topic"], q["queue_id"], q["max"])
        for q in sorted(wanted["queues"], key=lambda q: (q["topic"], q["queue_id"]))
    ]


def test_a_compacted_topic(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """What compaction kept stands beside what the log has."""
    root = unpack("14-compaction", tmp_path)
    assert main(["log", "info", str(root), "--queues", "-o", "json"]) == 0
    [first, _] = json.loads(capsys.readouterr().out)["queues"]
    assert (first["start"], first["end"]) == (0, 210)
    assert 25 <= first["compacted"]["records"] < 210
    assert first["compacted"]["end"] == 210
    assert main(["log", "info", str(root), "--queues"]) == 0
    assert "COMPACTED" in capsys.readouterr().out
