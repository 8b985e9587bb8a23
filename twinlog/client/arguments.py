"""Arguments of both clients: numbers or text with a unit, and the settings made of them.

Pure.
"""

from __future__ import annotations

import math

from twinlog.consumer.core import ReadSettings, parse_tags, parse_where
from twinlog.format.compression import parse_compression
from twinlog.producer.settings import ProducerSettings
from twinlog.session.reading import Staleness
from twinlog.units import parse_duration, parse_size

Duration = float | str
Size = int | str


def seconds_of(value: Duration) -> float:
    """Return seconds given as a number or as text with a unit; raises UnitError."""
    return parse_duration(value) if isinstance(value, str) else float(value)


def bytes_of(value: Size) -> int:
    """Return bytes given as a number or as text with a unit; raises UnitError."""
    return parse_size(value) if isinstance(value, str) else value


def staleness_of(value: Duration | None) -> Staleness:
    """Return how old data may be: seconds, text with a unit, ``any``, or None.

    Raises:
        UsageError: It is negative, or not a duration.
    """
    if value is None:
        return Staleness()
    return Staleness(math.inf if value == "any" else seconds_of(value))


def producer_settings(
    acknowledge: str, batch: Size, linger: Duration, window: int, compress: str | None,
    timeout: Duration,
) -> ProducerSettings:  # fmt: skip
    """Return the settings of a producer for many messages.

    Raises:
        UsageError: A setting is out of its limits.
    """
    return ProducerSettings(
        acknowledge=acknowledge,
        batch=bytes_of(batch),
        linger=seconds_of(linger),
        window=window,
        compression=parse_compression(compress),
        timeout=seconds_of(timeout),
    )


def read_settings(
    topic: str, read_from: str, tag: str | None, where: str | None, limit: int | None,
    follow: bool, timeout: Duration, max_staleness: Duration | None,
) -> ReadSettings:  # fmt: skip
    """Return the settings of a read.

    Raises:
        FilterError, UsageError: ``tag``, ``where`` or ``limit`` is not one; at once.
    """
    return ReadSettings(
        topic=topic,
        read_from=read_from,
        tags=parse_tags(tag),
        where=parse_where(where),
        limit=limit,
        follow=follow,
        timeout=seconds_of(timeout),
        staleness=staleness_of(max_staleness),
    )
