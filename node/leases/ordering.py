"""Which messages of a queue may be handed out when its order is kept. Pure.

In an ordered group the messages of a queue are handed out one after the other: a member may have
more of a queue only while no other member has an unsettled message of it, and nothing after one
that waits for its next attempt. So a queue belongs to one member at a time, as long as that member
holds a lease of it: the lease is the ownership. It is in the log, so a failover moves no queue, and
a lease number fences who held the queue before.

A member that is alone may have all queues. Where others wait for messages, a member that has more
queues than its part takes nothing new from the further ones: they run dry and are free.

Sources: the message groups of Amazon SQS FIFO queues; RocketMQ's ``ConsumerOrderInfoManager``
(orderly POP), which keeps this in memory and in a file of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from storage.messaging.share import LEASED, SETTLED, Run, Share


def holder(share: Share) -> int:
    """Return the member that holds the queue: of its first lease; 0: it is free."""
    return next((run.member for run in share.runs if run.state == LEASED), 0)


def head(share: Share, member: int, now_ms: int) -> int | None:
    """Return the offset of the first message that ``member`` may get; None: the queue is another's.

    It is the first that is neither settled nor under a lasting lease of its own. New messages begin
    at ``share.next``; one before that must be available again to be handed out.

    As long as one lease of another member lasts, the queue is that member's, whatever became of the
    messages before: it may be handling this one.
    """
    first = share.next
    for run in reversed(share.runs):
        lasts = run.state == LEASED and run.until > now_ms
        if lasts and run.member != member:
            return None
        if not lasts and run.state != SETTLED:
            first = run.first
    return first


def available(found: Iterable[Run], at: int) -> Run | None:
    """Return what of the available runs begins at ``at``, the longest one; None: nothing does."""
    return max((run for run in found if run.first == at), key=lambda run: run.last, default=None)


def unused_tail(share: Share, runs: Sequence[Run]) -> list[Run]:
    """Return what of leases that ended unanswered was not begun: all but the queue's first message.

    A member handles a queue's messages one after the other, so at most the first unsettled one was
    in its hands.
    """
    tail: list[Run] = []
    for run in runs:
        if run.state != LEASED:
            continue
        first = run.first + 1 if run.first == share.low else run.first
        if first <= run.last:
            tail.append(run._replace(first=first))
    return tail


def part_of(queues: int, members: int) -> int:
    """Return how many queues a member may have while others wait.

    >>> part_of(8, 3), part_of(2, 5), part_of(0, 0)
    (3, 1, 1)
    """
    return max(1, -(-queues // max(members, 1)))
