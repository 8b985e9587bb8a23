"""What waits for delay levels in a data directory, RocketMQ's or twinlog's, read only.

A record with a delay level waits in the queue of its level of ``SCHEDULE_TOPIC_XXXX``, level n in
queue n - 1. How far a level is delivered stands in ``config/delayOffset.json``; a twinlog store has
it in its log as well, and the file is an export that may be a minute old: the newest row counts.
A broker that was killed leaves a file up to ten seconds old: it would deliver everything from there
on again, so all of it counts as waiting.

Sources: RocketMQ 5.3 (``ScheduleMessageService``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, cast

from twinlog.format.group_rows import DelayRow, decode_rows
from twinlog.format.system_topics import DELAY_TOPIC, SYSTEM_TOPIC_GROUP
from twinlog.store.reader import StoreReader

DELAY_FILE = "delayOffset.json"


class WaitingLevel(NamedTuple):
    """What waits for one level.

    Attributes:
        level: From 1.
        next: Offset, in the level's queue, of the first record that waits.
        waiting: How many do.
        due_ms: When the first one is due, ms since 1970.
        last_ms: When the last one is.
    """

    level: int
    next: int
    waiting: int
    due_ms: int
    last_ms: int


def waiting_levels(store: StoreReader) -> list[WaitingLevel]:
    """Return the levels that something waits for, in their order.

    Raises:
        CorruptionError: The file and its backup are both damaged.
    """
    delivered = delivered_levels(store)
    found: list[WaitingLevel] = []
    for queue in sorted(store.queues(), key=lambda queue: queue.queue):
        if queue.topic != DELAY_TOPIC:
            continue
        first = min(max(delivered.get(queue.queue + 1, 0), queue.min), queue.max)
        if first < queue.max:
            ends = [next(queue.entries(at, at + 1), None) for at in (first, queue.max - 1)]
            due, last = (entry.tags_code if entry is not None else 0 for entry in ends)
            found.append(WaitingLevel(queue.queue + 1, first, queue.max - first, due, last))
    return found


def delivered_levels(store: StoreReader) -> Mapping[int, int]:
    """Return by level the offset, in its queue, after the last record that was delivered.

    Raises:
        CorruptionError: The file and its backup are both damaged.
    """
    table = store.config().get(DELAY_FILE, {}).get("offsetTable")
    named = cast("dict[str, object]", table) if isinstance(table, dict) else {}
    found = {
        int(level): after
        for level, after in named.items()
        if level.isdigit() and isinstance(after, int)
    }
    rows = store.queue(SYSTEM_TOPIC_GROUP, 0) if store.ours else None
    for entry in rows.entries() if rows is not None else ():
        record = store.record_at(entry.log_offset)
        for row in decode_rows(record.body) if record is not None else ():
            if isinstance(row, DelayRow):
                found[row.level] = max(found.get(row.level, 0), row.next)
    return found
