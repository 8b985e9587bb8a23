"""What many queues cost: append rate, memory, descriptors, start time.

    python benchmarks/log/many_queues.py [--queues 1,10000,100000] [--records 64] [--size 1024] DIR

For each number of queues a store is made in ``DIR``, every queue gets one section (its file comes
into being), then as many sections again are appended and dispatched as make `STEADY_BYTES`, over
all queues in turn. Printed: the cost of a queue's first record, the steady rate, the same in
processor seconds (steadier on a shared machine), resident memory, open descriptors, the time of a
clean start, of one after a kill (with `SINCE_QUEUES` queues appended to since the snapshot), and of
a clean stop. The last column compares with the first row.

The work is what a lone master's loop does; no network. Run it on a file system with room for
`STEADY_BYTES` and 4 KiB for each queue.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from node.clients.limits import queue_descriptors_that_fit
from storage import CreateTopic, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from twinlog.format.record import RecordEncoder

MiB = 1024 * 1024
STEADY_BYTES = 512 * MiB
QUEUES_A_TOPIC = 1000
SINCE_QUEUES = 1024
"""Queues that are written between the clean start and the kill."""
TURN = 16
"""Sections that arrive in one turn of the loop."""


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description="What many queues cost.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--queues", default="1,10000,100000")
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--size", type=int, default=1024)
    asked = parser.parse_args()
    print("queues first_us MiB/s cpu_s/GiB rss_MiB fds start_s killed_s stop_s relative")
    base = 0.0
    for count in [int(word) for word in asked.queues.split(",")]:
        row = measure(asked.directory / f"q{count}", count, asked.records, asked.size)
        base = base or row[2]
        cells = " ".join(f"{value:.3g}" for value in row)
        print(f"{count} {cells} {base / row[2]:.2f}", flush=True)


def measure(directory: Path, queues: int, records: int, size: int) -> tuple[float, ...]:
    """Return the figures of one row; the directory is removed."""
    settings = StoreSettings(segment_size=256 * MiB)
    fitting = queue_descriptors_that_fit()

    def opened() -> Store:
        disk = RealDisk(directory, descriptors_max=fitting)
        return Store.open(disk, settings, Who("bench", "g1", "n1"), wall_ms=1)

    store = opened()
    lead(store, 1)
    places = create(store, queues)
    one = section_maker(records, size)
    first = timed(lambda: fill(store, places))
    bytes_each = len(one(*places[0]).data)
    sections = max(STEADY_BYTES // bytes_each, TURN)
    before, clock = cpu(), time.perf_counter()
    at = 0
    # As many buffers in every row: bytes that lie in a cache would flatter the first.
    made = [one(*places[number % len(places)]) for number in range(sections)]
    while at < sections:
        turn = [made[(at + number) % len(made)] for number in range(TURN)]
        send(store, turn)
        at += TURN
    wall, spent = time.perf_counter() - clock, cpu() - before
    total = at * bytes_each
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    fds = len(os.listdir("/proc/self/fd"))
    stop = timed(lambda: store.close(clean=True))
    holder: list[Store] = []
    start = timed(lambda: holder.append(opened()))
    lead(holder[0], 2)
    for turn in range(0, min(len(places), SINCE_QUEUES), TURN):
        send(holder[0], [one(*place) for place in places[turn : turn + TURN]], epoch=2)
    holder[0].close(clean=False)
    killed = timed(lambda: holder.append(opened()))
    holder[1].close(clean=False)
    shutil.rmtree(directory)
    return (
        first / len(places) * 1e6, total / MiB / wall, spent / (total / 1024 / MiB), rss, fds,
        start, killed, stop,
    )  # fmt: skip


def token(epoch: int) -> Token:
    """The master of an epoch."""
    return Token("master", epoch, epoch)


def lead(store: Store, epoch: int) -> None:
    """Become the master."""
    store.take_token(token(epoch))
    store.append_epoch(
        token(epoch), epoch=epoch, node="n1", session=1, wall_ms=1, reason="bench", by="bench"
    )


def create(store: Store, queues: int) -> list[tuple[str, int]]:
    """Make topics; returns every (topic, queue)."""
    places: list[tuple[str, int]] = []
    while len(places) < queues:
        name, count = f"t{len(places)}", min(QUEUES_A_TOPIC, queues - len(places))
        store.append_control(token(1), CreateTopic(name, count, 1), wall_ms=1)
        places += [(name, queue) for queue in range(count)]
    settle(store)
    return places


def section_maker(records: int, size: int) -> Callable[[str, int], Section]:
    """Return a maker of sections of ``records`` records with bodies of ``size`` bytes."""
    body = bytes(size)

    def make(topic: str, queue: int) -> Section:
        encoder = RecordEncoder(topic, queue)
        for _ in range(records):
            encoder.add(body, born_timestamp=1)
        return Section(topic, queue, records, encoder.take())

    return make


def fill(store: Store, places: list[tuple[str, int]]) -> None:
    """Give each queue its first record."""
    small = section_maker(1, 16)
    for at in range(0, len(places), TURN):
        send(store, [small(*place) for place in places[at : at + TURN]])


def send(store: Store, sections: list[Section], *, epoch: int = 1) -> None:
    """One turn of the loop: append, confirm, dispatch; jobs as they are due."""
    store.append(token(epoch), sections, wall_ms=2)
    settle(store)
    if (job := store.jobs.prepare_job()) is not None:
        job.run()
        store.jobs.finish(job)


def settle(store: Store) -> None:
    """Confirm and dispatch everything."""
    store.set_confirm(store.end)
    while store.dispatched < store.confirm and store.dispatch(4 * MiB):
        pass


def timed(work: Callable[[], object]) -> float:
    """Return how long it took, seconds."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu() -> float:
    """Return the processor time of this process, seconds."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
