"""A driver that dies in the middle of its first batch: no row is lost, none comes twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.unit.twinlog.ours import Ours, sample

CHILD = """
import sys, time
from twinlog.spark.sessions import start
root, checkpoint = sys.argv[1:]
spark = start("local[1]", {"spark.driver.memory": "500m", "spark.log.level": "ERROR"})
def hang(frame, batch):
    print("batch", batch, frame.count(), flush=True)
    time.sleep(600)
stream = spark.readStream.format("twinlog").load(root)
query = stream.writeStream.foreachBatch(hang).option("checkpointLocation", checkpoint).start()
query.awaitTermination()
"""


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
    command = [sys.executable, "-c", CHILD, str(root), str(checkpoint)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
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
    query.awaitTermination(120)
    assert query.exception() is None
    assert sorted(found) == [b"four", b"one", b"three", b"two"]
