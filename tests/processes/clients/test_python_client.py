"""The Python clients against nodes that are real processes: kills, pauses, and both loops."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import anyio
import pytest

from tests.fixtures.processes import Processes
from twinlog import AsyncClient, Client
from twinlog.errors import (
    NotMaster,
    RecordRefused,
    TwinlogError,
    Unavailable,
    UnknownTopic,
    UsageError,
)
from twinlog.format.record import MAGIC_V2
from twinlog.producer.section import Section
from twinlog.wire.frames import Type

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """One cluster for the tests of this file: to start one costs more than all of them."""
    found = Processes(tmp_path_factory.mktemp("client"))
    try:
        found.start_all()
        yield found
    finally:
        found.close()


@pytest.fixture
def processes(shared: Processes) -> Processes:
    """All nodes running and in sync, whatever the test before did to them."""
    shared.start(*(n.name for n in shared.config.nodes if n.name not in shared.running))
    shared.settled(3)
    return shared


def endpoints(processes: Processes) -> list[str]:
    """The client addresses of all nodes."""
    names = [node.name for node in processes.config.nodes]
    return ["{}:{}".format(*processes.address(name)) for name in names]


@pytest.fixture
def client(processes: Processes) -> Iterator[Client]:
    """A client of the cluster."""
    with Client(endpoints(processes), timeout=120.0) as made:
        yield made


@pytest.fixture
def topic(client: Client, request: pytest.FixtureRequest) -> str:
    """A topic of four queues that only this test uses."""
    name = f"t{abs(hash(request.node.nodeid)) % 10**8}"
    assert client.create_topic(name, 4)
    return name


def others(processes: Processes, master: str) -> list[str]:
    return [node.name for node in processes.config.nodes if node.name != master]


def test_filters_on_a_node(processes: Processes, client: Client, topic: str) -> None:
    """Tags and properties, on master and slaves, ranges that match nothing, a follower."""
    with client.producer(topic) as producer:
        for number in range(6000):
            tag = ("Aa", "BB", "C")[number % 3]
            price = {"price": str(number)}
            producer.send(str(number).encode(), queue=1, tag=tag, properties=price)
    processes.settled(3)
    for node in ("master", "slave", "n2"):

        def read(node: str = node, **wanted: str) -> list[int]:
            return [int(m.body) for m in client.read(topic, read_from=node, **wanted)]

        assert read(where="price >= 5995 and TAGS <> 'C'") == [5995, 5997, 5998]
        assert read(where="price = 3", tag="Aa") == [3]
        assert read(where="price < 0") == []
        assert read(tag="BB || C", where="price between 10 and 13") == [10, 11, 13]
    for number in (1, 6000, 2, 6001):
        client.send(topic, str(number).encode(), queue=1, properties={"price": str(number)})
    begun = client.read(topic, "6000:", queue=1, where="price > 5999", follow=True)
    assert [int(next(begun).body) for _ in range(2)] == [6000, 6001]


def test_compressed_bodies_through_a_node(client: Client, topic: str) -> None:
    """Nodes take the flags, store what they got, and serve it to filters and readers alike."""
    body = b"".join(b"line %d of a large body\n" % number for number in range(2000))
    for kind in ("zlib", "lz4", "zstd"):
        client.send(topic, body, tag=kind, queue=0, compress=kind)
    client.send(topic, body, tag="none", queue=0)
    found = list(client.read(topic, where="TAGS <> 'none'"))
    assert [(m.tag, m.body) for m in found] == [(kind, body) for kind in ("zlib", "lz4", "zstd")]
    assert [m.record.sys_flag for m in found] == [0x301, 0x101, 0x201]
    assert client.get(found[0].address).body == body
    assert client.get(f"log@{found[1].log_offset}").body == body


def test_messages_are_found_by_key_on_every_node(
    processes: Processes, client: Client, topic: str
) -> None:
    """By key, by unique id, by message id; on master and slaves; after a failover too."""
    ids = {"UNIQ_KEY": "U-17"}
    with client.producer(topic) as producer:
        for number in range(3000):
            key = f"order-{number} shared-{number % 100}"
            more = ids if number == 17 else None
            producer.send(b"%d" % number, key=key, properties=more)
    processes.settled(3)

    def look(where: str) -> None:
        (one,) = client.find(topic, "order-1234", read_from=where)
        assert (one.body, one.key) == (b"1234", "order-1234 shared-34")
        shared = client.find(topic, "shared-7", most=100, read_from=where)
        assert [int(m.body) for m in shared] == list(range(2907, 0, -100))
        assert [m.body for m in client.find(topic, "U-17", unique=True, read_from=where)] == [b"17"]
        assert client.find(topic, "order", read_from=where).messages == ()
        assert client.find(topic, "order-1234", end=1000, read_from=where).messages == ()
        node = "master" if where == "slave" else where
        assert client.get(one.record.message_id, read_from=node).body == b"1234"

    for where in ("master", "slave", "any", "n1", "n2", "n3"):
        look(where)
    with pytest.raises(UnknownTopic):
        client.find("nowhere", "k")
    with pytest.raises(UsageError, match="was stored by"):
        client.get("0A00000100002A9F" + f"{client.send(topic, b'x').log_offset:016X}")
    master = processes.settled()
    processes.kill(master)
    processes.failover(others(processes, master)[0])
    look("master")


def test_light_queues_on_a_node(processes: Processes, client: Client, topic: str) -> None:
    """One message in many queues, read as messages of each, from master and slaves."""
    names = [f"%LMQ%{topic}-{letter}" for letter in "abc"]
    for number in range(9):
        client.send(topic, b"%d" % number, tag="xy"[number % 2], light=names[: number % 3 + 1])
    with client.producer(topic) as producer:
        producer.send(b"9", light=[names[2]])
    processes.settled(3)
    for node in ("master", "slave"):
        for name, wanted in zip(names, ("012345678", "124578", "2589"), strict=True):
            found = list(client.read(name, read_from=node))
            assert "".join(m.body.decode() for m in found) == wanted
            assert [m.address for m in found] == [f"{name}/0@{n}" for n in range(len(found))]
            assert found[-1].next == len(found)
            assert {m.record.topic for m in found} == {topic}
    assert [m.body for m in client.read(names[0], "-2:", tag="x")] == [b"8"]
    assert [m.body for m in client.read(names[1], "1:3", where="TAGS = 'x'")] == [b"2", b"4"]
    assert client.get(f"{names[2]}/0@1").body == b"5"
    assert list(client.read("%LMQ%unnamed")) == []
    with pytest.raises(RecordRefused, match="not a light queue"):
        client.send(topic, b"x", light=["orders"])
    with pytest.raises(UsageError, match="letters, digits"):
        client.send(topic, b"x", light=["%LMQ%a/b"])
    with pytest.raises(UsageError, match="is created when"):
        client.create_topic(names[0], 1)


def test_batch_topics_on_a_node(processes: Processes, client: Client, topic: str) -> None:
    """Neighbours are one record; every reader, filter, search and address sees messages."""
    name = f"{topic}-batch"
    assert client.create_topic(name, 2, batch=True)
    assert client.create_topic(name, 2, batch=True) is False
    with pytest.raises(UsageError, match="batch queues, not simple"):
        client.create_topic(name, 2)
    with client.producer(name, linger="1 h") as producer:
        for number in range(40):
            tag, key = ("x", "y")[number // 10 % 2], f"k{number} all"
            producer.send(
                str(number).encode(), queue=0, tag=tag, key=key, properties={"n": str(number)}
            )
    client.send(name, b"alone", queue=1)
    assert client.metadata().batched == {name}
    for where in ("master", "slave", "any"):
        found = list(client.read(name, read_from=where, queue=0))
        assert [int(m.body) for m in found] == [m.queue_offset for m in found] == [*range(40)]
    assert len({m.log_offset for m in found}) == 4
    assert [int(m.body) for m in client.read(name, "13:17", queue=0)] == [13, 14, 15, 16]
    assert [int(m.body) for m in client.read(name, "-3:", queue=0)] == [37, 38, 39]
    assert [int(m.body) for m in client.read(name, limit=12, queue=0)] == [*range(12)]
    assert [int(m.body) for m in client.read(name, queue=0, tag="y", limit=11)][-1] == 30
    assert [m.body for m in client.read(name, where="n BETWEEN 19 AND 21")] == [b"19", b"20", b"21"]
    assert client.get(f"{name}/0@25").body == b"25"
    assert client.offsets(name) == {0: (0, 40), 1: (0, 1)}
    for where in ("master", "n1", "n2", "n3"):
        assert [m.body for m in client.find(name, "k33", read_from=where)] == [b"33"]
    assert [int(m.body) for m in client.find(name, "all", most=15)] == [*range(39, 24, -1)]
    with pytest.raises(RecordRefused, match="batch topic"):
        client.send(name, b"x", light=["%LMQ%a"])


def test_the_longest_topic_on_a_node(processes: Processes, client: Client) -> None:
    """Names above 127 bytes are stored as records of version 2, as RocketMQ does."""
    name = "%RETRY%" + "r" * 248
    assert client.create_topic(name, 1)
    client.send(name, b"long", key="k")
    [message] = client.read(name, read_from="slave")
    assert (message.topic, message.body, message.record.magic) == (name, b"long", MAGIC_V2)
    assert [m.body for m in client.find(name, "k")] == [b"long"]
    for wrong in (name + "r", "o" * 128, "%DLQ%" + "d" * 123):
        with pytest.raises(TwinlogError, match="topic name"):
            client.create_topic(wrong, 1)


def test_everything_a_client_does(processes: Processes, client: Client, topic: str) -> None:
    """Send, read from each kind of node, get by each address, offsets, topics, errors."""
    assert client.create_topic(f"{topic}-all", 1)
    processes.until(
        lambda: set(client.send(f"{topic}-all", b"x").confirmed_by) == {"n1", "n2", "n3"},
        "a send that all confirm: who stands still for 3 s is not asked",
    )
    receipt = client.send(topic, b"one", key="k", tag="a", queue=2, properties={"p": "q"})
    client.send(topic, b"two", tag="b", queue=2)
    for where in ("master", "slave", "any", "n2", "n3"):
        found = [(m.body, m.queue_offset) for m in client.read(topic, read_from=where)]
        assert found == [(b"one", 0), (b"two", 1)], where
    assert [m.body for m in client.read(topic, tag="b", read_from="slave")] == [b"two"]
    assert [m.body for m in client.read(topic, "@-1h:")] == [b"one", b"two"]
    assert [m.body for m in client.read(topic, "@-2h:-1h")] == []
    for address in (receipt.address, f"log@{receipt.log_offset}"):
        message = client.get(address)
        assert (message.body, message.key, message.tag) == (b"one", "k", "a")
        assert message.properties["p"] == "q"
    assert client.get(message.record.message_id).body == b"one"
    assert client.offsets(topic)[2] == (0, 2)
    assert client.topics()[topic] == 4
    assert client.create_topic(topic, 4) is False
    for level in ("written", "flushed", "replicated", "confirmed"):
        assert client.send(topic, b"x", acknowledge=level).queue_offset >= 0
    with pytest.raises(UnknownTopic):
        client.send("nothing", b"x")
    master = processes.settled()
    fields = {"op": "create", "name": "other", "queues": 1}
    with pytest.raises(NotMaster) as caught:
        client.call(others(processes, master)[0], Type.TOPIC, fields)
    assert caught.value.leader == master


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_producer_lives_through_a_failover(
    processes: Processes, client: Client, topic: str, how: signal.Signals
) -> None:
    """The master dies, or freezes and keeps its connections: nothing lost, nothing twice."""
    master = processes.settled()
    successor = others(processes, master)[0]
    sections: list[Section] = []
    under_way, done = threading.Event(), threading.Event()

    def produce() -> None:
        with Client(endpoints(processes), timeout=120.0) as own:
            producer = own.producer(topic, batch="4 KiB")
            with producer:
                while not done.is_set():
                    sections.append(producer.send(b"%07d" % len(sections), order_key="a"))
                    if len(sections) == 3000:
                        under_way.set()
                    if len(sections) % 500 == 0:
                        producer.flush()

    thread = threading.Thread(target=produce)
    thread.start()
    try:
        assert under_way.wait(120)
        if how == signal.SIGKILL:
            processes.kill(master)
        else:
            processes.send(master, how)
        processes.failover(successor)
        before = len(sections)
        processes.until(lambda: len(sections) > before + 3000, "records after the failover")
    finally:
        done.set()
        thread.join(120)
        if how == signal.SIGSTOP:
            processes.send(master, signal.SIGCONT)
            processes.settled(3)  # until it hears of its successor it answers for its own time
    assert all(section.stored for section in sections)
    found = [message.body for message in client.read(topic, read_from="slave")]
    assert found == [b"%07d" % number for number in range(len(sections))]


def test_nobody_left(processes: Processes, client: Client, topic: str) -> None:
    """With every node gone a send is not stored, and says so in time; it works again after."""
    client.send(topic, b"one", queue=0)
    processes.kill("n1", "n2", "n3")
    with pytest.raises(Unavailable):
        client.send(topic, b"two", queue=0, timeout=0.5)
    processes.start("n1", "n2", "n3")
    processes.settled()
    assert client.send(topic, b"three", queue=0).queue_offset == 1


def test_a_forked_child_opens_its_own_connections(
    processes: Processes, client: Client, topic: str
) -> None:
    """Parent and child use one client object after a fork; neither disturbs the other."""
    client.send(topic, b"parent", queue=0)
    child = os.fork()
    if child == 0:
        try:
            client.send(topic, b"child", queue=1)
            os._exit(0)
        except BaseException:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    client.send(topic, b"parent again", queue=0)
    found = {m.body: m.address for m in client.read(topic)}
    assert found == {
        b"parent": f"{topic}/0@0",
        b"parent again": f"{topic}/0@1",
        b"child": f"{topic}/1@0",
    }


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_awaiting_client(processes: Processes, topic: str, backend: str) -> None:
    """Topic, single sends, a producer, a reader and a follower on both loops."""

    async def main() -> None:
        with anyio.fail_after(120):
            async with AsyncClient(endpoints(processes), timeout=120.0) as client:
                assert await client.create_topic(topic, 4) is False
                receipt = await client.send(topic, b"first", queue=0)
                async with client.producer(topic, linger="1 ms") as producer:
                    for number in range(20_000):
                        await producer.send(b"%05d" % number, queue=1)
                found = [m.body async for m in client.read(topic, queue=1, read_from="slave")]
                assert found == [b"%05d" % number for number in range(20_000)]
                assert (await client.get(receipt.address)).body == b"first"
                async with client.follow(topic, "-2:", queue=1) as messages:
                    assert (await anext(messages)).body == b"19998"
                    assert (await anext(messages)).body == b"19999"
                    await client.send(topic, b"last", queue=1)
                    assert (await anext(messages)).body == b"last"

    anyio.run(main, backend=backend)


def test_followers_and_awaiting_producers_live_through_a_failover(
    processes: Processes, client: Client, topic: str
) -> None:
    """Everything that was sent is followed once and in order, from every kind of node."""
    count = 4000
    found: dict[str, list[bytes]] = {"any": [], "slave": [], "master": []}

    def follow(where: str) -> None:
        with Client(endpoints(processes), timeout=120.0) as own:
            messages = own.read(topic, follow=True, read_from=where, limit=count)
            found[where].extend(message.body for message in messages)

    async def produce() -> None:
        async with (
            AsyncClient(endpoints(processes), timeout=120.0) as own,
            own.producer(topic, batch="2 KiB") as producer,
        ):
            for number in range(count):
                await producer.send(b"%05d" % number, order_key="a")
                if number % 100 == 99:
                    await producer.flush()
                if number == count // 2:
                    half.set()

    half = threading.Event()
    threads = [threading.Thread(target=follow, args=(where,)) for where in found]
    threads.append(threading.Thread(target=lambda: anyio.run(produce)))
    for thread in threads:
        thread.start()
    assert half.wait(120)
    master = processes.settled()
    processes.kill(master)
    processes.failover(others(processes, master)[0])
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    wanted = [b"%05d" % number for number in range(count)]
    assert all(bodies == wanted for bodies in found.values()), {k: len(v) for k, v in found.items()}
