"""Arguments of both clients: numbers or text with a unit, and the settings made of them.

Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypedDict, cast

from twinlog.consumer.core import ReadSettings, parse_tags, parse_where
from twinlog.errors import UsageError
from twinlog.format.compression import parse_compression
from twinlog.groups.settings import ORDERED, RENEW_SECONDS, SHARED, GroupSettings, filter_text
from twinlog.producer.new_message import NewMessage
from twinlog.producer.settings import ProducerSettings
from twinlog.session.link import Expected
from twinlog.session.reading import Staleness
from twinlog.session.session import ANY
from twinlog.units import parse_duration, parse_size

Duration = float | str
Size = int | str


WAIT = "WAIT"
"""RocketMQ's property; ``false``: the sender waits neither for a disk nor for slaves."""


def awaited(acknowledge: str, said: NewMessage) -> str:
    """Return what a single message waits for: its property ``WAIT=false`` asks for ``written``.

    A producer's messages share sections, so all of them wait for the same: `Client.producer` takes
    ``acknowledge``, and keeps the property as it is.

    >>> awaited("confirmed", NewMessage(properties={"WAIT": "false"}))
    'written'
    """
    given = cast("object", said.properties)  # what is no mapping is refused later, by name
    no_wait = isinstance(given, Mapping) and cast("Mapping[object, object]", given).get(WAIT)
    return "written" if no_wait == "false" else acknowledge


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


class BroadcastFields(TypedDict, total=False):
    """The keyword arguments of a member of a broadcast group.

    ``member``: its name, under which its positions are kept; needed, and another one in each
    process. ``tag`` or ``where``: the group's filter of the topic; a group that has another one
    refuses. ``read_from``: ``any``, ``master``, ``slave`` or a node's name. ``timeout``: how long
    no node may answer, or no master take positions; None: the client's.
    """

    member: str
    tag: str | None
    where: str | None
    read_from: str
    timeout: Duration | None


class AnyConsumeFields(ConsumeFields, total=False):
    """The keyword arguments of `Client.consume`, whatever the mode."""

    read_from: str


def seconds_of(value: Duration) -> float:
    """Return seconds given as a number or as text with a unit.

    Raises:
        UnitError: Text that is not a duration.
        UsageError: Neither a number nor text, or less than 0.
    """
    if isinstance(value, str):
        return parse_duration(value)
    if not isinstance(cast("object", value), (int, float)):
        raise UsageError.other_type("a duration", "seconds or text with a unit", value)
    if not value >= 0:
        raise UsageError(f"a duration is {value}; it must be at least 0")
    return float(value)


def bytes_of(value: Size) -> int:
    """Return bytes given as a number or as text with a unit; raises UnitError."""
    return parse_size(value) if isinstance(value, str) else value


def expected_of(cluster: str | Expected | None) -> Expected | None:
    """Return the cluster that must answer a client; raises UsageError."""
    if cluster is None or isinstance(cluster, Expected):
        return cluster
    UsageError.check_text("cluster", cluster)
    return Expected(cluster, f"Client(cluster={cluster!r})")


def staleness_of(value: Duration | None) -> Staleness:
    """Return how old data may be: seconds, text with a unit, ``any``, or None.

    Raises:
        UsageError: It is negative, or not a duration.
    """
    if value is None:
        return Staleness()
    return Staleness(math.inf if value == "any" else seconds_of(value))


def producer_settings(
    *, acknowledge: str, batch: Size, linger: Duration, window: int, compress: str | None,
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
    topic: str, *, read_from: str, tag: str | None, where: str | None, limit: int | None,
    follow: bool, timeout: Duration, max_staleness: Duration | None, every: bool = False,
) -> ReadSettings:  # fmt: skip
    """Return the settings of a read.

    Raises:
        FilterError, UsageError: ``topic``, ``tag``, ``where`` or ``limit`` is not one; at once.
    """
    UsageError.check_text("topic", topic)
    UsageError.check_text("read_from", read_from)
    return ReadSettings(
        topic=topic,
        read_from=read_from,
        tags=parse_tags(tag),
        where=parse_where(where),
        limit=limit,
        follow=follow,
        every=every,
        timeout=seconds_of(timeout),
        staleness=staleness_of(max_staleness),
    )


def group_settings(
    group: str, topics: str | Sequence[str], mode: str, *, fields: ConsumeFields, name: str,
    seconds: float, renews: bool = False,
) -> GroupSettings:  # fmt: skip
    """Return how a member of a group consumes.

    Args:
        group: Name.
        topics: One or several.
        mode: ``shared`` or ``ordered``.
        fields: What the caller says.
        name: Of the client.
        seconds: The client's own limit of a call.
        renews: The client keeps time while a body runs.

    Raises:
        FilterError, UsageError: One of them is not valid.
    """
    invisible, timeout = fields.get("invisible"), fields.get("timeout")
    if strange := fields.keys() - ConsumeFields.__annotations__.keys():
        hint = f"the options of a consumer are {', '.join(ConsumeFields.__annotations__)}"
        if "start" in strange:
            hint = (
                f"a group begins where it was made to: twinlog group create {group} --start start"
            )
        raise UsageError(f'a consumer has no option "{min(strange)}"', code="fields", hint=hint)
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
        mode=mode,
    )


def shared_settings(
    group: str, topics: str | Sequence[str], mode: str, *, fields: AnyConsumeFields, name: str,
    seconds: float, renews: bool = False,
) -> GroupSettings:  # fmt: skip
    """Return how a member of a shared or ordered group consumes; as `group_settings`.

    Raises:
        FilterError, UsageError: An option is not valid, or is of another mode.
    """
    if mode not in (SHARED, ORDERED):
        hint = "shared or ordered: each message to one member; broadcast: all messages to each"
        raise UsageError(f'there is no mode "{mode}"', code="fields", hint=hint)
    if "read_from" in fields:
        hint = "the master leases messages; broadcast members read from any node"
        raise UsageError(
            f"read_from is no option of a group that is {mode}", code="fields", hint=hint
        )
    return group_settings(
        group, topics, mode, fields=fields, name=name, seconds=seconds, renews=renews
    )


def broadcast_settings(
    group: str, topics: str | Sequence[str], fields: AnyConsumeFields, seconds: float
) -> tuple[GroupSettings, ReadSettings]:
    """Return how a member of a broadcast group consumes, and what it reads.

    Raises:
        FilterError, UsageError: An option is not valid, or is of shared groups only.
    """
    strange = fields.keys() - BroadcastFields.__annotations__.keys()
    if strange:
        text = f"{min(strange)} is not an option of a broadcast member"
        raise UsageError(text, code="fields", hint="messages are read, not leased")
    timeout = fields.get("timeout")
    tag, where = fields.get("tag"), fields.get("where")
    settings = GroupSettings(
        group=group,
        topics=(topics,) if isinstance(topics, str) else tuple(topics),
        member=fields.get("member", ""),
        wanted=filter_text(tag, where),
        timeout=seconds if timeout is None else seconds_of(timeout),
    )
    reads = read_settings(
        settings.topics[0], read_from=fields.get("read_from", ANY), tag=tag, where=where,
        limit=None, follow=True, timeout=settings.timeout, max_staleness=None,
    )  # fmt: skip
    return settings, reads
