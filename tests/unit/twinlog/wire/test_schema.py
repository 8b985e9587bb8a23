"""Every field a reader relies on is checked, and named when it is wrong."""

from __future__ import annotations

import pytest

from twinlog.wire import schema
from twinlog.wire.frames import ANSWER, CLIENT_TYPES, ERROR, Frame, FrameError, Type
from twinlog.wire.schema import Kind

GOOD: dict[Kind, object] = {
    Kind.INT: 3,
    Kind.STR: "x",
    Kind.BOOL: True,
    Kind.BYTES: b"",
    Kind.LIST: [],
    Kind.MAP: {},
}


def example(shape: schema.Shape) -> dict[str, object]:
    fields: dict[str, object] = {}
    for name, wanted in shape.items():
        fields[name] = GOOD[wanted.kind]
        if wanted.items is not None:
            fields[name] = [GOOD[wanted.items]]
        if wanted.row:
            fields[name] = [[GOOD[kind] for kind in wanted.row]]
    return fields


def mistake(frame: Frame) -> str:
    with pytest.raises(FrameError) as caught:
        schema.check(frame)
    assert caught.value.kind == "fields"
    return caught.value.text


CASES = [(0, kind, call.request) for kind, call in schema.CALLS.items()]
CASES += [(ANSWER, kind, call.answer) for kind, call in schema.CALLS.items()]
CASES += [(ANSWER | ERROR, Type.GET, schema.ERRORS)]


def test_every_client_type_is_in_the_table() -> None:
    """A type without a row would be sent and received unchecked."""
    missing = [kind.name for kind in sorted(CLIENT_TYPES - set(schema.CALLS))]
    assert not missing, f"say in schema.CALLS what they carry: {', '.join(missing)}"
    assert set(schema.CALLS) <= CLIENT_TYPES


@pytest.mark.parametrize(("flags", "kind", "shape"), CASES)
def test_each_field_is_checked(flags: int, kind: Type, shape: schema.Shape) -> None:
    """Unknown fields pass; a field that is missing, nil or of another type does not."""
    good = example(shape)
    schema.check(Frame(kind, flags, fields={**good, "newer": [1]}))
    for name, wanted in shape.items():
        without = {key: value for key, value in good.items() if key != name}
        if wanted.required:
            assert mistake(Frame(kind, flags, fields=without)).endswith(f"{name} is missing")
        else:
            schema.check(Frame(kind, flags, fields=without))
        other = {**good, name: 1.5}
        assert wanted.kind.value in mistake(Frame(kind, flags, fields=other))
        if wanted.nil:
            schema.check(Frame(kind, flags, fields={**good, name: None}))
        else:
            assert name in mistake(Frame(kind, flags, fields={**good, name: None}))


@pytest.mark.parametrize(
    ("sections", "text"),
    [
        ([7], "sections [0] must be a list, not 'int'"),
        ([["t", 0, 1, 10, 0, 0, 0], ["t"]], "sections [1] has 1 columns; it must have 7"),
        ([["t", 0, True, 10, 0, 0, 0]], "sections [0][2] must be a whole number, not 'bool'"),
        ([["t", 0, 1, 2**63, 0, 0, 0]], "sections [0][3] must be a whole number, not 'int'"),
    ],
)
def test_rows_are_checked_column_by_column(sections: object, text: str) -> None:
    """The error says which row and which column."""
    fields: dict[str, object] = {"ack": "written", "timeout_ms": 1, "sections": sections}
    assert text in mistake(Frame(Type.APPEND, fields=fields))


def test_rows_may_be_longer() -> None:
    """A newer peer may add columns; those we know are checked as before."""
    row = ["t", 0, 1, 10, 0, 0, 0, "new"]
    fields: dict[str, object] = {"ack": "written", "timeout_ms": 1, "sections": [row]}
    schema.check(Frame(Type.APPEND, fields=fields))


def test_items_are_checked() -> None:
    """A list of names holds names only."""
    assert "[1] must be text" in mistake(Frame(Type.METADATA, fields={"topics": ["a", 1]}))


def test_frames_of_other_parties_pass() -> None:
    """Frames between nodes have their own checks."""
    schema.check(Frame(Type.HA_APPEND, fields={"x": 1}))
