"""Transactions over real processes: all of one, or none, over kills of the master."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import trio

from tests.fixtures.processes import Processes
from twinlog.client.aio import AsyncClient
from twinlog.client.blocking import Client
from twinlog.client.checks import Check
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


def test_other_producers_answer_for_one_that_died(processes: Processes, client: Client) -> None:
    """Whole transactions, over a kill of the master, with both clients."""
    begun = {
        name: client.transaction("shop", check_after=0) for name in ("done", "undone", "later")
    }
    for name, tx in begun.items():
        tx.send("orders", name.encode(), key=name)
        tx.send("bills", name.encode(), key=name)
    asked: list[tuple[str | None, int, list[str], int]] = []
    says = {"done": "commit", "undone": "rollback", "later": None}

    def decide(check: Check) -> str | None:
        topics = [one.topic for one in check.messages]
        asked.append((check.key, len(check.messages), topics, check.checks))
        return says[str(check.key)]

    assert client.answer_checks("other", decide, duration=0) == 0
    assert client.answer_checks("shop", decide, duration=0) == 2
    assert sorted(asked) == [(key, 2, ["orders", "bills"], 1) for key in sorted(says)]  # type: ignore[type-var]
    assert [one.body for topic in ("orders", "bills") for one in read(client, topic)] == [
        b"done", b"done",
    ]  # fmt: skip
    with pytest.raises(TransactionSettled):
        begun["undone"].commit()
    master = processes.settled()
    processes.kill(master)
    names = [node.name for node in processes.config.nodes]
    processes.failover(next(name for name in names if name != master))
    begun["later"].send("orders", b"more", key="more")
    left = client.transaction("shop", check_after=0)
    left.send("orders", b"left", key="left")

    async def other() -> int:
        async def decide(check: Check) -> str | None:
            await trio.lowlevel.checkpoint()
            return "commit" if check.key == "left" else None

        addresses = ["{}:{}".format(*processes.address(name)) for name in names]
        async with AsyncClient(addresses) as client:
            return await client.answer_checks("shop", decide, duration=0.5)

    assert trio.run(other) == 1
    with pytest.raises(UsageError, match="an answer is"):
        client.answer_checks("shop", lambda check: "maybe", duration=30)
    begun["later"].commit()
    assert sorted(one.body for one in read(client, "orders")) == [
        b"done", b"later", b"left", b"more",
    ]  # fmt: skip
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
