"""A RocketMQ store with light queues."""

from __future__ import annotations

import struct
from pathlib import Path

from tests.stores.sample import put
from twinlog.format.log_file import file_name
from twinlog.format.record import encode

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
