"""What one field of a frame must be, and what is wrong with one that is not, in words. Pure.

Not here: which fields each frame has, and the code that judges them (``twinlog.wire.schema``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

INT_MIN: Final = -(1 << 63)
INT_MAX: Final = (1 << 63) - 1
"""msgpack carries unsigned 64-bit numbers as well; the least it carries is ours."""


class Kind(Enum):
    """The type of a field's value, named as errors name it."""

    INT = "a whole number"
    STR = "text"
    BOOL = "true or false"
    BYTES = "bytes"
    LIST = "a list"
    MAP = "a map"


PYTHON: Final[Mapping[Kind, type]] = {
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
    """

    kind: Kind
    required: bool = True
    nil: bool = False
    items: Kind | None = None
    row: tuple[Kind, ...] = ()


Shape = Mapping[str, Field]


def mistake(shape: Shape, fields: Mapping[str, object]) -> str | None:
    """Return the first field that is not as ``shape`` declares it, and why; None: all are.

    This walks the declaration, so it is for fields that were refused; `check` judges by code that
    was written from the same declaration.
    """
    for name, wanted in shape.items():
        text = _mistake(wanted, fields.get(name), name in fields)
        if text is not None:
            return f"{name} {text}"
    return None


def _mistake(wanted: Field, value: object, there: bool) -> str | None:
    if not there:
        return "is missing" if wanted.required else None
    if value is None and wanted.nil:
        return None
    if not is_a(value, wanted.kind):
        return f"must be {wanted.kind.value}, not {type(value).__name__!r}"
    if not isinstance(value, list):
        return None
    values: list[object] = value  # pyright: ignore[reportUnknownVariableType]
    if wanted.items is not None:
        for at, item in enumerate(values):
            if not is_a(item, wanted.items):
                return f"[{at}] must be {wanted.items.value}, not {type(item).__name__!r}"
    if wanted.row:
        for at, item in enumerate(values):
            text = _row_mistake(wanted.row, item)
            if text is not None:
                return f"[{at}]{text}"
    return None


def _row_mistake(kinds: tuple[Kind, ...], row: object) -> str | None:
    if not isinstance(row, list):
        return f" must be a list, not {type(row).__name__!r}"
    columns: list[object] = row  # pyright: ignore[reportUnknownVariableType]
    if len(columns) < len(kinds):
        return f" has {len(columns)} columns; it must have {len(kinds)}"
    for at, kind in enumerate(kinds):
        if not is_a(columns[at], kind):
            return f"[{at}] must be {kind.value}, not {type(columns[at]).__name__!r}"
    return None


def is_a(value: object, kind: Kind) -> bool:
    """Say whether ``value`` is of ``kind``; a bool is not a number, a number not a bool."""
    if kind is Kind.INT:
        return type(value) is int and INT_MIN <= value <= INT_MAX
    return type(value) is PYTHON[kind]
