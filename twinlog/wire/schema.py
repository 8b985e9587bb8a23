"""Which fields each client frame carries: one table, checked on both sides.

`check` proves that a frame's fields have the types the reader of the frame relies on, so that
nothing after it needs an ``isinstance``. Unknown fields are ignored (a newer peer may send them),
a missing field or one of another type is named in the error. Whole numbers are signed 64-bit.

Error answers have a shape of their own, the same for all types: code, text, hint, retryable and any
facts.

Not here: frames between nodes (``replication.core.messages``) and what values mean (a topic that
does not exist is not a matter of shape).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, cast

from twinlog.wire.frames import Frame, FrameError
from twinlog.wire.types import Type, type_name


class Kind(Enum):
    """The type of a field's value, named as errors name it."""

    INT = "a whole number"
    STR = "text"
    BOOL = "true or false"
    BYTES = "bytes"
    LIST = "a list"
    MAP = "a map"
    ANY = "anything"


_PYTHON: Final[Mapping[Kind, type]] = {
    Kind.INT: int,
    Kind.STR: str,
    Kind.BOOL: bool,
    Kind.BYTES: bytes,
    Kind.LIST: list,
    Kind.MAP: dict,
}


@dataclass(frozen=True, slots=True)
class Field:
    """What one field must be.

    Attributes:
        kind: Type of the value.
        required: Must be there.
        nil: May be nil.
        items: For a list: the kind of every item.
        row: For a list of rows: the kinds of each row's columns; longer rows are fine.
        plain: The Python type that needs no further look.
        columns: The Python types of ``row``.
        quick: The Python types of ``items`` that need no look at each.
    """

    kind: Kind
    required: bool = True
    nil: bool = False
    items: Kind | None = None
    row: tuple[Kind, ...] = ()
    plain: type | None = None
    columns: tuple[type, ...] = field(init=False)
    quick: frozenset[type] = field(init=False)

    def __post_init__(self) -> None:
        """Look the types up once: enumerations hash slowly."""
        quick = {str} if self.items is Kind.STR else set[type]()
        object.__setattr__(self, "columns", tuple(_PYTHON[kind] for kind in self.row))
        object.__setattr__(self, "quick", frozenset(quick))


Shape = Mapping[str, Field]


class Repeat(Enum):
    """What it means to ask a second time because the first time brought no answer."""

    QUESTION = "question"
    """Nothing: it changes nothing that a caller could see."""
    SEARCH = "search"
    """Likewise, but a node may work on it for a long time: it is waited for."""
    CHANGE = "change"
    """It may be carried out twice, so without an answer the outcome is unknown."""


@dataclass(frozen=True, slots=True)
class Call:
    """One request of a client and its good answer."""

    repeat: Repeat
    request: Shape
    answer: Shape


_INT_MAX: Final = (1 << 63) - 1
"""msgpack carries unsigned 64-bit numbers as well; the least it carries is ours."""

AGE_UNKNOWN_MS: Final = 1 << 40
"""Sent as the age of data that is unknown, and as a limit that accepts any age: 34 years."""

_INT, _BOOL = Field(Kind.INT, plain=int), Field(Kind.BOOL)
_STR = Field(Kind.STR, plain=str)
_MAP, _NAMES = Field(Kind.MAP, plain=dict), Field(Kind.LIST, items=Kind.STR)
_ROWS: Final = Field(Kind.LIST, items=Kind.MAP)
_SECTION: Final = (Kind.STR,) + (Kind.INT,) * 6
_RESULT: Final = (Kind.INT,) * 4 + (Kind.STR, Kind.STR, Kind.INT)
_PLACE: Final = (Kind.STR,) + (Kind.INT,) * 2
_QUEUES: Final = Field(Kind.LIST, row=(Kind.STR,) + (Kind.INT,) * 3)
_LEASES: Final = Field(Kind.LIST, row=(Kind.STR,) + (Kind.INT,) * 9)
_SETTLES: Final = Field(Kind.LIST, row=(Kind.INT,) * 6)
_COMMITS: Final = Field(Kind.LIST, row=(Kind.INT,) * 2)
_SETTLED: Final = Field(Kind.LIST, row=(Kind.STR, Kind.INT))


