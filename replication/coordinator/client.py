"""A node's client of the coordinator: calls with three outcomes, the newest state, live entries.

`CoordinatorClient` keeps three connections, each with one request at a time, so that a parked watch
never delays a call and a call never delays the poll:

* **calls**: `call` executes one operation; at most one change is outstanding, others wait. A
refused connection, a time-out, a reset or an unreadable answer is `Unknown`. Nothing is ever sent
twice.
* **watch**: parked at the coordinator until its revision is newer than the last one seen.
* **poll**: once a second, the state and the live entries, so that a lost watch costs a second.

States are given to ``on_state`` in the order of arrival, the same one not twice in a row; the
receiver compares epochs and revisions: an answer of the watch may be older than that of the poll.

An absent coordinator is a normal condition: connections are retried with back-off from 50 ms to 1
s, and `CoordinatorClient.contact_at` is the time of the last answer. `run` ends only by
cancellation; a cancelled `call` leaves its operation's outcome unknown and its connection closed.

Not here: deciding what to call (``replication.core.replica``); frames and fields
(``replication.coordinator.blocking_client``).
"""

from __future__ import annotations

import math
import ssl
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from replication.coordinator.blocking_client import (
    CALL_SECONDS,
    Endpoint,
    Fields,
    error_of,
    hello_fields,
    map_of,
)
from replication.net.handshakes import connect_secured
from replication.net.tls_stream import AnyStream, TlsStream, close_now, said_something
from twinlog.errors import ProtocolError, TwinlogError
from twinlog.session.tls import TlsRefused
from twinlog.wire import frames

WATCH_SECONDS = 20.0
"""How long a watch stays parked; then it is repeated, so that a dead connection is noticed."""

POLL_SECONDS = 1.0
POLL_FRESH_SECONDS = 0.05
"""The shortest time between two polls, however often the node publishes."""

STRAY_MAX = 16
"""Unrelated frames accepted before the answer. With one request at a time even one is unexpected; a
peer that keeps sending them is dropped before the deadline."""

BACKOFF_FIRST = 0.05
BACKOFF_MAX = 1.0


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome of a call without an answer: it may have been executed.

    ``sent`` is False if no byte left this node, so it was certainly not executed.
    """

    why: str
    sent: bool = True


class Event(Protocol):
    """Receives structured events: name, level, facts."""

    def __call__(self, name: str, level: str, /, **facts: object) -> None:
        """Take one event."""


def no_event(name: str, level: str, /, **facts: object) -> None:
    """Drop the event."""


class _Lost(Exception):
    """A request got no answer; ``sent``: part of it may have been sent."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.why = why
        self.sent = sent


