"""Consumers that were given the master's address alone, and the master dies.

Real nodes, real sockets, real files; the blocking client in a thread.
"""

from __future__ import annotations

import pytest
import trio

from tests.fixtures.cluster import Cluster
from twinlog import AsyncClient, Client
from twinlog.wire.frames import Type

pytestmark = pytest.mark.processes


def prepare(where: str) -> None:
    """A topic, and a group that begins with its first message."""
    with Client(where, timeout=60.0) as client:
        client.create_topic("t", 1)
        create = {"op": "create", "name": "g", "settings": {"start": "start", "retry": [1]}}
        client.call("master", Type.GROUP, create)
        client.send("t", b"before")


async def change_master(cluster: Cluster) -> None:
    """Kill the master and make another node one; nothing listens at the old address."""
    other = cluster.slaves[0]
    await cluster.kill(cluster.master or "")
    await cluster.failover(other)
    await cluster.settled()
    async with AsyncClient("{}:{}".format(*cluster.address(other)), timeout=60.0) as client:
        await client.send("t", b"after")


async def test_a_consumer_learns_the_other_nodes_from_the_first(cluster: Cluster) -> None:
    """The consumer goes on with the next master; what it had in hand is settled there."""
    where = "{}:{}".format(*cluster.address(await cluster.settled()))
    await trio.to_thread.run_sync(prepare, where)
    async with AsyncClient(where, timeout=60.0) as client, client.consumer("g", "t") as consumer:
        first = await anext(consumer)
        await change_master(cluster)
        first.ack()
        second = await anext(consumer)
        second.ack()
        await consumer.settle()
    assert (first.body, second.body) == (b"before", b"after")


async def test_a_blocking_consumer_does_so_too(cluster: Cluster) -> None:
    """Between two of its messages."""
    where = "{}:{}".format(*cluster.address(await cluster.settled()))
    await trio.to_thread.run_sync(prepare, where)
    with Client(where, timeout=60.0) as client, client.consumer("g", "t") as consumer:
        first = await trio.to_thread.run_sync(next, consumer)
        await change_master(cluster)
        first.ack()
        second = await trio.to_thread.run_sync(next, consumer)
        second.ack()
        await trio.to_thread.run_sync(consumer.settle)
        await trio.to_thread.run_sync(consumer.close)
        await trio.to_thread.run_sync(client.close)
    assert (first.body, second.body) == (b"before", b"after")
