"""A copy through the sink while masters die: inside a micro-batch and between two.

Tasks wait in the middle of their rows while a master dies, however long that takes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.fixtures.processes import Processes
from tests.spark.holding import Hold
from twinlog import Client
from twinlog.spark.sink.settings import SOURCE_PROPERTY

ROWS = 1400
ROW = 50
"""At which tasks wait, with those before it stored."""


def test_a_copy_across_failovers(spark: Any, golden: Path, holds: Path, tmp_path: Path) -> None:
    """Each row is stored once, and what was stored before a failover is there after it."""
    nodes, hold = Processes(tmp_path / "nodes"), Hold(holds, "copy")
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
                writer = writer.options(servers=servers, topic="copy", timeout="300 s")
                writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
                return writer.trigger(**trigger).start()

            def fail_over() -> None:
                master = nodes.settled()
                nodes.kill(master)
                nodes.failover(next(name for name in names if name != master))
                nodes.settled(2)
                nodes.start(master)

            commits = tmp_path / "checkpoint" / "commits"
            hold.at(ROW)
            query = copy(processingTime="0 seconds")
            nodes.until(
                lambda: stored() > 0 or not query.isActive, "the first rows of batch 0", seconds=300
            )
            fail_over()
            assert 0 < stored() < 400 and not (commits / "0").exists(), "still inside of it"
            hold.at(ROW, batch=2)
            nodes.until(
                lambda: (commits / "1").exists() or not query.isActive, "two batches", seconds=300
            )
            query.stop()
            assert query.exception() is None
            before = {m.log_offset for m in client.read("copy")}
            assert 400 < len(before) < ROWS
            nodes.settled(3)
            fail_over()
            hold.at(ROW, batch=ROWS)
            query = copy(availableNow=True)
            query.awaitTermination(600)
            assert query.exception() is None
            found = list(client.read("copy"))
        assert len({m.properties[SOURCE_PROPERTY] for m in found}) == len(found) == ROWS
        assert before <= {m.log_offset for m in found}
    finally:
        nodes.close()
