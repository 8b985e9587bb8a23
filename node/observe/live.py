"""What a node's HTTP port shows people: a page, the cluster as one document, a stream of both.

    path        answers
    /           the page: one document without outside resources; read-only
    /cluster    the cluster as this node sees it: status, topics, groups, history
    /events     server-sent events: ``cluster`` with that document, ``happened`` with a log event

The cluster is asked only while someone watches, at most once in `PICTURE_SECONDS` however many do,
in one thread. A stream sends the newest picture when its reader takes it, so a slow reader holds
one picture and no more. There are at most `STREAMS_MAX` streams, and each ends after
`STREAM_SECONDS`; browsers come back by themselves and say which event they saw last.

Everything is read-only. Users choose names of topics and groups, so the page shows texts as texts,
and its policy lets the browser run nothing but the page's own script.

Not here: how the cluster is asked (``cli.cluster.picture``), which connections there are
(``node.observe.http_server``).
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import cast

import trio
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from node.observe.logs import Recent
from replication.net.threads import Threads

PICTURE_SECONDS = 1.0
"""Largest age of a picture that is served; a stream sends one as often."""

STREAMS_MAX = 16
"""Streams at a time; one more is answered 503 and counted as ``http_streams_max``."""

STREAM_SECONDS = 50.0
"""A stream ends after it, before its connection is closed; the browser opens another."""

RETRY_MS = 300
"""After this time a browser opens the stream again."""

NO_PICTURE = "this node does not know how to ask its cluster: start it with twinlog node start\n"


class Live:
    """See the module.

    Args:
        picture: Makes a picture of the cluster, as JSON; called in a thread, one at a time. None: a
            node inside another program, which has none.
        recent: The newest events.
        limited: Called with the name of a limit that was reached.
        threads: Run what makes pictures.
    """

    def __init__(
        self,
        picture: Callable[[], str] | None,
        recent: Recent,
        limited: Callable[[str], None],
        threads: Threads,
    ) -> None:
        self._threads = threads
        self._picture = picture
        self._recent = recent
        self._limited = limited
        self._turn = trio.Lock()
        self._last = ""
        self._made_at = -float("inf")
        self._start = secrets.token_hex(4)  # numbers of another start of this node mean nothing
        self.streams = 0

    def routes(self) -> list[Route]:
        """Return the paths."""
        return [
            Route("/", self._page),
            Route("/cluster", self._cluster),
            Route("/events", self._events),
        ]

    async def picture(self) -> str:
        """Return the cluster as JSON, at most `PICTURE_SECONDS` old.

        Cancelled, the thread ends by itself and its picture is dropped.
        """
        assert self._picture is not None, "asked only where there is one"
        async with self._turn:
            if trio.current_time() - self._made_at >= PICTURE_SECONDS:
                self._last = await self._threads.run("page", self._picture, abandon=True)
                self._made_at = trio.current_time()
            return self._last

    async def _page(self, request: Request) -> Response:
        return HTMLResponse(PAGE, headers=PAGE_HEADERS)

    async def _cluster(self, request: Request) -> Response:
        if self._picture is None:
            return PlainTextResponse(NO_PICTURE, 404)
        return Response(await self.picture(), media_type="application/json")

    async def _events(self, request: Request) -> Response:
        if self._picture is None:
            return PlainTextResponse(NO_PICTURE, 404)
        headers = {"cache-control": "no-store"}
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=headers)
        if self.streams >= STREAMS_MAX:
            self._limited("http_streams_max")
            return PlainTextResponse(
                f"{STREAMS_MAX} streams are open already; try again\n", 503, {"retry-after": "10"}
            )
        seen = self._seen(request.headers.get("last-event-id", ""))
        return _Stream(self, seen, headers)

    def _seen(self, last: str) -> int:
        """Return the number of the last event that a reader saw, from what it says."""
        start, _, number = last.partition("-")
        known = start == self._start and number.isascii() and number.isdigit() and len(number) < 16
        return int(number) if known else 0

    async def write(self, seen: int, send: Callable[[str], Awaitable[None]]) -> None:
        """Give a stream its events and pictures, for `STREAM_SECONDS` or until it is cancelled."""
        with trio.move_on_after(STREAM_SECONDS):
            await send(f"retry: {RETRY_MS}\n\n")
            while True:
                for event in self._recent.after(seen):
                    seen = cast("int", event["number"])
                    head = f"id: {self._start}-{seen}\nevent: happened"
                    await send(f"{head}\ndata: {json.dumps(event)}\n\n")
                await send(f"event: cluster\ndata: {await self.picture()}\n\n")
                await trio.sleep(PICTURE_SECONDS)


class _Stream(StreamingResponse):
    """An answer that goes on; starlette's own does not end the generator that it was given."""

    def __init__(self, live: Live, seen: int, headers: Mapping[str, str]) -> None:
        super().__init__((), media_type="text/event-stream", headers=headers)
        self._live, self._seen = live, seen

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def write(text: str) -> None:
            part = {"type": "http.response.body", "body": text.encode(), "more_body": True}
            await send(part)

        async def gone() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            nursery.cancel_scope.cancel()

        head = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        self._live.streams += 1  # before anything is awaited: the limit was asked just now
        try:
            await send(head)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(gone)
                await self._live.write(self._seen, write)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                nursery.cancel_scope.cancel()
        finally:
            self._live.streams -= 1


def _sources(page: str, tag: str) -> str:
    """Return the hash of each inline script or style, as a policy names them."""
    found = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    digests = (hashlib.sha256(text.encode()).digest() for text in found)
    return " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in digests)


PAGE = (files("node.observe") / "page.html").read_text(encoding="utf-8")
"""The page, whole: the browser loads nothing else but ``/events``."""

PAGE_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; connect-src 'self'; script-src {_sources(PAGE, 'script')}; "
        f"style-src {_sources(PAGE, 'style')}; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
