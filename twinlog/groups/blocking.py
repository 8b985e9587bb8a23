"""A member of a group, blocking: no thread of its own, so it speaks when it is used.

While the body of a loop runs, nothing is sent or received; what was noted leaves when the next
message is asked for. A body that may take longer than its lease has to `Delivery.extend` it.

Not here: what is asked and what answers mean (``twinlog.groups.core``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from twinlog.consumer.core import ReaderCore, ReadSettings
from twinlog.consumer.fetching import Fetching
from twinlog.errors import TwinlogError, UsageError
from twinlog.format.messages import Message
from twinlog.groups.core import CLOSE_SECONDS, JOIN_SECONDS, Counts, GroupCore
from twinlog.groups.delivery import FAILED, Delivery, seconds_of
from twinlog.groups.dialogue import Dialogue
from twinlog.groups.leases import Held
from twinlog.groups.outcomes import Told
from twinlog.groups.seat import Seat
from twinlog.groups.settings import GroupSettings
from twinlog.groups.together import Step
from twinlog.session.caller import Caller
from twinlog.wire.groups import What


class Consumer:
    """A member of a group; made by `Client.consumer`, used by ``with``.

    Iterating yields a `Delivery` for each message, and waits for the next one for as long as a
    master answers. It joins the group when the first message is asked for. It belongs to one
    thread at a time, and not to a forked child: what a second thread asks meanwhile, an outcome
    too, is refused (`UsageError`) and changes nothing.

    The end of the block gives back what is not settled, waits for the outcomes and leaves the
    group, all within 5 s.

    Args:
        caller: Of the client.
        settings: Which group, and how.
    """

    def __init__(self, caller: Caller, settings: GroupSettings) -> None:
        self._caller = caller
        self._settings = settings
        self._core = GroupCore(settings, time.monotonic())
        self._dialogue = Dialogue(caller.session, self._core)
        self._own = caller.own()
        self._look_at = 0.0
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._closed = False

    def __enter__(self) -> Self:
        """Return the consumer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close; raise `LeaseLost` for outcomes that changed nothing, unless an error is raised."""
        self.close()
        lost = self._core.collect()
        if lost and kind is None:
            raise lost[0]

    def __iter__(self) -> Iterator[Delivery]:
        """Return itself."""
        return self

    def __next__(self) -> Delivery:
        """Return the next message; waits for it.

        Raises:
            LeaseLost: A body took longer than its lease, and the message was handed out again.
            UnknownGroup, GroupDiffers: The group does not exist, or has another mode or filter.
            Unavailable: No master answered for ``timeout``; the iteration can go on.
            UsageError: Of an ordered group: the message before is not settled.
            StopIteration: The consumer is closed.
        """
        if not self._lock.acquire(False):
            raise _two_threads()
        try:
            core, now = self._core, time.monotonic()
            if now < self._look_at and core.ready and not core.low:
                held = core.take(now)
                if held is not None:
                    return Delivery(held, self)
            return self._next()
        finally:
            self._lock.release()

    def _next(self) -> Delivery:
        if self._closed:
            raise StopIteration
        core = self._core
        self._run_look()
        while (held := core.take(time.monotonic())) is None:
            self._raise_late()
            if core.blocked:
                text = "the next message of an ordered queue comes once the one before is settled"
                hint = "call ack(), retry() or reject() of it first"
                raise UsageError(text, code="unsettled", hint=hint)
            core.wait(time.monotonic())
            self._turn(time.monotonic() + 3600.0)
        self._raise_late(held)
        return Delivery(held, self)

    def pop(self, max: int = 1, wait: float | str = 0.0) -> list[Delivery]:
        """Return up to ``max`` messages that are there within ``wait``; else none.

        Args:
            max: At most the consumer's ``batch``.
            wait: Seconds, or text with a unit.

        Raises:
            TwinlogError: As iterating.
        """
        if not 1 <= max <= self._settings.batch:
            text = f"max is {max}; it must be 1 to the consumer's batch, {self._settings.batch}"
            raise UsageError(text, code="fields")
        with self._alone():
            return self._pop(max, wait)

    def _pop(self, max: int, wait: float | str) -> list[Delivery]:
        if self._closed:
            raise UsageError("the consumer is closed", code="closed")
        core, began = self._core, time.monotonic()
        end, found, asked = began + seconds_of(wait), list[Delivery](), False
        self._run_look()
        try:
            while not found:
                self._raise_late()
                while len(found) < max and (held := core.take(time.monotonic())):
                    found.append(Delivery(held, self))
                now = time.monotonic()
                if found or (asked and now >= end and not core.answers(began, end, now)):
                    break
                core.wait(now, most=max, seconds=end - now if end > now else 0.0)
                asked = True
                self._turn(end if now < end else now + 0.1)
        finally:
            core.go_on()
        return found

    def settle(self, timeout: float | None = None) -> None:
        """Wait until everything said so far is confirmed.

        Args:
            timeout: Seconds; None: the client's.

        Raises:
            LeaseLost: The first that changed nothing since the last call: the lease was over.
            Unavailable: Not all was confirmed in time; it is sent again.
        """
        seconds = self._settings.timeout if timeout is None else timeout
        self._check_process()
        deadline = time.monotonic() + seconds
        with self._alone():
            lost = self._caller.run(self._dialogue.settle(deadline), self._own)
        if lost:
            raise lost[0]

    @contextmanager
    def together(self, *, timeout: float | None = None) -> Generator[Step]:
        """Send and acknowledge in one batch, all of it or nothing, at the end of the block.

        Args:
            timeout: Seconds; None: the consumer's.

        Raises:
            LeaseLost: Nothing was done: a message was handed out again meanwhile.
            OutcomeUnknown: It may or may not be done; what was not done comes again.
            TwinlogError: Nothing was done.
        """
        step = Step(self._core)
        yield step
        if step.empty:
            return
        self._check_process()
        seconds = self._settings.timeout if timeout is None else timeout
        now_ms, deadline = time.time_ns() // 1_000_000, time.monotonic() + seconds
        with self._alone():
            self._caller.run(self._dialogue.together(step, deadline, now_ms), self._own)

    def statistics(self) -> Counts:
        """Return what was done so far; the object keeps counting."""
        return self._core.counts

    def close(self) -> None:
        """Give back what is not settled, wait for the outcomes, leave the group; at most 5 s."""
        if self._closed:
            return
        if os.getpid() != self._pid:
            self._closed = True
            return
        with self._alone():
            self._closed = True
            self._core.close(time.monotonic(), FAILED)
            try:
                self._caller.run(self._dialogue.leave(), self._own)
            except TwinlogError:
                pass  # the leases end by time; nothing is lost
            finally:
                self._own.close()

    def tell(self, held: Held, told: Told) -> bool:
        """Note an outcome; for `Delivery`."""
        if not self._lock.acquire(False):
            raise _two_threads()
        try:
            noted = self._core.settle(held, told, time.monotonic())
            if noted and told.what == What.EXTEND:
                self._core.urge()
                self._run_look()
            return noted
        finally:
            self._lock.release()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keep other threads out; refuse where one is inside."""
        if not self._lock.acquire(False):
            raise _two_threads()
        try:
            yield
        finally:
            self._lock.release()

    def _run_look(self) -> None:
        self._check_process()
        self._caller.run(self._dialogue.look(), self._own)
        self._look_at = time.monotonic() + JOIN_SECONDS

    def _turn(self, until: float) -> None:
        self._caller.run(self._dialogue.turn(until), self._own)

    def _raise_late(self, held: Held | None = None) -> None:
        """Raise what a body was too slow for; the message at hand is given back."""
        late = self._core.late()
        if late is None:
            return
        if held is not None:
            self._core.settle(held, Told(What.UNUSED), time.monotonic())
        raise late

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            text = "a consumer belongs to the process that made it"
            raise UsageError(text, hint="make one in the child: client.consumer(...)")


