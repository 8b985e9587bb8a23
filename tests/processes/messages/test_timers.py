"""Messages that wait for a time, over real processes: each comes once, none early."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial

import pytest
import trio

from tests.fixtures.processes import Processes
from twinlog.client.aio import AsyncClient
from twinlog.client.blocking import Client
from twinlog.errors import RecordRefused, TooLate, UsageError
from twinlog.format.messages import Message
from twinlog.format.system_topics import TIMER_TOPIC
from twinlog.format.waiting.timers import due_of
from twinlog.wire.frames import Type

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def client(processes: Processes) -> Iterator[Client]:
    """A client of a cluster with the topics ``orders`` and ``refunds``."""
    names = [node.name for node in processes.config.nodes]
    with Client(["{}:{}".format(*processes.address(name)) for name in names]) as made:
        made.create_topic("orders", 4)
        made.create_topic("refunds", 1)
        yield made


def read(client: Client, topic: str) -> list[Message]:
    """All messages of a topic."""
    return list(client.read(topic, "start:", follow=False))


def dues(client: Client) -> dict[str | None, int]:
    """When each message that was sent was due, by its key."""
    waited = read(client, TIMER_TOPIC)
    return {one.key: due_of(one.properties, one.store_timestamp) or 0 for one in waited}


def delivered(client: Client, least: int) -> bool:
    """Whether more messages than that were delivered to ``orders``."""
    return len(read(client, "orders")) > least


ASKED: dict[str, object] = {"what": "timers", "first": 0, "limit": 100}


def told(client: Client, node: str, waiting: int) -> bool:
    """Whether a node, master or slave, tells of that number of messages, and how old that is."""
    answer = client.call(node, Type.WAITING, ASKED).fields
    counts = client.call(node, Type.WAITING, {**ASKED, "what": "times", "by": "hour"}).fields
    messages, hours = answer["messages"], counts["counts"]
    assert isinstance(messages, list) and isinstance(hours, list)
    assert answer["node"] == node and isinstance(answer["age_ms"], int)
    assert answer["waiting"] == len(messages)
    return len(messages) == sum(count for _, count in hours) == waiting


def test_each_comes_once_over_two_kills_of_the_master(processes: Processes, client: Client) -> None:
    """Times spread over the kills; a copy and the row that says so are one batch."""
    wanted: Counter[str] = Counter()

    def send(number: int) -> None:
        with client.producer("orders") as producer:
            for one in range(100):
                key = f"{number}-{one}"
                wanted[key] += 1
                producer.send(key.encode(), key=key, delay=0.2 + one * 0.05)

    names = [node.name for node in processes.config.nodes]
    send(0)
    for number in (1, 2):
        master = processes.settled()
        send(number)
        processes.until(partial(delivered, client, 50 * number), "some are delivered")
        processes.kill(master)
        processes.failover(next(name for name in names if name != master))
        send(number + 2)
        processes.start(master)
    processes.settled(in_sync=len(names))
    processes.until(
        lambda: len(read(client, "orders")) >= wanted.total(), "all are delivered", seconds=60.0
    )
    found = read(client, "orders")
    assert Counter(one.key for one in found) == wanted, "each once"
    due = dues(client)
    assert all(one.store_timestamp >= due[one.key] for one in found), "none early"
    assert {one.queue for one in found} == {0, 1, 2, 3}, "they take turns"


def test_one_message_what_is_refused_and_what_is_taken_back(
    processes: Processes, client: Client
) -> None:
    """Both clients; times as dates, text and numbers."""
    client.send("orders", b"a", key="a", delay="300 ms")
    client.send("orders", b"b", key="b", at=datetime.now(UTC) + timedelta(seconds=0.3))
    client.send("orders", b"c", key="c", at="2020-01-01T00:00Z")
    late = client.send("orders", b"d", key="d", delay=0)
    never = client.send("orders", b"never", key="never", delay="1 s")
    client.cancel(never)
    client.cancel(never)
    for fields in (
        {"delay": -1}, {"delay": "soon"}, {"delay": "366 d"}, {"at": "never"}, {"delay": True},
        {"delay": 1, "at": "2030-01-01"}, {"delay": 1, "delay_level": 1}, {"at": "2200-01-01"},
    ):  # fmt: skip
        with pytest.raises(UsageError):
            client.send("orders", b"x", **fields)  # type: ignore[arg-type]
    for fields in ({"light": ["%LMQ%a"]}, {"properties": {"TIMER_OUT_MS": "3"}}, {"queue": 9}):
        with pytest.raises(RecordRefused):
            client.send("orders", b"x", delay=1, **fields)  # type: ignore[arg-type]
    processes.until(lambda: len(read(client, "orders")) == 4, "they are delivered")
    with pytest.raises(TooLate):
        client.cancel(late)

    async def other() -> None:
        async with AsyncClient(["{}:{}".format(*processes.address("n1"))]) as client:
            sent = await client.send("refunds", b"never", delay=1)
            await client.send("refunds", b"y", delay=0.1)
            await client.cancel(sent.address)

    trio.run(other)
    processes.until(lambda: len(read(client, "refunds")) == 1, "refunds are delivered")
    ordinary = client.send("orders", b"now")
    with pytest.raises(UsageError, match="waits for no time"):
        client.cancel(ordinary)
    end = dues(client)["never"]
    processes.until(lambda: time.time() * 1000 > end + 200, "the time has passed")
    assert "never" not in {one.key for one in read(client, "orders")}
    assert all(one.store_timestamp >= dues(client)[one.key] for one in read(client, "orders")[:4])


def test_what_waits_is_known_after_a_restart_of_all(processes: Processes, client: Client) -> None:
    """From the snapshot and the log; a cancel holds, too."""
    for number in range(20):
        client.send("refunds", b"%d" % number, delay=6 + number * 0.01)
    never = client.send("refunds", b"never", delay=6)
    client.cancel(never)
    listed = client.send("orders", b"listed", delay=3_600)
    names = [node.name for node in processes.config.nodes]
    for name in names:
        processes.until(partial(told, client, name, 21), f"{name} tells of all")
    [last] = client.call("master", Type.WAITING, ASKED).fields["messages"][20:]  # type: ignore[index]
    assert (last["topic"], last["log_offset"]) == ("orders", listed.log_offset)  # type: ignore[index]
    client.cancel(f"log@{last['at']}")  # type: ignore[index]
    for name in names:
        processes.until(partial(told, client, name, 20), f"{name} knows that one is taken back")
        processes.stop(name)
    for name in names:
        processes.start(name)
    processes.settled(in_sync=len(names))
    processes.until(lambda: len(read(client, "refunds")) >= 20, "all come", seconds=30.0)
    assert [one.body for one in read(client, "refunds")] == [b"%d" % one for one in range(20)]
