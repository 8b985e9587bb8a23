"""Three nodes and a coordinator in one loop: what a cluster promises while it changes."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from node.config.config import load
from node.node import Node
from storage.errors import DirectoryInUse, IdentityMismatch
from tests.fixtures.cluster import Cluster, running_cluster
from tests.fixtures.wire_client import bodies, outcomes, records
from twinlog.wire import frames

pytestmark = [pytest.mark.processes, pytest.mark.slow]


async def fill(cluster: Cluster, count: int, start: int = 0, topic: str = "t") -> None:
    """Append ``count`` records, confirmed, creating the topic the first time."""
    async with cluster.client() as client:
        await client.create(topic, 1)
        for number in range(start, start + count):
            answer = await client.append(records(topic, b"%d" % number))
            assert outcomes(answer) == [0], answer.fields


async def found(cluster: Cluster, name: str, count: int, topic: str = "t") -> list[int]:
    """Read a topic from one node until it has shown ``count`` records."""
    async with cluster.client(name) as client:
        numbers: list[int] = []
        with trio.fail_after(60):
            while len(numbers) < count:
                answer = await client.read(topic, len(numbers), wait_ms=2000)
                numbers += [int(body) for body in bodies(answer)]
        return numbers


async def test_what_is_confirmed_is_read_from_every_node(cluster: Cluster) -> None:
    """Master and slaves show the same records in the same order; slaves say how old they are."""
    began = trio.current_time()
    await fill(cluster, 20)
    for name in cluster.nodes:
        assert await found(cluster, name, 20) == list(range(20))
    async with cluster.client(cluster.slaves[0]) as client:
        answer = await client.read("t", 0)
        age = answer.fields["age_ms"]
        assert answer.fields["role"] == "slave"
        assert isinstance(age, int)
        assert 0 <= age <= (trio.current_time() - began) * 1000, "it has heard of all of them"


async def test_a_slave_refuses_writes_and_names_the_master(cluster: Cluster) -> None:
    """``not-master`` with the master's name, address and epoch; nothing is written."""
    await fill(cluster, 1)
    slave, master = cluster.slaves[0], cluster.master
    before = end_of(cluster, slave)
    async with cluster.client(slave) as client:
        answer = await client.append(records("t", b"x"))
        assert answer.is_error
        fields = answer.fields
        assert (fields["code"], fields["leader"], fields["retryable"]) == (
            "not-master",
            master,
            True,
        )
        assert (fields["host"], fields["port"]) == cluster.address(str(master))
        assert fields["epoch"] == cluster.view(slave)["epoch"]
        topic = await client.create("other")
        assert topic.fields["code"] == "not-master"
    assert end_of(cluster, slave) == before


def end_of(cluster: Cluster, name: str) -> object:
    """The end offset of a node's log."""
    offsets = cluster.view(name)["offsets"]
    assert isinstance(offsets, dict)
    return offsets["end"]  # pyright: ignore[reportUnknownVariableType]


async def test_failover_keeps_what_was_confirmed(cluster: Cluster) -> None:
    """The master dies, a slave takes over: everything acknowledged is there, writes go on."""
    await fill(cluster, 10)
    dead = str(cluster.master)
    await cluster.kill(dead)
    heir = cluster.slaves[0]
    await cluster.failover(heir)
    await fill(cluster, 5, start=10)
    assert await found(cluster, heir, 15) == list(range(15))
    await cluster.start(dead)
    await cluster.settled(3)
    assert await found(cluster, dead, 15) == list(range(15))


async def test_a_deposed_master_refuses_writes(cluster: Cluster) -> None:
    """Deposed while it lives: its clients learn who leads now, and its log gets nothing."""
    await fill(cluster, 3)
    old, heir = str(cluster.master), cluster.slaves[0]
    async with cluster.client(old) as client:
        await cluster.failover(heir)
        await cluster.until(lambda: cluster.view(old)["leader"] == heir, "the news")
        answer = await client.append(records("t", b"x"))
        assert answer.fields["code"] == "not-master"
        assert answer.fields["leader"] == heir


async def test_a_transfer_loses_nothing(cluster: Cluster) -> None:
    """A planned switchover: the target is master, the old one follows, all records are there."""
    await fill(cluster, 5)
    old, heir = str(cluster.master), cluster.slaves[0]
    async with cluster.client() as client:
        order: dict[str, object] = {"op": "transfer", "to": heir, "timeout_ms": 60_000}
        answer = await client.ask(frames.Type.ADMIN, order)
        assert not answer.is_error, answer.fields
    await cluster.until(lambda: cluster.master == heir, "the heir")
    await fill(cluster, 5, start=5)
    assert await found(cluster, old, 10) == list(range(10))


async def test_the_coordinator_may_be_away(cluster: Cluster) -> None:
    """Without it writes go on; when it is back, roles can change again."""
    await fill(cluster, 2)
    cluster.stop_coordinator()
    await fill(cluster, 10, start=2)
    await cluster.start_coordinator()
    heir = cluster.slaves[0]
    await cluster.until(lambda: coordinator_answers(cluster), "the coordinator")
    await cluster.failover(heir)
    await fill(cluster, 2, start=12)
    assert await found(cluster, heir, 14) == list(range(14))


def coordinator_answers(cluster: Cluster) -> bool:
    """Whether every node hears the coordinator again."""
    return all(
        node.services is not None and node.services.register.connected
        for node in cluster.nodes.values()
    )


async def test_all_nodes_stop_and_start_in_order(tmp_path: Path) -> None:
    """After a clean stop and a start of everything, everything is there and a node leads."""
    async with running_cluster(tmp_path) as cluster:
        await fill(cluster, 7)
        for name in list(cluster.nodes):
            await cluster.stop(name)
        for node in cluster.config.nodes:
            await cluster.start(node.name)
        await cluster.settled()
        await fill(cluster, 3, start=7)
        assert await found(cluster, "n2", 10) == list(range(10))


async def test_a_directory_in_use_is_refused(cluster: Cluster) -> None:
    """A second process on the same directory is refused and changes nothing."""
    again = Node(cluster.config, "n1")
    with pytest.raises(DirectoryInUse):
        await again.run()
    await fill(cluster, 1)


async def test_a_directory_of_another_node_is_refused_with_both_names(tmp_path: Path) -> None:
    """n2 started on n1's directory: refused, both names said, the directory is as before."""
    async with running_cluster(tmp_path, nodes=1) as cluster:
        await fill(cluster, 1)
        await cluster.stop("n1")
        path = tmp_path / "other.toml"
        for old, new in (('name = "n1"', 'name = "x9"'), ('"test"', '"prod"')):
            path.write_text((tmp_path / "cluster.toml").read_text().replace(old, new))
            config = load(path)
            node = Node(config, config.nodes[0].name)
            with pytest.raises(IdentityMismatch) as caught:
                await node.run()
            for word in (new, old):
                assert word.split('"')[1] in str(caught.value)
        await cluster.start("n1")
        await cluster.settled()
        assert await found(cluster, "n1", 1) == [0]


async def test_a_port_in_use_names_the_port_and_touches_nothing(cluster: Cluster) -> None:
    """The error says which port of which node; the store is not opened."""
    port = cluster.address("n1")[1]
    path = cluster.config.path
    before, name, after = path.read_text().partition('name = "n2"')
    other = path.with_name("taken.toml")
    other.write_text(before + name + after.replace("clients = 0", f"clients = {port}", 1))
    node = Node(load(other), "n2")
    with pytest.raises(OSError, match=str(port)):
        await node.run()
