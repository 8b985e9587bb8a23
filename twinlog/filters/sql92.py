"""Filters over properties, in RocketMQ's SQL92: parsed, checked, evaluated.

    filter   = any of: condition AND, OR, NOT condition, (condition)
    compare  = operand = <> < <= > >= operand      operand IS [NOT] NULL
    range    = operand [NOT] BETWEEN operand AND operand
    choice   = property [NOT] IN ('a', 'b')
    search   = operand [NOT] CONTAINS | STARTSWITH | ENDSWITH 'text'
    operand  = property, 12, 12L, 1.5, 'text', TRUE, FALSE, NULL, -operand, (operand)

Keywords are written in any case, properties as the producer named them. What RocketMQ refuses is
refused, with the place; what each part yields is in ``sql92_nodes``. Two differences, both because
a filter that is quietly another one loses messages:

* RocketMQ ignores what follows a whole condition (``a = 1 b = 2`` is ``a = 1``, ``a LIKE 'x'`` is
  ``a``); here that is an error;
* length and depth have limits with names (`EXPRESSION_MAX`, `DEPTH_MAX`).

Pure. Not here: where properties come from (``twinlog.kernels``), who evaluates when
(``storage.read.filters``).

Sources: RocketMQ 5.3 (``SelectorParser.jj``, ``SqlFilter``) and its jar, run: the cases of
``tests/golden/sql92.json`` are its answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from twinlog.filters.lexer import FilterError, Token, Word, filter_error, tokens
from twinlog.filters.nodes import (
    Equal,
    Evaluate,
    Every,
    Literal,
    Negate,
    Node,
    Not,
    OneOf,
    Ordered,
    Property,
    Row,
    Search,
    Some,
    Truth,
    build,
    is_condition,
    names_of,
    parts_of,
)
from twinlog.filters.values import INT_MAX, LONG_MAX, Long, NotComparable, compare

__all__ = ["Filter", "FilterError", "parse_filter"]

DEPTH_MAX: Final = 64
"""Parts within each other; what AND or OR joins side by side is one."""

NAMES_MAX: Final = 64
"""Different properties of one filter."""

_DOUBLE_MAX_HINT: Final = "decimal numbers lie between 4.9E-324 and 1.7976931348623157E308"
_SEARCHES: Final = ("CONTAINS", "STARTSWITH", "ENDSWITH")


@dataclass(frozen=True, slots=True)
class Filter:
    """A filter that has been understood.

    Attributes:
        text: As it was written.
        names: The properties it looks at, in the order of the rows that `matches_row` takes.
    """

    text: str
    names: tuple[str, ...]
    evaluate: Evaluate

    def matches_row(self, row: Row) -> bool:
        """Whether a record matches whose properties have these texts, None where it has none."""
        try:
            return self.evaluate(row) is True
        except NotComparable:
            return False

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a record with these properties matches.

        >>> parse_filter("price > 9 and region in ('EU')").matches({"price": "10", "region": "EU"})
        True
        """
        return self.matches_row([properties.get(name) for name in self.names])


def parse_filter(expression: str) -> Filter:
    """Return the filter that ``expression`` stands for.

    Raises:
        FilterError: It is not a filter; the error names the place.

    >>> parse_filter("a > 'x'")
    Traceback (most recent call last):
    twinlog.filters.lexer.FilterError: filter, character 5: a text cannot be ordered
    """
    node = _Parser(expression).parse()
    names = names_of(node)
    if len(names) > NAMES_MAX:
        text = f"it names {len(names)} properties; at most {NAMES_MAX} are taken"
        raise filter_error(text, expression, 0)
    return Filter(expression, names, build(node, {name: at for at, name in enumerate(names)}))


