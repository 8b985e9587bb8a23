"""What callers get: receipts of what was stored and messages that were read.

A `Message` shows one record as consumers want it: body decompressed, key and tag by name. Where to
go on reading is in the message itself (`Message.next`); the caller keeps it wherever it likes.

Not here: the record's layout (``twinlog.format.record``), compression
(``twinlog.format.compression``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass
from typing import Final, Generic, NoReturn, Self, TypeVar, cast, overload

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format.compression import COMPRESSION_MASK, decompress
from twinlog.format.inner_batches import items_in
from twinlog.format.light_queues import offset_in
from twinlog.format.record import (
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

T = TypeVar("T")
_LOW: Final = -(1 << 63)
_HIGH: Final = (1 << 63) - 1
"""All queue offsets."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Where a record was stored.

    Attributes:
        queue_offset: Its number in the queue; -1 when the node only knows that it is stored.
        log_offset: Bytes; -1 when not known: only the first record of a section tells it.
        epoch: Of the master that answered.
        confirmed_by: Names of the nodes that have it, as far as the master said.
        buffered: It is only in the master's memory (``flush = "async-buffered"``, acknowledged
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


class _Once(Generic[T]):
    """A value of a message that is decoded when it is first looked at, and kept."""

    def __init__(self, decode: Callable[[Message], T]) -> None:
        self._decode = decode
        self.__doc__ = decode.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, message: None, owner: type) -> Self: ...
    @overload
    def __get__(self, message: Message, owner: type) -> T: ...
    def __get__(self, message: Message | None, owner: type) -> T | Self:
        if message is None:
            return self
        # The instance's own entry is found before this descriptor from now on.
        value = message.__dict__[self._name] = self._decode(message)
        return value


