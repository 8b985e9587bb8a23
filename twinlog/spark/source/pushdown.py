"""Filters that Spark hands to the source, turned into a narrower plan.

Spark checks every filter again on the rows it gets, so a plan may keep too much and never too
little. What helps: topic, queue, queue offset, store time, tags and key; everything else is left to
Spark alone.

Sources: PySpark 4.3 (``pyspark.sql.datasource``: filters are dataclasses with ``attribute``, a
tuple of names, and ``value``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from twinlog.spark.directory.split_reader import Reading
from twinlog.spark.plan.splits import Bounds, Piece


@dataclass(frozen=True, slots=True)
class Narrowed:
    """What filters leave of a query; None: everything.

    Attributes:
        topics: Only these.
        queues: Only these queues.
        first: Queue offsets from here on.
        stop: Queue offsets before it.
        since_ms: Rows stored at or after it.
        until_ms: Rows stored before it.
        tags: Only these tags.
        keys: Only rows with one of these index keys.
    """

    topics: frozenset[str] | None = None
    queues: frozenset[int] | None = None
    first: int = 0
    stop: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None

    def bounds(self, given: Bounds) -> Bounds:
        """Return the bounds of a query with less in them."""
        pieces: list[Piece] = []
        for piece in given.pieces:
            if self.topics is not None and piece.topic not in self.topics:
                continue
            if self.queues is not None and piece.queue not in self.queues:
                continue
            first = max(piece.first, self.first)
            stop = piece.stop if self.stop is None else min(piece.stop, self.stop)
            if first < stop:
                pieces.append(replace(piece, first=first, stop=stop))
        return replace(
            given,
            pieces=tuple(pieces),
            since_ms=_most(given.since_ms, self.since_ms),
            until_ms=_least(given.until_ms, self.until_ms),
        )

    def reading(self, given: Reading) -> Reading:
        """Return how records are read, with fewer tags."""
        if self.tags is None:
            return given
        both = self.tags if given.tags is None else self.tags & frozenset(given.tags)
        return replace(given, tags=tuple(sorted(both)))

    def sought(self, given: Sequence[str] | None) -> Sequence[str] | None:
        """Return the keys of which each row has one, for the index; None: no filter names keys."""
        return given if given is not None or self.keys is None else sorted(self.keys)


def _most(one: int | None, other: int | None) -> int | None:
    return max((n for n in (one, other) if n is not None), default=None)


def _least(one: int | None, other: int | None) -> int | None:
    return min((n for n in (one, other) if n is not None), default=None)


def narrow(filters: Iterable[Any]) -> Narrowed:
    """Return what filters leave; one that is of no use here changes nothing."""
    found = Narrowed()
    for one in filters:
        attribute: Sequence[str] = getattr(one, "attribute", ())
        if len(attribute) == 1:
            found = _with(found, type(one).__name__, attribute[0].lower(), _value(one))
    return found


def _value(one: Any) -> Any:
    return getattr(one, "value", None)


def _with(found: Narrowed, kind: str, name: str, value: Any) -> Narrowed:
    equal = kind in ("EqualTo", "EqualNullSafe")
    values = [value] if equal else list(value) if kind == "In" else None
    match name:
        case "topic" if values is not None and all(isinstance(v, str) for v in values):
            return replace(found, topics=_both(found.topics, values))
        case "tags" if values is not None and all(isinstance(v, str) for v in values):
            return replace(found, tags=_both(found.tags, values))
        case "key" if values is not None and all(
            isinstance(v, str) and v.strip(" ") for v in values
        ):
            # the column holds all keys of a record: each of them points to it
            return replace(found, keys=frozenset(v.strip(" ").split(" ")[0] for v in values))
        case "queue_id" | "partition" if values is not None and _whole(values):
            return replace(found, queues=_both(found.queues, values))
        case "queue_offset" | "offset" if _whole([value]):
            return _numbered(found, kind, int(value))
        case "store_timestamp" | "timestamp" if isinstance(value, datetime):
            return _timed(found, kind, value)
        case _:
            return found


def _whole(values: Sequence[Any]) -> bool:
    return all(type(value) is int for value in values)


def _both(held: frozenset[Any] | None, values: Sequence[Any]) -> frozenset[Any]:
    return frozenset(values) if held is None else held & frozenset(values)


def _numbered(found: Narrowed, kind: str, value: int) -> Narrowed:
    low = {"GreaterThan": value + 1, "GreaterThanOrEqual": value, "EqualTo": value}.get(kind)
    high = {"LessThan": value, "LessThanOrEqual": value + 1, "EqualTo": value + 1}.get(kind)
    first = found.first if low is None else max(found.first, low)
    return replace(found, first=first, stop=_least(found.stop, high))


def _timed(found: Narrowed, kind: str, value: datetime) -> Narrowed:
    """Times in filters have microseconds, those of records milliseconds: round outwards."""
    ms = int(value.timestamp() * 1000)
    since = ms if kind in ("GreaterThan", "GreaterThanOrEqual", "EqualTo") else None
    until = ms + 2 if kind in ("LessThan", "LessThanOrEqual", "EqualTo") else None
    return replace(
        found, since_ms=_most(found.since_ms, since), until_ms=_least(found.until_ms, until)
    )
