"""Queues of RocketMQ's that have no files: those in a database, those of topics that were deleted.

It was damage that ``log repair`` would have mended: with files inside RocksDB's folder, with queues
that an administrator had taken away.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from tests.stores.golden import unpack
from twinlog.store.damage import Grade
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

NAMED = ["--cluster", "c", "--node", "n1"]
TOPIC = "Orders_f578c4f0"


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words, "-o", "json"], {})
    return code, json.loads(capsys.readouterr().out)


def without_topic(root: Path) -> Path:
    """As RocketMQ leaves a store whose topic an administrator has deleted."""
    path = root / "config" / "topics.json"
    held = json.loads(path.read_text())
    del held["topicConfigTable"][TOPIC]
    path.write_text(json.dumps(held))
    shutil.rmtree(root / "consumequeue" / TOPIC)
    return root


def test_queues_in_a_database(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """They are not judged; nothing is built among the files of the database."""
    root = unpack("02-rollover", tmp_path)
    queues = root / "consumequeue"
    shutil.rmtree(queues)
    queues.mkdir()
    for name in ("CURRENT", "MANIFEST-000005", "000009.sst"):
        (queues / name).write_bytes(b"x")
    code, found = answer(capsys, "log", "verify", str(root))
    assert (code, found["findings"], found["queue_entries"]) == (0, [], 0)
    why = "a RocketMQ database; its entries are not compared with the log"
    assert {"file": "consumequeue", "reason": why} in found["not_checked"]
    code, found = answer(capsys, "log", "repair", str(root), "--dry-run")
    assert (code, found["actions"]) == (0, [])
    assert main(["store", "adopt", str(root), *NAMED, "--yes"], {}) == 64
    assert "its queues are in a database (RocksDB)" in capsys.readouterr().err


def test_a_deleted_topic(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Its records are noted; its queues come back neither by a repair nor by an adoption."""
    root = without_topic(unpack("01-basic", tmp_path))
    code, found = answer(capsys, "log", "verify", str(root))
    text = "96 records of the log have no entry: topics.json has no such topic any more"
    said = [(f["grade"], f["file"], f["what"]) for f in found["findings"]]
    assert (code, said) == (0, [("note", f"consumequeue/{TOPIC}", text)])
    code, found = answer(capsys, "log", "repair", str(root), "--dry-run")
    assert (code, found["actions"]) == (0, [])
    code, found = answer(capsys, "store", "adopt", str(root), *NAMED, "--yes")
    assert (code, found["left_out"]) == (0, [{"topic": TOPIC, "why": "it was deleted"}])
    assert TOPIC not in {one["topic"] for one in found["topics"]}
    assert main(["log", "verify", str(root)], {}) == 0


def test_a_lost_queue_is_no_deleted_topic(tmp_path: Path) -> None:
    """Where another place has the topics, an old ``topics.json`` says nothing; nor does none."""
    root = without_topic(unpack("01-basic", tmp_path))
    (root / "config" / "rdb").mkdir()
    assert any(f.grade is Grade.DAMAGE for f in verify(StoreReader(root)).findings)
    (root / "config" / "rdb").rmdir()
    (root / "config" / "topics.json").unlink()
    (root / "config" / "topics.json.bak").unlink(missing_ok=True)
    assert any(f.grade is Grade.DAMAGE for f in verify(StoreReader(root)).findings)


def test_what_lies_beside_the_config_files(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Notes, and what a killed broker had not renamed yet, are no damage of the store."""
    root = unpack("01-basic", tmp_path)
    for name in ("topics.json.tmp", "notes.txt"):
        (root / "config" / name).write_bytes(b"\0{")
    code, found = answer(capsys, "log", "verify", str(root))
    assert (code, found["findings"]) == (0, [])
    unknown = "not known as part of a store"
    assert {"file": "config/topics.json.tmp", "reason": unknown} in found["not_checked"]
    code, found = answer(capsys, "log", "info", str(root), "--metadata")
    assert (code, "topics.json" in {one["file"] for one in found["metadata"]}) == (0, True)
    assert main(["store", "adopt", str(root), *NAMED, "--dry-run"], {}) == 0
