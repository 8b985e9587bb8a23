"""Inner batches: one record that holds several messages, as RocketMQ stores them in BatchCQ topics.

The record's body is a row of items; item *i* is the message at the record's queue offset + *i*:

    item   size 4 | magic 4 | body CRC 4 | flag 4 | body length 4 | body | properties length 2 | ...

Magic and CRC are zero. Topic, queue, hosts, times and log offset are the record's; flag, body and
properties are each message's own. A body may be compressed as a whole.

Not here: the units of a batch queue (``twinlog.store_queues``). Sources: RocketMQ 5.3
(``MessageDecoder.decodeMessage``, ``MessageExtEncoder``), golden case 09.
"""

from __future__ import annotations

import struct
from dataclasses import replace

from twinlog.compression import COMPRESSION_MASK, decompress
from twinlog.errors import CorruptionError
from twinlog.record import (
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    Record,
    body_crc,
    decode_properties,
)

_HEAD = struct.Struct(">iiiii")
assert _HEAD.size == 20
_LENGTH = struct.Struct(">H")


def is_inner_batch(record: Record) -> bool:
    """Whether a record holds several messages."""
    return bool(record.sys_flag & FLAG_INNER_BATCH)


def messages_in(record: Record) -> list[Record]:
    """Return the messages of an inner batch as records of their own, in order.

    ``size`` is that of the item. A record that is no inner batch is returned alone.

    Raises:
        CorruptionError: The body does not hold whole messages.
        UsageError, Corrupt: See `twinlog.compression.decompress`.
    """
    if not is_inner_batch(record):
        return [record]
    body, flags = record.body, record.sys_flag & ~(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP)
    if flags & FLAG_COMPRESSED:
        body = decompress(body, flags & COMPRESSION_MASK)
        flags &= ~(FLAG_COMPRESSED | COMPRESSION_MASK)
    found: list[Record] = []
    at = 0
    while at < len(body):
        size, flag, start, end = _item(body, at, record.log_offset)
        text = body[start:end]
        found.append(
            replace(
                record,
                queue_offset=record.queue_offset + len(found),
                body=text,
                body_crc=body_crc(text),
                properties=decode_properties(body[end + 2 : at + size]),
                flag=flag,
                sys_flag=flags,
                size=size,
            )
        )
        at += size
    return found


def _item(body: bytes, at: int, log_offset: int) -> tuple[int, int, int, int]:
    """Return (size, flag, start and end of the body) of the item at ``at``."""
    left = len(body) - at
    if left >= _HEAD.size + _LENGTH.size:
        size, _, _, flag, length = _HEAD.unpack_from(body, at)
        end = at + _HEAD.size + length
        if 0 <= length <= left - _HEAD.size - _LENGTH.size:
            (properties,) = _LENGTH.unpack_from(body, end)
            whole = _HEAD.size + length + _LENGTH.size + properties
            if size == whole <= left:
                return size, flag, at + _HEAD.size, end
    text = f"the inner batch at {log_offset} does not hold whole messages"
    raise CorruptionError(text, offset=log_offset, what="inner batch")
