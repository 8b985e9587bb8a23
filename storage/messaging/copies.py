"""Copies of records: what a message becomes that moves to another topic. Pure.

Body, its CRC, flag, system flags, birth time and birth host are kept, and so are the properties, in
their order, with additions after them. What belongs to the place of the original is left out: the
mark of its idempotent section, its light queues, numbers of an inner batch (each of its messages
becomes a record), and a checksum over properties that change. Offsets, store time and store host
are those of the append, as for any section.

A *dead letter* goes to queue 0 of ``%DLQ%`` and the group, as RocketMQ's do: one attempt more,
`RETRY_TOPIC` and `ORIGIN_MESSAGE_ID` where the message has none, and, of twinlog alone,
`DLQ_ORIGIN_TOPIC`, `DLQ_ORIGIN_MESSAGE_ID` and `TL_WHY`. What is *sent back* goes to queue 0 of a
retry topic, as what RocketMQ gives a group again. A *delivery* of a delayed
record goes to its `REAL_TOPIC` and `REAL_QID` with the properties as they are, as RocketMQ's do;
where there is no such queue it goes to queue 0 of `UNDELIVERABLE`, with `TL_WHY`. So does what a
transaction commits, with what says so: a system flag and the log offset of the half. What is
*rescued* goes on to wait for its time in another record, because the file of this one is to leave
the log.

Not here: when a message is given up (``node.groups``) or due (`node.delivery`), the batch with
its row (`storage.append.own_records`).

Sources: RocketMQ 5.3 (``SendMessageProcessor``, ``PopReviveService``, ``ScheduleMessageService``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from storage.messaging.timers import Key
from twinlog.format import record
from twinlog.format.inner_batches import messages_in
from twinlog.format.light_queues import offset_in
from twinlog.format.record import PROPERTIES_SIZE_MAX, Record, encode_properties, split_host
from twinlog.format.system_topics import (
    DEAD_PREFIX,
    DELAY_TOPIC,
    GIVEN_UP_TOPIC,
    HALF_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TIMER_TOPIC,
)
from twinlog.format.waiting.delay_levels import destination
from twinlog.format.waiting.halves import COMMITTED, KIND_BITS
from twinlog.format.waiting.timers import (
    DELAY_MS,
    DELIVER_MS,
    ORIGIN,
    OUT_MS,
    ROLLS,
    origin_of,
    out_ms,
)
from twinlog.kernels.plain import Buffer

RETRY_TOPIC = "RETRY_TOPIC"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
DEAD_TOPIC = "DLQ_ORIGIN_TOPIC"
DEAD_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
WHY = "TL_WHY"
"""Why a message is a dead letter; see `REASONS`."""
FIRST_POP_TIME = "1ST_POP_TIME"
REASONS = ("attempts", "rejected", "retention")
"""Handed out as often as the group allows; given up by a consumer; its log file was to leave."""

UNDELIVERABLE = DEAD_PREFIX + "TWINLOG_UNDELIVERABLE"
"""Topic of delayed messages whose destination is not there; one queue."""
UNDELIVERABLE_REASONS = ("no-destination", "topic-gone", "queue-gone")
"""Its `TL_WHY`: the record names no topic or queue; that topic, or that queue, is not there."""

_LEFT_OUT = frozenset(
    {ORIGIN, "TL_SEQ", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM",
     "INNER_BASE", "__CRC32#"}
)  # fmt: skip


class Copy(NamedTuple):
    """A section of copies.

    Attributes:
        topic: Where to.
        queue: Which queue of it.
        records: How many.
        data: Their bytes.
    """

    topic: str
    queue: int
    records: int
    data: bytes


def dead_topic(group: str) -> str:
    """Return the topic of a group's dead letters."""
    return DEAD_PREFIX + group


