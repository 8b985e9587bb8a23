"""A driver that dies in the middle of a batch: no row is lost, none comes twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.fixtures.processes import Processes
from tests.spark.settings import SETTINGS
from tests.stores.sample import Ours, sample
from twinlog import Client
from twinlog.spark.sink.settings import SOURCE_PROPERTY

CHILD = """
import json, sys, time
from twinlog.spark.sessions import start
settings, root, checkpoint = sys.argv[1:]
spark = start("local[1]", json.loads(settings))
def hang(frame, batch):
    print("batch", batch, frame.count(), flush=True)
    time.sleep(600)
stream = spark.readStream.format("twinlog").load(root)
query = stream.writeStream.foreachBatch(hang).option("checkpointLocation", checkpoint).start()
query.awaitTermination()
"""


def driver(program: str, *words: str) -> subprocess.Popen[str]:
    """Start a driver with what spares the shared session time; the first word is its settings."""
    settings = json.dumps({**SETTINGS, "spark.driver.memory": "500m"})
    command = [sys.executable, "-c", program, settings, *words]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
        start_new_session=True,
    )


def grow(ours: Ours, fresh: Path, root: Path) -> None:
    """Write what is new into the directory in place, the log before its queues."""
    ours.write(fresh)
    for folder in ("commitlog", "twinlog", "consumequeue"):
        for path in sorted((fresh / folder).rglob("*")):
            to = root / path.relative_to(fresh)
            if path.is_dir():
                to.mkdir(parents=True, exist_ok=True)
                continue
            with open(to, "r+b" if to.exists() else "wb") as opened:
                opened.write(path.read_bytes())


def test_sigkill_in_batch_0_with_a_moving_start(spark: Any, tmp_path: Path) -> None:
    """The stream begins at the end; rows come while batch 0 runs, the driver dies, more rows come.

    Batch 0 is not committed, so the next driver asks for the initial offset anew; it must not take
    the end of that moment for it.
    """
    ours = sample()
    root, checkpoint = ours.write(tmp_path / "store"), tmp_path / "checkpoint"
    child = driver(CHILD, str(root), str(checkpoint))
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "batch 0 0\n"
        ours.batch(b"one", b"two", b"three")
        grow(ours, tmp_path / "grown", root)
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    ours.batch(b"four", queue=1)
    grow(ours, tmp_path / "grown", root)
    found: list[bytes] = []

    def collect(frame: Any, _: int) -> None:
        found.extend(bytes(row.body) for row in frame.select("body").collect())

    stream = spark.readStream.format("twinlog").load(str(root))
    query = (
        stream.writeStream.foreachBatch(collect)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(600)
    assert query.exception() is None
    assert sorted(found) == [b"four", b"one", b"three", b"two"]


COPYING = """
import json, sys, time
from pathlib import Path
from twinlog.spark.sessions import start
from twinlog.spark.sink.writer import StreamWriter
from twinlog.spark.source.data_source import Source as TwinlogSource, fields_of
settings, root, checkpoint, servers, marker = sys.argv[1:]
class Hanging(StreamWriter):
    def commit(self, messages, batchId):
        super().commit(messages, batchId)
        Path(marker).touch()
        time.sleep(600)
class Source(TwinlogSource):
    @classmethod
    def name(cls):
        return "hanging"
    def streamWriter(self, schema, overwrite):
        return Hanging(dict(self.options), fields_of(schema))
spark = start("local[1]", json.loads(settings))
spark.dataSource.register(Source)
stream = spark.readStream.format("twinlog").option("startingOffsets", "earliest")
stream = stream.option("maxOffsetsPerTrigger", "20").load(root).select("body")
query = (
    stream.writeStream.format("hanging").option("servers", servers).option("topic", "copy")
    .option("writeId", "copy").option("commitTopic", "commits")
    .option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
)
query.awaitTermination()
"""


def test_sigkill_between_the_sinks_commit_and_the_sources(spark: Any, tmp_path: Path) -> None:
    """All rows of batch 0 and its commit record are stored; Spark never hears of it."""
    root, checkpoint = sample().write(tmp_path / "store"), tmp_path / "checkpoint"
    nodes = Processes(tmp_path / "nodes", nodes=1)
    try:
        nodes.start_all()
        servers, marker = "{}:{}".format(*nodes.address("n1")), tmp_path / "committed"
        with Client(servers) as client:
            client.create_topic("copy", 2)
            client.create_topic("commits", 1)
        words = [str(root), str(checkpoint), servers, str(marker)]
        child = driver(COPYING, *words)
        try:
            nodes.until(
                lambda: marker.exists() or child.poll() is not None, "a commit", seconds=300
            )
            assert child.poll() is None
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
        with Client(servers) as client:
            before = [m.log_offset for m in client.read("copy")]
            assert 10 < len(before) <= 20 and len(list(client.read("commits"))) == 1
        assert (checkpoint / "offsets" / "0").exists()
        assert not (checkpoint / "commits" / "0").exists()
        stream = spark.readStream.format("twinlog").option("startingOffsets", "earliest")
        query = (
            stream.load(str(root))
            .select("body")
            .writeStream.format("twinlog")
            .options(servers=servers, topic="copy", writeId="copy", commitTopic="commits")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(600)
        assert query.exception() is None
        with Client(servers) as client:
            after = list(client.read("copy"))
            commits = [json.loads(m.body)["batch"] for m in client.read("commits")]
        names = [m.properties[SOURCE_PROPERTY] for m in after]
        assert len(names) == len(set(names)) == 36
        assert set(before) <= {m.log_offset for m in after}
        assert commits == sorted(set(commits)) and commits[0] == 0
    finally:
        nodes.close()
