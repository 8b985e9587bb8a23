"""Limits the history of masters to the newest entries that fit into one answer.

Pure. Not here: the entries (``replication.register.register``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence

HISTORY_SENT_MAX = 10_000
"""Newest entries of an answer to HISTORY."""

HISTORY_BYTES_MAX = 768 << 10
"""Bytes of these entries: a frame carries `wire.FIELDS_MAX` of fields."""

Fields = dict[str, object]


def newest(history: Sequence[Fields]) -> list[Fields]:
    """Return the newest entries, oldest first, as many as fit into an answer."""
    found: list[Fields] = []
    size = 0
    for entry in reversed(history[-HISTORY_SENT_MAX:]):
        size += len(json.dumps(entry, default=str))  # never shorter than it is on the wire
        if size > HISTORY_BYTES_MAX:
            break
        found.append(entry)
    return found[::-1]
