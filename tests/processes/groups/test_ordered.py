"""Ordered groups: a queue's messages are handled one after the other, over a failover, too."""

from __future__ import annotations

import pytest
import trio

from tests.fixtures.cluster import Cluster
from tests.fixtures.group_worker import Worker, rows_of, settles
from tests.fixtures.wire_client import bodies, records
from twinlog import AsyncClient, Client, Delivery
from twinlog.errors import GroupDiffers, UsageError
from twinlog.wire.frames import Type
from twinlog.wire.groups import What

pytestmark = pytest.mark.processes


class Journal:
    """What members of a group handle, queue by queue; `begin` is the judge of the order."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}
        self.done: dict[int, set[int]] = {}
        self.failed = 0

    @property
    def count(self) -> int:
        """How many messages are done."""
        return sum(len(done) for done in self.done.values())

    def begin(self, message: Delivery) -> None:
        """A body begins: everything before its message is done, nothing of its queue is open."""
        queue, offset = message.queue, message.queue_offset
        assert queue not in self.open, f"two bodies in queue {queue}"
        assert self.done.get(queue, set()) >= set(range(offset)), f"{offset} came too early"
        self.open[queue] = offset

    def end(self, message: Delivery, *, done: bool) -> None:
        """It ends."""
        del self.open[message.queue]
        self.failed += not done
        if done:
            self.done.setdefault(message.queue, set()).add(message.queue_offset)


async def work(client: AsyncClient, journal: Journal, until: int) -> None:
    """Handle messages until this many are done in all; every ninth attempt fails."""
    attempts = 0
    async with client.consumer("audit", "orders", mode="ordered", batch=16) as consumer:
        while journal.count < until:
            for message in await consumer.pop(max=8, wait=0.2):
                journal.begin(message)
                await trio.lowlevel.checkpoint()
                attempts += 1
                journal.end(message, done=attempts % 9 != 0)
                if attempts % 9:
                    message.ack()
                else:
                    message.retry(after=0.02)
        await consumer.settle()


def endpoints(cluster: Cluster) -> list[str]:
    """Where clients find the nodes."""
    return ["{}:{}".format(*cluster.address(name)) for name in cluster.nodes]


async def test_order_holds_over_failures_members_and_a_failover(cluster: Cluster) -> None:
    """Three members, one that joins late and one that leaves early, and a master that dies."""
    journal, total = Journal(), 240
    async with AsyncClient(endpoints(cluster), timeout=60.0) as client:
        await client.create_topic("orders", 4)
        await client.call(
            "master", Type.GROUP,
            {"op": "create", "name": "audit", "settings": {"mode": "ordered", "start": "start"}},
        )  # fmt: skip
        for number in range(total):
            await client.send("orders", b"%d" % number, order_key=f"customer {number % 16}")
        with trio.fail_after(120):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, client, journal, total)
                nursery.start_soon(work, client, journal, total // 4)
                await cluster.until(lambda: journal.count > total // 6, "some are handled")
                nursery.start_soon(work, client, journal, total)
                master, heir = cluster.master or "", cluster.slaves[0]
                await cluster.kill(master)
                await cluster.failover(heir)
    assert journal.count == total
    assert journal.failed, "attempts failed on the way"


async def test_a_dead_member_costs_only_its_head_an_attempt(cluster: Cluster) -> None:
    """Its queue is another's once its leases have ended, from the message on that it was at."""
    async with cluster.client() as client, cluster.client() as other:
        await client.create("t", 1)
        await client.append(records("t", b"0", b"1", b"2", b"3"))
        dead, heir = Worker(client, "g"), Worker(other, "g")
        await dead.join("ordered")
        await heir.join("ordered", "heir")
        held = await dead.pop(3, invisible_ms=1000)
        assert bodies(held) == [b"0", b"1", b"2"]
        share, n, first = rows_of(held)[0][2:5]
        assert await dead.settle([share, n, What.ACK, first, first, 0]) == [""]
        assert bodies(await heir.pop()) == [], "the queue is another's, new messages included"
        got = await heir.pop(wait_ms=20_000)
        assert bodies(got) == [b"1", b"2", b"3"]
        assert [row[6] for row in rows_of(got)] == [2, 1, 1], "attempts"
        assert await dead.settle([share, n, What.ACK, 1, 2, 0]) == ["receipt-expired"]
        assert await heir.settle(*settles(got, What.ACK)) == ["", "", ""]


async def test_a_rejected_head_is_a_dead_letter_before_the_queue_goes_on(cluster: Cluster) -> None:
    """A parked member gets what comes next once the copy is in the log."""
    async with cluster.client() as client, cluster.client() as other:
        await client.create("t", 1)
        await client.append(records("t", b"0", b"1"))
        first, second = Worker(client, "g"), Worker(other, "g")
        await first.join("ordered")
        await second.join("ordered", "second")
        held = await first.pop(1)
        assert await first.settle(*settles(held, What.REJECT)) == [""]
        assert bodies(await second.pop(wait_ms=20_000)) == [b"1"]
        shown = await client.ask(Type.GROUP, {"op": "show", "name": "g"})
        assert shown.fields["group"]["queues"][0]["low"] == 1  # pyright: ignore
        await client.ask(Type.READ, {"topic": "%DLQ%g", "queue": 0, "offset": 0})


async def test_a_group_has_one_mode_while_it_has_members(cluster: Cluster) -> None:
    """Another one is refused with what it is; without members it may change."""

    def alter(client: Client) -> None:
        settings = {"mode": "ordered"}
        client.call("master", Type.GROUP, {"op": "alter", "name": "g", "settings": settings})

    def blocking() -> None:
        with Client(endpoints(cluster), timeout=30.0) as client:
            client.create_topic("t", 1)
            with client.consumer("g", "t") as member:
                assert member.pop() == []
                with pytest.raises(UsageError, match="has 1 member"):
                    alter(client)
            alter(client)
            for text in (b"0", b"1"):
                client.send("t", text)
            with pytest.raises(GroupDiffers, match="mode ordered"):
                next(iter(client.consume("t", "g")))
            with client.consumer("g", "t", mode="ordered") as member:
                held = next(member)
                with pytest.raises(UsageError, match="once the one before is settled"):
                    next(member)
                held.ack()
                assert next(member).body == b"1"

    await trio.to_thread.run_sync(blocking)
