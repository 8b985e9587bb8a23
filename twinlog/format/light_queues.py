"""Names of light queues (RocketMQ's LMQ) and the properties by which a record enters them.

A light queue is a topic of its own with the single queue 0. A record is stored once, in its own
topic, and names the light queues that list it too.

Sources: RocketMQ's ``MixAll.LMQ_PREFIX``, ``MessageConst``.
"""

from __future__ import annotations

from collections.abc import Mapping

from twinlog.units import parse_whole

LIGHT_PREFIX = "%LMQ%"
"""Prefix of every light queue's topic name."""
LIGHT_PROPERTY = b"INNER_MULTI_DISPATCH"
"""Names of the light queues that also list the record, separated by commas."""
LIGHT_OFFSETS_PROPERTY = b"INNER_MULTI_QUEUE_OFFSET"
"""The record's queue offset in each of them, in the same order."""
LIGHT_DIGITS = 19
"""Digits of each of these offsets, leading zeros included: enough for a signed 64-bit number."""


def offset_in(properties: Mapping[str, str], name: str) -> int | None:
    """Return the queue offset in light queue ``name`` of a record with these properties, if any.

    >>> offset_in({"INNER_MULTI_DISPATCH": "a,b", "INNER_MULTI_QUEUE_OFFSET": "07,3"}, "b")
    3
    """
    names = properties.get(LIGHT_PROPERTY.decode(), "").split(",")
    offsets = properties.get(LIGHT_OFFSETS_PROPERTY.decode(), "").split(",")
    return parse_whole(dict(zip(names, offsets, strict=False)).get(name, ""))
