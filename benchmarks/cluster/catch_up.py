"""How long an empty node takes until it is in sync, and where that time goes.

    python benchmarks/cluster/catch_up.py [--size 2GiB] [--record 1024] [--single] [--rounds 3]
                                  [--segment 1GiB] [--cold] [--restart] [--folder DIR]

Starts a coordinator, a master and a slave on loopback and loads a topic. Then, each round: a third
node is started on an empty data folder, and its time is taken from the start of its process until
the master's in-sync set has it. Between the rounds it is stopped and its folder is removed. Printed
for each round, seconds: until the process serves (*starts*), until the first byte is stored
(*greets*), until it has what the master had when it began (*copies*), and until it is in the
in-sync set (*joins*); CPU seconds of both nodes from the start on; and the rate of *copies*.

``--single`` sends each record in a request of its own, so that a batch holds a few records; each
batch costs an entry of the batch index and a CRC. ``--cold`` drops the master's log files from the
page cache before each round. ``--restart`` measures something else: the master is killed (SIGKILL)
and started again, and no other node may take over; the time is taken from the start of its process
until a client has its first confirmed write.

A member that comes and goes waits before it joins again, twice as long each time; each round waits
for that before it begins. Of the wall times only those of a quiet machine mean anything: the load
is printed, and CPU seconds beside it.

The page cache needs memory that the machine has used before: on a virtual machine, fresh memory of
the host costs up to ten times as much. Needs three times the size on the disk. Only processes of
its own are started and ended; all files are removed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import time
from dataclasses import astuple, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil

from benchmarks.cluster.own_cluster import ANSWER_SECONDS, Cluster, cluster, evict, wait_for
from benchmarks.spark.cold_reads import used
from cli.bench.loads import prepared
from twinlog import Client
from twinlog.units import GiB, KiB, MiB, format_size, parse_size

TOPIC, QUEUES = "catch-up", 8
LOOK_SECONDS = 0.02
REJOIN_SECONDS = 2.0
LOAD_SECONDS = 0.05
"""Between two looks at how far the log is loaded."""
BATCH, WINDOW = 256 * KiB, 8
SINGLES = 64
"""Requests under way while single records are loaded."""


@dataclass(frozen=True)
class Round:
    """Seconds of one round; see the module's text."""

    starts: float
    greets: float
    copies: float
    joins: float
    master_cpu: float
    slave_cpu: float

    @property
    def whole(self) -> float:
        """From the start of the process to the in-sync set."""
        return self.starts + self.greets + self.copies + self.joins


def main() -> None:
    """Load, measure and print; or be the process that loads."""
    parser = argparse.ArgumentParser(description="An empty node becomes a member.")
    parser.add_argument("--size", type=parse_size, default=2 * GiB)
    parser.add_argument("--record", type=int, default=1024)
    parser.add_argument("--single", action="store_true", help="each record is a batch")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--segment", type=parse_size, default=GiB)
    parser.add_argument("--cold", action="store_true", help="the master reads from its disk")
    parser.add_argument("--restart", action="store_true", help="of the master, after SIGKILL")
    parser.add_argument("--folder", type=Path, help="where the temporary folder is made")
    asked = parser.parse_args()
    with cluster(asked.folder, segment=asked.segment) as made:
        load(made, asked)
        below = end_of(made, "n1")
        print(f"log of {format_size(below)}, load before: {os.getloadavg()[0]:.1f}", flush=True)
        if asked.restart:
            restarts(made, asked.rounds)
            return
        print("whole_s starts greets copies joins rate master_cpu_s slave_cpu_s", flush=True)
        rounds: list[Round] = []
        for number in range(asked.rounds):
            leave(made, REJOIN_SECONDS * 2**number)
            if asked.cold:
                os.sync()
                evict(made.log("n1"), below)
            rounds.append(one_round(made, below))
            say(rounds[-1], below)
        print("medians:", flush=True)
        say(Round(*map(median, zip(*map(astuple, rounds), strict=True))), below)


def say(one: Round, below: int) -> None:
    """Print a round."""
    rate = format_size(int(below / max(one.copies, 0.001) / MiB) * MiB)
    words = f"{one.whole:.2f} {one.starts:.2f} {one.greets:.2f} {one.copies:.2f} {one.joins:.2f}"
    print(f"{words} {rate}/s {one.master_cpu:.2f} {one.slave_cpu:.2f}", flush=True)


def end_of(made: Cluster, name: str) -> int:
    """The end of a node's log."""
    return int(made.status(name)["offsets"]["end"])


def leave(made: Cluster, pause: float) -> None:
    """Take n3 out and remove its folder; return when it may join again."""
    made.stop("n3")
    wait_for(lambda: made.in_sync() == 2, "n3 out of the in-sync set")
    may_join = time.monotonic() + pause
    shutil.rmtree(made.config.node("n3").data)
    os.sync()
    wait_for(lambda: time.monotonic() > may_join, "the end of the pause")


def restarts(made: Cluster, rounds: int) -> None:
    """Kill the master, start it, and write; print seconds and its CPU seconds."""
    print("first_write_s cpu_s", flush=True)
    found: list[tuple[float, float]] = []
    for _ in range(rounds):
        made.kill("n1")
        began = time.monotonic()
        made.start("n1")
        with Client(made.address("n1"), timeout=ANSWER_SECONDS) as client:
            client.send(TOPIC, b"first")
        took = time.monotonic() - began
        found.append((took, used(psutil.Process(made.pid("n1")))))
        print(f"{took:.2f} {found[-1][1]:.2f}", flush=True)
        wait_for(lambda: made.in_sync() == 3, "three nodes in sync")
    print("medians: {:.2f} {:.2f}".format(*map(median, zip(*found, strict=True))), flush=True)


def one_round(made: Cluster, below: int) -> Round:
    """Begin n3 on an empty folder; return when it was how far."""
    master = psutil.Process(made.pid("n1"))
    before, marks = used(master), [time.monotonic()]
    made.start("n3")
    marks.append(time.monotonic())
    for reached in (
        lambda: end_of(made, "n3") > 0,
        lambda: end_of(made, "n3") >= below,
        lambda: len(made.status("n1")["in_sync"]) == 3,
    ):
        while not reached():
            if time.monotonic() - marks[0] > 600:
                raise SystemExit("n3 did not become a member within 600 s")
            time.sleep(LOOK_SECONDS)
        marks.append(time.monotonic())
    spent = [after - mark for mark, after in pairwise(marks)]
    slave = used(psutil.Process(made.pid("n3")))
    return Round(*spent, used(master) - before, slave)


def load(made: Cluster, asked: argparse.Namespace) -> None:
    """Fill the log up to the size with records that are confirmed by two nodes."""
    with Client(made.address("n1")) as client:
        client.create_topic(TOPIC, QUEUES)
    batch, window = (1, SINGLES) if asked.single else (BATCH, WINDOW)
    began, looked, loaded = time.monotonic(), 0.0, False

    def over() -> bool:
        nonlocal looked, loaded
        if not loaded and time.monotonic() >= looked:
            looked = time.monotonic() + LOAD_SECONDS
            loaded = end_of(made, "n1") >= asked.size
        return loaded

    terms = {"queues": QUEUES, "batch": batch, "window": window, "ack": "confirmed"}
    prepared(made.address("n1"), TOPIC, asked.record, over, **terms)
    print(f"loaded in {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
