"""Rows per second of the Spark source over a directory: decoder alone, and through Spark.

    python benchmarks/spark/source.py [RECORDS]

Makes a store in RocketMQ's layout (1 KiB bodies, two properties, 4 topics of 4 queues, files of
256 MiB) in a temporary directory and reads it from the page cache. Every figure is the best of
five rounds after some that are not counted, and their median: rows of the store over wall seconds,
and the least CPU seconds of all processes. On a machine that does other work as well only the
latter says something.

Through Spark five rounds are not counted: for about as many the JVM still compiles what is hot, on
the same cores. In the first of them it takes three times the CPU of the later ones.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import psutil

from twinlog import kernels
from twinlog.format.checkpoint import Checkpoint
from twinlog.format.log_file import file_name
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.spark.sessions import local_session
from twinlog.spark.source.batch import DirectoryQuery, read_task
from twinlog.units import MiB

SEGMENT = 256 * MiB
QUEUE_FILE = 6_000_000
SECTION = 64
BODY = 1024
TOPICS, QUEUES = 4, 4
ROUNDS = 5
WARM = 5
"""Rounds through Spark before those that count."""
METADATA = "topic STRING, queue_id INT, queue_offset BIGINT, store_timestamp TIMESTAMP"
NO_MAP = "topic STRING, queue_id INT, queue_offset BIGINT, physical_offset BIGINT, body BINARY"


def make(
    root: Path, records: int, words: bytes | None = None, segment: int = SEGMENT, step: int = 37
) -> None:
    """Write a store of about ``records`` records, their bodies cut from ``words`` (else random).

    Bodies overlap unless ``step`` bytes, from one to the next, are more than a body has.
    """
    (root / "commitlog").mkdir(parents=True)
    keys = [(f"topic{t}", q) for t in range(TOPICS) for q in range(QUEUES)]
    encoders = {key: RecordEncoder(*key) for key in keys}
    numbers = dict.fromkeys(keys, 0)
    held: dict[tuple[str, int], bytearray] = {key: bytearray() for key in keys}
    words = words or os.urandom(1 << 20)
    log, base, done = bytearray(), 0, 0
    while done < records:
        key = keys[done // SECTION % len(keys)]
        encoder = encoders[key]
        for i in range(SECTION):
            at = (done + i) * step % (len(words) - BODY)
            text = encode_properties({"TAGS": f"tag{i % 8}", "KEYS": f"key-{done + i}"})
            encoder.add(words[at : at + BODY], properties=text, born_timestamp=1_700_000_000_000)
        data = encoder.take()
        if len(log) + len(data) + 8 > segment:
            base = flush(root, log, base, segment)
        kernels.patch_section(
            data,
            0,
            len(data),
            log_offset=base + len(log),
            queue_offset=numbers[key],
            store_timestamp=1_700_000_000_000 + done,
            store_host=bytes(8),
        )
        for _, _, _, entries in kernels.gather_queues(data, 0, len(data), base + len(log)):
            held[key] += entries
        log += data
        numbers[key] += SECTION
        done += SECTION
    flush(root, log, base, segment)
    for (topic, queue), entries in held.items():
        folder = root / "consumequeue" / topic / str(queue)
        folder.mkdir(parents=True)
        for at in range(0, len(entries), QUEUE_FILE):
            part = bytes(entries[at : at + QUEUE_FILE]).ljust(QUEUE_FILE, b"\0")
            (folder / file_name(at)).write_bytes(part)
    (root / "checkpoint").write_bytes(Checkpoint().pack())


def flush(root: Path, log: bytearray, base: int, segment: int) -> int:
    """Write one log file, its end as a blank, and return the next one's start."""
    left = segment - len(log)
    blank = left.to_bytes(4, "big") + bytes.fromhex("CBD43194")
    path = root / "commitlog" / file_name(base)
    path.write_bytes(log + blank)
    os.truncate(path, segment)
    log.clear()
    return base + segment


def cpu() -> float:
    """Return the CPU seconds of this process, the JVM and Spark's workers so far."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            used = process.cpu_times()
            total += used.user + used.system
    return total


def best(run: Callable[[], int], warm: int = 1) -> tuple[int, float, float, float]:
    """Return rows, best and median wall time, and the least CPU time, after ``warm`` rounds."""
    rows, times, used = [run() for _ in range(warm)][-1], list[float](), list[float]()
    for _ in range(ROUNDS):
        began, before = time.perf_counter(), cpu()
        assert run() == rows
        times.append(time.perf_counter() - began)
        used.append(cpu() - before)
    return rows, min(times), median(times), min(used)


def line(name: str, rows: int, seconds: float, middling: float, used: float) -> None:
    """Print one figure."""
    per, rates = used / rows * 1e6, f"{rows / seconds:12,.0f} rows/s, median {rows / middling:,.0f}"
    print(f"{name:46} {rates} {per:6.2f} CPU-s per million", flush=True)


def alone(root: Path) -> None:
    """The reader and decoder in this process, no Spark."""
    sets = {
        "all columns, bodies checked": {},
        "all columns, unchecked": {"checkCrc": "off"},
        "metadata": {"columns": "topic,queue_id,queue_offset,store_timestamp", "checkCrc": "off"},
    }
    for name, options in sets.items():
        query = DirectoryQuery.make({"path": str(root), **options})

        def run(query: DirectoryQuery = query) -> int:
            tasks = query.tasks(0)
            return sum(batch.num_rows for task in tasks for batch in read_task(task))

        line(f"one process: {name}", *best(run))


def through_spark(root: Path) -> None:
    """Two cores, default split size, the sink that drops everything."""
    settings = {"spark.driver.memory": "1g", "spark.log.level": "ERROR"}
    with local_session("local[2]", settings) as spark:
        base = spark.read.format("twinlog").option("path", str(root))
        kafka = base.option("kafkaColumns", "true")
        cells = {
            "all columns with map": lambda: spark.read.format("twinlog").load(str(root)),
            "no map": lambda: spark.read.format("twinlog").schema(NO_MAP).load(str(root)),
            "metadata": lambda: spark.read.format("twinlog").schema(METADATA).load(str(root)),
            "metadata, unchecked": lambda: (
                spark.read.format("twinlog")
                .schema(METADATA)
                .option("checkCrc", "off")
                .load(str(root))
            ),
            "Kafka's columns": kafka.load,
        }
        total = DirectoryQuery.make({"path": str(root)}).tasks(0)
        rows = sum(piece.stop - piece.first for task in total for piece in task.split.pieces)
        for name, frame in cells.items():

            def run(frame: Callable[[], object] = frame) -> int:
                frame().write.format("noop").mode("append").save()  # type: ignore[attr-defined]
                return rows

            line(f"Spark local[2]: {name}", *best(run, WARM))


def main() -> None:
    """Print the figures."""
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 940_032
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        make(root, records)
        load = os.getloadavg()[0]
        about = f"{records:,} records, kernels: {kernels.which()}, cores: {os.cpu_count()}"
        print(f"{about}, load before: {load:.1f}", flush=True)
        alone(root)
        through_spark(root)


if __name__ == "__main__":
    main()
