"""A copy through the sink while masters die: inside a micro-batch and between two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fixtures.processes import Processes
from twinlog import Client
from twinlog.spark.sink.settings import SOURCE_PROPERTY

ROWS = 1400


def test_a_copy_across_failovers(spark: Any, golden: Path, tmp_path: Path) -> None:
    """Each row is stored once, and what was stored before a failover is there after it."""
    nodes = Processes(tmp_path / "nodes")
    names = [node.name for node in nodes.config.nodes]
    try:
        nodes.start_all()
        servers = ",".join("{}:{}".format(*nodes.address(name)) for name in names)
        with Client(servers, timeout=120.0) as client:
            client.create_topic("copy", 2)

            def stored() -> int:
                return sum(end for _, end in client.offsets("copy").values())

            def copy(**trigger: Any) -> Any:
                stream = spark.readStream.format("twinlog").option("startingOffsets", "earliest")
                stream = stream.option("maxOffsetsPerTrigger", "400").load(str(golden))
                writer = stream.select("key", "body").writeStream.format("twinlog")
                writer = writer.options(servers=servers, topic="copy", rate="200")
                writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
                return writer.trigger(**trigger).start()

            def fail_over() -> None:
                master = nodes.settled()
                nodes.kill(master)
                nodes.failover(next(name for name in names if name != master))
                nodes.settled(2)
                nodes.start(master)

            query = copy(processingTime="0 seconds")
            nodes.until(lambda: stored() > 0, "the first task is stored", seconds=300)
            assert not (tmp_path / "checkpoint" / "commits" / "0").exists()
            fail_over()
            done = tmp_path / "checkpoint" / "commits" / "1"
            nodes.until(lambda: done.exists() or not query.isActive, "two batches", seconds=300)
            query.stop()
            assert query.exception() is None
            before = {m.log_offset for m in client.read("copy")}
            assert len(before) < ROWS
            nodes.settled(3)
            fail_over()
            query = copy(availableNow=True)
            query.awaitTermination(600)
            assert query.exception() is None
            found = list(client.read("copy"))
        assert len({m.properties[SOURCE_PROPERTY] for m in found}) == len(found) == ROWS
        assert before <= {m.log_offset for m in found}
    finally:
        nodes.close()
