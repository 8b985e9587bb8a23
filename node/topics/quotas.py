"""Quotas of topics on the acting master: token buckets. Pure.

A topic with a quota has a bucket for records and one for bytes. A request takes its tokens when it
is admitted, and it is admitted while no bucket of its topics is empty: so one request may take more
than is left, whatever its size, and those after it wait until the debt is paid. A full bucket holds
what the quota allows in `BURST_SECONDS`. What is refused afterwards for another reason gets its
tokens back. Nothing is kept: a new master begins with full buckets.

Not here: where a quota is said (`storage.state.topic_controls`), the answer
(`node.clients.append_path`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from storage.state.sections import Section
from storage.state.sequences import line_topic
from twinlog.errors import QuotaReached

BURST_SECONDS = 1.0
"""For how long an unused quota is kept."""
TELL_SECONDS = 10.0
"""Between two reports that the quota of a topic is reached."""
WAIT_MS_MAX = 3_600_000
"""The longest time to wait that a refusal names."""

_ONE = 1 - 1e-6
"""One token, as sums of parts of seconds come to it."""

Quota = tuple[int, int]
"""Records and bytes a second; 0: no quota of that kind."""


def _reached(topic: str, wait_ms: int) -> QuotaReached:
    text = f"the quota of topic {topic} is used up; nothing was written"
    hint = f"send less, or raise it: twinlog topic alter {topic}"
    return QuotaReached(text, hint=hint, retry_after_ms=wait_ms)


@dataclass(slots=True)
class Bucket:
    """What a topic may still take.

    Attributes:
        quota: Its quota.
        left: Records and bytes; negative: a debt.
        at: When that was so, seconds.
    """

    quota: Quota
    left: list[float]
    at: float

    def fill(self, now: float) -> None:
        """Add what the time since has brought."""
        passed, self.at = max(0.0, now - self.at), max(self.at, now)
        pairs = zip(self.left, self.quota, strict=True)
        self.left = [min(rate * BURST_SECONDS, left + rate * passed) for left, rate in pairs]

    def wait(self) -> float:
        """Return the seconds until no bucket is empty; 0: none is."""
        pairs = zip(self.left, self.quota, strict=True)
        return max((1 - left) / rate if rate and left < _ONE else 0.0 for left, rate in pairs)

    def take(self, records: int, size: int) -> None:
        """Take tokens; negative ones are given back."""
        self.left = [self.left[0] - records, self.left[1] - size]


class Quotas:
    """The buckets of all topics with a quota.

    Args:
        limits: Returns the topics with a quota; the same object until one may have changed.
        tell: Reports an event: its name, its level, its facts.

    Attributes:
        refused: Requests refused since the start, by topic.
    """

    def __init__(
        self, limits: Callable[[], Mapping[str, Quota]], tell: Callable[..., None]
    ) -> None:
        self.refused: dict[str, int] = {}
        self._limits = limits
        self._tell = tell
        self._known: Mapping[str, Quota] = {}
        self._buckets: dict[str, Bucket] = {}
        self._told: dict[str, float] = {}

    def active(self) -> bool:
        """Whether any topic has a quota: else there is nothing to ask."""
        limits = self._limits()
        if limits is not self._known:
            self._known = limits
            kept = {name: self._buckets.get(name) for name in limits}
            self._buckets = {
                name: one for name, one in kept.items() if one and one.quota == limits[name]
            }
            self._told = {name: at for name, at in self._told.items() if name in limits}
        return bool(limits)

    def admit(self, sections: Sequence[Section], now: float) -> QuotaReached | None:
        """Take the tokens of a request; or return the error that refuses it.

        Requires `active`.
        """
        costs = self._costs(sections)
        for topic in costs:
            bucket = self._buckets.get(topic)
            if bucket is None:
                quota = self._known[topic]
                full = [rate * BURST_SECONDS for rate in quota]
                bucket = self._buckets[topic] = Bucket(quota, full, now)
            bucket.fill(now)
            seconds = bucket.wait()
            if seconds:
                self._refuse(topic, now)
                return _reached(topic, min(max(ceil(seconds * 1000 - 1e-6), 1), WAIT_MS_MAX))
        for topic, (records, size) in costs.items():
            self._buckets[topic].take(records, size)
        return None

    def give_back(self, section: Section) -> None:
        """Give back the tokens of a section of which nothing was stored."""
        for topic, (records, size) in self._costs([section]).items():
            bucket = self._buckets.get(topic)
            if bucket is not None:
                bucket.take(-records, -size)

    def _costs(self, sections: Sequence[Section]) -> dict[str, Quota]:
        """Return records and bytes for each topic with a quota."""
        found: dict[str, Quota] = {}
        for section in sections:
            line = line_topic(section.topic, section.data)
            topic = line.partition("@")[2] or line
            if topic in self._known:
                records, size = found.get(topic, (0, 0))
                found[topic] = records + section.count, size + len(section.data)
        return found

    def _refuse(self, topic: str, now: float) -> None:
        self.refused[topic] = self.refused.get(topic, 0) + 1
        if now >= self._told.get(topic, -TELL_SECONDS) + TELL_SECONDS:
            self._told[topic] = now
            records, size = self._known[topic]
            self._tell("quota_reached", "warning", topic=topic, records=records, bytes=size)
