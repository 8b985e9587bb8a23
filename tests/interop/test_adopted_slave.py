"""The real RocketMQ opens the slave of an adopted store and reads its own history there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.stores.adopted import adopted, follower
from tests.stores.golden import manifest, unpack
from tests.stores.workbench import SLAVE, settle, ship

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("case", ["01-basic", "02-rollover"])
def test_rocketmq_reads_its_history_on_the_slave(judge: Any, tmp_path: Path, case: str) -> None:
    """Each message that the broker had is there, at its log offset and in its queue."""
    wanted = manifest(case)
    first = adopted(unpack(case, tmp_path / "master"))
    (tmp_path / "slave").mkdir()
    second = follower(tmp_path / "slave", first)
    ship(first, second, SLAVE)
    settle(second)
    assert second.close(clean=True)
    opened = judge.ask(
        "open", dir=str(tmp_path / "slave"), commit_log_size=second.settings.segment_size,
        queue_size=second.settings.queue_file_size,
    )  # fmt: skip
    assert opened["loaded"] is True
    found = judge.ask("dump")
    judge.ask("close")
    entries = {(one["topic"], one["queue_id"]): one["entries"] for one in found["queues"]}
    for queue in wanted["queues"]:
        if queue["entries"]:
            assert entries[queue["topic"], queue["queue_id"]] == queue["entries"]
