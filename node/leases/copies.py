"""Copies of messages that failed for good: RocketMQ's dead letters, byte for byte where it matters.

The property text is the original's with additions; body, its CRC, flag, system flag, birth and
number of attempts are kept. Offsets, store time and store host are the append's. Sequence numbers
of producers and names of light queues are left out: the copy belongs to neither.

Source: RocketMQ 5.3 (``SendMessageProcessor``, ``AbstractSendMessageProcessor``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from twinlog.format.messages import messages_of
from twinlog.format.record import (
    FLAG_BORN_V6,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    FLAG_STORE_V6,
    Record,
    decode,
    encode,
    encode_properties,
)

DEAD_LETTERS = "%DLQ%"
"""Prefix of the topic that keeps the dead letters of a group."""

_DROPPED = re.compile(
    rb"(?:^|(?<=\x02))(?:TL_SEQ|INNER_MULTI_DISPATCH|INNER_MULTI_QUEUE_OFFSET)\x01[^\x02]*(?:\x02|$)"
)
_HOST_BITS = FLAG_BORN_V6 | FLAG_STORE_V6
_WHY_MAX = 200


def dead_copies(piece: memoryview, group: str, why: str, first: int, last: int) -> Iterator[bytes]:
    """Yield the dead letters of the messages in stored records whose offsets are first to last."""
    at = 0
    while at < len(piece):
        size = int.from_bytes(piece[at : at + 4], "big")
        one = decode(piece[at : at + size], check_crc=False)
        if one.sys_flag & FLAG_INNER_BATCH:
            for message in messages_of(piece[at : at + size]):
                if first <= message.queue_offset <= last:
                    yield _dead(message.record, _text(message.record), group, why)
        elif first <= one.queue_offset <= last:
            length = int.from_bytes(_tail(piece, at, size, one), "big")
            yield _dead(one, bytes(piece[at + size - length : at + size]), group, why)
        at += size


def _tail(piece: memoryview, at: int, size: int, one: Record) -> memoryview:
    """Return the two bytes that say how long the property text at the end of a record is."""
    born = 20 if one.sys_flag & FLAG_BORN_V6 else 8
    store = 20 if one.sys_flag & FLAG_STORE_V6 else 8
    topic = len(one.topic.encode())
    width = 1 if topic <= 127 else 2
    place = at + 48 + born + 8 + store + 16 + len(one.body) + width + topic
    return piece[place : place + 2]


def _text(one: Record) -> bytes:
    return encode_properties(one.properties)


def _dead(one: Record, text: bytes, group: str, why: str) -> bytes:
    text = _DROPPED.sub(b"", text)
    if text and not text.endswith(b"\x02"):
        text += b"\x02"
    added = {
        "DLQ_ORIGIN_TOPIC": one.topic,
        "DLQ_ORIGIN_MESSAGE_ID": one.message_id,
        "TL_WHY": re.sub(r"[\x00-\x1f]", " ", why)[:_WHY_MAX],
    }
    if "RETRY_TOPIC" not in one.properties:
        added["RETRY_TOPIC"] = one.topic
    if "ORIGIN_MESSAGE_ID" not in one.properties:
        added["ORIGIN_MESSAGE_ID"] = one.message_id
    return encode(
        DEAD_LETTERS + group,
        0,
        one.body,
        properties=text + encode_properties(added),
        flag=one.flag,
        sys_flag=one.sys_flag & ~(_HOST_BITS | FLAG_INNER_BATCH | FLAG_NEED_UNWRAP),
        born_timestamp=one.born_timestamp,
        born_host=_host(one.born_host),
        store_host=_host(one.store_host),
        reconsume_times=one.reconsume_times + 1,
    )


def _host(text: str) -> tuple[str, int]:
    address, _, port = text.rpartition(":")
    return address.strip("[]"), int(port)
