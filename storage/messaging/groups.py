"""What a group of consumers is: mode, where it begins, how it retries. Pure.

A definition is made and changed by control records (`storage.state.controls`) and is part of the
confirmed state (`storage.state.topics`). A group keeps the place where it begins.

Not here: what a group has consumed (`storage.messaging.fold`), its members' filters on the way of a
message (``node.groups``). Sources: RocketMQ's ``SubscriptionGroupConfig``, its retry policies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

MODES = ("shared", "ordered", "broadcast")
"""``shared``: any member gets any message. ``ordered``: the same, but the messages of a queue one
after the other, so one member has a queue at a time. ``broadcast``: each named member gets all."""
CHANGEABLE = frozenset({"shared", "ordered"})
"""Modes that a group may change between: both keep what was handled in the same way."""
NAME_LENGTH_MAX = 120
GROUPS_MAX = 10_000
FILTERS_MAX = 256
"""Topics of one group that have a filter."""
FILTER_LENGTH_MAX = 4_096
ATTEMPTS_MAX = 10_000
INVISIBLE_MS_MIN, INVISIBLE_MS_MAX = 1_000, 12 * 3_600_000
DELAY_MS_MAX = 366 * 86_400_000
DELAYS_MAX = 64

START_END, START_BEGIN = -1, -2
"""Where a group begins in each queue: after its own create record, or with the oldest message."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")
_SECOND, _MINUTE, _HOUR = 1_000, 60_000, 3_600_000
DELAYS_MS = (
    10 * _SECOND, 30 * _SECOND, *[minutes * _MINUTE for minutes in range(1, 11)],
    20 * _MINUTE, 30 * _MINUTE, _HOUR, 2 * _HOUR,
)  # fmt: skip
"""RocketMQ's table of retries."""


@dataclass(frozen=True, slots=True)
class Retry:
    """How long a message waits after a failed attempt.

    Attributes:
        delays_ms: After the first attempt, the second, ...; the last one counts for all later
            ones. With a ``factor``: the first delay and the longest.
        factor: How much longer each delay is than the one before; 0: a table.
    """

    delays_ms: tuple[int, ...] = DELAYS_MS
    factor: int = 0

    def delay_ms(self, attempt: int) -> int:
        """Return the wait after attempt ``attempt``, counted from 1.

        >>> Retry().delay_ms(1), Retry().delay_ms(99)
        (10000, 7200000)
        >>> [Retry((5_000, 60_000), 2).delay_ms(attempt) for attempt in (1, 2, 3, 9)]
        [5000, 10000, 20000, 60000]
        """
        if not self.factor:
            return self.delays_ms[min(max(attempt, 1), len(self.delays_ms)) - 1]
        first, longest = self.delays_ms
        times = pow(self.factor, min(max(attempt - 1, 0), 64))
        return int(min(longest, first * times))

    def refusal(self) -> str | None:
        """Return why no group may have it; None when one may."""
        if not 1 <= len(self.delays_ms) <= DELAYS_MAX:
            return f"a group has 1 to {DELAYS_MAX} delays"
        if any(not 0 <= delay <= DELAY_MS_MAX for delay in self.delays_ms):
            return "a delay is 0 ms to 366 days"
        if self.factor and (len(self.delays_ms) != 2 or not 1 <= self.factor <= 100):
            return "growing delays need the first one, the longest one, and a factor of 1 to 100"
        return None


