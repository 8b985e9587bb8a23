"""How far an adoption takes RocketMQ's delay levels for delivered.

``config/delayOffset.json`` says it, but a broker writes the file every ten seconds: after a kill it
is older than the log, and RocketMQ itself delivers again what it delivered since. Here each record
from the file's offset on is looked for among the copies that lie behind it in the log. Everything
up to the last one that has a copy is delivered: a broker delivers a level in order.

A copy keeps unique key, birth and body of the record, and its topic is the record's `REAL_TOPIC`.

Not here: the adoption itself (`storage.tools.adopt`).

Source: RocketMQ 5.3 (``ScheduleMessageService``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from storage.errors import ForeignStore
from twinlog.format.record import Record
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.format.waiting.delay_levels import DELAY, LEVELS, REAL_QUEUE, REAL_TOPIC
from twinlog.store.delays import delivered_levels
from twinlog.store.log import Run
from twinlog.store.queues import Queue
from twinlog.store.reader import StoreReader

_Message = tuple[str | None, str | None, str | None, int, int, int]


@dataclass(frozen=True, slots=True)
class Delayed:
    """What is known of delay levels.

    Attributes:
        next: (level, offset, in the level's queue, of the first record that waits).
        waiting: Records that wait.
        repeated: Records that the file takes for waiting and the log for delivered.
    """

    next: tuple[tuple[int, int], ...] = ()
    waiting: int = 0
    repeated: int = 0


NOTHING_DELAYED = Delayed()


def read_delayed(reader: StoreReader) -> Delayed:
    """Return how far a stopped broker has delivered.

    Raises:
        ForeignStore: The store has levels that twinlog does not know.
        CorruptionError: ``delayOffset.json`` and its backup are both damaged.
    """
    stored = delivered_levels(reader)
    queues = [one for one in reader.queues() if one.topic == DELAY_TOPIC and one.max]
    beyond = max((queue.queue + 1 for queue in queues), default=0)
    if beyond > LEVELS:
        raise ForeignStore(
            f"the directory cannot be adopted: it has delay level {beyond}; twinlog knows {LEVELS}",
            hint="its broker has a table of its own (messageDelayLevel): let it deliver what waits "
            "there first",
            code="delay-levels",
        )
    waiting: dict[int, list[tuple[int, Record]]] = {}
    following: dict[int, int] = {}
    last = _newest_ms(reader)
    for queue in queues:
        level = queue.queue + 1
        first = min(max(stored.get(level, 0), queue.min), queue.max)
        following[level] = first
        waiting[level] = _due(reader, cast("Queue", queue), first, last)
    delivered = _delivered(reader, waiting)
    repeated = 0
    for level, after in delivered.items():
        repeated += after - following[level]
        following[level] = after
    count = sum(queue.max - following[queue.queue + 1] for queue in queues)
    return Delayed(
        tuple(sorted((level, after) for level, after in following.items() if after)),
        count,
        repeated,
    )


def _newest_ms(reader: StoreReader) -> int:
    """Return a store time that no record of the log is later than."""
    runs = [piece for piece in reader.pieces() if isinstance(piece, Run)]
    return max((reader.last_timestamp(run) for run in runs), default=0)


def _due(reader: StoreReader, queue: Queue, first: int, last_ms: int) -> list[tuple[int, Record]]:
    """Return the records from ``first`` on that were due when the log ended."""
    found: list[tuple[int, Record]] = []
    for entry in queue.entries(first):
        if entry.tags_code > last_ms:
            break
        record = reader.record_at(entry.log_offset)
        if record is not None:
            found.append((record.queue_offset, record))
    return found


def _delivered(reader: StoreReader, waiting: dict[int, list[tuple[int, Record]]]) -> dict[int, int]:
    """Return by level the offset after the last record that has a copy."""
    every = sorted(
        (record.log_offset, level, number, _message(record))
        for level, records in waiting.items()
        for number, record in records
    )
    if not every:
        return {}
    open_: dict[_Message, list[tuple[int, int]]] = {}
    found: dict[int, int] = {}
    at = 0
    for record in reader.records(every[0][0]):
        while at < len(every) and every[at][0] <= record.log_offset:
            _, level, number, message = every[at]
            open_.setdefault(message, []).append((level, number))
            at += 1
        if record.topic == DELAY_TOPIC or DELAY not in record.properties:
            continue
        places = open_.get(_message(record))
        if places and record.topic == record.properties.get(REAL_TOPIC):
            level, number = places.pop(0)
            found[level] = max(found.get(level, 0), number + 1)
    return found


def _message(record: Record) -> _Message:
    properties = record.properties
    return (
        properties.get("UNIQ_KEY"), properties.get(REAL_TOPIC), properties.get(REAL_QUEUE),
        record.reconsume_times, record.born_timestamp, record.body_crc,
    )  # fmt: skip
