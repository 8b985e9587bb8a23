"""Values of a property filter, and how RocketMQ compares them: Java's numbers, Java's rules.

A property is always a text. A comparison with a number turns the text into the number's own kind:
``3`` makes it a 32-bit number, ``3000000000`` a 64-bit one, ``3.0`` a double. So ``a = 3`` does not
match ``a`` of ``3.0``: that text is not a whole number, and the evaluation ends there
(`NotComparable`). Two texts are equal or not; to order them both become doubles.

``int`` is Java's Integer, `Long` its Long, ``float`` its Double, ``bool`` its Boolean, None null.

Not here: what the operators make of a comparison (``sql92_nodes``).

Sources: RocketMQ 5.3 (``ComparisonExpression``), Java 17 (``Integer.parseInt``,
``Double.valueOf``, ``Double.compare``); each rule seen in the running jar.
"""

from __future__ import annotations

import math
import re
from typing import Final

INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1


class NotComparable(Exception):
    """Two values that RocketMQ cannot compare; a record that meets it does not match."""


class Long(int):
    """A whole number that is 64 bits wide, whatever its value."""


Value = bool | int | float | str | None


def whole(text: str, limit: int) -> int:
    """Return a property as a whole number from ``-limit - 1`` to ``limit``.

    A sign and decimal digits, of any alphabet of the first plane as Java takes them; no spaces.

    Raises:
        NotComparable: It is not a whole number.

    >>> whole("+42", INT_MAX)
    42
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not digits or not all(c.isdecimal() and ord(c) < 0x10000 for c in digits):
        raise NotComparable(f"{text!r} is not a whole number")
    if len(digits) > 4096:  # far beyond any limit, and slow to turn into a number
        digits = digits.lstrip("0")[:32] or "0"
    value = -int(digits) if text[0] == "-" else int(digits)
    if not -limit - 1 <= value <= limit:
        raise NotComparable(f"{text!r} is outside the range of the number it is compared with")
    return value


_DECIMAL: Final = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fFdD]?")
_HEXADECIMAL: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]+\.?|[0-9a-fA-F]*\.[0-9a-fA-F]+)[pP][+-]?[0-9]+[fFdD]?"
)
_NAMED: Final = re.compile(r"([+-]?)(NaN|Infinity)")
_JAVA_SPACE: Final = "".join(map(chr, range(33)))


def double(text: str) -> float:
    """Return a property as Java's ``Double.valueOf`` reads it, spaces around it allowed.

    Raises:
        NotComparable: It is not a number.

    >>> double(" 1e3d "), double("0x1p4"), double("-Infinity")
    (1000.0, 16.0, -inf)
    """
    text = text.strip(_JAVA_SPACE)
    if _DECIMAL.fullmatch(text):
        return float(text.rstrip("fFdD"))
    if _HEXADECIMAL.fullmatch(text):
        number = text[:-1] if text[-1] in "fFdD" else text
        try:
            return float.fromhex(number)
        except OverflowError:
            return -math.inf if number[0] == "-" else math.inf
    named = _NAMED.fullmatch(text)
    if named is None:
        raise NotComparable(f"{text!r} is not a number")
    value = math.nan if named[2] == "NaN" else math.inf
    return -value if named[1] == "-" else value


def compare_doubles(left: float, right: float) -> int:
    """Return -1, 0 or 1 as Java orders doubles: -0.0 below 0.0, NaN above all and equal to itself.

    >>> compare_doubles(-0.0, 0.0), compare_doubles(math.nan, math.inf)
    (-1, 1)
    """
    if left != right or not left:
        # NaN is unequal to itself, and 0.0 equals -0.0: Java orders both apart.
        first = (left != left, left, math.copysign(1.0, left))
        second = (right != right, right, math.copysign(1.0, right))
        if first[0] or second[0]:
            return first[0] - second[0]
        return (first > second) - (first < second)
    return 0


def compare(left: Value, right: Value) -> int:
    """Return -1, 0 or 1 for two values that are not None; the left one decides what the right
    one is taken for. Values of kinds that have nothing in common: -1.

    Raises:
        NotComparable: A text is not what the other value would have it be.
    """
    match left, right:
        case bool(), bool():
            return int(left) - int(right)
        case bool(), str():
            raise NotComparable("RocketMQ cannot compare TRUE or FALSE with a text on its right")
        case str(), bool():
            return int(left.lower() == "true") - int(right)
        # After the pairs above: what is left has nothing in common with a truth value.
        case (bool(), _) | (_, bool()):
            return -1
        case str(), str():
            return (left > right) - (left < right)
        case str(), float():
            return compare_doubles(double(left), right)
        case float(), str():
            return compare_doubles(left, double(right))
        case str(), int():
            return _order(whole(left, _limit(right)), right)
        case int(), str():
            return _order(left, whole(right, _limit(left)))
        # Compared as whole numbers: doubles would lose the low bits of a `Long`.
        case int(), int():
            return _order(left, right)
        case int() | float(), int() | float():
            return compare_doubles(float(left), float(right))
        case _:
            raise NotComparable("null cannot be compared")


def _limit(number: int) -> int:
    return LONG_MAX if isinstance(number, Long) else INT_MAX


def _order(left: int, right: int) -> int:
    return (left > right) - (left < right)


def compare_ordered(left: Value, right: Value) -> int:
    """Return `compare` for ``<``, ``<=``, ``>`` and ``>=``: two texts are taken as doubles."""
    if isinstance(left, str) and isinstance(right, str):
        return compare_doubles(double(left), double(right))
    return compare(left, right)
