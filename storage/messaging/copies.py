"""Copies of records: what a message becomes that moves to another topic. Pure.

Body, its CRC, flag, system flags, birth time and birth host are kept, and so are the properties, in
their order, with additions after them. What belongs to the place of the original is left out: the
mark of its idempotent section, its light queues, numbers of an inner batch (each of its messages
becomes a record), and a checksum over properties that change. Offsets, store time and store host
are those of the append, as for any section.

A *dead letter* goes to queue 0 of ``%DLQ%`` and the group, as RocketMQ's do: one attempt more,
`RETRY_TOPIC` and `ORIGIN_MESSAGE_ID` where the message has none, and, of twinlog alone,
`DLQ_ORIGIN_TOPIC`, `DLQ_ORIGIN_MESSAGE_ID` and `TL_WHY`. A *retry* goes to queue 0 of ``%RETRY%``,
the group, ``_`` and the topic, as what RocketMQ gives a POP group again.

Not here: when a message is given up (``node.groups``), the batch with its row
(`storage.append.own_records`).

Sources: RocketMQ 5.3 (``SendMessageProcessor``, ``PopReviveService``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from twinlog.format import record
from twinlog.format.inner_batches import messages_in
from twinlog.format.record import PROPERTIES_SIZE_MAX, Record, encode_properties, split_host
from twinlog.format.system_topics import DEAD_PREFIX, RETRY_PREFIX
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

_LEFT_OUT = frozenset(
    {"TL_SEQ", "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE",
     "__CRC32#"}
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
) -> Copy:
    """Return dead letters of messages.

    Args:
        pieces: Whole records, as they lie in the log.
        group: Who gave them up.
        why: One of `REASONS`, and more words after it if there are any.
        wanted: Says of a queue offset whether its message is one of them.
        family: Address family of the cluster's store hosts, 4 or 6.

    Raises:
        CorruptionError: They are not whole records.
    """
    made: list[bytes] = []
    for one in _messages(pieces):
        if not wanted(one.queue_offset):
            continue
        origin = one.properties.get(ORIGIN_MESSAGE_ID, one.message_id)
        topic = one.properties.get(RETRY_TOPIC, one.topic)
        added = {
            RETRY_TOPIC: topic, ORIGIN_MESSAGE_ID: origin, WHY: why, DEAD_TOPIC: one.topic,
            DEAD_MESSAGE_ID: one.message_id,
        }  # fmt: skip
        made.append(_copy(one, dead_topic(group), added, family))
    return Copy(dead_topic(group), 0, len(made), b"".join(made))


def retries(pieces: Sequence[Buffer], group: str, pop_ms: int, *, family: int = 4) -> Copy:
    """Return retries of messages of one topic, first handed out at ``pop_ms``; see `dead_letters`.

    Raises:
        CorruptionError: They are not whole records.
    """
    made: list[bytes] = []
    topic = ""
    for one in _messages(pieces):
        topic = f"{RETRY_PREFIX}{group}_{one.topic}"
        first = one.properties.get(FIRST_POP_TIME, str(pop_ms))
        made.append(_copy(one, topic, {FIRST_POP_TIME: first}, family))
    return Copy(topic, 0, len(made), b"".join(made))


def _messages(pieces: Sequence[Buffer]) -> Iterator[Record]:
    for piece in pieces:
        at = 0
        while at < len(piece):
            found = record.decode(piece, at)
            yield from messages_in(found)
            at += found.size


def _copy(one: Record, topic: str, added: Mapping[str, str], family: int) -> bytes:
    kept = {name: value for name, value in one.properties.items() if name not in _LEFT_OUT}
    store = ("::", 0) if family == 6 else ("0.0.0.0", 0)
    return record.encode(
        topic, 0, one.body, properties=_text(kept, added), flag=one.flag, sys_flag=one.sys_flag,
        born_timestamp=one.born_timestamp, born_host=split_host(one.born_host), store_host=store,
        reconsume_times=one.reconsume_times + 1, prepared=one.prepared_transaction_offset,
    )  # fmt: skip


def _text(kept: Mapping[str, str], added: Mapping[str, str]) -> bytes:
    """Return the properties; additions that do not fit any more are left out."""
    text = encode_properties({name: kept[name] for name in kept if name not in added})
    for name, value in added.items():
        more = encode_properties({name: value})
        if len(text) + len(more) <= PROPERTIES_SIZE_MAX:
            text += more
    return text
