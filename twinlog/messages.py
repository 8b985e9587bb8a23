"""What callers get: receipts of what was stored and messages that were read.

A `Message` shows one record as consumers want it: body decompressed, key and tag by name. Where to
go on reading is in the message itself (`Message.next`); the caller keeps it wherever it likes.

Not here: the record's layout (``twinlog.record``), compression (``twinlog.compression``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, cast

from twinlog import kernels
from twinlog.compression import COMPRESSION_MASK, decompress
from twinlog.errors import CorruptionError
from twinlog.inner_batches import items_in
from twinlog.layout import LIGHT_OFFSETS_PROPERTY, LIGHT_PROPERTY
from twinlog.record import (
    FLAG_BORN_V6,
    FLAG_COMPRESSED,
    FLAG_INNER_BATCH,
    FLAG_NEED_UNWRAP,
    FLAG_STORE_V6,
    KEYS,
    MAGIC_V1,
    TAGS,
    Record,
    body_crc,
    decode_properties,
    unpack_host,
)
from twinlog.units import parse_whole


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a record was stored.

    Attributes:
        queue_offset: Its number in the queue; -1 when the node only knows that it is stored.
        log_offset: Bytes; -1 when not known: only the first record of a section tells it.
        epoch: Of the master that answered.
        confirmed_by: Names of the nodes that have it, as far as the master said.
        buffered: It lies only in the master's memory (``flush = "async-buffered"``, acknowledged
            ``written``): a kill of that process loses it.
    """

    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    epoch: int
    confirmed_by: tuple[str, ...]
    buffered: bool = False

    @property
    def address(self) -> str:
        """Return ``topic/queue@offset``, which ``get`` takes."""
        return f"{self.topic}/{self.queue}@{self.queue_offset}"


@dataclass(frozen=True)
class Message:
    """One message as it was read. What is rarely looked at is decoded when it is.

    Attributes:
        queue_offset: Its number in the queue.
        log_offset: Where its record begins, bytes.
        body: Decompressed.
        born_timestamp: When the producer made it, ms since 1970.
        store_timestamp: When the master stored it, ms since 1970.
    """

    topic: str
    queue: int
    queue_offset: int
    log_offset: int
    body: bytes
    born_timestamp: int
    store_timestamp: int
    stored: Stored = field(repr=False, compare=False)
    origin: str = field(default="", repr=False, compare=False)
    """Topic that it was sent to: another one than ``topic`` where that is a light queue."""

    @property
    def next(self) -> int:
        """Queue offset at which to go on."""
        return self.queue_offset + 1

    @property
    def address(self) -> str:
        """Return ``topic/queue@offset``, which ``get`` takes."""
        return f"{self.topic}/{self.queue}@{self.queue_offset}"

    @cached_property
    def properties(self) -> Mapping[str, str]:
        """All properties, key and tag included."""
        return decode_properties(self.stored[2])

    @property
    def key(self) -> str | None:
        """Index keys as stored, separated by spaces."""
        return self.properties.get(KEYS)

    @property
    def tag(self) -> str | None:
        """What readers filter by."""
        return self.properties.get(TAGS)

    @cached_property
    def record(self) -> Record:
        """Everything that is stored, the body as it is stored."""
        head, body, _ = self.stored
        size, magic, crc, queue, flag, queue_offset, log_offset, sys_flag, born = head[:9]
        born_host, store_timestamp, store_host, reconsume, prepared, _ = head[9:]
        return Record(
            topic=self.origin or self.topic,
            queue=queue,
            queue_offset=queue_offset,
            log_offset=log_offset,
            body=body,
            properties=self.properties,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=born,
            born_host=unpack_host(born_host),
            store_timestamp=store_timestamp,
            store_host=unpack_host(store_host),
            reconsume_times=reconsume,
            prepared_transaction_offset=prepared,
            body_crc=crc,
            size=size,
            magic=magic,
        )


