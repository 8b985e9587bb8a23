"""What a filter makes of properties, in the words that RocketMQ's judge uses."""

from __future__ import annotations

from twinlog.filters.lexer import FilterError
from twinlog.filters.sql92 import parse_filter
from twinlog.filters.values import NotComparable

WORDS = {True: "true", False: "false", None: "null"}


def outcome(expression: str, properties: dict[str, str]) -> str:
    """What we make of an expression, in the words of the file; "rest" for the known difference."""
    try:
        found = parse_filter(expression)
    except FilterError as error:
        return "rest" if "AND, OR or the end" in error.text else "refused"
    try:
        value = found.evaluate([properties.get(name) for name in found.names])
    except NotComparable:
        return "error"
    assert value is None or isinstance(value, bool), "a filter is a condition"
    return WORDS[value]
