"""Rates of the Spark jobs over a store made for it: 1 KiB bodies, two properties, 16 queues.

    python benchmarks/spark/jobs.py --records 400000
    python benchmarks/spark/jobs.py --records 60000 --plain

Prints a JSON object a job: rows and bytes of the log per second of wall time, and rows per CPU
second of all processes, with two local cores and the store in the page cache. Both are of the best
round (``--rounds``, 2); none before it is left out as a warm-up, so the first one has the imports.
``--plain`` runs the jobs in this process, so that its CPU is all there is: that says more on a
machine that others use. ``--bodies`` says what an archive compresses: ``overlapping`` stretches of
a text of 1,500 words, each nearly the one before (zstd-3: 3 %), ``text``, stretches that do not
overlap (34 %), or ``random`` bytes (100 %).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.spark.source import cpu, make
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.writing import Codec
from twinlog.spark.engine.engine import Engine, PlainEngine, SparkEngine
from twinlog.spark.engine.report import Report
from twinlog.spark.jobs.rebuild import job
from twinlog.spark.jobs.verify import compare, directory
from twinlog.spark.sessions import start
from twinlog.units import MiB

SEGMENT = 64 * MiB


def text() -> bytes:
    """Return what bodies are cut from."""
    words = [f"{random.Random(n).getrandbits(24):x}" for n in range(1500)]
    return " ".join(random.Random(1).choices(words, k=1 << 20)).encode()


def bodies(kind: str) -> tuple[bytes, int]:
    """Return what bodies are cut from, and the bytes from where one begins to the next."""
    if kind == "random":
        return os.urandom(8 * MiB), 100_003
    return text(), 37 if kind == "overlapping" else 100_003


def measure(name: str, work: Callable[[], Report], rows: int, size: int, rounds: int) -> None:
    """Print the best rate of a job; of an archive it is that of the sealed files."""
    times, least = list[float](), float("inf")
    for _ in range(rounds):
        begun, used = time.perf_counter(), cpu()
        fields = work().fields
        times.append(time.perf_counter() - begun)
        least = min(least, cpu() - used)
    best = min(times)
    if name.startswith("archive"):
        rows, size = int(str(fields["records"])), int(str(fields["log_bytes"]))
    figures = {"job": name, "rows_per_s": round(rows / best), "seconds": round(best, 3)}
    figures["median_rows_per_s"] = round(rows / median(times))
    figures["rows_per_cpu_s"] = round(rows / max(least, 1e-2))
    print(json.dumps({**figures, "mib_per_s": round(size / best / MiB)}), flush=True)


def archived(engine: Engine, root: Path, among: Path, codec: Codec) -> Report:
    """Archive into a directory of its own: a second run would have nothing to do in the first."""
    to = among / f"{codec.level}-{time.monotonic_ns()}"
    return archive(engine, ArchiveSettings(root, to, codec=codec))


def jobs(engine: Engine, root: Path, copy: Path, about: tuple[int, int, int]) -> None:
    """Measure what only reads; ``about``: records, bytes, rounds."""
    count, size, rounds = about
    queues = job.RebuildSettings(root, index=False)
    measure("rebuild queues", lambda: job.run(engine, queues), count, size, rounds)
    for level in (directory.Level.STRUCTURE, directory.Level.CRC, directory.Level.FULL):
        wanted = directory.VerifySettings(root, level)
        run = partial(directory.run, engine, wanted)
        measure(f"verify {level.value}", run, count, size, rounds)
    shutil.copytree(root, copy)
    pair = compare.CompareSettings([root, copy])
    measure("compare", lambda: compare.run(engine, pair), count, size, rounds)


def main() -> None:
    """Build the store, run the jobs, take everything away."""
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=400_000)
    options.add_argument("--rounds", type=int, default=2)
    kinds = ("overlapping", "text", "random")
    options.add_argument("--bodies", choices=kinds, default="overlapping")
    options.add_argument("--archive", action="store_true", help="only the archive, with zstd-3")
    options.add_argument("--plain", action="store_true", help="without Spark, in this process")
    said = options.parse_args()
    place = Path(tempfile.mkdtemp(prefix="twinlog-bench-"))
    try:
        root, count = place / "store", said.records
        words, step = bodies(said.bodies)
        make(root, count, words, SEGMENT, step)
        size = sum(path.stat().st_blocks * 512 for path in (root / "commitlog").iterdir())
        engine: Engine = PlainEngine()
        if not said.plain:
            engine = SparkEngine(start("local[2]", {"spark.log.level": "ERROR"}).sparkContext)
            engine.spread(len, ["warm"] * 8)
        if not said.archive:
            jobs(engine, root, place / "copy", (count, size, said.rounds))
        os.sync()  # not the archive's work, but its flush waits for files made above
        for strength in (3,) if said.archive else (1, 3):
            fresh = partial(archived, engine, root, place / "archives", Codec("zstd", strength))
            measure(f"archive zstd:{strength}", fresh, count, size, said.rounds)
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
