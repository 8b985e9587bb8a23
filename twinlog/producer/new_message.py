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
from twinlog.kernels.inner import BASE_PROPERTY, NUMBER_PROPERTY

BORN_END: Final = 253_402_300_800_000
"""The year 10000 in ms since 1970: no calendar shows what is born later."""

PROPERTIES_MAX: Final = 32_600
"""Properties of one record, bytes: what a stored record holds, less the longest `TL_SEQ`."""

_RESERVED: Final = frozenset(
    {KEYS, TAGS, SHARDING_KEY, SEQUENCE}
    | {LIGHT_PROPERTY.decode(), LIGHT_OFFSETS_PROPERTY.decode()}
    | {NUMBER_PROPERTY.decode(), BASE_PROPERTY.decode()}
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
    """

    key: str | None = None
    tag: str | None = None
    order_key: str | None = None
    properties: Mapping[str, str] | None = None
    light: Sequence[str] = ()
    queue: int | None = None
    born_ms: int | None = None

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
        key, tag, order_key, properties, light, queue, born_ms = self
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
                raise _other_type(name, "a whole number", value)
        properties = cast("object", self.properties)
        if properties is not None and not isinstance(properties, Mapping):
            raise _other_type("properties", "a mapping of text to text", properties)
        for name, value in (self.properties or {}).items():
            _check_text("the name of a property", name)
            _check_text(f"property {name}", value)
        light = cast("object", self.light)
        if not isinstance(light, Sequence):
            raise _other_type("light", "a sequence of names", light)
        for name in self.light:
            _check_text("the name of a light queue", name)
        raise AssertionError("every argument is of its type")


PLAIN: Final = NewMessage()
"""A message of which nothing is said."""


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
        error = _other_type("the body of a message", "bytes", body)
        error.hint = "encode text: body.encode()" if isinstance(body, str) else None
        raise error


def _check_text(name: str, value: object, *, optional: bool = False) -> None:
    if value is None and optional:
        return
    if not isinstance(value, str):
        raise _other_type(name, "text", value)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        bad = f"U+{ord(value[error.start]):04X}"
        name = ascii(name)[1:-1]  # the name may be what cannot be encoded
        hint = "a lone surrogate comes from text that was decoded wrongly"
        text = f"{name} contains {bad}, which UTF-8 cannot represent"
        raise RecordRefused(text, record=0, reason="properties", hint=hint) from None


def _other_type(name: str, wanted: str, value: object) -> UsageError:
    return UsageError(f"{name} must be {wanted}, not {type(value).__name__}", code="type")


def _refused(text: str) -> RecordRefused:
    return RecordRefused(text, record=0, reason="properties")
