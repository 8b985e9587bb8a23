"""Which messages RocketMQ was still to deliver by delay level, read only.

A message with a delay level waits in the queue of its level of ``SCHEDULE_TOPIC_XXXX``, level n in
queue n - 1; ``config/delayOffset.json`` says for each level which queue offset is delivered next.
Of a broker that was killed the file is up to ten seconds old: it would deliver what comes behind
its number again, so that counts as waiting.

Not here: messages that wait for a second of their own (`store_timers`), delivering anything.

Sources: RocketMQ 5.3 (``ScheduleMessageService``).
"""

from __future__ import annotations

from typing import cast

from twinlog.store_reader import StoreReader

TOPIC = "SCHEDULE_TOPIC_XXXX"
FILE = "delayOffset.json"


def waiting_by_level(store: StoreReader) -> int:
    """Return how many messages wait for their delay level; a level without a number is all new.

    Raises:
        CorruptionError: The file and its backup are both damaged.
    """
    table = store.config().get(FILE, {}).get("offsetTable")
    delivered = cast("dict[str, object]", table) if isinstance(table, dict) else {}
    count = 0
    for queue in store.queues():
        if queue.topic == TOPIC:
            named = delivered.get(str(queue.queue + 1))
            to = named if isinstance(named, int) else 0
            count += queue.max - min(max(to, queue.min), queue.max)
    return count
