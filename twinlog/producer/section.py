"""A section on its way: its bytes, its number, what became of it.

A *section* is one producer batch: records of one topic and queue, stored whole or refused whole.
Its first record carries `TL_SEQ` (``producer(16 hex).epoch.sequence.count``) as its last property,
so the count is known only when the section closes: `seal` puts it in then. A section that must get
another number, because one before it was refused for good, is renumbered in place. Both change
properties only; the stored CRC covers the body and stays right.

Not here: which section is sent when (``twinlog.producer.core``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import Enum

from twinlog.errors import OutcomeUnknown, TwinlogError
from twinlog.format.messages import Receipt
from twinlog.kernels import SectionEncoder

_SIZE = struct.Struct(">i")
_LENGTH = struct.Struct(">H")


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
        "begun",
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
        self.begun = 0.0  # when the first attempt that may be in the log was sent
        self.maybe = False  # an attempt without an answer may be in the log
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
        """What is written after the properties of the first record; `seal` completes it."""
        return self._mark

    def first(self, size: int, text: int) -> None:
        """Note the size of the first record and of its properties, the mark included, bytes."""
        self._mark_at = size - len(self._mark)
        self._text_at = size - text - 2

    def seal(self, data: bytearray, records: int | None = None) -> None:
        """Take the section's bytes and write its count after the mark; nothing is added after.

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
            TwinlogError: It was not, or that is unknown: the section's error.
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


def raised_for(failures: Sequence[Section]) -> TwinlogError | None:
    """Return what is raised for sections without success; None: all succeeded.

    The first of their errors, but unknown before not stored: a caller that sees one error of many
    must not take what may be in the log for what is not.
    """
    errors = [section.error for section in failures if section.error is not None]
    unknown = (error for error in errors if isinstance(error, OutcomeUnknown))
    return next(unknown, errors[0] if errors else None)
