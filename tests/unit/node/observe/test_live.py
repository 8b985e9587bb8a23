"""The page, the picture of the cluster and the stream of events, asked over a real socket."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import cast

import httpx
import pytest
import trio
import trio.testing

from node.observe import live as module
from node.observe.http_server import Pages, serve
from node.observe.live import PAGE, STREAMS_MAX, Live
from node.observe.logs import FACT_MAX, RECENT_KEPT, Recent
from replication.net.streams import listen
from replication.net.threads import Threads
from tests.fixtures.browser import browsing

Body = Callable[[httpx.AsyncClient, str], Awaitable[None]]


class Watched:
    """What the page shows of a cluster that exists only here."""

    def __init__(self) -> None:
        self.made = 0
        self.recent = Recent()
        self.limits: list[str] = []
        self.fields: dict[str, object] = {
            "cluster": "prod", "health": "healthy", "seen_by": "n1", "nodes": [], "problems": [],
        }  # fmt: skip

    def picture(self) -> str:
        """The picture, counted."""
        self.made += 1
        return json.dumps({**self.fields, "number": self.made})

    def live(self) -> Live:
        """As a node has it."""
        return Live(self.picture, self.recent, self.limits.append, Threads())

    def event(self, name: str, **facts: object) -> None:
        """A line of the log."""
        self.recent.add(name, "info", 1_700_000_000.0, facts)


async def asked(live: Live | None, body: Body) -> None:
    """Serve the paths on a free port and run ``body`` with a client and the address."""
    pages = Pages(dict, None, lambda delay: None, lambda limit: None, live=live)
    with trio.fail_after(120), listen("127.0.0.1", 0) as listener:
        async with trio.open_nursery() as nursery:
            port = await nursery.start(serve, listener, pages)
            url = f"http://127.0.0.1:{port}"
            limits = httpx.Limits(max_connections=100)
            async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
                await body(client, url)
            nursery.cancel_scope.cancel()


class Stream:
    """A reader of ``/events``, as plain HTTP/1.0: no pieces in the body."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self._data = b""

    async def open(self, last: str = "") -> int:
        """Ask; the status of the answer."""
        self._stream = await trio.open_tcp_stream("127.0.0.1", self._port)
        head = f"GET /events HTTP/1.0\r\nHost: x\r\nLast-Event-ID: {last}\r\n\r\n"
        await self._stream.send_all(head.encode())
        answer = await self._until(b"\r\n\r\n")
        self.headers = answer.decode().lower()
        return int(answer.split()[1])

    async def _until(self, end: bytes) -> bytes:
        while end not in self._data:
            more = await self._stream.receive_some(65536)
            if not more:
                return b""
            self._data += more
        found, _, self._data = self._data.partition(end)
        return found

    async def messages(self, count: int) -> list[dict[str, str]]:
        """The next messages: their fields; fewer at the end."""
        found: list[dict[str, str]] = []
        while len(found) < count and (text := (await self._until(b"\n\n")).decode()):
            pairs = (line.partition(": ") for line in text.split("\n"))
            found.append({name: value for name, _, value in pairs})
        return found

    async def close(self) -> None:
        """Leave."""
        await self._stream.aclose()


