"""The awaiting producer: a `ProducerCore` with two tasks, one that sends and one that listens.

Unlike the blocking one it keeps time by itself: a section is sent when its linger has passed, also
when nothing more is added. ``send`` waits only when too much is unanswered.

Not here: what is resent and when a section is given up (``twinlog.producer.core``), finding the
master (``twinlog.producer.master_link``).
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import Final, Self, Unpack

import anyio
from anyio.abc import TaskGroup, TaskStatus

from twinlog.errors import OutcomeUnknown, Unavailable, UsageError
from twinlog.format.compression import Compression
from twinlog.producer.blocking import complain
from twinlog.producer.call_backs import OnResult, watching
from twinlog.producer.core import ProducerCore, Request
from twinlog.producer.master_link import PATIENCE_SECONDS, ROUTE_SECONDS, MasterLink
from twinlog.producer.new_message import PLAIN, MessageFields, NewMessage, packed
from twinlog.producer.section import Section, raised_for
from twinlog.producer.settings import LAST_SECONDS, ProducerSettings, Statistics
from twinlog.producer.single_sends import Origin
from twinlog.session.aio_caller import AsyncCaller
from twinlog.session.aio_connection import AsyncConnection
from twinlog.session.session import LinkDown
from twinlog.units import KiB
from twinlog.wire.frames import Frame, FrameError, Type

THREAD_FROM: Final = 64 * KiB
"""Bodies from this size on are compressed in a thread: below, a thread costs as much."""


async def packed_aside(compression: Compression | None, body: bytes) -> tuple[bytes, int]:
    """Return a body as it is to be sent, and its system flag; see `new_message.packed`."""
    if compression is None or type(body) is not bytes or len(body) < THREAD_FROM:
        return packed(compression, body)
    return await anyio.to_thread.run_sync(compression.pack, body)


class AsyncProducer:
    """Sends many records to one topic; made by `AsyncClient.producer`, used by ``async with``.

    The end of the block waits until everything has its answer and raises the first error. When the
    block is left by an error or cancelled, what has no answer by then stays unknown; tasks that
    still wait in it get an error that says so.

    ``begin_by`` is until when its start may last, on anyio's clock; None: the settings' timeout.
    ``origin`` is who a client's sender is (``twinlog.producer.single_sends``). ``stir`` is called
    after every change that another task may wait for.
    """

    def __init__(
        self,
        caller: AsyncCaller,
        topic: str,
        settings: ProducerSettings,
        *,
        begin_by: float | None = None,
        origin: Origin | None = None,
        stir: Callable[[], None] = lambda: None,
    ) -> None:
        self._caller = caller
        self._settings = settings
        self._begin_by = begin_by
        self._stir_others = stir
        self._link = MasterLink(
            caller.session, topic, settings, random=random.random, origin=origin
        )
        self._own = caller.own()
        self._core: ProducerCore | None = None
        self._listening: AsyncConnection | None = None
        self._wake = anyio.Event()
        self._moved = anyio.Event()
        self._group: TaskGroup | None = None
        self._service: anyio.CancelScope | None = None
        self._ended = anyio.Event()
        self._closed = False

    async def __aenter__(self) -> Self:
        """Ask what must be known about the topic and start.

        Raises:
            UnknownTopic: It does not exist.
            Unavailable: No master could be asked.
        """
        deadline = self._begin_by
        if deadline is None:
            deadline = anyio.current_time() + self._settings.timeout
        self._core = await self._caller.run(self._link.start(deadline), self._own)
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run, self._core)
        self._attend(self._core)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Flush, unless an error is under way; then stop."""
        group = self._group
        assert group is not None, "entered"
        try:
            if kind is None:
                await self.flush()
        finally:
            self._closed = True
            group.cancel_scope.cancel()
            try:
                await group.__aexit__(None, None, None)
            finally:
                self._stir()
                if self._core is not None and self._core.watched is not None:
                    self._core.watched.end()
                await self._own.close()

    async def send(
        self,
        body: bytes,
        *,
        on_result: OnResult | None = None,
        **message: Unpack[MessageFields],
    ) -> Section:
        """Take one record and return the section that carries it, shared by its neighbours.

        Waits while too much is unanswered, or while a thread compresses a body of `THREAD_FROM`
        bytes or more; cancelled then, nothing was taken. Arguments and errors as `Producer.send`;
        ``on_result`` is called by a task of the producer and must not block; it is no coroutine
        function.
        """
        core = self._started
        body, flags = await packed_aside(self._settings.compression, body)
        while core.full:
            await self._moved.wait()
            core = self._started
        said = NewMessage(**message) if message else PLAIN
        if said is not PLAIN and not core.lanes.has(said):
            await self._caller.run(self._link.look(anyio.current_time() + self._settings.timeout))
        now, now_ms = anyio.current_time(), time.time_ns() // 1_000_000
        section = core.add(body, said, now, now_ms, flags)
        if on_result is not None:
            core.watched = watching(core.watched, section, on_result, complain)
        if core.due or section.count == 1:
            self._wake.set()
        return section

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything taken so far has its final answer.

        Raises:
            TwinlogError: The first error since the last flush, an unknown outcome before others.
            Unavailable: ``timeout`` seconds passed first.

        A cancelled flush leaves everything under way.
        """
        core = self._started
        core.close_all(anyio.current_time())
        self._wake.set()
        with anyio.move_on_after(timeout) as scope:
            while not core.idle:
                await self._moved.wait()
                if self._closed and not core.idle:
                    raise OutcomeUnknown("the producer was closed before everything had its answer")
        if scope.cancelled_caught:
            raise Unavailable(f"not everything was answered within {timeout} s")
        error = raised_for(core.collect())
        if error is not None:
            raise error

    def statistics(self) -> Statistics:
        """Return what was done so far; the object keeps counting."""
        return self._core.statistics if self._core is not None else Statistics()

    async def one(
        self, timeout: float, body: bytes, message: NewMessage, flags: int = 0
    ) -> Section:
        """Take one record, send it at once and wait for its answer: a single send."""
        end = anyio.current_time() + timeout
        section = await self._alone(timeout, body, message, flags)
        if section.error is not None and section.error.code == "queue-closed":
            while self._started.narrowed:  # the service asks which queues take messages
                await self._moved.wait()
            if message.queue is None:
                left = max(end - anyio.current_time(), LAST_SECONDS)
                section = await self._alone(left, body, message, flags)
        return section

    async def _alone(self, timeout: float, body: bytes, message: NewMessage, flags: int) -> Section:
        core, now = self._started, anyio.current_time()
        if not core.lanes.has(message):
            await self._caller.run(self._link.look(now + timeout))
        section = core.add(body, message, now, time.time_ns() // 1_000_000, flags)
        core.close(section, now)
        core.limit(section, now + timeout)
        self._wake.set()
        while not section.done:
            await self._moved.wait()
            if self._closed and not section.done:
                text = "the client was closed before the message had its answer"
                raise OutcomeUnknown(text) if section.attempts else Unavailable(text)
        core.collect()
        return section

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Be a producer inside a task of the client's, until cancelled or asked to `leave`."""
        try:
            with anyio.CancelScope() as self._service:
                async with self:
                    task_status.started()
                    await anyio.sleep_forever()
        finally:
            self._ended.set()

    @property
    def idle(self) -> bool:
        """Whether everything taken so far has its final answer."""
        return self._core is None or self._core.idle

    @property
    def epoch(self) -> int:
        """The highest producer epoch that it has used; -1: it has not begun."""
        return self._core.epoch if self._core is not None else -1

    async def leave(self) -> None:
        """End `serve`; wait until the connection is closed."""
        if self._service is not None:
            self._service.cancel()
        await self._ended.wait()

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    @property
    def _started(self) -> ProducerCore:
        if self._core is None or self._closed:
            raise UsageError("a producer is used inside its async with block")
        return self._core

    def _attend(self, core: ProducerCore) -> None:
        """Listen to the connection, if it is a new one."""
        connection = self._own.connection
        if connection is None or connection is self._listening or self._group is None:
            return
        self._listening = connection
        self._group.start_soon(self._listen, core, connection)

    async def _drop(self, connection: AsyncConnection) -> None:
        """Give up a connection; what was under way is sent again."""
        if self._own.connection is connection:
            self._link.lost(anyio.current_time())
            await self._own.close()
        self._wake.set()

    async def _run(self, core: ProducerCore) -> None:
        """Send what is ready, for ever; wakes for new sections, answers, and the next deadline."""
        while True:
            self._wake = anyio.Event()
            now = anyio.current_time()
            core.expire(now)
            core.close_old(now)
            if self._link.must_look(now):
                await self._caller.run(self._link.look(now + ROUTE_SECONDS))
                now = anyio.current_time()
            if core.unrouted and not core.idle and now >= core.retry_at:
                await self._caller.run(self._link.route(core.deadline), self._own)
                self._attend(core)
            while (connection := self._own.connection) and (request := core.next_request(now)):
                await self._send(connection, request)
            self._stir()
            with anyio.move_on_after(self._pause(core)):
                await self._wake.wait()
            silent = anyio.current_time() >= self._link.heard + PATIENCE_SECONDS
            connection = self._own.connection
            if core.in_flight and silent and connection is not None:
                doubt = self._link.doubt(connection.address, core.deadline)
                if await self._caller.run(doubt):
                    await self._drop(connection)

    def _stir(self) -> None:
        """Wake everybody who waits for room or for an answer, and call back."""
        if self._core is not None and self._core.watched is not None:
            self._core.watched.tell()
        self._moved.set()
        self._moved = anyio.Event()
        self._stir_others()

    def _pause(self, core: ProducerCore) -> float | None:
        now = anyio.current_time()
        until = core.deadline
        if not core.idle and core.retry_at > now:
            until = min(until, core.retry_at)
        elif core.in_flight:
            until = min(until, self._link.heard + PATIENCE_SECONDS)
        seconds = max(0.0, until - now)
        linger = core.lanes.linger_left(now)
        if linger is not None:
            seconds = min(seconds, linger)
        return None if math.isinf(seconds) else seconds

    async def _send(self, connection: AsyncConnection, request: Request) -> None:
        frame, now = Frame(Type.APPEND, fields=request.fields), anyio.current_time()
        # The answer may come before `send` returns.
        self._link.sent(connection.next_number, request, now)
        try:
            await connection.send(frame, max(request.deadline - now, 0.05), request.pieces)
        except LinkDown:
            self._caller.session.table.suspect(connection.address)
            await self._drop(connection)

    async def _listen(self, core: ProducerCore, connection: AsyncConnection) -> None:
        """Take the answers of one connection until it ends."""
        try:
            while True:
                answer = await connection.take()
                if answer is None:
                    continue
                now = anyio.current_time()
                core.on_answer(self._link.answered(answer, now), answer, now)
                self._wake.set()
                self._stir()
        except (LinkDown, FrameError):
            if self._own.connection is connection:
                self._caller.session.table.suspect(connection.address)
            await self._drop(connection)
