"""What ten Spark tasks that read cold data from the slaves cost the master's appends.

    python benchmarks/spark/cold_reads.py [--gib 3] [--seconds 10] [--rounds 2] [--rate 0 ...]
                                    [--isolate pin|nice|none] [--control]
                                    [--folder DIR] [--master DIR]

Starts a coordinator, a master and two slaves on loopback, loads a topic with 1 KiB records, starts
the slaves again (a new process has mapped nothing) and drops their log files from the page cache;
``fincore`` must say that they are gone. Then in turn, A B A B: appends alone, and appends while ten
tasks of one Spark session read the whole topic from the slaves again and again, evicted before each
pass and window; the session is stopped (SIGSTOP) while appends are alone. Appends are batches
encoded beforehand, and count when every node of the in-sync set has them, so a slave that answers
late because of its readers is seen in the rate.

The claim is about the master, and a cluster has a machine for each node. On few cores Spark alone
would take all of them, and the figure would be about the scheduler. So by default (``pin``) master
and load have one half of the cores, slaves and Spark the other, and Spark has the least weight
there: a slave runs first, as it would on a machine of its own. What is left to measure is what the
readers ask of the master, and what they do to the slaves' acknowledgements. ``nice`` gives Spark
the least weight and pins nothing, ``none`` does neither. The disk is shared as well: ``--master``
puts the master's files elsewhere, on another disk or in memory (``/dev/shm``). ``--rate`` limits
the load to a number of records per second. A pace below the limit leaves CPU and disk for the
readers, and latencies count from when a batch was due. ``--control`` adds a third window to each
turn: no reads, but a process that only copies memory on each of the slaves' cores, at the same
weight. What that costs is the price of one machine for all, whatever runs beside the master.

Printed for each window: rate, latencies, what the tasks got from slaves and from the master, what
the nodes read from disk (``/proc/PID/io``), CPU seconds, and the nodes in sync at its end; then the
medians. Needs Linux, ``fincore`` (util-linux), two cores, and room for three copies of what is
loaded and sent. Only processes of its own are started and ended; all files are removed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.cluster.own_cluster import (
    ANSWER_SECONDS,
    READY_SECONDS,
    Cluster,
    cluster,
    environment,
    evict,
    resident,
    wait_for,
)
from cli.bench.loads import section_of
from cli.bench.measurement import Count
from cli.connection import connect
from twinlog import Client
from twinlog.session.link import error_of
from twinlog.units import GiB, KiB, MiB
from twinlog.wire.frames import Frame, Type

TASKS, QUEUES, BODY, BATCH, WINDOW = 10, 8, 1024, 256 * KiB, 8
COLD, HOT = "cold", "hot"
ALONE, READING, STRANGERS = KINDS = ("alone", "with cold reads", "beside strangers")
LEAST = 19
WARM_BYTES = 128 * MiB
"""Read before anything is measured: workers are there, the JVM has compiled."""
COLD_SHARE_MAX = 0.01
"""Largest share of the loaded files that may be in memory before a round of reading."""


# ── the load, a process of its own ──────────────────────────────────────────────────────────────


def be_load(master: str, topic: str, seconds: float, rate: float, size: int) -> None:
    """Append prepared batches for a time, or up to a number of bytes, and print the result.

    A batch counts when its acknowledgement came in time; its latency is from when it was due.
    """
    connection = connect(master, ANSWER_SECONDS)
    family = connection.peer.family
    sections = [section_of(topic, queue, BODY, BATCH, family) for queue in range(QUEUES)]
    count, waiting, turn = Count(), dict[int, float](), 0
    began = due = time.monotonic()
    end, in_time = began + seconds, 0
    while True:
        now = time.monotonic()
        going = now < end and turn * BATCH < size
        if going and len(waiting) < WINDOW and due <= now:
            data, records = sections[turn % QUEUES]
            row = [topic, turn % QUEUES, records, len(data), 0, 0, 0]
            fields: dict[str, object] = {"ack": "confirmed", "sections": [row]}
            fields["timeout_ms"] = int(ANSWER_SECONDS * 1000)
            number = connection.send(Frame(Type.APPEND, fields=fields), ANSWER_SECONDS, [data])
            waiting[number] = due if rate else now
            due, turn = due + (records / rate if rate else 0.0), turn + 1
            continue
        if not waiting and not going:
            break
        patience = ANSWER_SECONDS if not going or len(waiting) == WINDOW else due - now
        answer = connection.take(max(patience, 0.0))
        if answer is None:
            continue
        if answer.is_error:
            raise error_of(answer)
        now = time.monotonic()
        count.latencies.add(now - waiting.pop(answer.request))
        count.records += sections[0][1]
        in_time += sections[0][1] if now <= end else 0
    connection.close()
    took = seconds if time.monotonic() >= end else time.monotonic() - began
    p50, p99 = (count.latencies.percentile(percent) or 0.0 for percent in (50.0, 99.0))
    print(json.dumps({"rate": in_time / took, "p50": p50, "p99": p99}))


# ── the readers, a process of its own ───────────────────────────────────────────────────────────


def be_readers(servers: str, below: int, folders: list[str]) -> None:
    """Read the topic again and again until standard input ends."""
    from twinlog.spark.sessions import local_session

    over = threading.Event()
    # workers are forked from a process that has imported what they need
    settings = {"spark.log.level": "OFF", "spark.python.daemon.module": "tests.spark.forking"}
    with local_session(f"local[{TASKS}]", settings) as spark:

        def read() -> None:
            source = spark.read.format("twinlog").options(servers=servers, subscribe=COLD)
            source = source.options(minPartitions=str(TASKS), splitBytes="1 TiB")
            source.load().write.format("noop").mode("append").save()

        def passes() -> None:
            while not over.is_set():
                for folder in folders:
                    evict(Path(folder), below)
                try:
                    read()
                except Exception as error:
                    if not over.is_set():  # not cancelled at the end
                        print(error, file=sys.stderr, flush=True)
                        os._exit(1)

        worker = threading.Thread(target=passes)
        worker.start()
        print("ready", flush=True)
        sys.stdin.read()
        over.set()
        while worker.is_alive():  # a job may begin after the first order to stop
            spark.sparkContext.cancelAllJobs()
            worker.join(0.2)


class Readers:
    """The Spark session; it is stopped (SIGSTOP) while nothing is to be read.

    So its workers and what the JVM has compiled are there when it goes on, and a window of reading
    holds nothing but reading.
    """

    def __init__(self, servers: str, below: int, folders: list[Path], log: Path) -> None:
        command = [sys.executable, __file__, "--be", "readers", servers, str(below)]
        self._log = log
        self._used: dict[psutil.Process, float] = {}
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [*command, *map(str, folders)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
                start_new_session=True,  # an autogroup of its own, whose weight can be set
            )
        assert self.process.stdout is not None
        if not self.process.stdout.readline():
            raise SystemExit(f"the Spark session ended:\n{self.told()}")

    def least(self) -> None:
        """Give the session the least weight there is."""
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.nice(LEAST)
        with contextlib.suppress(OSError):  # a kernel without autogroups
            Path(f"/proc/{self.process.pid}/autogroup").write_text(str(LEAST))

    def family(self) -> list[psutil.Process]:
        """The session's driver, JVM and Python workers."""
        leader = psutil.Process(self.process.pid)
        return [leader, *leader.children(recursive=True)]

    def used(self) -> float:
        """CPU seconds of all of them so far; of one that has ended, what was seen of it last.

        The process that waits for a child takes over its times, and a worker's may be lost: so none
        is asked for those of its children.
        """
        for process in self.family():
            self._used[process] = max(used(process), self._used.get(process, 0.0))
        return sum(self._used.values())

    def told(self) -> str:
        """The end of what the session wrote to its error stream."""
        return self._log.read_text(errors="replace")[-2000:]

    def pause(self) -> None:
        """Have no process of the session run."""
        for _ in range(2):  # a process may have come while the others were stopped
            for process in self.family():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.suspend()

    def go_on(self) -> None:
        """Have all of them run again."""
        for process in reversed(self.family()):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.resume()

    def close(self) -> None:
        """End it; its JVM and workers end with it."""
        if self.process.poll() is not None:
            return
        self.go_on()
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(READY_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)  # it leads a session of its own
            self.process.wait(READY_SECONDS)


