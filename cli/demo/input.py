"""The demo's input: flights as messages.

27,004 flights that left New York's airports in January 2013 come with twinlog; ``--input`` takes
another CSV file with a header line, plain, ``.gz`` or ``.xz``.  On-time data of the US Bureau of
Transportation Statistics (public domain).

A row becomes compact JSON in column order: numbers as numbers, ``NA`` as null.  Its tag is
``carrier``, its key ``tailnum`` (none when that is ``NA``), and the property ``row`` its number,
from 0, by which it is found again.

Columns that are text by their meaning stay text, whatever they look like.
"""

from __future__ import annotations

import csv
import gzip
import json
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TextIO

from cli.failures import Exit, Failure

JANUARY = "flights-2013-01.csv.gz"
TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?")
MISSING = "NA"


@dataclass(frozen=True, slots=True)
class Flight:
    """One row as a message."""

    row: int
    body: bytes
    tag: str | None
    key: str | None

    @property
    def properties(self) -> dict[str, str]:
        """What finds the row again."""
        return {"row": str(self.row)}


def flights(path: Path | None = None) -> list[Flight]:
    """Read the input.

    Raises:
        Failure: The file is no CSV with a header line (exit 65), or is empty.
    """
    try:
        with _open(path) as text:
            found = list(_rows(csv.DictReader(text)))
    except (gzip.BadGzipFile, lzma.LZMAError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise Failure(Exit.DATA, f"{path} cannot be read as CSV", facts=(str(error),)) from None
    if not found:
        raise Failure(Exit.DATA, f"{path} has no rows")
    return found


def _open(path: Path | None) -> TextIO:
    if path is None:
        packed = files("cli.demo").joinpath("data", JANUARY)
        with packed.open("rb") as raw:
            import io

            return io.StringIO(gzip.decompress(raw.read()).decode("utf-8"))
    match path.suffix:
        case ".gz":
            return gzip.open(path, "rt", encoding="utf-8", newline="")
        case ".xz":
            return lzma.open(path, "rt", encoding="utf-8", newline="")
        case _:
            return path.open(encoding="utf-8", newline="")


def _rows(reader: csv.DictReader[str]) -> Iterator[Flight]:
    for number, row in enumerate(reader):
        if None in row.values() or None in row:
            raise csv.Error(f"line {reader.line_num} has not as many fields as the header")
        yield Flight(number, body_of(row), _mark(row, "carrier"), _mark(row, "tailnum"))


def _mark(row: dict[str, str], column: str) -> str | None:
    value = row.get(column, MISSING)
    return None if value in (MISSING, "") else value


def body_of(row: dict[str, str]) -> bytes:
    """A row as compact JSON.

    >>> body_of({"year": "2013", "dep_time": "NA", "carrier": "9E", "delay": "-2"})
    b'{"year":2013,"dep_time":null,"carrier":"9E","delay":-2}'
    """
    plain = {name: _value(name, text) for name, text in row.items()}
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode("utf-8")


def _value(name: str, text: str) -> str | int | float | None:
    if text == MISSING:
        return None
    if name in TEXT_COLUMNS or not NUMBER.fullmatch(text):
        return text
    return float(text) if "." in text else int(text)
