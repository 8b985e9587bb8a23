"""The awaiting producer: a `ProducerCore` with two tasks, one that sends and one that listens.

Unlike the blocking one it keeps time by itself: a section goes out when its linger has passed, also
when nothing more is added. ``send`` waits only when too much is unanswered.

Not here: what is resent and when a section is given up (``twinlog.producer``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import anyio
from anyio.abc import TaskGroup, TaskStatus

from twinlog.aio_connection import AsyncConnection, close
from twinlog.compression import Compression
from twinlog.errors import OutcomeUnknown, TwinlogError, Unavailable, UsageError
from twinlog.outgoing import Section
from twinlog.pipeline import PATIENCE_SECONDS, ROUTE_SECONDS, wall_ms
from twinlog.producer import ProducerCore, Request, raised_for
from twinlog.producer_settings import ProducerSettings, Statistics, Target
from twinlog.reading import unknown_topic
from twinlog.routing import Address, parse_route
from twinlog.senders import Origin
from twinlog.session import MASTER, LinkDown
from twinlog.units import KiB
from twinlog.wire import Frame, FrameError, Type

if TYPE_CHECKING:
    from twinlog.aio import AsyncClient


THREAD_FROM: Final = 64 * KiB
"""Bodies from so many bytes on are compressed in a thread: below, a thread costs as much."""


async def packed(compression: Compression | None, body: bytes) -> tuple[bytes, int]:
    """Return a body as it is to be sent, and its system flag; see `Compression.pack`."""
    if compression is None:
        return body, 0
    if len(body) < THREAD_FROM:
        return compression.pack(body)
    return await anyio.to_thread.run_sync(compression.pack, body)


class AsyncProducer:
    """Sends many records to one topic; made by `AsyncClient.producer`, used by ``async with``.

    The end of the block waits until everything has its answer and raises the first error. When the
    block is left by an error or cancelled, what has no answer by then stays unknown; tasks that
    still wait in it are told so.

    ``begin_by`` is until when its start may last, on anyio's clock; None: the settings' timeout.
    ``origin`` is who a client's sender is (``twinlog.senders``).
    """

    def __init__(
        self,
        client: AsyncClient,
        topic: str,
        settings: ProducerSettings,
        *,
        begin_by: float | None = None,
        origin: Origin | None = None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._settings = settings
        self._begin_by = begin_by
        self._origin = origin or Origin()
        self._core: ProducerCore | None = None
        self._connection: AsyncConnection | None = None
        self._numbers: dict[int, int] = {}
        self._asked: Address | None = None
        self._heard = 0.0
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
        self._core = await self._start()
        self._group = anyio.create_task_group()
        await self._group.__aenter__()
        self._group.start_soon(self._run, self._core)
        if self._connection is not None:
            self._group.start_soon(self._listen, self._core, self._connection)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
                await close(self._connection)

    async def send(
        self,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        light: Sequence[str] = (),
        born_ms: int | None = None,
    ) -> Section:
        """Take one record and return the section that carries it, shared by its neighbours.

        Waits while too much is unanswered, or while a thread compresses a body of `THREAD_FROM`
        bytes or more; cancelled then, nothing was taken. Arguments and
        errors as `pipeline.Producer.send`.
        """
        core = self._started
        body, flags = await packed(self._settings.compression, body)
        while core.full:
            await self._moved.wait()
            core = self._started
        section = core.add(
            body, key, tag, order_key, properties, queue,
            flags=flags, light=light, born_ms=born_ms,
        )  # fmt: skip
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
        core.close_all()
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
        """Return what was done so far; the object goes on counting."""
        return self._core.statistics if self._core is not None else Statistics()

    async def one(self, timeout: float, add: Callable[[ProducerCore], Section]) -> Section:
        """Take what ``add`` adds, send it at once and wait for its answer: a single send."""
        core = self._started
        section = add(core)
        core.close(section)
        core.limit(section, anyio.current_time() + timeout)
        self._wake.set()
        while not section.done:
            await self._moved.wait()
            if self._closed and not section.done:
                text = "the client was closed before the message had its answer"
                raise OutcomeUnknown(text) if section.attempts else Unavailable(text)
        core.collect()
        return section

    async def serve(self, *, task_status: TaskStatus[None]) -> None:
        """Be a producer inside a task of the client's, until cancelled or told to `leave`."""
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

    async def _start(self) -> ProducerCore:
        client, session = self._client, self._client.session
        deadline = self._begin_by
        if deadline is None:
            deadline = anyio.current_time() + self._settings.timeout
        fields: dict[str, object] = {"topics": [self._topic]}
        answer = await client.run(session.call(Type.METADATA, fields, deadline=deadline, to=MASTER))
        route = parse_route(answer.fields)
        session.table.learn(route)
        queues = route.topics.get(self._topic)
        if queues is None:
            raise unknown_topic(self._topic)
        origin = self._origin
        if not origin.producer:
            given = await client.run(session.call(Type.PRODUCER, {}, deadline=deadline, to=MASTER))
            told = given.fields["producer"]
            assert isinstance(told, int), "shapes.check"
            origin.producer = told
        try:
            connection = await self._reach(deadline, None)
        except LinkDown as down:
            raise Unavailable(f"the master {self._asked} {down.why}") from None
        target = Target(
            topic=self._topic,
            queues=queues,
            family=connection.peer.family,
            producer=origin.producer,
            message_size_max=route.message_size_max,
            segment_size=connection.peer.segment_size,
            born_host=connection.local,
            batch=self._topic in route.batched,
            first_epoch=origin.epoch,
        )
        core = ProducerCore(
            target,
            self._settings,
            wall_ms=wall_ms,
            now=anyio.current_time,
            random=client.random,
        )
        core.unrouted = False
        return core

    async def _reach(self, deadline: float, error: TwinlogError | None) -> AsyncConnection:
        """Connect to the master once, the node asked last having failed or refused."""
        session = self._client.session
        asked, self._asked = self._asked, None
        address = await self._client.run(session.successor(asked, error, deadline))
        self._asked = address
        if self._connection is not None:
            if self._connection.address == address:
                return self._connection
            await self._drop(self._connection)
        try:
            made = await AsyncConnection.connect(address, client=self._client.name)
        except LinkDown:
            session.table.suspect(address)
            raise
        session.table.trust(address)
        self._connection = made
        if self._group is not None and self._core is not None:
            self._group.start_soon(self._listen, self._core, made)
        return made

    async def _drop(self, connection: AsyncConnection) -> None:
        """Give up a connection; what was under way goes again."""
        if self._connection is connection:
            self._connection = None
            self._numbers.clear()
            if self._core is not None:
                self._core.on_lost(anyio.current_time())
        await connection.close()
        self._wake.set()

    async def _run(self, core: ProducerCore) -> None:
        """Send what is ready, for ever; wakes for new sections, answers, and the next deadline."""
        while True:
            self._wake = anyio.Event()
            now = anyio.current_time()
            core.expire(now)
            core.close_old()
            if core.unrouted and not core.idle and now >= core.retry_at:
                await self._route(core, min(core.deadline, now + ROUTE_SECONDS))
            while self._connection is not None and (request := core.next_request(now)):
                await self._send(core, self._connection, request)
            self._stir()
            with anyio.move_on_after(self._pause(core)):
                await self._wake.wait()
            if core.in_flight and anyio.current_time() >= self._heard + PATIENCE_SECONDS:
                await self._doubt(core)

    def _stir(self) -> None:
        """Wake everybody who waits for room or for an answer."""
        self._moved.set()
        self._moved = anyio.Event()
        self._client.stir()

    def _pause(self, core: ProducerCore) -> float | None:
        now = anyio.current_time()
        until = core.deadline
        if not core.idle and core.retry_at > now:
            until = min(until, core.retry_at)
        elif core.in_flight:
            until = min(until, self._heard + PATIENCE_SECONDS)
        seconds = max(0.0, until - now)
        linger = core.linger_left()
        if linger is not None:
            seconds = min(seconds, linger)
        return None if math.isinf(seconds) else seconds

    async def _doubt(self, core: ProducerCore) -> None:
        """Ask the others who is master; leave the one that is silent when it is another."""
        session, connection = self._client.session, self._connection
        self._heard = anyio.current_time()
        if connection is None:
            return
        session.table.suspect(connection.address)
        await self._client.run(session.refresh(min(core.deadline, self._heard + ROUTE_SECONDS)))
        self._heard = anyio.current_time()
        if session.table.master != connection.address:
            await self._drop(connection)

    async def _route(self, core: ProducerCore, deadline: float) -> None:
        error = core.refusal if core.refusal and core.refusal.code == "not-master" else None
        try:
            await self._reach(deadline, error)
        except LinkDown as down:
            why = Unavailable(f"the master {self._asked} {down.why}")
            core.postpone(anyio.current_time(), why)
        except TwinlogError as found:
            core.postpone(anyio.current_time(), found)
        else:
            core.unrouted = False

    async def _send(
        self, core: ProducerCore, connection: AsyncConnection, request: Request
    ) -> None:
        frame = Frame(Type.APPEND, fields=request.fields)
        number = connection.next_number
        self._numbers[number] = request.number
        if core.in_flight == 1:
            self._heard = anyio.current_time()
        try:
            seconds = request.deadline - anyio.current_time()
            await connection.send(frame, max(seconds, 0.05), request.pieces)
        except LinkDown:
            self._client.session.table.suspect(connection.address)
            await self._drop(connection)

    async def _listen(self, core: ProducerCore, connection: AsyncConnection) -> None:
        """Take the answers of one connection until it ends."""
        try:
            while True:
                answer = await connection.take()
                if answer is None:
                    continue
                self._heard = anyio.current_time()
                core.on_answer(self._numbers.pop(answer.request, -1), answer, self._heard)
                self._wake.set()
                self._stir()
        except (LinkDown, FrameError):
            if self._connection is connection:
                self._client.session.table.suspect(connection.address)
            await self._drop(connection)
