"""What a property filter consists of, and what each part yields for one record.

Three values: TRUE, FALSE and null (None). RocketMQ's rules, odd ones included:

* null on the left of ``=`` yields null, on the right FALSE; both null are equal;
* ``<>`` and ``IS NOT NULL`` are NOT of ``=``; NOT of null is null;
* ``<``, ``<=``, ``>``, ``>=``, BETWEEN, IN and NOT IN yield null for null;
* CONTAINS, STARTSWITH, ENDSWITH and their negations yield FALSE for null, and for an empty text;
* a property alone is a condition, and never true: a property is a text, not a truth value;
* minus before a property yields null: a property is not a number.

A record matches when the whole is TRUE. What cannot be compared (`NotComparable`) ends the
evaluation, and the record does not match.

A node becomes a function over a row: the texts of the properties that the filter names, in the
order of its names, None where a record has none. Not here: the grammar (``sql92``), comparison of
values (``sql92_values``).

Sources: RocketMQ 5.3 (``ComparisonExpression``, ``UnaryExpression``, ``LogicExpression``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import ge, gt, le, lt

from twinlog.filters.values import Long, Value, compare, compare_ordered

Row = Sequence[str | None]
Evaluate = Callable[[Row], Value]
Slots = Mapping[str, int]
"""Where each name's text stands in a row."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text, TRUE, FALSE or NULL, as written."""

    at: int
    value: Value


@dataclass(frozen=True, slots=True)
class Property:
    """The text of a property."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Negate:
    """Minus."""

    at: int
    operand: Node


@dataclass(frozen=True, slots=True)
class Truth:
    """A property where a condition is asked for: null without it, else FALSE."""

    at: int
    operand: Property


@dataclass(frozen=True, slots=True)
class Not:
    """NOT."""

    at: int
    operand: Node


@dataclass(frozen=True, slots=True)
class Every:
    """AND of two or more, from the left until one is FALSE."""

    at: int
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """OR of two or more, from the left until one is TRUE."""

    at: int
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Equal:
    """Equality."""

    at: int
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Ordered:
    """``<``, ``<=``, ``>`` or ``>=``."""

    at: int
    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class OneOf:
    """IN; the operand is a property."""

    at: int
    operand: Property
    texts: frozenset[str]
    negated: bool


@dataclass(frozen=True, slots=True)
class Search:
    """CONTAINS, STARTSWITH or ENDSWITH."""

    at: int
    word: str
    operand: Node
    text: str
    negated: bool


Node = Literal | Property | Negate | Truth | Not | Every | Some | Equal | Ordered | OneOf | Search


def is_condition(node: Node) -> bool:
    """Whether a node yields TRUE, FALSE or null, whatever the record."""
    match node:
        case Literal(value=value):
            return value is None or isinstance(value, bool)
        case Property() | Negate():
            return False
        case _:
            return True


def parts_of(node: Node) -> tuple[Node, ...]:
    """Return the nodes directly below."""
    match node:
        case Literal() | Property():
            return ()
        case Negate() | Truth() | Not() | OneOf() | Search():
            return (node.operand,)
        case Every() | Some():
            return node.parts
        case _:
            return node.left, node.right


def names_of(node: Node) -> tuple[str, ...]:
    """Return the properties a node looks at, each once, in the order they are written."""
    found: dict[str, None] = {}
    open_: list[Node] = [node]
    while open_:
        part = open_.pop()
        if isinstance(part, Property):
            found[part.name] = None
        open_ += reversed(parts_of(part))
    return tuple(found)


def build(node: Node, slots: Slots) -> Evaluate:
    """Return the function that evaluates ``node``; it may raise `NotComparable`."""
    match node:
        case Literal(value=value):
            return lambda _: value
        case Property(name=name):
            slot = slots[name]
            return lambda row: row[slot]
        case Negate(operand=operand):
            return _negate(build(operand, slots))
        case Truth(operand=operand):
            text = build(operand, slots)
            return lambda row: None if text(row) is None else False
        case Not(operand=operand):
            return _not(build(operand, slots))
        case Every(parts=parts):
            return _until(False, tuple(build(part, slots) for part in parts))
        case Some(parts=parts):
            return _until(True, tuple(build(part, slots) for part in parts))
        case Equal(left=left, right=right):
            return _equal(build(left, slots), build(right, slots))
        case Ordered(sign=sign, left=left, right=right):
            return _ordered(sign, build(left, slots), build(right, slots))
        case OneOf():
            return _one_of(node, build(node.operand, slots))
        case _:
            return _search(node, build(node.operand, slots))


def _negate(operand: Evaluate) -> Evaluate:
    def evaluate(row: Row) -> Value:
        match operand(row):
            case bool() | str() | None:
                return None
            case Long() as number:
                return Long(-number)
            case number:
                return -number

    return evaluate


def _not(operand: Evaluate) -> Evaluate:
    def evaluate(row: Row) -> Value:
        value = operand(row)
        return None if value is None else not value

    return evaluate


def _until(end: bool, parts: tuple[Evaluate, ...]) -> Evaluate:
    """AND ends at FALSE, OR at TRUE; without such an end null counts before the other one."""

    def evaluate(row: Row) -> Value:
        unknown = False
        for part in parts:
            value = part(row)
            # The rest is not evaluated, as in RocketMQ: a later part that cannot be compared does
            # no harm.
            if value is end:
                return end
            # Null does not end it: a later FALSE (AND) or TRUE (OR) still decides.
            unknown = unknown or value is None
        return None if unknown else not end

    return evaluate


def _equal(left: Evaluate, right: Evaluate) -> Evaluate:
    def evaluate(row: Row) -> Value:
        first, second = left(row), right(row)
        if first is None:
            # Not symmetric: null on the left is null, on the right FALSE. RocketMQ does the same.
            return True if second is None else None
        return second is not None and compare(first, second) == 0

    return evaluate


_SIGNS: Mapping[str, Callable[[int, int], bool]] = {"<": lt, "<=": le, ">": gt, ">=": ge}


def _ordered(sign: str, left: Evaluate, right: Evaluate) -> Evaluate:
    holds = _SIGNS[sign]

    def evaluate(row: Row) -> Value:
        first = left(row)
        if first is None:
            return None
        second = right(row)
        return None if second is None else holds(compare_ordered(first, second), 0)

    return evaluate


def _one_of(node: OneOf, operand: Evaluate) -> Evaluate:
    texts, negated = node.texts, node.negated

    def evaluate(row: Row) -> Value:
        value = operand(row)
        return None if value is None else (value in texts) is not negated

    return evaluate


def _search(node: Search, operand: Evaluate) -> Evaluate:
    wanted, negated = node.text, node.negated
    find: Callable[[str, str], bool] = {
        "CONTAINS": str.__contains__,
        "STARTSWITH": str.startswith,
        "ENDSWITH": str.endswith,
    }[node.word]

    def evaluate(row: Row) -> Value:
        if not wanted:  # before the operand, which may not be comparable
            return False
        value = operand(row)
        return isinstance(value, str) and find(value, wanted) is not negated

    return evaluate
