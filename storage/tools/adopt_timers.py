"""Which messages an adoption lets wait for a time: what the log says, not RocketMQ's wheel.

A broker keeps what waits in files beside the log, and after a kill they are older than it: the
second in progress is delivered again, without ``timercheck`` everything. Here the records of the
timer topic are compared with what lies after them in the log. One does not wait that

* has a copy, which names the same unique key, birth, body and times, in its `REAL_TOPIC`;
* was entered again by a roll: the newer record waits for the same time;
* was rescued by twinlog: the newer record names it;
* was taken back, by a record of RocketMQ that names it and its second, or by a row of twinlog.

Where ``timercheck`` says how far the broker had delivered, records of the seconds before, less a
minute, count as delivered, so a start does not read more of the log than it has to. Checkpoints
and acknowledgements of POP wait in the same topic; they are taken over as what groups have out
(`storage.tools.adopt_groups`).

Not here: the adoption itself (`storage.tools.adopt`).

Source: RocketMQ 5.3 (``TimerMessageStore``).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass

from storage.tools.adopt_groups import REVIVE_PREFIX
from twinlog.format.group_rows import CancelRow, WaitsRow, decode_rows
from twinlog.format.record import Record
from twinlog.format.system_topics import SYSTEM_TOPIC_GROUP, TIMER_TOPIC
from twinlog.format.waiting.delay_levels import REAL_QUEUE, REAL_TOPIC
from twinlog.format.waiting.timers import (
    CANCELS,
    DELAY_MS,
    DELIVER_MS,
    DEQUEUED_MS,
    OUT_MS,
    ROLLS,
    due_of,
    origin_of,
)
from twinlog.store.queues import Queue
from twinlog.store.reader import StoreReader
from twinlog.store.timers import Timers

GRACE_MS = 60_000
"""Delivered are the seconds before this much less than ``timercheck`` says."""

_Message = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Timed:
    """What is known of messages that wait for a time.

    Attributes:
        rows: Those that wait, in the order of the log.
        repeated: Messages that the broker's next start would have delivered a second time.
    """

    rows: tuple[WaitsRow, ...] = ()
    repeated: int = 0


NOTHING_TIMED = Timed()


def read_timed(reader: StoreReader) -> Timed:
    """Return which messages wait in a stopped broker's directory."""
    check = _check(reader)
    records = list(_records(reader, check - GRACE_MS))
    if not records:
        return NOTHING_TIMED
    open_: defaultdict[_Message, deque[Record]] = defaultdict(deque)
    cancels: set[tuple[str, str]] = set()
    gone: set[int] = set()
    places: dict[int, Record] = {}
    repeated, at = 0, 0
    for one in reader.records(records[0].log_offset):
        while at < len(records) and records[at].log_offset <= one.log_offset:
            _enter(records[at], open_, cancels, places)
            at += 1
        if one.topic == SYSTEM_TOPIC_GROUP:
            rows = decode_rows(one.body)
            gone.update(row.offset for row in rows if isinstance(row, CancelRow))
        elif DEQUEUED_MS in one.properties and one.topic == one.properties.get(REAL_TOPIC):
            found = open_.get(_message(one))
            if found:
                repeated += _out(found.popleft()) >= check
    waiting = sorted(
        (one.log_offset, one)
        for found in open_.values()
        for one in found
        if _name(one) not in gone and not _taken(one, cancels)
    )
    waits = tuple(WaitsRow(_due(one), offset, one.size) for offset, one in waiting)
    return Timed(waits, repeated if check else 0)


def _check(reader: StoreReader) -> int:
    """Return up to when the broker had delivered, by ``timercheck``; 0: that is not known."""
    timers = Timers(reader.root)
    timers.close()
    return timers.check.last_read_time_ms if timers.check is not None else 0


def _records(reader: StoreReader, after_ms: int) -> Iterator[Record]:
    """Yield the records of the timer topic that may wait, in the order of the log."""
    queue = next((one for one in reader.queues() if one.topic == TIMER_TOPIC), None)
    if not isinstance(queue, Queue):
        return
    for entry in queue.entries(queue.min):
        one = reader.record_at(entry.log_offset)
        if one is None or one.topic != TIMER_TOPIC:
            continue
        pop = one.properties.get(REAL_TOPIC, "").startswith(REVIVE_PREFIX)
        if not pop and _due(one) > 0 and _out(one) >= after_ms:
            yield one


def _enter(
    one: Record,
    open_: defaultdict[_Message, deque[Record]],
    cancels: set[tuple[str, str]],
    places: dict[int, Record],
) -> None:
    if (victim := one.properties.get(CANCELS)) is not None:
        cancels.add((victim, one.properties[OUT_MS]))
        return
    origin, found = origin_of(one.properties), open_[_message(one)]
    if origin >= 0 and (before := places.get(origin)) is not None:
        if before not in open_[_message(before)]:
            return  # it was delivered before that
        open_[_message(before)].remove(before)
    elif origin < 0 and ROLLS in one.properties and found:
        found.popleft()  # the one before it: this record waits in its place
    places[_name(one)] = one
    found.append(one)


def _name(one: Record) -> int:
    """Return what twinlog calls the message of a record by: where it was stored first."""
    origin = origin_of(one.properties)
    return origin if origin >= 0 else one.log_offset


def _taken(one: Record, cancels: set[tuple[str, str]]) -> bool:
    named = one.properties
    key = f"{named.get(REAL_TOPIC)}+{named.get('UNIQ_KEY')}"
    return (key, named.get(OUT_MS, "")) in cancels


def _due(one: Record) -> int:
    """Return when a record is due; a record that RocketMQ entered again was stored later."""
    named = {name: value for name, value in one.properties.items() if name != DELAY_MS}
    ours = DELAY_MS in one.properties and DELIVER_MS in named and ROLLS not in named
    return due_of(one.properties if ours else named, one.store_timestamp) or 0


def _out(one: Record) -> int:
    text = one.properties.get(OUT_MS, "")
    return int(text) if text.isdecimal() and len(text) < 19 else 0


def _message(one: Record) -> _Message:
    named = one.properties
    return (
        named.get("UNIQ_KEY"), named.get(REAL_TOPIC), named.get(REAL_QUEUE), named.get(OUT_MS),
        named.get(DELIVER_MS), one.reconsume_times, one.born_timestamp, one.body_crc,
    )  # fmt: skip
