"""The HTTP port, asked by a real client over a real socket."""

from __future__ import annotations

import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import cast

import httpx
import pytest
import trio

from node.observe import http_server
from node.observe.http_server import Pages, application, serve
from replication.net.streams import listen
from twinlog.errors import UsageError


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stands still for seconds is no stuck loop and no idle client."""
    for name in ("LOOP_SECONDS_MAX", "KEEP_ALIVE_SECONDS"):
        monkeypatch.setattr(http_server, name, 60.0)


Body = Callable[[httpx.AsyncClient], Awaitable[None]]


class Fake:
    """What the pages read."""

    def __init__(self) -> None:
        self.document: dict[str, object] = {
            "kind": "NodeStatus",
            "node": "n1",
            "role": "slave",
            "ready": True,
            "reasons": [],
            "age_seconds": 0.5,
            "offsets": {"end": 100, "confirm": 60},
        }
        self.delays: list[float] = []
        self.limits: list[str] = []

    def pages(self, *, metrics: bool = True) -> Pages:
        """As a node gives them."""
        shown = self.metrics if metrics else None
        return Pages(
            lambda: self.document,
            shown,
            self.delays.append,
            self.limits.append,
            groups=lambda after: {"groups": [{"name": "billing"}] if after < "billing" else []},
            group=lambda name: {"group": {"name": name}} if name == "billing" else None,
            timers=self.timers,
        )

    def timers(self, by: str, first: int) -> dict[str, object]:
        """Echo what is asked for; only minutes and hours are known."""
        if by not in ("minute", "hour"):
            raise UsageError(f"by is minute or hour, not {by}")
        return {"by": by, "counts": [[first, 1]]}

    def metrics(self, accept: str) -> tuple[list[bytes], str]:
        """Echo what the client wants, in pieces."""
        return [b"accept ", f"{accept}\n".encode()], "text/plain; version=0.0.4"


async def asked(pages: Pages, body: Body) -> None:
    """Serve ``pages`` on a free port and run ``body`` with a client of it."""
    with trio.fail_after(60), listen("127.0.0.1", 0) as listener:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve, listener, pages)
            async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                await body(client)
            nursery.cancel_scope.cancel()


async def test_liveness_and_readiness() -> None:
    fake = Fake()

    async def body(client: httpx.AsyncClient) -> None:
        live, ready = await client.get("/livez"), await client.get("/readyz")
        assert (live.status_code, ready.status_code, ready.text) == (200, 200, "ok\n")
        verbose = await client.get("/readyz?verbose")
        assert verbose.text == "log: ok\nrole: ok\nage: ok\n"
        fake.document |= {"ready": False, "reasons": ["no master is known"]}
        bad = await client.get("/readyz")
        assert (bad.status_code, "no master is known" in bad.text) == (503, True)
        assert (await client.get("/livez")).status_code == 200, "a slave without a master is alive"

    await asked(fake.pages(), body)


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/status", "/metrics", "/role/slave"])
async def test_head_works_everywhere(path: str) -> None:
    async def body(client: httpx.AsyncClient) -> None:
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert (await client.post(path)).status_code == 405, "nothing here changes anything"

    await asked(Fake().pages(), body)


async def test_status_is_the_nodes_document() -> None:
    fake = Fake()

    async def body(client: httpx.AsyncClient) -> None:
        answer = await client.get("/status")
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.text) == fake.document

    await asked(fake.pages(), body)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/role/slave", 200),
        ("/role/master", 503),
        ("/role/readable", 200),
        ("/role/slave?max_lag=64MiB&max_lag_time=10s", 200),
        ("/role/slave?max_lag=39", 503),
        ("/role/slave?max_lag_time=100ms", 503),
        ("/role/slave?max_lag=much", 400),
        ("/role/king", 404),
        ("/nothing", 404),
    ],
)
async def test_roles_for_load_balancers(path: str, status: int) -> None:
    async def body(client: httpx.AsyncClient) -> None:
        answer = await client.get(path)
        assert answer.status_code == status
        if status == 503:
            assert cast("dict[str, object]", answer.json())["why"]

    await asked(Fake().pages(), body)


async def test_groups_are_listed_and_shown() -> None:
    """Pages go on after a name; an unknown group is missing."""

    async def body(client: httpx.AsyncClient) -> None:
        assert (await client.get("/groups")).json() == {"groups": [{"name": "billing"}]}
        assert (await client.get("/groups?after=billing")).json() == {"groups": []}
        assert (await client.get("/groups/billing")).json() == {"group": {"name": "billing"}}
        assert (await client.get("/groups/other")).status_code == 404

    await asked(Fake().pages(), body)


async def test_what_waits_is_counted() -> None:
    """By minute unless the query says otherwise; nonsense is refused with the reason."""

    async def body(client: httpx.AsyncClient) -> None:
        assert (await client.get("/timers")).json() == {"by": "minute", "counts": [[0, 1]]}
        found = await client.get("/timers?by=hour&first=3600000")
        assert found.json() == {"by": "hour", "counts": [[3_600_000, 1]]}
        for query in ("by=day", "first=soon", "first=-1", "first=" + "9" * 30):
            answer = await client.get(f"/timers?{query}")
            assert (answer.status_code, bool(answer.text.strip())) == (400, True)

    await asked(Fake().pages(), body)


async def test_metrics_are_negotiated_or_off() -> None:
    async def on(client: httpx.AsyncClient) -> None:
        answer = await client.get("/metrics", headers={"accept": "application/openmetrics-text"})
        assert answer.text == "accept application/openmetrics-text\n"
        assert answer.headers["content-type"].startswith("text/plain")

    async def off(client: httpx.AsyncClient) -> None:
        assert (await client.get("/metrics")).status_code == 404

    await asked(Fake().pages(), on)
    await asked(Fake().pages(metrics=False), off)


async def test_a_loop_that_stood_still_is_not_alive() -> None:
    """The probe's own answer must not hide that nothing else ran."""
    app = application(Fake().pages(), lambda: 67.0)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as client:
        answer = await client.get("/livez")
    assert (answer.status_code, answer.text) == (503, "loop: has not turned for 67.0 s\n")