# ── the measurement ─────────────────────────────────────────────────────────────────────────────


def pin(pid: int, cores: set[int]) -> None:
    """Have every thread of a process run on these cores; those it makes later follow."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            os.sched_setaffinity(int(task.name), cores)


@dataclass(frozen=True)
class Look:
    """Counters at one moment: CPU seconds and bytes since the processes' starts."""

    cpu: dict[str, float]
    disk: dict[str, int]
    served: dict[str, int]

    @classmethod
    def now(cls, made: Cluster, readers: Readers) -> Look:
        """Take them."""
        nodes = {name: psutil.Process(made.pid(name)) for name in ("n1", *made.slaves)}
        cpu = {name: used(process) for name, process in nodes.items()}
        cpu["spark"] = readers.used()
        disk = {name: int(process.io_counters().read_bytes) for name, process in nodes.items()}
        return cls(cpu, disk, {name: made.read(name, COLD) for name in nodes})


def used(process: psutil.Process) -> float:
    """CPU seconds of a process; 0 when it has ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


def append(
    made: Cluster, topic: str, terms: tuple[float, float, int], cores: set[int] | None = None
) -> dict[str, float]:
    """Run the load on these cores; ``terms``: seconds, records per second, bytes."""
    words = [made.address("n1"), topic, *map(str, terms)]
    command = [sys.executable, __file__, "--be", "load", *words]
    prefix = ["taskset", "-c", ",".join(map(str, sorted(cores)))] if cores else []
    done = subprocess.run(
        [*prefix, *command], check=True, stdout=subprocess.PIPE, text=True, env=environment()
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


def load_topic(made: Cluster, gib: float) -> int:
    """Load the topic and start the slaves again, cold; return up to where the log is loaded."""
    with Client(made.address("n1")) as client:
        for topic in (COLD, HOT):
            client.create_topic(topic, QUEUES)
    began = time.monotonic()
    append(made, COLD, (3600.0, 0.0, int(gib * GiB)))
    below = int(made.metric("n1", "twinlog_log_confirm_offset_bytes"))
    print(f"loaded {below / GiB:.1f} GiB in {time.monotonic() - began:.0f} s", flush=True)
    made.stop(*made.slaves)
    os.sync()
    for name in made.slaves:
        evict(made.log(name), below)
    made.start(*made.slaves)
    wait_for(lambda: made.in_sync() == 3, "three nodes in sync")
    return below


@contextlib.contextmanager
def strangers(cores: set[int]) -> Iterator[None]:
    """Have a process on each of these cores copy memory, at the least weight."""
    program = "data = bytes(1 << 23)\nwhile True: bytearray(data)"
    running = [
        subprocess.Popen(
            ["taskset", "-c", str(core), sys.executable, "-c", program], start_new_session=True
        )
        for core in cores
    ]
    try:
        for each in running:
            os.setpriority(os.PRIO_PROCESS, each.pid, LEAST)
            with contextlib.suppress(OSError):
                Path(f"/proc/{each.pid}/autogroup").write_text(str(LEAST))
        yield
    finally:
        for each in running:
            each.kill()
            each.wait(READY_SECONDS)


class Benchmark:
    """One loaded cluster with its readers."""

    def __init__(self, made: Cluster, asked: argparse.Namespace) -> None:
        self._made, self._asked = made, asked
        cores = sorted(os.sched_getaffinity(0))
        half = len(cores) // 2
        self._front, self._back = set(cores[:half]), set(cores[half:])
        self._below = load_topic(made, asked.gib)
        folders = [made.log(name) for name in made.slaves]
        self._folders = folders
        servers = ",".join(made.address(name) for name in ("n1", *made.slaves))
        self.readers = Readers(servers, self._below, folders, made.folder / "readers.log")
        try:
            wait_for(lambda: self._served() > WARM_BYTES, "the first rows")
        except BaseException:
            self.readers.close()
            raise
        if asked.isolate != "none":
            self.readers.least()
        if asked.isolate == "pin":
            pin(made.pid("n1"), self._front)
            for name in made.slaves:
                pin(made.pid(name), self._back)
            for process in self.readers.family():
                with contextlib.suppress(psutil.NoSuchProcess, OSError):
                    pin(process.pid, self._back)

    def append(self, seconds: float, rate: float) -> dict[str, float]:
        """Run the load; return its figures."""
        cores = self._front if self._asked.isolate == "pin" else None
        return append(self._made, HOT, (seconds, rate, 1 << 60), cores)

    def window(self, rate: float, kind: str) -> float:
        """Append for a while, in one of `KINDS`; print the figures, return the rate."""
        self.readers.pause()
        os.sync()  # no window pays for the one before
        for folder in self._folders:
            evict(folder, self._below)
        share = resident(self._folders, self._below)
        if share > COLD_SHARE_MAX:
            raise SystemExit(f"{share:.1%} of the slaves' loaded files are still in memory")
        if kind == READING:
            before = self._served()
            self.readers.go_on()
            wait_for(lambda: self._served() > before + TASKS * MiB, "ten reading tasks")
        first = Look.now(self._made, self.readers)
        with strangers(self._back if kind == STRANGERS else set()):
            found = self.append(self._asked.seconds, rate)
        last = Look.now(self._made, self.readers)
        self._print(found, first, last, kind=kind, share=share)
        return found["rate"]

    def _served(self) -> int:
        return sum(self._made.read(name, COLD) for name in self._made.slaves)

    def _print(
        self, found: dict[str, float], first: Look, last: Look, *, kind: str, share: float
    ) -> None:
        def gone(of: Callable[[Look], dict[str, Any]], *names: str) -> Any:
            return sum(of(last)[name] - of(first)[name] for name in names)

        slaves = self._made.slaves
        served = [gone(lambda look: look.served, *names) / MiB for names in (slaves, ("n1",))]
        disk = [gone(lambda look: look.disk, *names) / MiB for names in (slaves, ("n1",))]
        cpu = [gone(lambda look: look.cpu, *names) for names in (("n1",), slaves, ("spark",))]
        print(
            f"{kind:16}{found['rate']:10,.0f} records/s"
            f"  p50 {found['p50'] * 1e3:.1f} ms  p99 {found['p99'] * 1e3:.1f} ms"
            f"  served: slaves {served[0]:,.0f} MiB, master {served[1]:,.0f} MiB"
            f"  from disk: slaves {disk[0]:,.0f} MiB, master {disk[1]:,.0f} MiB"
            f"  CPU s: master {cpu[0]:.1f}, slaves {cpu[1]:.1f}, Spark {cpu[2]:.1f}"
            f"  in sync {self._made.in_sync()}, cached before {share:.2%}",
            flush=True,
        )


def measure(asked: argparse.Namespace) -> None:
    """Measure in turn and print the medians."""
    kinds = KINDS if asked.control else KINDS[:2]
    with cluster(asked.folder, asked.master) as made:
        bench = Benchmark(made, asked)
        try:
            bench.readers.pause()
            bench.append(2.0, 0.0)  # files are there, code is warm
            print(f"load before: {os.getloadavg()[0]:.1f}", flush=True)
            for rate in asked.rate:
                rates: dict[str, list[float]] = {kind: [] for kind in kinds}
                for _ in range(asked.rounds):
                    for kind, found in rates.items():
                        found.append(bench.window(rate, kind))
                what = f"paced at {rate:,.0f}/s" if rate else "all that goes"
                alone = median(rates[ALONE])
                for kind, found in rates.items():
                    lost = f"{1 - median(found) / alone:.1%} lost"
                    print(f"{what}, {kind}: median {median(found):,.0f}/s, {lost}", flush=True)
        finally:
            bench.readers.close()


def main() -> None:
    """Measure, or be one of the processes of a measurement."""
    parser = argparse.ArgumentParser(description="What cold reads cost the master's appends.")
    parser.add_argument("--gib", type=float, default=3.0)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=2)
    rates = {"type": float, "nargs": "+", "default": [0.0]}
    parser.add_argument("--rate", help="records/s, one or more; 0: all that goes", **rates)
    parser.add_argument("--isolate", choices=["pin", "nice", "none"], default="pin")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    parser.add_argument("--master", type=Path, help="where the master's folder is made")
    parser.add_argument("--control", action="store_true", help="beside strangers as well")
    parser.add_argument("--be", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    match asked.be:
        case ["load", master, topic, *numbers]:
            seconds, rate, size = map(float, numbers)
            be_load(master, topic, seconds, rate, int(size))
        case ["readers", servers, below, *folders]:
            be_readers(servers, int(below), folders)
        case _:
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # and everything with it
            measure(asked)


if __name__ == "__main__":
    main()