def _two_threads() -> UsageError:
    hint = "make one consumer for each thread: client.consumer(group, topic)"
    text = "two threads use one consumer at the same time; nothing was done"
    return UsageError(text, code="threads", hint=hint)


class Deliveries(Iterator[Delivery]):
    """The messages of `Client.consume`: each is acknowledged when the next one is asked for.

    A loop that is left by an error or ``break`` counts its message as failed and leaves the group.
    """

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self._messages = _acknowledged(consumer)

    def __iter__(self) -> Iterator[Delivery]:
        """Return what yields the messages; the same every time."""
        return self._messages

    def __next__(self) -> Delivery:
        """Return the next message; see `Consumer.__next__`."""
        return next(self._messages)

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Count the message at hand as failed, give back the others, leave the group."""
        self._messages.close()
        self.consumer.close()


def _acknowledged(consumer: Consumer) -> Generator[Delivery, None, None]:
    # Knows nothing of `Deliveries`: a loop that is left must free this at once, without a cycle.
    try:
        for message in consumer:
            yield message
            if not message.settled:
                message.ack()
    finally:
        consumer.close()


class Broadcast(Iterator[Message]):
    """A member of a broadcast group: all messages of a topic, and a position of its own.

    The position moves over a message when the next one is asked for; it is stored after each
    answer of a node is handled, at least every second, and at the end. A loop that is left by an
    error or ``break`` leaves its message to be read again. It reads from any node, also while there
    is no master.

    Args:
        caller: Of the client.
        settings: Which group, and the member's name.
        reads: What is read.
    """

    def __init__(self, caller: Caller, settings: GroupSettings, reads: ReadSettings) -> None:
        self._caller, self._settings, self._reads = caller, settings, reads
        self._seat = Seat(caller.session, settings)
        self._own = caller.own()
        self._messages = self._read()
        self._closed = False

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close."""
        self.close()

    def __next__(self) -> Message:
        """Return the next message; waits for it.

        Raises:
            NotMember: Another process is a member under this name.
            UnknownGroup, GroupDiffers: The group does not exist, or has another mode or filter.
            OffsetGone: Retention has deleted messages that were not read; reset the group.
            Unavailable: No node answered, or no master took positions, for ``timeout``.
        """
        return next(self._messages)

    def commit(self, timeout: float | None = None) -> None:
        """Wait until the positions so far are stored; the message at hand is not among them.

        Raises:
            Unavailable: They were not in time; they may or may not be.
        """
        seconds = self._settings.timeout if timeout is None else timeout
        self._caller.run(self._seat.commit(time.monotonic() + seconds), self._own)

    def close(self) -> None:
        """Store the positions and leave the group; at most 5 s."""
        if self._closed:
            return
        self._closed = True
        self._messages.close()
        try:
            self._caller.run(self._seat.leave(time.monotonic() + CLOSE_SECONDS), self._own)
        except TwinlogError:
            pass  # what is not stored is read again
        finally:
            self._own.close()

    def _read(self) -> Generator[Message, None, None]:
        caller, seat = self._caller, self._seat
        caller.run(seat.join(time.monotonic() + self._settings.timeout), self._own)
        while True:
            now, table = time.monotonic(), caller.session.table
            core = ReaderCore(self._reads, seat.cursors(), table, now)
            fetching, own = Fetching(caller.session, core), caller.own()
            try:
                while True:
                    messages = caller.run(fetching.fetch(once=True), own)
                    moved = yield from self._handed(messages or (), core)
                    if moved:
                        break
            finally:
                own.close()

    def _handed(
        self, messages: Iterable[Message], core: ReaderCore
    ) -> Generator[Message, None, bool]:
        """Yield what a fetch brought; return whether the positions were moved meanwhile."""
        seat = self._seat
        for message in messages:
            yield message
            seat.note(message.queue, message.next)
            if seat.due(time.monotonic(), idle=False) and self._speak():
                return True
        for cursor in core.cursors:  # what a filter leaves out is handled, too
            seat.note(cursor.queue, cursor.next)
        core.consumed(time.monotonic())
        return seat.due(time.monotonic(), idle=True) and self._speak()

    def _speak(self) -> bool:
        return self._caller.run(self._seat.speak(), self._own)
