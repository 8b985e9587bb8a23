"""``twinlog log repair`` and ``recover``: plan, question, document, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.app import main
from tests.stores.golden import manifest, unpack
from tests.stores.killed import killed
from tests.stores.sample import flip, put
from twinlog.format.record import encode


def test_the_plan_comes_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """--dry-run changes nothing; without --yes a script is not asked; then it is done."""
    root = unpack("03d-queues-behind", tmp_path)
    words = ["log", "repair", str(root)]
    assert main([*words, "--dry-run", "-o", "json"], {}) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["kind"], plan["done"], plan["kept_in"]) == ("LogRepair", False, None)
    assert [one["action"] for one in plan["actions"]] == ["queue"] * 4 + ["keys", "marks"]
    assert main(words, {"CI": "1"}) == 64
    said = capsys.readouterr().err
    assert said.index("records of the log have no entry") < said.index("--yes")
    assert (root / "abort").exists()
    assert main([*words, "--yes", "-o", "json"], {}) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["actions"] == plan["actions"]
    assert (Path(done["kept_in"]) / "abort").exists()
    assert main(["log", "verify", str(root)], {}) == 0
    assert main([*words, "--yes"], {}) == 0
    assert "0 to do" in capsys.readouterr().out


def test_what_is_lost_ends_with_65(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A flipped byte in the middle of a log that was stopped cleanly."""
    root = unpack("02-rollover", tmp_path)
    path = root / "commitlog" / f"{65536:020d}"
    data = bytearray(path.read_bytes())
    data[90] ^= 1
    path.write_bytes(data)
    assert main(["log", "repair", str(root), "--dry-run", "-o", "json"], {}) == 65
    [lost] = json.loads(capsys.readouterr().out)["lost"]
    assert lost["file"] == f"commitlog/{65536:020d}"


def test_a_lost_newest_file_is_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Queue entries tell of its records: they are lost (65); it said "0 lost" and cut them."""
    root = unpack("12-controller-b", tmp_path)
    max((root / "commitlog").iterdir()).unlink()
    assert main(["log", "epochs", str(root), "-o", "json"], {}) == 0
    assert [e["bytes"] for e in json.loads(capsys.readouterr().out)["epochs"]] == [63448, 2049, 0]
    assert main(["log", "repair", str(root), "--yes", "-o", "json"], {}) == 65
    found = json.loads(capsys.readouterr().out)
    assert [one["what"] for one in found["lost"]] == [
        "entry 67 points after the end of the log, 44 after it",
        "entry 87 points after the end of the log, 50 after it",
    ]
    assert main(["log", "verify", str(root)], {}) == 0  # what is left is in order, and cut is kept
    assert any((root / found["kept_in"] / "consumequeue").rglob("0*"))
    assert main(["log", "repair", str(root), "--yes"], {}) == 0


def test_damage_that_nothing_can_be_done_about(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What is lost is shown, and no header of actions without one."""
    root = unpack("02-rollover", tmp_path)
    lost = next(m for m in manifest("02-rollover")["messages"] if m["physical_offset"] > 65536)
    flip(root / "commitlog" / f"{65536:020d}", lost["physical_offset"] - 65536 + 88)
    assert main(["log", "repair", str(root), "--dry-run"], {}) == 65
    said = capsys.readouterr().out
    assert "0 to do, 1 lost" in said
    assert "ACTION" not in said


@pytest.mark.parametrize("topic", ["../../outside", "..", "a/b", "x" * 300])
def test_a_topic_that_is_no_folders_name(
    topic: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One flipped bit makes a slash: told as damage, no queue is built, nothing lies elsewhere."""
    root = tmp_path / "a" / "store"
    record = encode(topic, 0, b"x", queue_offset=0, log_offset=0, store_timestamp=1)
    put(root / "commitlog" / f"{0:020d}", record.ljust(65536, b"\0"))
    put(root / "abort", b"")
    assert main(["log", "verify", str(root)], {}) == 65
    assert "which no folder can be called" in capsys.readouterr().out
    assert main(["log", "repair", str(root), "--yes", "--index-slots", "100"], {}) == 65
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert not [*root.glob("0"), *root.glob("consumequeue/*")]


def test_recover(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A killed store is stopped cleanly; one that runs, and RocketMQ's, are refused."""
    root = tmp_path / "store"
    store = killed(root)
    store.close(clean=False)
    assert main(["log", "recover", str(root), "-o", "json"], {}) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["kind"], found["end"], found["cut_bytes"]) == ("LogRecover", store.end, 0)
    assert (root / "twinlog" / "clean").exists()
    theirs = unpack("01-basic", tmp_path / "theirs")
    assert main(["log", "recover", str(theirs)], {}) == 64
    assert "log repair" in capsys.readouterr().err
    assert main(["log", "recover", str(tmp_path / "none")], {}) == 66


def test_a_damaged_queue_extension_is_lost(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The log does not say what its bitmaps were: it is listed, and nothing else is done."""
    root = unpack("18-cqext", tmp_path)
    name = f"consumequeue_ext/Ext_8aa172c2/0/{0:020d}"
    flip(root / name, 34 + 17)
    assert main(["log", "repair", str(root), "--dry-run", "-o", "json"], {}) == 65
    plan = json.loads(capsys.readouterr().out)
    assert (plan["actions"], [one["file"] for one in plan["lost"]]) == ([], [name])
