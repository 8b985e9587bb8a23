"""The awaiting client on trio and on asyncio: the same promises as the blocking one."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import pytest

from tests.fakes.clock import Clock
from tests.fakes.node import Arrived, Drop, FakeCluster, Keep, dropping
from twinlog import AsyncClient
from twinlog.errors import (
    OffsetBeyond,
    OutcomeUnknown,
    RecordRefused,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.producer import aio
from twinlog.producer.section import Section
from twinlog.wire.frames import Frame, Type

Body = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest, cluster: FakeCluster) -> Callable[[Body], None]:
    """Run a body with a client of the fake cluster, on both loops in turn."""

    async def main(body: Body) -> None:
        endpoints = [cluster.nodes["n1"].address, cluster.nodes["n2"].address]
        with anyio.fail_after(60):
            async with AsyncClient(endpoints, timeout=60.0) as client:
                await body(client)

    def start(body: Body) -> None:
        anyio.run(main, body, backend=request.param)

    return start


def test_send_read_get(run: Callable[[Body], None]) -> None:
    """A message comes back by range, by address, by log offset and by filter."""

    async def body(client: AsyncClient) -> None:
        receipt = await client.send("orders", b"one", key="1", tag="a", queue=2)
        await client.send("orders", b"two", tag="b", queue=2)
        assert receipt.address == "orders/2@0"
        assert [m.body async for m in client.read("orders")] == [b"one", b"two"]
        assert [m.body async for m in client.read("orders", tag="b")] == [b"two"]
        assert [m.body async for m in client.read("orders", "1:", queue=2)] == [b"two"]
        assert (await client.get(receipt.address)).key == "1"
        assert (await client.get("log@0")).body == b"one"
        assert [m.body for m in await client.find("orders", "1")] == [b"one"]
        assert await client.offsets("orders") == {0: (0, 0), 1: (0, 0), 2: (0, 2), 3: (0, 0)}
        assert (await client.metadata()).leader == "n1"
        assert await client.create_topic("events", 2)
        assert await client.topics() == {"events": 2, "orders": 4}
        assert (await client.call("n3", Type.METADATA)).fields["epoch"] == 7
        with pytest.raises(UnknownTopic):
            await client.send("nothing", b"x")

    run(body)


def test_many_tasks_send_at_once(run: Callable[[Body], None], cluster: FakeCluster) -> None:
    """One client serves many tasks; every message is stored once and told its own place."""

    async def body(client: AsyncClient) -> None:
        found: list[str] = []

        async def one(number: int) -> None:
            found.append((await client.send("orders", b"%d" % number)).address)

        async with anyio.create_task_group() as group:
            for number in range(50):
                group.start_soon(one, number)
        assert len(set(found)) == 50
        assert sorted(int(b) for bodies in cluster.bodies() for b in bodies) == list(range(50))

    run(body)


def test_a_producer_keeps_time_by_itself(run: Callable[[Body], None], cluster: FakeCluster) -> None:
    """A lone record goes out when its linger has passed, without a flush."""

    stored = threading.Event()

    def notice(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND:
            stored.set()
        return False

    cluster.nodes["n1"].faults.append(notice)

    async def body(client: AsyncClient) -> None:
        async with client.producer("orders", linger="5 ms") as producer:
            section = await producer.send(b"x")
            assert await anyio.to_thread.run_sync(stored.wait, 60)
            await producer.flush()
            assert section.stored
            for number in range(1000):
                await producer.send(b"%04d" % number, order_key="a")
        assert producer.statistics().acknowledged == 1001

    run(body)
    assert [b"%04d" % n for n in range(1000)] in [list(b)[-1000:] for b in cluster.bodies()]


def test_a_producer_survives_lost_connections_and_a_new_master(
    run: Callable[[Body], None], cluster: FakeCluster
) -> None:
    """Answers lost, connections broken, another master: each record once, in order."""
    counter = [0]

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        counter[0] += 1
        if counter[0] in (3, 4, 7):
            if counter[0] == 4:
                arrived.send = lambda frame: None
                arrived.serve()
            raise Drop
        if counter[0] == 8:
            with cluster.lock:
                cluster.leader, cluster.epoch = "n3", 8
        return False

    cluster.nodes["n1"].faults.append(fault)

    async def body(client: AsyncClient) -> None:
        async with client.producer("orders", batch=400) as producer:
            for number in range(100):
                await producer.send(b"%03d" % number, order_key="a")
                if number % 20 == 19:
                    await producer.flush()

    run(body)
    assert [b for b in cluster.bodies() if b] == [[b"%03d" % number for number in range(100)]]
    assert cluster.nodes["n3"].count(Type.APPEND)


def test_a_silent_master_is_doubted(
    run: Callable[[Body], None], cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A paused master keeps its connections; its successor gets the section."""
    monkeypatch.setattr(aio, "PATIENCE_SECONDS", 0.05)

    def silent(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        with cluster.lock:
            cluster.leader, cluster.epoch = "n3", 8
        raise Keep

    async def body(client: AsyncClient) -> None:
        await client.send("orders", b"before", queue=0)
        cluster.nodes["n1"].faults.append(silent)
        assert (await client.send("orders", b"after", queue=0)).epoch == 8

    run(body)


def test_three_outcomes(
    run: Callable[[Body], None],
    cluster: FakeCluster,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unknown when a node was silent, refused when it said so, and flush says it once."""
    monkeypatch.setattr(aio, "PATIENCE_SECONDS", 0.01)
    met: list[Frame] = []

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        met.append(arrived.frame)
        if len(met) == 1:
            clock.jump(60.0)
            raise Keep
        if len(met) == 2:
            row = [2, -1, -1, 0, "record-refused", "a bad record", 0]
            arrived.answer({"results": [row], "confirmed_by": [], "epoch": 7})
            return True
        return False

    async def body(client: AsyncClient) -> None:
        cluster.nodes["n1"].faults.append(fault)
        with pytest.raises(OutcomeUnknown):
            await client.send("orders", b"x", timeout=60.0)
        with pytest.raises(RecordRefused):
            await client.send("orders", b"x")
        assert (await client.send("orders", b"x")).queue_offset == 0

    run(body)


def test_follow(run: Callable[[Body], None], cluster: FakeCluster) -> None:
    """A follower sees what comes after it began, as it comes, and can be left at any time."""

    async def body(client: AsyncClient) -> None:
        await client.send("orders", b"old")
        asked = threading.Event()

        def notice(arrived: Arrived) -> bool:
            if arrived.frame.type == Type.READ:
                asked.set()
            return False

        for node in cluster.nodes.values():
            node.faults.append(notice)

        async def produce() -> None:
            assert await anyio.to_thread.run_sync(asked.wait, 60)
            for number in range(3):
                await client.send("orders", b"new %d" % number)

        async with anyio.create_task_group() as group, client.follow("orders") as messages:
            group.start_soon(produce)
            found: list[bytes] = []
            async for message in messages:
                found.append(message.body)
                if len(found) == 3:
                    break
        assert sorted(found) == [b"new 0", b"new 1", b"new 2"]

    run(body)


def test_a_cancelled_call_leaves_the_client_usable(
    run: Callable[[Body], None], cluster: FakeCluster
) -> None:
    """The connection of the cancelled question is closed, and the next call opens another."""

    def silent(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.OFFSETS:
            raise Keep
        return False

    async def body(client: AsyncClient) -> None:
        cluster.nodes["n1"].faults.append(silent)
        with anyio.move_on_after(0.05) as scope:
            await client.offsets("orders")
        assert scope.cancelled_caught
        cluster.nodes["n1"].faults.clear()
        assert len(await client.offsets("orders")) == 4

    run(body)


@pytest.mark.usefixtures("long_pauses")
def test_nobody_there(cluster: FakeCluster) -> None:
    """No node answers before the deadline: not done."""
    address = cluster.nodes["n1"].address
    cluster.close()
    cluster.nodes.clear()

    async def main() -> None:
        async with AsyncClient(address, timeout=60.0) as client:
            with pytest.raises(Unavailable, match=address):
                await client.topics()

    anyio.run(main)


@pytest.mark.usefixtures("long_pauses")
def test_first_sends_have_a_deadline_each(cluster: FakeCluster, clock: Clock) -> None:
    """The first of many looks for the master; the others do not wait for it one after the other."""
    cluster.leader = None
    spent: list[float] = []

    async def main() -> None:
        async with AsyncClient(cluster.nodes["n1"].address, timeout=36000.0) as client:

            async def send() -> None:
                began = clock.monotonic()
                with pytest.raises(Unavailable):
                    await client.send("orders", b"x", timeout=60.0)
                spent.append(clock.monotonic() - began)

            async with anyio.create_task_group() as group:
                for _ in range(5):
                    group.start_soon(send)

    anyio.run(main)
    assert len(spent) == 5
    assert max(spent) < 200.0


def test_a_closed_client_leaves_nobody_waiting(
    run: Callable[[Body], None], cluster: FakeCluster
) -> None:
    """Tasks of others that wait in it are told that nobody knows, and end."""
    arrived_, told = threading.Event(), list[str]()

    def silent(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        arrived_.set()
        raise Keep

    async def body(_: AsyncClient) -> None:
        cluster.nodes["n1"].faults.append(silent)

        async def send(client: AsyncClient) -> None:
            with pytest.raises(OutcomeUnknown, match="closed before") as caught:
                await client.send("orders", b"x")
            told.append(caught.value.text)

        other = AsyncClient(cluster.nodes["n1"].address, timeout=60.0)
        async with anyio.create_task_group() as group, other:
            group.start_soon(send, other)
            assert await anyio.to_thread.run_sync(arrived_.wait, 60)

    run(body)
    assert told


def test_a_caller_may_take_its_time(
    run: Callable[[Body], None],
    cluster: FakeCluster,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that goes while the caller is busy is replaced, as in the blocking client."""
    monkeypatch.setattr("twinlog.consumer.core.ANSWER_RECORDS", 2)

    async def body(client: AsyncClient) -> None:
        for number in range(8):
            await client.send("orders", b"%d" % number, queue=0)
        cluster.nodes["n2"].faults.append(dropping(Type.READ, 2))
        found: list[int] = []
        async for message in client.read("orders", queue=0, read_from="slave"):
            found.append(int(message.body))
            if len(found) == 2:
                clock.jump(3600.0)
        assert found == list(range(8))

    run(body)


def test_a_reader_lives_through_lost_nodes(
    run: Callable[[Body], None],
    cluster: FakeCluster,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Connections of a reader break, a node is gone: it goes on elsewhere where it was."""
    count = [0]

    def fault(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.READ:
            count[0] += 1
            if count[0] in (2, 3):
                raise Drop
        return False

    for node in cluster.nodes.values():
        node.faults.append(fault)

    async def body(client: AsyncClient) -> None:
        for number in range(20):
            await client.send("orders", b"%02d" % number, queue=number % 4)
        cluster.nodes["n2"].close()
        found = [m.body async for m in client.read("orders", read_from="slave")]
        assert sorted(found) == [b"%02d" % number for number in range(20)]
        clock.jumps = True
        monkeypatch.setattr("twinlog.session.session.BACKOFF_MAX", 10.0)
        with pytest.raises(UsageError, match="there is no node n9"):
            await anext(client.read("orders", read_from="n9", timeout=60.0))
        with pytest.raises(OffsetBeyond):
            await client.get("orders/0@99")

    run(body)


def test_full_waits_and_flush_has_an_end(run: Callable[[Body], None], cluster: FakeCluster) -> None:
    """A sender waits while too much is unanswered; a flush gives up when it was told to."""
    node, kept = cluster.nodes["n1"], threading.Event()

    def silent(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND:
            return False
        node.kept.append(arrived)
        kept.set()
        return True

    async def body(client: AsyncClient) -> None:
        node.faults.append(silent)
        async with client.producer("orders", batch=1, window=1) as producer:
            taken: list[Section] = []

            async def fill() -> None:
                for _ in range(5):
                    taken.append(await producer.send(b"x", queue=0))

            async with anyio.create_task_group() as group:
                group.start_soon(fill)
                assert await anyio.to_thread.run_sync(kept.wait, 60)
                await anyio.wait_all_tasks_blocked()
                assert 3 <= len(taken) < 5
                group.cancel_scope.cancel()
            with pytest.raises(Unavailable):
                await producer.flush(0.05)
            node.faults.clear()
            for each in node.kept:
                each.serve()
        with pytest.raises(UsageError):
            await producer.send(b"late")
        assert producer.statistics().acknowledged == sum(map(len, cluster.bodies())) == len(taken)

    run(body)