async def test_the_loops_delay_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "BEAT_SECONDS", 0.01)
    fake = Fake()

    async def body(client: httpx.AsyncClient) -> None:
        while not fake.delays:
            await client.get("/livez")
        assert fake.delays[0] >= 0

    await asked(fake.pages(), body)


async def test_the_listener_stays_the_callers() -> None:
    """A node that stopped serving can close its sockets in its own order."""
    with listen("127.0.0.1", 0) as listener:
        async with trio.open_nursery() as nursery:
            await nursery.start(serve, listener, Fake().pages())
            nursery.cancel_scope.cancel()
        assert listener.getsockname()[1]


async def test_garbage_and_our_own_frames_close_only_themselves() -> None:
    async def body(client: httpx.AsyncClient) -> None:
        port = client.base_url.port or 0
        for data in (b"TWL1" + bytes(60), b"\x16\x03\x01", b"GET / HTTP/9\r\n\r\n"):
            stream = await trio.open_tcp_stream("127.0.0.1", port)
            await stream.send_all(data)
            with socket.socket() as _:
                await stream.aclose()
        assert (await client.get("/livez")).status_code == 200

    await asked(Fake().pages(), body)


async def test_more_connections_than_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are closed and counted; who has one keeps it, and its place is free when it leaves."""
    monkeypatch.setattr(http_server, "CONNECTIONS_MAX", 2)
    fake = Fake()

    async def body(client: httpx.AsyncClient) -> None:
        assert (await client.get("/livez")).status_code == 200
        port = client.base_url.port or 0
        async with await trio.open_tcp_stream("127.0.0.1", port) as second:
            await second.send_all(b"GET /li")
            async with await trio.open_tcp_stream("127.0.0.1", port) as third:
                assert await third.receive_some() == b""
            assert fake.limits == ["http_connections_max"]
            assert (await client.get("/livez")).status_code == 200
            await second.send_all(b"vez HTTP/1.1\r\nhost: n1\r\nconnection: close\r\n\r\n")
            while await second.receive_some():
                pass
        answer = b""
        while not answer:  # the server may still be leaving the second one
            async with await trio.open_tcp_stream("127.0.0.1", port) as fourth:
                with suppress(trio.BrokenResourceError):
                    await fourth.send_all(b"GET /livez HTTP/1.1\r\nhost: n1\r\n\r\n")
                    answer = bytes(await fourth.receive_some())
        assert answer.startswith(b"HTTP/1.1 200")

    await asked(fake.pages(), body)


async def _unread(port: int) -> trio.SocketStream:
    """Ask for more than sockets hold and read nothing; return when no more is taken."""
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    questions = b"GET /metrics HTTP/1.1\r\nhost: n1\r\n\r\n"
    while True:
        with trio.move_on_after(0.2), suppress(trio.BrokenResourceError):
            await stream.send_all(questions * 64)
            continue
        return stream


async def test_a_client_that_reads_nothing_does_not_keep_a_node_from_stopping() -> None:
    page = (bytes(1 << 20), "text/plain")
    with trio.fail_after(60), listen("127.0.0.1", 0) as listener:
        pages = Pages(dict, lambda _: page, lambda _: None, lambda _: None)
        async with trio.open_nursery() as nursery:
            stream = await _unread(await nursery.start(serve, listener, pages))
            nursery.cancel_scope.cancel()
        await stream.aclose()


async def test_a_connection_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "CONNECTION_SECONDS_MAX", 0.1)
    page = (bytes(1 << 20), "text/plain")
    with trio.fail_after(60), listen("127.0.0.1", 0) as listener:
        pages = Pages(dict, lambda _: page, lambda _: None, lambda _: None)
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve, listener, pages)
            stream = await _unread(port)
            with suppress(trio.BrokenResourceError):  # closed with questions unread: reset
                while await stream.receive_some():
                    pass
            await stream.aclose()
            nursery.cancel_scope.cancel()
