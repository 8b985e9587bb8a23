"""The real RocketMQ opens stores of its own that twinlog has repaired."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from storage.disk.disk import RealDisk
from storage.tools.repair import carry_out, plan_repair
from tests.stores.golden import manifest, unpack
from twinlog.store.reader import StoreReader

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    "case", ["03b-torn-tail", "03c-bad-body", "03d-queues-behind", "17-lost-queue-clean"]
)
def test_it_reads_what_its_own_recovery_would_have_left(
    judge: Any, tmp_path: Path, case: str
) -> None:
    """The manifest's queues; of 17 the lost queue too, which RocketMQ never rebuilt."""
    root, wanted = unpack(case, tmp_path), manifest(case)
    sizes = wanted["settings"]
    with StoreReader(root) as reader:
        plan = plan_repair(reader, index_slots=int(sizes["maxHashSlotNum"]))
        carry_out(RealDisk(root), plan, reader=reader, wall_ms=1_795_000_000_000)
    opened = judge.ask(
        "open",
        dir=str(root),
        commit_log_size=int(sizes["mappedFileSizeCommitLog"]),
        queue_size=int(sizes["mappedFileSizeConsumeQueue"]),
    )
    found = judge.ask("dump")
    queries = [
        (query, judge.ask("query", topic=query["topic"], key=query["key"]))
        for query in wanted["key_queries"]
    ]
    judge.ask("close")
    assert opened["loaded"] is True
    assert opened["max_offset"] == wanted["log"]["max_offset"]
    entries = {(q["topic"], q["queue_id"]): q["entries"] for q in found["queues"]}
    for queue in wanted["queues"]:
        assert entries[queue["topic"], queue["queue_id"]] == queue["entries"]
    if case.startswith("17"):
        [lost] = [key for key in entries if key[1] == 1]
        assert len(entries[lost]) == 30
    kept = {message["physical_offset"] for message in wanted["messages"]}
    for query, answer in queries:
        assert set(query["physical_offsets"]) & kept <= set(answer["physical_offsets"]), query
