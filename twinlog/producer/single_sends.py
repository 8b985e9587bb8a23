"""The senders of a client: what sends the single messages of one topic and one acknowledgement.

A sender has a connection of its own and is kept for the next message. At most `SENDERS_MAX` are
kept: a client that sends to more topics closes the least recently used one, and opens it again when
its topic's turn comes. The client says which may be closed: never one whose message is waited for.

What outlives a sender is its *origin*, one for each acknowledgement: the producer id that a node
gave, and a producer epoch that no sender closed so far has used, with which the next one begins. So
nodes remember one line for each topic and queue, however often its sender is closed and opened; and
nothing that a closed sender still had under way can be stored after the new one's first message: it
is out of date.

Pure. Not here: sending (``blocking``, ``aio``), sequences (``core``).

Rule: docs/protocol.md R47. Sources: a least-recently-used pool, as in urllib3 and httpx.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

SENDERS_MAX: Final = 64
"""Senders that a client keeps: a node takes 4096 connections, so more than sixty such clients."""

Key = tuple[str, str]
"""(topic, acknowledgement)."""


@dataclass(slots=True)
class Origin:
    """Who the senders of one acknowledgement are to the nodes.

    Attributes:
        producer: The id that a node gave; 0: none has been asked yet.
        epoch: The producer epoch with which the next sender begins.
    """

    producer: int = 0
    epoch: int = 0


class Sender(Protocol):
    """What is kept."""

    @property
    def epoch(self) -> int:
        """The highest producer epoch that it has used; -1: it never began."""
        ...


S = TypeVar("S", bound=Sender)


class Senders(Generic[S]):
    """See the module."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Key, S] = OrderedDict()
        self._origins: dict[str, Origin] = {}
        self._taken: dict[Key, int] = {}

    def __len__(self) -> int:
        """Senders that are kept."""
        return len(self._kept)

    def __iter__(self) -> Iterator[S]:
        """Yield them, the least recently used first."""
        return iter(self._kept.values())

    def get(self, topic: str, acknowledge: str) -> S | None:
        """Return the sender of a topic, as used just now; None: it has no sender."""
        key = topic, acknowledge
        sender = self._kept.get(key)
        if sender is not None:
            self._kept.move_to_end(key)
        return sender

    def origin(self, acknowledge: str) -> Origin:
        """Return who a new sender is to be."""
        return self._origins.setdefault(acknowledge, Origin())

    def add(self, topic: str, acknowledge: str, sender: S) -> None:
        """Keep a sender; more than `SENDERS_MAX` only while all others are in use."""
        self._kept[topic, acknowledge] = sender

    def take(self, topic: str, acknowledge: str) -> None:
        """Take note that a sender is in use: it is not taken out before `give_back`."""
        key = topic, acknowledge
        self._taken[key] = self._taken.get(key, 0) + 1

    def give_back(self, key: Key) -> None:
        """Take note that one who used a sender is done with it."""
        left = self._taken.get(key, 0) - 1
        if left > 0:
            self._taken[key] = left
        else:
            self._taken.pop(key, None)

    @property
    def full(self) -> bool:
        """Whether one must go before another is kept."""
        return len(self._kept) >= SENDERS_MAX

    def remove_oldest(self, may_go: Callable[[S], bool]) -> S | None:
        """Take out the least recently used one that may go, to be closed; None: none may."""
        for key, sender in self._kept.items():
            # A taken sender is in use: closing it would leave its message without an answer.
            if key not in self._taken and may_go(sender):
                del self._kept[key]
                origin = self.origin(key[1])
                # R47: a late retry of the closed sender has a smaller epoch, and is refused as out
                # of date.
                origin.epoch = max(origin.epoch, sender.epoch + 1)
                return sender
        return None

    def clear(self) -> None:
        """Forget all of them and who they were."""
        self._kept.clear()
        self._origins.clear()
