"""The blocking producer: a `ProducerCore` with one connection to the master.

Everything happens inside the caller's own calls. ``send`` encodes the record; when that closes a
section it also sends what is ready and takes the answers that have come; when too much is
unanswered it waits. So a section's linger is looked at when the next record comes, and a caller
that stops sending calls ``flush``.

Not here: what is resent and when a section is given up (``twinlog.producer.core``), finding the
master (``twinlog.producer.master_link``).
"""

from __future__ import annotations

import logging
import math
import os
import random
import threading
import time
from collections.abc import Callable
from typing import Final, Self, Unpack

from twinlog.errors import Unavailable, UsageError
from twinlog.producer.call_backs import OnResult, watching
from twinlog.producer.core import ProducerCore, Request
from twinlog.producer.fast_path import SingleSender
from twinlog.producer.master_link import PATIENCE_SECONDS, MasterLink
from twinlog.producer.new_message import PLAIN, MessageFields, NewMessage, packed
from twinlog.producer.section import Section, raised_for
from twinlog.producer.settings import LAST_SECONDS, ProducerSettings, Statistics
from twinlog.producer.single_sends import Origin
from twinlog.session.caller import Caller
from twinlog.session.connection import Connection
from twinlog.session.session import LinkDown
from twinlog.wire.frames import Frame, FrameError, Type

IDLE_SECONDS: Final = 0.002
"""After this long without an answer the connection is checked before it is used again, seconds."""

_log = logging.getLogger("twinlog.producer")


