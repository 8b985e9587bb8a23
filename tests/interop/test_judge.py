"""The judge itself reads what RocketMQ read when the golden stores were made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.stores.golden import manifest, unpack

pytestmark = pytest.mark.interop


def test_the_judge_agrees_with_a_golden_manifest(judge, tmp_path: Path) -> None:
    """What a running RocketMQ answers is what the manifest recorded."""
    expected = manifest("01-basic")
    store = unpack("01-basic", tmp_path)
    opened = judge.ask("open", dir=str(store), commit_log_size=262144, queue_size=2000)
    assert opened["loaded"] is True
    assert opened["max_offset"] == expected["log"]["max_offset"]
    found = judge.ask("dump")
    judge.ask("close")
    entries = {(q["topic"], q["queue_id"]): q["entries"] for q in found["queues"]}
    for queue in expected["queues"]:
        if queue["entries"]:
            assert entries[queue["topic"], queue["queue_id"]] == queue["entries"]
