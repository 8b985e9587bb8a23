r"""Records that wait for a delay level, as RocketMQ stores them.

They lie in the topic `DELAY_TOPIC`, those of level n in queue n - 1. The properties `DELAY`,
`REAL_TOPIC` and `REAL_QID` say the level and where they go; the tags code of the queue entry is not
a hash but the time of delivery, store time + delay. Of one queue these times rise with the store
times, so the queue itself is the index of what is due.

The delays are RocketMQ's default table, the same in every store: queue files depend on it.

Pure. Not here: who delivers (``node.delivery``), what the copy looks like
(`storage.messaging.copies`).

Sources: RocketMQ 5.3 (``ScheduleMessageService``, ``HookUtils.transformDelayLevelMessage``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from twinlog.errors import UsageError
from twinlog.kernels.fields import DELAY_LEVELS_MS

DELAY: Final = "DELAY"
"""Property: the level, from 1."""
REAL_TOPIC: Final = "REAL_TOPIC"
"""Property: the topic that the message is for."""
REAL_QUEUE: Final = "REAL_QID"
"""Property: its queue there."""

LEVELS: Final = len(DELAY_LEVELS_MS)
"""Levels are numbered from 1 to this; the queues of `DELAY_TOPIC` are as many."""
_INT32_MAX = (1 << 31) - 1


class Destination(NamedTuple):
    """Where a waiting record goes."""

    topic: str
    queue: int


def check_level(level: object) -> None:
    """Raise UsageError unless it is a delay level.

    >>> check_level(18)
    >>> check_level(19)
    Traceback (most recent call last):
    ...
    twinlog.errors.UsageError: there is no delay level 19
    """
    if not isinstance(level, int) or isinstance(level, bool):
        raise UsageError.other_type("delay_level", "a whole number", level)
    if not 1 <= level <= LEVELS:
        hint = f"levels are 1 to {LEVELS}: {levels_text()}"
        raise UsageError(f"there is no delay level {level}", code="delay-level", hint=hint)


def levels_text() -> str:
    """Return the delays of all levels in their order, as RocketMQ writes them.

    >>> levels_text()
    '1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h'
    """
    return " ".join(delay_text(level) for level in range(1, LEVELS + 1))


def delay_text(level: int) -> str:
    """Return the delay of a level as RocketMQ writes it.

    >>> delay_text(3), delay_text(14), delay_text(18)
    ('10s', '10m', '2h')
    """
    seconds = DELAY_LEVELS_MS[level - 1] // 1000
    if seconds % 3600 == 0:
        return f"{seconds // 3600}h"
    return f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"


def waiting_text(level: int, topic: str, queue: int) -> bytes:
    r"""Return the properties that make a record wait.

    >>> waiting_text(3, "orders", 0)
    b'DELAY\x013\x02REAL_TOPIC\x01orders\x02REAL_QID\x010\x02'
    """
    return b"DELAY\x01%d\x02REAL_TOPIC\x01%s\x02REAL_QID\x01%d\x02" % (
        level, topic.encode(), queue,
    )  # fmt: skip


def destination(properties: Mapping[str, str]) -> Destination | None:
    """Return where a waiting record goes; None where its properties do not say it.

    >>> destination({"REAL_TOPIC": "orders", "REAL_QID": "3"})
    Destination(topic='orders', queue=3)
    >>> destination({"REAL_TOPIC": "orders"}) is None
    True
    """
    topic, queue = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE, "")
    if not topic or not queue.isascii() or not queue.isdigit() or len(queue) > 10:
        return None
    number = int(queue)
    return Destination(topic, number) if number <= _INT32_MAX else None
