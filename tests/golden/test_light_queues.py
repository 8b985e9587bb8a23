"""Light queues made from RocketMQ's logs are the queues that RocketMQ made."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage.queues.light_queues import light_runs
from storage.state.sequences import marks_of
from tests.stores.golden import manifest, unpack
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.light_queues import LIGHT_PREFIX

BLANK = 0x7FFFFFFF
"""Size in the entries that fill a queue up to its first one."""


@pytest.mark.parametrize("case", ["08-lmq", "08b-lmq-mixed"])
def test_dispatch_enters_what_rocketmq_entered(case: str, tmp_path: Path) -> None:
    """The same entries in the same order; a list that RocketMQ gave up is given up.

    In 08b some records name an offset that is not their entry's: RocketMQ counts the offsets of
    messages that it then enters nowhere. The entries' places are the queue's own.
    """
    expected = manifest(case)
    log = (unpack(case, tmp_path) / "commitlog" / f"{0:020d}").read_bytes()
    data = memoryview(log)[: expected["log"]["max_offset"]]
    _, lights = marks_of(data)
    found = {
        name: [list(entry) for entry in QUEUE_ENTRY.iter_unpack(entries)]
        for name, _, entries in light_runs(data, 0, lights)
    }
    wanted = {
        queue["topic"]: [entry[1:4] for entry in queue["entries"] if entry[2] != BLANK]
        for queue in expected["queues"]
        if queue["topic"].startswith(LIGHT_PREFIX)
    }
    assert len(wanted) >= 5
    assert found == wanted