class _Link:
    """One connection with one request at a time; opened when needed, closed on any error."""

    def __init__(
        self,
        endpoints: Callable[[], Sequence[Endpoint]],
        names: int,
        who: str,
        secure: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._endpoints = endpoints
        self._secure = secure
        self._names = names
        self._who = who
        self._turn = 0
        self._stream: AnyStream | None = None
        self._reader = frames.FrameReader(payload_max=0)
        self._request = 0

    async def ask(self, kind: frames.Type, fields: Fields, seconds: float) -> Fields:
        """Return the answer's fields.

        Raises:
            _Lost: No answer within ``seconds``; the connection is closed.
            TwinlogError: The coordinator answered with an error.
        """
        sent = False
        try:
            with trio.fail_after(seconds):
                stream = self._stream
                # A restarted coordinator has closed it: the call would be sent, and be unknown.
                if stream is not None and said_something(stream):
                    self.close()
                if self._stream is None:
                    await self._open()
                sent = True
                answer = await self._exchange(kind, fields)
        except TlsRefused as error:
            self.close()
            raise _Lost(f"the coordinator {error.text}; {error.hint}", sent=sent) from error
        except (OSError, trio.BrokenResourceError, trio.ClosedResourceError) as error:
            self.close()
            raise _Lost(f"{type(error).__name__}: {error}", sent=sent) from error
        except trio.TooSlowError:
            self.close()
            raise _Lost(f"no answer within {seconds:g} s", sent=sent) from None
        except ProtocolError as error:
            self.close()
            raise _Lost(f"unreadable answer: {error}", sent=sent) from error
        except BaseException:
            self.close()
            raise
        if answer.is_error:
            raise error_of(answer)
        return answer.fields

    async def _open(self) -> None:
        endpoints = self._endpoints()
        if not endpoints:
            raise ConnectionRefusedError("no endpoint is known yet")
        host, port = endpoints[self._turn % len(endpoints)]
        self._turn += 1
        if self._secure is None:
            self._stream = await trio.open_tcp_stream(host, port)
        else:
            self._stream = TlsStream(await connect_secured(host, port, self._secure()))
        self._reader = frames.FrameReader(payload_max=0)
        answer = await self._exchange(frames.Type.CO_HELLO, hello_fields(self._who))
        if answer.is_error:
            self.close()
            raise error_of(answer)

    async def _exchange(self, kind: frames.Type, fields: Fields) -> frames.Frame:
        stream = self._stream
        if stream is None:
            raise trio.ClosedResourceError("the connection is closed")
        self._request += 1
        frame = frames.Frame(kind, request=self._request, names_crc=self._names, fields=fields)
        await stream.send_all(frames.encode_whole(frame))
        strays = 0
        while True:
            while (answer := self._reader.next()) is not None:
                if answer.request == self._request and answer.is_answer:
                    return answer
                strays += 1
                if strays > STRAY_MAX:
                    raise ProtocolError(f"{strays} frames belong to no request")
            data = await stream.receive_some(65536)
            if not data:
                raise ConnectionResetError("the coordinator closed the connection")
            self._reader.feed(data)

    def close(self) -> None:
        """Close at once, without waiting; may be called twice."""
        if self._stream is not None:
            close_now(self._stream)
            self._stream = None


class CoordinatorClient:
    """See the module.

    Args:
        endpoints: Addresses of the coordinator, tried in turn; called before each connection (a
        coordinator on port 0 writes its port into its run file).
        names_crc: See ``wire.names_crc``.
        name: This node; names its live entry and its connections.
        on_state: Given each new group state, on the loop; must not wait.
        event: Given ``coordinator_lost``, ``coordinator_back`` and ``coordinator_refused``.
        on_live: Given the live entries once a second, and after `publish`.
        report: Returns this node's newest (register_id, revision, tag) and its session, or None.
        secure: Returns the context for TLS; None: none is spoken.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint] | Callable[[], Sequence[Endpoint]],
        names_crc: int,
        *,
        name: str,
        on_state: Callable[[Fields], None],
        on_live: Callable[[Mapping[str, Fields]], None] | None = None,
        event: Event = no_event,
        report: Callable[[], tuple[str, int, int, int] | None] = lambda: None,
        secure: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        where = endpoints if callable(endpoints) else lambda: endpoints
        self._calls = _Link(where, names_crc, name, secure)
        self._watch = _Link(where, names_crc, name, secure)
        self._poll = _Link(where, names_crc, name, secure)
        self._name = name
        self._on_state = on_state
        self._on_live = on_live
        self._event = event
        self._report = report
        self._turn = trio.Lock()
        self._last: Fields | None = None
        self._revision = 0
        self._info: Fields = {}
        self._lost = False
        self._fresh = trio.Event()
        self.contact_at = -math.inf
        """Loop time of the last answer, seconds; minus infinity before the first."""
        self.live: Mapping[str, Fields] = {}
        """Each node's newest live entry (addresses, role, ends), and its ``age``, s."""

    @property
    def connected(self) -> bool:
        """Whether the last request was answered."""
        return not self._lost and self.contact_at > -math.inf

    def publish(self, info: Mapping[str, object]) -> None:
        """Set this node's live entry; sent with the next poll."""
        self._info = dict(info)
        self._fresh.set()

    async def call(self, op: Mapping[str, object]) -> Fields | Unknown:
        """Call ``op``; return the answer (``ok``, ``state``, ``code``, ``text``, ``hint``).

        Waits for its turn, then at most `CALL_SECONDS`. The state in an answer is returned only to
        the caller; ``on_state`` gets it from the watch. A cancelled call may or may not have been
        executed.
        """
        async with self._turn:
            fields: Fields = {"op": dict(op)}
            try:
                answer = await self._calls.ask(frames.Type.CO_CALL, fields, CALL_SECONDS)
                map_of(answer, "state")
            except _Lost as lost:
                self._trouble(lost.why)
                return Unknown(lost.why, lost.sent)
            except TwinlogError as error:
                self._event("coordinator_refused", "warning", what="call", why=str(error))
                return Unknown(str(error))
        self._contact()
        if not isinstance(answer.get("ok"), bool):
            self._event("coordinator_refused", "error", what="call", why="no ok in the answer")
            return Unknown("the answer is neither an acceptance nor a refusal")
        return answer

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Watch and poll until cancelled; connections are closed then."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._repeat, self._watch_once, 0.0)
                nursery.start_soon(self._repeat, self._poll_once, POLL_SECONDS)
                task_status.started()
        finally:
            self.close()

    def close(self) -> None:
        """Close the connections at once; a later `call` opens its own again."""
        for link in (self._calls, self._watch, self._poll):
            link.close()

    async def _repeat(self, once: Callable[[], Awaitable[None]], pause: float) -> None:
        """Repeat ``once`` for ever: ``pause`` after a success, back-off after an error."""
        backoff = BACKOFF_FIRST
        while True:
            try:
                await once()
            except _Lost as lost:
                self._trouble(lost.why)
            except TwinlogError as error:
                self._event("coordinator_refused", "warning", what="question", why=str(error))
            else:
                self._contact()
                backoff = BACKOFF_FIRST
                if pause:
                    await self._pause(pause)
                continue
            await trio.sleep(backoff)
            backoff = min(BACKOFF_MAX, 2 * backoff)

    async def _pause(self, seconds: float) -> None:
        """Wait for the next poll; a new live entry is sent after `POLL_FRESH_SECONDS`."""
        await trio.sleep(POLL_FRESH_SECONDS)
        with trio.move_on_after(seconds - POLL_FRESH_SECONDS):
            await self._fresh.wait()
        self._fresh = trio.Event()

    async def _watch_once(self) -> None:
        fields: Fields = {"revision": self._revision, "wait_ms": int(WATCH_SECONDS * 1000)}
        answer = await self._watch.ask(frames.Type.CO_WATCH, fields, WATCH_SECONDS + CALL_SECONDS)
        state = map_of(answer, "state")
        if state is not None:
            self._take(state)

    async def _poll_once(self) -> None:
        fields: Fields = {"report": self._own_report()}
        answer = await self._poll.ask(frames.Type.CO_READ, fields, CALL_SECONDS)
        state = map_of(answer, "state")
        if state is not None:
            self._take(state)
        said: Fields = {"node": self._name, "info": self._info} if self._info else {}
        live = map_of(await self._poll.ask(frames.Type.CO_LIVE, said, CALL_SECONDS), "live") or {}
        self.live = {
            name: {str(key): value for key, value in entry.items()}  # pyright: ignore
            for name, entry in live.items()
            if isinstance(entry, dict)
        }
        if self._on_live is not None:
            self._on_live(self.live)

    def _own_report(self) -> list[object]:
        report = self._report()
        return [self._name, "", 0, 0, 0] if report is None else [self._name, *report]

    def _take(self, state: Fields) -> None:
        """Pass on a state that differs from the last one; remember the newest revision."""
        if state == self._last:
            return
        revision = state.get("revision")
        if isinstance(revision, int):
            self._revision = revision
        self._last = state
        self._on_state(state)

    def _contact(self) -> None:
        self.contact_at = trio.current_time()
        if self._lost:
            self._lost = False
            self._event("coordinator_back", "info")

    def _trouble(self, why: str) -> None:
        if not self._lost:
            self._lost = True
            self._event("coordinator_lost", "warning", why=why)
