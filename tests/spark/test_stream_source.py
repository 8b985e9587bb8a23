"""``spark.readStream.format("twinlog")`` over a directory, through Spark and its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.stores.sample import sample


def drain(spark: Any, root: Path, home: Path, **options: str) -> list[dict[str, Any]]:
    """Run what is available into Parquet files and return the progress of each batch."""
    frame = spark.readStream.format("twinlog").options(**options).load(str(root))
    query = (
        frame.select("topic", "queue_id", "queue_offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(home / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(home / "out"))
    )
    query.awaitTermination(600)
    assert query.exception() is None
    return [json.loads(progress.json) for progress in query.recentProgress]


def test_batches_restarts_and_progress(spark: Any, tmp_path: Path) -> None:
    """Every row once over two runs with a limit, through a file sink; the backlog is shown."""
    ours = sample()
    root = ours.write(tmp_path / "store")
    options = {"startingOffsets": "earliest", "maxOffsetsPerTrigger": "15"}
    first = drain(spark, root, tmp_path, **options)
    counts = [progress["numInputRows"] for progress in first if progress["numInputRows"]]
    assert sum(counts) == 36 and max(counts) <= 15 and len(counts) >= 3
    source = first[0]["sources"][0]
    ends = [
        source[name]["groups"][str(root)]["queues"]["t"] for name in ("endOffset", "latestOffset")
    ]
    behind = sum(ends[1][queue] - ends[0][queue] for queue in ends[0])
    assert behind == 36 - counts[0], "what is left to read is in the progress"
    ours.batch(b"later", b"and later")
    ours.write(root)
    second = drain(spark, root, tmp_path, **{**options, "splitBytes": "1 KiB"})
    assert sum(progress["numInputRows"] for progress in second) == 2
    found = spark.read.parquet(str(tmp_path / "out"))
    assert found.count() == found.distinct().count() == 38