def _may(kind: Kind, items: Kind | None = None) -> Field:
    return Field(kind, required=False, nil=True, items=items)


CALLS: Final[Mapping[Type, Call]] = {
    Type.HELLO: Call(
        Repeat.QUESTION,
        request={"min": _INT, "max": _INT, "features": _INT, "client": _STR},
        answer={
            "version": _INT,
            "features": _INT,
            "node": _STR,
            "cluster": _STR,
            "group": _STR,
            "family": _INT,
            "segment_size": _INT,
        },
    ),
    Type.METADATA: Call(
        Repeat.QUESTION,
        request={"topics": _may(Kind.LIST, Kind.STR), "after": _may(Kind.STR)},
        answer={
            "cluster": _STR,
            "group": _STR,
            "epoch": _INT,
            "leader": _may(Kind.STR),
            "nodes": _ROWS,
            "topics": _MAP,
            "family": _INT,
            "message_size_max": _INT,
            "epochs": Field(Kind.LIST, required=False, row=(Kind.INT, Kind.INT)),
            "batched": _may(Kind.LIST, Kind.STR),
            "settled": Field(Kind.BOOL, required=False),
            "more": _may(Kind.STR),
        },
    ),
    Type.APPEND: Call(
        Repeat.CHANGE,
        request={
            "ack": _STR,
            "timeout_ms": _INT,
            "sections": Field(Kind.LIST, row=_SECTION),
        },
        answer={
            "results": Field(Kind.LIST, row=_RESULT),
            "confirmed_by": _may(Kind.LIST, Kind.STR),
            "buffered": _may(Kind.BOOL),
            "epoch": _INT,
        },
    ),
    Type.READ: Call(
        Repeat.QUESTION,
        request={
            "topic": _STR,
            "queue": _INT,
            "offset": _INT,
            "max_bytes": _INT,
            "max_records": _INT,
            "wait_ms": _INT,
            "tags": _may(Kind.LIST, Kind.INT),
            "where": _may(Kind.STR),
            "epoch": Field(Kind.INT, required=False),
            "max_age_ms": _may(Kind.INT),
        },
        answer={
            "status": _STR,
            "next": _INT,
            "start": _INT,
            "end": _INT,
            "count": _INT,
            "skipped": Field(Kind.INT, required=False),
            "confirm": _INT,
            "age_ms": _INT,
            "node": _STR,
            "role": _STR,
            "redirect": _may(Kind.MAP),
            "settled": Field(Kind.BOOL, required=False),
        },
    ),
    Type.OFFSETS: Call(
        Repeat.QUESTION,
        request={
            "topic": _STR,
            "queues": _may(Kind.LIST, Kind.INT),
            "at_ms": _may(Kind.INT),
        },
        answer={
            "queues": _MAP,
            "confirm": _INT,
            "age_ms": _INT,
            "settled": Field(Kind.BOOL, required=False),
        },
    ),
    Type.TOPIC: Call(
        Repeat.CHANGE,
        request={
            "op": _STR,
            "name": _may(Kind.STR),
            "after": _may(Kind.STR),
            "queues": _may(Kind.INT),
            "batch": _may(Kind.BOOL),
        },
        answer={
            "topics": _may(Kind.MAP),
            "messages": _may(Kind.MAP),
            "more": _may(Kind.STR),
            "created": _may(Kind.BOOL),
            "queues": _may(Kind.INT),
            "batch": _may(Kind.BOOL),
        },
    ),
    Type.GET: Call(
        Repeat.QUESTION,
        request={"log_offset": _INT, "host": _may(Kind.BYTES)},
        answer={
            "status": _STR,
            "stored_by": _may(Kind.STR),
            "settled": Field(Kind.BOOL, required=False),
        },
    ),
    Type.FIND: Call(
        Repeat.SEARCH,
        request={
            "topic": _STR,
            "key": _STR,
            "max": _may(Kind.INT),
            "begin": _may(Kind.INT),
            "end": _may(Kind.INT),
            "before": _may(Kind.INT),
            "unique": _may(Kind.BOOL),
            "timeout_ms": _may(Kind.INT),
            "max_age_ms": _may(Kind.INT),
        },
        answer={
            "count": _INT,
            "more": _BOOL,
            "complete": _BOOL,
            "confirm": _INT,
            "age_ms": _INT,
            "node": _STR,
            "role": _STR,
            "settled": Field(Kind.BOOL, required=False),
        },
    ),
    Type.LOG: Call(
        Repeat.QUESTION,
        request={"offset": _INT, "max_bytes": _INT},
        answer={
            "status": _STR,
            "next": _INT,
            "entries": Field(Kind.BYTES),
            "start": _INT,
            "confirm": _INT,
            "segment_size": _INT,
            "node": _STR,
            "role": _STR,
        },
    ),
    Type.STATUS: Call(
        Repeat.QUESTION,
        request={},
        answer={},
    ),
    Type.ADMIN: Call(
        Repeat.CHANGE,
        request={"op": _STR},
        answer={},
    ),
    Type.PRODUCER: Call(
        Repeat.QUESTION,
        request={},
        answer={"producer": _INT, "epoch": _INT},
    ),
    Type.GROUP: Call(
        Repeat.CHANGE,
        request={
            "op": _STR,
            "name": _may(Kind.STR),
            "after": _may(Kind.STR),
            "settings": _may(Kind.MAP),
            "positions": Field(Kind.LIST, required=False, row=_PLACE),
            "why": _may(Kind.STR),
        },
        answer={
            "groups": _may(Kind.LIST, Kind.MAP),
            "group": _may(Kind.MAP),
            "more": _may(Kind.STR),
            "changed": _may(Kind.BOOL),
            "positions": Field(Kind.LIST, required=False, row=(Kind.STR,) + (Kind.INT,) * 3),
            "age_ms": _INT,
            "node": _STR,
            "role": _STR,
        },
    ),
    Type.JOIN: Call(
        Repeat.CHANGE,
        request={
            "group": _STR,
            "name": _STR,
            "member": _INT,
            "topics": _NAMES,
            "mode": _STR,
            "session_ms": _INT,
            "start": _may(Kind.STR),
            "filters": _may(Kind.MAP),
        },
        answer={
            "member": _INT,
            "generation": _INT,
            "session_ms": _INT,
            "invisible_ms": _INT,
            "rows": _QUEUES,
        },
    ),
    Type.BEAT: Call(
        Repeat.CHANGE,
        request={
            "group": _STR,
            "member": _INT,
            "generation": _INT,
            "finished": Field(Kind.LIST, items=Kind.INT),
            "wait_ms": _INT,
            "leave": _may(Kind.BOOL),
        },
        answer={
            "generation": _INT,
            "rows": _QUEUES,
            "revoked": Field(Kind.LIST, items=Kind.INT),
        },
    ),
    Type.POP: Call(
        Repeat.CHANGE,
        request={
            "group": _STR,
            "member": _INT,
            "pop": _INT,
            "topics": _NAMES,
            "max_records": _INT,
            "max_bytes": _INT,
            "invisible_ms": _INT,
            "wait_ms": _INT,
            "lease": _may(Kind.STR),
            "places": _may(Kind.BOOL),
        },
        answer={"rows": _LEASES, "now_ms": _INT, "waited_ms": _INT, "epoch": _INT},
    ),
    Type.SETTLE: Call(
        Repeat.CHANGE,
        request={"group": _STR, "member": _INT, "rows": _SETTLES},
        answer={"rows": _SETTLED, "now_ms": _INT},
    ),
    Type.COMMIT: Call(
        Repeat.CHANGE,
        request={"group": _STR, "member": _INT, "generation": _INT, "rows": _COMMITS},
        answer={"rows": _SETTLED},
    ),
    Type.TOGETHER: Call(
        Repeat.CHANGE,
        request={
            "ack": _STR,
            "timeout_ms": _INT,
            "sections": Field(Kind.LIST, row=_SECTION),
            "group": _STR,
            "member": _INT,
            "generation": _INT,
            "settles": _SETTLES,
            "commits": _COMMITS,
        },
        answer={
            "stored": _BOOL,
            "results": Field(Kind.LIST, row=_RESULT),
            "settles": _SETTLED,
            "commits": _SETTLED,
            "confirmed_by": _may(Kind.LIST, Kind.STR),
            "now_ms": _INT,
            "epoch": _INT,
        },
    ),
}
"""Every request of a client: its fields, those of a good answer, whether it may be repeated."""

