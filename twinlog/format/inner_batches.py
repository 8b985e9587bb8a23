"""Inner batches: one record that holds several messages, as RocketMQ stores them in BatchCQ topics.

`messages_in` takes them out, `InnerEncoder` makes them for a producer.

The record's body is a row of items; item *i* is the message at the record's queue offset + *i*:

    item   size 4 | magic 4 | body CRC 4 | flag 4 | body length 4 | body | properties length 2 | ...

Magic and CRC are zero. Topic, queue, hosts, times and log offset are the record's; flag, body and
properties are each message's own. A body may be compressed as a whole.

The record says how many there are (``INNER_NUM``) and leaves room for the queue offset of the first
(``INNER_BASE``), which the master writes. Its own ``TAGS`` is that of all its messages, for nodes
filter by it, and its ``KEYS`` are the keys of all of them: the key index looks at nothing else.

Not here: the units of a batch queue (``twinlog.store.batch_queues``). Sources: RocketMQ 5.3
(``MessageDecoder.decodeMessage``, ``MessageExtEncoder``), golden case 09.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from twinlog.errors import CorruptionError
from twinlog.format.compression import COMPRESSION_MASK, decompress
from twinlog.format.record import (
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    KEYS,
    TAGS,
    Record,
    RecordEncoder,
    body_crc,
    decode_properties,
)
from twinlog.kernels.inner import BASE_PROPERTY, BASE_ROOM, MESSAGES_MAX, NUMBER_PROPERTY

_HEAD = struct.Struct(">iiiii")
assert _HEAD.size == 20
_LENGTH = struct.Struct(">H")
NAMES_MAX: Final = 16_000
"""Bytes of keys and tag that one inner batch has in its own properties."""
_RECORD: Final = 200
"""About what a record adds to the messages in it, bytes."""


def is_inner_batch(record: Record) -> bool:
    """Whether a record holds several messages."""
    return bool(record.sys_flag & FLAG_INNER_BATCH)


def messages_in(record: Record) -> list[Record]:
    """Return the messages of an inner batch as records of their own, in order.

    ``size`` is that of the item. A record that is not an inner batch is returned alone.

    Raises:
        CorruptionError: The body does not hold whole messages.
        UsageError, Corrupt: See `twinlog.format.compression.decompress`.
    """
    if not is_inner_batch(record):
        return [record]
    body, flags = record.body, record.sys_flag & ~(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP)
    if flags & FLAG_COMPRESSED:
        body = decompress(body, flags & COMPRESSION_MASK)
        flags &= ~(FLAG_COMPRESSED | COMPRESSION_MASK)
    found: list[Record] = []
    for size, flag, start, end, after in items_in(body, record.log_offset):
        text = body[start:end]
        found.append(
            replace(
                record,
                queue_offset=record.queue_offset + len(found),
                body=text,
                body_crc=body_crc(text),
                properties=decode_properties(body[end + 2 : after]),
                flag=flag,
                sys_flag=flags,
                size=size,
            )
        )
    return found


def items_in(body: bytes, log_offset: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (size, flag, start and end of the body, end of the item) of the messages in a body.

    ``log_offset`` is that of the record, for the error.

    Raises:
        CorruptionError: The body does not hold whole messages.
    """
    at = 0
    while at < len(body):
        size, flag, start, end = _item(body, at, log_offset)
        yield size, flag, start, end, at + size
        at += size


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


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One message of a section that is open."""

    body: bytes
    text: bytes
    flags: int
    born: int
    keys: tuple[str, ...]
    tag: str | None

    @property
    def size(self) -> int:
        """Bytes of its item."""
        return _HEAD.size + len(self.body) + _LENGTH.size + len(self.text)

    def item(self) -> bytes:
        """Return it as it is in the body of an inner batch."""
        head = _HEAD.pack(self.size, 0, 0, 0, len(self.body))
        return b"%b%b%b%b" % (head, self.body, _LENGTH.pack(len(self.text)), self.text)


class _Together:
    """Neighbours that become one record."""

    def __init__(self, first: _Waiting) -> None:
        self.messages = [first]
        self.size = first.size
        self.keys = dict.fromkeys(first.keys)
        self.names = sum(len(key.encode()) + 1 for key in first.keys)
        self.names += len((first.tag or "").encode())

    def takes(self, other: _Waiting, body_max: int) -> bool:
        """Take a message if it may be in the same record; returns whether it does."""
        first = self.messages[0]
        fresh = [key for key in other.keys if key not in self.keys]
        names = self.names + sum(len(key.encode()) + 1 for key in fresh)
        fits = self.size + other.size <= body_max and names <= NAMES_MAX
        if other.tag != first.tag or other.flags or first.flags or not fits:
            return False
        if len(self.messages) >= MESSAGES_MAX:
            return False
        self.messages.append(other)
        self.keys.update(dict.fromkeys(fresh))
        self.size, self.names = self.size + other.size, names
        return True


class InnerEncoder:
    """Encodes the messages of sections of a batch topic.

    Neighbours with the same tag become one inner batch. A message without such a neighbour is a
    record of its own, and so is one whose body is compressed: that is said of a whole record.

    Args:
        records: Encoder of topic and queue.
        body_max: Largest body of a record, bytes.
    """

    def __init__(self, records: RecordEncoder, body_max: int) -> None:
        self._records = records
        self._body_max = body_max
        self._waiting: list[_Together] = []

    def add(
        self,
        body: bytes,
        properties: bytes,
        *,
        sys_flag: int,
        born_timestamp: int,
        key: str | None,
        tag: str | None,
    ) -> int:
        """Add a message; returns by how many bytes the section grows, about.

        ``properties`` are encoded already, ``key`` and ``tag`` among them.
        """
        keys = tuple(part for part in (key or "").split(" ") if part)
        message = _Waiting(body, properties, sys_flag, born_timestamp, keys, tag)
        if self._waiting and self._waiting[-1].takes(message, self._body_max):
            return message.size
        self._waiting.append(_Together(message))
        return message.size + _RECORD

    def take(self, mark: bytes) -> tuple[bytearray, int, int, int]:
        """Hand over the section and begin a new one.

        Args:
            mark: Appended to the properties of the first record.

        Returns:
            (bytes, records, size of the first record, size of its properties with the mark).
        """
        waiting, self._waiting = self._waiting, []
        sizes: list[tuple[int, int]] = []
        for together in waiting:
            body, text, flags = _record_of(together)
            text += b"" if sizes else mark
            born = together.messages[0].born
            size = self._records.add(body, properties=text, sys_flag=flags, born_timestamp=born)
            sizes.append((size, len(text)))
        return self._records.take(), len(sizes), *sizes[0]


def _record_of(together: _Together) -> tuple[bytes, bytes, int]:
    """Return body, properties and system flag of the record that holds these messages."""
    messages: Sequence[_Waiting] = together.messages
    first = messages[0]
    if len(messages) == 1:
        return first.body, first.text, first.flags
    text = f"{KEYS}\x01{' '.join(together.keys)}\x02".encode() if together.keys else b""
    text += f"{TAGS}\x01{first.tag}\x02".encode() if first.tag is not None else b""
    text += b"%b\x01%d\x02" % (NUMBER_PROPERTY, len(messages))
    text += b"%b\x01%b\x02" % (BASE_PROPERTY, BASE_ROOM)
    body = b"".join([message.item() for message in messages])
    return body, text, FLAG_INNER_BATCH | FLAG_NEED_UNWRAP
