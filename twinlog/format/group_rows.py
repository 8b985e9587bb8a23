"""Rows of ``rmq_sys_TWINLOG_GROUP``: what groups have consumed, as the log tells it.

The body of a record of that topic is msgpack ``[1, row, row, ...]``; a row is a list that begins
with a letter. State of groups is a fold of these rows and of nothing else
(`storage.messaging.fold`). Ranges are inclusive, times are ms since 1970, ``n`` counts the leases
of a share. A row of a later version may be longer: more items are ignored. A letter that this
version does not know changes nothing, nor does a row of another shape.

Not here: what rows do to a share (`storage.messaging.share`), who writes them (``node.groups``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple, cast, get_type_hints

import msgpack

from twinlog.kernels.plain import Buffer

ROWS_VERSION = 1
"""First item of a body; bodies of another version hold rows that this version does not know."""

_packb = cast("Callable[[object], bytes]", msgpack.packb)  # pyright: ignore
_unpackb = cast("Callable[..., object]", msgpack.unpackb)  # pyright: ignore


class ShareRow(NamedTuple):
    """``S``: a group begins with a queue.

    Attributes:
        share: Number of the share, by which later rows name it; rises over the log.
        group: The group; ``group~name`` is the position of one member of a broadcast group.
        topic: Topic name.
        incarnation: Which topic of that name; 0 is the only one of this version.
        queue: Queue number.
        start: Queue offset of the first message that the group is to see.
    """

    share: int
    group: str
    topic: str
    incarnation: int
    queue: int
    start: int


class LeaseRow(NamedTuple):
    """``L``: messages are handed out for a time.

    Attributes:
        share: Which share.
        n: Number of the lease: one more than the share's last.
        first: Queue offset of the first message; what lies between is settled: a filter left it
            out, or the log has it no more.
        messages: How many; 0 hands out nothing and settles what lies before ``first``.
        member: Who gets them.
        pop: The member's number of the request: repeated, it gets the same lease.
        until: When the lease ends.
        attempt: How often these messages were handed out, this time included.
    """

    share: int
    n: int
    first: int
    messages: int
    member: int
    pop: int
    until: int
    attempt: int


class AckRow(NamedTuple):
    """``A``: messages are settled, those whose latest lease is still ``n``."""

    share: int
    n: int
    first: int
    last: int


class ReleaseRow(NamedTuple):
    """``R``: messages are given back.

    Attributes:
        share: Which share.
        n: Which lease.
        first: Queue offset of the first message.
        last: Queue offset of the last one.
        at: When they may be handed out again.
        unused: 1 when they were not handled at all: the attempt does not count.
    """

    share: int
    n: int
    first: int
    last: int
    at: int
    unused: int


class ExtendRow(NamedTuple):
    """``X``: a lease ends at ``until`` instead."""

    share: int
    n: int
    first: int
    last: int
    until: int


class PositionRow(NamedTuple):
    """``C``: a member has read a queue up to ``next``; generation 0: the member owns it alone."""

    share: int
    member: int
    generation: int
    next: int


class ResetRow(NamedTuple):
    """``Z``: a group goes on at ``next``, back or ahead; its leases of the queue end."""

    share: int
    next: int
    why: str


class ForgottenRow(NamedTuple):
    """``F``: nothing is known of a share any more."""

    share: int


class MemberRow(NamedTuple):
    """``M``: a member joined (1) or left (0).

    Attributes:
        group: Its group.
        member: Number of the member, as the master chose it.
        name: What it calls itself.
        joined: 1 joined, 0 left.
    """

    group: str
    member: int
    name: str
    joined: int


class UnknownRow(NamedTuple):
    """A row that changes nothing: of a later version, or of another shape."""

    items: object


Row = (
    ShareRow
    | LeaseRow
    | AckRow
    | ReleaseRow
    | ExtendRow
    | PositionRow
    | ResetRow
    | ForgottenRow
    | MemberRow
)
"""What this version writes."""

LETTERS: dict[type[Row], str] = {
    ShareRow: "S",
    LeaseRow: "L",
    AckRow: "A",
    ReleaseRow: "R",
    ExtendRow: "X",
    PositionRow: "C",
    ResetRow: "Z",
    ForgottenRow: "F",
    MemberRow: "M",
}
"""How the log names each kind of row."""

_KINDS: dict[object, tuple[Callable[[list[object]], Row], int, list[type]]] = {
    letter: (
        partial(tuple.__new__, kind),  # pyright: ignore
        len(kind._fields) + 1,
        [str, *get_type_hints(kind).values()],
    )
    for kind, letter in LETTERS.items()
}
"""By letter: what makes the row, items with the letter, their types."""


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Return the body of the record that holds ``rows``.

    >>> decode_rows(encode_rows([AckRow(1, 7, 100, 131), ForgottenRow(2)]))
    [AckRow(share=1, n=7, first=100, last=131), ForgottenRow(share=2)]
    """
    return _packb([ROWS_VERSION, *[(LETTERS[type(row)], *row) for row in rows]])


def decode_rows(body: Buffer) -> list[Row | UnknownRow]:
    """Return the rows of a body; total: what cannot be read is an `UnknownRow`.

    >>> decode_rows(msgpack.packb([1, ["F", 2, "of a later version"], ["Q", 1], ["F"]]))
    [ForgottenRow(share=2), UnknownRow(items=['Q', 1]), UnknownRow(items=['F'])]
    >>> decode_rows(b"no msgpack")[0]
    UnknownRow(items=110)
    """
    try:
        found = _unpackb(body, strict_map_key=False)
    except msgpack.ExtraData as error:
        return [UnknownRow(error.unpacked)]
    except Exception:  # msgpack raises several unrelated types
        return [UnknownRow(None)]
    items = _items(found)
    if items[:1] != [ROWS_VERSION]:
        return [UnknownRow(found)]
    return list(map(_row, items[1:]))


def _items(found: object) -> list[object]:
    return cast("list[object]", found) if isinstance(found, list) else []


def _row(row: object) -> Row | UnknownRow:
    if type(row) is not list or not row:
        return UnknownRow(row)
    items = cast("list[object]", row)
    letter = items[0]
    kind = _KINDS.get(letter) if type(letter) is str else None
    if kind is None:
        return UnknownRow(row)
    make, size, types = kind
    if len(items) > size:
        items = items[:size]
    if list(map(type, items)) != types:
        return UnknownRow(row)
    return make(items[1:])