ERRORS: Final[Shape] = {
    "code": _STR,
    "text": _STR,
    "hint": _may(Kind.STR),
    "retryable": _BOOL,
}
"""Fields of an error answer, of whatever type; facts come besides."""


def check(frame: Frame) -> None:
    """Prove the fields of a client frame against the table; other types pass.

    Raises:
        FrameError: ``fields``, with the field's name and what it must be.

    >>> check(Frame(Type.GET, fields={"log_offset": "12"}))
    Traceback (most recent call last):
    twinlog.wire.frames.FrameError: GET request: log_offset must be a whole number, not 'str'
    """
    if frame.is_error:
        shape, side = ERRORS, "error"
    else:
        call = CALLS.get(cast("Type", frame.type))  # equal numbers are equal keys
        if call is None:
            return
        shape, side = (call.answer, "answer") if frame.is_answer else (call.request, "request")
    fields = frame.fields
    for name, wanted in shape.items():
        value = fields.get(name)
        if wanted.plain is type(value) and (type(value) is not int or value >> 63 in (0, -1)):
            continue
        if value is None and not wanted.required and name not in fields:
            continue
        if wanted.kind is Kind.LIST and _is_quick(wanted, value):
            continue
        text = _mistake(wanted, value, name in fields)
        if text is not None:
            raise FrameError("fields", f"{type_name(frame.type)} {side}: {name} {text}")


