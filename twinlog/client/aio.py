"""The awaiting client, on trio and on asyncio (by anyio; extra ``async``).

The same decisions as the blocking one (``session``, ``producer``, ``consumer``), carried out with
tasks. Many tasks may use one client at once: each call borrows a connection or opens one
(``twinlog.session.aio_caller``). Single sends have a connection for each topic and acknowledgement,
at most 64: the least recently used that has nothing under way is closed for the next, and a send
waits for one as long as all are busy (``twinlog.producer.single_sends``).

Cancellation: a cancelled `send` may be stored; a cancelled question leaves no trace. A cancelled
reader is closed with its connection.

Times are seconds, or text with a unit (``"2 ms"``); sizes are bytes, or text (``"256 KiB"``).
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Literal, Self, Unpack, overload

import anyio

from twinlog.client.aio_one_way import AsyncOneWay, AsyncOneWaySends
from twinlog.client.arguments import (
    AnyConsumeFields,
    BroadcastFields,
    ConsumeFields,
    Duration,
    Size,
    awaited,
    broadcast_settings,
    expected_of,
    group_settings,
    producer_settings,
    read_settings,
    seconds_of,
    shared_settings,
)
from twinlog.client.calls import Calls, TopicChanges, place_of
from twinlog.client.checks import Answering, answer_async
from twinlog.client.checks import AsyncDecide as Decide
from twinlog.client.search import FOUND_DEFAULT, Finding, Search
from twinlog.client.transactions import AsyncTransaction, Sent
from twinlog.consumer.aio import AsyncMessages
from twinlog.consumer.core import Cursor
from twinlog.consumer.start_offsets import survey
from twinlog.errors import OffsetBeyond, Unavailable, UnknownGroup
from twinlog.format.address import parse_address
from twinlog.format.compression import parse_compression
from twinlog.format.group_history import Step
from twinlog.format.messages import Message, Receipt
from twinlog.format.system_topics import SYSTEM_TOPIC_GROUP
from twinlog.groups.aio import AsyncBroadcast, AsyncConsumer, AsyncDeliveries
from twinlog.groups.seat import BROADCAST
from twinlog.groups.settings import SHARED
from twinlog.groups.telling import Telling, asked_node
from twinlog.producer.aio import AsyncProducer, packed_aside
from twinlog.producer.new_message import PLAIN, MessageFields, NewMessage
from twinlog.producer.settings import LAST_SECONDS, ProducerSettings
from twinlog.producer.single_sends import SENDERS_MAX, Senders
from twinlog.ranges import parse_range
from twinlog.session.aio_caller import AsyncCaller
from twinlog.session.connection import secure_of
from twinlog.session.link import Expected
from twinlog.session.login import shown
from twinlog.session.routing import Route, parse_endpoints
from twinlog.session.session import ANY, MASTER, Steps
from twinlog.session.tls_files import Tls
from twinlog.units import KiB
from twinlog.wire.frames import Frame, Type
from twinlog.wire.schema import QUEUES_DEFAULT


class AsyncClient(AsyncOneWaySends):
    """See the module; used by ``async with``.

    Args:
        endpoints: ``"host:port,host:port"`` or a list; any node of the cluster will do.
        timeout: How long one call may take, retries and a failover included.
        name: What nodes may log about this client.
        cluster: Name of the cluster that must answer: a node of another one gets no request, and
            calls raise `UsageError`, code ``other-cluster``. None: the first that answers; from
            then on no other.
        tls: The files for TLS, or the path of the authority's certificate alone; None: those that
            ``TWINLOG_TLS_CA``, ``TWINLOG_TLS_CERT`` and ``TWINLOG_TLS_KEY`` of the environment
            name, else no TLS is spoken. Changed files are read again at the next connection. A
            node that does not speak TLS, or whose certificate is refused, gets no request: calls
            raise `UsageError`, code ``tls``.
        user: Who we are, for clusters that ask (docs/access.md); default: ``TWINLOG_USER`` of the
            environment.
        password: Of that user; default: in the file ``TWINLOG_PASSWORD_FILE``, or
            ``TWINLOG_PASSWORD``. It is not sent. A wrong one, and what rules do not allow, is
            `Denied`.
    """

    def __init__(
        self,
        endpoints: str | Iterable[str] = "127.0.0.1:7410",
        *,
        timeout: Duration = 30.0,
        name: str = "twinlog-python",
        cluster: str | Expected | None = None,
        tls: Tls | str | None = None,
        user: str | None = None,
        password: str | None = None,
    ) -> None:
        self.name = name
        self.timeout = seconds_of(timeout)
        self.cluster = cluster
        self.tls = shown(tls, user, password)
        login = None if self.tls is None else self.tls.login
        expected = expected_of(cluster)
        self._caller = AsyncCaller(
            parse_endpoints(endpoints),
            name=name,
            expected=expected,
            secure=secure_of(self.tls),
            login=login,
        )
        self._calls = Calls(self._caller.session)
        self._senders: Senders[AsyncProducer] = Senders()
        self._crowded: anyio.Event | None = None
        self._group = anyio.create_task_group()
        self._one_way = AsyncOneWay(self._caller, self._group, self.timeout)
        self._starting = anyio.Lock()

    async def __aenter__(self) -> Self:
        """Return the client."""
        await self._group.__aenter__()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop the tasks and close every connection; first wait up to 5 s for one-way messages.

        Raises:
            TwinlogError: What `flush` raises, unless the block was left by an error.
        """
        try:
            if kind is None:
                await self._one_way.close()
        finally:
            self._senders.clear()
            self._group.cancel_scope.cancel()
            try:
                await self._group.__aexit__(None, None, None)
            finally:
                await self._caller.close()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    async def send(
        self,
        topic: str,
        body: bytes,
        *,
        acknowledge: str = "confirmed",
        compress: str | None = None,
        timeout: Duration | None = None,
        **message: Unpack[MessageFields],
    ) -> Receipt:
        """Send one message and return where it was stored; as `Client.send`.

        Cancelled, the message may or may not be stored.
        """
        said = NewMessage(**message) if message else PLAIN
        if said.properties:
            acknowledge = awaited(acknowledge, said)
        stored, flags = await packed_aside(parse_compression(compress), body)
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        end = anyio.current_time() + seconds
        sender = await self._sender(topic, acknowledge, end)
        left = max(end - anyio.current_time(), LAST_SECONDS)
        section = await sender.one(left, stored, said, flags)
        return section.receipt()

    async def _sender(self, topic: str, acknowledge: str, end: float) -> AsyncProducer:
        """Return the producer of single sends; the first that needs it starts it, one at a time."""
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
                sender = AsyncProducer(
                    self._caller, topic, settings, begin_by=end, origin=origin, stir=self._stir
                )
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

    def _stir(self) -> None:
        """Wake those that wait until a sender is idle."""
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
        settings = producer_settings(
            acknowledge=acknowledge,
            batch=batch,
            linger=linger,
            window=window,
            compress=compress,
            timeout=self.timeout if timeout is None else timeout,
        )
        return AsyncProducer(self._caller, topic, settings)

    # ── reading ─────────────────────────────────────────────────────────────────────────────────

    def read(
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
        max_staleness: Duration | None = None,
    ) -> AsyncMessages:
        """Yield the messages in ``range`` of each queue, in order within a queue.

        Arguments and errors as `Client.read`. An iteration that is left early is closed by
        ``contextlib.aclosing``, or use `follow`.
        """
        seconds = self.timeout if timeout is None else timeout
        settings = read_settings(
            topic,
            read_from=read_from,
            tag=tag,
            where=where,
            limit=limit,
            follow=follow,
            timeout=seconds,
            max_staleness=max_staleness,
            every=queue is None,
        )
        wanted = parse_range(range)

        def begin() -> Steps[list[Cursor]]:
            return survey(
                self._caller.session,
                settings,
                wanted,
                queue=queue,
                deadline=anyio.current_time() + settings.to_begin(self.timeout),
                wall_ms=time.time_ns() // 1_000_000,
            )

        return AsyncMessages(self._caller, settings, begin)

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
        max_staleness: Duration | None = None,
    ) -> AsyncGenerator[AsyncMessages, None]:
        """Give an iterator over what comes, from ``start`` on (a range); closed with the block."""
        wanted = start if ":" in start or start in ("start", "end") else f"{start}:"
        messages = self.read(
            topic,
            wanted,
            queue=queue,
            tag=tag,
            where=where,
            read_from=read_from,
            follow=True,
            max_staleness=max_staleness,
        )
        async with aclosing(messages):
            yield messages

    async def get(
        self,
        address: str,
        *,
        read_from: str = MASTER,
        timeout: Duration | None = None,
        max_staleness: Duration | None = None,
    ) -> Message:
        """Return the message at an address; as `Client.get`."""
        topic, queue, offset = parse_address(address)
        if topic:
            wanted = f"{offset}:{offset + 1}"
            found = self.read(
                topic,
                wanted,
                queue=queue,
                read_from=read_from,
                timeout=timeout,
                max_staleness=max_staleness,
            )
            async with aclosing(found):
                async for message in found:
                    return message
            raise OffsetBeyond(f"nothing is stored at {address} yet", end=offset)
        steps = self._calls.message(
            address,
            read_from=read_from,
            timeout=self._seconds(timeout),
            max_staleness=max_staleness,
        )
        return await self._caller.run(steps)

    async def cancel(self, sent: Receipt | str, *, timeout: Duration | None = None) -> None:
        """Take back a message that waits for a time; as `Client.cancel`."""
        message = await self.get(place_of(sent), timeout=timeout)
        await self._caller.run(self._calls.cancel(message, self._seconds(timeout)))

    def transaction(self, group: str, *, check_after: Duration | None = None) -> AsyncTransaction:
        """Return a transaction: ``async with client.transaction("shop") as tx``.

        As `Client.transaction`.
        """
        return AsyncTransaction(Sent(group, check_after), self.send, self._end)

    async def answer_checks(
        self,
        group: str,
        decide: Decide,
        *,
        duration: Duration | None = None,
    ) -> int:
        """Answer what became of transactions that nothing has ended; as `Client.answer_checks`.

        ``decide`` may be awaited. It goes on until it is cancelled; give it a task of its own.
        """
        seconds = None if duration is None else seconds_of(duration)
        answering = Answering(self._caller.session, group, self.timeout, seconds)
        return await answer_async(self._caller, answering, decide)

    async def _end(self, sent: Sent, outcome: int, timeout: Duration | None) -> None:
        await self._caller.run(sent.end(self._calls, outcome, self._seconds(timeout)))

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
        max_staleness: Duration | None = None,
    ) -> Finding:
        """Return the messages with a key, newest first; as `Client.find`."""
        search = Search(topic, key, begin, end, most, unique)
        steps = self._calls.find(
            search,
            read_from=read_from,
            timeout=self._seconds(timeout),
            max_staleness=max_staleness,
        )
        return await self._caller.run(steps)

    # ── consuming ───────────────────────────────────────────────────────────────────────────────

    @overload
    def consume(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        mode: Literal["broadcast"],
        **options: Unpack[BroadcastFields],
    ) -> AsyncBroadcast: ...
    @overload
    def consume(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        mode: Literal["shared", "ordered"] = "shared",
        **options: Unpack[ConsumeFields],
    ) -> AsyncDeliveries: ...
    def consume(
        self, topics: str | Sequence[str], group: str, *, mode: str = SHARED,
        **options: Unpack[AnyConsumeFields],
    ) -> AsyncDeliveries | AsyncBroadcast:  # fmt: skip
        """Return the messages that a group has to handle: ``async with``, then ``async for``.

        As `Client.consume`. While a body runs, its lease is extended (``renew``).
        """
        if mode == BROADCAST:
            return AsyncBroadcast(
                self._caller, *broadcast_settings(group, topics, options, self.timeout)
            )
        settings = shared_settings(
            group, topics, mode, fields=options, name=self.name, seconds=self.timeout, renews=True
        )
        return AsyncDeliveries(AsyncConsumer(self._caller, settings))

    def consumer(
        self,
        group: str,
        topics: str | Sequence[str],
        *,
        mode: str = SHARED,
        **options: Unpack[ConsumeFields],
    ) -> AsyncConsumer:
        """Return a member of a group, used by ``async with``; as `Client.consumer`.

        While a body has a message, its lease is extended (``renew``).
        """
        settings = group_settings(
            group, topics, mode, fields=options, name=self.name, seconds=self.timeout, renews=True
        )
        return AsyncConsumer(self._caller, settings)

    async def history(
        self,
        group: str,
        *,
        since: str = "start",
        read_from: str = ANY,
        timeout: Duration | None = None,
        max_staleness: Duration | None = None,
    ) -> AsyncGenerator[Step, None]:
        """Yield what a group did, oldest first; arguments and errors as `Client.history`."""
        told = Telling(group, since)
        try:
            fields = {"op": "show", "name": group}
            answer = await self.call(asked_node(read_from), Type.GROUP, fields, timeout=timeout)
            told.know(answer.fields)
        except UnknownGroup as error:
            told.missing = error
        rows = self.read(
            SYSTEM_TOPIC_GROUP, told.range, read_from=read_from, timeout=timeout,
            max_staleness=max_staleness,
        )  # fmt: skip
        async with aclosing(rows):
            async for record in rows:
                for step in told.steps(record):
                    yield step
        told.end()

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    async def metadata(self, *, timeout: Duration | None = None) -> Route:
        """Return what a node says of the cluster now: nodes, master, topics."""
        return await self._caller.run(self._calls.metadata(self._seconds(timeout)))

    async def topics(self, *, timeout: Duration | None = None) -> dict[str, int]:
        """Return the number of queues by topic name, sorted."""
        return await self._caller.run(self._calls.topics(self._seconds(timeout)))

    async def create_topic(
        self,
        name: str,
        queues: int = QUEUES_DEFAULT,
        *,
        batch: bool = False,
        timeout: Duration | None = None,
    ) -> bool:
        """Create a topic; False when it exists already; as `Client.create_topic`."""
        steps = self._calls.create_topic(name, queues, batch, self._seconds(timeout))
        return await self._caller.run(steps)

    async def alter_topic(
        self, name: str, *, timeout: Duration | None = None, **changes: Unpack[TopicChanges]
    ) -> bool:
        """Alter a topic; False when it is so already; as `Client.alter_topic`."""
        steps = self._calls.alter_topic(name, changes, self._seconds(timeout))
        return await self._caller.run(steps)

    async def delete_topic(
        self, name: str, *, consumed: bool = False, timeout: Duration | None = None
    ) -> bool:
        """Delete a topic; False when it was deleted before; as `Client.delete_topic`."""
        steps = self._calls.delete_topic(name, consumed, self._seconds(timeout))
        return await self._caller.run(steps)

    async def offsets(
        self, topic: str, *, timeout: Duration | None = None
    ) -> dict[int, tuple[int, int]]:
        """Return (start, end) by queue, as the master knows them."""
        return await self._caller.run(self._calls.offsets(topic, self._seconds(timeout)))

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
        steps = self._calls.ask(node, kind, fields or {}, self._seconds(timeout), repeat=repeat)
        return await self._caller.run(steps)

    def _seconds(self, timeout: Duration | None) -> float:
        return self.timeout if timeout is None else seconds_of(timeout)
