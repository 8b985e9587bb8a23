"""Topics that are altered while they are used, by the documented commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trio

from tests.fixtures.processes import Processes
from twinlog.client.aio import AsyncClient
from twinlog.client.blocking import Client
from twinlog.errors import QuotaReached, TopicClosed, UsageError

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


class Shell:
    """Calls twinlog about one cluster."""

    def __init__(self, processes: Processes) -> None:
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._command = [sys.executable, "-m", "twinlog", "-c", str(processes.path), "-o", "json"]

    def run(self, words: str, *, expect: int = 0) -> dict[str, object]:
        """Call it; the exit code must be the one expected. Returns its document."""
        done = subprocess.run(
            [*self._command, *words.split()], env=self._environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120.0, check=False,
        )  # fmt: skip
        assert done.returncode == expect, f"{words}: {done.stdout}\n{done.stderr}"
        return json.loads(done.stdout) if done.stdout else {}


class Follower(threading.Thread):
    """Reads a topic for ever, all of its queues."""

    def __init__(self, addresses: list[str]) -> None:
        super().__init__(daemon=True)
        self.queues: set[int] = set()
        self._addresses = addresses
        self.start()

    def run(self) -> None:
        """Read until the topic may not be read."""
        with Client(self._addresses) as client, suppress(TopicClosed):
            for message in client.read("orders", "start:", follow=True):
                self.queues.add(message.queue)


@pytest.fixture
def addresses(processes: Processes) -> list[str]:
    """Those of all nodes."""
    return ["{}:{}".format(*processes.address(node.name)) for node in processes.config.nodes]


@pytest.fixture
def client(addresses: list[str]) -> Iterator[Client]:
    """A client of all nodes."""
    with Client(addresses) as client:
        yield client


def test_a_topic_is_altered_while_it_is_used(
    processes: Processes, client: Client, addresses: list[str]
) -> None:
    """Who reads, consumes or sends goes on without a restart."""
    shell = Shell(processes)
    client.create_topic("orders", 2)
    client.send("orders", b"first")
    follower = Follower(addresses)
    with client.consumer("billing", ["orders"]) as consumer:
        processes.until(lambda: bool(follower.queues), "the reader follows")
        assert consumer.pop() == []
        plan = shell.run("topic alter orders --queues 4 --dry-run")
        assert (plan["outcome"], plan["queues"]) == ("would be altered", 4)
        assert client.topics() == {"orders": 2}
        assert shell.run("topic alter orders --queues 4 --yes")["outcome"] == "altered"
        with pytest.raises(UsageError, match="never taken away"):
            client.alter_topic("orders", queues=3)
        with Client(addresses) as other:
            other.send("orders", b"new", queue=3)
        assert [(one.body, one.queue) for one in consumer.pop(wait="10 s")] == [(b"new", 3)]
        processes.until(lambda: 3 in follower.queues, "the reader has begun with the new queue")

    with client.producer("orders") as producer:
        producer.send(b"early", queue=1)
        producer.flush()
        assert client.alter_topic("orders", write_queues=1)
        producer.send(b"never", queue=1)
        with pytest.raises(TopicClosed) as closed:
            producer.flush()
        assert closed.value.code == "queue-closed"
        assert producer.send(b"late").queue == 0
    assert {client.send("orders", b"narrow").queue for _ in range(5)} == {0}
    assert len(list(client.read("orders", "start:", follow=False))) == 9

    assert client.alter_topic("orders", permission="r")
    with pytest.raises(TopicClosed, match="may not be written"):
        client.send("orders", b"never")
    assert client.alter_topic("orders", permission="w")
    client.send("orders", b"unread")
    follower.join()
    for node in [node.name for node in processes.config.nodes]:
        processes.until(lambda node=node: refuses(client, node), f"{node} refuses to read")
    with pytest.raises(TopicClosed), client.consumer("billing", ["orders"]) as consumer:
        consumer.pop(max=1)
    shell.run("topic alter orders --perm rw --records-per-second 5 --yes")
    quota(client, processes, addresses)

    master = processes.settled()
    processes.kill(master)
    processes.failover(next(one.name for one in processes.config.nodes if one.name != master))
    shown = shell.run("topic show orders")
    assert (shown["write_queues"], shown["permission"], shown["records_per_second"]) == (1, "rw", 5)
    assert client.alter_topic("orders", records_per_second=0, queues=4)
    assert {client.send("orders", b"wide", queue=2).queue for _ in range(9)} == {2}


def refuses(client: Client, node: str) -> bool:
    """Whether a node serves nothing of the topic."""
    try:
        list(client.read("orders", "start:", follow=False, read_from=node))
    except TopicClosed:
        return True
    return False


def quota(client: Client, processes: Processes, addresses: list[str]) -> None:
    """A client waits for the quota within its time, and says so when that is too short."""

    def much() -> None:
        for _ in range(50):
            client.send("orders", b"much", timeout=0.1)

    with pytest.raises(QuotaReached) as reached:
        much()
    assert 0 < reached.value.retry_after <= 10
    client.send("orders", b"in the end", timeout=20)

    async def other() -> None:
        async with AsyncClient(addresses) as client:
            assert not await client.alter_topic("orders", records_per_second=5)
            with pytest.raises(UsageError):
                await client.alter_topic("orders", permission="x")
            await client.send("orders", b"in the end, too", timeout=20)

    trio.run(other)
    counters = processes.status(processes.settled())["counters"]
    assert isinstance(counters, dict)
    assert counters["quota_refused"]
