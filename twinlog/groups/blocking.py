"""A member of a group, blocking: no thread of its own, so it speaks when it is used.

While the body of a loop runs, nothing is sent or received; what was noted leaves when the next
message is asked for. A body that may take longer than its lease has to `Delivery.extend` it.

Not here: what is asked and what answers mean (``twinlog.groups.core``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from twinlog.errors import TwinlogError, UsageError
from twinlog.groups.core import JOIN_SECONDS, Counts, GroupCore
from twinlog.groups.delivery import FAILED, Delivery, seconds_of
from twinlog.groups.dialogue import Dialogue
from twinlog.groups.leases import Held
from twinlog.groups.outcomes import Told
from twinlog.groups.settings import GroupSettings
from twinlog.groups.together import Step
from twinlog.session.caller import Caller
from twinlog.wire.groups import What


class Consumer:
    """A member of a group; made by `Client.consumer`, used by ``with``.

    Iterating yields a `Delivery` for each message, and waits for the next one for as long as a
    master answers. It joins the group when the first message is asked for. It belongs to one
    thread, and not to a forked child.

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
            StopIteration: The consumer is closed.
        """
        core, now = self._core, time.monotonic()
        if now < self._look_at and core.ready and not core.low:
            held = core.take(now)
            if held is not None:
                return Delivery(held, self)
        return self._next()

    def _next(self) -> Delivery:
        if self._closed:
            raise StopIteration
        core = self._core
        self._run_look()
        while (held := core.take(time.monotonic())) is None:
            self._raise_late()
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
        self._caller.run(self._dialogue.together(step, deadline, now_ms), self._own)

    def statistics(self) -> Counts:
        """Return what was done so far; the object keeps counting."""
        return self._core.counts

    def close(self) -> None:
        """Give back what is not settled, wait for the outcomes, leave the group; at most 5 s."""
        if self._closed:
            return
        self._closed = True
        if os.getpid() != self._pid:
            return
        self._core.close(time.monotonic(), FAILED)
        try:
            self._caller.run(self._dialogue.leave(), self._own)
        except TwinlogError:
            pass  # the leases end by time; nothing is lost
        finally:
            self._own.close()

    def tell(self, held: Held, told: Told) -> bool:
        """Note an outcome; for `Delivery`."""
        noted = self._core.settle(held, told, time.monotonic())
        if noted and told.what == What.EXTEND:
            self._core.urge()
            self._run_look()
        return noted

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

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
