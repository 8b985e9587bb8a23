"""How long a start takes after SIGKILL, for a small log and one ten times as long.

    python benchmarks/cluster/restart.py [--sizes 2GiB,20GiB] [--record 1024]
        [--starts 3] [--single] DIR

For each size a separate process writes a store in ``DIR`` as a lone master would: sections of 64
records, every file really allocated, flushes, checkpoints and snapshots when they are due, no
network. It is killed with SIGKILL half a segment after its newest snapshot. Then, ``--starts``
times: its files are dropped from the page cache, a fresh process opens the store and is killed
(cold), and another one opens it again (warm). Printed are the medians of wall and processor
seconds, the memory of its own that the process has then (without the pages of mapped files), and
the ratio to the first size, which should be at most 2. ``--single`` appends each record by itself:
a batch and its 48 bytes of index for each, which is the most a log can have.

Needed on the file system of ``DIR``: the largest size, 3 % for indexes and queues, and 2 GiB to
spare; the benchmark says so and ends where that is missing. Everything is removed at the end.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

from storage import CreateTopic, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from twinlog.format.record import RecordEncoder
from twinlog.units import GiB, MiB, format_size, parse_size

SPARE = 2 * GiB
INDEXES = 0.03
QUEUES = 64
COUNT = 64
TOKEN = Token("master", 1, 1)


def main() -> None:
    """Measure and print the table; or be the process that is killed."""
    parser = argparse.ArgumentParser(description="How long a start takes after SIGKILL.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sizes", default="2GiB,20GiB")
    parser.add_argument("--record", type=int, default=1024)
    parser.add_argument("--segment", type=parse_size, default=GiB)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--single", action="store_true", help="each record is a batch")
    parser.add_argument("--be", choices=["writer", "starter"])
    parser.add_argument("--bytes", type=int, default=0)
    asked = parser.parse_args()
    if asked.be == "writer":
        write(asked)
    elif asked.be == "starter":
        start(asked.directory, asked.segment)
    else:
        compare(asked)


def compare(asked: argparse.Namespace) -> None:
    """Make, kill and start a store of each size."""
    sizes = [parse_size(word) for word in asked.sizes.split(",")]
    needed = int(max(sizes) * (1 + INDEXES)) + asked.segment + SPARE
    asked.directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(asked.directory).free
    print(f"needs {format_size(needed)} of {format_size(free)} free", flush=True)
    if free < needed:
        sys.exit(f"{asked.directory} has no room for it")
    heads = "log allocated cold_s cold_cpu_s warm_s warm_cpu_s memory ratio_cold ratio_warm"
    print(heads, flush=True)
    base: tuple[float, float] | None = None
    for size in sizes:
        root = asked.directory / f"log-{size}"
        try:
            child(root, asked, "writer", size)
            cold, warm = [], []
            for _ in range(asked.starts):
                forget(root)
                cold.append(child(root, asked, "starter"))
                warm.append(child(root, asked, "starter"))
            allocated = sum(path.stat().st_blocks * 512 for path in root.rglob("*"))
        finally:
            shutil.rmtree(root, ignore_errors=True)
        row = [median(one[i] for one in runs) for runs in (cold, warm) for i in (0, 1)]
        memory = format_size(int(median(one[2] for one in warm)))
        base = base or (row[0], row[2])
        cells = " ".join(f"{value:.3f}" for value in row)
        ratios = f"{row[0] / base[0]:.2f} {row[2] / base[1]:.2f}"
        sizes_of = f"{format_size(size)} {format_size(allocated)}"
        print(f"{sizes_of} {cells} {memory} {ratios}", flush=True)


def child(root: Path, asked: argparse.Namespace, be: str, size: int = 0) -> tuple[float, ...]:
    """Run one process until it says what it has done, kill it, and return what it said.

    A starter: wall and processor seconds, and bytes of memory of its own.
    """
    words = [
        sys.executable, __file__, str(root), "--be", be, "--bytes", str(size),
        "--record", str(asked.record), "--segment", f"{asked.segment}B",
        *(["--single"] if asked.single else []),
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        said = process.stdout.readline().split()
        process.send_signal(signal.SIGKILL)
    if not said:
        sys.exit(f"the {be} ended early")
    return tuple(float(word) for word in said)


def forget(root: Path) -> None:
    """Drop what the page cache holds of the files."""
    os.sync()
    for path in root.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def opened(root: Path, segment: int) -> Store:
    """Open the store."""
    settings = StoreSettings(segment_size=segment)
    return Store.open(RealDisk(root), settings, Who("bench", "g1", "n1"), wall_ms=1)


def start(root: Path, segment: int) -> None:
    """Open the store, say how long it took, and wait for the end."""
    wall, cpu = time.perf_counter(), time.process_time()
    store = opened(root, segment)
    print(time.perf_counter() - wall, time.process_time() - cpu, own_memory(), flush=True)
    assert store.damage is None
    assert store.dispatched == store.confirm
    time.sleep(60)


def own_memory() -> int:
    """Return the bytes of memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def write(asked: argparse.Namespace) -> None:
    """Write a log of ``asked.bytes`` as a master does, say so, and wait for the end."""
    store = opened(asked.directory, asked.segment)
    store.take_token(TOKEN)
    store.append_epoch(
        TOKEN, epoch=1, node="n1", session=1, wall_ms=1, reason="bench", by="bench"
    )  # fmt: skip
    store.append_control(TOKEN, CreateTopic("flights", QUEUES, 1), wall_ms=1)
    store.set_confirm(store.end)
    while store.dispatch(4 * MiB):
        pass
    count, queues = (1, 1) if asked.single else (COUNT, QUEUES)
    sections = [section(queue, asked.record, count) for queue in range(queues)]
    checkpointed = 0
    # The snapshot comes when a file is full: the last one is half full when the end comes.
    while store.end < asked.bytes - asked.segment // 2:
        store.append(TOKEN, sections, wall_ms=int(time.time() * 1000))
        store.set_confirm(store.end)
        while store.dispatch(4 * MiB):
            pass
        if store.end - checkpointed >= 64 * MiB:
            checkpointed = store.end
            for job in (store.jobs.flush_job(thorough=True), store.jobs.checkpoint_job()):
                if job is not None:
                    job.run()
                    store.jobs.finish(job)
        for job in (store.jobs.prepare_job(), store.jobs.snapshot_job()):
            if job is not None:
                job.run()
                store.jobs.finish(job)
    print(store.end, time.process_time(), flush=True)
    time.sleep(60)


def section(queue: int, record: int, count: int) -> Section:
    """Return a section of ``count`` records with a tag and a key."""
    encoder = RecordEncoder("flights", queue)
    for number in range(count):
        text = f"TAGS\x01UA\x02KEYS\x01k{queue}-{number}\x02".encode()
        encoder.add(bytes(record), properties=text, born_timestamp=1)
    return Section("flights", queue, count, encoder.take())


if __name__ == "__main__":
    main()
