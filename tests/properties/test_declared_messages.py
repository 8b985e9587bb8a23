"""Code written from a declaration takes and refuses what a walk over the declaration would."""

from __future__ import annotations

from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replication.core import messages
from twinlog.errors import ProtocolError
from twinlog.wire import frames, schema
from twinlog.wire.frames import ANSWER, ERROR, Frame, FrameError, Type

SHAPES = [(0, kind, call.request) for kind, call in schema.CALLS.items()]
SHAPES += [(ANSWER, kind, call.answer) for kind, call in schema.CALLS.items()]
SHAPES += [(ANSWER | ERROR, Type.GET, schema.ERRORS)]

EDGES = [0, 1, 255, 256, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, 1 << 64]
whole = st.sampled_from([*EDGES, *(-edge for edge in EDGES), -(1 << 63) - 1]) | st.integers(-3, 9)
simple = (
    st.none() | st.booleans() | whole | st.text(max_size=3) | st.binary(max_size=3) | st.just(1.5)
)
anything = (
    simple | st.lists(simple, max_size=3) | st.lists(st.lists(simple, max_size=11)) | st.just({})
)
GOOD: dict[schema.Kind, st.SearchStrategy[object]] = {
    schema.Kind.INT: st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 9),
    schema.Kind.STR: st.text(max_size=3),
    schema.Kind.BOOL: st.booleans(),
    schema.Kind.BYTES: st.binary(max_size=3),
    schema.Kind.MAP: st.just({}),
}


@st.composite
def values(draw: st.DrawFn, wanted: schema.Field) -> object:
    """A value as declared, most of the time; a row of it may hold one odd column."""
    if wanted.items is not None:
        return draw(st.lists(GOOD[wanted.items], max_size=3))
    if not wanted.row:
        return draw(GOOD.get(wanted.kind, st.lists(simple, max_size=2)))
    rows: list[list[object]] = []
    for _ in range(draw(st.integers(0, 3))):
        row = [draw(GOOD[kind]) for kind in wanted.row] + draw(st.lists(simple, max_size=2))
        if draw(st.integers(0, 5)) == 0:
            row[draw(st.integers(0, len(row) - 1))] = draw(simple)
        rows.append(row[: draw(st.sampled_from([99, 99, 99, 99, len(row) - 1]))])
    return rows


@pytest.mark.parametrize("case", SHAPES, ids=lambda case: f"{case[1].name}-{case[0]}")
@settings(max_examples=25)
@given(data=st.data())
def test_a_client_frame_is_refused_for_the_mistake_the_declaration_has(
    case: tuple[int, Type, schema.Shape], data: st.DataObject
) -> None:
    """`schema.check` is generated, `schema.mistake` walks; both must know the same mistakes."""
    flags, kind, shape = case
    fields = {name: data.draw(values(wanted), name) for name, wanted in shape.items()}
    for name in data.draw(st.lists(st.sampled_from(sorted(shape) or ["x"]), max_size=2)):
        if data.draw(st.booleans()):
            fields[name] = data.draw(anything)
        else:
            fields.pop(name, None)
    found, said = schema.mistake(shape, fields), ""
    try:
        schema.check(Frame(kind, flags, fields=fields))
    except FrameError as error:
        said = error.text
    assert bool(said) == (found is not None)
    assert said.endswith(f": {found}" if found else "")


def described(cls: type[messages.Message]) -> list[tuple[str, messages.Kind]]:
    """The fields of a message between nodes, as declared."""
    hints = get_type_hints(cls, include_extras=True)
    return [
        (name, kind) for name, hint in hints.items() for kind in getattr(hint, "__metadata__", ())
    ]


def walked(cls: type[messages.Message], frame: Frame) -> messages.Message | str:
    """Decode a frame by its declaration; a text names the field that is wrong."""
    found: list[object] = [frame.epoch, frame.request]
    for name, kind in described(cls):
        value: Any = frame.fields.get(name)
        if kind.read is not None:
            try:
                found.append(kind.read(value))
            except ProtocolError:
                return ""
        elif value is None and kind.nil:
            found.append(None)
        elif (
            type(value) is kind.plain
            and 0 <= (value if kind.plain is int else len(value)) <= kind.most
        ):
            found.append(value)
        else:
            return name
    if "payload" in get_type_hints(cls):
        found.append(frame.payload)
    return cls(*found)  # type: ignore[arg-type]


odd = st.sampled_from([*EDGES, -1, "x" * 1025, bytes(1 << 20)]) | anything
EPOCHS = st.sampled_from([[], [[1, 0]], [[1, 0], [4, 90]]])


@st.composite
def field_values(draw: st.DrawFn, kind: messages.Kind) -> object:
    """A value as declared, or one at its border."""
    if kind.read is not None:
        return draw(EPOCHS)
    if kind.plain is int:
        return draw(st.integers(0, kind.most) | st.sampled_from([0, kind.most]))
    length = draw(st.sampled_from([0, 1, min(kind.most, 2000)]))
    return "x" * length if kind.plain is str else bytes(length)


@pytest.mark.parametrize("cls", messages.TYPES)
@settings(max_examples=25)
@given(data=st.data())
def test_a_message_between_nodes_is_read_as_declared(
    cls: type[messages.Message], data: st.DataObject
) -> None:
    """The same message, or a refusal that names the same field; and written, the same fields."""
    fields = {name: data.draw(field_values(kind), name) for name, kind in described(cls)}
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=2)):
        if data.draw(st.integers(0, 3)):
            fields[name] = data.draw(odd)
        else:
            fields.pop(name, None)
    payload = bool(fields.get("entries"))
    flags = frames.BATCH_CRC if payload else 0
    frame = Frame(messages.TYPES[cls], flags, 7, 3, 0, fields, b"p" if payload else b"")
    found = walked(cls, frame)
    try:
        read: object = messages.decode(frame)
    except ProtocolError as error:
        read = error.text
    if isinstance(read, str):
        assert isinstance(found, str)
        assert not found or f": {found} is " in read or "epoch" in read
        return
    assert read == found
    for name, _ in described(cls):
        fields.setdefault(name, None)  # an optional field that is absent is written as nil
    assert messages.encode(found, 0) == frame  # type: ignore[arg-type]
