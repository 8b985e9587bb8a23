"""Delayed messages over real processes: each one comes once, none early, whatever dies between."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
import trio

from tests.fixtures.processes import Processes
from twinlog.client.aio import AsyncClient
from twinlog.client.blocking import Client
from twinlog.errors import RecordRefused, UsageError
from twinlog.format.messages import Message
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.wire.frames import Type

pytestmark = [pytest.mark.processes, pytest.mark.slow]

DELAYS_MS = {1: 1_000, 2: 5_000, 3: 10_000}
PER_LEVEL = 60


@pytest.fixture
def client(processes: Processes) -> Iterator[Client]:
    """A client of a cluster with the topics ``orders`` and ``refunds``."""
    names = [node.name for node in processes.config.nodes]
    with Client(["{}:{}".format(*processes.address(name)) for name in names]) as made:
        made.create_topic("orders", 4)
        made.create_topic("refunds", 1)
        yield made


def delivered(client: Client, number: int) -> bool:
    """Whether more than that number of orders are there."""
    return len(read(client, "orders")) > number


def read(client: Client, topic: str) -> list[Message]:
    """All messages of a topic."""
    return list(client.read(topic, "start:", follow=False))


def test_delayed_messages_outlive_the_master(processes: Processes, client: Client) -> None:
    """Half of them are due while the master is dead; its successor goes on where the log says.

    kill -9 in the middle of deliveries, twice: a copy and the row that says so are one batch.
    """
    wanted: Counter[str] = Counter()

    def send(number: int) -> None:
        with client.producer("orders") as producer:
            for level in DELAYS_MS:
                for one in range(PER_LEVEL):
                    key = f"{number}-{level}-{one}"
                    wanted[key] += 1
                    producer.send(key.encode(), key=key, delay_level=level)

    names = [node.name for node in processes.config.nodes]
    send(0)
    for number in (1, 2):
        master = processes.settled()
        send(number)
        some = PER_LEVEL * (number - 1)
        processes.until(partial(delivered, client, some), "some are delivered")
        processes.kill(master)
        other = next(name for name in names if name != master)
        processes.failover(other)
        send(number + 2)
        processes.start(master)
    processes.settled(in_sync=len(names))
    processes.until(
        lambda: len(read(client, "orders")) >= wanted.total(), "all are delivered", seconds=60.0
    )
    found = read(client, "orders")
    assert Counter(one.key for one in found) == wanted, "each once"
    waited = {one.key: one for level in DELAYS_MS for one in waiting(client, level)}
    for one in found:
        level = int(one.properties["DELAY"])
        assert one.store_timestamp >= waited[one.key].store_timestamp + DELAYS_MS[level], "early"
        assert one.properties["REAL_TOPIC"] == "orders"
    queues = {one.queue for one in found}
    assert queues == {0, 1, 2, 3}, "they take turns"


def waiting(client: Client, level: int) -> Iterator[Message]:
    """What was stored for a level."""
    for one in client.read(DELAY_TOPIC, "start:", follow=False):
        if one.queue == level - 1:
            yield one


def test_one_message_and_what_is_refused(processes: Processes, client: Client) -> None:
    """Both clients; topics share a level's queue; the receipt says where it waits."""
    began = time.time_ns() // 1_000_000
    receipts = [client.send(topic, b"x", delay_level=1) for topic in ("orders", "refunds") * 3]
    assert {(one.topic, one.queue) for one in receipts} == {(DELAY_TOPIC, 0)}
    assert [one.queue_offset for one in receipts] == list(range(6))
    for bad in (0, 19, True, "3"):
        with pytest.raises(UsageError):
            client.send("orders", b"x", delay_level=bad)  # type: ignore[arg-type]
    for fields in ({"light": ["%LMQ%a"]}, {"properties": {"DELAY": "3"}}, {"queue": 9}):
        with pytest.raises(RecordRefused):
            client.send("orders", b"x", delay_level=1, **fields)  # type: ignore[arg-type]

    async def other() -> None:
        async with AsyncClient(["{}:{}".format(*processes.address("n1"))]) as client:
            await client.send("orders", b"y", delay_level=1)
            await client.send("refunds", b"y", delay_level=1)

    trio.run(other)
    processes.until(lambda: len(read(client, "orders")) == 4, "orders are delivered")
    processes.until(lambda: len(read(client, "refunds")) == 4, "refunds are delivered")
    assert all(one.store_timestamp >= began + 1_000 for one in read(client, "orders"))


def test_a_consumer_gets_them_like_any_message(processes: Processes, client: Client) -> None:
    """And what it sends together with an acknowledgement may wait as well."""
    client.send("orders", b"first", delay_level=1)
    bodies: list[bytes] = []
    settings: dict[str, object] = {"start": "start"}
    create = {"op": "create", "name": "billing", "settings": settings}
    client.call("master", Type.GROUP, create)
    with client.consumer("billing", "orders") as consumer:
        for message in consumer:
            bodies.append(message.body)
            with consumer.together() as step:
                if len(bodies) == 1:
                    step.send("orders", b"second", delay_level=1)
                    step.send("refunds", b"other", delay_level=1)
                step.ack(message)
            if len(bodies) == 2:
                break
    assert bodies == [b"first", b"second"]
    processes.until(lambda: len(read(client, "refunds")) == 1, "the other one is delivered")
