"""A stranger's cluster answers at an address of ours: nothing is asked of it, no write at all."""

from __future__ import annotations

from collections.abc import Iterator

import anyio
import pytest

from tests.fakes.node import Arrived, Drop, FakeCluster
from twinlog import AsyncClient, Client
from twinlog.errors import TwinlogError, UsageError
from twinlog.wire.frames import Type


@pytest.fixture
def stranger() -> Iterator[FakeCluster]:
    """A cluster of one node with another name; it does not compare names, as old nodes do not."""
    made = FakeCluster(name="theirs")
    made.add_node("n1")
    yield made
    made.close()


def heard(cluster: FakeCluster) -> list[Arrived]:
    """Every request but greetings that arrives from now on."""
    found: list[Arrived] = []

    def note(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.HELLO:
            found.append(arrived)
        return False

    for node in cluster.nodes.values():
        node.faults.append(note)
    return found


def test_a_stranger_is_refused_at_once(stranger: FakeCluster) -> None:
    """Every call says who answered and where the expected name comes from."""
    asked = heard(stranger)
    with Client(stranger.servers, cluster="ours", timeout=3600) as client:
        for call in (
            lambda: client.send("orders", b"x"),
            lambda: client.producer("orders").send(b"x"),
            lambda: list(client.read("orders")),
            client.topics,
            lambda: client.create_topic("t"),
            lambda: client.find("orders", "k"),
        ):
            with pytest.raises(UsageError) as caught:
                call()
            assert caught.value.code == "other-cluster"
            assert caught.value.text == "node n1 of cluster theirs answers, not cluster ours"
            assert "Client(cluster='ours')" in str(caught.value.hint)
    assert asked == []


def test_an_awaiting_client_refuses_a_stranger(stranger: FakeCluster) -> None:
    """As the blocking one."""
    asked = heard(stranger)

    async def run() -> None:
        async with AsyncClient(stranger.servers, cluster="ours", timeout=3600) as client:
            with pytest.raises(UsageError, match="cluster theirs answers, not cluster ours"):
                await client.send("orders", b"x")
            with pytest.raises(UsageError, match="cluster theirs answers, not cluster ours"):
                await client.topics()

    anyio.run(run)
    assert asked == []


def test_another_address_answers_for_the_cluster(
    stranger: FakeCluster, cluster: FakeCluster
) -> None:
    """One of the addresses belongs to others by now: the client finds its cluster all the same."""
    asked = heard(stranger)
    with Client(f"{stranger.servers},{cluster.servers}", cluster="demo", timeout=60) as client:
        assert client.send("orders", b"x").queue_offset == 0
        assert client.metadata().cluster == "demo"
    assert asked == []


def test_a_client_without_a_name_stays_with_the_first(
    stranger: FakeCluster, cluster: FakeCluster
) -> None:
    """Its cluster's addresses answer for another cluster later: it does not write there."""
    with Client(cluster.servers, timeout=1) as client, client.producer("orders") as producer:
        assert client.send("orders", b"one").queue_offset == 0
        producer.send(b"two")
        producer.flush()
        cluster.name = "theirs"

        def cut(arrived: Arrived) -> bool:
            raise Drop

        for node in cluster.nodes.values():
            node.faults.append(cut)
        with pytest.raises(TwinlogError, match=r"closed|answer"):
            client.topics()
        for node in cluster.nodes.values():
            node.faults.remove(cut)
        asked = heard(cluster)
        with pytest.raises(UsageError, match="cluster theirs answers, not cluster demo") as caught:
            client.topics()
        assert caught.value.hint is not None
        assert "the first node that answered" in caught.value.hint
        assert asked == []


def test_the_name_is_part_of_the_greeting(cluster: FakeCluster) -> None:
    """A node that compares names refuses by itself; without a name the field is absent."""
    greetings: list[object] = []

    def note(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.HELLO:
            greetings.append(arrived.frame.fields.get("cluster"))
        return False

    for node in cluster.nodes.values():
        node.faults.append(note)
    with Client(cluster.servers, cluster="demo") as named:
        named.metadata()
    with Client(cluster.servers) as unnamed:
        unnamed.metadata()
    assert greetings == ["demo", None]
