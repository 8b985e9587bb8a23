"""One-way sends: nobody waits, everything is counted, and `flush` says what became of it."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import anyio
import anyio.lowlevel
import pytest

from tests.fakes.node import Arrived, Drop, FakeCluster, Keep
from twinlog import AsyncClient, Client, OutcomeUnknown, Receipt, TwinlogError, Unavailable
from twinlog.errors import RecordRefused, UnknownTopic
from twinlog.wire.frames import Type


def stored(cluster: FakeCluster) -> list[bytes]:
    """All bodies, sorted."""
    return sorted(body for bodies in cluster.bodies() for body in bodies)


def keeping(arrived: Arrived) -> bool:
    """Leave every append without an answer."""
    if arrived.frame.type == Type.APPEND:
        raise Keep
    return False


def refusing(arrived: Arrived) -> bool:
    """Refuse every append for good."""
    if arrived.frame.type != Type.APPEND:
        return False
    arrived.refuse("record", "no such record is taken")
    return True


def test_messages_arrive_and_flush_is_content(client: Client, cluster: FakeCluster) -> None:
    """All are stored once, with what was said of them; the acknowledgement is ``written``."""
    asked: list[object] = []

    def look(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND:
            asked.append(arrived.frame.fields["ack"])
        return False

    cluster.nodes["n1"].faults.append(look)
    for number in range(50):
        assert client.send_one_way("orders", b"%02d" % number, key=str(number)) is None
    client.flush()
    assert stored(cluster) == [b"%02d" % number for number in range(50)]
    assert set(asked) == {"written"}
    client.flush()  # nothing since


def test_nobody_waits_for_an_answer(client: Client, cluster: FakeCluster) -> None:
    """No answer comes at all: sends return, `flush` says how many are not answered."""
    cluster.nodes["n1"].faults.append(keeping)
    for _ in range(3):
        client.send_one_way("orders", b"x")
    with pytest.raises(OutcomeUnknown) as caught:
        client.flush(timeout=0.01)
    assert caught.value.facts["left"] == caught.value.facts["taken"] == 3
    assert caught.value.text == "of 3 one-way messages 3 are not answered yet"
    cluster.nodes["n1"].faults.clear()
    with cluster.lock:
        for each in cluster.nodes["n1"].kept:
            cluster.nodes["n1"].serve(each)
    client.flush()
    assert stored(cluster) == [b"x"] * 3


def test_what_is_unanswered_has_a_bound(
    client: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond 1 MiB messages are counted and not sent; their call-backs say so."""
    monkeypatch.setattr("twinlog.client.one_way.CLOSE_SECONDS", 0.05)
    cluster.nodes["n1"].faults.append(keeping)
    told: list[Receipt | TwinlogError] = []
    for _ in range(40):
        client.send_one_way("orders", bytes(60_000), on_result=told.append)
    assert 10 < len(told) < 25
    assert {error.code for error in told if isinstance(error, TwinlogError)} == {"busy"}
    with pytest.raises(OutcomeUnknown, match=f"{len(told)} are not stored"):
        client.flush(timeout=0.01)
    dropped = len(told)
    with pytest.raises(OutcomeUnknown):
        client.close()
    assert len(told) == 40, "each call-back is called once, at the latest when it is closed"
    assert all(isinstance(error, OutcomeUnknown | Unavailable) for error in told[dropped:])


