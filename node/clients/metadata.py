"""HELLO and METADATA: this node, addresses of the other nodes, topics.

METADATA lists topics in pages, sorted by name, because their names together may not fit a frame:
an answer holds at most `PAGE_BYTES` of names and says with ``more`` where the next page begins.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from node.clients.freshness import Freshness
from node.clients.presence import Presence
from twinlog.wire import frames

if TYPE_CHECKING:
    from storage.reads import StoreReads

EPOCHS_MAX = 1024
"""Epochs in one METADATA answer."""

PAGE_BYTES = 256 * 1024
"""Names of topics in one METADATA answer, bytes of UTF-8; at least one topic is listed. A name
appears twice if its queues are batch queues, so half of a frame's fields are left for the rest."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The node's names, and the facts that all nodes of the group share."""

    cluster: str
    group: str
    name: str
    family: int
    """4 or 6: the length of the store host in every record."""
    segment_size: int
    message_size_max: int
    acknowledge: str
    """The acknowledgement of an append that requests none."""
    features: int = 0
    """Feature bits of this node beyond topics; see `frames.MESSAGING`."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """The master that this node knows of."""

    leader: str | None
    epoch: int
    writable: bool


def everything(thing: str, name: str) -> bool:
    """Say that who asks may know of every topic and group."""
    return True


class Metadata:
    """Answers requests that do not depend on records; keeps no state."""

    def __init__(
        self,
        identity: Identity,
        store: StoreReads,
        presence: Presence,
        *,
        leadership: Callable[[], Leadership],
        freshness: Callable[[], Freshness],
    ) -> None:
        self.identity = identity
        self._store = store
        self._presence = presence
        self._leadership = leadership
        self._freshness = freshness

    def hello(self) -> dict[str, object]:
        """Return this node's identity, and what a producer needs to encode records."""
        identity = self.identity
        return {
            "version": frames.VERSION,
            "features": identity.features,
            "node": identity.name,
            "cluster": identity.cluster,
            "group": identity.group,
            "family": identity.family,
            "segment_size": identity.segment_size,
        }

    def metadata(
        self,
        topics: Collection[str] | None,
        after: str = "",
        sees: Callable[[str, str], bool] = everything,
    ) -> dict[str, object]:
        """Return the nodes with their addresses, the master, the topics.

        It says whether no other topic was acknowledged: only a master can say so, and a topic in
        its log that is not confirmed may have been acknowledged by the last master (R53).

        Args:
            topics: Names of the topics to list; None: all, a page at a time.
            after: The page begins with the first name that sorts after this one.
            sees: Whether who asks may know of a topic; others are not there.

        Raises:
            NotYetConfirmed: A requested topic is in the log and not confirmed yet.
        """
        identity, leadership = self.identity, self._leadership()
        known = self._store.topics()
        if sees is not everything:
            known = {name: queues for name, queues in known.items() if sees("topic", name)}
        if topics is None:
            page = page_of_topics(known, after)
        else:
            page = {"topics": {name: known[name] for name in sorted(topics & known.keys())}}
        for name in topics or ():
            if (
                name not in known
                and sees("topic", name)
                and (error := self._store.missing(name)).retryable
            ):
                raise error
        listed = cast("Mapping[str, int]", page["topics"])
        return {
            "cluster": identity.cluster,
            "group": identity.group,
            "epoch": leadership.epoch,
            "leader": leadership.leader,
            "nodes": [dict(entry) for entry in self._presence.entries()],
            "family": identity.family,
            "message_size_max": identity.message_size_max,
            "epochs": self._epochs(),
            "confirm": self._store.confirm,
            "batched": sorted(self._store.batched().intersection(listed)),
            "writable": self._writable(listed),
            "settled": self._freshness().leads
            and (topics is not None or not self._store.topics_waiting()),
            **page,
        }

    def _writable(self, listed: Collection[str]) -> dict[str, int]:
        """Return how many queues take messages, of the topics where not all do."""
        found = self._store.narrowed()
        return {name: found[name] for name in found.keys() & listed}

    def _epochs(self) -> list[list[int]]:
        """Return epoch and start of the newest epochs with a confirmed byte, oldest first."""
        confirm = self._store.confirm
        found = [[one.epoch, one.start] for one in self._store.epochs if one.start < confirm]
        return found[-EPOCHS_MAX:]


def page_of_topics(
    topics: Mapping[str, int], after: str = "", queues_max: int | None = None
) -> dict[str, object]:
    """Return the fields ``topics`` and, unless this is the last page, ``more``.

    A page has at least one topic, at most `PAGE_BYTES` of names and ``queues_max`` queues.
    """
    names = sorted(topics)
    first = bisect_right(names, after) if after else 0
    size, queues, end = 0, 0, first
    while end < len(names):
        size += len(names[end].encode())
        queues += topics[names[end]]
        if end > first and (size > PAGE_BYTES or (queues_max is not None and queues > queues_max)):
            break
        end += 1
    found: dict[str, object] = {"topics": {name: topics[name] for name in names[first:end]}}
    return found if end == len(names) else {**found, "more": names[end - 1]}
