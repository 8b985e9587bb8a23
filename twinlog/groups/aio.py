"""A member of a group, awaiting: one task speaks to the master, one listens.

Unlike the blocking one it keeps time by itself: outcomes leave after some milliseconds, the member
is heard of while a body runs, and the leases of what bodies have are extended (``renew``).

Not here: what is asked and what answers mean (``twinlog.groups.core``).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self, TypeVarTuple

import anyio
from anyio.abc import TaskGroup

from twinlog.consumer.core import ReaderCore, ReadSettings
from twinlog.consumer.fetching import Fetching
from twinlog.errors import TwinlogError, Unavailable, UsageError
from twinlog.format.messages import Message
from twinlog.groups.core import CLOSE_SECONDS, Counts, GroupCore
from twinlog.groups.delivery import FAILED, Delivery, seconds_of
from twinlog.groups.dialogue import SEND_SECONDS, Dialogue
from twinlog.groups.leases import Held
from twinlog.groups.outcomes import Told
from twinlog.groups.seat import Seat
from twinlog.groups.settings import GroupSettings
from twinlog.groups.together import Step
from twinlog.session.aio_caller import AsyncCaller
from twinlog.session.aio_connection import AsyncConnection
from twinlog.session.session import LinkDown
from twinlog.wire.frames import Frame, FrameError
from twinlog.wire.groups import What

Ts = TypeVarTuple("Ts")


class AsyncConsumer:
    """A member of a group; made by `AsyncClient.consumer`, used by ``async with``.

    As `Consumer`, and many tasks may settle what one iteration hands out. The end of the block
    gives back what is not settled, waits for the outcomes and leaves the group, all within 5 s,
    also when it is cancelled.

    Args:
        caller: Of the client.
        settings: Which group, and how.
    """

    def __init__(self, caller: AsyncCaller, settings: GroupSettings) -> None:
        self._caller = caller
        self._settings = settings
        self._own = caller.own()
        self._core: GroupCore | None = None
        self._dialogue: Dialogue | None = None
        self._listening: AsyncConnection | None = None
        self._wake = anyio.Event()
        self._moved = anyio.Event()
        self._group: TaskGroup | None = None
        self._services: list[anyio.CancelScope] = []
        self._stepping = anyio.Lock()
        self._error: TwinlogError | None = None

    async def __aenter__(self) -> Self:
        """Begin to join."""
        self._core = GroupCore(self._settings, anyio.current_time())
        self._dialogue = Dialogue(self._caller.session, self._core)
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._serve(self._run, self._core, self._dialogue)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Leave; raise `LeaseLost` for outcomes that changed nothing, unless an error is raised."""
        group, core = self._group, self._core
        assert group is not None and core is not None, "entered"
        with anyio.CancelScope(shield=True):
            core.close(anyio.current_time(), FAILED)
            self._wake.set()
            while not core.closed(anyio.current_time()) and self._error is None:
                await self._moved.wait()
        for service in list(self._services):
            service.cancel()
        try:
            await group.__aexit__(None, None, None)
        finally:
            self._stir()
            await self._own.close()
        lost = core.collect()
        if lost and kind is None:
            raise lost[0]

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Return itself."""
        return self

    async def __anext__(self) -> Delivery:
        """Return the next message; errors as of `Consumer.__next__`. Cancelled, none was taken."""
        core = self._started
        while True:
            self._raise()
            before = core.renew_at
            held = core.take(anyio.current_time())
            if held is not None:
                if core.low or core.renew_at < before:
                    self._wake.set()
                return Delivery(held, self)
            core.wait(anyio.current_time())
            self._wake.set()
            await self._moved.wait()
            core = self._started

    async def pop(self, max: int = 1, wait: float | str = 0.0) -> list[Delivery]:
        """Return up to ``max`` messages that are there within ``wait``; see `Consumer.pop`.

        Cancelled, none was taken.
        """
        if not 1 <= max <= self._settings.batch:
            text = f"max is {max}; it must be 1 to the consumer's batch, {self._settings.batch}"
            raise UsageError(text, code="fields")
        core, began = self._started, anyio.current_time()
        end, found, asked = began + seconds_of(wait), list[Delivery](), False
        try:
            while not found:
                self._raise()
                while len(found) < max and (held := core.take(anyio.current_time())):
                    found.append(Delivery(held, self))
                now = anyio.current_time()
                if found or (asked and now >= end and not core.answers(began, end, now)):
                    break
                core.wait(now, most=max, seconds=end - now if end > now else 0.0)
                asked = True
                self._wake.set()
                with anyio.move_on_after(end - now if now < end else 0.1):
                    await self._moved.wait()
        finally:
            core.go_on()
            self._wake.set()
        return found

    async def settle(self, timeout: float | None = None) -> None:
        """Wait until everything said so far is confirmed; errors as of `Consumer.settle`.

        Cancelled, it is confirmed later, or told by the next `settle`.
        """
        core = self._started
        with anyio.move_on_after(self._settings.timeout if timeout is None else timeout) as scope:
            while not core.settled:
                self._raise()
                core.urge()
                self._wake.set()
                await self._moved.wait()
        if scope.cancelled_caught:
            raise Unavailable("not every outcome was confirmed in time; they are sent again")
        lost = core.collect()
        if lost:
            raise lost[0]

    @asynccontextmanager
    async def together(self, *, timeout: float | None = None) -> AsyncGenerator[Step]:
        """Send and acknowledge in one batch, all of it or nothing; as `Consumer.together`.

        Cancelled at the end of its block, it may or may not be done.
        """
        core = self._started
        step = Step(core)
        yield step
        if step.empty:
            return
        seconds = self._settings.timeout if timeout is None else timeout
        deadline = anyio.current_time() + seconds
        now_ms = time.time_ns() // 1_000_000
        async with self._stepping:
            prepare = step.prepare(self._caller.session, deadline, now_ms)
            request = await self._caller.run(prepare)
            core.begin(request)
            self._wake.set()
            while (answer := core.answered(deadline, anyio.current_time())) is None:
                self._raise()
                with anyio.move_on_after(max(0.0, deadline - anyio.current_time())):
                    await self._moved.wait()
        step.finish(answer)

    def statistics(self) -> Counts:
        """Return what was done so far; the object keeps counting."""
        return self._core.counts if self._core is not None else Counts()

    def tell(self, held: Held, told: Told) -> bool:
        """Note an outcome; for `Delivery`."""
        core = self._started
        noted = core.settle(held, told, anyio.current_time())
        if noted and told.what == What.EXTEND:
            core.urge()
        self._wake.set()
        return noted

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    @property
    def _started(self) -> GroupCore:
        if self._core is None or self._core.closing:
            raise UsageError("a consumer is used inside its async with block", code="closed")
        return self._core

    def _raise(self) -> None:
        """Raise what ended the member, or what a body was too slow for."""
        if self._error is not None:
            raise self._error
        late = self._core.late() if self._core is not None else None
        if late is not None:
            raise late

    def _serve(self, task: Callable[[*Ts], Awaitable[None]], *args: *Ts) -> None:
        """Start a task that a cancellation from outside does not end: the member has to leave."""
        assert self._group is not None, "entered"
        scope = anyio.CancelScope(shield=True)
        self._services.append(scope)

        async def run() -> None:
            with scope:
                await task(*args)
            self._services.remove(scope)

        self._group.start_soon(run)

    def _stir(self) -> None:
        """Wake everybody who waits for a message or an outcome."""
        self._moved.set()
        self._moved = anyio.Event()

    async def _run(self, core: GroupCore, dialogue: Dialogue) -> None:
        """Send what is to be sent, until the member has left; wakes for whatever is noted."""
        try:
            while not core.closed(anyio.current_time()):
                self._wake = anyio.Event()
                await self._speak(core, dialogue)
                self._stir()
                now = anyio.current_time()
                with anyio.move_on_after(max(0.0, core.wake(now) - now)):
                    await self._wake.wait()
                if core.silent(anyio.current_time()):
                    await self._caller.run(dialogue.doubt(), self._own)
        except TwinlogError as error:
            self._error = error
        finally:
            self._stir()

    async def _speak(self, core: GroupCore, dialogue: Dialogue) -> None:
        now = anyio.current_time()
        if core.unrouted and now >= core.retry_at:
            await self._caller.run(dialogue.route(), self._own)
        connection = self._own.connection
        if connection is None:
            return
        if connection is not self._listening:
            self._listening = connection
            self._serve(self._listen, dialogue, connection)
        for request in core.requests(anyio.current_time()):
            if self._own.connection is not connection or core.unrouted:
                core.unsent(request)
                continue
            # The answer may come before `send` returns.
            core.on_sent(connection.next_number, request, anyio.current_time())
            try:
                frame = Frame(request.type, fields=request.fields)
                pieces = [request.payload] if request.payload else ()
                await connection.send(frame, SEND_SECONDS, pieces)
            except LinkDown as down:
                await self._drop(dialogue, connection, down.why)

    async def _listen(self, dialogue: Dialogue, connection: AsyncConnection) -> None:
        """Take the answers of one connection until it ends."""
        try:
            while True:
                answer = await connection.take()
                if answer is None or self._own.connection is not connection:
                    continue
                self._caller.session.now = anyio.current_time()
                dialogue.heard(answer)
                self._wake.set()
                self._stir()
        except FrameError as error:
            await self._drop(dialogue, connection, f"broke the protocol: {error.text}")
        except LinkDown as down:
            await self._drop(dialogue, connection, down.why)
        except TwinlogError as error:
            self._error = error
            self._wake.set()
            self._stir()

    async def _drop(self, dialogue: Dialogue, connection: AsyncConnection, why: str) -> None:
        """Give up a connection; what was under way is sent again."""
        if self._own.connection is connection:
            self._caller.session.now = anyio.current_time()
            try:
                dialogue.lost(why)
            except TwinlogError as error:
                self._error = error
            await self._own.close()
        self._wake.set()


class AsyncDeliveries(AsyncIterator[Delivery]):
    """The messages of `AsyncClient.consume`: each is acknowledged when the next one is asked for.

    Used by ``async with``, for a loop that is left has to be noticed: it counts its message as
    failed and leaves the group.
    """

    def __init__(self, consumer: AsyncConsumer) -> None:
        self.consumer = consumer
        self._messages = self._run()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        """Return what yields the messages; the same every time."""
        return self._messages

    async def __anext__(self) -> Delivery:
        """Return the next message; see `AsyncConsumer.__anext__`."""
        return await anext(self._messages)

    async def __aenter__(self) -> Self:
        """Join the group."""
        await self.consumer.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Count the message at hand as failed, give back the others, leave the group."""
        try:
            await self._messages.aclose()
        finally:
            await self.consumer.__aexit__(kind, error, trace)

    async def _run(self) -> AsyncGenerator[Delivery, None]:
        async for message in self.consumer:
            yield message
            if not message.settled:
                message.ack()


