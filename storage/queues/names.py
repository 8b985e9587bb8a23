"""Legal names of topics and light queues. Pure.

RocketMQ's alphabet and lengths, without the names that RocketMQ or this store reserves.

Not here: which topics exist (`storage.state.layers`).
"""

from __future__ import annotations

import re

from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.system_topics import (
    DELAY_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    RETRY_PREFIX,
    SYSTEM_TOPIC_PREFIX,
    TIMER_TOPIC,
)

TOPIC_LENGTH_MAX = 127

RETRY_LENGTH_MAX = 255
"""Bytes of the name of a retry topic, as RocketMQ limits it; its records are of version 2."""

_LEGAL = re.compile(r"[%|a-zA-Z0-9_-]+\Z")

_RESERVED = frozenset({DELAY_TOPIC, TIMER_TOPIC, HALF_TOPIC, OP_TOPIC, "TBW102"})


def topic_refusal(name: str) -> str | None:
    """Return why a topic of this name cannot be created or written; None when it can."""
    if name.startswith(SYSTEM_TOPIC_PREFIX):
        return f"topic {name} is reserved for the store"
    if name in _RESERVED:
        return f"topic {name} is reserved"
    if name.startswith(LIGHT_PREFIX):
        return f"{name} is a light queue: it is created when a message of a topic names it"
    return _form_refusal(name)


def light_refusal(name: str) -> str | None:
    """Return why no message may name this light queue; None when it may."""
    if not name.startswith(LIGHT_PREFIX) or name == LIGHT_PREFIX:
        return f"{name!r} is not a light queue: their names begin with {LIGHT_PREFIX}"
    return _form_refusal(name)


def _form_refusal(name: str) -> str | None:
    most = RETRY_LENGTH_MAX if name.startswith(RETRY_PREFIX) else TOPIC_LENGTH_MAX
    if not name or len(name) > most:
        return f"a topic name has 1 to {most} characters"
    if _LEGAL.match(name) is None:
        return "a topic name consists of letters, digits, %, |, _ and -"
    return None
