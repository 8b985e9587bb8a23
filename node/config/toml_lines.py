"""Finds the line of each key of a TOML text.

``tomllib`` does not report positions, but an error message needs the line. This scanner walks the
text once and records, for each table and each key, the line of its first character. Its input was
accepted by ``tomllib`` before, so it checks nothing.

A path is a tuple of names; an element of an array of tables has its number in it:
``("node", 0, "name")``. Keys inside inline tables and arrays share the line of the key they belong
to: `Lines.line` uses the longest known prefix of a path.

Not here: values (``tomllib``), what the keys mean (``node.config.config``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

Path = tuple[str | int, ...]

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\]|\\.)*"|'[^']*')"""
_DOTTED = re.compile(rf"\s*({_KEY}(?:\s*\.\s*{_KEY})*)\s*")
_PART = re.compile(_KEY)
_OPENERS = "[{"
_CLOSERS = "]}"


@dataclass(frozen=True, slots=True)
class Lines:
    """Line numbers, from 1, of every table and key of one text."""

    numbers: dict[Path, int]

    def line(self, path: Path) -> int | None:
        """Return the line of ``path`` or of the nearest table around it; None: unknown."""
        for end in range(len(path), 0, -1):
            found = self.numbers.get(path[:end])
            if found is not None:
                return found
        return None


def positions(text: str) -> Lines:
    """Return the line of each table and key of ``text``.

    >>> positions('[a]\\nb = 1\\n[[n]]\\nc = 2\\n').line(("n", 0, "c"))
    4
    """
    numbers: dict[Path, int] = {}
    counts: dict[Path, int] = {}
    table: Path = ()
    for line, statement in _statements(text):
        stripped = statement.lstrip()
        if stripped.startswith("["):
            table = _header(stripped, counts)
            numbers.setdefault(table, line)
            continue
        match = _DOTTED.match(stripped)
        if match is not None:
            path = table + _parts(match[1])
            for end in range(len(table) + 1, len(path) + 1):
                numbers.setdefault(path[:end], line)
    return Lines(numbers)


def _header(text: str, counts: dict[Path, int]) -> Path:
    """Return the path of a table header; an array of tables gets its next number."""
    array = text.startswith("[[")
    match = _DOTTED.match(text, 2 if array else 1)
    names = _parts(match[1]) if match else ()
    path: Path = ()
    for number, name in enumerate(names):
        path = (*path, name)
        if array and number == len(names) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = (*path, counts[path])
    return path


def _parts(dotted: str) -> tuple[str, ...]:
    return tuple(part.strip("\"'") for part in _PART.findall(dotted))


def _statements(text: str) -> list[tuple[int, str]]:
    """Return (line, first line of the statement); continuation lines are skipped."""
    found: list[tuple[int, str]] = []
    depth, quote = 0, ""
    for number, line in enumerate(text.splitlines(), start=1):
        fresh = depth == 0 and not quote
        code = line.strip()
        if fresh and code and not code.startswith("#"):
            found.append((number, line))
        header = fresh and code.startswith("[")
        if not header:
            depth, quote = _skip(line, depth, quote)
    return found


def _skip(line: str, depth: int, quote: str) -> tuple[int, str]:
    """Return bracket depth and open multi-line quote after ``line``."""
    at = 0
    while at < len(line):
        if quote:
            closing = line.find(quote, at)
            if closing < 0:
                return depth, quote if len(quote) == 3 else ""
            escaped = quote[0] == '"' and _odd_backslashes(line, closing)
            at = closing + (1 if escaped else len(quote))
            quote = quote if escaped else ""
            continue
        char = line[at]
        if char == "#":
            break
        if char in "\"'":
            quote = char * 3 if line.startswith(char * 3, at) else char
            at += len(quote)
            continue
        depth += (char in _OPENERS) - (char in _CLOSERS)
        at += 1
    return depth, quote if len(quote) == 3 else ""


def _odd_backslashes(line: str, at: int) -> bool:
    count = at - len(line[:at].rstrip("\\"))
    return count % 2 == 1
