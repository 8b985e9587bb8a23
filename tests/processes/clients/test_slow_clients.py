"""Clients that do not take what threads brought them: bounded memory, and others are served."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from node.clients.searches import search
from storage.disk.mapping import RealMapping
from storage.key_index.search import Lookup
from tests.fixtures.cluster import Cluster, running_cluster
from tests.fixtures.wire_client import Records, WireClient, bodies, connected, outcomes
from twinlog.errors import TwinlogError
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.wire import frames

if TYPE_CHECKING:
    from node.clients.server import ClientServer

pytestmark = pytest.mark.processes

BODY = 250_000
COUNT = 32


@pytest.fixture
async def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """A cluster of one node to which everything is cold: 8 MB in topic ``t``, all of key ``k``."""
    monkeypatch.setattr("node.config.layer_settings.hot_bytes", lambda: 0)
    monkeypatch.setattr(RealMapping, "read_now", lambda self, start, into: False)
    async with running_cluster(tmp_path, nodes=1) as running, running.client() as client:
        await client.create("t")
        for _ in range(COUNT // 8):
            encoder = RecordEncoder("t", 0)
            for number in range(8):
                text = encode_properties({"KEYS": "k"})
                body = b"%d" % number + bytes(BODY)
                encoder.add(body, properties=text, born_timestamp=1_700_000_000_000)
            section = Records("t", 0, bytes(encoder.take()), 8)
            assert outcomes(await client.append(section)) == [0]
        yield running


def clients(cluster: Cluster) -> ClientServer:
    """The client port of the only node."""
    running = cluster.nodes["n1"].services
    assert running is not None
    return running.clients


@asynccontextmanager
async def lazy(cluster: Cluster) -> AsyncGenerator[WireClient]:
    """A connection that takes little before it is asked to."""
    async with connected(cluster.address("n1")) as client:
        client.stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
        yield client


def reading(size: int) -> dict[str, object]:
    """A READ of ``size`` bytes from the beginning."""
    return {"topic": "t", "queue": 0, "offset": 0, "max_bytes": size, "max_records": COUNT}


FINDING: Mapping[str, object] = {"topic": "t", "key": "k", "max": 8, "timeout_ms": 60_000}


async def test_searches_of_a_client_that_reads_nothing_hold_a_bounded_memory(one: Cluster) -> None:
    """Twelve answers of 2 MB were asked for; others search meanwhile; in the end all come."""
    server = clients(one)
    async with lazy(one) as client:
        for _ in range(12):
            await client.send(frames.Type.FIND, dict(FINDING))
        await one.until(lambda: server.handlers.cold.held > 0, "the first answer")
        async with one.client() as other:
            for _ in range(12):
                found = await other.ask(frames.Type.FIND, dict(FINDING))
                assert len(bodies(found)) == 8
        most = server.handlers.limits.cold_share_max
        for connection in server._connections:  # pyright: ignore[reportPrivateUsage]
            assert connection.stream.unsent <= most + 8 * BODY
        assert server.handlers.cold.held <= server.handlers.limits.cold_bytes_max
        for _ in range(12):
            assert len(bodies(await client.receive())) == 8
    await one.until(lambda: server.handlers.cold.held == 0, "all given back")


async def test_a_client_that_reads_nothing_keeps_no_other_from_cold_data(one: Cluster) -> None:
    """It may hold its share; what it asked for beyond waits for itself alone."""
    server = clients(one)
    async with lazy(one) as client:
        for _ in range(8):
            await client.send(frames.Type.READ, reading(8 << 20))
        await one.until(lambda: server.handlers.cold.waiting >= 2, "the cold reads")
        async with one.client() as other:
            assert len(bodies(await other.ask(frames.Type.READ, reading(1)))) == 1
    await one.until(
        lambda: server.handlers.cold.held == server.handlers.cold.waiting == 0, "all given back"
    )


async def test_a_client_that_takes_its_answers_too_slowly_is_closed(one: Cluster) -> None:
    """Memory that others wait for is not lent for hours; the closing says why."""
    server = clients(one)
    server.handlers.limits = replace(
        server.handlers.limits, cold_drain_seconds=0.05, cold_drain_bytes_min=1 << 40
    )
    async with lazy(one) as client:
        for _ in range(3):
            await client.send(frames.Type.READ, reading(8 << 20))
        await one.until(lambda: server.handlers.counts.closings.get("slow") == 1, "the closing")
        await one.until(
            lambda: server.handlers.cold.held == server.handlers.cold.waiting == 0, "all given back"
        )
    assert server.handlers.counts.limits["cold_drain_bytes_min"] == 1


async def test_a_search_ends_with_its_connection_and_holds_nothing(
    one: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread is asked to stop, and the next of that connection never begins."""
    begun: list[Lookup] = []
    stopped = threading.Event()

    def endless(lookup: Lookup) -> TwinlogError | None:
        begun.append(lookup)
        for _ in range(60_000):
            if lookup.stop():
                stopped.set()
                break
            threading.Event().wait(0.001)
        return None

    monkeypatch.setattr("node.clients.off_loop.search", endless)
    server = clients(one)
    async with one.client() as client:
        for _ in range(3):
            await client.send(frames.Type.FIND, dict(FINDING))
        await one.until(lambda: len(begun) == 1, "the search")
        async with one.client() as other:  # a search holds no memory: cold reads go on
            assert len(bodies(await other.ask(frames.Type.READ, reading(1)))) == 1
    await one.until(stopped.is_set, "the end of the search")
    await one.until(lambda: server.connections == 1, "its connection's end")
    assert len(begun) == 1


async def test_a_search_stops_when_its_client_no_longer_waits(
    one: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request says how long that is; the answer says that it is not complete."""
    real, times = search, list[bool]()
    readiness = clients(one).handlers.cold._world.outbox.readiness  # pyright: ignore[reportPrivateUsage]
    now, ahead = readiness.clock, [0.0]

    def late(lookup: Lookup) -> TwinlogError | None:
        times.append(lookup.stop())
        ahead[0] = 60.0
        times.append(lookup.stop())
        return real(lookup)

    monkeypatch.setattr("node.clients.off_loop.search", late)
    monkeypatch.setattr(readiness, "clock", lambda: now() + ahead[0])
    async with one.client() as client:
        found = await client.ask(frames.Type.FIND, dict(FINDING))
        assert (found.fields.get("complete"), found.fields.get("count")) == (False, 0)
    assert times == [False, True]
