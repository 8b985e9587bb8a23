"""Single sends to many topics: few connections, nothing lost, doubled or out of order."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest

from tests.fakes.clock import Clock
from tests.fakes.node import Arrived, Drop, FakeCluster, Keep
from twinlog import AsyncClient, Client
from twinlog.errors import OutcomeUnknown, Unavailable, UnknownTopic
from twinlog.producer.single_sends import Senders
from twinlog.session import aio_caller
from twinlog.wire.frames import Type

Body = Callable[[AsyncClient], Awaitable[None]]
TOPICS = [f"t{number}" for number in range(12)]


@pytest.fixture(autouse=True)
def three_senders(monkeypatch: pytest.MonkeyPatch, cluster: FakeCluster) -> None:
    """A client keeps three senders; the cluster has a dozen topics."""
    monkeypatch.setattr("twinlog.producer.single_sends.SENDERS_MAX", 3)
    cluster.topics.update(dict.fromkeys(TOPICS, 1))


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest, cluster: FakeCluster) -> Callable[[Body], None]:
    """Run a body with an awaiting client of the fake cluster, on both loops in turn."""

    async def main(body: Body) -> None:
        with anyio.fail_after(120):
            async with AsyncClient(cluster.nodes["n1"].address, timeout=60.0) as client:
                await body(client)

    return lambda body: anyio.run(main, body, backend=request.param)


class Kept:
    """A sender as `Senders` sees it."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch


def keeping(count: int) -> tuple[Callable[[Arrived], bool], threading.Event]:
    """Return a fault that answers no METADATA, and what is set when so many have come."""
    met: list[int] = []
    all_came = threading.Event()

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.METADATA:
            return False
        met.append(1)
        if len(met) == count:
            all_came.set()
        raise Keep

    return fault, all_came


def test_the_least_recently_used_goes() -> None:
    """What was used stays; what may not go is passed over; the next begins an epoch of its own."""
    senders: Senders[Kept] = Senders()
    for topic, epoch in (("a", 0), ("b", 4), ("c", 0)):
        senders.add(topic, "written", Kept(epoch))
    assert senders.full
    assert senders.get("a", "written") is not None
    assert senders.get("a", "confirmed") is None
    origin = senders.origin("written")
    assert origin.epoch == 0
    gone = senders.remove_oldest(lambda sender: sender.epoch == 0)
    assert gone is not None
    assert senders.get("c", "written") is None
    assert (origin.epoch, senders.origin("confirmed").epoch) == (1, 0)
    senders.remove_oldest(lambda _: True)
    assert senders.get("b", "written") is None
    assert (origin.epoch, len(senders)) == (5, 1)
    assert senders.remove_oldest(lambda _: False) is None


def test_many_topics_need_few_connections(client: Client, cluster: FakeCluster) -> None:
    """Twelve topics in turn, three senders: their connections pass on; all is stored once."""
    node = cluster.nodes["n1"]
    for round in range(3):
        for topic in TOPICS:
            receipt = client.send(topic, b"%d" % round)
            assert (receipt.topic, receipt.queue_offset) == (topic, round)
    assert [cluster.bodies(topic) for topic in TOPICS] == [[[b"0", b"1", b"2"]]] * 12
    assert node.count(Type.HELLO) == 1 + 3
    assert (cluster.producers, len(cluster.lines)) == (1, 12)


def test_a_topic_that_is_not_there_costs_no_connection(
    client: Client, cluster: FakeCluster
) -> None:
    """The connection of a sender that could not begin passes on as well."""
    for topic in TOPICS[:3]:
        client.send(topic, b"x")
    for number in range(9):
        with pytest.raises(UnknownTopic):
            client.send(f"nothing{number}", b"x")
    for topic in TOPICS[:3]:
        client.send(topic, b"y")
    assert cluster.nodes["n1"].count(Type.HELLO) == 1 + 3


