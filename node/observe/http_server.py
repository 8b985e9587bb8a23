"""The HTTP port of a node: for load balancers, probes, Prometheus and people.

    path                  200 when
    /livez                the event loop turned within 2 s; touches no disk and no lock
    /readyz               the node may take traffic; 503 with reasons; ?verbose lists the checks
    /role/master          it is master (503 otherwise); for load balancers
    /role/slave           it is slave; ?max_lag=64MiB&max_lag_time=10s
    /role/readable        it is ready, whatever its role
    /status               always: the JSON document of ``node show``
    /groups  /groups/G    always: JSON of ``group list`` and ``group show``, as it knows
    /timers               always: how many messages wait for a time; ?by=hour&first=MS
    /metrics              always: Prometheus text or OpenMetrics, as the client asks
    /  /cluster  /events  the page, the whole cluster, a stream of it: ``node.observe.live``

A failed check is 503, never 200. HEAD works on all of them. All paths are read-only. Where clients
are asked who they are (docs/access.md), ``/status``, ``/groups``, ``/timers``, the page and what it
shows need user and password (HTTP Basic) of someone who operates the cluster; probes and metrics
are open.

starlette on hypercorn, inside the node's own nursery: no thread, no second loop, no signal handler.
Connections are accepted here and handed to hypercorn one by one, because it bounds neither their
number nor their time: it shields what it sends, so a client that reads nothing would keep a node
from stopping, and each costs a descriptor that the log may need. A stop does not wait for requests;
a client that stays too long is closed.

`serve` ends by cancellation only; running requests are dropped then. Not here: what the documents
contain (``node.observe.status``), the figures (``node.observe.metrics``).
"""

from __future__ import annotations

import base64
import os
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from node.observe.live import Live
from node.observe.status import role_matches
from replication.net.handshakes import FIRST_BYTES, HANDSHAKE_SECONDS, TLS_FIRST, told
from twinlog.errors import UsageError
from twinlog.units import UnitError, parse_duration, parse_size

LOOP_SECONDS_MAX = 2.0
"""A loop that has not turned for this long is stuck; orchestrators restart the node."""

BEAT_SECONDS = 0.5
"""How often the delay of the loop is measured."""

CONNECTIONS_MAX = 64
"""At a time; one more is accepted and closed, and counted as ``http_connections_max``."""

CONNECTION_SECONDS_MAX = 60.0
"""A connection is closed after this time in any case: a page takes milliseconds."""

OPEN = ("/livez", "/readyz", "/role/", "/metrics")
"""Beginnings of the paths that need no login."""

ROLES = ("master", "slave", "readable")
BACKLOG = 128
KEEP_ALIVE_SECONDS = 5.0
"""An idle connection is closed after it: scrapers and probes come back less often anyway."""


@dataclass(frozen=True, slots=True)
class Pages:
    """The content of the pages.

    Attributes:
        document: Builds the node's status document; called for each request that needs it.
        metrics: Given the Accept header, returns the body in pieces, between which the loop turns,
            and its content type; None: off.
        delayed: Called with the delay of the loop, seconds, twice a second.
        limited: Called with the name of a limit that a client reached.
        groups: A page of groups after a name.
        group: The document of one group; None: there is no such group.
        timers: How many messages wait for each second, minute or hour (the first argument) from a
            time on, ms; raises `UsageError` where it is something else.
        live: The page, and what it shows; None: neither is served.
        admits: Returns what says in a thread whether a user with a password may see what names
            topics and groups; None: everybody may.
    """

    document: Callable[[], Mapping[str, object]]
    metrics: Callable[[str], tuple[Iterable[bytes], str]] | None
    delayed: Callable[[float], None]
    limited: Callable[[str], None]
    groups: Callable[[str], Mapping[str, object]] = lambda after: {"groups": []}
    group: Callable[[str], Mapping[str, object] | None] = lambda name: None
    timers: Callable[[str, int], Mapping[str, object]] = lambda by, first: {"counts": []}
    live: Live | None = None
    admits: Callable[[str], Callable[[str], bool]] | None = None


