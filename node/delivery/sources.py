"""What waits, as deliveries have to see it: delay levels, and times; see `node.delivery.service`.

The queue of a level is the index of what is due (`twinlog.format.waiting.delay_levels`); how far it
is delivered is a row of the log (`DelayRow`). What waits for a time is part of the fold
(`storage.messaging.timers`).

A cancel is a row. It binds from its append, because deliveries go by what is appended, and is
answered at its confirm: what was answered ``cancelled`` never comes, what was refused as too late
has come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from storage.messaging.timers import Waiting
from storage.progress import StoreMessaging
from twinlog.errors import Busy, TooLate, TwinlogError
from twinlog.format.group_rows import DelayRow, TimerRow
from twinlog.format.record import Record
from twinlog.format.waiting.delay_levels import LEVELS
from twinlog.format.waiting.timers import DEQUEUED_MS, ENQUEUED_MS

if TYPE_CHECKING:
    from node.delivery.service import DeliveryCounts
    from node.turns.context import Context, Done, Turn

LEVEL_RECORDS = 512
"""Records of one batch of a level: some ten milliseconds of the loop."""
TIMER_RECORDS = 4_096
"""Records of one batch of what waits for a time."""


class Levels:
    """What waits for delay levels, a line for each; a `node.delivery.service.Source`.

    Args:
        messaging: What waits.
    """

    lines = range(1, LEVELS + 1)
    held = "delay_held"
    ordered = True

    def __init__(self, messaging: StoreMessaging) -> None:
        self._messaging = messaging

    @property
    def changes(self) -> int:
        """See `Source`."""
        return self._messaging.delayed

    def due(self, line: int, until_ms: int, size: int) -> Sequence[Waiting]:
        """See `Source`."""
        return self._messaging.due(line, until_ms, LEVEL_RECORDS, size)

    def first(self, line: int) -> Waiting | None:
        """See `Source`."""
        return next(iter(self._messaging.due(line, 1 << 62, 1)), None)

    def row(self, line: int, passed: Sequence[Waiting]) -> DelayRow:
        """See `Source`."""
        return DelayRow(line, self._messaging.delay_first(line) + len(passed))

    def added(self, record: Record, now_ms: int) -> Mapping[str, str]:
        """See `Source`; RocketMQ adds nothing."""
        return {}

    def place(self, line: int) -> Mapping[str, object]:
        """See `Source`."""
        return {"delay_level": line, "offset": self._messaging.delay_first(line)}


class Timers:
    """What waits for a time, in one line; a `node.delivery.service.Source`.

    Args:
        context: The node.
        counts: What is counted.
    """

    lines = (0,)
    held = "timer_held"
    ordered = False

    def __init__(self, context: Context, counts: DeliveryCounts) -> None:
        self._context = context
        self._counts = counts

    @property
    def changes(self) -> int:
        """See `Source`."""
        return self._context.messaging.confirmed.timers.changes

    def due(self, line: int, until_ms: int, size: int) -> Sequence[Waiting]:
        """See `Source`."""
        return self._context.messaging.timers.due(until_ms, TIMER_RECORDS, size)

    def first(self, line: int) -> Waiting | None:
        """See `Source`; none while as many deliveries are under way as may be."""
        return next(iter(self._context.messaging.timers.due(1 << 62, 1, 0)), None)

    def row(self, line: int, passed: Sequence[Waiting]) -> TimerRow:
        """See `Source`."""
        last = passed[-1]
        return TimerRow(last.due, last.offset, self._context.records.dispatched)

    def added(self, record: Record, now_ms: int) -> Mapping[str, str]:
        """See `Source`: as RocketMQ's copies."""
        return {ENQUEUED_MS: str(record.store_timestamp), DEQUEUED_MS: str(now_ms)}

    def place(self, line: int) -> Mapping[str, object]:
        """See `Source`."""
        return {"due_ms": self._context.messaging.timers.next_due()}

    def cancel(self, fields: Mapping[str, object], done: Done, turn: Turn) -> None:
        """Decide a CANCEL.

        Raises:
            TooLate: The message was delivered, or is on its way.
            Busy: Its record is not dispatched yet.
        """
        offset, due_ms = fields["log_offset"], fields["due_ms"]
        assert isinstance(offset, int) and isinstance(due_ms, int), "the schema says so"
        context = self._context
        timers = context.messaging.timers

        def answer(error: TwinlogError | None) -> None:
            if error is None:
                self._counts.cancelled += 1
            done(error or {"epoch": context.driver.reign()[0]})

        if timers.was_cancelled(offset):
            turn.answers.append(answer)  # after the row that it repeats
        elif (row := timers.cancelling(due_ms, offset)) is not None:
            turn.scratch.rows.append(row)
            turn.answers.append(answer)
        elif offset >= context.records.dispatched:
            raise Busy("the message is not in its queue yet", hint="ask again")
        else:
            raise TooLate(f"no message waits at {offset} for {due_ms}: it was delivered")
