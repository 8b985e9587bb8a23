r"""A section on its way: its bytes, its number, what became of it; property text of records.

A *section* is one producer batch: records of one topic and queue, stored whole or refused whole.
Its first record carries `TL_SEQ` (``producer(16 hex).epoch.sequence.count``) as its last property,
so the count is known only when the section closes: `seal` puts it in then. A section that must get
another number, because one before it was refused for good, is renumbered in place. Both change
properties only; the stored CRC covers the body and stays right.

Not here: which section is sent when (``twinlog.producer``).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Final

from twinlog.errors import RecordRefused, TwinlogError
from twinlog.kernels import SectionEncoder
from twinlog.kernels.inner import BASE_PROPERTY, NUMBER_PROPERTY
from twinlog.layout import (
    LIGHT_DIGITS,
    LIGHT_OFFSETS_PROPERTY,
    LIGHT_PREFIX,
    LIGHT_PROPERTY,
)
from twinlog.messages import Receipt
from twinlog.record import KEYS, SEQUENCE, SHARDING_KEY, TAGS, encode_properties

BORN_END: Final = 253_402_300_800_000
"""The year 10000 in ms since 1970: no calendar shows what is born later."""
PROPERTIES_MAX: Final = 32_600
"""Properties of one record, bytes: what a stored record holds, less the longest `TL_SEQ`."""

_RESERVED: Final = frozenset(
    {KEYS, TAGS, SHARDING_KEY, SEQUENCE}
    | {LIGHT_PROPERTY.decode(), LIGHT_OFFSETS_PROPERTY.decode()}
    | {NUMBER_PROPERTY.decode(), BASE_PROPERTY.decode()}
)
_SIZE = struct.Struct(">i")
_LENGTH = struct.Struct(">H")


def checked_birth(ms: int) -> int:
    """Return when a record was born, ms since 1970, as the caller says it.

    Raises:
        RecordRefused: No calendar shows it.
    """
    if not 0 <= ms < BORN_END:
        text = f"a message is born between the years 1970 and 9999, not at {ms} ms"
        raise RecordRefused(text, record=0, reason="born")
    return ms


def property_text(
    key: str | None,
    tag: str | None,
    order_key: str | None = None,
    properties: Mapping[str, str] | None = None,
    light: Sequence[str] = (),
) -> bytes:
    r"""Return the stored property text of one record.

    Raises:
        RecordRefused: A name or value that cannot be stored, or too many bytes.

    >>> property_text("42", "paid")
    b'KEYS\x0142\x02TAGS\x01paid\x02'
    """
    if order_key is None and not properties and not light and (key or "").isprintable():
        if tag is None and key:
            return f"KEYS\x01{key}\x02".encode()
        if key and tag and tag.isprintable():
            return f"KEYS\x01{key}\x02TAGS\x01{tag}\x02".encode()
    text, count = "", 0
    if key is not None:
        text, count = f"KEYS\x01{key}\x02", 1
    if tag is not None:
        text, count = f"{text}TAGS\x01{tag}\x02", count + 1
    if order_key is not None:
        text, count = f"{text}{SHARDING_KEY}\x01{order_key}\x02", count + 1
    if text.count("\x01") != count or text.count("\x02") != count or "\x01\x02" in text:
        raise _refused("key, tag and order_key must not be empty or contain 0x01 or 0x02")
    data = text.encode()
    if properties:
        if taken := _RESERVED & properties.keys():
            raise _refused(
                f"property {min(taken)} is set by key, tag, order_key, light or the producer"
            )
        data += encode_properties(properties)
    return data + light_text(light) if light else data


def light_text(names: Sequence[str]) -> bytes:
    r"""Return the properties of a message that goes to light queues as well.

    The master writes its offset in each of them over the zeros.

    Raises:
        RecordRefused: A name that is none; the master refuses what else is wrong with one.

    >>> light_text(["%LMQ%a"])
    b'INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010000000000000000000\x02'
    """
    for name in names:
        if not name.startswith(LIGHT_PREFIX) or not name.isprintable() or "," in name:
            raise _refused(f"{name!r} is no light queue: their names begin with {LIGHT_PREFIX}")
    room = b",".join([b"0" * LIGHT_DIGITS] * len(names))
    joined = ",".join(names).encode()
    return b"%s\x01%s\x02%s\x01%s\x02" % (LIGHT_PROPERTY, joined, LIGHT_OFFSETS_PROPERTY, room)


def _refused(text: str) -> RecordRefused:
    return RecordRefused(text, record=0, reason="properties")


class State(Enum):
    """How far a section is."""

    OPEN = "open"
    WAITING = "waiting"
    SENT = "sent"
    STORED = "stored"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Section:
    """A section and what became of it; all its records share its fate.

    Attributes:
        topic: Name.
        queue: Queue number.
        epoch: Producer epoch.
        sequence: Number of its first record in the producer's line of that queue.
        count: Messages so far.
        records: Records that they are; fewer than messages where a topic has batch queues.
        size: Bytes so far; what limits count it with.
        state: See `State`; `done` says whether it is final.
        error: Why it was refused or is unknown.
        queue_offset: Of its first record, once stored; -1 when a node no longer knows.
        log_offset: Likewise, bytes.
        answered: Time of the final answer on the client's monotonic clock, seconds.
    """

    __slots__ = (
        "_mark",
        "_mark_at",
        "_mark_end",
        "_text_at",
        "answered",
        "attempts",
        "buffered",
        "confirmed_by",
        "count",
        "data",
        "deadline",
        "due",
        "epoch",
        "error",
        "log_offset",
        "master_epoch",
        "maybe",
        "producer",
        "queue",
        "queue_offset",
        "records",
        "sequence",
        "size",
        "state",
        "topic",
    )

    def __init__(
        self, topic: str, queue: int, *, producer: int, epoch: int, sequence: int, due: float
    ) -> None:
        self.topic = topic
        self.queue = queue
        self.producer = producer
        self.epoch = epoch
        self.sequence = sequence
        self.due = due
        self.count = 0
        self.records = 0
        self.size = 0
        self.state = State.OPEN
        self.data = bytearray()
        self.error: TwinlogError | None = None
        self.queue_offset = -1
        self.log_offset = -1
        self.master_epoch = 0
        self.confirmed_by: tuple[str, ...] = ()
        self.buffered = False
        self.answered = 0.0
        self.deadline = 0.0
        self.attempts = 0
        self.maybe = False  # an attempt that nobody answered may be in the log
        self._mark = b"TL_SEQ\x01%016x.%d.%d." % (producer, epoch, sequence)
        self._mark_at = self._mark_end = self._text_at = 0

    @property
    def done(self) -> bool:
        """True when nothing will change any more."""
        return self.state in (State.STORED, State.REFUSED, State.UNKNOWN)

    @property
    def stored(self) -> bool:
        """True when every record of it is acknowledged."""
        return self.state is State.STORED

    @property
    def mark(self) -> bytes:
        """What is written behind the properties of the first record; `seal` completes it."""
        return self._mark

    def first(self, size: int, text: int) -> None:
        """Note the size of the first record and of its properties, the mark included, bytes."""
        self._mark_at = size - len(self._mark)
        self._text_at = size - text - 2

    def seal(self, data: bytearray, records: int | None = None) -> None:
        """Take the section's bytes and write its count behind the mark; nothing is added after.

        ``records`` is how many records the messages became; None: each is one.
        """
        self.data = data
        self.records = self.count if records is None else records
        self._mark_end = self._mark_at + len(self._mark)
        self._rewrite(self._mark + b"%d\x02" % self.records)
        self.state = State.WAITING

    def whole(
        self, encoder: SectionEncoder, body: bytes, text: bytes, flags: int, now_ms: int
    ) -> None:
        """Make it of one record, close it and count it as sent: `first` and `seal` in one.

        Args:
            encoder: Of its queue, empty.
            body: Of the record.
            text: Its properties without the mark.
            flags: Its system flag.
            now_ms: When it was born, ms since 1970.
        """
        text += self._mark + b"1\x02"
        size = encoder.add(body, properties=text, sys_flag=flags, born_timestamp=now_ms)
        self.data = encoder.take()
        self.count = self.records = 1
        self.size = self._mark_end = size
        self._mark_at = size - len(self._mark) - 2
        self._text_at = size - len(text) - 2
        self.state = State.SENT

    def renumber(self, epoch: int, sequence: int) -> None:
        """Give a section that is in no log another number."""
        self.epoch, self.sequence = epoch, sequence
        self.data = bytearray(self.data)  # a view of the old bytes may still be on its way out
        self._mark = b"TL_SEQ\x01%016x.%d.%d." % (self.producer, epoch, sequence)
        size = self.size
        self._rewrite(self._mark + b"%d\x02" % self.records)
        self.size = size  # what it was counted with
        self.maybe = False

    def _rewrite(self, mark: bytes) -> None:
        data = self.data
        grown = len(mark) - (self._mark_end - self._mark_at)
        data[self._mark_at : self._mark_end] = mark
        self._mark_end += grown
        _SIZE.pack_into(data, 0, _SIZE.unpack_from(data)[0] + grown)
        length = _LENGTH.unpack_from(data, self._text_at)[0] + grown
        _LENGTH.pack_into(data, self._text_at, length)
        self.size = len(data)

    def row(self) -> list[object]:
        """Return what an APPEND says of it."""
        return [
            self.topic,
            self.queue,
            self.records,
            len(self.data),
            self.producer,
            self.epoch,
            self.sequence,
        ]

    def receipt(self, record: int = 0) -> Receipt:
        """Return where message number ``record`` of it was stored.

        Raises:
            TwinlogError: It was not, or nobody knows: the section's error.
        """
        if self.error is not None:
            raise self.error
        assert self.state is State.STORED, "the section is not answered yet: flush first"
        known = self.queue_offset >= 0
        return Receipt(
            topic=self.topic,
            queue=self.queue,
            queue_offset=self.queue_offset + record if known else -1,
            log_offset=self.log_offset if record == 0 else -1,
            epoch=self.master_epoch,
            confirmed_by=self.confirmed_by,
            buffered=self.buffered,
        )
