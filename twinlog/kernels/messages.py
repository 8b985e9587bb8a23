"""Messages cut out of an answer, plain: an object for each record, with bytes of its own.

The one kernel that makes Python objects: a reader of messages needs one for each record, and making
it is most of what reading costs. The compiled twin is in ``messages.pxi``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from twinlog.kernels import codes
from twinlog.kernels.fields import BLANK, MAGIC_BLANK, Buffer, accept, parts_of


class Numbered(Protocol):
    """What has a place in a queue."""

    queue_offset: int


T = TypeVar("T", bound=Numbered)

_FRONT = struct.Struct(">i16xq8xi").unpack_from
_AT_ONCE = 0x80 | 0x1
"""System flags of inner batches and of compressed bodies."""


def cut_messages(
    data: Buffer, kind: type[T], other: Callable[[bytes], Sequence[T]], low: int, high: int
) -> list[T] | tuple[int, int]:
    """Return a message for each record in ``data``; those outside ``low..high`` are left out.

    All records are proven before the first is cut. Neither the constructor nor ``__setattr__`` of
    ``kind`` is called. Each message has ``queue_offset``, the stored ``body`` and ``_rest``, the
    record without its body; nothing refers to ``data``.

    Args:
        data: Records, one after the other.
        kind: A class of Python, without slots.
        other: Returns the messages of a record whose body is compressed or holds several.
        low: The first queue offset that is wanted.
        high: The first queue offset, from there on, that is not; what follows is not looked at.

    Returns:
        The messages; or where the first record that is not whole begins, and its code.
    """
    at, end = 0, len(data)
    places: list[tuple[int, int, int]] = []
    while at < end:
        if end - at >= 8 and BLANK.unpack_from(data, at)[1] == MAGIC_BLANK:
            return at, codes.BLANK
        code, size, _ = accept(data, at, end, True)
        if code:
            return at, code
        places.append((at, *_body(data, at, end)))
        at += size
    found: list[T] = []
    for at, body, after in places:
        size, number, flags = _FRONT(data, at)
        if flags & _AT_ONCE:
            for message in other(bytes(data[at : at + size])):
                if message.queue_offset >= high:
                    return found
                if message.queue_offset >= low:
                    found.append(message)
        elif number >= high:
            return found
        elif number >= low:
            message = object.__new__(kind)
            rest = bytes(data[at:body]) + bytes(data[after : at + size])
            own = {"queue_offset": number, "body": bytes(data[body:after]), "_rest": rest}
            message.__dict__.update(own)
            found.append(message)
    return found


def _body(data: Buffer, at: int, end: int) -> tuple[int, int]:
    parts = parts_of(data, at, end)
    assert not isinstance(parts, int), "accepted before"
    return parts[2], parts[4]
