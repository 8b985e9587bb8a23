"""The awaiting client, on trio and on asyncio (by anyio; extra ``async``).

The same decisions as the blocking one (``session``, ``producer``, ``reading``), carried out with
tasks. Many tasks may use one client at once: each call borrows a connection or opens one, and the
`FREE_MAX` used last are kept. Single sends have a connection for each topic and acknowledgement, 64
at most: the least recently used that has nothing under way is closed for the next, and a send waits
for one as long as all are busy (``twinlog.senders``).

Cancellation: a cancelled `send` may be stored; a cancelled question leaves no trace. A cancelled
reader is closed with its connection.

Times are seconds, or text with a unit (``"2 ms"``); sizes are bytes, or text (``"256 KiB"``).
"""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from types import TracebackType
from typing import Final, Self, TypeVar

import anyio

from twinlog.address import id_fields, parse_address
from twinlog.aio_connection import AsyncConnection, close
from twinlog.aio_producer import AsyncProducer, packed
from twinlog.answers import message_at, topic_created, topic_fields
from twinlog.client import Duration, Size, bytes_of, seconds_of
from twinlog.compression import parse_compression
from twinlog.connection import CONNECT_SECONDS
from twinlog.errors import OffsetBeyond, Unavailable
from twinlog.finding import FOUND_DEFAULT, Finding, Search, find
from twinlog.messages import Message, Receipt
from twinlog.pipeline import LAST_SECONDS, wall_ms
from twinlog.producer_settings import ProducerSettings
from twinlog.ranges import parse_range
from twinlog.reader import SILENCE_SECONDS
from twinlog.reading import (
    FOLLOW_WAIT_MS,
    Cursor,
    ReaderCore,
    ReadSettings,
    parse_tags,
    parse_where,
)
from twinlog.routing import Address, Route, parse_endpoints, parse_route
from twinlog.senders import SENDERS_MAX, Senders
from twinlog.session import ANY, MASTER, Ask, LinkDown, Session, Step
from twinlog.survey import parse_offsets, survey
from twinlog.units import KiB
from twinlog.wire import Frame, FrameError, Type

T = TypeVar("T")

FREE_MAX: Final = 16
"""Connections that nobody uses and a client keeps for the next question, all nodes together; the
one that was free for the longest time is closed. More may be in use: one for each question."""


