"""What a group has left to handle: in queues it has begun with, and in those it has not.

A queue is begun with at its first lease. Until then a group has all of it to handle from where it
begins; which topics are meant is known from its other queues, its filters and, on the master, its
members. A time at which a group begins is looked up once for each queue.

Not here: documents (`node.groups.documents`), leases (`node.leases.leasing`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from node.turns.context import Context
from storage.messaging.fold import MEMBER_SIGN
from storage.messaging.groups import Group
from storage.messaging.share import LEASED, WAITING, Share
from twinlog.errors import TwinlogError

if TYPE_CHECKING:
    from storage.reads import StoreReads

SHARES_MAX = 4_096
"""Queues in one document; a group of more shows the first of them."""
STARTS_MAX = 65_536
"""Beginnings by time that are remembered; then all are looked up again."""


class Unbegun(NamedTuple):
    """A queue with messages for a group that was never leased from.

    Attributes:
        first: Queue offset at which the group begins.
        start: First one kept.
        end: After the last one.
    """

    topic: str
    queue: int
    first: int
    start: int
    end: int

    @property
    def lag(self) -> int:
        """Messages to handle."""
        return max(self.end - max(self.first, self.start), 0)


def shares_of(context: Context, group: Group) -> Sequence[Share]:
    """Return the shares of a group, of broadcast members those of each."""
    fold = context.messaging.confirmed
    if group.mode != "broadcast":
        return list(fold.shares_of(group.name))[:SHARES_MAX]
    found: list[Share] = []
    for member in fold.members(group.name).values():
        found.extend(fold.shares_of(group.name + MEMBER_SIGN + member.name))
    return found[:SHARES_MAX]


def lag(share: Share, end: int) -> int:
    """Return how many messages of a queue are not settled."""
    new = end - share.next if end > share.next else 0
    return new + share.count(LEASED) + share.count(WAITING) if share.runs else new


class Ends:
    """Where queues end: each is asked once, however many groups consume it.

    Args:
        records: The node's.
    """

    def __init__(self, records: StoreReads) -> None:
        self._records = records
        self._found: dict[tuple[str, int], tuple[int, int] | None] = {}

    def of(self, share: Share) -> tuple[int, int] | None:
        """Return (start, end) of a share's queue; None: the topic is not there."""
        place = share.topic, share.queue
        if place not in self._found:
            try:
                self._found[place] = self._records.queue_range(*place)
            except TwinlogError:
                self._found[place] = None
        return self._found[place]

    def lag(self, share: Share) -> int:
        """Return how many messages of a share's queue are not settled."""
        found = self.of(share)
        return lag(share, found[1] if found is not None else share.next)


def topics_of(context: Context, group: Group) -> set[str]:
    """Return the topics of a group as far as this node knows them."""
    found = {share.topic for share in shares_of(context, group)} | set(group.filters)
    for session in context.members.of(group.name):
        found.update(session.topics)
    return found


def unbegun(context: Context, group: Group) -> Iterator[Unbegun]:
    """Yield the queues with messages that a group has not begun with."""
    if group.mode == "broadcast":
        return
    left, fold, records = SHARES_MAX, context.messaging.confirmed, context.records
    for topic in sorted(topics_of(context, group)):
        for queue in range(records.queues(topic) or 0):
            if fold.find(group.name, topic, queue) is not None:
                continue
            try:
                start, end = records.queue_range(topic, queue)
                if start == end:
                    continue
                found = Unbegun(topic, queue, _begins(context, group, topic, queue), start, end)
            except TwinlogError:  # damaged, or being cut: the store says so by itself
                continue
            left -= 1
            yield found
            if not left:
                return


def _begins(context: Context, group: Group, topic: str, queue: int) -> int:
    first = context.messaging.first_offset(group, topic, queue)
    if first is not None:
        return first
    key, known = (group.name, group.start, topic, queue), context.starts
    at = known.get(key)
    if at is None:
        at = context.records.offset_at(topic, queue, group.start)
        if len(known) >= STARTS_MAX:
            known.clear()
        if at < context.records.queue_range(topic, queue)[1]:  # else it may lie further ahead
            known[key] = at
    return at


def first_unsettled(context: Context, group: Group, ends: Ends) -> list[tuple[str, int, int]]:
    """Return topic, queue and queue offset of the first unsettled message of each queue."""
    found: list[tuple[str, int, int]] = []
    for share in shares_of(context, group):
        start, end = ends.of(share) or (0, 0)
        if max(share.low, start) < end and lag(share, end):
            found.append((share.topic, share.queue, max(share.low, start)))
    for one in unbegun(context, group):
        if one.lag:
            found.append((one.topic, one.queue, max(one.first, one.start)))
    return found
