"""Messages under a lease, and when it ends on this machine's clock.

A node says until when a lease lasts by its clock, how late it was there, and for how long it had
kept the request. The end taken here, ``asked + waited + (until - now)`` less one tick of the node's
clock, never lies after the node's, however long the answer was under way and whether this process
was paused meanwhile.

Pure; seconds of one monotonic clock, ms on the wire.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple, cast

from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.messages import Message, in_light_queue, messages_of
from twinlog.wire.frames import Frame, FrameError

READY: Final = 0
HANDED: Final = 1
SETTLED: Final = 2

TICK_SECONDS: Final = 0.001
"""A node's clock counts whole ms: a lease may end there so much before its length has passed."""


class Held:
    """A message that this member holds under a lease.

    Attributes:
        message: What was stored.
        share: The group's number for the queue.
        n: Number of the lease in that share.
        offset: Queue offset.
        attempt: How often it has been handed out, this time included.
        ends: When the lease ends, seconds.
        state: `READY` (fetched ahead), `HANDED` (to the body) or `SETTLED`.
        begun: When it was handed to the body, seconds.
        extending: An extension was asked for and was not taken by the node.
        extended: When the extension that its end comes from was sent, seconds; 0: none was.
    """

    __slots__ = (
        "attempt", "begun", "ends", "extended", "extending", "message", "n", "offset", "share",
        "state",
    )  # fmt: skip

    def __init__(self, message: Message, share: int, n: int, attempt: int, ends: float) -> None:
        self.message = message
        self.share = share
        self.n = n
        self.offset = message.queue_offset
        self.attempt = attempt
        self.ends = ends
        self.state = READY
        self.begun = 0.0
        self.extending = False
        self.extended = 0.0


class PopRow(NamedTuple):
    """One run of an answer to a pop: ``many`` offsets from ``first`` on, in one lease."""

    topic: str
    queue: int
    share: int
    n: int
    first: int
    many: int
    attempt: int
    until: int
    records: int
    bytes: int


def leased(answer: Frame, asked: float, taken: float) -> list[Held]:
    """Return what a pop brought, in the order in which it is to be handled.

    Args:
        answer: Its shape is proven.
        asked: When the pop was sent, seconds.
        taken: When the answer was taken, seconds.

    Raises:
        FrameError: The rows do not fit the records.
        CorruptionError: A record is not what was written.
    """
    fields, found, at = answer.fields, list[Held](), 0
    rows = [PopRow(*row[:10]) for row in cast("list[list[Any]]", fields["rows"])]
    now, waited = cast("int", fields["now_ms"]), cast("int", fields["waited_ms"])
    begin = min(asked + waited / 1000, taken) - TICK_SECONDS
    for row in rows:
        end = at + row.bytes
        if row.bytes < 0 or end > len(answer.payload):
            raise FrameError("fields", "POP answer: a row has more bytes than there are")
        ends = begin + (row.until - now) / 1000
        for read in messages_of(answer.payload[at:end]):
            light = row.topic.startswith(LIGHT_PREFIX)
            message = in_light_queue(read, row.topic) if light else read
            if row.first <= message.queue_offset < row.first + row.many:
                found.append(Held(message, row.share, row.n, row.attempt, ends))
        at = end
    if at != len(answer.payload):
        raise FrameError("fields", "POP answer: there are bytes that no row has")
    return found
