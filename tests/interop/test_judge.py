"""The judge itself reads what RocketMQ read when the golden stores were made."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop


def golden_manifest(case: str) -> dict[str, object]:
    """The manifest of a golden case, in whichever packing it is kept."""
    import gzip
    import lzma

    folder = Path(__file__).parents[1] / "golden"
    for suffix, opener in ((".json.xz", lzma.open), (".json.gz", gzip.open), (".json", open)):
        path = folder / f"{case}{suffix}"
        if path.exists():
            with opener(path, "rt", encoding="utf-8") as text:
                manifest: dict[str, object] = json.load(text)
                return manifest
    raise AssertionError(f"no golden case {case}")


def test_the_judge_agrees_with_a_golden_manifest(judge, tmp_path: Path) -> None:
    """What a running RocketMQ answers is what the manifest recorded."""
    manifest = golden_manifest("01-basic")
    archive = Path(__file__).parents[1] / "golden" / "01-basic.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    opened = judge.ask(
        "open", dir=str(tmp_path / "store"), commit_log_size=262144, queue_size=2000
    )
    assert opened["loaded"] is True
    assert opened["max_offset"] == manifest["log"]["max_offset"]
    found = judge.ask("dump")
    judge.ask("close")
    entries = {(q["topic"], q["queue_id"]): q["entries"] for q in found["queues"]}
    for queue in manifest["queues"]:
        if queue["entries"]:
            assert entries[queue["topic"], queue["queue_id"]] == queue["entries"]
