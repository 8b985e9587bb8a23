"""Values of options from their text; pure.

Each parser takes the text that a user wrote and returns the value, or raises `BadValue`, whose
message completes "which is not …".

Not here: which option takes which value (`twinlog.spark.plan.options`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final, cast

from twinlog.errors import UsageError
from twinlog.ranges import Point, Range, parse_range
from twinlog.session.routing import parse_endpoints
from twinlog.spark.errors import listed
from twinlog.units import UnitError, parse_duration, parse_size, parse_whole

EARLIEST, LATEST = -2, -1
"""Offsets that stand for a queue's start and end in JSON, as in Kafka's source."""


@dataclass(frozen=True, slots=True)
class Positions:
    """Where each queue begins or ends: one word for all, or a number for each.

    Attributes:
        word: EARLIEST or LATEST, for queues that ``queues`` does not name.
        queues: topic -> queue -> offset, or EARLIEST or LATEST.
    """

    word: int
    queues: Mapping[str, Mapping[int, int]]

    def of(self, topic: str, queue: int) -> int:
        """Return the position of a queue."""
        return self.queues.get(topic, {}).get(queue, self.word)


class BadValue(Exception):
    """The text is not a value of the option; the message says what it must be."""


def flag(text: str) -> bool:
    """Return true or false."""
    if text.lower() not in ("true", "false"):
        raise BadValue("true or false")
    return text.lower() == "true"


def size(text: str) -> int:
    """Return bytes, at least one."""
    try:
        found = parse_size(text)
    except UnitError as error:
        raise BadValue(f"a size: {error.hint}") from None
    if found < 1:
        raise BadValue("a size of at least one byte")
    return found


def count(text: str) -> int:
    """Return a whole number from 1 on."""
    found = parse_whole(text)
    if not found:
        raise BadValue("a whole number from 1 on")
    return found


def seconds(text: str) -> float:
    """Return a duration in seconds."""
    try:
        return parse_duration(text)
    except UnitError as error:
        raise BadValue(f"a duration: {error.hint}") from None


def names(text: str) -> tuple[str, ...]:
    """Return names that commas separate; at least one."""
    found = tuple(name.strip() for name in text.split(",") if name.strip())
    if not found:
        raise BadValue("at least one name")
    return found


def servers(text: str) -> tuple[str, ...]:
    """Return addresses in their usual form."""
    try:
        return tuple(str(address) for address in parse_endpoints(text))
    except UsageError as error:
        raise BadValue(f"addresses such as n1:7410,n2:7410: {error.text}") from None


def tags(text: str) -> tuple[str, ...]:
    """Return tags that ``||`` separates; at least one."""
    found = tuple(name.strip() for name in text.split("||") if name.strip())
    if not found:
        raise BadValue('tags with "||" between them')
    return found


def pattern(text: str) -> str:
    """Return a regular expression that compiles."""
    try:
        re.compile(text)
    except re.error as error:
        raise BadValue(f"a regular expression: {error}") from None
    return text


def a_range(text: str) -> Range:
    """Return a range in the tools' grammar."""
    try:
        return parse_range(text)
    except UsageError as error:
        raise BadValue(f"a range: {error.hint}") from None


def moment(text: str) -> Point:
    """Return a point in time: ms since 1970, an ISO time, or a duration ago (``-2h``)."""
    if (ms := parse_whole(text)) is not None:
        return parse_range(f"@{_iso(ms)}:").first
    try:
        return parse_range(f"@{text}:").first
    except UsageError:
        raise BadValue(
            "milliseconds since 1970, a time such as 2026-11-21T10:00Z, or -2h"
        ) from None


def _iso(ms: int) -> str:
    try:
        moment = datetime.fromtimestamp(ms / 1000, tz=_UTC)
    except (OverflowError, ValueError, OSError):
        raise BadValue("a time that exists") from None
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z"


_UTC: Final = datetime.fromisoformat("1970-01-01T00:00:00+00:00").tzinfo


def offsets(text: str) -> dict[str, dict[int, int]]:
    """Return topic -> queue -> number from JSON; a level of consumer groups in between is skipped.

    ``{"orders":{"0":23}}`` and, as RocketMQ's connector writes it, ``{"orders":{"g1":{"0":23}}}``.
    """
    try:
        loaded: object = json.loads(text)
    except ValueError:
        raise BadValue(_JSON) from None
    found: dict[str, dict[int, int]] = {}
    for topic, queues in _map(loaded).items():
        inner = _map(queues)
        if len(inner) == 1 and isinstance(only := next(iter(inner.values())), dict):
            inner = _map(cast("object", only))
        found[topic] = {}
        for name, number in inner.items():
            queue = parse_whole(name)
            if queue is None or type(number) is not int:
                raise BadValue(_JSON)
            found[topic][queue] = number
    return found


_JSON: Final = 'JSON such as {"orders":{"0":23,"1":-2}}'


def _map(value: object) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadValue(_JSON)
    return cast("dict[str, object]", value)


def positions(word: int) -> Callable[[str], Positions]:
    """Return a parser of `Positions`; ``word`` holds for queues that JSON does not name."""

    def parse(text: str) -> Positions:
        if text.lower() in ("earliest", "latest"):
            return Positions(EARLIEST if text.lower() == "earliest" else LATEST, {})
        if not text.lstrip().startswith("{"):
            raise BadValue(f"earliest, latest or {_JSON}")
        found = offsets(text)
        if any(n < EARLIEST for queues in found.values() for n in queues.values()):
            raise BadValue("offsets from 0 on, -1 for the end or -2 for the start")
        return Positions(word, found)

    return parse


def assigned(text: str) -> Mapping[str, tuple[int, ...]]:
    """Return topic -> queues from JSON such as ``{"orders":[0,1]}``."""
    wanted = 'JSON such as {"orders":[0,1]}'
    try:
        loaded: object = json.loads(text)
    except ValueError:
        raise BadValue(wanted) from None
    found: dict[str, tuple[int, ...]] = {}
    for topic, queues in _map(loaded).items():
        if not isinstance(queues, list):
            raise BadValue(wanted)
        items = cast("list[object]", queues)
        numbers = tuple(item for item in items if type(item) is int)
        if len(numbers) != len(items) or any(number < 0 for number in numbers):
            raise BadValue(wanted)
        found[topic] = numbers
    if not found:
        raise BadValue(wanted)
    return found


def word(*words: str) -> Callable[[str], str]:
    """Return a parser of one of some words."""

    def parse(text: str) -> str:
        if text.lower() not in words:
            raise BadValue(listed(words))
        return text.lower()

    return parse
