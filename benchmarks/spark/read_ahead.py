"""Rows per second that one task of the source gets from one node, with and without asking ahead.

    python benchmarks/spark/read_ahead.py [--gib 1] [--rounds 3] [--folder DIR]

Starts the cluster of `cold_reads.py`, loads a topic of 1 KiB records and reads all of it in this
process from the slave n2, as an executor's task does, without Spark: in turn one question at a time
(A) and the next one asked ahead while an answer is decoded (B). Once with the slave's files dropped
from the page cache before each pass, and once with them in it; most of the log is cold for the node
in both cases (a thread reads it), for a node keeps only its newest part mapped.

Printed are the medians of rows per second, and this process's and the node's CPU seconds a million.
Needs what `cold_reads.py` needs. Starts and ends only processes of its own.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from statistics import median

import psutil

from benchmarks.cluster.own_cluster import Cluster, cluster, evict
from benchmarks.spark.cold_reads import COLD, load_topic, used
from twinlog.spark.nodes import nodes as access
from twinlog.spark.source.cluster import ClusterTask
from twinlog.spark.source.queries import batch_query, read_any

Figures = tuple[float, float, float]


def one_pass(made: Cluster, task: ClusterTask) -> Figures:
    """Read everything once: rows a second, CPU seconds of reader and node for a million."""
    node, me = psutil.Process(made.pid("n2")), psutil.Process()
    began, ours, nodes = time.perf_counter(), used(me), used(node)
    rows = sum(batch.num_rows for batch in read_any(task))
    seconds = time.perf_counter() - began
    return rows / seconds, (used(me) - ours) / rows * 1e6, (used(node) - nodes) / rows * 1e6


def main() -> None:
    """Measure in turn and print the medians."""
    parser = argparse.ArgumentParser(description="One task that reads over the wire.")
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    asked = parser.parse_args()
    limit = access.AHEAD_SECONDS
    with cluster(asked.folder) as made:
        below = load_topic(made, asked.gib)
        servers = ",".join(made.address(name) for name in ("n1", *made.slaves))
        options = {"servers": servers, "subscribe": COLD, "readFrom": "n2", "splitBytes": "1 TiB"}
        (task,) = batch_query(options).tasks(0)
        assert isinstance(task, ClusterTask)
        print(f"load before: {os.getloadavg()[0]:.1f}", flush=True)
        for cold in (True, False):
            found: dict[str, list[Figures]] = {"one at a time": [], "next asked ahead": []}
            if not cold:
                one_pass(made, task)
            for _ in range(asked.rounds):
                for name, figures in found.items():
                    if cold:
                        evict(made.log("n2"), below)
                    ahead = name == "next asked ahead"
                    access.AHEAD_SECONDS = limit if ahead else -1.0  # type: ignore[misc]
                    figures.append(one_pass(made, task))
            for name, figures in found.items():
                rate, reader, node = (median(each) for each in zip(*figures, strict=True))
                where = "from disk" if cold else "from the page cache"
                cost = f"CPU s a million: reader {reader:.2f}, node {node:.2f}"
                print(f"{where:20} {name:18}{rate:12,.0f} rows/s  {cost}", flush=True)


if __name__ == "__main__":
    main()
