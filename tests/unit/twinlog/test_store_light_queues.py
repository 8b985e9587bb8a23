"""Light queues of RocketMQ's stores: which of the records that name one are in it.

What RocketMQ 5.3.3 entered for such records was seen in a running one.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from storage.disk import RealDisk
from storage.repair import carry_out, plan_repair
from tests.unit.twinlog.ours import put
from twinlog.layout import file_name
from twinlog.record import encode
from twinlog.store_check import verify
from twinlog.store_find import places_in_log
from twinlog.store_reader import StoreReader

LIGHT, SIZE = "%LMQ%a", 64 * 1024
FIRST = file_name(0)
ENTRY = struct.Struct(">qiq")
UNIT = struct.Struct(">qiqqqhii")


def write(root: Path) -> tuple[int, int]:
    """A sound store of RocketMQ's; return where the two records lie that are in the light queue."""
    log, queues = bytearray(), dict[str, bytes]()

    def add(
        topic: str, number: int, names: str, places: str, *, flags: int = 0, light: bool = False
    ) -> int:
        at = len(log)
        record = encode(
            topic, 0, b"x", queue_offset=number, log_offset=at, sys_flag=flags, store_timestamp=1,
            properties={"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": places},
        )  # fmt: skip
        log.extend(record)
        entry = ENTRY.pack(at, len(record), 0)
        if topic == "batches":
            unit = UNIT.pack(at, len(record), 0, 1, number, 1, -1, 0)
            queues["batchconsumequeue/batches"] = unit
        elif flags in (0, 8):
            queues["consumequeue/" + topic] = queues.get("consumequeue/" + topic, b"") + entry
        if light:
            queues["consumequeue/" + LIGHT] = queues.get("consumequeue/" + LIGHT, b"") + entry
        return at

    first = add("t", 0, f"{LIGHT},{LIGHT}", "0,1", light=True)  # named twice: the first counts
    add("t", 0, LIGHT, "2", flags=0x4)  # prepared
    add("t", 0, LIGHT, "2", flags=0xC)  # rolled back
    add("batches", 0, LIGHT, "2")
    add("SCHEDULE_TOPIC_XXXX", 0, LIGHT, "2")
    last = add("SCHEDULE_TOPIC_XXXX_", 0, LIGHT, "2", flags=0x8, light=True)
    put(root / "commitlog" / FIRST, bytes(log).ljust(SIZE, b"\0"))
    for name, data in queues.items():
        size = 20 * 50 if name.startswith("consumequeue") else 46 * 50
        put(root / name / "0" / FIRST, data.ljust(size, b"\0"))
    return first, last


def test_a_sound_store_is_sound(tmp_path: Path) -> None:
    """Nothing is missing of what RocketMQ never enters."""
    write(tmp_path)
    with StoreReader(tmp_path) as store:
        assert verify(store).findings == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_light_queue_is_what_rocketmq_would_enter(tmp_path: Path, clean: bool) -> None:
    """One entry of the record that names it twice, none of what waits or lies in batch queues."""
    places = write(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / LIGHT)
    if not clean:
        put(tmp_path / "abort", b"")
    with StoreReader(tmp_path) as store:
        assert (LIGHT, 0) in places_in_log(store)
        if not clean:
            queue = store.queue(LIGHT, 0)
            assert queue is not None
            assert [(e.queue_offset, e.log_offset) for e in queue.entries()] == [
                (0, places[0]),
                (1, places[1]),
            ]
        plan = plan_repair(store, index_slots=10)
        carry_out(RealDisk(tmp_path), plan, reader=store, wall_ms=1)
    with StoreReader(tmp_path) as store:
        assert verify(store).findings == []
        queue = store.queue(LIGHT, 0)
        assert queue is not None
        assert [entry.log_offset for entry in queue.entries(0)] == list(places)
