"""Counters of the client side of a node: plain numbers that only rise, kept where the work is done.

`node.observe.metrics` reads them at a scrape; nothing here knows of Prometheus. Names of
kinds and limits come from code, never from a peer, so their number is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class ClientCounts:
    """Counters of the client port since the node started."""

    accepted: int = 0
    """Connections accepted."""

    answers: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    """Answers by request kind and outcome (``ok`` or the error's code)."""

    closings: dict[str, int] = field(default_factory=dict[str, int])
    """Connections ended by the node, by kind: http, tls, crc, type, hello, stalled ..."""

    limits: dict[str, int] = field(default_factory=dict[str, int])
    """How often each limit was reached."""

    records: dict[str, int] = field(default_factory=dict[str, int])
    """Records appended by topic."""

    size: dict[str, int] = field(default_factory=dict[str, int])
    """Bytes appended by topic."""

    def answered(self, kind: str, outcome: str) -> None:
        """Count an answer."""
        key = (kind, outcome)
        self.answers[key] = self.answers.get(key, 0) + 1

    def closed(self, kind: str) -> None:
        """Count a connection that the node ended."""
        self.closings[kind] = self.closings.get(kind, 0) + 1

    def limit_reached(self, limit: str) -> None:
        """Count a limit that was reached."""
        self.limits[limit] = self.limits.get(limit, 0) + 1

    def appended(self, topic: str, records: int, size: int) -> None:
        """Count stored records."""
        self.records[topic] = self.records.get(topic, 0) + records
        self.size[topic] = self.size.get(topic, 0) + size
