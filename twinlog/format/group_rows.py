"""Rows of ``rmq_sys_TWINLOG_GROUP``: what groups have consumed and what was delivered of that
which waits, as the log tells it.

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
from typing import Any, NamedTuple, cast, get_type_hints

import msgpack

from twinlog.kernels.plain import Buffer

ROWS_VERSION = 1
"""First item of a body; bodies of another version hold rows that this version does not know."""

_type: Callable[[object], object] = type  # type checkers draw no conclusion from it
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


class GivenUpRow(NamedTuple):
    """``A`` with one item more: messages are settled without being handled.

    Attributes:
        share: Which share.
        n: Which lease.
        first: Queue offset of the first message.
        last: Queue offset of the last one.
        how: `DEAD_LETTER`, `DROPPED` or `LEFT_OUT`.
    """

    share: int
    n: int
    first: int
    last: int
    how: int


DEAD_LETTER, DROPPED, LEFT_OUT = 1, 2, 3
"""Copied to ``%DLQ%`` in the batch of the row; given up without a copy; not for this group by now:
a filter leaves them out, or retention has deleted them."""


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


class DelayRow(NamedTuple):
    """``D``: what waited for a delay level is delivered; the copies are in the batch of the row.

    Attributes:
        level: Which level, from 1.
        next: Offset, in the level's queue, of the first record that still waits.
    """

    level: int
    next: int


class TimerRow(NamedTuple):
    """``T``: messages that waited for a time were delivered, in the batch of the row.

    Attributes:
        due: They were due up to then.
        offset: Among those of that very time: log offset of the last one's record.
        seen: Log offset up to which the master knew what waits; what lies after it waits on.
    """

    due: int
    offset: int
    seen: int


class WaitsRow(NamedTuple):
    """``V``: a message waits for a time that the log had before twinlog did.

    Attributes:
        due: What it waits for.
        offset: Log offset of its record.
        size: Bytes of it.
    """

    due: int
    offset: int
    size: int


class CancelRow(NamedTuple):
    """``U``: a message that waits for a time will not come.

    Attributes:
        due: What it waits for.
        offset: Log offset of its record.
    """

    due: int
    offset: int


class HalfRow(NamedTuple):
    """``H``: a message of a transaction is settled; what follows from it is in the row's batch.

    Attributes:
        half: Its queue offset among those that wait for it.
        outcome: `COMMIT`, `ROLLBACK` or `GIVEN_UP`.
    """

    half: int
    outcome: int


COMMIT, ROLLBACK, GIVEN_UP = 1, 2, 3
"""Copied to its topic; never delivered; copied to where operators find it, after a long time."""


class OpenRow(NamedTuple):
    """``O``: a message waits for the end of its transaction that the log had before twinlog did.

    Attributes:
        half: Its queue offset among those that wait for it.
        offset: Log offset of its record.
        size: Bytes of it.
        stored: When the message was stored first.
        group: Which producers may settle it.
        name: Its transaction.
    """

    half: int
    offset: int
    size: int
    stored: int
    group: str
    name: str


class CheckRow(NamedTuple):
    """``K``: producers were asked what became of a message's transaction.

    Attributes:
        half: Its queue offset among those that wait for it.
        checks: How often by now.
        next: When they are asked again.
    """

    half: int
    checks: int
    next: int


class UnknownRow(NamedTuple):
    """A row that changes nothing: of a later version, or of another shape."""

    items: object


Row = (
    ShareRow
    | LeaseRow
    | AckRow
    | GivenUpRow
    | ReleaseRow
    | ExtendRow
    | PositionRow
    | ResetRow
    | ForgottenRow
    | MemberRow
    | DelayRow
    | TimerRow
    | CancelRow
    | WaitsRow
    | HalfRow
    | CheckRow
    | OpenRow
)
"""What this version writes."""

LETTERS: dict[type[Row], str] = {
    ShareRow: "S",
    LeaseRow: "L",
    AckRow: "A",
    GivenUpRow: "A",
    ReleaseRow: "R",
    ExtendRow: "X",
    PositionRow: "C",
    ResetRow: "Z",
    ForgottenRow: "F",
    MemberRow: "M",
    DelayRow: "D",
    TimerRow: "T",
    CancelRow: "U",
    WaitsRow: "V",
    HalfRow: "H",
    CheckRow: "K",
    OpenRow: "O",
}
"""How the log names each kind of row."""

_Kind = tuple[Callable[[tuple[Any, ...]], Row], int, list[type]]
"""What makes a row, items with the letter, their types."""


def _kind(kind: type[Row]) -> _Kind:
    made = cast("Callable[[tuple[Any, ...]], Row]", partial(tuple.__new__, kind))  # pyright: ignore
    return made, len(kind._fields) + 1, [str, *get_type_hints(kind).values()]


_KINDS: dict[object, _Kind] = {
    letter: _kind(kind) for kind, letter in LETTERS.items() if kind is not GivenUpRow
}
_LONGER: dict[object, _Kind] = {"A": _kind(GivenUpRow)}
"""Rows that differ from the others of their letter by one item more."""

_ack, _ACK_SIZE, _ = _KINDS["A"]
_lease, _LEASE_SIZE, _LEASE_TYPES = _KINDS["L"]
_position, _POSITION_SIZE, _ = _KINDS["C"]


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Return the body of the record that holds ``rows``.

    >>> decode_rows(encode_rows([AckRow(1, 7, 100, 131), ForgottenRow(2)]))
    [AckRow(share=1, n=7, first=100, last=131), ForgottenRow(share=2)]
    """
    return _packb([ROWS_VERSION, *[(LETTERS[type(row)], *row) for row in rows]])