class Producer:
    """Sends many records to one topic; made by `Client.producer`.

    ``identity`` is a (producer id, producer epoch) from outside, for a writer that begins again as
    the one it was (`producer.settings.Target.epoch`); None: a node gives one. ``origin`` is who a
    client's sender is (``twinlog.producer.single_sends``). ``send_seconds`` is the longest that
    handing one request to a connection may last.

    Use it in a ``with`` block: its end waits until everything has its answer and raises the first
    error. Not for two threads at once, and not across a fork.
    """

    send_seconds = math.inf

    def __init__(
        self,
        caller: Caller,
        topic: str,
        settings: ProducerSettings,
        identity: tuple[int, int] | None = None,
        *,
        origin: Origin | None = None,
    ) -> None:
        self._caller = caller
        self._settings = settings
        self._compression = settings.compression
        self._link = MasterLink(
            caller.session,
            topic,
            settings,
            random=random.random,
            identity=identity,
            origin=origin,
        )
        self._own = caller.own()
        self._core: ProducerCore | None = None
        self._single: SingleSender | None = None
        self._closed = False
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        """Return the producer."""
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        on_result: OnResult | None = None,
        **message: Unpack[MessageFields],
    ) -> Section:
        """Take one record and return the section that carries it, shared by its neighbours.

        The section tells the outcome once it is ``done``; ``section.receipt(n)`` where its record
        n was stored. Waits only when too much is unanswered.

        Args:
            body: The message.
            on_result: Called once, with the message's `Receipt` or the `TwinlogError` that is its
                final outcome: retries until the producer's ``timeout`` are over then. It is called
                inside a later call of this producer (`send`, `flush`, `close`), by its thread, and
                may send. What it raises is logged as ``twinlog.producer``. `flush` raises the error
                of a message all the same.
            message: The fields of `NewMessage`: ``key``, ``tag``, ``order_key``, ``properties``,
                ``light``, ``queue``, ``born_ms``, ``delay_level``,
                ``delay``, ``at``, ``transaction``.

        Raises:
            RecordRefused: The record cannot be stored; nothing was taken.
            UsageError: An argument is of another type; nothing was taken.
            Unavailable: No node could be asked about the topic (first call only).
            UnknownTopic: It does not exist (first call only).
        """
        # Two threads inside `add` would mix up their records, and one of them could be lost.
        if not self._lock.acquire(False):
            raise _two_threads()
        try:
            core = self._core
            if core is None or self._closed:
                core = self._start(self._settings.timeout)
            flags = 0
            if self._compression is not None:
                body, flags = packed(self._compression, body)
            said = NewMessage(**message) if message else PLAIN
            if said is not PLAIN and not core.lanes.has(said):
                self._caller.run(self._link.look(time.monotonic() + self._settings.timeout))
            section = core.add(body, said, time.monotonic(), time.time_ns() // 1_000_000, flags)
            if on_result is not None:
                core.watched = watching(core.watched, section, on_result, complain)
            if core.due:
                self._turn_over(core)
        finally:
            self._lock.release()
        if core.watched is not None:
            core.watched.tell()
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
        self._alone(lambda: core.close_all(time.monotonic()))
        self._until(lambda: core.idle, timeout)
        self._tell(core)
        error = raised_for(core.collect())
        if error is not None:
            raise error

    def close(self) -> None:
        """Close; what has no answer by now stays unknown, and nothing more is taken."""
        self._closed = True
        self._own.close()
        if self._core is not None and self._core.watched is not None:
            self._core.watched.end()

    @property
    def epoch(self) -> int:
        """The highest producer epoch that it has used; -1: it has not begun."""
        return self._core.epoch if self._core is not None else -1

    def leave(self) -> Connection | None:
        """Close, and leave the connection to another producer: None where it cannot be left."""
        left: Connection | None = None
        if self._core is None or self._core.idle:
            left, self._own.connection = self._own.connection, None
        self.close()
        return left

    def take_over(self, connection: Connection | None) -> None:
        """Begin with a connection that another producer left."""
        self._own.connection = connection

    def statistics(self) -> Statistics:
        """Return what was done so far; the object keeps counting."""
        return self._core.statistics if self._core is not None else Statistics()

    def one(self, timeout: float, body: bytes, message: NewMessage, flags: int = 0) -> Section:
        """Take one record, send it at once and wait for its answer: a single send.

        Threads take turns. ``timeout`` is in seconds and includes the turns of others, and what is
        asked before the first record.

        Raises:
            Unavailable: Its turn did not come in time; nothing was sent.
        """
        end = time.monotonic() + timeout
        if not self._lock.acquire(timeout=timeout):
            text = "nothing was sent: other threads' messages to the topic are under way"
            raise Unavailable(text, hint="give each thread a producer of its own")
        try:
            core, single = self._core, self._single
            if core is None or single is None or self._closed:
                core = self._start(timeout)
                single = self._single = SingleSender(core)
            section = self._alone_sent(core, single, end, body, message, flags)
            if core.narrowed and section.error is not None and message.queue is None:
                section = self._alone_sent(core, single, end, body, message, flags)
            return section
        finally:
            self._lock.release()

    def _alone_sent(
        self, core: ProducerCore, single: SingleSender, end: float, body: bytes,
        message: NewMessage, flags: int,
    ) -> Section:  # fmt: skip
        now = time.monotonic()
        if self._link.must_look(now) or not core.lanes.has(message):
            self._caller.run(self._link.look(end))
            now = time.monotonic()
        connection = self._own.connection
        if connection is not None and self._is_idle(now) and connection.stale():
            self._lost()
        section, request = single.send(
            body, message, now, time.time_ns() // 1_000_000, flags,
            timeout=max(end - now, LAST_SECONDS),
        )  # fmt: skip
        if request is not None:
            self._send(request)
            self._take(core, min(end - now, PATIENCE_SECONDS))
        while not section.done:
            self._step(core, None)
        if core.failures:
            core.collect()
        return section

    # ── inside ──────────────────────────────────────────────────────────────────────────────────

    def _start(self, seconds: float) -> ProducerCore:
        """Ask what must be known before the first record can be encoded, within ``seconds``."""
        if self._closed:
            raise UsageError("the producer is closed", hint="make a new one")
        steps = self._link.start(time.monotonic() + seconds)
        self._core = self._caller.run(steps, self._own)
        return self._core

    def _until(self, done: Callable[[], bool], timeout: float | None) -> None:
        """Work until ``done``; raise Unavailable when that lasts longer than ``timeout``."""
        core = self._core
        assert core is not None, "started"
        end = None if timeout is None else time.monotonic() + timeout
        while not done():
            if end is not None and time.monotonic() >= end:
                raise Unavailable(f"not everything was answered within {timeout:g} s")
            self._alone(lambda: self._step(core, end))
            self._tell(core)

    def _alone(self, work: Callable[[], None]) -> None:
        """Work, unless another thread does so at this moment."""
        if not self._lock.acquire(blocking=False):
            raise _two_threads()
        try:
            work()
        finally:
            self._lock.release()

    def _tell(self, core: ProducerCore) -> None:
        """Call back for what has its answer; not while the producer is locked."""
        if core.watched is not None:
            core.watched.tell()

    def _turn_over(self, core: ProducerCore) -> None:
        """Send what is ready, take what has come, wait while too much is unanswered."""
        if self._pid != os.getpid():
            raise UsageError("a producer cannot be used in another process than it was made in")
        if not core.unrouted:
            now = time.monotonic()
            if self._link.must_look(now):
                self._caller.run(self._link.look(core.deadline))
                now = time.monotonic()
            self._send_ready(core, now)
            while not core.unrouted and core.in_flight and self._take(core, 0.0):
                pass
        while core.full:
            self._step(core, None)
        core.due = False

    def _step(self, core: ProducerCore, end: float | None) -> None:
        """Do the next thing and wait at most until something can have changed."""
        now = time.monotonic()
        core.expire(now)
        if core.idle:
            return
        limit = core.deadline if end is None else min(core.deadline, end)
        if core.unrouted and now >= core.retry_at:
            self._caller.run(self._link.route(limit), self._own)
            return
        if not core.unrouted:
            self._send_ready(core, now)
            if core.unrouted:
                return
        if core.retry_at > now:
            limit = min(limit, core.retry_at)
        doubt = self._link.heard + PATIENCE_SECONDS
        if not core.in_flight or core.unrouted:
            time.sleep(max(0.0, limit - time.monotonic()))
            return
        came = self._take(core, min(limit, doubt) - time.monotonic())
        connection = self._own.connection
        if not came and connection is not None and time.monotonic() >= doubt:
            leave = self._caller.run(self._link.doubt(connection.address, limit))
            if leave:
                self._drop()

    def _send_ready(self, core: ProducerCore, now: float) -> None:
        """Send what may be sent; first see whether an idle connection is still there.

        What is never put on a dead connection is certainly not stored.
        """
        connection = self._own.connection
        if connection is not None and self._is_idle(now) and connection.stale():
            self._lost()
            return
        while self._own.connection is not None and (request := core.next_request(now)):
            self._send(request)

    def _is_idle(self, now: float) -> bool:
        """Whether the connection may have ended without our knowing."""
        core = self._core
        return now - self._link.heard > IDLE_SECONDS and not (core is not None and core.in_flight)

    def _send(self, request: Request) -> None:
        connection = self._own.connection
        assert connection is not None, "nothing is sent while the master is looked for"
        frame = Frame(Type.APPEND, fields=request.fields)
        seconds = min(max(request.deadline - time.monotonic(), 0.05), self.send_seconds)
        try:
            number = connection.send(frame, seconds, request.pieces)
        except LinkDown:
            self._lost()
        else:
            self._link.sent(number, request, time.monotonic())

    def _take(self, core: ProducerCore, seconds: float) -> bool:
        """Take one answer, waiting at most ``seconds``; say whether there was one."""
        connection = self._own.connection
        if connection is None:
            return False
        try:
            answer = connection.take(max(0.0, seconds))
            if answer is None:
                return False
            now = time.monotonic()
            number = self._link.answered(answer, now)
            (self._single or core).on_answer(number, answer, now)
        except (LinkDown, FrameError):
            self._lost()
            return False
        return True

    def _lost(self) -> None:
        """Give up a connection that has ended; its node is asked last."""
        connection = self._own.connection
        if connection is not None:
            self._caller.session.table.suspect(connection.address)
        self._drop()

    def _drop(self) -> None:
        """Give up the connection; what was under way is sent again."""
        self._own.close()
        self._link.lost(time.monotonic())


def complain(error: Exception) -> None:
    """Log what a call-back raised; its message is not affected."""
    _log.error("a call-back of a message raised", exc_info=error)


def _two_threads() -> UsageError:
    hint = "make one producer for each thread: client.producer(topic)"
    text = "two threads use one producer at the same time; nothing was taken"
    return UsageError(text, code="threads", hint=hint)
