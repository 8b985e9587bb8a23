"""Reading RocketMQ's batch queues: how much one read gives."""

from __future__ import annotations

from pathlib import Path

from tests.stores.sample import put
from twinlog.format.consume_queue import BATCH_QUEUE_UNIT
from twinlog.format.log_file import file_name
from twinlog.store.queues import load_queues


def test_a_read_ends_before_what_is_asked_or_behind_32_messages(tmp_path: Path) -> None:
    """RocketMQ 5.3.3: a unit may pass its limit for records in memory, never the caller's."""
    units = b"".join(BATCH_QUEUE_UNIT.pack(100 * i, 100, 0, 1, 10 * i, 10, -1, 0) for i in range(8))
    path = tmp_path / "batchconsumequeue" / "b" / "0" / file_name(0)
    put(path, units.ljust(46 * 50, b"\0"))
    queue = load_queues(tmp_path)["b", 0]

    def read(most: int) -> int:
        return queue.get(0, most, lambda _offset, _size: 0).next

    assert [read(most) for most in (1, 10, 19, 20, 32, 39, 40, 100)] == [
        10, 10, 10, 20, 30, 30, 40, 40,
    ]  # fmt: skip
