"""Rates of the Spark jobs over a store made for it: 1 KiB bodies, two properties, four queues.

    python benchmarks/spark_jobs.py --records 400000
    python benchmarks/spark_jobs.py --records 60000 --plain

Prints a JSON object a job: rows and bytes of the log per second of wall time, and rows per second
of this process's CPU, best of the rounds, with two local cores and the store in the page cache.
``--plain`` runs the jobs in this process, so that its CPU is all there is: that says more on a
machine that others use. Words repeat in the bodies as they do in text, so that compression has
something to do.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from twinlog import layout, record
from twinlog.kernels.plain import MAGIC_BLANK
from twinlog.spark.archive.job import ArchiveSettings, archive
from twinlog.spark.archive.writing import Codec
from twinlog.spark.jobs import compare, rebuild, verify
from twinlog.spark.jobs.engine import Engine, PlainEngine, SparkEngine
from twinlog.spark.sessions import start

SEGMENT = 64 << 20


def build(root: Path, count: int) -> None:
    """Write the log of a store."""
    words = [f"{random.Random(n).getrandbits(40):x}" for n in range(600)]
    picked = random.Random(1)
    bodies = [" ".join(picked.choices(words, k=110)).encode()[:1024] for _ in range(64)]
    folder, log, base, offsets = root / "commitlog", bytearray(), 0, [0] * 4
    folder.mkdir(parents=True)
    for number in range(count):
        queue = number % 4
        data = record.encode(
            "bench",
            queue,
            bodies[number % 64],
            properties={"KEYS": f"key-{number}", "TAGS": f"tag{number % 7}"},
            queue_offset=offsets[queue],
            log_offset=base + len(log),
            store_timestamp=1_700_000_000_000 + number,
        )
        if len(log) + len(data) + 8 > SEGMENT:
            left = SEGMENT - len(log)
            blank = layout.BLANK.pack(left, MAGIC_BLANK).ljust(left, b"\0")
            (folder / layout.file_name(base)).write_bytes(bytes(log) + blank)
            base, log = base + SEGMENT, bytearray()
            number_at = record.decode(data)
            data = record.encode(
                "bench",
                queue,
                bodies[number % 64],
                properties=dict(number_at.properties),
                queue_offset=offsets[queue],
                log_offset=base,
                store_timestamp=number_at.store_timestamp,
            )
        offsets[queue] += 1
        log += data
    (folder / layout.file_name(base)).write_bytes(bytes(log).ljust(SEGMENT, b"\0"))


def measure(name: str, work: Callable[[], object], rows: int, size: int, rounds: int) -> None:
    """Print the best rate of a job."""
    best = cpu = float("inf")
    for _ in range(rounds):
        begun, used = time.perf_counter(), time.process_time()
        work()
        best = min(best, time.perf_counter() - begun)
        cpu = min(cpu, time.process_time() - used)
    figures = {"job": name, "rows_per_s": round(rows / best), "seconds": round(best, 3)}
    figures["rows_per_cpu_s"] = round(rows / max(cpu, 1e-9))
    print(json.dumps({**figures, "mib_per_s": round(size / best / (1 << 20))}), flush=True)


def main() -> None:
    """Build the store, run the jobs, take everything away."""
    options = argparse.ArgumentParser()
    options.add_argument("--records", type=int, default=400_000)
    options.add_argument("--rounds", type=int, default=2)
    options.add_argument("--plain", action="store_true", help="without Spark, in this process")
    said = options.parse_args()
    place = Path(tempfile.mkdtemp(prefix="twinlog-bench-"))
    try:
        root, count = place / "store", said.records
        build(root, count)
        size = sum(path.stat().st_size for path in (root / "commitlog").iterdir())
        engine: Engine = PlainEngine()
        if not said.plain:
            engine = SparkEngine(start("local[2]", {"spark.log.level": "ERROR"}).sparkContext)
            engine.spread(len, ["warm"] * 8)
        queues = rebuild.RebuildSettings(root, index=False)
        measure("rebuild queues", lambda: rebuild.run(engine, queues), count, size, said.rounds)
        for level in (verify.Level.STRUCTURE, verify.Level.CRC, verify.Level.FULL):
            wanted = verify.VerifySettings(root, level)
            run = lambda wanted=wanted: verify.run(engine, wanted)  # noqa: E731
            measure(f"verify {level.value}", run, count, size, said.rounds)
        shutil.copytree(root, place / "copy")
        pair = compare.CompareSettings([root, place / "copy"])
        measure("compare", lambda: compare.run(engine, pair), count, size, said.rounds)
        for number, strength in enumerate((1, 3)):
            to = ArchiveSettings(root, place / f"archive{number}", codec=Codec("zstd", strength))
            measure(f"archive zstd:{strength}", lambda to=to: archive(engine, to), count, size, 1)  # type: ignore[misc]
    finally:
        shutil.rmtree(place)


if __name__ == "__main__":
    main()
