"""Who connects to the slave port without being a node keeps no node out."""

from __future__ import annotations

import pytest
import trio

from replication import replica_service
from tests.fixtures.cluster import Cluster
from tests.fixtures.wire_client import outcomes, records

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LINKS = 6
"""Places at the slave port, in place of production's 256."""


async def test_silent_connections_make_room_for_slaves(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Strangers take every place and come back at once; a slave that starts joins all the same."""
    monkeypatch.setattr(replica_service, "LINKS_MAX", LINKS)
    master, victim = str(cluster.master), cluster.slaves[0]
    running = cluster.nodes[master].services
    assert running is not None
    await cluster.stop(victim)
    addresses = cluster.view(master)["addresses"]
    assert isinstance(addresses, dict)
    port = int(addresses["slave_port"])  # pyright: ignore[reportUnknownArgumentType]
    async with trio.open_nursery() as nursery:
        for _ in range(3 * LINKS):
            nursery.start_soon(_stranger, port)
        await cluster.until(
            lambda: running.world.links_closed.get("stranger", 0) > 0, "a stranger that made room"
        )
        await cluster.start(victim)
        await cluster.settled()
        async with cluster.client() as client:
            await client.create("t")
            assert outcomes(await client.append(records("t", b"1"))) == [0]
        assert cluster.master == master
        nursery.cancel_scope.cancel()


async def _stranger(port: int) -> None:
    """Connect, say nothing, and connect again when the door closes."""
    while True:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        async with stream:
            try:
                await stream.receive_some(1)
            except trio.BrokenResourceError:
                continue
