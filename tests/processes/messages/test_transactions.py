"""Transactions over real processes: all of one, or none, over kills of the master."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from tests.fixtures.processes import Processes
from twinlog.client.aio import AsyncClient
from twinlog.client.blocking import Client
from twinlog.errors import RecordRefused, TransactionSettled, TwinlogError, UsageError
from twinlog.format.messages import Message
from twinlog.format.system_topics import HALF_TOPIC

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def client(processes: Processes) -> Iterator[Client]:
    """A client of a cluster with the topics ``orders`` and ``bills``."""
    names = [node.name for node in processes.config.nodes]
    with Client(["{}:{}".format(*processes.address(name)) for name in names]) as made:
        made.create_topic("orders", 4)
        made.create_topic("bills", 1)
        yield made


def read(client: Client, topic: str) -> list[Message]:
    """All messages of a topic."""
    return list(client.read(topic, "start:", follow=False))


def test_all_or_nothing_over_a_kill_of_the_master(processes: Processes, client: Client) -> None:
    """Both clients; halves of a reign are ended in the next one."""
    with client.transaction("shop") as tx:
        for number in range(8):
            tx.send("orders", b"%d" % number, key=f"k{number}", tag="new")
        tx.send("bills", b"bill", order_key="42")
        assert read(client, "orders") == read(client, "bills") == []
    found = read(client, "orders")
    assert {one.key for one in found} == {f"k{number}" for number in range(8)}
    assert len({one.queue for one in found}) == 4, "they take turns"
    assert [one.body for one in read(client, "bills")] == [b"bill"]
    tx.commit()
    with pytest.raises(TransactionSettled) as refused:
        tx.rollback()
    assert refused.value.outcome == "commit"

    left = client.transaction("shop")

    def leave() -> None:
        with left as tx:
            tx.send("orders", b"never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        leave()
    tx = left
    assert tx.messages.ended == "rollback"
    with pytest.raises(UsageError, match="has ended"):
        tx.send("orders", b"never")

    across = client.transaction("shop")
    across.send("orders", b"before")
    master = processes.settled()
    processes.kill(master)
    names = [node.name for node in processes.config.nodes]
    processes.failover(next(name for name in names if name != master))
    across.send("bills", b"after")
    across.commit()
    assert b"before" in [one.body for one in read(client, "orders")]
    assert [one.body for one in read(client, "bills")] == [b"bill", b"after"]
    assert len(read(client, HALF_TOPIC)) == 12
    processes.start(master)


def test_what_is_refused_and_the_other_client(processes: Processes, client: Client) -> None:
    with client.transaction("shop"):
        pass  # nothing was sent: there is nothing to end
    for group in ("", "a\x01b", "x" * 300):
        with pytest.raises(TwinlogError):
            client.transaction(group)
    tx = client.transaction("shop")
    for fields in ({"delay": 1}, {"delay_level": 1}):
        with pytest.raises(UsageError):
            tx.send("orders", b"x", **fields)  # type: ignore[arg-type]
    for fields in ({"light": ["%LMQ%a"]}, {"properties": {"PGROUP": "b"}}, {"queue": 9}):
        with pytest.raises(RecordRefused):
            tx.send("orders", b"x", **fields)  # type: ignore[arg-type]
    with pytest.raises(TwinlogError):
        tx.send("nowhere", b"x")
    tx.rollback()

    async def other() -> None:
        async with AsyncClient(["{}:{}".format(*processes.address("n1"))]) as client:
            async with client.transaction("shop") as tx:
                await tx.send("orders", b"a")
                await tx.send("bills", b"b")
            left = client.transaction("shop")

            async def leave() -> None:
                async with left as tx:
                    await tx.send("orders", b"never")
                    raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await leave()
            assert left.messages.ended == "rollback"

    trio.run(other)
    assert [one.body for one in read(client, "orders")] == [b"a"]
    assert [one.body for one in read(client, "bills")] == [b"b"]
