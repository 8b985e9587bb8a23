"""The words of a property filter: text to tokens, each with its place.

The words are RocketMQ's: names of ASCII letters, digits, ``_`` and ``$``; whole numbers without a
leading zero, a trailing ``L`` allowed; decimal numbers; texts in single quotes, a quote in them
doubled; ``--`` up to a line end and ``/* */`` are comments. ``--`` that no line end follows is two
minus signs there, and so it is here.

A place is a number of characters from the beginning. Not here: what the words mean (``sql92``).

Sources: RocketMQ 5.3 (the token rules of ``SelectorParser.jj``), and its jar, run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from twinlog.errors import UsageError

EXPRESSION_MAX: Final = 16 * 1024
"""Characters of an expression; RocketMQ has no limit but its stack."""

EXCERPT: Final = 60
"""Characters of an expression that an error shows."""


class FilterError(UsageError):
    """A filter that cannot be understood.

    Facts: ``position`` (characters from the beginning), ``excerpt`` and ``caret`` (two lines that,
    one below the other, show the place).
    """

    default_code = "filter"

    @property
    def position(self) -> int:
        """Where, in characters from the beginning."""
        return self._int("position")

    @property
    def lines(self) -> tuple[str, str]:
        """The part of the expression around the place, and a caret below it."""
        return self._str("excerpt") or "", self._str("caret") or ""


def filter_error(text: str, expression: str, at: int, hint: str | None = None) -> FilterError:
    """Return the error for what is wrong at ``at`` of ``expression``.

    >>> print("\\n".join(filter_error("what is this", "a = ?", 4).lines))
    a = ?
        ^
    """
    begin = max(0, at - EXCERPT // 2)
    shown = re.sub(r"\s", " ", expression[begin : begin + EXCERPT])
    place = f"filter, character {at + 1}: {text}"
    caret = " " * (at - begin) + "^"
    return FilterError(place, hint=hint, position=at, excerpt=shown, caret=caret)


class Word(Enum):
    """What a token is; names and values are what errors call it."""

    NAME = "a name"
    KEYWORD = "a keyword"
    WHOLE = "a whole number"
    DECIMAL = "a decimal number"
    TEXT = "a text in quotes"
    SIGN = "a sign"
    END = "the end"


KEYWORDS: Final = frozenset(
    {"NOT", "AND", "OR", "BETWEEN", "IN", "IS", "TRUE", "FALSE", "NULL"}
    | {"CONTAINS", "STARTSWITH", "ENDSWITH"}
)


@dataclass(frozen=True, slots=True)
class Token:
    """One word.

    Attributes:
        kind: What it is.
        text: As written; keywords in capitals, texts without quotes.
        at: Where it begins.
    """

    kind: Word
    text: str
    at: int

    def __str__(self) -> str:
        """Return it as an error names what it found."""
        return "the end" if self.kind is Word.END else f'"{self.text}"'


_TOKEN: Final = re.compile(
    r"""(?P<space>[ \t\n\r\f]+|--[^\n\r]*[\n\r]|/\*(?:[^*]|\*+[^*/])*\*+/)
    |(?P<DECIMAL>[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?
        |[0-9]+[eE][+-]?[0-9]+)
    |(?P<WHOLE>0|[1-9][0-9]*[lL]?)
    |(?P<NAME>[a-zA-Z_$][a-zA-Z0-9_$]*)
    |(?P<TEXT>'(?:''|[^'])*')
    |(?P<SIGN><>|>=|<=|[=<>(),+-])""",
    re.VERBOSE,
)

_OTHERWISE: Final = {
    "!": "not equal is written <>",
    '"': "texts stand in single quotes",
    "`": "names stand without quotes",
    "'": "the text has no closing quote",
    ".": "names have letters, digits, _ and $ only",
    "|": "or is written OR",
    "&": "and is written AND",
}


def tokens(expression: str) -> list[Token]:
    """Return the words of ``expression``, the last one `Word.END`.

    Raises:
        FilterError: Too long, or something that is not a word.

    >>> [token.text for token in tokens("a>=3 and b = 'it''s'")]
    ['a', '>=', '3', 'AND', 'b', '=', "it's", '']
    """
    if len(expression) > EXPRESSION_MAX:
        text = f"it has {len(expression)} characters; at most {EXPRESSION_MAX} are taken"
        raise filter_error(text, expression, EXPRESSION_MAX)
    found: list[Token] = []
    at = 0
    while at < len(expression):
        match = _TOKEN.match(expression, at)
        if match is None or match.lastgroup is None:
            sign = expression[at]
            unclosed = expression.startswith("/*", at)
            hint = "the comment has no end" if unclosed else _OTHERWISE.get(sign)
            raise filter_error(f"{sign!r} begins no word", expression, at, hint)
        if match.lastgroup != "space":
            found.append(_token(Word[match.lastgroup], match.group(), at))
        at = match.end()
    return [*found, Token(Word.END, "", len(expression))]


def _token(kind: Word, text: str, at: int) -> Token:
    if kind is Word.TEXT:
        return Token(kind, text[1:-1].replace("''", "'"), at)
    if kind is Word.NAME and text.upper() in KEYWORDS:
        return Token(Word.KEYWORD, text.upper(), at)
    return Token(kind, text, at)