def dead_letters(
    pieces: Sequence[Buffer],
    group: str,
    why: str,
    *,
    family: int = 4,
    wanted: Callable[[int], bool] = lambda offset: True,
    light: str = "",
) -> Copy:
    """Return dead letters of messages.

    Args:
        pieces: Whole records, as they lie in the log.
        group: Who gave them up.
        why: One of `REASONS`, and more words after it if there are any.
        wanted: Says of a queue offset whether its message is one of them.
        light: The light queue whose offsets those are; empty: of the queue of the records.
        family: Address family of the cluster's store hosts, 4 or 6.

    Raises:
        CorruptionError: They are not whole records.
    """
    made: list[bytes] = []
    for one in _messages(pieces):
        offset = offset_in(one.properties, light) if light else one.queue_offset
        if offset is None or not wanted(offset):
            continue
        # Where it has one it was a copy itself: the first message is the one that people look for.
        origin = one.properties.get(ORIGIN_MESSAGE_ID, one.message_id)
        topic = one.properties.get(RETRY_TOPIC, one.topic)
        added = {
            RETRY_TOPIC: topic, ORIGIN_MESSAGE_ID: origin, WHY: why, DEAD_TOPIC: one.topic,
            DEAD_MESSAGE_ID: one.message_id,
        }  # fmt: skip
        made.append(_copy(one, dead_topic(group), added, family))
    return Copy(dead_topic(group), 0, len(made), b"".join(made))


def sent_back(
    pieces: Sequence[Buffer],
    topic: str,
    attempts: Callable[[int], int | None],
    *,
    family: int = 4,
    pop_ms: int = 0,
) -> Copy:
    """Return what RocketMQ's consumers would have given back, for a retry topic.

    Args:
        pieces: Whole records, as they lie in the log.
        topic: The retry topic.
        attempts: Says how often the message at a queue offset was tried; None: it is not wanted.
        family: Address family of the cluster's store hosts, 4 or 6.
        pop_ms: When POP handed them out first; 0: they are for consumers that pull.

    Raises:
        CorruptionError: They are not whole records.
    """
    made: list[bytes] = []
    for one in _messages(pieces):
        tried = attempts(one.queue_offset)
        if tried is None:
            continue
        named = one.properties
        if pop_ms:
            added = {FIRST_POP_TIME: named.get(FIRST_POP_TIME, str(pop_ms))}
        else:
            added = {
                RETRY_TOPIC: named.get(RETRY_TOPIC, one.topic),
                ORIGIN_MESSAGE_ID: named.get(ORIGIN_MESSAGE_ID, one.message_id),
            }
        made.append(_copy(one, topic, added, family, more=tried))
    return Copy(topic, 0, len(made), b"".join(made))


def rescued(
    pieces: Sequence[Buffer], waits: Callable[[Record], Key | None], *, family: int = 4, size: int
) -> Copy:
    """Return the records that messages that wait for a time go on to wait in.

    Args:
        pieces: Whole records, as they lie in the log.
        waits: Says which message waits in a record; None: none.
        family: Address family of the cluster's store hosts, 4 or 6.
        size: Bytes of all of them; what is beyond is left out, and what has no room to say which
            message it is.

    Raises:
        CorruptionError: They are not whole records.
    """
    made: list[bytes] = []
    total = 0
    for one in _messages(pieces):
        key = waits(one)
        if key is None:
            continue
        due, offset = key
        rolls = one.properties.get(ROLLS, "0")
        added = {
            DELIVER_MS: str(due), OUT_MS: str(out_ms(due)), ORIGIN: str(offset),
            ROLLS: str(int(rolls) + 1 if rolls.isdecimal() and len(rolls) < 10 else 1),
        }  # fmt: skip
        named = {name: value for name, value in one.properties.items() if name != DELAY_MS}
        data = _copy(replace(one, properties=named), TIMER_TOPIC, added, family, more=0)
        # Looked up in the copy: `_text` leaves out what has no room, and a rescued record that does
        # not say which message it is would be delivered as another one.
        if total + len(data) > size or origin_of(record.decode(data).properties) != offset:
            continue
        made.append(data)
        total += len(data)
    return Copy(TIMER_TOPIC, 0, len(made), b"".join(made))


Queues = Callable[[str, int], int | None]
"""How many queues a topic has for a message that is stored at a log offset; None: there is no such
topic, or it is younger than the message."""


