"""``twinlog log info`` with its parts: queues, timers, metadata."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.app import main
from storage.disk.disk import RealDisk
from tests.fakes.deliveries import START_MS, World
from tests.stores.golden import manifest, unpack
from tests.stores.records.delayed import delayed
from tests.stores.workbench import append, master, run, settle


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


def test_what_waits_for_delay_levels(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Golden 04: two of each level from the fourth on, three of the last; none of the first."""
    root = unpack("04-delay", tmp_path)
    assert main(["log", "info", str(root), "--waiting", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)["delays"]
    assert [(one["level"], one["waiting"]) for one in found] == [
        *((level, 2) for level in range(4, 18)), (18, 3),
    ]  # fmt: skip
    codes = {
        (queue["queue_id"], entry[0]): entry[3]
        for queue in manifest("04-delay")["queues"]
        for entry in queue["entries"]
        if queue["topic"] == "SCHEDULE_TOPIC_XXXX"
    }
    assert [one["due_ms"] for one in found] == [
        codes[one["level"] - 1, one["next"]] for one in found
    ]
    assert main(["log", "info", str(root), "--waiting"]) == 0
    assert "30s" in capsys.readouterr().out


def test_what_a_store_of_twinlogs_own_still_waits_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The rows in its log are newer than the file, which is written now and then."""
    disk = RealDisk(tmp_path)
    store = master(disk)
    append(store, delayed(1, 3), delayed(2, 1))
    world = World(store)
    world.at(START_MS + 1_000)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    store.close(clean=False)
    assert main(["log", "info", str(tmp_path), "--waiting", "-o", "json"]) == 0
    [one] = json.loads(capsys.readouterr().out)["delays"]
    assert (one["level"], one["delay"], one["waiting"]) == (2, "5s", 1)
    assert one["due_ms"] == one["last_ms"] == START_MS + 5_000


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
