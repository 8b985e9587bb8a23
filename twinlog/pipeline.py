"""The blocking producer: a `ProducerCore` with one connection to the master.

Everything happens inside the caller's own calls. ``send`` encodes the record; when that closes a
section it also sends what is ready and takes the answers that have come; when too much is
unanswered it waits. So a section's linger is looked at when the next record comes, and whoever
stops sending calls ``flush``.

Not here: what is resent and when a section is given up (``twinlog.producer``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self

from twinlog.connection import CONNECT_SECONDS, Connection
from twinlog.errors import TwinlogError, Unavailable, UsageError
from twinlog.outgoing import Section
from twinlog.producer import ProducerCore, Request, raised_for
from twinlog.producer_settings import ProducerSettings, Statistics, Target
from twinlog.reading import unknown_topic
from twinlog.routing import Address, parse_route
from twinlog.senders import Origin
from twinlog.session import MASTER, LinkDown
from twinlog.single_sender import SingleSender
from twinlog.wire import Frame, FrameError, Type

if TYPE_CHECKING:
    from twinlog.client import Client

ROUTE_SECONDS = 2.0
"""How long one search for the master lasts before the deadlines of sections are looked at."""

IDLE_SECONDS = 0.002
"""After so long without an answer the connection is looked at before it is used again."""

PATIENCE_SECONDS = 1.0
"""How long the master may be silent before the other nodes are asked who is master: one that was
paused or cut off keeps its connections open, and its successor is waiting for what it has."""

LAST_SECONDS = 0.001
"""What is left at least to a single send once everything before it was answered in time."""


def wall_ms() -> int:
    """Return the wall time, ms since 1970."""
    return time.time_ns() // 1_000_000


class Producer:
    """Sends many records to one topic; made by `Client.producer`.

    ``identity`` is a (producer id, producer epoch) from outside, for a writer that begins again as
    the one it was (`producer_settings.Target.epoch`); None: a node gives one. ``origin`` is who a
    client's sender is (``twinlog.senders``).

    Use it in a ``with`` block: its end waits until everything has its answer and raises the first
    error. Not for two threads at once, and not across a fork.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        settings: ProducerSettings,
        identity: tuple[int, int] | None = None,
        *,
        origin: Origin | None = None,
    ) -> None:
        self._client = client
        self._identity = identity
        self._origin = origin or Origin()
        self._topic = topic
        self._settings = settings
        self._core: SingleSender | None = None
        self._connection: Connection | None = None
        self._numbers: dict[int, int] = {}
        self._asked: Address | None = None
        self._attempt = 0
        self._heard = 0.0
        self._closed = False
        self._pid = os.getpid()

    def __enter__(self) -> Self:
        """Return the producer."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Flush, unless an error is under way; then close."""
        try:
            if kind is None:
                self.flush()
        finally:
            self.close()

    def send(
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

        The section tells the outcome once it is ``done``; ``section.receipt(n)`` where its record
        n was stored. Waits only when too much is unanswered.

        Args:
            body: The message.
            key: Index key; several are separated by spaces. Never chooses the queue.
            tag: What readers filter by.
            order_key: Records of the same order key go to the same queue, in order.
            properties: Further properties.
            queue: The queue itself.
            light: Light queues (``%LMQ%name``) that it is entered in besides its own.
            born_ms: When it was born, ms since 1970, for one that is sent again; None: now.

        Raises:
            RecordRefused: The record cannot be stored; nothing was taken.
            Unavailable: No node could be asked about the topic (first call only).
            UnknownTopic: It does not exist (first call only).
        """
        core = self._core
        if core is None or self._closed:
            core = self._start(self._settings.timeout)
        body, flags = self._settings.pack(body)
        section = core.add(
            body, key, tag, order_key, properties, queue,
            flags=flags, light=light, born_ms=born_ms,
        )  # fmt: skip
        if core.due:
            self._work(core)
        return section

    def flush(self, timeout: float | None = None) -> None:
        """Wait until everything taken so far has its final answer.

        Args:
            timeout: Seconds; None: until the deadlines of the sections themselves.

        Raises:
            TwinlogError: The first error since the last flush, an unknown outcome before others;
                every section has its own.
            Unavailable: ``timeout`` came first; what is under way stays under way.
        """
        core = self._core
        if core is None or self._closed:
            return
        core.close_all()
        self._until(lambda: core.idle, timeout)
        error = raised_for(core.collect())
        if error is not None:
            raise error

    def close(self) -> None:
        """Close; what has no answer by now stays unknown, and nothing more is taken."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def epoch(self) -> int:
        """The highest producer epoch that it has used; -1: it has not begun."""
        return self._core.epoch if self._core is not None else -1

    def leave(self) -> Connection | None:
        """Close, and leave the connection to another producer: None where it cannot be left."""
        left: Connection | None = None
        if self._core is None or self._core.idle:
            left, self._connection = self._connection, None
        self.close()
        return left

    def take_over(self, connection: Connection | None) -> None:
        """Begin with a connection that another producer left."""
        self._connection = connection

    def statistics(self) -> Statistics:
        """Return what was done so far; the object goes on counting."""
        return self._core.statistics if self._core is not None else Statistics()

    def one(
        self,
        timeout: float,
        body: bytes,
        key: str | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        *,
        flags: int = 0,
        light: Sequence[str] = (),
    ) -> Section:
        """Take one record, send it at once and wait for its answer: a single send.

        ``timeout`` seconds are for all of it, what is asked before the first record included.
        """
        if self._core is None or self._closed:
            end = time.monotonic() + timeout
            core = self._start(timeout)
            timeout = max(end - time.monotonic(), LAST_SECONDS)
        else:
            core = self._core
        connection = self._connection
        if connection is not None and self._is_idle(time.monotonic()) and connection.stale():
            self._lost(connection)
        made = core.alone(
            body, key, tag, order_key, properties, queue, flags=flags, light=light, timeout=timeout
        )
        if made is None or connection is None:
            section = core.add(
                body, key, tag, order_key, properties, queue, flags=flags, light=light
            )
            core.close(section)
            core.limit(section, time.monotonic() + timeout)
        else:
            section, request = made
            self._send(core, connection, request)
            self._take(core, min(timeout, PATIENCE_SECONDS))
        while not section.done:
            self._step(None)
        if core.failures:
            core.collect()
        return section

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    def _start(self, seconds: float) -> SingleSender:
        """Ask what must be known before the first record can be encoded, in so much time."""
        if self._closed:
            raise UsageError("the producer is closed", hint="make a new one")
        client = self._client
        deadline = time.monotonic() + seconds
        session = client.session
        fields: dict[str, object] = {"topics": [self._topic]}
        answer = client.run(session.call(Type.METADATA, fields, deadline=deadline, to=MASTER))
        route = parse_route(answer.fields)
        session.table.learn(route)
        queues = route.topics.get(self._topic)
        if queues is None:
            raise unknown_topic(self._topic)
        origin = self._origin
        producer, epoch = self._identity or (origin.producer, None)
        if not producer:
            given = client.run(session.call(Type.PRODUCER, {}, deadline=deadline, to=MASTER))
            told = given.fields["producer"]
            assert isinstance(told, int), "shapes.check"
            producer = origin.producer = told
        connection = self._connect(deadline)
        target = Target(
            topic=self._topic,
            queues=queues,
            family=connection.peer.family,
            producer=producer,
            message_size_max=route.message_size_max,
            segment_size=connection.peer.segment_size,
            born_host=connection.local,
            batch=self._topic in route.batched,
            epoch=epoch,
            first_epoch=origin.epoch,
        )
        self._core = SingleSender(
            target,
            self._settings,
            wall_ms=wall_ms,
            now=time.monotonic,
            random=client.random,
        )
        self._core.unrouted = False
        return self._core

    def _connect(self, deadline: float) -> Connection:
        """Connect to the master, looking for it until ``deadline``."""
        while True:
            try:
                return self._reach(deadline)
            except LinkDown as down:
                left = deadline - time.monotonic()
                pause = self._client.session.pause(self._attempt)
                self._attempt += 1
                if left <= pause:
                    raise Unavailable(f"the master {self._asked} {down.why}") from None
                time.sleep(pause)

    def _reach(self, deadline: float, error: TwinlogError | None = None) -> Connection:
        """Connect to the master once, the node asked last having failed or refused."""
        session = self._client.session
        asked, self._asked = self._asked, None
        address = self._client.run(session.successor(asked, error, deadline))
        self._asked = address
        if self._connection is not None:
            if self._connection.address == address and not self._connection.stale():
                return self._connection
            self._drop()
        seconds = min(CONNECT_SECONDS, max(deadline - time.monotonic(), 0.05))
        try:
            self._connection = Connection(address, client=self._client.name, seconds=seconds)
        except LinkDown:
            session.table.suspect(address)
            raise
        session.table.trust(address)
        self._attempt = 0
        return self._connection

    def _drop(self) -> None:
        """Give up the connection; what was under way goes again."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._numbers.clear()
        if self._core is not None:
            self._core.on_lost(time.monotonic())

    def _until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Work until ``done``; raise Unavailable when that lasts longer than ``timeout``."""
        end = None if timeout is None else time.monotonic() + timeout
        while not done():
            if end is not None and time.monotonic() >= end:
                raise Unavailable(f"not everything was answered within {timeout:g} s")
            self._step(end)

    def _work(self, core: ProducerCore) -> None:
        """Send what is ready, take what has come, wait while too much is unanswered."""
        if self._pid != os.getpid():
            raise UsageError("a producer cannot be used in another process than it was made in")
        now = time.monotonic()
        if not core.unrouted:
            self._send_ready(core, now)
            while not core.unrouted and core.in_flight and self._take(core, 0.0):
                pass
        while core.full:
            self._step(None)
        core.due = False

    def _step(self, end: float | None) -> None:
        """Do the next thing and wait at most until something can have changed."""
        core = self._core
        assert core is not None, "started"
        now = time.monotonic()
        core.expire(now)
        if core.idle:
            return
        limit = core.deadline if end is None else min(core.deadline, end)
        if core.unrouted and now >= core.retry_at:
            self._route(core, min(limit, now + ROUTE_SECONDS))
            return
        if not core.unrouted:
            self._send_ready(core, now)
            if core.unrouted:
                return
        if core.retry_at > now:
            limit = min(limit, core.retry_at)
        doubt = self._heard + PATIENCE_SECONDS
        if not core.in_flight or core.unrouted:
            time.sleep(max(0.0, limit - time.monotonic()))
            return
        came = self._take(core, min(limit, doubt) - time.monotonic())
        if not came and self._connection is not None and time.monotonic() >= doubt:
            self._doubt(core, self._connection, limit)

    def _doubt(self, core: ProducerCore, connection: Connection, deadline: float) -> None:
        """Ask the others who is master; leave the one that is silent when it is another."""
        session, now = self._client.session, time.monotonic()
        session.table.suspect(connection.address)
        self._client.run(session.refresh(min(deadline, now + ROUTE_SECONDS)))
        self._heard = time.monotonic()
        if session.table.master != connection.address:
            self._drop()

    def _route(self, core: ProducerCore, deadline: float) -> None:
        """Look for the master once; when that does not succeed, wait before the next time."""
        error = core.refusal if core.refusal and core.refusal.code == "not-master" else None
        try:
            self._reach(deadline, error)
        except LinkDown as down:
            core.postpone(time.monotonic(), Unavailable(f"the master {self._asked} {down.why}"))
        except TwinlogError as found:
            core.postpone(time.monotonic(), found)
        else:
            core.unrouted = False

    def _send_ready(self, core: ProducerCore, now: float) -> None:
        """Send what may go; first see whether a connection that was idle is still there.

        What is never put on a dead connection is certainly not stored.
        """
        connection = self._connection
        if connection is not None and self._is_idle(now) and connection.stale():
            self._lost(connection)
            return
        while self._connection is not None and (request := core.next_request(now)):
            self._send(core, self._connection, request)

    def _is_idle(self, now: float) -> bool:
        """Whether the connection may have ended without our knowing."""
        core = self._core
        return now - self._heard > IDLE_SECONDS and not (core is not None and core.in_flight)

    def _send(self, core: ProducerCore, connection: Connection, request: Request) -> None:
        frame = Frame(Type.APPEND, fields=request.fields)
        seconds = max(request.deadline - time.monotonic(), 0.05)
        try:
            number = connection.send(frame, seconds, request.pieces)
        except LinkDown:
            self._lost(connection)
        else:
            self._numbers[number] = request.number
            if core.in_flight == 1:
                self._heard = time.monotonic()

    def _take(self, core: ProducerCore, seconds: float) -> bool:
        """Take one answer, waiting at most so long; say whether there was one."""
        connection = self._connection
        if connection is None:
            return False
        try:
            answer = connection.take(max(0.0, seconds))
            if answer is None:
                return False
            self._heard = time.monotonic()
            core.on_answer(self._numbers.pop(answer.request, -1), answer, self._heard)
        except (LinkDown, FrameError):
            self._lost(connection)
            return False
        return True

    def _lost(self, connection: Connection) -> None:
        self._client.session.table.suspect(connection.address)
        self._drop()