def _is_quick(wanted: Field, value: object) -> bool:
    """Say whether it is a list of texts, or of one row, without a fault; False: look closely."""
    if type(value) is not list:
        return False
    values: list[object] = value  # pyright: ignore[reportUnknownVariableType]
    if not wanted.row:
        return wanted.items is not None and frozenset(map(type, values)) == wanted.quick
    row = values[0] if len(values) == 1 else None
    if type(row) is not list:
        return False
    columns: list[object] = row  # pyright: ignore[reportUnknownVariableType]
    if tuple(map(type, columns)) != wanted.columns:
        return False
    return max([one for one in columns if type(one) is int], default=0) <= _INT_MAX


def _mistake(wanted: Field, value: object, there: bool) -> str | None:
    if not there:
        return "is missing" if wanted.required else None
    if value is None and wanted.nil:
        return None
    if not _is(value, wanted.kind):
        return f"must be {wanted.kind.value}, not {type(value).__name__!r}"
    if not isinstance(value, list):
        return None
    values: list[object] = value  # pyright: ignore[reportUnknownVariableType]
    if wanted.items is not None and frozenset(map(type, values)) != wanted.quick:
        for at, item in enumerate(values):
            if not _is(item, wanted.items):
                return f"[{at}] must be {wanted.items.value}, not {type(item).__name__!r}"
    if wanted.row:
        for at, item in enumerate(values):
            text = _row_mistake(wanted, item)
            if text is not None:
                return f"[{at}]{text}"
    return None


def _row_mistake(wanted: Field, row: object) -> str | None:
    if not isinstance(row, list):
        return f" must be a list, not {type(row).__name__!r}"
    columns: list[object] = row  # pyright: ignore[reportUnknownVariableType]
    if tuple(map(type, columns)) == wanted.columns:
        for column in columns:
            if type(column) is int and column > _INT_MAX:
                break
        else:
            return None
    kinds = wanted.row
    if len(columns) < len(kinds):
        return f" has {len(columns)} columns; it must have {len(kinds)}"
    for at, kind in enumerate(kinds):
        if not _is(columns[at], kind):
            return f"[{at}] must be {kind.value}, not {type(columns[at]).__name__!r}"
    return None


def _is(value: object, kind: Kind) -> bool:
    """Say whether ``value`` is of ``kind``; a bool is not a number, a number not a bool."""
    if kind is Kind.INT:
        return type(value) is int and -(1 << 63) <= value < 1 << 63
    return kind is Kind.ANY or type(value) is _PYTHON[kind]
