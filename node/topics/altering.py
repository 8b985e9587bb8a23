"""An order that alters a topic: its fields, and what a topic is, as fields. Pure.

Not here: carrying it out (`node.clients.admin`), what each change means
(`storage.state.topic_controls`).
"""

from __future__ import annotations

from collections.abc import Mapping

from storage.state.topic_controls import PROPERTIES, AlterTopic
from storage.state.topics import Topic
from twinlog.errors import UsageError


def parse_alter(fields: Mapping[str, object], name: str, wall_ms: int) -> AlterTopic:
    """Return the control record of an order; with ``queues`` alone, all of them take messages.

    Raises:
        UsageError: A property is no whole number, or none is named.
    """
    given = {one: fields[one] for one in PROPERTIES if fields.get(one) is not None}
    numbers = {one: value for one, value in given.items() if type(value) is int}
    if len(numbers) < len(given):
        wrong = next(one for one in given if one not in numbers)
        raise UsageError(f"{wrong} is a whole number", code="fields")
    if not numbers:
        raise UsageError("nothing of the topic is to be altered", code="fields")
    if "queues" in numbers:
        numbers.setdefault("write_queues", numbers["queues"])
    return AlterTopic(name, wall_ms, **numbers)


def terms_of(topic: Topic) -> dict[str, int]:
    """Return the properties of a topic that can be altered, as they are on the wire.

    >>> terms_of(Topic("t", 8, 0, write_queues=2))["write_queues"]
    2
    """
    found = {name: getattr(topic, name) for name in PROPERTIES}
    return {**found, "write_queues": topic.takes}