def deliveries(
    pieces: Sequence[Buffer],
    queues: Queues,
    *,
    family: int = 4,
    sections: int,
    size: int,
    added: Callable[[Record], Mapping[str, str]] = lambda record: {},
) -> tuple[list[Copy], int]:
    """Return the copies that deliver waiting records, and how many records they are of.

    They are of the first records only, as many as become ``sections`` sections and ``size`` bytes;
    of one at least. Of one queue the copies are in the order of the records.

    Args:
        pieces: Whole records, as they lie in the log.
        queues: Says what the topics are.
        family: Address family of the cluster's store hosts, 4 or 6.
        sections: Sections that fit into one batch.
        size: Bytes likewise.
        added: Says which properties the copy of a record has besides.

    Raises:
        CorruptionError: They are not whole records.
    """
    made: dict[tuple[str, int], list[bytes]] = {}
    count = total = 0
    for one in map(_committed, _messages(pieces)):
        place, why = _place(one, queues)
        more = {**added(one), WHY: why} if why else added(one)
        data = _copy(one, place[0], more, family, queue=place[1], more=0)
        # Stopped, not passed over: the row moves progress over all of them, in order (R71).
        if count and (total + len(data) > size or (place not in made and len(made) >= sections)):
            break
        made.setdefault(place, []).append(data)
        count, total = count + 1, total + len(data)
    copies = [
        Copy(topic, queue, len(each), b"".join(each)) for (topic, queue), each in made.items()
    ]
    return copies, count


def _place(one: Record, queues: Queues) -> tuple[tuple[str, int], str]:
    """Return where a delayed record goes, and why it cannot go where it says; empty: it can."""
    found = destination(one.properties)
    # Names in a record are a client's: it must not write into the system topics by way of a delay
    # (R12).
    if found is None or found.topic.startswith(SYSTEM_TOPIC_PREFIX) or found.topic == DELAY_TOPIC:
        return (UNDELIVERABLE, 0), UNDELIVERABLE_REASONS[0]
    origin = origin_of(one.properties)  # of what was rescued: it is as old as it was
    count = queues(found.topic, one.log_offset if origin < 0 else origin)
    if count is None:
        return (UNDELIVERABLE, 0), UNDELIVERABLE_REASONS[1]
    if found.queue >= count:
        return (UNDELIVERABLE, 0), UNDELIVERABLE_REASONS[2]
    return (found.topic, found.queue), ""


def _committed(one: Record) -> Record:
    """Return a half as the commit stores it; any other record as it is."""
    if one.topic != HALF_TOPIC:
        return one
    # As RocketMQ does: its consumers tell a committed message by these bits.
    flags = one.sys_flag & ~KIND_BITS | COMMITTED
    return replace(one, sys_flag=flags, prepared_transaction_offset=one.log_offset)


def given_up(pieces: Sequence[Buffer], *, family: int = 4) -> Copy:
    """Return the copies of halves that are settled by nothing but time, for operators.

    Arguments as of `deliveries`.

    Raises:
        CorruptionError: They are not whole records.
    """
    made = [_copy(one, GIVEN_UP_TOPIC, {}, family, more=0) for one in _messages(pieces)]
    return Copy(GIVEN_UP_TOPIC, 0, len(made), b"".join(made))


def _messages(pieces: Sequence[Buffer]) -> Iterator[Record]:
    for piece in pieces:
        at = 0
        while at < len(piece):
            found = record.decode(piece, at)
            yield from messages_in(found)
            at += found.size


def _copy(
    one: Record,
    topic: str,
    added: Mapping[str, str],
    family: int,
    *,
    queue: int = 0,
    more: int = 1,
) -> bytes:
    """Return the copy; ``more`` is added to how often it was tried."""
    # Kept, `TL_SEQ` would claim a sequence of the original's producer in another queue (R47).
    kept = {name: value for name, value in one.properties.items() if name not in _LEFT_OUT}
    store = ("::", 0) if family == 6 else ("0.0.0.0", 0)
    return record.encode(
        topic, queue, one.body, properties=_text(kept, added), flag=one.flag, sys_flag=one.sys_flag,
        born_timestamp=one.born_timestamp, born_host=split_host(one.born_host), store_host=store,
        reconsume_times=one.reconsume_times + more, prepared=one.prepared_transaction_offset,
    )  # fmt: skip


def _text(kept: Mapping[str, str], added: Mapping[str, str]) -> bytes:
    """Return the properties; additions that do not fit any more are left out."""
    text = encode_properties({name: kept[name] for name in kept if name not in added})
    for name, value in added.items():
        more = encode_properties({name: value})
        if len(text) + len(more) <= PROPERTIES_SIZE_MAX:
            text += more
    return text
