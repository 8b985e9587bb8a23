"""Questions to the register: one at a time, each with three outcomes.

A question that nobody answered may still be carried out, at any later time. So the same question is
asked again, unchanged, until the answer or a newer revision settles it; the answer to an older copy
is good news like any other, because it carries the state.

Units: seconds. Not here: what to ask (``core``), sending (the coordinator's client).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from replication.commands import Coordinate
from replication.context import Context
from replication.register_ops import Operation, Report

LOST_SECONDS = 10.0
"""A call whose answer was never reported is over by then; the outside answers after about 1 s."""


@dataclass(frozen=True, slots=True)
class Call:
    """The question under way."""

    number: int
    op: Operation
    sent_at: float


class Calls:
    """See the module.

    Attributes:
        under_way: The question that waits for its answer.
        quiet_until: Nothing is asked before.
        heard_at: When the register was last heard.
    """

    def __init__(self, context: Context, now: float) -> None:
        self._context = context
        self._number = 0
        self.under_way: Call | None = None
        self.quiet_until = now
        self.heard_at: float | None = None

    def may_ask(self, now: float) -> bool:
        """Whether a question may go out now."""
        call = self.under_way
        if call is not None and now >= call.sent_at + LOST_SECONDS:
            self.under_way = call = None
        return call is None and now >= self.quiet_until

    def ask(self, now: float, op: Operation) -> None:
        """Send a question, with what we last saw of the register."""
        context = self._context
        seen = context.newest
        if seen is not None and seen.revision >= context.promise.revision:
            known = (seen.register_id, seen.revision, seen.tag)
        else:
            promise = context.promise
            known = (promise.register_id, promise.revision, promise.tag)
        self._number += 1
        op = replace(op, report=Report(context.node.name, *known))
        self.under_way = Call(self._number, op, now)
        context.do(Coordinate(self._number, op))

    def answered(self, number: int) -> Operation | None:
        """Return the operation that ``number`` answers; None for a call given up before."""
        call = self.under_way
        if call is None or call.number != number:
            return None
        self.under_way = None
        return call.op

    def pause(self, now: float) -> None:
        """Ask nothing for a while."""
        context = self._context
        self.quiet_until = (
            now + context.settings.coordinator_retry_seconds * context.jitter.factor()
        )

    def next_deadline(self) -> float:
        """Return when a question may go out again."""
        if self.under_way is not None:
            return self.under_way.sent_at + LOST_SECONDS
        return self.quiet_until
