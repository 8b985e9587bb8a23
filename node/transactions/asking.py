"""Asks producers what became of their transactions, on the acting master.

A producer that can tell has a request waiting (CHECKS). When a transaction is due, one of them gets
its open messages, once the rows that count the question are confirmed: so no master forgets a
question, and none counts while no producer is there. The answer, if it comes, is an END like any
other. Records are not copied for a question.

Synchronous; part of `node.transactions.service`. Not here: when what is due
(`node.transactions.checks`).

Source: RocketMQ 5.3 (``TransactionalMessageServiceImpl.check``), which stores a message again for
every question, and counts those that no producer heard.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from node.groups.context import ANSWER_SECONDS, Context
from node.transactions.checks import Ask, Asks, Checks, CheckSettings, parse_checks, refuse
from storage.messaging.halves import Half
from storage.state.sections import Outcome, Together
from twinlog.errors import Busy, TwinlogError, Unavailable
from twinlog.format.group_rows import CheckRow
from twinlog.units import MiB

if TYPE_CHECKING:
    from node.groups.context import Done, Turn
    from node.groups.parked import Asker

BYTES_MAX = 4 * MiB
"""Messages of one transaction that are asked about together; those of a client are fewer."""
PAUSE_MS = 1_000
"""From a question that could not be counted to the next try."""

Read = Callable[
    [Sequence[Half], Callable[[Sequence[Half], Sequence[memoryview]], None], "Done"], None
]
"""Calls its second argument with the records of messages, now or in a later turn; else the third
with an error."""


@dataclass(slots=True)
class CheckCounts:
    """Messages that were asked about, by what followed, since the start; never falls."""

    committed: int = 0
    rolled_back: int = 0
    none: int = 0


class Asking:
    """See the module.

    Args:
        context: The node.
        read: See `Read`.
        settings: When transactions are asked about.
    """

    def __init__(self, context: Context, read: Read, settings: CheckSettings) -> None:
        self._context = context
        self._read = read
        self._settings = settings
        self._asks = Asks()
        self._reign = 0
        self.due = Checks(settings)
        self.counts = CheckCounts()

    @property
    def parked(self) -> int:
        """Requests that wait to be asked now."""
        return self._asks.count

    def clear(self, error: TwinlogError | None = None) -> None:
        """A reign has ended, or begins; what waits is answered with the error."""
        self._reign += 1
        self.due.clear()
        if error is not None:
            refuse(self._asks.drain(), error)

    def forget(self, asker: Asker) -> None:
        """Drop the requests of a connection that is gone."""
        gone = Unavailable("the connection is gone")
        refuse(self._asks.drain(lambda ask: ask.asker is asker), gone)

    def checks(self, fields: Mapping[str, object], asker: Asker, done: Done, turn: Turn) -> None:
        """Let a CHECKS wait for a transaction that is due; `work` of this turn looks at it.

        Raises:
            UsageError: It makes no sense.
            Busy: Too many wait.
        """
        most = self._context.limits.long_poll_seconds_max
        self._asks.add(parse_checks(fields, asker, done, turn.now, most))

    def over(self, now: float) -> None:
        """Answer those whose time is over: nothing is due."""
        for ask in self._asks.over(now):
            ask.done(self._answer(()))

    def next_deadline(self, now: float) -> float:
        """Return when `work` has something to do, seconds of the loop's clock."""
        now_ms = self._now_ms()
        groups = [one for one in self._asks.groups() if self._asks.first(one) is not None]
        due = self.due.next_ms(groups, now_ms)
        at = float("inf") if due is None else now + max(0, due - now_ms) / 1000
        return min(at, self._asks.next_deadline())

    def work(self, now: float, now_ms: int) -> None:
        """Hand out what is due, then answer those whose time is over."""
        for group in self._asks.groups():
            while (ask := self._asks.first(group)) is not None:
                found = self._gather(ask, now_ms)
                if not found:
                    break
                self._asks.remove(ask)
                self._hand(ask, found)
        self.over(now)

    def _gather(self, ask: Ask, now_ms: int) -> list[list[Half]]:
        """Take as many due transactions as an answer holds, one at least if one is due."""
        ahead, found, size = self._context.messaging.ahead.halves, list[list[Half]](), 0
        while len(found) < ask.most:
            taken = within(self.due.take(ask.group, now_ms, ahead), BYTES_MAX)
            if not taken:
                break
            size += sum(half.size for half in taken)
            if found and size > self._context.limits.bytes_max:
                self.due.put(taken, ahead)
                break
            found.append(taken)
        return found

    def _hand(self, ask: Ask, found: Sequence[Sequence[Half]]) -> None:
        reign = self._reign

        def failed(
            outcome: Mapping[str, object] | TwinlogError, payload: Sequence[memoryview] = ()
        ) -> None:
            if isinstance(outcome, TwinlogError):
                self._back(found, reign)
                ask.done(outcome)

        def ask_them(halves: Sequence[Half], pieces: Sequence[memoryview]) -> None:
            if reign != self._reign:
                ask.done(self._context.refusal("not-master", ""))
            else:
                self._count(ask, found, pieces)

        try:
            self._read([half for one in found for half in one], ask_them, failed)
        except TwinlogError as error:
            failed(error)

    def _count(
        self, ask: Ask, found: Sequence[Sequence[Half]], pieces: Sequence[memoryview]
    ) -> None:
        """Append what counts the questions; they are asked when that is confirmed."""
        context, now = self._context, self._context.seconds()
        ahead, now_ms = context.messaging.ahead.halves, self._now_ms()
        ended = any(ahead.get(half.number) is None for one in found for half in one)
        if ask.asker.gone or ended:
            self._back(found, self._reign, pause=0)
            ask.done(Busy("a transaction was ended meanwhile", hint="ask again"))
            return
        rows = list[CheckRow]()
        for one in found:
            checks = max(half.checks for half in one) + 1
            again = now_ms + self._settings.pause(checks)
            rows += [CheckRow(half.number, checks, again) for half in one]
        refused: list[Together] = []

        def reply(outcome: Together, by: str | None) -> None:
            if outcome.outcome is Outcome.STORED:
                self.counts.none += sum(row.checks > 1 for row in rows)
                ask.done(self._answer(rows), pieces)
            elif outcome.outcome is Outcome.REFUSED:
                refused.append(outcome)
                ask.done(context.refusal(outcome.code, outcome.text))
            else:
                ask.done(Unavailable("not confirmed in time; ask again", code="unconfirmed"))

        context.driver.append_rows(now, rows, deadline=now + ANSWER_SECONDS, reply=reply)
        self._back(found, self._reign, pause=PAUSE_MS if refused else 0)

    def _answer(self, rows: Sequence[CheckRow]) -> Mapping[str, object]:
        told = [[row.half, row.checks] for row in rows]
        return {"rows": told, "epoch": self._context.driver.reign()[0]}

    def _back(self, found: Sequence[Sequence[Half]], reign: int, *, pause: int = PAUSE_MS) -> None:
        """Put transactions back, to be asked about when they are due next, after a pause."""
        if reign == self._reign:
            ahead = self._context.messaging.ahead.halves
            for one in found:
                self.due.put(one, ahead, self._now_ms() + pause if pause else 0)

    def _now_ms(self) -> int:
        return self._context.clock.read(self._context.wall_ms(), self._context.seconds())


def within(halves: Sequence[Half], size: int) -> list[Half]:
    """Return as many of the first as have that many bytes together, one at least."""
    found, total = list[Half](), 0
    for half in halves:
        total += half.size
        if found and total > size:
            break
        found.append(half)
    return found
