"""The live source through Spark: processes, the master killed between micro-batches."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.processes import Processes
from twinlog import Client
from twinlog.spark.jobs.reports.queries import LAG
from twinlog.spark.jobs.reports.tables import ReportSource, facts_of, report_on
from twinlog.wire.frames import Type

ROWS = 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    found = Processes(tmp_path_factory.mktemp("live"))
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def servers(cluster: Processes) -> str:
    names = [name for name in cluster.running if name != "coordinator"]
    return ",".join("{}:{}".format(*cluster.address(name)) for name in names)


def send(cluster: Processes, first: int, count: int) -> None:
    with Client(servers(cluster).split(","), timeout=120.0) as client:
        client.create_topic("orders", 4)
        with client.producer("orders") as producer:
            for number in range(first, first + count):
                producer.send(b"%d" % number, key=f"k{number}", tag="ab"[number % 2])


def test_lag_of_a_cluster(spark: Any, cluster: Processes) -> None:
    """Where its groups are now: three messages, one of them settled."""
    with Client(servers(cluster).split(","), timeout=120.0) as client:
        client.create_topic("lagging", 1)
        create = {"op": "create", "name": "billing", "settings": {"start": "start"}}
        client.call("master", Type.GROUP, create)
        for number in range(3):
            client.send("lagging", b"%d" % number)
        with client.consumer("billing", "lagging") as consumer:
            (first,) = consumer.pop(max=1, wait=60.0)
            first.ack()
    origin = ReportSource(servers=servers(cluster))
    facts = facts_of(origin, now=1 << 50, asked=True, positions=True)
    (row,) = report_on(spark, LAG, origin, facts).tables["rows"].rows
    assert row[:6] == ("billing", "lagging", 0, 1, 3, 2)
    assert isinstance(row[6], int), "the age of what it handles next"


def test_read_stream_kill_stream(spark: Any, cluster: Processes, tmp_path: Path) -> None:
    """Rows are read from slaves; the stream goes on under the next master, every row once."""
    send(cluster, 0, ROWS)
    options = {"servers": servers(cluster), "subscribe": "orders", "splitBytes": "100 KiB"}
    frame = spark.read.format("twinlog").options(**options).load()
    assert frame.rdd.getNumPartitions() > 2
    found = {int(bytes(row.body)) for row in frame.select("body").collect()}
    assert found == set(range(ROWS))

    def drain() -> list[dict[str, Any]]:
        stream = spark.readStream.format("twinlog").options(
            **options, startingOffsets="earliest", maxOffsetsPerTrigger="2000"
        )
        query = (
            stream.load()
            .select("queue_id", "queue_offset", "epoch", "body")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination(600)
        assert query.exception() is None
        return [json.loads(progress.json) for progress in query.recentProgress]

    drain()
    master = cluster.settled()
    cluster.kill(master)
    cluster.failover(next(n.name for n in cluster.config.nodes if n.name != master))
    cluster.settled(2)
    send(cluster, ROWS, 500)
    last = drain()[-1]
    rows = spark.read.parquet(str(tmp_path / "out"))
    assert rows.count() == rows.select("body").distinct().count() == ROWS + 500
    assert {row.epoch for row in rows.select("epoch").distinct().collect()} == {1, 2}
    (group,) = last["sources"][0]["endOffset"]["groups"].values()
    assert group["epoch"] == 2
