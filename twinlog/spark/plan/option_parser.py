"""From the texts that Spark hands over to the values of all options; pure.

Spark hands options over under lower-case names, so names are looked up that way. A name or a value
that does not exist is an error with the closest one as its hint.

Not here: the options (`twinlog.spark.plan.options`), what contradicts what
(`twinlog.spark.plan.option_checks`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from twinlog.spark.errors import SourceError, nearest
from twinlog.spark.plan.credentials import refuse_password
from twinlog.spark.plan.option_checks import refuse
from twinlog.spark.plan.option_values import BadValue, names, pattern, tags
from twinlog.spark.plan.options import TABLE, Option, Options

_SPARKS = frozenset({"owner", "provider"})
"""What Spark adds by itself for a table made with SQL."""
_KAFKAS: Final = {"kafka.bootstrap.servers": "servers"}


def parse(given: Mapping[str, str], *, use: str) -> Options:
    """Return the values of the options that Spark hands over.

    Args:
        given: Names and values.
        use: ``batch`` or ``stream``.

    Raises:
        SourceError: A name or value does not exist, or two options contradict each other.
    """
    rows = {name.lower(): row for row in TABLE for name in (row.name, *row.aliases)}
    values: dict[str, Any] = {
        row.field: None if row.default is None else row.parse(row.default) for row in TABLE
    }
    said: dict[str, str] = {}
    for name, text in given.items():
        lower = name.lower()
        if lower in _SPARKS or lower.startswith("option."):
            continue
        refuse_password(name)
        row = rows.get(lower)
        if row is None:
            raise _unknown(name)
        if said.setdefault(row.field, lower) != lower:
            what = f"{said[row.field]} and {lower} are given, which is one option"
            raise SourceError(what, code="option", hint=f"say {row.name} once")
        if use == "stream" and row.use == "batch":
            hint = "a stream has no end" if row.name.startswith("ending") else "leave it out"
            text = f"option {row.name} is for batch queries only"
            raise SourceError(text, code="option", hint=hint)
        if use == "batch" and row.use == "stream":
            text = f"option {row.name} is for streams only"
            raise SourceError(text, code="option", hint="leave it out")
        try:
            values[row.field] = row.parse(text)
        except BadValue as bad:
            what = f"option {row.name} is {text!r}, which is not {bad}"
            raise SourceError(what, code="option", hint=_value_hint(row, text)) from None
    found = Options(**values)
    refuse(found, use)
    return found


def _value_hint(row: Option, text: str) -> str | None:
    words = ["auto", "queue", "log", "live", "archive", "true", "false", "earliest", "latest"]
    words += ["error", "chunk"]
    fits = {word for word in words if _parses(row, word)}
    return nearest(text, fits) if fits and row.field != "columns" else None


def _parses(row: Option, word: str) -> bool:
    try:
        row.parse(word)
    except BadValue:
        return False
    return row.parse not in (names, tags, pattern)


def _unknown(name: str) -> SourceError:
    known_names = [one for row in TABLE for one in (row.name, *row.aliases)]
    hint = nearest(_KAFKAS.get(name.lower(), name), known_names)
    if name.lower().startswith("kafka.") and hint is None:
        hint = "options of Kafka's client mean nothing here"
    known = "the options are listed in docs/spark/options.md"
    return SourceError(f"there is no option {name}", code="option", hint=hint or known)


def schema_options(given: Mapping[str, str]) -> Options:
    """Return the options while it is unknown whether a batch or a stream is read.

    Raises:
        SourceError: A name or value does not exist.
    """
    stream = {row.name.lower() for row in TABLE if row.use == "stream"}
    return parse(given, use="stream" if stream & {name.lower() for name in given} else "batch")
