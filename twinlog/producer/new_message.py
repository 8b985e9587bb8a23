r"""What a caller says of a message besides its body, and the property text that is stored for it.

`NewMessage` is made once, where the caller's keyword arguments arrive (`Client.send`,
`Producer.send` and their awaiting twins); everything below passes it on as one value. A new record
property is added here, twice: as a field of `NewMessage` and, for type checkers, of
`MessageFields`. A test compares the two.

Not here: sections (``twinlog.producer.section``), bodies (``twinlog.format.compression``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, NoReturn, TypedDict, cast

from twinlog.errors import RecordRefused, UsageError
from twinlog.format.compression import Compression
from twinlog.format.light_queues import (
    LIGHT_DIGITS,
    LIGHT_OFFSETS_PROPERTY,
    LIGHT_PREFIX,
    LIGHT_PROPERTY,
)
from twinlog.format.record import KEYS, SEQUENCE, SHARDING_KEY, TAGS, encode_properties
from twinlog.format.waiting.delay_levels import DELAY, REAL_QUEUE, REAL_TOPIC, check_level
from twinlog.format.waiting.halves import GROUP, NAME, PREPARED
from twinlog.format.waiting.timers import DELAY_MAX_MS, DELAY_MS, DELIVER_MS, OUT_MS, due_text
from twinlog.kernels.inner import BASE_PROPERTY, NUMBER_PROPERTY
from twinlog.producer.later import Delay, Moment, at_ms, delay_ms

BORN_END: Final = 253_402_300_800_000
"""The year 10000 in ms since 1970: no calendar shows what is born later."""

TRANSACTION_MAX: Final = 255
"""Characters of a producer group and the name of one of its transactions."""

PROPERTIES_MAX: Final = 32_600
"""Properties of one record, bytes: what a stored record holds, less the longest `TL_SEQ`."""

_RESERVED: Final = frozenset(
    {KEYS, TAGS, SHARDING_KEY, SEQUENCE}
    | {LIGHT_PROPERTY.decode(), LIGHT_OFFSETS_PROPERTY.decode()}
    | {NUMBER_PROPERTY.decode(), BASE_PROPERTY.decode()}
)

_LATER: Final = ("delay_level", "delay", "at", "transaction")
"""Arguments of a message that is delivered later."""
_WAITING: Final = frozenset(
    {DELAY, REAL_TOPIC, REAL_QUEUE, DELIVER_MS, OUT_MS, DELAY_MS, PREPARED, GROUP, NAME}
)


class MessageFields(TypedDict, total=False):
    """The keyword arguments of a send that describe the message: the fields of `NewMessage`."""

    key: str | None
    tag: str | None
    order_key: str | None
    properties: Mapping[str, str] | None
    light: Sequence[str]
    queue: int | None
    born_ms: int | None
    delay_level: int | None
    delay: Delay | None
    at: Moment | None
    transaction: str | None


class NewMessage(NamedTuple):
    """What a caller says of a message.

    Attributes:
        key: Index key; several are separated by spaces. Never chooses the queue.
        tag: What readers filter by.
        order_key: Messages with the same order key go to the same queue, in order.
        properties: Further properties.
        light: Light queues (``%LMQ%name``) that it also goes to.
        queue: The queue itself; None: ``order_key`` chooses it, or queues take turns.
        born_ms: When it was born, ms since 1970, for one that is sent again; None: now.
        delay_level: It waits in the log first: level 1 to 18 of RocketMQ's table, 1 s to 2 h
            (``twinlog.format.waiting.delay_levels``); None: not at all.
        delay: It is delivered that much later than it was stored, seconds or text with a unit, to
            the millisecond; at most 365 days. None: at once.
        at: It is delivered at this time: a date, text of ISO 8601, or ms since 1970; one that has
            passed: at once.
        transaction: It is delivered when this transaction is committed: producer group, ``/`` and
            name, as `Transaction.name` says it. None: it is of none.
    """

    key: str | None = None
    tag: str | None = None
    order_key: str | None = None
    properties: Mapping[str, str] | None = None
    light: Sequence[str] = ()
    queue: int | None = None
    born_ms: int | None = None
    delay_level: int | None = None
    delay: Delay | None = None
    at: Moment | None = None
    transaction: str | None = None

    def text(self) -> bytes:
        r"""Return the stored property text, without what the section adds.

        Raises:
            RecordRefused: A name or value that cannot be stored, or too many bytes.
            UsageError: An argument of another type.

        >>> NewMessage("42", "paid").text()
        b'KEYS\x0142\x02TAGS\x01paid\x02'
        """
        if self is PLAIN:
            return b""
        try:
            text = self._text()
        except (AttributeError, TypeError, UnicodeEncodeError):
            self._refuse()
        if len(text) > PROPERTIES_MAX:
            raise _refused(f"the properties have {len(text)} bytes, at most {PROPERTIES_MAX} fit")
        return text

    def _text(self) -> bytes:
        key, tag, order_key, properties, light, queue, born_ms, *_ = self
        if self.waits:
            self._check_delay()
        if queue is not None:
            queue.__index__()  # AttributeError for anything but a whole number
        if order_key is None and not properties and not light and born_ms is None:
            # Most messages: printable text contains no separator, and no lone surrogate.
            if tag is None and key and key.isprintable():
                return f"KEYS\x01{key}\x02".encode()
            if key and tag and key.isprintable() and tag.isprintable():
                return f"KEYS\x01{key}\x02TAGS\x01{tag}\x02".encode()
        text, count = "", 0
        for name, value in ((KEYS, key), (TAGS, tag), (SHARDING_KEY, order_key)):
            if value is not None:
                text, count = text + name + "\x01" + value + "\x02", count + 1
        # "\x01\x02" would be an empty value, which no reader shows.
        if text.count("\x01") != count or text.count("\x02") != count or "\x01\x02" in text:
            raise _refused("key, tag and order_key must not be empty or contain 0x01 or 0x02")
        if born_ms is not None and not 0 <= born_ms < BORN_END:
            text = f"a message is born between the years 1970 and 9999, not at {born_ms} ms"
            raise RecordRefused(text, record=0, reason="born")
        data = text.encode()
        if properties:
            if taken := _RESERVED & properties.keys():
                raise _refused(
                    f"property {min(taken)} is set by key, tag, order_key, light or the producer"
                )
            data += encode_properties(properties)
        return data + light_text(light) if light else data

    @property
    def waits(self) -> bool:
        """Whether it waits in the log before it is delivered."""
        return not self.delay_level is self.delay is self.at is self.transaction is None

    def due_text(self, now_ms: int) -> bytes:
        """Return the properties that say when it is due, for one with ``delay`` or ``at``.

        Raises:
            UsageError: That is no time, or it is too far away.
        """
        wait = None if self.delay is None else delay_ms(self.delay)
        moment = None if self.at is None else at_ms(self.at)
        if moment is not None and moment - now_ms > DELAY_MAX_MS:
            delay_ms((moment - now_ms) / 1000)
        return due_text(now_ms, delay_ms=wait, at_ms=moment)

    def _check_delay(self) -> None:
        """Refuse what a delayed message cannot be, or cannot say."""
        given = [name for name in _LATER if getattr(self, name) is not None]
        if len(given) > 1:
            raise UsageError(f"a message has {' or '.join(given)}, not both", code="delay")
        if self.delay_level is not None:
            check_level(self.delay_level)
        elif self.transaction is not None:
            check_transaction(self.transaction)
        else:
            self.due_text(0 if self.at is None else at_ms(self.at))
        if self.light:
            raise _refused("what is delivered later is entered in no light queue")
        if self.properties and (taken := _WAITING & self.properties.keys()):
            raise _refused(f"property {min(taken)} is set by {given[0]}")

    def _refuse(self) -> NoReturn:
        """Name the argument that made `_text` raise.

        Raises:
            RecordRefused: Text that UTF-8 cannot represent.
            UsageError: An argument of another type.
        """
        for name in ("key", "tag", "order_key"):
            _check_text(name, getattr(self, name), optional=True)
        for name in ("queue", "born_ms"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, int):
                raise UsageError.other_type(name, "a whole number", value)
        properties = cast("object", self.properties)
        if properties is not None and not isinstance(properties, Mapping):
            raise UsageError.other_type("properties", "a mapping of text to text", properties)
        for name, value in (self.properties or {}).items():
            _check_text("the name of a property", name)
            _check_text(f"property {name}", value)
        light = cast("object", self.light)
        if not isinstance(light, Sequence):
            raise UsageError.other_type("light", "a sequence of names", light)
        for name in self.light:
            _check_text("the name of a light queue", name)
        raise AssertionError("every argument is of its type")


PLAIN: Final = NewMessage()
"""A message of which nothing is said."""


def check_transaction(name: object) -> None:
    """Raise unless it names a producer group and a transaction: ``shop/7f3a``."""
    _check_text("transaction", name)
    assert isinstance(name, str), "checked"
    group, _, one = name.rpartition("/")
    if not group or not one or not name.isprintable() or len(name) > TRANSACTION_MAX:
        text = f"{name[:50]!r} is not a producer group, a slash and the name of a transaction"
        raise UsageError(text, code="transaction", hint="use client.transaction(group)")


def light_text(names: Sequence[str]) -> bytes:
    r"""Return the properties of a message that also goes to light queues.

    The master writes its offset in each of them over the zeros.

    Raises:
        RecordRefused: The name of a light queue is invalid; the master checks the rest of it.

    >>> light_text(["%LMQ%a"])
    b'INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x010000000000000000000\x02'
    """
    for name in names:
        if not name.startswith(LIGHT_PREFIX) or not name.isprintable() or "," in name:
            raise _refused(f"{name!r} is not a light queue: their names begin with {LIGHT_PREFIX}")
    room = b",".join([b"0" * LIGHT_DIGITS] * len(names))
    joined = ",".join(names).encode()
    return b"%s\x01%s\x02%s\x01%s\x02" % (LIGHT_PROPERTY, joined, LIGHT_OFFSETS_PROPERTY, room)


def packed(compression: Compression | None, body: bytes) -> tuple[bytes, int]:
    """Return a body as it is to be sent, and its system flag; see `Compression.pack`.

    Raises:
        UsageError: It is not bytes.
    """
    if compression is None:
        return body, 0
    check_body(body)
    return compression.pack(body)


def check_body(body: object) -> None:
    """Raise UsageError unless it is bytes."""
    if not isinstance(body, (bytes, bytearray, memoryview)):
        error = UsageError.other_type("the body of a message", "bytes", body)
        error.hint = "encode text: body.encode()" if isinstance(body, str) else None
        raise error


def _check_text(name: str, value: object, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    UsageError.check_text(name, value)
    assert isinstance(value, str), "checked"
    try:
        value.encode()
    except UnicodeEncodeError as error:
        bad = f"U+{ord(value[error.start]):04X}"
        name = ascii(name)[1:-1]  # the name may be what cannot be encoded
        hint = "a lone surrogate comes from text that was decoded wrongly"
        text = f"{name} contains {bad}, which UTF-8 cannot represent"
        raise RecordRefused(text, record=0, reason="properties", hint=hint) from None


def _refused(text: str) -> RecordRefused:
    return RecordRefused(text, record=0, reason="properties")
