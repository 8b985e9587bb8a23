"""What a job says at its end: one value, shown as text, JSON or a file.

Pure. A report has the fields of its JSON document and the tables for people; both tell the same.
Times in fields are milliseconds since 1970 (names end in ``_ms``), sizes are bytes.

Not here: printing (``cli.spark.jobs``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

Value = str | int | float | bool | None


class Verdict(Enum):
    """What the answer of a job is; the command line has an exit code for each."""

    FINE = "fine"
    """Done, or asked and the answer is yes."""
    NO = "no"
    """Asked, and the answer is no: not equal."""
    UNDECIDED = "undecided"
    """Something could not be looked at."""
    DAMAGED = "damaged"
    """Something that was written cannot be trusted."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A table: headers as `cli.answer.Table` has them, ``>`` for numbers."""

    headers: str
    rows: Sequence[Sequence[Value]]
    title: str = ""

    def items(self) -> list[dict[str, Value]]:
        """Return the rows as objects, names in lower case."""
        names = [word.strip("+>").lower().replace("-", "_") for word in self.headers.split()]
        return [dict(zip(names, row, strict=True)) for row in self.rows]


@dataclass(frozen=True, slots=True)
class Report:
    """The end of one job.

    Attributes:
        kind: Of the JSON document.
        head: One line for people.
        fields: The document without its tables.
        tables: By the name of their list in the document.
        verdict: What it comes to.
    """

    kind: str
    head: str
    fields: Mapping[str, Value | Sequence[Value] | Mapping[str, Value]]
    tables: Mapping[str, Rows] = field(default_factory=dict[str, Rows])
    verdict: Verdict = Verdict.FINE

    def document(self) -> dict[str, object]:
        """Return the fields with the tables as lists of objects."""
        found: dict[str, object] = {"verdict": self.verdict.value, **self.fields}
        for name, table in self.tables.items():
            found[name] = table.items()
        return found
