"""What a group has left to handle, queues included that no member was given a message of."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from tests.fixtures.cluster import Cluster, running_cluster
from tests.fixtures.group_worker import Worker, rows_of, show
from tests.fixtures.wire_client import WireClient, outcomes, records
from twinlog.wire.frames import Type

pytestmark = pytest.mark.processes


@pytest.fixture
async def one(tmp_path: Path) -> AsyncIterator[Cluster]:
    """One node with the topic ``t`` of three queues."""
    async with running_cluster(tmp_path, nodes=1) as running:
        async with running.client() as client:
            await client.create("t", 3)
        yield running


async def send(client: WireClient, queue: int, *texts: bytes) -> None:
    """Store messages in a queue of ``t``."""
    assert outcomes(await client.append(records("t", *texts, queue=queue))) == [0]


async def listed(client: WireClient) -> Mapping[str, Any]:
    """The only group of the list."""
    answer = await client.ask(Type.GROUP, {"op": "list"})
    (found,) = cast("list[Mapping[str, Any]]", answer.fields["groups"])
    return found


def lags(document: Mapping[str, Any]) -> dict[int, int]:
    """What is left by queue."""
    return {one["queue"]: one["lag"] for one in document["queues"]}


async def test_queues_that_were_not_begun_count(one: Cluster) -> None:
    """In list, document and metric; a member's word is enough, none of its messages is needed."""
    async with one.client() as client:
        await send(client, 0, b"a", b"b")
        await send(client, 2, b"c")
        worker = Worker(client, "g")
        await worker.join(start="start")
        assert (await listed(client))["lag"] == 3
        shown = await show(client, "g")
        assert (shown["lag"], shown["topics"], lags(shown)) == (3, ["t"], {0: 2, 2: 1})
        await worker.ack(await worker.pop(1))
        await send(client, 1, b"d")
        shown = await show(client, "g")
        assert (shown["lag"], lags(shown)) == (3, {0: 1, 1: 1, 2: 1})
        services = one.nodes["n1"].services
        assert services is not None
        found = services.observation.metrics()
        assert found["twinlog_group_lag_messages"] == {("g", "t"): 3.0}
        while rows_of(got := await worker.pop()):
            await worker.ack(got)
        shown = await show(client, "g")
        assert (shown["lag"], lags(shown)) == (0, {0: 0, 1: 0, 2: 0})


async def test_what_was_there_before_a_group_is_not_its_own(one: Cluster) -> None:
    """A group that begins at the end, or at a time, has nothing of before to handle."""
    async with one.client() as client:
        await send(client, 0, b"before", b"before")
        worker = Worker(client, "g")
        await worker.join(start="end")
        assert (await listed(client))["lag"] == 0
        await send(client, 0, b"after")
        assert (await listed(client))["lag"] == 1
        later = Worker(client, "late")
        joined = await later.join(start="4000000000000")
        assert not joined.is_error, joined.fields
        assert (await show(client, "late"))["lag"] == 0
        early = Worker(client, "early")
        await early.join(start="1")
        assert (await show(client, "early"))["lag"] == 3


async def test_the_oldest_unsettled_message_has_a_time(one: Cluster) -> None:
    """The store time of the first one over all queues; none when all are settled."""
    async with one.client() as client:
        worker = Worker(client, "g")
        await worker.join()
        assert (await listed(client))["oldest_ms"] is None
        await send(client, 1, b"first")
        services = one.nodes["n1"].services
        assert services is not None
        first = services.store.reads.timestamp
        await send(client, 0, b"later")
        assert (await listed(client))["oldest_ms"] == first
        got = await worker.pop()
        assert (await show(client, "g"))["oldest_ms"] == first, "leased is not settled"
        await worker.ack(got)
        assert (await show(client, "g"))["oldest_ms"] is None
