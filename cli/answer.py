"""One answer of a command, for people and for machines.

An `Answer` holds both views of one thing: a *document* (kind, version, fields) for machines, and
tables with a header line for people.  Tables are derived from the document: `Table.of` reads the
cells of a row out of an item by the names that its columns give, so a value is written once.

A cell is a plain value: text, a whole number, a bool, None ("does not apply", shown as ``-``),
`ABSENT` ("could not be asked", shown as ``?``), or one of the measured values `Size` (bytes),
`Seconds`, `Time` (milliseconds since 1970).  Every format shows the same value in its own way: TSV
and JSON have exact bytes and seconds where the table rounds.

Not here: printing (``render``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Self, cast


@dataclass(frozen=True, slots=True)
class Size:
    """A number of bytes."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Seconds:
    """A duration in seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Time:
    """A moment, in milliseconds since 1970 UTC."""

    ms: int


class Absent:
    """A value that could not be asked for."""

    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = Absent()

Cell = str | int | float | bool | Size | Seconds | Time | Absent | None


@dataclass(frozen=True, slots=True)
class Column:
    """One column; ``right`` aligns numbers, ``wide`` shows it only with ``-o wide``.

    ``field`` names the value in the item that a row shows, a dot goes into a map; ``kind`` is the
    measure that a plain number has there: ``size``, ``seconds`` or ``time`` (milliseconds).
    """

    name: str
    right: bool = False
    wide: bool = False
    field: str = ""
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under upper-case headers."""

    columns: tuple[Column, ...]
    rows: Sequence[Sequence[Cell]]
    title: str = ""

    @classmethod
    def of(cls, text: str, items: Iterable[Mapping[str, object]], title: str = "") -> Self:
        """Make one row of each item, by the columns that ``text`` gives (see `columns`).

        Raises:
            KeyError: An item lacks the field of a column.

        >>> Table.of("NAME SIZE>=bytes:size", [{"name": "a", "bytes": 5}]).rows
        [('a', Size(bytes=5))]
        """
        heads = columns(text)
        return cls(heads, [tuple(_cell(item, head) for head in heads) for item in items], title)


def _cell(item: Mapping[str, object], column: Column) -> Cell:
    """The value of one column in one item."""
    *maps, last = column.field.split(".")
    for name in maps:
        inner = item[name]
        if inner is None:
            return None
        item = cast("Mapping[str, object]", inner)
    value = item[last]
    if isinstance(value, (int, float)):
        return _measured(value, column.kind)
    if isinstance(value, (list, tuple)):
        return ", ".join(str(one) for one in cast("Sequence[object]", value)) or None
    return cast("Cell", value)


def _measured(value: float, kind: str) -> Cell:
    match kind:
        case "size":
            return Size(int(value))
        case "seconds":
            return Seconds(float(value))
        case "time":
            return Time(int(value))
        case _:
            return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One thing to show, for machines and for people.

    ``items`` are what JSON lines print, one object each; empty: the document itself.  ``names`` is
    what ``-o name`` prints.  ``head`` stands above the tables, ``next`` below them on a terminal.
    ``trouble``: ``tail`` says what is wrong, and is shown in red.
    """

    kind: str
    fields: Mapping[str, object]
    tables: Sequence[Table] = ()
    head: str = ""
    tail: str = ""
    names: Sequence[str] = ()
    items: Sequence[Mapping[str, object]] = field(default_factory=tuple)
    next: str = ""
    version: int = 1
    trouble: bool = False

    def document(self) -> dict[str, object]:
        """The JSON document."""
        return {"kind": self.kind, "version": self.version, **self.fields}


_HEADING = re.compile(r"(\+?)([^>=:]+)(>?)(?:=([^:]+))?(?::(\w+))?")


def columns(text: str) -> tuple[Column, ...]:
    """Read column headings: ``[+]NAME[>][=field][:kind]``, one word each.

    ``END>`` is right-aligned, ``+RATE>`` is shown only in wide tables, ``END>=end_offset`` takes
    its value from ``end_offset`` (default: the heading in lower case, ``_`` for ``-``), ``:size``
    says that a number is bytes.

    >>> [(c.name, c.right, c.wide, c.field) for c in columns("END>=end_offset +LAG-TIME")]
    [('END', True, False, 'end_offset'), ('LAG-TIME', False, True, 'lag_time')]
    """
    found: list[Column] = []
    for word in text.split():
        match = _HEADING.fullmatch(word)
        assert match is not None, word
        wide, name, right, field_name, kind = match.groups()
        source = field_name or name.lower().replace("-", "_")
        found.append(Column(name, bool(right), bool(wide), source, kind or ""))
    return tuple(found)


def rfc3339(ms: int) -> str:
    """A moment in RFC 3339, UTC, with milliseconds.

    >>> rfc3339(1_700_000_000_123)
    '2023-11-14T22:13:20.123Z'

    A value outside the years 1 to 9999 is shown as a number: a damaged record may hold anything.

    >>> rfc3339(1 << 62)
    '4611686018427387904ms'
    """
    try:
        moment = datetime.fromtimestamp(ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return f"{ms}ms"
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}Z"


def dump(value: object) -> str:
    """One JSON text, compact enough to read and stable in its order."""
    return json.dumps(value, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    match value:
        case Size():
            return value.bytes
        case Seconds():
            return round(value.seconds, 6)
        case Time():
            return rfc3339(value.ms)
        case Absent():
            return None
        case bytes() | bytearray():
            return bytes(value).decode("utf-8", "replace")
        case tuple() | set() | frozenset():
            return list(cast("tuple[object, ...]", value))
        case _:
            return str(value)