def test_each_acknowledgement_is_a_producer_of_its_own(
    client: Client, cluster: FakeCluster
) -> None:
    """Two senders of one topic do not get into each other's sequence."""
    for number in range(6):
        for acknowledge in ("written", "confirmed"):
            client.send("t0", b"%d" % number, acknowledge=acknowledge)
    assert cluster.bodies("t0") == [[b"%d" % (number // 2) for number in range(12)]]
    assert cluster.producers == 2


def test_a_late_attempt_of_a_closed_sender_is_out_of_date(
    client: Client, cluster: FakeCluster, clock: Clock
) -> None:
    """Its outcome was unknown; it does not come in behind what the next sender has sent."""
    node = cluster.nodes["n1"]
    client.send("t0", b"first")
    late: list[Arrived] = []

    def keep(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND and not late:
            late.append(arrived)
            clock.jump(60.0)
            raise Drop
        return False

    node.faults.append(keep)
    with pytest.raises(OutcomeUnknown):
        client.send("t0", b"late")
    for topic in TOPICS[1:5]:
        client.send(topic, b"x")
    client.send("t0", b"next")
    late[0].serve()
    assert cluster.bodies("t0") == [[b"first", b"next"]]


def test_closed_and_used_again_is_another_producer(client: Client, cluster: FakeCluster) -> None:
    """After `close` (so in a child after a fork as well) nothing goes on under the old id."""
    client.send("t0", b"one")
    client.close()
    client.send("t0", b"two")
    assert cluster.bodies("t0") == [[b"one", b"two"]]
    assert (cluster.producers, len(cluster.lines)) == (2, 2)


def test_awaiting_sends_to_many_topics(run: Callable[[Body], None], cluster: FakeCluster) -> None:
    """As the blocking client; also when all topics are sent to at once."""

    async def body(client: AsyncClient) -> None:
        async def one(topic: str, body: bytes) -> None:
            assert (await client.send(topic, body)).topic == topic

        for topic in TOPICS:
            await one(topic, b"0")
        for round in (b"1", b"2"):
            async with anyio.create_task_group() as group:
                for topic in TOPICS:
                    group.start_soon(one, topic, round)
        node = cluster.nodes["n1"]
        await anyio.to_thread.run_sync(node.wait_open, 3 + aio_caller.FREE_MAX)

    run(body)
    assert [cluster.bodies(topic) for topic in TOPICS] == [[[b"0", b"1", b"2"]]] * 12
    assert (cluster.producers, len(cluster.lines)) == (1, 12)


def test_a_sender_with_a_message_under_way_is_not_closed(
    run: Callable[[Body], None], cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another topic waits for it: as long as its own timeout, or until there is an answer."""
    monkeypatch.setattr("twinlog.producer.single_sends.SENDERS_MAX", 1)
    node, came = cluster.nodes["n1"], threading.Event()

    def keep(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND and not came.is_set():
            node.kept.append(arrived)
            came.set()
            return True
        return False

    node.faults.append(keep)

    async def body(client: AsyncClient) -> None:
        async def one(topic: str) -> None:
            assert (await client.send(topic, b"x")).queue_offset == 0

        async with anyio.create_task_group() as group:
            group.start_soon(one, "t0")
            await anyio.to_thread.run_sync(came.wait, 60)
            with pytest.raises(Unavailable, match="nothing was sent"):
                await client.send("t1", b"never", timeout=0.05)
            group.start_soon(one, "t1")
            with cluster.lock:
                node.kept[0].serve()
        assert cluster.bodies("t0") + cluster.bodies("t1") == [[b"x"], [b"x"]]

    run(body)


def test_free_connections_have_a_limit(run: Callable[[Body], None], cluster: FakeCluster) -> None:
    """Thirty questions at once need thirty connections; `FREE_MAX` of them are kept."""
    node = cluster.nodes["n1"]
    fault, all_came = keeping(30)
    node.faults.append(fault)

    async def body(client: AsyncClient) -> None:
        async with anyio.create_task_group() as group:
            for _ in range(30):
                group.start_soon(client.metadata)
            await anyio.to_thread.run_sync(all_came.wait, 60)
            node.faults.clear()
            assert node.open == 30
            with cluster.lock:
                for arrived in node.kept:
                    node.serve(arrived)
        await anyio.to_thread.run_sync(node.wait_open, aio_caller.FREE_MAX)

    run(body)
