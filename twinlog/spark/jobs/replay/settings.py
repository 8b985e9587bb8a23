"""What a replay sends: its settings, the source's options that follow, and what identifies it.

Not here: the work (`twinlog.spark.jobs.replay.job`, `twinlog.spark.jobs.replay.archive`).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from twinlog.spark.sink.settings import Rate

LEFT_BEHIND = (
    "KEYS", "TAGS", "__SHARDINGKEY", "TL_SEQ", "TL_SRC", "TL_ORIGIN", "UNIQ_KEY", "WAIT",
    "CLUSTER", "MSG_REGION", "TRACE_ON", "REAL_TOPIC", "REAL_QID", "DELAY", "RETRY_TOPIC",
    "INNER_MULTI_DISPATCH", "INNER_MULTI_QUEUE_OFFSET", "INNER_NUM", "INNER_BASE",
)  # fmt: skip
"""Properties that the sink sets itself, or that only made sense for the first delivery."""


@dataclass(frozen=True, slots=True)
class ReplaySettings:
    """What to replay and where to.

    Attributes:
        path: The store that is read; None with ``from_servers``, or for an archive alone.
        topic: Its topic.
        servers: The cluster that is written.
        to_topic: The topic there; it must exist.
        from_servers: Addresses of the cluster that is read; empty with ``path``.
        range: Which records, in the tools' grammar; empty: all.
        since: First store time: ms, an ISO time or ``-2h``; empty: from the start.
        until: Store time before which it ends; empty: what is there.
        tags: Only these tags; empty: all.
        keys: Only records with one of these keys; empty: all.
        same_queues: Whether a row goes to the queue that it had.
        keep_time: Whether a row keeps the time at which it was born.
        rate: What all tasks together send at most; None: no limit.
        resume: Directory that remembers how far it came; None: start again.
        dry_run: Only count.
        archive: Directory of an archive in front of what is read, or read alone.
    """

    path: Path | None
    topic: str
    servers: str
    to_topic: str
    range: str = ""
    tags: str = ""
    from_servers: str = ""
    since: str = ""
    until: str = ""
    keys: tuple[str, ...] = ()
    same_queues: bool = False
    keep_time: bool = False
    rate: Rate | None = None
    resume: Path | None = None
    dry_run: bool = False
    archive: Path | None = None


def chosen(settings: ReplaySettings) -> dict[str, str]:
    """Return the source's options.

    >>> settings = ReplaySettings(None, "t", "n1:1", "u", from_servers="n2:1", since="-2h")
    >>> chosen(settings)
    {'subscribe': 't', 'servers': 'n2:1', 'startingTimestamp': '-2h'}
    """
    found = {
        "subscribe": settings.topic,
        "path": "" if settings.path is None else str(settings.path),
        "servers": settings.from_servers,
        "archive": "" if settings.archive is None else str(settings.archive),
        "range": settings.range,
        "startingTimestamp": settings.since,
        "endingTimestamp": settings.until,
        "tags": settings.tags,
        "keys": ",".join(settings.keys),
    }
    return {name: text for name, text in found.items() if text}


def decided(settings: ReplaySettings) -> dict[str, str]:
    """Return what decides which rows are sent and how, for the memory of a replay.

    Where they are read and where nodes are found is not among it: addresses may change.
    """
    keys = "\n".join(settings.keys).encode()
    return {
        "topic": settings.topic,
        "to-topic": settings.to_topic,
        "tags": settings.tags,
        "keys": hashlib.sha256(keys).hexdigest() if keys else "",
        "since": settings.since,
        "same-queues": str(settings.same_queues),
        "keep-time": str(settings.keep_time),
    }
