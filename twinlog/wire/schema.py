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
from dataclasses import dataclass
from enum import Enum
from typing import Final, cast

from twinlog.wire import rights
from twinlog.wire.frames import ANSWER, ERROR, Frame, FrameError
from twinlog.wire.judges import Judge, judge_of
from twinlog.wire.shapes import Field as Field
from twinlog.wire.shapes import Kind as Kind
from twinlog.wire.shapes import Shape as Shape
from twinlog.wire.shapes import mistake as mistake
from twinlog.wire.types import Type, type_name


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
    """One request of a client and its good answer, and who may ask it."""

    repeat: Repeat
    needs: rights.Needs
    request: Shape
    answer: Shape


QUEUES_DEFAULT: Final = 8
"""Queues of a topic that is created without a number: by a node, a client and the command."""
AGE_UNKNOWN_MS: Final = 1 << 40
"""Sent as the age of data that is unknown, and as a limit that accepts any age: 34 years."""

_INT, _BOOL, _STR, _MAP = (Field(kind) for kind in (Kind.INT, Kind.BOOL, Kind.STR, Kind.MAP))
_NAMES: Final = Field(Kind.LIST, items=Kind.STR)
_ROWS: Final = Field(Kind.LIST, items=Kind.MAP)
_SECTION: Final = (Kind.STR,) + (Kind.INT,) * 6
_RESULT: Final = (Kind.INT,) * 4 + (Kind.STR, Kind.STR, Kind.INT)
_PLACE: Final = (Kind.STR,) + (Kind.INT,) * 2
_QUEUES: Final = Field(Kind.LIST, row=(Kind.STR,) + (Kind.INT,) * 3)
_LEASES: Final = Field(Kind.LIST, row=(Kind.STR,) + (Kind.INT,) * 9)
_SETTLES: Final = Field(Kind.LIST, row=(Kind.INT,) * 6)
_COMMITS: Final = Field(Kind.LIST, row=(Kind.INT,) * 2)
_HALF: Final = (Kind.INT,) * 4 + (Kind.STR, Kind.STR) + (Kind.INT,) * 2
_SETTLED: Final = Field(Kind.LIST, row=(Kind.STR, Kind.INT))


def _may(kind: Kind, items: Kind | None = None) -> Field:
    return Field(kind, required=False, nil=True, items=items)