def test_a_call_back_that_sends_again_what_was_dropped(
    client: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is told once for each attempt, and what it raises is no error of the sender."""
    monkeypatch.setattr("twinlog.client.one_way.CLOSE_SECONDS", 0.05)
    cluster.nodes["n1"].faults.append(keeping)
    told: list[Receipt | TwinlogError] = []

    def again(result: Receipt | TwinlogError) -> None:
        told.append(result)
        client.send_one_way("orders", bytes(60_000), on_result=again)
        raise ValueError("a mistake of its own")

    for _ in range(20):
        client.send_one_way("orders", bytes(60_000), on_result=again)
    assert 1 <= len(told) < 10
    with pytest.raises(OutcomeUnknown):
        client.close()


def test_refusals_are_counted_and_told_at_the_end(cluster: FakeCluster) -> None:
    """The report has the number, and the first reason; an error of the block goes first."""
    cluster.nodes["n1"].faults.append(refusing)
    address = cluster.nodes["n1"].address

    def block(error: Exception | None) -> None:
        with Client(address, timeout=60.0) as client:
            client.send_one_way("orders", b"x")
            client.send_one_way("orders", b"y")
            if error is not None:
                raise error

    with pytest.raises(Unavailable) as caught:
        block(None)
    assert caught.value.facts["refused"] == 2
    assert caught.value.text.endswith("2 are not stored: no such record is taken")
    with pytest.raises(ZeroDivisionError):
        block(ZeroDivisionError())


def test_a_lost_connection_is_made_good(client: Client, cluster: FakeCluster) -> None:
    """What was under way is sent again, and stored once."""
    dropped = threading.Event()

    def drop(arrived: Arrived) -> bool:
        if arrived.frame.type != Type.APPEND or dropped.is_set():
            return False
        dropped.set()
        raise Drop

    cluster.nodes["n1"].faults.append(drop)
    for number in range(20):
        client.send_one_way("orders", b"%02d" % number)
    client.flush()
    assert dropped.is_set()
    assert stored(cluster) == [b"%02d" % number for number in range(20)]


def test_what_can_never_be_stored_is_refused_at_once(client: Client, cluster: FakeCluster) -> None:
    """As with `send`."""
    with pytest.raises(RecordRefused):
        client.send_one_way("orders", b"x", key="a\x01b")
    with pytest.raises(UnknownTopic):
        client.send_one_way("nothing", b"x")
    client.flush()
    assert stored(cluster) == []


def test_threads_share_a_client(client: Client, cluster: FakeCluster) -> None:
    """One-way messages of many threads, while another one flushes."""

    def work(thread: int) -> None:
        for number in range(30):
            client.send_one_way("orders", b"%d.%02d" % (thread, number))
            if thread == 0 and number % 10 == 0:
                client.flush()

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, thread) for thread in range(4)]:
            done.result(60)
    client.flush()
    assert stored(cluster) == [b"%d.%02d" % (t, n) for t in range(4) for n in range(30)]


def test_topics_beyond_the_bound_take_turns(
    client: Client, cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The least recently used one is closed once it is idle; none of its messages is lost."""
    monkeypatch.setattr("twinlog.producer.single_sends.SENDERS_MAX", 1)
    cluster.topics.update({"t1": 1, "t2": 1})
    client.send_one_way("t1", b"1")
    client.flush()
    client.send_one_way("t2", b"2")
    client.flush()
    client.send_one_way("t1", b"3")
    client.flush()
    assert cluster.bodies("t1") == [[b"1", b"3"]] and cluster.bodies("t2") == [[b"2"]]


def test_wait_false_waits_for_written(client: Client, cluster: FakeCluster) -> None:
    """RocketMQ's property: the answer comes once it is written; the property is stored."""
    asked: list[object] = []

    def look(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.APPEND:
            asked.append(arrived.frame.fields["ack"])
        return False

    cluster.nodes["n1"].faults.append(look)
    client.send("orders", b"x", properties={"WAIT": "false"})
    client.send("orders", b"y", properties={"WAIT": "true"})
    assert asked == ["written", "confirmed"]
    found = {message.body: message.properties["WAIT"] for message in client.read("orders")}
    assert found == {b"x": "false", b"y": "true"}


Body = Callable[[AsyncClient], Awaitable[None]]


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest, cluster: FakeCluster) -> Callable[[Body], None]:
    """Run a body with an awaiting client, on both loops in turn."""

    async def main(body: Body) -> None:
        with anyio.fail_after(60):
            async with AsyncClient(cluster.nodes["n1"].address, timeout=60.0) as client:
                await body(client)

    return lambda body: anyio.run(main, body, backend=request.param)


def test_awaiting_messages_arrive(run: Callable[[Body], None], cluster: FakeCluster) -> None:
    """Also those that nobody flushed: the end of the client waits for them."""
    told: list[Receipt | TwinlogError] = []

    async def body(client: AsyncClient) -> None:
        for number in range(20):
            await client.send_one_way("orders", b"%02d" % number, on_result=told.append)
        await client.flush()
        assert len(told) == 20
        await client.send_one_way("orders", b"20")
        await client.send("orders", b"21", properties={"WAIT": "false"})

    run(body)
    assert stored(cluster) == [b"%02d" % number for number in range(22)]
    assert all(isinstance(result, Receipt) for result in told)


def test_awaiting_reports(run: Callable[[Body], None], cluster: FakeCluster) -> None:
    """What is refused, what is dropped, what has no answer."""
    cluster.nodes["n1"].faults.append(refusing)

    async def body(client: AsyncClient) -> None:
        await client.send_one_way("orders", b"x")
        with pytest.raises(Unavailable, match="of 1 one-way messages 1 is not stored"):
            await client.flush()
        cluster.nodes["n1"].faults[:] = [keeping]
        told: list[Receipt | TwinlogError] = []
        for _ in range(40):
            await client.send_one_way("orders", bytes(60_000), on_result=told.append)
        assert 10 < len(told) < 25
        with pytest.raises(OutcomeUnknown, match=f"{len(told)} are not stored"):
            await client.flush(timeout=0.01)
        cluster.nodes["n1"].faults.clear()
        with cluster.lock:
            for each in cluster.nodes["n1"].kept:
                cluster.nodes["n1"].serve(each)
        await client.flush()

    run(body)


def test_a_flush_that_is_cancelled_forgets_nothing(
    run: Callable[[Body], None], cluster: FakeCluster
) -> None:
    """What it had counted is in the next report."""
    cluster.topics["later"] = 1
    cluster.nodes["n1"].faults.append(refusing)

    async def body(client: AsyncClient) -> None:
        await client.send_one_way("orders", b"x")
        await client.send_one_way("orders", b"y")
        with pytest.raises(Unavailable):
            await client.flush()
        await client.send_one_way("orders", b"z")
        await client.send_one_way("later", b"z")
        while not all(one.idle for one in client._one_way._producers):
            await anyio.lowlevel.checkpoint()
        cluster.nodes["n1"].faults[:] = [keeping]
        await client.send_one_way("later", b"kept")
        with anyio.move_on_after(0.05) as scope:
            await client.flush()
        assert scope.cancelled_caught
        with pytest.raises(OutcomeUnknown, match="of 3 one-way messages 2 are not stored, 1 is"):
            await client.flush(timeout=0.01)
        cluster.nodes["n1"].faults.clear()
        with cluster.lock:
            for each in cluster.nodes["n1"].kept:
                cluster.nodes["n1"].serve(each)
        await client.flush()

    run(body)
