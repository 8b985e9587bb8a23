"""Members of broadcast groups: each has all messages and a position of its own.

Real nodes, real sockets, real files; the blocking client in threads.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import pytest
import trio

from node.groups import positions
from tests.fixtures.cluster import Cluster
from tests.fixtures.group_worker import Worker, rows_of, show
from twinlog import AsyncClient, Client
from twinlog.errors import GroupDiffers, NotMember, UsageError
from twinlog.format.system_topics import SYSTEM_TOPIC_GROUP
from twinlog.wire.frames import Type

pytestmark = pytest.mark.processes


def endpoints(cluster: Cluster) -> str:
    """Where the running nodes take clients."""
    return ",".join("{}:{}".format(*cluster.address(name)) for name in cluster.nodes)


async def in_thread(cluster: Cluster, body: Callable[[Client], object]) -> object:
    """What a function does with a blocking client."""
    where = endpoints(cluster)

    def run() -> object:
        with Client(where, timeout=60.0) as client:
            return body(client)

    return await trio.to_thread.run_sync(run)


def prepare(client: Client) -> None:
    """A topic with six messages and a group that begins with the first of them."""
    client.create_topic("t", 2)
    for number in range(6):
        client.send(
            "t", str(number).encode(), queue=number % 2, tag="even" if number < 4 else "odd"
        )
    settings = {"mode": "broadcast", "start": "start"}
    client.call("master", Type.GROUP, {"op": "create", "name": "b", "settings": settings})


def read(client: Client, count: int, member: str = "anna") -> list[str]:
    """The next messages of a member, sorted; all of them are handled."""
    with client.consume("t", "b", mode="broadcast", member=member) as messages:
        found = sorted(message.body.decode() for message in islice(messages, count))
        # The position moves over a message when the next one is asked for.
        client.send("t", b"last", queue=0)
        assert next(messages).body == b"last"
        return found


async def test_each_member_reads_everything_and_goes_on_where_it_was(cluster: Cluster) -> None:
    """Over a failover too; a message that was at hand when the loop was left comes again."""
    await in_thread(cluster, prepare)
    six = [str(number) for number in range(6)]
    assert await in_thread(cluster, lambda client: read(client, 6)) == six
    assert await in_thread(cluster, lambda client: read(client, 7, "bert")) == [*six, "last"]
    master = await cluster.settled()
    await cluster.kill(master)
    await cluster.failover(cluster.slaves[0])
    await cluster.settled()
    assert await in_thread(cluster, lambda client: read(client, 2)) == ["last", "last"]

    async with (
        AsyncClient(endpoints(cluster), timeout=60.0) as client,
        client.consume("t", "b", mode="broadcast", member="carl") as messages,
    ):
        found = [(await anext(messages)).body for _ in range(9)]
        await messages.commit()
    assert sorted(found) == sorted([*(one.encode() for one in six), *[b"last"] * 3])


async def test_a_reader_goes_on_while_the_master_changes(cluster: Cluster) -> None:
    """The same member, the same loop: no message is missing, and the position is stored."""
    await in_thread(cluster, prepare)
    master = await cluster.settled()
    other = cluster.slaves[0]
    async with (
        AsyncClient(endpoints(cluster), timeout=60.0) as client,
        client.consume("t", "b", mode="broadcast", member="anna") as messages,
    ):
        found = [(await anext(messages)).body for _ in range(6)]
        await cluster.kill(master)
        await cluster.failover(other)
        await cluster.settled()
        await client.send("t", b"after", queue=1)
        assert (await anext(messages)).body == b"after"
        await messages.commit(60.0)
        await client.send("t", b"end", queue=1)
        assert (await anext(messages)).body == b"end"
    assert sorted(found) == [str(number).encode() for number in range(6)]

    def first(blocking: Client) -> bytes:
        with blocking.consume("t", "b", mode="broadcast", member="anna") as messages:
            return next(messages).body

    assert await in_thread(cluster, first) == b"end", "it was at hand when the loop was left"


async def test_a_reset_moves_every_member(cluster: Cluster) -> None:
    """One that is reading goes on there, and one that is away begins there."""
    await in_thread(cluster, prepare)

    def work(client: Client) -> None:
        with client.consume("t", "b", mode="broadcast", member="away") as away:
            next(away)
        with client.consume("t", "b", mode="broadcast", member="here") as here:
            first = sorted(message.body for message in islice(here, 6))
            here.commit()
            places = [["t", queue, 2] for queue in range(2)]
            order = {"op": "reset", "name": "b", "positions": places}
            assert client.call("master", Type.GROUP, order).fields["changed"] is True
            again = sorted(message.body for message in islice(here, 2))
            assert (first[4:], again) == ([b"4", b"5"], [b"4", b"5"])
        with client.consume("t", "b", mode="broadcast", member="away") as away:
            assert sorted(message.body for message in islice(away, 2)) == [b"4", b"5"]

    await in_thread(cluster, work)


async def test_two_processes_do_not_share_a_name(cluster: Cluster) -> None:
    """The first one is refused as soon as it says something; and what is no option is refused."""
    await in_thread(cluster, prepare)

    def work(client: Client) -> None:
        first = client.consume("t", "b", mode="broadcast", member="anna")
        next(first)
        with (
            Client(endpoints(cluster)) as other,
            other.consume("t", "b", mode="broadcast", member="anna") as second,
        ):
            next(second)
            with pytest.raises(NotMember, match="another process is member anna"):
                first.commit()
        first.close()
        with pytest.raises(UsageError, match="has a name"):
            client.consume("t", "b", mode="broadcast")
        with pytest.raises(UsageError, match="one topic"):
            client.consume(["t", "u"], "b", mode="broadcast", member="anna")
        with pytest.raises(GroupDiffers):
            next(client.consume("t", "b", member="anna"))

    await in_thread(cluster, work)


async def test_a_member_reads_with_the_filter_of_its_group(cluster: Cluster) -> None:
    """Its position moves over what the filter leaves out."""
    await in_thread(cluster, prepare)

    def work(client: Client) -> list[bytes]:
        with client.consume("t", "f", mode="broadcast", member="anna", tag="odd") as messages:
            messages.commit()
            client.send("t", b"x", tag="even", queue=0)
            client.send("t", b"y", tag="odd", queue=0)
            found = [next(messages).body]
            client.send("t", b"z", tag="odd", queue=1)
            return [*found, next(messages).body]

    assert await in_thread(cluster, work) == [b"y", b"z"]


async def test_many_positions_are_written_together(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 COMMITs most wait for others; every one is answered in its order, and kept."""
    monkeypatch.setattr(positions, "OFTEN_SECONDS", 100.0)  # however slow this machine is
    monkeypatch.setattr(positions, "JOIN_SECONDS", 1.0)
    await in_thread(cluster, prepare)
    await in_thread(cluster, lambda client: [client.send("t", b"", queue=0) for _ in range(210)])
    master = await cluster.settled()
    running = cluster.nodes[master].services
    assert running is not None
    await cluster.until(lambda: running.store.reads.dispatched == running.store.end)
    async with cluster.client(master) as wire:
        anna = Worker(wire, "b")
        joined = await anna.join(mode="broadcast", name="anna")
        ((_, _, share, at),) = [row for row in rows_of(joined) if row[1] == 0]
        records = running.store.reads.queue_range(SYSTEM_TOPIC_GROUP, 0)[1]
        for number in range(200):
            fields: dict[str, object] = {
                "group": "b", "member": anna.member, "generation": 0,
                "rows": [[share, at + number + 1]],
            }  # fmt: skip
            await wire.send(Type.COMMIT, fields)
            await trio.lowlevel.checkpoint()
        answers = [await wire.receive() for _ in range(200)]
        assert [rows_of(one)[0] for one in answers] == [["", at + n + 1] for n in range(200)]
        shown = await show(wire, "b")
        records = running.store.reads.queue_range(SYSTEM_TOPIC_GROUP, 0)[1] - records
    (queue,) = [one for one in shown["queues"] if one["share"] == share]
    assert queue["next"] == at + 200
    assert 0 < records < 100, "they were not joined"