@dataclass(frozen=True, slots=True)
class Group:
    """One group's definition.

    Attributes:
        name: In RocketMQ's alphabet, at most `NAME_LENGTH_MAX`.
        mode: One of `MODES`.
        start: `START_END`, `START_BEGIN`, or ms since 1970.
        attempts: How often a message is handed out before it becomes a dead letter.
        retry: How long it waits after a failed attempt.
        invisible_ms: How long a lease lasts unless a request says otherwise.
        dead_letter: Whether what failed for good is kept in ``%DLQ%`` and the name.
        filters: By topic, what the group wants of it, all members the same; a topic without one is
            wanted whole.
        created_ms: Wall time of the request; for people.
        created_at: Log offset after its create record: from there on, nothing is missed. 0 in a
            definition that was not applied.
    """

    name: str
    mode: str = "shared"
    start: int = START_END
    attempts: int = 16
    retry: Retry = Retry()
    invisible_ms: int = 60_000
    dead_letter: bool = True
    filters: Mapping[str, str] = field(default_factory=dict[str, str])
    created_ms: int = 0
    created_at: int = 0

    def refusal(self) -> tuple[str, str] | None:
        """Return (code, text) when no such group can exist; None when one can."""
        reason = group_refusal(self.name)
        if reason is not None:
            return "group", reason
        if self.mode not in MODES:
            return "group-mode", f"the mode of a group is one of {', '.join(MODES)}"
        wrong = self.retry.refusal() or _value_refusal(self)
        return ("group", wrong) if wrong is not None else None

    def keeps_mode(self, other: Group) -> bool:
        """Whether a group may become ``other`` as far as its mode is concerned."""
        return self.mode == other.mode or {self.mode, other.mode} <= CHANGEABLE

    def same(self, other: Group) -> bool:
        """Whether both say the same, whenever they were made."""
        return group_fields(self) | {"at": 0} == group_fields(other) | {"at": 0}


def _value_refusal(one: Group) -> str | None:
    if not 1 <= one.attempts <= ATTEMPTS_MAX:
        return f"a message has 1 to {ATTEMPTS_MAX} attempts"
    if not INVISIBLE_MS_MIN <= one.invisible_ms <= INVISIBLE_MS_MAX:
        return "a lease lasts 1 s to 12 h"
    if one.start < START_BEGIN:
        return "a group begins at the end, at the start or at a time"
    if len(one.filters) > FILTERS_MAX:
        return f"a group has filters for at most {FILTERS_MAX} topics"
    if any(not 0 < len(text) <= FILTER_LENGTH_MAX for text in one.filters.values()):
        return f"a filter has 1 to {FILTER_LENGTH_MAX} characters"
    return None


def group_refusal(name: str) -> str | None:
    """Return why no group may have this name; None when one may."""
    if not 1 <= len(name) <= NAME_LENGTH_MAX:
        return f"a group name has 1 to {NAME_LENGTH_MAX} characters"
    if _LEGAL.match(name) is None:
        return "a group name consists of letters, digits, %, |, _ and -"
    return None


def group_fields(one: Group) -> dict[str, object]:
    """Return a definition as a map of plain values, without the place of its record."""
    return {
        "name": one.name, "mode": one.mode, "start": one.start, "attempts": one.attempts,
        "delays": list(one.retry.delays_ms), "factor": one.retry.factor,
        "invisible": one.invisible_ms, "dead": one.dead_letter,
        "filters": dict(one.filters), "at": one.created_ms,
    }  # fmt: skip


def group_from(fields: Mapping[str, object]) -> Group | None:
    """Return the definition in a map; None when it is not of its shape.

    >>> group_from(group_fields(Group("billing", "broadcast"))) == Group("billing", "broadcast")
    True
    """
    reader = _Fields(fields)
    try:
        return Group(
            reader.text("name"), reader.text("mode"), reader.number("start"),
            reader.number("attempts"),
            Retry(tuple(_number(one) for one in reader.items("delays")), reader.number("factor")),
            reader.number("invisible"), fields.get("dead") is not False,
            _filters(fields.get("filters")), reader.number("at"),
        )  # fmt: skip
    except (TypeError, ValueError):
        return None


class _Fields:
    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def text(self, name: str) -> str:
        return _text(self._fields.get(name))

    def number(self, name: str) -> int:
        return _number(self._fields.get(name))

    def items(self, name: str) -> Sequence[object]:
        return _items(self._fields.get(name))


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError
    return value


def _items(value: object) -> Sequence[object]:
    if not isinstance(value, list):
        raise TypeError
    return cast("list[object]", value)


def _filters(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise TypeError
    found = cast("dict[object, object]", value)
    return {_text(topic): _text(text) for topic, text in found.items()}
