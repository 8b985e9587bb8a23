"""What a group did, asked afterwards: by clients and commands, of a slave, after a failover.

Real nodes, real sockets, real files, in one loop; commands and the blocking client in threads.
"""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
import trio

from cli.app import run
from cli.context import Context
from cli.options import split
from cli.render import Printer
from tests.fixtures.cluster import Cluster
from twinlog import AsyncClient, Client
from twinlog.errors import UnknownGroup
from twinlog.format.group_history import History, Step
from twinlog.spark.jobs.reports.group_topic import rows_told
from twinlog.spark.jobs.reports.tables import ReportSource, facts_of
from twinlog.wire.frames import Type

pytestmark = pytest.mark.processes


def endpoints(cluster: Cluster) -> str:
    """Where the running nodes take clients."""
    return ",".join("{}:{}".format(*cluster.address(name)) for name in cluster.nodes)


def printed(cluster: Cluster, *words: str) -> Any:
    """The JSON document that a command prints; for a thread."""
    options, rest = split([*words, "-o", "json", "--endpoint", endpoints(cluster)], {})
    out = io.StringIO()
    context = Context(options=options, printer=Printer(options, out=out, err=io.StringIO()))
    assert run(rest, context) == 0
    return json.loads(out.getvalue())


def work(where: str) -> None:
    """Three messages: one is handled, one is rejected, one fails and is handled then."""
    with Client(where, timeout=60.0) as client:
        client.create_topic("t", 1)
        for body in (b"a", b"b", b"c"):
            client.send("t", body)
        settings = {"start": "start", "retry": [1]}
        client.call("master", Type.GROUP, {"op": "create", "name": "g", "settings": settings})
        with client.consumer("g", "t", member="w") as consumer:
            first, second, third = consumer.pop(max=3, wait=30.0)
            first.ack()
            second.reject("cannot parse")
            third.retry(after=0.001)
            consumer.settle()
            (again,) = consumer.pop(max=1, wait=30.0)
            again.ack()
            consumer.settle()


def history(where: str, group: str = "g", **options: Any) -> list[Step]:
    """What the blocking client tells."""
    with Client(where, timeout=60.0) as client:
        return list(client.history(group, **options))


def told_by_rows(where: str) -> list[Step]:
    """What reports read of a cluster."""
    known = History()
    told = rows_told(None, where, known)
    return [step for body, at_ms in told for step in known.told(body, at_ms)]


async def test_the_history_of_a_group(cluster: Cluster) -> None:
    """Every node tells the same, the next master too; a message has its own part of it."""
    await trio.to_thread.run_sync(work, endpoints(cluster))
    steps = await trio.to_thread.run_sync(history, endpoints(cluster))
    said = [(step.what, step.first, step.last, step.attempt) for step in steps]
    assert said[:3] == [("joined", -1, -1, 0), ("begun", 0, -1, 0), ("leased", 0, 2, 1)]
    assert sorted(said[3:]) == [
        ("acked", 0, 0, 1),
        ("acked", 2, 2, 2),
        ("dead", 1, 1, 1),
        ("given back", 2, 2, 1),
        ("leased", 2, 2, 2),
        ("left", -1, -1, 0),
    ]
    assert {step.name for step in steps if step.what != "begun"} == {"w"}

    slave = cluster.slaves[0]
    await cluster.until(lambda: end(cluster, slave) == end(cluster, cluster.master or ""))
    found = await trio.to_thread.run_sync(
        lambda: history(endpoints(cluster), read_from=slave, since="-1h")
    )
    assert found == steps, "a slave tells the same"
    await cluster.kill(cluster.master or "")
    await cluster.failover(slave)
    await cluster.settled()
    async with AsyncClient(endpoints(cluster), timeout=60.0) as client:
        assert [step async for step in client.history("g", read_from="master")] == steps
        with pytest.raises(UnknownGroup):
            [step async for step in client.history("other")]

    told = await trio.to_thread.run_sync(lambda: told_by_rows(endpoints(cluster)))
    assert told == steps, "reports tell the same"
    shown = await trio.to_thread.run_sync(lambda: printed(cluster, "group", "history", "g"))
    assert [step["what"] for step in shown["steps"]] == [step.what for step in steps]
    traced = [
        await trio.to_thread.run_sync(
            lambda at=at: printed(cluster, "message", "trace", f"t/0@{at}")
        )
        for at in range(3)
    ]
    assert [
        (one["groups"][0]["state"], one["groups"][0]["attempts"], one["groups"][0]["dead_letter"])
        for one in traced
    ] == [("acked", 1, None), ("dead", 1, "%DLQ%g/0@0"), ("acked", 2, None)]
    assert [step["what"] for step in traced[2]["steps"]] == [
        "leased", "given back", "leased", "acked",
    ]  # fmt: skip
    epochs = [one["epoch"] for one in traced]
    assert epochs == [epochs[0]] * 3


async def test_a_deleted_group_is_told_from_the_log(cluster: Cluster) -> None:
    """What it did is still in the log; a message says so, too."""

    def delete() -> None:
        with Client(endpoints(cluster), timeout=60.0) as client:
            client.call("master", Type.GROUP, {"op": "delete", "name": "g"})

    await trio.to_thread.run_sync(work, endpoints(cluster))
    steps = await trio.to_thread.run_sync(history, endpoints(cluster))
    await trio.to_thread.run_sync(delete)
    assert await trio.to_thread.run_sync(history, endpoints(cluster)) == steps
    traced = await trio.to_thread.run_sync(lambda: printed(cluster, "message", "trace", "t/0@0"))
    assert [(one["group"], one["state"]) for one in traced["groups"]] == [("g", "acked")]


def end(cluster: Cluster, name: str) -> object:
    """How far the confirmed log of a node reaches."""
    running = cluster.nodes[name].services
    assert running is not None
    return running.store.reads.dispatched


async def test_spark_asks_a_cluster_where_its_groups_are(cluster: Cluster) -> None:
    """Of a shared group the first message that is not settled; broadcast members one by one."""

    def ask() -> dict[tuple[str, str, int], int]:
        with (
            Client(endpoints(cluster), timeout=60.0) as client,
            client.consume("t", "b", mode="broadcast", member="anna") as messages,
        ):
            messages.commit()
            origin = ReportSource(servers=endpoints(cluster))
            facts = facts_of(origin, asked=True, positions=True)
        assert facts.queues["t", 0] == (0, 3)
        return dict(facts.committed)

    await trio.to_thread.run_sync(work, endpoints(cluster))
    assert await trio.to_thread.run_sync(ask) == {("g", "t", 0): 3, ("b~anna", "t", 0): 3}
