"""Sizes and durations as people write them.

Sizes are binary and whole bytes: ``64 MiB``, ``250 KiB``, ``512`` (bytes). Decimal units (``MB``)
are accepted and mean what they say, powers of 1000. Durations are seconds as a float: ``250 ms``,
``3.2 s``, ``4 m 10 s``, ``1h``. The space before the unit may be left out. Case matters only where
it must not be guessed: none here, so it does not.

What `format_size` and `format_duration` write, `parse_size` and `parse_duration` read back, up to
the digits shown.

Not here: counts and rates (``cli.render``).
"""

from __future__ import annotations

import re

KiB = 1024
MiB = 1024 * KiB
GiB = 1024 * MiB
TiB = 1024 * GiB

_SIZES = {
    "": 1,
    "b": 1,
    "kib": KiB,
    "mib": MiB,
    "gib": GiB,
    "tib": TiB,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"([0-9]{1,19}(?:\.[0-9]{1,19})?)"
"""Longer ones overflow a float, or the digits that Python turns into an int."""
_SIZE = re.compile(rf"\s*{_NUMBER}\s*([a-zA-Z]*)\s*")
_PART = re.compile(rf"\s*{_NUMBER}\s*([a-zA-Z]+)\s*")


class UnitError(ValueError):
    """The text is not a size or duration; ``hint`` shows one that is."""

    def __init__(self, text: str, hint: str) -> None:
        super().__init__(text)
        self.hint = hint


def parse_whole(text: str) -> int | None:
    """Return the whole number from 0 to 2^63 - 1 that ``text`` writes; None for anything else.

    For texts of any length, from anybody: ``int`` raises at 4,300 digits, and takes other scripts.

    >>> parse_whole("007"), parse_whole("-1"), parse_whole("9" * 19)
    (7, None, None)
    """
    digits = text.lstrip("0")
    if not text.isascii() or not text.isdecimal() or len(digits) > 19:
        return None
    value = int(digits or "0")
    return value if value < 1 << 63 else None


def parse_size(text: str) -> int:
    """Return the number of bytes that ``text`` names.

    Raises:
        UnitError: No number, an unknown unit, or a part of a byte.

    >>> parse_size("64 MiB"), parse_size("1.5KiB"), parse_size("512")
    (67108864, 1536, 512)
    """
    match = _SIZE.fullmatch(text)
    factor = _SIZES.get(match[2].lower()) if match else None
    if match is None or factor is None:
        raise UnitError(f"{text!r} is not a size", "write a number and a unit, such as 64 MiB")
    size = float(match[1]) * factor if "." in match[1] else int(match[1]) * factor
    if size != int(size):
        raise UnitError(f"{text!r} is not a whole number of bytes", "use a smaller unit")
    return int(size)


def parse_duration(text: str) -> float:
    """Return the seconds that ``text`` names; ``0`` needs no unit, everything else does.

    Raises:
        UnitError: No number, or an unknown or missing unit.

    >>> parse_duration("250 ms"), parse_duration("4 m 10 s"), parse_duration("0")
    (0.25, 250.0, 0.0)
    """
    if text.strip() == "0":
        return 0.0
    total, end = 0.0, 0
    while match := _PART.match(text, end):
        factor = _SECONDS.get(match[2].lower())
        if factor is None:
            break
        total, end = total + float(match[1]) * factor, match.end()
    if end != len(text) or end == 0:
        hint = "write numbers with units us, ms, s, m, h or d, such as 250 ms"
        raise UnitError(f"{text!r} is not a duration", hint)
    return total


def format_count(count: int, noun: str) -> str:
    """Return a number and its noun, which takes an s unless there is one.

    >>> format_count(1, "queue"), format_count(0, "message")
    ('1 queue', '0 messages')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def format_size(size: int) -> str:
    """Return ``size`` bytes with one decimal at most: ``512 B``, ``1.5 MiB``, ``64 MiB``.

    >>> format_size(512), format_size(1536 * 1024), format_size(64 * MiB)
    ('512 B', '1.5 MiB', '64 MiB')
    """
    for unit, name in ((TiB, "TiB"), (GiB, "GiB"), (MiB, "MiB"), (KiB, "KiB")):
        if abs(size) >= unit:
            text = f"{size / unit:.1f}"
            return f"{text.removesuffix('.0')} {name}"
    return f"{size} B"


def _short(number: float) -> str:
    """Digits of a number below 1000: two that count, or all before the point."""
    return f"{number:.1f}".removesuffix(".0") if number < 9.95 else f"{number:.0f}"


def format_duration(seconds: float) -> str:
    """Return ``seconds`` in at most two units: ``850 ms``, ``3.2 s``, ``4 m 10 s``, ``2 h 5 m``.

    >>> [format_duration(s) for s in (0.00025, 0.85, 3.2, 250, 7500)]
    ['250 us', '850 ms', '3.2 s', '4 m 10 s', '2 h 5 m']
    """
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds == 0:
        return "0 s"
    if seconds < 0.0009995:
        return f"{_short(seconds * 1e6)} us"
    if seconds < 0.9995:
        return f"{_short(seconds * 1e3)} ms"
    if seconds < 59.95:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    whole = round(seconds)
    big, small, big_name, small_name = 60, 1, "m", "s"
    if whole >= 86400:
        big, small, big_name, small_name = 86400, 3600, "d", "h"
    elif whole >= 3600:
        big, small, big_name, small_name = 3600, 60, "h", "m"
    first, rest = divmod(whole, big)
    second = rest // small
    return f"{first} {big_name} {second} {small_name}" if second else f"{first} {big_name}"
