"""Levels of a group: which kinds of records its log may hold, so which releases may copy it.

A release knows every level up to `LEVEL`. The coordinator's register keeps the level of the group,
which only rises, by ``twinlog cluster set level``, and only when every registered node knows it; a
node that does not know it is not registered (R74). A master writes nothing of a level above the
group's. So nodes of two releases run together while the level is one that both know, and can go
back to the older one until the level is raised.

A feature whose records an older node would pass over, or fold otherwise, takes the next level: a
line in `LEVELS` and a check where the master appends (`refusal`). A new group begins with the
level of the node that registers first.

Not here: who keeps and raises it (``replication.register``). Source: Kafka's ``metadata.version``
(KIP-584, KIP-778).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

LEVELS: Final[Mapping[int, str]] = {
    1: "topics, work queues and delay levels",
    2: "messages that wait for a time, transactions, topics deleted or altered, users and rights",
}
"""What each level added."""

LEVEL: Final = max(LEVELS)
"""The highest level that this release knows."""

FIRST: Final = min(LEVELS)
"""The level of a group, or of a node, that names none."""

LATER: Final = 2
"""Level of what level 2 added."""


def refusal(wanted: int, level: int) -> tuple[str, str] | None:
    """Return (code, text) of the refusal of a record of level ``wanted``; None if it may be
    written at the group's ``level``."""
    if wanted <= level:
        return None
    text = (
        f"{LEVELS.get(wanted, 'this')} needs level {wanted}, the group is at {level}; once all "
        f"nodes run a release that knows it: twinlog cluster set level {wanted}"
    )
    return "level", text