def messages_of(payload: memoryview | bytes) -> list[Message]:
    """Return the messages whose records lie one after the other in ``payload``.

    A record that holds several messages (an inner batch) is taken apart.

    All records are proven by one call into the kernels before the first is looked at.

    Raises:
        CorruptionError: A record is not what was written.
        UsageError: A body is compressed by a library that is not installed.
        Corrupt: A body does not decompress.
    """
    data, end = bytes(payload), len(payload)  # one copy here spares two objects a record below
    _, stop, code, _, _ = kernels.walk(data, 0, end)
    if code:
        what = kernels.REFUSALS[code]
        raise CorruptionError(f"no record at byte {stop} of an answer: {what}", what=what)
    found: list[Message] = []
    topic_bytes, topic, at = b"", "", 0
    while at < end:
        flags = data[at + 39]
        head = _HEADS[flags & _V6](data, at)
        start = at + _SIZES[flags & _V6]
        middle = start + max(head[14], 0)
        if head[1] == MAGIC_V1:
            name = middle + 1
            after = name + data[middle]
        else:
            name = middle + 2
            after = name + int.from_bytes(data[middle:name], "big")
        if data[name:after] != topic_bytes:
            topic_bytes = data[name:after]
            topic = topic_bytes.decode("utf-8", "replace")
        stored = (head, data[start:middle], data[after + 2 : at + head[0]])
        if head[7] & FLAG_INNER_BATCH:
            found += _inner(topic, stored)
        else:
            found.append(_message(topic, stored))
        at += head[0]
    return found


def _inner(topic: str, outer: Stored) -> list[Message]:
    """Return the messages of an inner batch, each with its own number, flag and properties."""
    head, body, _ = outer
    flags = head[7] & ~(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP)
    if flags & FLAG_COMPRESSED:
        body = decompress(body, flags & COMPRESSION_MASK)
        flags &= ~(FLAG_COMPRESSED | COMPRESSION_MASK)
    found: list[Message] = []
    for size, flag, start, end, behind in items_in(body, head[6]):
        number = head[5] + len(found)
        inner = (
            size, head[1], body_crc(body[start:end]), head[3], flag, number, head[6], flags,
            *head[8:14], end - start,
        )  # fmt: skip
        found.append(_message(topic, (inner, body[start:end], body[end + 2 : behind])))
    return found


def in_light_queue(message: Message, name: str) -> Message:
    """Return a message as it stands in a light queue: topic, queue and offset are that queue's.

    ``record`` goes on telling where it was sent to.

    Raises:
        CorruptionError: It does not say that it is in that queue.
    """
    names = message.properties.get(LIGHT_PROPERTY.decode(), "").split(",")
    offsets = message.properties.get(LIGHT_OFFSETS_PROPERTY.decode(), "").split(",")
    found = parse_whole(dict(zip(names, offsets, strict=False)).get(name, ""))
    if found is None:
        text = f"the record at {message.log_offset} does not say that it is in {name}"
        raise CorruptionError(text, offset=message.log_offset)
    made = object.__new__(Message)
    made.__dict__.update(message.__dict__, topic=name, queue=0, queue_offset=found)
    return made


Head = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""The fields of a record before its body, in their order (``twinlog.kernels.plain``)."""

Stored = tuple[Head, bytes, bytes]
"""Those, the stored body and the property text."""

_V6: Final = FLAG_BORN_V6 | FLAG_STORE_V6


def _layouts() -> tuple[dict[int, Callable[[bytes, int], Head]], dict[int, int]]:
    heads: dict[int, Callable[[bytes, int], Head]] = {}
    sizes: dict[int, int] = {}
    for flags in (0, FLAG_BORN_V6, FLAG_STORE_V6, _V6):
        born, store = (20 if flags & bit else 8 for bit in (FLAG_BORN_V6, FLAG_STORE_V6))
        layout = struct.Struct(f">iiiiiqqiq{born}sq{store}siqi")
        heads[flags] = cast("Callable[[bytes, int], Head]", layout.unpack_from)
        sizes[flags] = layout.size
    return heads, sizes


_HEADS, _SIZES = _layouts()
assert _SIZES[0] == 88


def _message(topic: str, stored: Stored) -> Message:
    """Return a message, past the frozen dataclass's own constructor: that costs a microsecond."""
    head, body, _ = stored
    if head[7] & FLAG_COMPRESSED:
        body = decompress(body, head[7] & COMPRESSION_MASK)
    message = object.__new__(Message)
    message.__dict__.update(
        topic=topic,
        origin=topic,
        queue=head[3],
        queue_offset=head[5],
        log_offset=head[6],
        body=body,
        born_timestamp=head[8],
        store_timestamp=head[10],
        stored=stored,
    )
    return message
