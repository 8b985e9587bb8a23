"""The blocking client: plain sockets, no thread, no event loop.

One `Client` keeps one connection to each node it talks to, and one for each topic and
acknowledgement that it sends single messages with: 64 at most, the least recently used is given up
for the next (``twinlog.senders``). Producers and readers have their own.
It belongs to one thread at a time. After a fork the child opens connections of its own. Pickling a
client pickles its settings, so Spark workers can be handed one.

Three outcomes: a call returns (done), raises `OutcomeUnknown` (it may be done), or raises another
`TwinlogError` (not done). Retries, redirects to the master and duplicates after a failover are
dealt with inside, within one deadline for each call.

Times are seconds, or text with a unit (``"2 ms"``); sizes are bytes, or text (``"256 KiB"``).

Not here: decisions (``session``, ``producer``, ``reading``); ``AsyncClient`` (``twinlog.aio``).
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from twinlog import shapes
from twinlog.address import id_fields, parse_address
from twinlog.answers import message_at, topic_created, topic_fields
from twinlog.compression import parse_compression
from twinlog.connection import CONNECT_SECONDS, Connection
from twinlog.errors import OffsetBeyond, Unavailable
from twinlog.finding import FOUND_DEFAULT, Finding, Search, find
from twinlog.messages import Message, Receipt
from twinlog.pipeline import Producer, wall_ms
from twinlog.producer_settings import ProducerSettings
from twinlog.ranges import parse_range
from twinlog.reader import read_messages
from twinlog.reading import ReadSettings, parse_tags, parse_where
from twinlog.routing import Address, Route, parse_endpoints, parse_route
from twinlog.senders import Senders
from twinlog.session import ANY, MASTER, Ask, LinkDown, Session, Step
from twinlog.survey import Offsets, parse_offsets, survey
from twinlog.units import KiB, parse_duration, parse_size
from twinlog.wire import Frame, FrameError, Type

T = TypeVar("T")

Duration = float | str
Size = int | str


def seconds_of(value: Duration) -> float:
    """Return seconds given as a number or as text with a unit; raises UnitError."""
    return parse_duration(value) if isinstance(value, str) else float(value)


def bytes_of(value: Size) -> int:
    """Return bytes given as a number or as text with a unit; raises UnitError."""
    return parse_size(value) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True)
class Ahead:
    """A question that was sent to one node and whose answer nobody has waited for yet.

    Attributes:
        node: Its name.
        connection: How it was sent.
        number: The request.
    """

    node: str
    connection: Connection
    number: int


class Client:
    """See the module.

    Args:
        endpoints: ``"host:port,host:port"`` or a list; any node of the cluster will do.
        timeout: How long one call may take, retries and a failover included.
        name: What nodes may log about this client.

    Raises:
        UsageError: An endpoint is no address.
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
        self._endpoints = parse_endpoints(endpoints)
        self.session = Session(self._endpoints, clock=time.monotonic, random=random.random)
        self._connections: dict[Address, Connection] = {}
        self._senders: Senders[Producer] = Senders()
        self._pid = os.getpid()

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the settings."""
        endpoints = tuple(str(address) for address in self._endpoints)
        return _client, (endpoints, self.timeout, self.name)

    def __enter__(self) -> Self:
        """Return the client."""
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
        """Close all connections; the client can be used again and opens new ones."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        for sender in self._senders:
            sender.close()
        self._senders.clear()

    # ── sending ─────────────────────────────────────────────────────────────────────────────────

    def send(
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
        """Send one message and return where it was stored.

        Args:
            topic: Name.
            body: The message.
            key: Index key; several are separated by spaces. Never chooses the queue.
            tag: What readers filter by.
            order_key: Messages of the same order key go to the same queue, in order.
            properties: Further properties.
            queue: The queue itself.
            light: Light queues (``%LMQ%name``) that it is entered in besides its own.
            acknowledge: ``written``, ``flushed``, ``replicated`` or ``confirmed``.
            compress: ``none``, ``zlib``, ``lz4`` or ``zstd``, perhaps with a level (``zlib:9``):
                what is done to a body of 4 KiB or more when that makes it smaller.
            timeout: Instead of the client's.

        Raises:
            OutcomeUnknown: It may or may not be stored.
            TwinlogError: It is not stored.
        """
        self._own_process()
        compression = parse_compression(compress)
        packed, flags = (body, 0) if compression is None else compression.pack(body)
        sender = self._senders.get(topic, acknowledge) or self._sender(topic, acknowledge)
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        section = sender.one(
            seconds, packed, key, tag, order_key, properties, queue, flags=flags, light=light
        )
        return section.receipt()

    def _sender(self, topic: str, acknowledge: str) -> Producer:
        """Make and keep a sender; in the place of another one, and with its connection, if full."""
        settings = ProducerSettings(acknowledge=acknowledge, timeout=self.timeout, window=1)
        left: Connection | None = None
        if self._senders.full:
            oldest = self._senders.remove_oldest(lambda _: True)
            left = oldest.leave() if oldest is not None else None
        sender = Producer(self, topic, settings, origin=self._senders.origin(acknowledge))
        sender.take_over(left)
        self._senders.add(topic, acknowledge, sender)
        return sender

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
    ) -> Producer:
        """Return a producer for many messages to ``topic``; see `Producer` and `ProducerSettings`.

        Raises:
            UsageError: A setting is out of its limits.
        """
        self._own_process()
        settings = ProducerSettings(
            acknowledge=acknowledge,
            batch=bytes_of(batch),
            linger=seconds_of(linger),
            window=window,
            compression=parse_compression(compress),
            timeout=self.timeout if timeout is None else seconds_of(timeout),
        )
        return Producer(self, topic, settings)

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
    ) -> Iterator[Message]:
        """Yield the messages in ``range`` of each queue, in order within a queue.

        Args:
            topic: Name.
            range: See ``twinlog.ranges``.
            queue: Only this queue.
            tag: Only messages with this tag; several as ``"a || b"``.
            where: Only messages whose properties match this filter; see ``twinlog.sql92``.
            read_from: ``any``, ``master``, ``slave`` (the master only while no slave answers) or
                a node's name (only that node).
            limit: At most so many messages in all.
            follow: At the end wait for more, for ever.
            timeout: Instead of the client's: how long there may be no progress (`ReadSettings`).

        Raises:
            RangeError, FilterError, UsageError: ``range``, ``where`` or ``limit`` is none; at once.
            OffsetGone, OffsetBeyond: Named offsets that are not there.
            NotYetConfirmed, Unavailable: Nobody could serve for ``timeout``.
            UnknownTopic, Corrupt: As they say.
        """
        self._own_process()
        settings = ReadSettings(
            topic=topic,
            read_from=read_from,
            tags=parse_tags(tag),
            where=parse_where(where),
            limit=limit,
            follow=follow,
            timeout=self.timeout if timeout is None else seconds_of(timeout),
        )
        wanted = parse_range(range)

        def begin() -> Iterator[Message]:
            deadline = time.monotonic() + settings.to_begin(self.timeout)
            cursors = self.run(
                survey(
                    self.session,
                    settings,
                    wanted,
                    queue=queue,
                    deadline=deadline,
                    wall_ms=wall_ms(),
                )
            )
            yield from read_messages(self, settings, cursors)

        return begin()

    def get(
        self, address: str, *, read_from: str = MASTER, timeout: Duration | None = None
    ) -> Message:
        """Return the message at ``topic/queue@offset``, ``log@offset`` or a message id.

        Args:
            address: A message id is RocketMQ's: store host and log offset in hex.
            read_from: ``master``, ``any`` or a node's name; for the first form ``slave`` as well.
            timeout: Instead of the client's.

        Raises:
            UsageError: It is no address, nothing begins there, or the id is of another store.
            NotYetConfirmed: It is stored but not confirmed.
        """
        topic, queue, offset = parse_address(address)
        if topic:
            wanted = f"{offset}:{offset + 1}"
            found = self.read(topic, wanted, queue=queue, read_from=read_from, timeout=timeout)
            for message in found:
                return message
            raise OffsetBeyond(f"nothing is stored at {address} yet", end=offset)
        fields = {"log_offset": offset, **id_fields(address)}
        return message_at(self._ask(Type.GET, fields, read_from, timeout), offset)

    def find(
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
        """Return the messages with a key, newest first.

        Args:
            topic: Name.
            key: One of a message's keys, or its unique id.
            begin: Stored at or after, ms since 1970.
            end: Stored at or before, ms since 1970.
            most: So many messages at most.
            unique: Look for the unique id alone.
            read_from: ``master``, ``any``, ``slave`` or a node's name.
            timeout: Instead of the client's.

        Raises:
            UnknownTopic: There is no such topic.
            Unavailable: Nobody could answer; code ``index-off``: the node keeps no key index.
            UsageError: It is no key, or a number is out of its limits.
        """
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        search = Search(topic, key, begin, end, most, unique)
        deadline = time.monotonic() + seconds
        return self.run(find(self.session, search, read_from=read_from, deadline=deadline))

    # ── asking ──────────────────────────────────────────────────────────────────────────────────

    def metadata(self, *, timeout: Duration | None = None) -> Route:
        """Return what a node says of the cluster now: nodes, master, topics."""
        answer = self._ask(Type.METADATA, {}, ANY, timeout)
        route = parse_route(answer.fields)
        self.session.table.learn(route)
        return route

    def topics(self, *, timeout: Duration | None = None) -> dict[str, int]:
        """Return the number of queues by topic name, sorted."""
        answer = self._ask(Type.METADATA, {}, MASTER, timeout)
        return dict(sorted(parse_route(answer.fields).topics.items()))

    def create_topic(
        self,
        name: str,
        queues: int = 4,
        *,
        batch: bool = False,
        timeout: Duration | None = None,
    ) -> bool:
        """Create a topic; False when it exists already with such queues.

        With ``batch`` it has batch queues (RocketMQ's BatchCQ): producers store neighbours as one
        record, which every reader takes apart again.

        Raises:
            OutcomeUnknown: It may or may not have been created.
            UsageError: It exists with another number or kind of queues, or its name is not allowed.
        """
        answer = self._ask(Type.TOPIC, topic_fields(name, queues, batch), MASTER, timeout)
        return topic_created(answer, name, queues, batch=batch)

    def offsets(self, topic: str, *, timeout: Duration | None = None) -> dict[int, tuple[int, int]]:
        """Return (start, end) by queue, as the master knows them.

        Raises:
            UnknownTopic: It does not exist.
        """
        fields: dict[str, object] = {"topic": topic, "queues": None, "at_ms": None}
        found: Offsets = parse_offsets(self._ask(Type.OFFSETS, fields, MASTER, timeout).fields)
        return {queue: (start, end) for queue, (start, end, _) in found.items()}

    def call(
        self,
        node: str,
        kind: Type,
        fields: Mapping[str, object] | None = None,
        *,
        timeout: Duration | None = None,
        repeat: bool = True,
    ) -> Frame:
        """Ask one node (by name), ``master`` or ``any``, and return its good answer.

        Args:
            node: Whom to ask; a node that is named is asked once.
            kind: Type of the request.
            fields: Its fields.
            timeout: Instead of the client's.
            repeat: Whether carrying it out twice is the same as once.

        Raises:
            OutcomeUnknown: It may have been carried out.
            TwinlogError: What the node refused it with, or Unavailable.
        """
        return self._ask(kind, fields or {}, node, timeout, repeat=repeat)

    def _ask(
        self,
        kind: Type,
        fields: Mapping[str, object],
        to: str,
        timeout: Duration | None,
        *,
        repeat: bool = True,
    ) -> Frame:
        seconds = self.timeout if timeout is None else seconds_of(timeout)
        deadline = time.monotonic() + seconds
        return self.run(self.session.call(kind, fields, deadline=deadline, to=to, repeat=repeat))

    # ── asking ahead, for this package's own parts ──────────────────────────────────────────────

    def begin(
        self, node: str, kind: Type, fields: Mapping[str, object], *, timeout: float
    ) -> Ahead | None:
        """Send a question to a node by name and return at once; `finish` takes the answer.

        None where no connection to it is open, or where it did not take the question in time: it
        was not asked, and can be asked as usual.
        """
        self._own_process()
        route = self.session.table.route
        found = None if route is None else route.node(node)
        address = None if found is None else found.address
        connection = None if address is None else self._connections.get(address)
        if connection is None or connection.stale():
            return None
        try:
            number = connection.send(Frame(kind, fields=dict(fields)), timeout)
        except LinkDown:
            self._forget(connection)
            return None
        return Ahead(node, connection, number)

    def finish(self, ahead: Ahead, *, timeout: float) -> Frame | None:
        """Return the good answer to what `begin` sent.

        None where the node refused, the connection broke off, or the node was asked something else
        meanwhile, which drops the answer: nothing is known, and it can be asked as usual.

        Raises:
            Unavailable: The node did not answer within ``timeout`` seconds.
        """
        self._own_process()
        connection, began = ahead.connection, time.monotonic()
        held = self._connections.get(connection.address) is connection
        if not held or connection.last != ahead.number:
            return None
        try:
            answer = connection.answer(ahead.number, timeout)
            if answer.is_error:
                return None
            shapes.check(answer)
        except LinkDown as down:
            self._forget(connection)
            if time.monotonic() - began < timeout:
                return None
            self.session.table.suspect(connection.address)
            raise Unavailable(f"{ahead.node} {down.why}") from None
        except FrameError:
            return None
        return answer

    def _forget(self, connection: Connection) -> None:
        if self._connections.get(connection.address) is connection:
            del self._connections[connection.address]

    # ── carrying out what the session decides ───────────────────────────────────────────────────

    def run(self, steps: Generator[Step, Frame | None, T]) -> T:
        """Carry out the steps of a call and return its result; for this package's own parts."""
        self._own_process()
        try:
            step = next(steps)
            while True:
                if isinstance(step, Ask):
                    try:
                        answer = self._carry(step)
                    except LinkDown as down:
                        step = steps.throw(down)
                    else:
                        step = steps.send(answer)
                else:
                    time.sleep(step.seconds)
                    step = steps.send(None)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _carry(self, step: Ask) -> Frame:
        connection = self._connections.pop(step.address, None)
        if connection is not None and connection.stale():
            connection.close()
            connection = None
        if connection is None:
            seconds = min(CONNECT_SECONDS, step.seconds)
            connection = Connection(step.address, client=self.name, seconds=seconds)
        answer = connection.ask(step.frame, step.seconds)
        self._connections[step.address] = connection
        return answer

    def _own_process(self) -> None:
        """Forget the parent's connections after a fork; they go on being the parent's."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self.close()


def _client(endpoints: tuple[str, ...], timeout: float, name: str) -> Client:
    return Client(endpoints, timeout=timeout, name=name)
