"""Appends across file changes against appends between them.

    python benchmarks/log/file_changes.py [--files 60] [--rounds 3] [--rate 2000] [--warm]

A master's store on a real directory with files of 16 MiB takes one section of 16 x 1 KiB at a time
at a steady rate, and the node's own upkeep runs beside it as it does in a node: flushes every
500 ms, checkpoints, snapshots, the next file made ahead, pages touched, each in a thread. Each
`Store.append` is timed. *Across* are the appends from 20 before a file change to 20 after, the one
that changes the file included; *between* are all others. Two tables: wall time, in which whatever
else runs on the machine shows too, and CPU time of the appending thread, in which it hardly does.

Of 60 changes with 41 appends each the two worst lie above p99.9: a single one decides. So there are
several rounds, each with a store of its own; the tables are of all of them together, and the last
one names the p99.9 of each, across and between, from which one sees what it is worth.
"""

from __future__ import annotations

import argparse
import queue
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.log.append_path import MASTER, MiB, Shape, section
from replication.driver.background_jobs import BackgroundJobs
from storage import CreateTopic, Job, Store, StoreSettings, Who
from storage.disk.disk import RealDisk

SEGMENT = 16 * MiB
AROUND = 20
SHARES = (0.5, 0.99, 0.999, 1.0)


class Threads:
    """Runs jobs as a node does, and keeps those that have ended for the loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(4)
        self._ended: queue.SimpleQueue[tuple[Job, Exception | None]] = queue.SimpleQueue()

    def run_job(self, job: Job) -> None:
        """Run it in a thread."""
        self._pool.submit(self._run, job)

    def _run(self, job: Job) -> None:
        error: Exception | None = None
        try:
            job.run()
        except Exception as caught:
            error = caught
        self._ended.put((job, error))

    def hand_back(self, jobs: BackgroundJobs) -> None:
        """Give the upkeep what has ended."""
        while not self._ended.empty():
            job, error = self._ended.get()
            jobs.on_job(time.monotonic(), job, error)

    def close(self) -> None:
        """Wait for all of them."""
        self._pool.shutdown()


def opened(folder: Path, *, warm: bool) -> Store:
    """A master with the topic."""
    settings = StoreSettings(segment_size=SEGMENT, warm=warm, hot_bytes=64 * MiB)
    store = Store.open(RealDisk(folder), settings, Who("bench", "g1", "n1"), wall_ms=1)
    store.take_token(MASTER)
    store.append_epoch(MASTER, epoch=1, node="n1", session=1, wall_ms=1, reason="bench", by="me")
    store.append_control(MASTER, CreateTopic("bench", 1, 1), wall_ms=1)
    store.set_confirm(store.end)
    while store.dispatch(MiB):
        pass
    return store


Seconds = tuple[float, float]
"""Wall time and CPU time of one append."""


def appends(store: Store, files: int, rate: float) -> tuple[list[Seconds], list[int]]:
    """Seconds of each append, and the numbers of those that changed the file."""
    threads = Threads()
    jobs = BackgroundJobs(store, threads, eager=False, dispatch_bytes=MiB, now=time.monotonic())
    made = [section(Shape(16, 1024))]
    seconds: list[Seconds] = []
    changes: list[int] = []
    due = time.monotonic()
    while len(changes) < files:
        before = store.end // SEGMENT
        began, worked = time.perf_counter(), time.thread_time()
        store.append(MASTER, made, wall_ms=2)
        seconds.append((time.perf_counter() - began, time.thread_time() - worked))
        if store.end // SEGMENT != before:
            changes.append(len(seconds) - 1)
        store.set_confirm(store.end)
        now = time.monotonic()
        jobs.work(now)
        jobs.dispatch(now, 2)
        threads.hand_back(jobs)
        due += 1 / rate
        if (left := due - time.monotonic()) > 0:
            time.sleep(left)
    threads.close()
    return seconds, changes


def percentiles(values: list[float]) -> str:
    """p50, p99, p99.9 and the largest, in microseconds."""
    ordered = sorted(values)
    found = [ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in SHARES]
    return " | ".join(f"{value * 1e6:,.0f}" for value in found)


def main() -> int:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=2000.0, help="appends a second")
    parser.add_argument("--warm", action="store_true", help="touch whole files ahead")
    parser.add_argument("--folder", type=Path, help="on the file system to measure")
    options = parser.parse_args()
    rounds = [measured(options) for _ in range(options.rounds)]
    show("wall time", [Split([wall for wall, _ in times], at) for times, at in rounds])
    show("CPU time of the thread", [Split([cpu for _, cpu in times], at) for times, at in rounds])
    return 0


def measured(options: argparse.Namespace) -> tuple[list[Seconds], list[int]]:
    """What `appends` returns of a store of its own."""
    folder = Path(tempfile.mkdtemp(prefix="twinlog-bench-", dir=options.folder))
    try:
        store = opened(folder / "store", warm=options.warm)
        found = appends(store, options.files, options.rate)
        store.close(clean=False)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


class Split:
    """Seconds of the appends of a round, told apart by where the file changed."""

    def __init__(self, seconds: list[float], changes: list[int]) -> None:
        near = {at + step for at in changes for step in range(-AROUND, AROUND + 1)}
        self.across = [one for at, one in enumerate(seconds) if at in near]
        self.between = [one for at, one in enumerate(seconds) if at not in near]
        self.changes = [seconds[at] for at in changes]


def show(what: str, rounds: list[Split]) -> None:
    """Print one table."""
    across = [one for split in rounds for one in split.across]
    between = [one for split in rounds for one in split.between]
    changes = [one for split in rounds for one in split.changes]
    print(f"| {what} | count | p50, us | p99 | p99.9 | largest |\n|---|---|---|---|---|---|")
    print(f"| across a file change | {len(across)} | {percentiles(across)} |")
    print(f"| between | {len(between)} | {percentiles(between)} |")
    print(f"| the changes themselves | {len(changes)} | {percentiles(changes)} |\n")
    print("p99.9 of each round, across and between, us:", end=" ")
    pairs = [(nearly_worst(split.across), nearly_worst(split.between)) for split in rounds]
    print(", ".join(f"{one:,.0f} and {two:,.0f}" for one, two in pairs), end="\n\n")


def nearly_worst(values: list[float]) -> float:
    """p99.9 in microseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * 0.999))] * 1e6


if __name__ == "__main__":
    sys.exit(main())