def decode_rows(body: Buffer) -> list[Row | UnknownRow]:
    """Return the rows of a body; total: what cannot be read is an `UnknownRow`.

    >>> decode_rows(msgpack.packb([1, ["F", 2, "of a later version"], ["Q", 1], ["F"]]))
    [ForgottenRow(share=2), UnknownRow(items=('Q', 1)), UnknownRow(items=('F',))]
    >>> decode_rows(b"no msgpack")[0]
    UnknownRow(items=110)
    """
    found: list[Row | UnknownRow] = []

    def settled(*row: int) -> None:
        found.append(_ack(row))

    def leased(*row: int) -> None:
        found.append(_lease(row))

    def moved(*row: int) -> None:
        found.append(_position(row))

    tell_rows(body, settled=settled, leased=leased, moved=moved, other=found.append)
    return found


def tell_rows(
    body: Buffer,
    *,
    settled: Callable[[int, int, int, int], object],
    leased: Callable[[int, int, int, int, int, int, int, int], object],
    moved: Callable[[int, int, int, int], object],
    other: Callable[[Row | UnknownRow], object],
) -> None:
    """Call one of four for each row of a body, in order; total as `decode_rows`.

    A start reads hundreds of thousands of rows, nearly all of them of three kinds: those are given
    as numbers, and no row is made of them.

    Args:
        body: Of the record.
        settled: Given what an `AckRow` has.
        leased: Given what a `LeaseRow` has.
        moved: Given what a `PositionRow` has.
        other: Given any other row.
    """
    try:
        found: Any = _unpackb(body, strict_map_key=False, use_list=False)  # lists cost twice
    except msgpack.ExtraData as error:
        other(UnknownRow(error.unpacked))
        return
    except Exception:  # msgpack raises several unrelated types
        other(UnknownRow(None))
        return
    if _type(found) is not tuple or found[:1] != (ROWS_VERSION,):
        other(UnknownRow(found))
        return
    for row in found[1:]:
        letter, size = (row[0], len(row)) if _type(row) is tuple and row else ("", 0)
        if letter == "A" and size == _ACK_SIZE:
            _, share, n, first, last = row
            if type(share) is type(n) is type(first) is type(last) is int:
                settled(share, n, first, last)
                continue
        elif letter == "L" and size == _LEASE_SIZE and [*map(type, row)] == _LEASE_TYPES:
            _, share, n, first, messages, member, pop, until, attempt = row
            leased(share, n, first, messages, member, pop, until, attempt)
            continue
        elif letter == "C" and size == _POSITION_SIZE:
            _, share, member, generation, first = row
            if type(share) is type(member) is type(generation) is type(first) is int:
                moved(share, member, generation, first)
                continue
        other(_row(row))


def _row(row: Any) -> Row | UnknownRow:
    if _type(row) is not tuple or not row:
        return UnknownRow(row)
    letter = row[0]
    kind = _KINDS.get(letter) if type(letter) is str else None
    if kind is None:
        return UnknownRow(row)
    make, size, types = kind
    if len(row) > size:
        make, size, types = _LONGER.get(letter, kind)
        row = row[:size]
    if [*map(type, row)] != types:
        return UnknownRow(row)
    return make(row[1:])