async def test_a_picture_is_shared_and_not_old(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask at once, the cluster is asked once; later again."""
    watched = Watched()
    monkeypatch.setattr(module, "PICTURE_SECONDS", 1000.0)

    async def body(client: httpx.AsyncClient, url: str) -> None:
        async def ask() -> None:
            answer = await client.get("/cluster")
            assert answer.headers["content-type"] == "application/json"
            assert answer.json()["number"] == 1

        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(ask)
        monkeypatch.setattr(module, "PICTURE_SECONDS", 0.0)
        assert (await client.get("/cluster")).json()["number"] == 2

    await asked(watched.live(), body)


async def test_nothing_is_asked_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for the page itself."""
    watched = Watched()

    async def body(client: httpx.AsyncClient, url: str) -> None:
        assert (await client.get("/")).status_code == 200
        assert watched.made == 0

    await asked(watched.live(), body)


async def test_a_stream_has_events_and_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old events first, new ones when they happen, and a picture each time."""
    watched = Watched()
    watched.event("master", epoch=2)
    monkeypatch.setattr(module, "PICTURE_SECONDS", 0.01)

    async def begin(url: str, last: str = "") -> list[dict[str, str]]:
        stream = Stream(url)
        assert await stream.open(last) == 200
        assert "content-type: text/event-stream" in stream.headers
        found = await stream.messages(3)
        await stream.close()
        return found

    async def body(client: httpx.AsyncClient, url: str) -> None:
        first, event, picture = await begin(url)
        assert first == {"retry": str(module.RETRY_MS)}
        assert (event["event"], json.loads(event["data"])["facts"]) == ("happened", {"epoch": 2})
        assert (picture["event"], json.loads(picture["data"])["cluster"]) == ("cluster", "prod")
        watched.event("stepped_down", why="a test")
        _, later, _ = await begin(url, event["id"])
        assert json.loads(later["data"])["event"] == "stepped_down"
        for odd in ("x", "-", f"{'0' * 8}-1", event["id"] + "9" * 50):
            _, again, _ = await begin(url, odd)
            assert json.loads(again["data"])["event"] == "master", "of another start: all of them"

    await asked(watched.live(), body)


async def test_streams_are_bounded_and_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more is refused and counted; those that end make room."""
    watched = Watched()
    monkeypatch.setattr(module, "PICTURE_SECONDS", 0.01)

    async def body(client: httpx.AsyncClient, url: str) -> None:
        streams = [Stream(url) for _ in range(STREAMS_MAX)]
        for stream in streams:
            assert await stream.open() == 200
            await stream.messages(1)
        refused = await client.get("/events")
        assert refused.status_code == 503, refused.text
        assert refused.headers["retry-after"] == "10"
        assert watched.limits == ["http_streams_max"]
        assert (await client.get("/cluster")).status_code == 200
        await streams[0].close()
        while await streams[0].open() != 200:  # until the node has noticed
            await streams[0].close()
        for stream in streams:
            await stream.close()

    await asked(watched.live(), body)


async def test_streams_that_come_at_once_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """None slips in between the question and the count."""
    watched = Watched()
    live = watched.live()
    most = 0

    async def body(client: httpx.AsyncClient, url: str) -> None:
        streams, codes = [Stream(url) for _ in range(3 * STREAMS_MAX)], list[int]()

        async def begin(stream: Stream) -> None:
            nonlocal most
            codes.append(await stream.open())
            most = max(most, live.streams)

        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(begin, stream)
        assert (codes.count(200), most) == (STREAMS_MAX, STREAMS_MAX)
        for stream in streams:
            await stream.close()

    await asked(live, body)


async def test_a_stream_ends_before_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, so that the browser comes back."""
    watched = Watched()
    monkeypatch.setattr(module, "PICTURE_SECONDS", 0.01)
    monkeypatch.setattr(module, "STREAM_SECONDS", 0.1)

    async def body(client: httpx.AsyncClient, url: str) -> None:
        answer = await client.get("/events")
        assert answer.text.startswith("retry: ")
        assert answer.text.endswith("\n\n")

    await asked(watched.live(), body)


async def test_a_reader_that_takes_nothing_holds_one_picture(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream waits for its socket; pictures are not queued for it."""
    watched = Watched()
    watched.fields["cluster"] = "x" * (1 << 20)
    monkeypatch.setattr(module, "PICTURE_SECONDS", 0.0)

    async def body(client: httpx.AsyncClient, url: str) -> None:
        stream = await trio.open_tcp_stream("127.0.0.1", int(url.rpartition(":")[2]))
        await stream.send_all(b"GET /events HTTP/1.1\r\nHost: x\r\n\r\n")
        await stream.receive_some(10)
        last = -1
        while watched.made != last:  # until the buffers of the kernel are full
            last = watched.made
            await trio.testing.wait_all_tasks_blocked(0.2)
        assert last < 100
        assert (await client.get("/")).status_code == 200
        await stream.aclose()

    await asked(watched.live(), body)


async def test_a_node_without_a_picture_says_so() -> None:
    """It runs inside another program; the page is there, and says that nothing answers."""

    async def body(client: httpx.AsyncClient, url: str) -> None:
        for path in ("/cluster", "/events"):
            answer = await client.get(path)
            assert (answer.status_code, "twinlog node start" in answer.text) == (404, True)

    await asked(Live(None, Recent(), lambda limit: None, Threads()), body)


@pytest.mark.parametrize("path", ["/", "/cluster", "/events"])
async def test_only_reading(path: str) -> None:
    """HEAD has no body and opens no stream; POST is refused."""
    watched = Watched()

    async def body(client: httpx.AsyncClient, url: str) -> None:
        answer = await client.head(path)
        assert (answer.status_code, answer.content) == (200, b"")
        assert (await client.post(path)).status_code == 405

    await asked(watched.live(), body)


async def test_the_page_may_run_only_its_own_script() -> None:
    """And be framed by none; the hashes are those of what it has inline."""

    async def body(client: httpx.AsyncClient, url: str) -> None:
        answer = await client.get("/")
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe-inline" not in policy
        assert len(re.findall(r"script-src 'sha256-[\w+/]{43}='", policy)) == 1
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"

    await asked(Watched().live(), body)


def test_the_page_loads_nothing_and_writes_no_markup() -> None:
    """Names of topics come from users; the only address in it names a dialect of XML."""
    assert re.findall(r"https?://[^\"' ]+", PAGE) == ["http://www.w3.org/2000/svg"]
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "src="):
        assert word not in PAGE
    assert len(PAGE) < 100_000