class _Parser:
    """Recursive descent, one method for each rule of the grammar, from weak to strong."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokens(expression)
        self._next = 0
        self._depth = 0

    # ── words ───────────────────────────────────────────────────────────────────────────────────

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _is(self, *texts: str) -> bool:
        """Whether the next words are these keywords or signs."""
        return all(
            token.kind in (Word.KEYWORD, Word.SIGN) and token.text == text
            for token, text in zip(self._tokens[self._next :], texts, strict=False)
        )

    def _take(self) -> Token:
        token = self._token
        self._next += 1
        return token

    def _expect(self, text: str) -> Token:
        if not self._is(text):
            raise self._error(f"expected {text}, found {self._token}", self._token.at)
        return self._take()

    def _error(self, text: str, at: int, hint: str | None = None) -> FilterError:
        return filter_error(text, self._expression, at, hint)

    def _deeper(self, at: int) -> None:
        """Bound what the parser itself descends into; `parse` bounds what it has built."""
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._too_deep(at)

    def _too_deep(self, at: int) -> FilterError:
        return self._error(f"more than {DEPTH_MAX} parts within each other", at)

    # ── grammar ─────────────────────────────────────────────────────────────────────────────────

    def parse(self) -> Node:
        """Return the whole expression as a condition."""
        node = self._condition(self._either())
        token = self._token
        if token.kind is not Word.END:
            hint = "RocketMQ would ignore the rest"
            if token.text.upper() == "LIKE":
                hint = "there is no LIKE: use CONTAINS, STARTSWITH or ENDSWITH"
            raise self._error(f"expected AND, OR or the end, found {token}", token.at, hint)
        # Not by recursion: loops build chains such as a = b = c deeper than Python's stack.
        open_ = [(node, 1)]
        while open_:
            part, depth = open_.pop()
            if depth > DEPTH_MAX:
                raise self._too_deep(part.at)
            open_ += [(below, depth + 1) for below in parts_of(part)]
        return node

    def _condition(self, node: Node) -> Node:
        if isinstance(node, Property):
            return Truth(node.at, node)
        if not is_condition(node):
            raise self._error("this is a value, not a condition", node.at)
        return node

    def _either(self) -> Node:
        return self._side_by_side("OR", self._both, Some)

    def _both(self) -> Node:
        return self._side_by_side("AND", self._equality, Every)

    def _side_by_side(
        self,
        word: str,
        rule: Callable[[], Node],
        kind: type[Every] | type[Some],
    ) -> Node:
        first = rule()
        if not self._is(word):
            return first
        parts = [self._condition(first)]
        while self._is(word):
            self._take()
            parts.append(self._condition(rule()))
        return kind(first.at, tuple(parts))

    def _equality(self) -> Node:
        left = self._comparison()
        while self._is("=") or self._is("<>") or self._is("IS"):
            token = self._take()
            if token.text == "IS":
                negated = self._is("NOT")
                if negated:
                    self._take()
                self._expect("NULL")
                equal: Node = Equal(token.at, left, Literal(token.at, None))
            else:
                right = self._comparison()
                self._check_equal(left, right)
                equal, negated = Equal(token.at, left, right), token.text == "<>"
            left = Not(token.at, equal) if negated else equal
        return left

    def _check_equal(self, left: Node, right: Node) -> None:
        for side in (left, right):
            if isinstance(side, Literal) and side.value is None:
                raise self._error("NULL equals nothing", side.at, "write IS NULL or IS NOT NULL")
        literals = isinstance(left, Literal) and isinstance(right, Literal)
        if literals and is_condition(left) and not is_condition(right):
            raise self._error("TRUE or FALSE is never equal to a value", right.at)

    def _comparison(self) -> Node:
        left = self._unary()
        while True:
            token = self._token
            negated = self._is("NOT")
            if negated:
                self._take()
            word = self._token
            if negated and not self._is_one_of("BETWEEN", "IN", *_SEARCHES):
                text = f"expected BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH, found {word}"
                raise self._error(text, word.at)
            if not self._is_one_of("<", "<=", ">", ">=", "BETWEEN", "IN", *_SEARCHES):
                return left
            self._take()
            left = self._after(word.text, left, token.at, negated)

    def _is_one_of(self, *texts: str) -> bool:
        return any(self._is(text) for text in texts)

    def _after(self, word: str, left: Node, at: int, negated: bool) -> Node:
        match word:
            case "BETWEEN":
                return self._between(left, at, negated)
            case "IN":
                if not isinstance(left, Property):
                    raise self._error("the left side of IN must be a property", left.at)
                return OneOf(at, left, self._texts(), negated)
            case "CONTAINS" | "STARTSWITH" | "ENDSWITH":
                return Search(at, word, left, self._text(), negated)
            case _:
                return self._ordered(word, left, self._unary())

    def _ordered(self, sign: str, left: Node, right: Node) -> Node:
        for side in (left, right):
            match side:
                case Literal(value=int() | float() as value) if not isinstance(value, bool):
                    continue
                case Literal(value=str()):
                    what = "a text cannot be ordered"
                case Literal(value=None):
                    what = "NULL cannot be ordered"
                case _ if is_condition(side):
                    what = "a condition cannot be ordered"
                case _:
                    continue
            raise self._error(what, side.at)
        return Ordered(left.at, sign, left, right)

    def _between(self, value: Node, at: int, negated: bool) -> Node:
        low = self._unary()
        self._expect("AND")
        high = self._unary()
        if negated:
            parts = self._ordered("<", value, low), self._ordered(">", value, high)
            return Some(at, parts)
        parts = self._ordered(">=", value, low), self._ordered("<=", value, high)
        if (
            isinstance(low, Literal)
            and isinstance(high, Literal)
            and (compare(high.value, low.value) < 0)
        ):
            raise self._error("nothing lies between these: the first is larger", low.at)
        return Every(at, parts)

    def _texts(self) -> frozenset[str]:
        self._expect("(")
        found = {self._text()}
        while self._is(","):
            self._take()
            found.add(self._text())
        self._expect(")")
        return frozenset(found)

    def _text(self) -> str:
        token = self._token
        if token.kind is not Word.TEXT:
            hint = "numbers stand in quotes here as well" if token.text.isdecimal() else None
            raise self._error(f"expected a text in single quotes, found {token}", token.at, hint)
        return self._take().text

    def _unary(self) -> Node:
        token = self._token
        if not self._is_one_of("+", "-", "NOT"):
            return self._primary()
        depth = self._depth
        self._deeper(token.at)
        self._take()
        operand = self._unary()
        self._depth = depth
        match token.text:
            case "-":
                return Negate(token.at, operand)
            case "NOT":
                return Not(token.at, self._condition(operand))
            case _:
                return operand

    def _primary(self) -> Node:
        token = self._token
        if self._is("("):
            depth = self._depth
            self._deeper(token.at)
            self._take()
            node = self._either()
            self._expect(")")
            self._depth = depth
            return node
        match token.kind, token.text:
            case Word.NAME, name:
                node = Property(token.at, name)
            case (Word.TEXT, text):
                node = Literal(token.at, text)
            case Word.WHOLE, _:
                node = Literal(token.at, self._whole(token))
            case Word.DECIMAL, _:
                node = Literal(token.at, self._decimal(token))
            case Word.KEYWORD, "TRUE" | "FALSE" | "NULL":
                values = {"TRUE": True, "FALSE": False, "NULL": None}
                node = Literal(token.at, values[token.text])
            case _:
                hint = None
                if token.kind is Word.KEYWORD:
                    hint = "a property with the name of a keyword cannot be filtered by"
                text = f"expected a property or a value, found {token}"
                raise self._error(text, token.at, hint)
        self._take()
        return node

    def _whole(self, token: Token) -> int:
        digits = token.text.rstrip("lL")
        value = int(digits) if len(digits) <= 19 else LONG_MAX + 1
        if value > LONG_MAX:
            raise self._error("a whole number beyond 64 bits", token.at, f"at most {LONG_MAX}")
        return value if value <= INT_MAX else Long(value)

    def _decimal(self, token: Token) -> float:
        value = float(token.text)
        # As RocketMQ: its least number is Double.MIN_VALUE, so 0.0 is refused as well.
        if value == float("inf") or not value:
            size = "too large" if value else "too small, or zero"
            raise self._error(f"a decimal number that is {size}", token.at, _DOUBLE_MAX_HINT)
        return value