class AsyncClient:
    """See the module; used by ``async with``.

    Args:
        endpoints: ``"host:port,host:port"`` or a list; any node of the cluster will do.
        timeout: How long one call may take, retries and a failover included.
        name: What nodes may log about this client.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] = "127.0.0.1:7410",
        *,
        timeout: Duration = 30.0,
        name: str = "twinlog-python",
    ) -> None:
        self.name = name
        self.timeout = seconds_of(timeout)
        self.random: Callable[[], float] = random.random
        addresses = parse_endpoints(endpoints)
        self.session = Session(addresses, clock=anyio.current_time, random=random.random)
        self._free: list[AsyncConnection] = []
        self._senders: Senders[AsyncProducer] = Senders()
        self._crowded: anyio.Event | None = None
        self._group = anyio.create_task_group()
        self._starting = anyio.Lock()

    async def __aenter__(self) -> Self:
        """Return the client."""
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the tasks and close every connection."""
        self._senders.clear()
        self._group.cancel_scope.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        finally:
            for connection in self._free:
                await connection.close()
            self._free.clear()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        key: str | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        light: Sequence[str] = (),
        acknowledge: str = "confirmed",
        compress: str | None = None,
        timeout: Duration | None = None,
    ) -> Receipt:
        """Send one message and return where it was stored; as `Client.send`.

        Cancelled, the message may or may not be stored.
        """
        stored, flags = await packed(parse_compression(compress), body)
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        end = anyio.current_time() + seconds
        sender = await self._sender(topic, acknowledge, end)
        section = await sender.one(
            max(end - anyio.current_time(), LAST_SECONDS),
            lambda core: core.add(
                stored, key, tag, order_key, properties, queue, flags=flags, light=light
            ),
        )
        return section.receipt()

    async def _sender(self, topic: str, acknowledge: str, end: float) -> AsyncProducer:
        """Return the producer of single sends; whoever needs it first starts it, one at a time."""
        sender = self._senders.get(topic, acknowledge)
        if sender is not None:
            return sender
        with anyio.move_on_after(max(end - anyio.current_time(), 0.0)) as waiting:
            await self._starting.acquire()
        if waiting.cancelled_caught:
            text = "nothing was sent: other sends are still looking for the master"
            raise Unavailable(text, hint="see whether the nodes run: twinlog cluster status")
        try:
            sender = self._senders.get(topic, acknowledge)
            if sender is None:
                await self._make_room(end)
                settings = ProducerSettings(acknowledge=acknowledge, timeout=self.timeout)
                origin = self._senders.origin(acknowledge)
                sender = AsyncProducer(self, topic, settings, begin_by=end, origin=origin)
                await self._group.start(sender.serve)
                self._senders.add(topic, acknowledge, sender)
        finally:
            self._starting.release()
        return sender

    async def _make_room(self, end: float) -> None:
        """Close the least recently used sender with nothing under way, if there are too many."""
        while self._senders.full:
            oldest = self._senders.remove_oldest(lambda sender: sender.idle)
            if oldest is not None:
                await oldest.leave()
                continue
            self._crowded = anyio.Event()
            with anyio.move_on_after(max(end - anyio.current_time(), 0.0)) as waiting:
                await self._crowded.wait()
            if waiting.cancelled_caught:
                text = f"nothing was sent: messages to {SENDERS_MAX} topics are under way already"
                raise Unavailable(text, hint="send to fewer topics at a time")

    def stir(self) -> None:
        """Wake who waits until a sender is idle; for this package's own parts."""
        if self._crowded is not None:
            self._crowded.set()
            self._crowded = None

    def producer(
        self,
        topic: str,
        *,
        acknowledge: str = "confirmed",
        batch: Size = 256 * KiB,
        linger: Duration = 0.002,
        window: int = 5,
        compress: str | None = None,
        timeout: Duration | None = None,
    ) -> AsyncProducer:
        """Return a producer for many messages to ``topic``, to be used by ``async with``.

        Raises:
            UsageError: A setting is out of its limits.
        """
        settings = ProducerSettings(
            acknowledge=acknowledge,
            batch=bytes_of(batch),
            linger=seconds_of(linger),
            window=window,
            compression=parse_compression(compress),
            timeout=self.timeout if timeout is None else seconds_of(timeout),
        )
        return AsyncProducer(self, topic, settings)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    async def read(
        self,
        topic: str,
        range: str = "start:",
        *,
        queue: int | None = None,
        tag: str | None = None,
        where: str | None = None,
        read_from: str = ANY,
        limit: int | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages in ``range`` of each queue, in order within a queue.

        Arguments and errors as `Client.read`. An iteration that is left early is closed by
        ``contextlib.aclosing``, or use `follow`.
        """
        settings = ReadSettings(
            topic=topic,
            read_from=read_from,
            tags=parse_tags(tag),
            where=parse_where(where),
            limit=limit,
            follow=follow,
            timeout=self.timeout if timeout is None else seconds_of(timeout),
        )
        cursors = await self.run(
            survey(
                self.session,
                settings,
                parse_range(range),
                queue=queue,
                deadline=anyio.current_time() + settings.to_begin(self.timeout),
                wall_ms=wall_ms(),
            )
        )
        reader = _AsyncReader(self, settings, cursors)
        try:
            while await reader.fetch():
                batch, reader.core.messages = reader.core.messages, type(reader.core.messages)()
                for message in batch:
                    yield message
                reader.core.consumed(anyio.current_time())
        finally:
            await reader.close()

    @asynccontextmanager
    async def follow(
        self,
        topic: str,
        start: str = "end",
        *,
        queue: int | None = None,
        tag: str | None = None,
        where: str | None = None,
        read_from: str = ANY,
    ) -> AsyncGenerator[AsyncGenerator[Message, None], None]:
        """Give an iterator over what comes, from ``start`` on (a range); closed with the block."""
        wanted = start if ":" in start or start in ("start", "end") else f"{start}:"
        messages = self.read(
            topic, wanted, queue=queue, tag=tag, where=where, read_from=read_from, follow=True
        )
        async with aclosing(messages):
            yield messages

    async def get(
        self, address: str, *, read_from: str = MASTER, timeout: Duration | None = None
    ) -> Message:
        """Return the message at an address; as `Client.get`."""
        topic, queue, offset = parse_address(address)
        if topic:
            wanted = f"{offset}:{offset + 1}"
            found = self.read(topic, wanted, queue=queue, read_from=read_from, timeout=timeout)
            async with aclosing(found):
                async for message in found:
                    return message
            raise OffsetBeyond(f"nothing is stored at {address} yet", end=offset)
        fields = {"log_offset": offset, **id_fields(address)}
        return message_at(await self._ask(Type.GET, fields, read_from, timeout), offset)

    async def find(
        self,
        topic: str,
        key: str,
        *,
        begin: int = 0,
        end: int | None = None,
        most: int = FOUND_DEFAULT,
        unique: bool = False,
        read_from: str = MASTER,
        timeout: Duration | None = None,
    ) -> Finding:
        """Return the messages with a key, newest first; as `Client.find`."""
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        search = Search(topic, key, begin, end, most, unique)
        deadline = anyio.current_time() + seconds
        steps = find(self.session, search, read_from=read_from, deadline=deadline)
        return await self.run(steps)

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    async def metadata(self, *, timeout: Duration | None = None) -> Route:
        """Return what a node says of the cluster now: nodes, master, topics."""
        route = parse_route((await self._ask(Type.METADATA, {}, ANY, timeout)).fields)
        self.session.table.learn(route)
        return route

    async def topics(self, *, timeout: Duration | None = None) -> dict[str, int]:
        """Return the number of queues by topic name, sorted."""
        answer = await self._ask(Type.METADATA, {}, MASTER, timeout)
        return dict(sorted(parse_route(answer.fields).topics.items()))

    async def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        batch: bool = False,
        timeout: Duration | None = None,
    ) -> bool:
        """Create a topic; False when it exists already; as `Client.create_topic`."""
        answer = await self._ask(Type.TOPIC, topic_fields(name, queues, batch), MASTER, timeout)
        return topic_created(answer, name, queues, batch=batch)

    async def offsets(
        self, topic: str, *, timeout: Duration | None = None
    ) -> dict[int, tuple[int, int]]:
        """Return (start, end) by queue, as the master knows them."""
        fields: dict[str, object] = {"topic": topic, "queues": None, "at_ms": None}
        found = parse_offsets((await self._ask(Type.OFFSETS, fields, MASTER, timeout)).fields)
        return {queue: (start, end) for queue, (start, end, _) in found.items()}

    async def call(
        self,
        node: str,
        kind: Type,
        fields: Mapping[str, object] | None = None,
        *,
        timeout: Duration | None = None,
        repeat: bool = True,
    ) -> Frame:
        """Ask one node (by name), ``master`` or ``any``; as `Client.call`."""
        return await self._ask(kind, fields or {}, node, timeout, repeat=repeat)

    async def _ask(
        self,
        kind: Type,
        fields: Mapping[str, object],
        to: str,
        timeout: Duration | None,
        *,
        repeat: bool = True,
    ) -> Frame:
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        deadline = anyio.current_time() + seconds
        steps = self.session.call(kind, fields, deadline=deadline, to=to, repeat=repeat)
        return await self.run(steps)

    # ── carrying out what the session decides ───────────────────────────────────────────────────

    async def run(self, steps: Generator[Step, Frame | None, T]) -> T:
        """Carry out the steps of a call and return its result; for this package's own parts."""
        try:
            step = next(steps)
            while True:
                if isinstance(step, Ask):
                    try:
                        answer = await self._carry(step)
                    except LinkDown as down:
                        step = steps.throw(down)
                    else:
                        step = steps.send(answer)
                else:
                    await anyio.sleep(step.seconds)
                    step = steps.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result

    async def _carry(self, step: Ask) -> Frame:
        """Ask over a free connection, or a new one; one that was cut off meanwhile is replaced."""
        connection = self._borrow(step.address)
        if connection is not None and connection.stale():
            await connection.close()
            connection = None
        if connection is None:
            seconds = min(CONNECT_SECONDS, step.seconds)
            connection = await AsyncConnection.connect(
                step.address, client=self.name, seconds=seconds
            )
        answered = False
        try:
            answer = await connection.ask(step.frame, step.seconds)
            answered = True
        finally:
            if not answered:
                await connection.close()
        self._free.append(connection)
        if len(self._free) > FREE_MAX:
            await self._free.pop(0).close()
        return answer

    def _borrow(self, address: Address) -> AsyncConnection | None:
        """Take the free connection to a node that was used last; None: there is none."""
        for at in reversed(range(len(self._free))):
            if self._free[at].address == address:
                return self._free.pop(at)
        return None


class _AsyncReader:
    """The awaiting twin of the blocking reader in ``twinlog.reader``."""

    def __init__(self, client: AsyncClient, settings: ReadSettings, cursors: list[Cursor]) -> None:
        self._client = client
        self.core = ReaderCore(settings, cursors, client.session.table, anyio.current_time())
        self._connection: AsyncConnection | None = None
        self._attempt = 0

    async def close(self) -> None:
        """Close the connection; answers under way are dropped."""
        connection, self._connection = self._connection, None
        await close(connection)

    async def fetch(self) -> bool:
        """Wait until there are messages, the next ones asked for; False at the end."""
        while True:
            await self._ask()
            if self.core.messages:
                return True
            if self.core.done:
                return False
            await self._wait()

    async def _ask(self) -> None:
        now, core = anyio.current_time(), self.core
        if core.done or now < core.retry_at:
            return
        if core.unrouted or self._connection is None:
            await self._route(now)
        connection = self._connection
        for cursor, fields in core.wanted(now):
            if connection is None:
                return
            try:
                number = await connection.send(Frame(Type.READ, fields=fields), SILENCE_SECONDS)
            except LinkDown as down:
                await self._lost(connection, down.why)
                return
            core.on_asked(number, cursor)

    async def _wait(self) -> None:
        now, core, connection = anyio.current_time(), self.core, self._connection
        if now < core.retry_at or connection is None:
            await anyio.sleep(max(0.0, core.retry_at - now))
            return
        patience = SILENCE_SECONDS + (FOLLOW_WAIT_MS / 1000 if core.settings.follow else 0.0)
        try:
            answer = await connection.take(patience)
            if answer is None:
                raise LinkDown(f"did not answer within {patience:g} s", sent=True)
            core.on_answer(answer.request, answer, anyio.current_time(), self._pause())
        except FrameError as error:
            await self._lost(connection, f"left the rules of the wire: {error.text}")
        except LinkDown as down:
            await self._lost(connection, down.why)
        else:
            if core.messages:
                self._attempt = 0

    def _pause(self) -> float:
        self._attempt += 1
        return self._client.session.pause(self._attempt - 1)

    async def _route(self, now: float) -> None:
        core, session = self.core, self._client.session
        address = core.choose(now)
        if address is None or session.table.suspected(address):
            await self._client.run(session.refresh(now + SILENCE_SECONDS))
            address = core.choose(now)
        if address is None:
            self._fell(f"{core.settings.read_from} does not serve clients now")
            return
        connection = self._connection
        fresh = connection is None or connection.address != address
        if fresh:
            await self.close()
            try:
                self._connection = await AsyncConnection.connect(address, client=self._client.name)
            except LinkDown as down:
                session.table.suspect(address)
                self._fell(f"{address} {down.why}")
                return
            session.table.trust(address)
        core.routed(fresh=fresh)

    async def _lost(self, connection: AsyncConnection, why: str) -> None:
        self._client.session.table.suspect(connection.address)
        await self.close()
        self._fell(f"{connection.address} {why}")

    def _fell(self, why: str) -> None:
        self.core.on_lost(anyio.current_time(), Unavailable(why), self._pause())
