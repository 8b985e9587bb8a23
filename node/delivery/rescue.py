"""Has what waits for a time wait on in a newer log file, when its own is to leave.

Retention keeps a file while a message waits in it. When nothing else keeps the oldest file, the
master appends each of its waiting messages once more. Such a record names the one that it takes the
place of, so the message keeps its key: it is delivered once, whichever of both is read, and may
still be cancelled. Once the new records are dispatched on a node, nothing of the file waits there,
and that node deletes it.

One batch is under way at a time, of `BATCH_BYTES` or of one larger record. What the log refuses,
on a full disk for example, stays where it is and holds its file; it is tried again.

Delay levels are not rescued: what waits there comes within two hours, and its file leaves then.

Synchronous; part of `node.groups.service`, which knows the reign. Not here: when a file is to leave
(`storage.retention.policy`), what the new record looks like (`storage.messaging.copies.rescued`).

Source: RocketMQ's ``TimerMessageStore`` enters everything again every two days, whether its file is
to leave or not, and forgets what waits longer than the log is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from node.delivery.aside import PASSING, Aside
from node.delivery.service import BATCH_BYTES, HELD_SECONDS, RETRY_SECONDS
from node.turns.context import ANSWER_SECONDS
from storage.messaging.copies import rescued
from storage.messaging.timers import GRAIN, Key
from storage.read.lookups import OffLoopLookup
from storage.state.sections import Outcome, Section, Together
from twinlog.errors import TwinlogError
from twinlog.format.record import Record
from twinlog.format.waiting.timers import keys_of

if TYPE_CHECKING:
    from node.clients.lookups import Asked
    from node.turns.context import Context

PASS_SECONDS = 1.0
"""Between two looks at the whole file."""


class Rescue:
    """See the module.

    Args:
        context: The node.
        fetch: Has cold records fetched in a thread.

    Attributes:
        count: Messages that were appended again since the start.
    """

    def __init__(self, context: Context, fetch: Callable[[Asked[Any], Any, Any], None]) -> None:
        self._context = context
        self._aside = Aside(context, fetch)
        self.count = 0
        self._next = 0
        self._below = 0
        self._not_before = 0.0
        self._told = False
        self._told_below = -1

    def clear(self) -> None:
        """A reign has ended, or begins: nothing is known."""
        self._next, self._below, self._not_before, self._told = 0, 0, 0.0, False
        self._told_below = -1
        self._aside.clear()

    @property
    def _asked(self) -> bool:
        """Whether something keeps a file that is to leave; perhaps what waits for a time."""
        waiting = self._context.messaging.confirmed.timers.count
        return bool(waiting and self._context.driver.retention.held_for_groups)

    @property
    def ready(self) -> bool:
        """Whether `work` may have something to do."""
        if not self._asked or self._aside.busy:
            return False
        return self._context.seconds() >= self._not_before

    def next_deadline(self) -> float:
        """Return when `work` may have something to do, seconds of the loop's clock."""
        return self._not_before if self._asked and not self._aside.busy else float("inf")

    def work(self, now: float) -> None:
        """Append what is next of the file that is to leave, or have it read."""
        if self._aside.busy or now < self._not_before or not self._asked:
            return
        context = self._context
        below = context.driver.retention.held_for_groups
        least = context.messaging.confirmed.timers.least()
        if least is None or least >= below:  # something else keeps it
            self._not_before = now + PASS_SECONDS
            return
        below = -(-below // GRAIN) * GRAIN  # what waits is known by the grain
        if below != self._below:
            self._below, self._next = below, 0
        try:
            most = min(BATCH_BYTES, context.driver.store.settings.batch_length_max) // 2
            places, self._next = context.messaging.timers_below(below, self._next, most)
            if self._next < 0:  # the next pass finds what the rows of this one did not reach
                self._next, self._not_before = 0, now + PASS_SECONDS
            if places:
                self._read(places, now)
        except TwinlogError as error:
            self._refused(now, error.code, str(error))

    def _read(self, places: Sequence[tuple[int, int]], now: float) -> None:
        records = self._context.records
        read = records.stretches(places)
        if not isinstance(read, OffLoopLookup):
            self._append(read, now)
            return

        def then(found: Sequence[memoryview]) -> None:
            self._append(found, self._context.seconds())

        def failed(error: TwinlogError) -> None:
            self._refused(self._context.seconds(), error.code, str(error))

        self._aside.fetch(read, lambda outcome: records.looked_at(read, outcome), then, failed)

    def _append(self, pieces: Sequence[memoryview], now: float) -> None:
        context, aside = self._context, self._aside
        # `timers_below` bounds what is read; one record may be larger than that, and must fit.
        size = context.driver.store.settings.batch_length_max
        found: list[Key] = []

        def waits(one: Record) -> Key | None:
            key = self._waits(one)
            if key is not None:
                found.append(key)
            return key

        copy = rescued(pieces, waits, family=context.family, size=size)
        if not copy.records:
            if found:
                self._stuck()
            return
        aside.busy, reign = True, aside.reign

        def reply(done: Together, by: str | None) -> None:
            if reign != aside.reign:
                return
            aside.busy = False
            if done.outcome is Outcome.STORED:
                self._told = False
                self.count += copy.records
                context.tell("rescued", "info", messages=copy.records, bytes=len(copy.data))
            elif done.outcome is Outcome.REFUSED:
                self._refused(context.seconds(), done.code, done.text)

        section = Section(copy.topic, copy.queue, copy.records, copy.data, own=True)
        context.driver.append_rows(
            now, [], sections=[section], deadline=now + ANSWER_SECONDS, reply=reply
        )

    def _waits(self, one: Record) -> Key | None:
        """Return the key of the message that waits in a record; None: none does any more."""
        timers = self._context.messaging.timers
        for due, offset in keys_of(one.properties, one.store_timestamp, one.log_offset):
            if timers.is_at(due, offset, one.log_offset):
                return due, offset
        return None

    def _stuck(self) -> None:
        """What was read has no room for what says which messages it is; the pass goes on."""
        if self._told_below != self._below:
            self._told_below = self._below
            why = "the record has no room for the address of its message"
            self._context.tell("rescue_held", "error", below=self._below, code="too-large", why=why)

    def _refused(self, now: float, code: str, why: str) -> None:
        """It stays, and holds its file; it is tried again."""
        self._next = 0
        self._not_before = now + (RETRY_SECONDS if code in PASSING else HELD_SECONDS)
        if code not in PASSING and not self._told:
            self._told = True
            self._context.tell("rescue_held", "error", below=self._below, code=code, why=why)