class Message:
    """One message as it was read; nothing changes it. What is not looked at is not decoded.

    It has bytes of its own: keeping a message keeps nothing of the answer that it came in.

    Attributes:
        queue_offset: Its number in the queue.
        body: The body, decompressed.
    """

    queue_offset: int
    body: bytes

    def __init__(
        self,
        topic: str,
        queue: int,
        queue_offset: int,
        log_offset: int,
        body: bytes,
        born_timestamp: int,
        store_timestamp: int,
        stored: Stored,
    ) -> None:
        self.__dict__.update(
            topic=topic,
            queue=queue,
            queue_offset=queue_offset,
            log_offset=log_offset,
            body=body,
            born_timestamp=born_timestamp,
            store_timestamp=store_timestamp,
            stored=stored,
        )

    def __setattr__(self, name: str, value: object) -> NoReturn:
        """Refuse: a message is what was stored."""
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        """Refuse: a message is what was stored."""
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _compared(self) -> tuple[object, ...]:
        return (
            self.topic, self.queue, self.queue_offset, self.log_offset, self.body,
            self.born_timestamp, self.store_timestamp,
        )  # fmt: skip

    def __eq__(self, other: object) -> bool:
        """Whether place, body and times are equal."""
        if not isinstance(other, Message):
            return NotImplemented
        return self._compared() == other._compared()

    def __hash__(self) -> int:
        """Return the hash of what is compared."""
        return hash(self._compared())

    def __repr__(self) -> str:
        """Show place, body and times."""
        return (
            f"Message(topic={self.topic!r}, queue={self.queue}, queue_offset={self.queue_offset}, "
            f"log_offset={self.log_offset}, body={self.body!r}, "
            f"born_timestamp={self.born_timestamp}, store_timestamp={self.store_timestamp})"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle and copy by place, body, times and what is stored."""
        return Message, (*self._compared(), self.stored)

    @_Once
    def stored(self) -> Stored:
        """Head, stored body, property text and topic."""
        return _parts(self.__dict__["_rest"], self.body)

    @_Once
    def origin(self) -> str:
        """Topic that it was sent to: another one than ``topic`` where that is a light queue."""
        return self.stored[3]

    @_Once
    def topic(self) -> str:
        """Name of the topic, or of the light queue that was read."""
        return self.stored[3]

    @_Once
    def queue(self) -> int:
        """Number of the queue."""
        return self.stored[0][3]

    @_Once
    def log_offset(self) -> int:
        """Where its record begins, bytes."""
        return self.stored[0][6]

    @_Once
    def born_timestamp(self) -> int:
        """When the producer made it, ms since 1970."""
        return self.stored[0][8]

    @_Once
    def store_timestamp(self) -> int:
        """When the master stored it, ms since 1970."""
        return self.stored[0][10]

    @property
    def next(self) -> int:
        """Queue offset at which to go on."""
        return self.queue_offset + 1

    @property
    def address(self) -> str:
        """Return ``topic/queue@offset``, which ``get`` takes."""
        return f"{self.topic}/{self.queue}@{self.queue_offset}"

    @_Once
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

    @_Once
    def record(self) -> Record:
        """Everything that is stored, the body as it is stored."""
        head, body, _, origin = self.stored
        size, magic, crc, queue, flag, queue_offset, log_offset, sys_flag, born = head[:9]
        born_host, store_timestamp, store_host, reconsume, prepared, _ = head[9:]
        return Record(
            topic=origin,
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


def messages_of(payload: memoryview | bytes, low: int = _LOW, high: int = _HIGH) -> list[Message]:
    """Return the messages whose records are one after the other in ``payload``.

    A record that holds several messages (an inner batch) is taken apart.

    All records are proven before the first is looked at.

    Args:
        payload: Records; nothing refers to it afterwards.
        low: Messages with smaller queue offsets are left out.
        high: So are those from the first on that has this queue offset or a larger one.

    Raises:
        CorruptionError: A record is not what was written.
        UsageError: A body is compressed by a library that is not installed.
        Corrupt: A body does not decompress.
    """
    found = kernels.cut_messages(payload, Message, _decoded, low, high)
    if isinstance(found, list):
        return found
    stop, code = found
    what = kernels.REFUSALS[code]
    raise CorruptionError(f"no record at byte {stop} of an answer: {what}", what=what)


def _decoded(record: bytes) -> list[Message]:
    """Return the messages of a record that cannot wait: what is wrong with it is said at once."""
    start = _SIZES[record[39] & _V6]
    length = max(int.from_bytes(record[start - 4 : start], "big", signed=True), 0)
    body = record[start : start + length]
    stored = _parts(record[:start] + record[start + length :], body)
    head, _, _, topic = stored
    if head[7] & FLAG_INNER_BATCH:
        return _inner(topic, stored)
    return [_message(stored, decompress(body, head[7] & COMPRESSION_MASK))]


def _message(stored: Stored, body: bytes) -> Message:
    head, topic = stored[0], stored[3]
    return Message(topic, head[3], head[5], head[6], body, head[8], head[10], stored)


def _parts(rest: bytes, body: bytes) -> Stored:
    """Return head, stored body, property text and topic of a record, given without its body."""
    flags = rest[39]
    head = _HEADS[flags & _V6](rest, 0)
    start = _SIZES[flags & _V6]
    if head[1] == MAGIC_V1:
        name = start + 1
        after = name + rest[start]
    else:
        name = start + 2
        after = name + int.from_bytes(rest[start:name], "big")
    topic = str(rest[name:after], "utf-8", "replace")
    return head, body, rest[after + 2 :], topic


def _inner(topic: str, outer: Stored) -> list[Message]:
    """Return the messages of an inner batch, each with its own number, flag and properties."""
    head, body, _, _ = outer
    flags = head[7] & ~(FLAG_INNER_BATCH | FLAG_NEED_UNWRAP)
    if flags & FLAG_COMPRESSED:
        body = decompress(body, flags & COMPRESSION_MASK)
        flags &= ~(FLAG_COMPRESSED | COMPRESSION_MASK)
    found: list[Message] = []
    for size, flag, start, end, after in items_in(body, head[6]):
        number = head[5] + len(found)
        inner = (
            size, head[1], body_crc(body[start:end]), head[3], flag, number, head[6], flags,
            *head[8:14], end - start,
        )  # fmt: skip
        parts = inner, body[start:end], body[end + 2 : after], topic
        found.append(_message(parts, parts[1]))
    return found


def in_light_queue(message: Message, name: str) -> Message:
    """Return a message as it stands in a light queue: topic, queue and offset are that queue's.

    ``record`` still says where it was sent to.

    Raises:
        CorruptionError: It does not say that it is in that queue.
    """
    found = offset_in(message.properties, name)
    if found is None:
        text = f"the record at {message.log_offset} does not say that it is in {name}"
        raise CorruptionError(text, offset=message.log_offset)
    return Message(
        name, 0, found, message.log_offset, message.body, message.born_timestamp,
        message.store_timestamp, message.stored,
    )  # fmt: skip


Head = tuple[int, int, int, int, int, int, int, int, int, bytes, int, bytes, int, int, int]
"""The fields of a record before its body, in their order (``twinlog.kernels.plain``)."""

Stored = tuple[Head, bytes, bytes, str]
"""Those, the stored body, the property text, and the topic that it was sent to."""

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
