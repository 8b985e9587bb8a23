"""Figures of groups for metrics: what the confirmed fold says, by group. Every node has them."""

from __future__ import annotations

from collections.abc import Mapping

from node.groups.documents import lag
from node.groups.service import WorkQueues
from storage.messaging.fold import MEMBER_SIGN
from storage.messaging.share import Share
from twinlog.errors import TwinlogError

Labels = tuple[str, ...]


class Figures:
    """Reads work queues at a scrape."""

    def __init__(self, groups: WorkQueues) -> None:
        self.groups = groups
        self._context = groups.context

    @property
    def ready(self) -> float:
        """1 while this node serves groups."""
        return float(self.groups.epoch > 0)

    @property
    def parked(self) -> float:
        """Pops that wait for messages."""
        return float(self.groups.parked)

    def lags(self) -> Mapping[Labels, float]:
        """Messages that are not settled, by group and topic."""
        found: dict[Labels, float] = {}
        for share in self._context.messaging.confirmed.shares():
            key = share.group.partition(MEMBER_SIGN)[0], share.topic
            found[key] = found.get(key, 0.0) + lag(share, self._end(share))
        return found

    def _end(self, share: Share) -> int:
        try:
            return self._context.records.queue_range(share.topic, share.queue)[1]
        except TwinlogError:
            return share.next

    def count(self, state: int) -> Mapping[Labels, float]:
        """Messages in a state of `storage.messaging.share`, by group."""
        found: dict[Labels, float] = {}
        for share in self._context.messaging.confirmed.shares():
            if MEMBER_SIGN not in share.group:
                found[(share.group,)] = found.get((share.group,), 0.0) + share.count(state)
        return found

    def members(self) -> Mapping[Labels, float]:
        """Members, by group."""
        messaging = self._context.messaging
        return {
            (name,): float(len(messaging.confirmed.members(name))) for name in messaging.groups()
        }

    def leased(self) -> Mapping[Labels, float]:
        """Messages handed out by this master since its start, by group."""
        return {(name,): float(count) for name, count in self._context.counts.leased.items()}

    def dead(self) -> Mapping[Labels, float]:
        """Dead letters made by this master since its start, by group."""
        return {(name,): float(count) for name, count in self._context.counts.dead.items()}

    def settled(self) -> Mapping[Labels, float]:
        """Messages by what became of them on this master since its start."""
        counts = self._context.counts.settled.settled
        return {(how,): float(count) for how, count in counts.items()}

    def rows(self) -> Mapping[Labels, float]:
        """Rows appended by this master since its start, by kind."""
        return {(kind,): float(count) for kind, count in self._context.counts.rows.items()}

    @property
    def redelivered(self) -> float:
        """Messages handed out again by this master since its start."""
        return float(self._context.counts.redelivered)
