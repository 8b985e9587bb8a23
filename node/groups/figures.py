"""Figures of groups for metrics: what the confirmed fold says, by group. Every node has them."""

from __future__ import annotations

from collections.abc import Mapping

from node.groups.backlog import Ends, unbegun
from node.groups.service import WorkQueues
from storage.messaging.fold import MEMBER_SIGN
from twinlog.format.waiting.delay_levels import LEVELS

Labels = tuple[str, ...]


class Figures:
    """Reads work queues at a scrape."""

    def __init__(self, groups: WorkQueues) -> None:
        self.groups = groups
        self._context = groups.context

    @property
    def ready(self) -> float:
        """1 while this node serves groups."""
        return float(self.groups.serves)

    @property
    def parked(self) -> float:
        """Pops that wait for messages."""
        return float(self.groups.parked)

    def lags(self) -> Mapping[Labels, float]:
        """Messages that are not settled, by group and topic."""
        found: dict[Labels, float] = {}
        ends = Ends(self._context.records)
        for share in self._context.messaging.confirmed.shares():
            key = share.group.partition(MEMBER_SIGN)[0], share.topic
            found[key] = found.get(key, 0.0) + ends.lag(share)
        messaging = self._context.messaging
        for name in messaging.groups():
            group = messaging.group(name)
            for one in unbegun(self._context, group) if group is not None else ():
                key = name, one.topic
                found[key] = found.get(key, 0.0) + one.lag
        return found

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
        """Messages by group and what became of them on this master since its start."""
        counts = self._context.counts.settled.settled
        return {key: float(count) for key, count in counts.items()}

    def rows(self) -> Mapping[Labels, float]:
        """Rows appended by this master since its start, by kind."""
        rows = self._context.counts.rows
        return {(kind.__name__,): float(count) for kind, count in rows.items()}

    def delays_waiting(self) -> Mapping[Labels, float]:
        """Messages that wait for each delay level, as far as is dispatched."""
        waiting = self._context.messaging.delays_waiting
        found = {(str(level),): float(waiting(level)) for level in range(1, LEVELS + 1)}
        return {level: count for level, count in found.items() if count}

    @property
    def delivered(self) -> float:
        """Delayed messages delivered by this master since its start."""
        return float(self.groups.delays.counts.delivered)

    @property
    def timers_waiting(self) -> float:
        """Messages that wait for a time, as far as is dispatched."""
        return float(self._context.messaging.confirmed.timers.count)

    @property
    def timers_delivered(self) -> float:
        """Messages that waited for a time, delivered by this master since its start."""
        return float(self.groups.timers.counts.delivered)

    @property
    def timers_cancelled(self) -> float:
        """Messages that waited for a time and were taken back."""
        return float(self.groups.timers.counts.cancelled)

    def rescued(self) -> Mapping[Labels, float]:
        """Messages that this master has appended again since its start, by what they wait for."""
        return {("timer",): float(self.groups.rescue.count)}

    @property
    def halves_open(self) -> float:
        """Messages that wait for the end of their transaction, as far as is dispatched."""
        return float(self._context.messaging.confirmed.halves.count)

    def settled_halves(self) -> Mapping[Labels, float]:
        """Messages of transactions that this master has ended since its start, by outcome."""
        counts = self.groups.transactions.counts
        return {
            ("commit",): float(counts.committed),
            ("rollback",): float(counts.rolled_back),
            ("given-up",): float(counts.given_up),
        }

    def checks(self) -> Mapping[Labels, float]:
        """Messages that producers were asked about, by what followed, since this master's start."""
        counts = self.groups.transactions.asking.counts
        return {
            ("commit",): float(counts.committed),
            ("rollback",): float(counts.rolled_back),
            ("none",): float(counts.none),
        }

    @property
    def checks_parked(self) -> float:
        """Producers that wait to be asked about transactions."""
        return float(self.groups.transactions.asking.parked)

    @property
    def undeliverable(self) -> float:
        """Of those, messages that had no destination."""
        counts = self.groups.delays.counts, self.groups.timers.counts
        return float(sum(one.undeliverable for one in counts))

    @property
    def redelivered(self) -> float:
        """Messages handed out again by this master since its start."""
        return float(self._context.counts.redelivered)