class _Guard:
    """Asks for user and password before a request to a path that is not open."""

    def __init__(self, app: ASGIApp, admits: Callable[[str], Callable[[str], bool]]) -> None:
        self._app = app
        self._admits = admits
        self._one = trio.CapacityLimiter(1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not str(scope["path"]).startswith(OPEN):
            found = _basic(Headers(scope=scope).get("authorization", ""))
            if found is None or not await trio.to_thread.run_sync(
                self._admits(found[0]), found[1], thread_name="login", limiter=self._one
            ):
                asked = {"www-authenticate": 'Basic realm="twinlog", charset="UTF-8"'}
                text = "log in as someone who operates the cluster\n"
                await PlainTextResponse(text, 401, asked)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _guards(pages: Pages) -> list[Middleware]:
    return [] if pages.admits is None else [Middleware(_Guard, admits=pages.admits)]


def _basic(header: str) -> tuple[str, str] | None:
    """Return user and password of an Authorization header; None: the header has no login."""
    kind, _, value = header.partition(" ")
    if kind.lower() != "basic":
        return None
    try:
        user, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        return None
    return (user, password) if colon else None


class _Beat:
    """Detects a stuck event loop."""

    def __init__(self, delayed: Callable[[float], None]) -> None:
        self._delayed = delayed
        self.at = trio.current_time()

    async def run(self) -> None:
        while True:
            await trio.sleep(BEAT_SECONDS)
            now = trio.current_time()
            self._delayed(max(0.0, now - self.at - BEAT_SECONDS))
            self.at = now

    def silent(self) -> float:
        return trio.current_time() - self.at


async def _joined(pieces: Iterable[bytes]) -> bytes:
    """Return a body that is made in pieces; the loop turns between them."""
    body: list[bytes] = []
    for piece in pieces:
        body.append(piece)
        await trio.lowlevel.checkpoint()
    return b"".join(body)


def application(pages: Pages, silent: Callable[[], float]) -> Starlette:
    """Return the ASGI application; ``silent`` says how long ago the loop last turned, seconds."""

    async def livez(request: Request) -> Response:
        since = silent()
        late = since > LOOP_SECONDS_MAX + BEAT_SECONDS
        return _checks(request, {"loop": f"has not turned for {since:.1f} s" if late else None})

    async def readyz(request: Request) -> Response:
        document = pages.document()
        reasons = cast("list[str]", document["reasons"])
        if not reasons:
            return _checks(request, {"log": None, "role": None, "age": None})
        return _checks(request, {f"ready {n}": why for n, why in enumerate(reasons, start=1)})

    async def role(request: Request) -> Response:
        wanted = request.path_params["role"]
        if wanted not in ROLES:
            return PlainTextResponse(f"the roles are {', '.join(ROLES)}\n", 404)
        try:
            lag, age = _limit(request, "max_lag"), _limit(request, "max_lag_time")
        except UnitError as error:
            return PlainTextResponse(f"{error}; {error.hint}\n", status_code=400)
        document = pages.document()
        whole = None if lag is None else int(lag)
        why = role_matches(document, wanted, max_lag=whole, max_age=age)
        return JSONResponse({**document, "why": why}, status_code=503 if why else 200)

    async def status(request: Request) -> Response:
        return JSONResponse(pages.document())

    async def metrics(request: Request) -> Response:
        if pages.metrics is None:
            return PlainTextResponse("metrics are off: [metrics] enabled = false\n", 404)
        pieces, kind = pages.metrics(request.headers.get("accept", ""))
        return Response(await _joined(pieces), headers={"content-type": kind})

    async def groups(request: Request) -> Response:
        return JSONResponse(pages.groups(request.query_params.get("after", "")))

    async def group(request: Request) -> Response:
        name = request.path_params["name"]
        if (found := pages.group(name)) is None:
            return PlainTextResponse(f"there is no group {name}\n", 404)
        return JSONResponse(found)

    return Starlette(
        middleware=_guards(pages),
        routes=[
            Route("/livez", livez),
            Route("/readyz", readyz),
            Route("/role/{role:str}", role),
            Route("/status", status),
            Route("/metrics", metrics),
            Route("/groups", groups),
            Route("/groups/{name:str}", group),
            Route("/timers", _timers(pages)),
            *(pages.live.routes() if pages.live is not None else ()),
        ],
    )


def _timers(pages: Pages) -> Callable[[Request], Awaitable[Response]]:
    async def timers(request: Request) -> Response:
        query = request.query_params
        by, first = query.get("by", "minute"), query.get("first", "0")
        if not first.isdecimal() or len(first) > 18:
            return PlainTextResponse("first is a time, ms since 1970\n", status_code=400)
        try:
            return JSONResponse(pages.timers(by, int(first)))
        except UsageError as error:
            return PlainTextResponse(f"{error}\n", status_code=400)

    return timers


def _limit(request: Request, name: str) -> float | None:
    """Return a limit of the query: bytes for max_lag, seconds for max_lag_time; None: not asked."""
    text = request.query_params.get(name)
    if text is None:
        return None
    return float(parse_size(text)) if name == "max_lag" else parse_duration(text)


def _checks(request: Request, checks: Mapping[str, str | None]) -> Response:
    """Return 200 when no check has a reason, else 503; one line a check when asked or failed."""
    bad = any(why is not None for why in checks.values())
    if not bad and "verbose" not in request.query_params:
        return PlainTextResponse("ok\n")
    lines = [f"{name}: {'ok' if why is None else why}" for name, why in checks.items()]
    return PlainTextResponse("\n".join(lines) + "\n", status_code=503 if bad else 200)


async def serve(
    listener: socket.socket,
    pages: Pages,
    secure: Callable[[], ssl.SSLContext] | None = None,
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until cancelled; `task_status` is given the port once it answers.

    ``listener`` is bound; the caller closes it, a duplicate is used here. ``secure`` returns the
    context of a connection for TLS; None: plain HTTP.
    """
    beat = _Beat(pages.delayed)
    config = Config()
    config.accesslog = None
    config.errorlog = None
    config.keep_alive_timeout = KEEP_ALIVE_SECONDS
    config.include_server_header = False
    config.ssl_handshake_timeout = HANDSHAKE_SECONDS
    server = _Server(application(pages, beat.silent), config, pages.limited, secure)
    own = socket.socket(fileno=os.dup(listener.fileno()))
    async with trio.SocketListener(trio.socket.from_stdlib_socket(own)) as accepting:
        accepting.socket.listen(BACKLOG)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(beat.run)
            await nursery.start(trio.serve_listeners, server.serve, [accepting])
            task_status.started(int(listener.getsockname()[1]))


class _Server:
    """The connections."""

    def __init__(
        self,
        app: Starlette,
        config: Config,
        limited: Callable[[str], None],
        secure: Callable[[], ssl.SSLContext] | None,
    ) -> None:
        self._app, self._config, self._limited = ASGIWrapper(cast("Any", app)), config, limited
        self._secure = secure
        self._context = WorkerContext(None)
        self._open = 0

    async def serve(self, stream: trio.SocketStream) -> None:
        """Serve one connection to its end."""
        if self._open >= CONNECTIONS_MAX:
            self._limited("http_connections_max")
            stream.socket.close()
            return
        self._open += 1
        state: Any = ConnectionState({})
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_close_in_time, stream)
                served: Any = await self._secured(stream)  # hypercorn's types allow only TLS
                if served is not None:
                    await TCPServer(self._app, self._config, self._context, state, served)
                nursery.cancel_scope.cancel()
        finally:
            self._open -= 1

    async def _secured(
        self, stream: trio.SocketStream
    ) -> trio.SocketStream | trio.SSLStream[trio.SocketStream] | None:
        """Return what HTTP is spoken over; None: the peer does not speak TLS, and has the reason.

        The handshake itself is carried out by hypercorn.
        """
        if self._secure is None:
            return stream
        with trio.move_on_after(HANDSHAKE_SECONDS), suppress(OSError, trio.BrokenResourceError):
            first = await stream.socket.recv(1, socket.MSG_PEEK)
            if first[:1] == TLS_FIRST:
                context = self._secure()
                return trio.SSLStream(stream, context, server_side=True, https_compatible=True)
            if first:
                await stream.send_all(told(await stream.receive_some(FIRST_BYTES)))
                await stream.send_eof()
        return None


async def _close_in_time(stream: trio.SocketStream) -> None:
    """Close the socket after its time or when the node stops: that ends a shielded send."""
    try:
        await trio.sleep(CONNECTION_SECONDS_MAX)
    finally:
        stream.socket.close()