CALLS: Final[Mapping[Type, Call]] = {
    Type.HELLO: Call(
        Repeat.QUESTION,
        rights.anybody,
        request={
            "min": _INT,
            "max": _INT,
            "features": _INT,
            "client": _STR,
            "cluster": _may(Kind.STR),
        },
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
        rights.a_viewer,
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
            "writable": _may(Kind.MAP),
            "settled": Field(Kind.BOOL, required=False),
            "more": _may(Kind.STR),
        },
    ),
    Type.APPEND: Call(
        Repeat.CHANGE,
        rights.writer,
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
        rights.reader,
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
            "queues": Field(Kind.INT, required=False),
            "settled": Field(Kind.BOOL, required=False),
        },
    ),
    Type.OFFSETS: Call(
        Repeat.QUESTION,
        rights.reader,
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
        rights.of_topic,
        request={
            "op": _STR,
            "name": _may(Kind.STR),
            "after": _may(Kind.STR),
            "queues": _may(Kind.INT),
            "batch": _may(Kind.BOOL),
            "plan": _may(Kind.BOOL),
            "consumed": _may(Kind.BOOL),
            "write_queues": _may(Kind.INT),
            "permission": _may(Kind.INT),
            "records_per_second": _may(Kind.INT),
            "bytes_per_second": _may(Kind.INT),
        },
        answer={
            "topics": _may(Kind.MAP),
            "terms": _may(Kind.MAP),
            "before": _may(Kind.MAP),
            "altered": _may(Kind.BOOL),
            "messages": _may(Kind.MAP),
            "more": _may(Kind.STR),
            "created": _may(Kind.BOOL),
            "deleted": _may(Kind.BOOL),
            "groups": _may(Kind.LIST),
            "queues": _may(Kind.INT),
            "batch": _may(Kind.BOOL),
        },
    ),
    Type.GET: Call(
        Repeat.QUESTION,
        rights.a_user,
        request={"log_offset": _INT, "host": _may(Kind.BYTES)},
        answer={
            "status": _STR,
            "stored_by": _may(Kind.STR),
            "settled": Field(Kind.BOOL, required=False),
        },
    ),
    Type.FIND: Call(
        Repeat.SEARCH,
        rights.reader,
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
        rights.operator,
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
        rights.a_user,
        request={},
        answer={},
    ),
    Type.ADMIN: Call(
        Repeat.CHANGE,
        rights.operator,
        request={"op": _STR},
        answer={},
    ),
    Type.PRODUCER: Call(
        Repeat.QUESTION,
        rights.a_user,
        request={},
        answer={"producer": _INT, "epoch": _INT},
    ),
    Type.GROUP: Call(
        Repeat.CHANGE,
        rights.of_group,
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
        rights.member,
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
        rights.member,
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
        rights.member,
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
        rights.member,
        request={"group": _STR, "member": _INT, "rows": _SETTLES},
        answer={"rows": _SETTLED, "now_ms": _INT},
    ),
    Type.COMMIT: Call(
        Repeat.CHANGE,
        rights.member,
        request={"group": _STR, "member": _INT, "generation": _INT, "rows": _COMMITS},
        answer={"rows": _SETTLED},
    ),
    Type.TOGETHER: Call(
        Repeat.CHANGE,
        rights.handler,
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
    Type.CANCEL: Call(
        Repeat.CHANGE,
        rights.a_user,
        request={"log_offset": _INT, "due_ms": _INT},
        answer={"epoch": _INT},
    ),
    Type.LOGIN: Call(
        Repeat.QUESTION,
        rights.anybody,
        request={"user": _STR, "nonce": _STR, "proof": _may(Kind.BYTES)},
        answer={
            "nonce": _may(Kind.STR),
            "salt": _may(Kind.BYTES),
            "iterations": _may(Kind.INT),
            "signature": _may(Kind.BYTES),
        },
    ),
    Type.ACCESS: Call(
        Repeat.CHANGE,
        rights.of_access,
        request={
            "op": _STR,
            "users": _may(Kind.LIST),
            "rules": _may(Kind.LIST),
            "gone": _may(Kind.LIST),
            "ended": _may(Kind.LIST),
            "who": _may(Kind.STR),
            "what": _may(Kind.STR),
        },
        answer={
            "users": _may(Kind.LIST, Kind.MAP),
            "rules": _may(Kind.LIST, Kind.MAP),
            "judged": _may(Kind.LIST, Kind.MAP),
            "user": _may(Kind.STR),
            "changed": _may(Kind.BOOL),
        },
    ),
    Type.END: Call(
        Repeat.CHANGE,
        rights.member,
        request={
            "group": _STR,
            "halves": Field(Kind.LIST, items=Kind.INT),
            "outcome": _INT,
            "why": _may(Kind.STR),
        },
        answer={"outcome": _INT, "epoch": _INT},
    ),
    Type.CHECKS: Call(
        Repeat.CHANGE,
        rights.member,
        request={"group": _STR, "max": _INT, "wait_ms": _INT},
        answer={"rows": Field(Kind.LIST, row=(Kind.INT,) * 2), "epoch": _INT},
    ),
    Type.WAITING: Call(
        Repeat.QUESTION,
        rights.operator,
        request={
            "what": _STR,
            "first": _INT,
            "limit": _INT,
            "offset": _may(Kind.INT),
            "topic": _may(Kind.STR),
            "by": _may(Kind.STR),
        },
        answer={
            "rows": Field(Kind.LIST, row=_HALF),
            "next": _INT,
            "now_ms": _INT,
            "epoch": _INT,
            "node": _may(Kind.STR),
            "role": _may(Kind.STR),
            "age_ms": _may(Kind.INT),
            "waiting": _may(Kind.INT),
            "messages": _may(Kind.LIST, Kind.MAP),
            "next_offset": _may(Kind.INT),
            "counts": Field(Kind.LIST, required=False, row=(Kind.INT,) * 2),
            "by": _may(Kind.STR),
            "levels": _may(Kind.LIST, Kind.MAP),
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
    flags, shape, side = frame.flags, ERRORS, "error"
    if flags & ERROR:
        right = _ERRORS(frame.fields)
    else:
        judge = (_ANSWERS if flags & ANSWER else _REQUESTS).get(frame.type)
        right = judge is None or judge(frame.fields)
    if right:
        return
    if not flags & ERROR:
        call = CALLS[cast("Type", frame.type)]  # equal numbers are equal keys
        shape, side = (call.answer, "answer") if flags & ANSWER else (call.request, "request")
    text = f"{type_name(frame.type)} {side}: {mistake(shape, frame.fields)}"
    raise FrameError("fields", text)


_REQUESTS: Final[Mapping[int, Judge]] = {
    kind: judge_of(call.request) for kind, call in CALLS.items()
}
_ANSWERS: Final[Mapping[int, Judge]] = {kind: judge_of(call.answer) for kind, call in CALLS.items()}
_ERRORS: Final = judge_of(ERRORS)