def test_what_is_kept_of_events_is_bounded() -> None:
    """In number and in length; debug lines are not kept."""
    recent = Recent()
    recent.add("batch", "debug", 0.0, {})
    for number in range(RECENT_KEPT + 5):
        recent.add("tasks_dumped", "info", 0.0, {"tasks": "x" * 10_000, "number": number})
    kept = recent.after(0)
    assert (len(kept), recent.newest) == (RECENT_KEPT, RECENT_KEPT + 5)
    facts = cast("dict[str, object]", kept[-1]["facts"])
    assert (len(str(facts["tasks"])), facts["number"]) == (FACT_MAX, RECENT_KEPT + 4)
    assert [line["number"] for line in recent.after(recent.newest - 1)] == [recent.newest]


@pytest.mark.slow
async def test_a_browser_shows_texts_as_texts(tmp_path: Path) -> None:
    """What another process wrote is no markup; on a phone nothing sticks out."""
    watched = Watched()
    evil = "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    node: dict[str, object] = {
        "name": evil, "role": "slave", "state": "streaming", "reason": evil, "epoch": 7,
        "start_offset": 0, "end_offset": 100, "flushed_offset": 50, "confirm_offset": 80,
        "lag_bytes": 20, "lag_seconds": 0.1, "age_seconds": 0.2, "round_trip_seconds": 0.023,
        "unacknowledged_bytes": 20, "slow": True, "in_sync": True, "uptime_seconds": 75.0,
    }  # fmt: skip
    away = dict.fromkeys(node, None) | {"name": "n2", "state": "unreachable", "in_sync": False}
    watched.fields |= {
        "cluster": "x" * 200, "health": "degraded", "nodes": [node, away], "epoch": 7,
        "problems": [{"text": evil, "command": "twinlog cluster top"}], "confirm_offset": 80,
        "topics": [{"topic": evil * 3, "queues": 8, "messages": 10**15}], "more_topics": True,
        "groups": [{"group": evil, "members": 2, "lag": 5, "leased": 1}],
        "history": [{"epoch": 7, "master": "n1", "since": "2026-11-23T10:00:00Z",
                     "reason": evil, "by": evil, "lost_bytes": 40}],
    }  # fmt: skip
    watched.event("master", why=evil)

    def look(url: str) -> None:
        with browsing(tmp_path / "profile") as browser:
            tab = browser.open(url)
            tab.until("document.querySelectorAll('.lane').length === 2")
            for phrase in (evil, "slow", "unreachable", "23 ms", "in sync", "twinlog cluster top"):
                assert phrase in tab.text(), phrase
            assert "owned" not in str(tab.evaluate("document.title"))
            assert tab.evaluate("document.querySelectorAll('img, script').length") == 1
            for width in (320, 390, 1200):
                tab.resize(width, 800, phone=width < 500)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.complaints == []
            watched.fields["health"] = "unavailable"
            tab.until("document.querySelector('#health').textContent === 'unavailable'")

    async def body(client: httpx.AsyncClient, url: str) -> None:
        await trio.to_thread.run_sync(look, url)

    began = time.monotonic()
    await asked(watched.live(), body)
    assert watched.made <= time.monotonic() - began + 2