class AsyncBroadcast(AsyncIterator[Message]):
    """A member of a broadcast group, used by ``async with``, then ``async for``; as `Broadcast`.

    Args:
        caller: Of the client.
        settings: Which group, and the member's name.
        reads: What is read.
    """

    def __init__(self, caller: AsyncCaller, settings: GroupSettings, reads: ReadSettings) -> None:
        self._caller, self._settings, self._reads = caller, settings, reads
        self._seat = Seat(caller.session, settings)
        self._own = caller.own()
        self._messages = self._read()

    async def __aenter__(self) -> Self:
        """Return itself."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Store the positions and leave the group; at most 5 s, also when it is cancelled."""
        with anyio.CancelScope(shield=True):
            await self._messages.aclose()
            try:
                end = anyio.current_time() + CLOSE_SECONDS
                await self._caller.run(self._seat.leave(end), self._own)
            except TwinlogError:
                pass  # what is not stored is read again
            finally:
                await self._own.close()

    async def __anext__(self) -> Message:
        """Return the next message; errors as of `Broadcast`. Cancelled, the read has ended."""
        return await anext(self._messages)

    async def commit(self, timeout: float | None = None) -> None:
        """Wait until the positions so far are stored; as `Broadcast.commit`."""
        seconds = self._settings.timeout if timeout is None else timeout
        await self._caller.run(self._seat.commit(anyio.current_time() + seconds), self._own)

    async def _read(self) -> AsyncGenerator[Message, None]:
        caller, seat = self._caller, self._seat
        await caller.run(seat.join(anyio.current_time() + self._settings.timeout), self._own)
        while True:
            now, table = anyio.current_time(), caller.session.table
            core = ReaderCore(self._reads, seat.cursors(), table, now)
            fetching, own = Fetching(caller.session, core), caller.own()
            moved = False
            try:
                while not moved:
                    for message in await caller.run(fetching.fetch(once=True), own) or ():
                        yield message
                        seat.note(message.queue, message.next)
                        if seat.due(anyio.current_time(), idle=False) and await self._speak():
                            moved = True
                            break
                    else:
                        for cursor in core.cursors:
                            seat.note(cursor.queue, cursor.next)
                        core.consumed(anyio.current_time())
                        moved = seat.due(anyio.current_time(), idle=True) and await self._speak()
            finally:
                await own.close()

    async def _speak(self) -> bool:
        return await self._caller.run(self._seat.speak(), self._own)
