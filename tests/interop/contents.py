"""What a store holds, as we read it and as RocketMQ dumps it, in one shape."""

from __future__ import annotations

from typing import Any

from twinlog.store.reader import StoreReader


def held(
    store: StoreReader,
) -> tuple[dict[int, Any], dict[tuple[str, int], list[list[int]]]]:
    """Records by log offset, and the entries of each queue."""
    records = {
        r.log_offset: (
            r.topic, r.queue, r.queue_offset, r.size, r.sys_flag, r.flag, r.born_timestamp,
            r.store_timestamp, r.body_crc, r.body.hex(), dict(r.properties),
        )
        for r in store.records()
    }  # fmt: skip
    entries = {
        (q.topic, q.queue): [
            [e.queue_offset, e.log_offset, e.size, e.tags_code] for e in q.entries()
        ]
        for q in store.queues()
    }
    return records, entries


def as_ours(found: dict[str, Any]) -> tuple[dict[int, Any], dict[tuple[str, int], list[list[int]]]]:
    """What RocketMQ's dump says, in the same shape."""
    names = (
        "topic", "queue_id", "queue_offset", "size", "sys_flag", "flag", "born_timestamp",
        "store_timestamp", "body_crc", "body", "properties",
    )  # fmt: skip
    records = {m["physical_offset"]: tuple(m[n] for n in names) for m in found["messages"]}
    return records, {(q["topic"], q["queue_id"]): q["entries"] for q in found["queues"]}
