"""Arguments of both clients: numbers or text with a unit, and the settings made of them.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypedDict

from twinlog.consumer.core import ReadSettings, parse_tags, parse_where
from twinlog.errors import UsageError
from twinlog.format.compression import parse_compression
from twinlog.groups.settings import RENEW_SECONDS, GroupSettings, filter_text
from twinlog.producer.settings import ProducerSettings
from twinlog.session.reading import Staleness
from twinlog.units import parse_duration, parse_size

Duration = float | str
Size = int | str


class ConsumeFields(TypedDict, total=False):
    """The keyword arguments of a consumer: how a member of a group consumes.

    ``batch``: at most this many messages are held at a time (64). ``invisible``: how long a lease
    is, seconds or text with a unit; None: the group's. ``tag`` (several as ``"a || b"``) or
    ``where`` (``twinlog.filters.sql92``): the group's filter of these topics; a group that has
    another one refuses. ``member``: a name for ``twinlog group members`` (the client's).
    ``lease``: ``confirmed``, or ``fast``: a message is handed out before its lease is confirmed, so
    a failover may hand it out twice. ``renew``, of `AsyncClient` only: for how long the lease of a
    message is extended while a body has it (1 h); 0: never. ``timeout``: how long no master may
    answer; None: the client's.
    """

    batch: int
    invisible: Duration | None
    tag: str | None
    where: str | None
    member: str
    lease: str
    renew: Duration
    timeout: Duration | None


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


def group_settings(
    group: str, topics: str | Sequence[str], fields: ConsumeFields, name: str, seconds: float,
    *, renews: bool = False,
) -> GroupSettings:  # fmt: skip
    """Return how a member of a group consumes.

    Args:
        group: Name.
        topics: One or several.
        fields: What the caller says.
        name: Of the client.
        seconds: The client's own limit of a call.
        renews: The client keeps time while a body runs.

    Raises:
        FilterError, UsageError: One of them is not valid.
    """
    invisible, timeout = fields.get("invisible"), fields.get("timeout")
    if "renew" in fields and not renews:
        text = "the blocking client does nothing while a body runs: it cannot renew leases"
        raise UsageError(text, hint="call message.extend() in the body, or use AsyncClient")
    return GroupSettings(
        group=group,
        topics=(topics,) if isinstance(topics, str) else tuple(topics),
        member=fields.get("member", name),
        batch=fields.get("batch", 64),
        invisible=None if invisible is None else seconds_of(invisible),
        wanted=filter_text(fields.get("tag"), fields.get("where")),
        lease=fields.get("lease", "confirmed"),
        renew=seconds_of(fields.get("renew", RENEW_SECONDS)) if renews else 0.0,
        timeout=seconds if timeout is None else seconds_of(timeout),
    )
