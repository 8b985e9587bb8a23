"""What each fast way for one record saves, beside the general way that it stands for, in one run.

    python benchmarks/log/fast_ways.py [--rounds 7] [--count 4000] [--folder DIR]

A fast way is a second way through a layer, whose only contract is to do what the general one does.
Each one here has to pay for that: the general way is measured with the fast one switched off,
everything else is the same. The two take turns (A B A B ...), a round is ``--count`` records of
100 B, the figures are CPU time of one, least and median of the rounds.

* *append*: `Store.append` of one section (`Appender._alone`).
* *ship*: what a frame to a slave carries after one append (`Store.lone_batch`).
* *receive*: a slave stores one batch (`Store.receive_alone`).
* *frame*: a node takes one request from its socket's bytes (`FrameReader._simple`).
* *client*: `single_sends.py` has this one, the fast way of a client's single send.
"""

from __future__ import annotations

import argparse
import contextlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.clients.single_sends import fast, general
from benchmarks.log.append_path import MASTER, SEGMENT, MiB, Shape, new_store, section
from replication.core import messages
from replication.driver.outgoing_batches import OutgoingBatches
from storage import Store, StoreSettings, Token, Who
from storage.append.appender import Appender
from storage.disk.disk import RealDisk
from twinlog.wire.frames import Frame, FrameReader, Type, encode

SLAVE = Token("slave", 1, 1)
Way = Callable[[Path, int], float]
"""Does a count of records in a new folder; returns the CPU seconds they took."""


ONE = [section(Shape(1, 100))]
"""One record of 100 B, as a turn of its own."""


def follower(folder: Path, leader: Store) -> Store:
    """A slave's store that has what ``leader`` has."""
    settings = StoreSettings(segment_size=SEGMENT)
    store = Store.open(RealDisk(folder), settings, Who("bench", "g1", "n2"), wall_ms=1)
    store.take_token(SLAVE)
    entries = leader.entries(0, max_bytes=MiB)
    data = b"".join(bytes(leader.view(one.start, one.end)) for one in entries)
    store.receive(SLAVE, entries, memoryview(data))
    return store


def append(folder: Path, count: int) -> float:
    """One section after the other."""
    store = new_store(folder)
    began = time.process_time()
    for _ in range(count):
        store.append(MASTER, ONE, wall_ms=2)
    return time.process_time() - began


def ship(folder: Path, count: int) -> float:
    """What is sent of each, the append itself left out."""
    store, spent = new_store(folder), 0.0
    outgoing = OutgoingBatches(store)
    for _ in range(count):
        start = store.end
        store.append(MASTER, ONE, wall_ms=2)
        began = time.process_time()
        outgoing.at(start)
        spent += time.process_time() - began
        outgoing.clear()
    return spent


def receive(folder: Path, count: int) -> float:
    """One batch after the other, as the driver hands them over."""
    leader = new_store(folder / "leader")
    slave = follower(folder / "follower", leader)
    batches: list[tuple[bytes, memoryview]] = []
    for _ in range(count):
        start = leader.end
        leader.append(MASTER, ONE, wall_ms=2)
        packed = messages.pack_entries(leader.entries(start, max_bytes=MiB))
        batches.append((packed, memoryview(bytes(leader.view(start, leader.end)))))
    began = time.process_time()
    for packed, data in batches:
        if not slave.receive_alone(SLAVE, packed, data):
            slave.receive(SLAVE, messages.unpack_entries(packed), data)
    return time.process_time() - began


def frame(folder: Path, count: int) -> float:
    """One request after the other out of a socket's bytes."""
    fields: dict[str, Any] = {"ack": "confirmed", "sections": [["bench", 0, 1, 190, 7, 0, 5]]}
    head, payload = encode(Frame(Type.APPEND, 0, 3, 17, 99, fields, b"x" * 190))
    data, reader = bytes(head) + bytes(payload), FrameReader()
    began = time.process_time()
    for _ in range(count):
        reader.feed(data)
        assert reader.next() is not None
    return time.process_time() - began


def single(way: Callable[[int], None]) -> Way:
    """A way of `single_sends`."""

    def run(folder: Path, count: int) -> float:
        began = time.process_time()
        way(count)
        return time.process_time() - began

    return run


def without(
    owner: type, name: str, answer: object
) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """A fast way that never applies: ``answer`` sends everything the general way."""
    return lambda: patch.object(owner, name, lambda *_: answer)


WAYS: dict[str, tuple[Way, Way, Callable[[], contextlib.AbstractContextManager[Any]]]] = {
    "append": (append, append, without(Appender, "_alone", None)),
    "ship": (ship, ship, without(Store, "lone_batch", None)),
    "receive": (receive, receive, without(Store, "receive_alone", False)),
    "frame": (frame, frame, without(FrameReader, "_simple", 0)),
    "client": (single(fast), single(general), contextlib.nullcontext),
}


def main() -> int:
    """Take each fast way and its general one in turn and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    print("| | fast, least / median | general, least / median | saved |\n|---|---|---|---|")
    for name, (quick, slow, switched_off) in WAYS.items():
        found: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(options.rounds):
            for is_fast, way in ((True, quick), (False, slow)):
                off = contextlib.nullcontext() if is_fast else switched_off()
                home = Path(tempfile.mkdtemp(dir=options.folder))
                try:
                    with off:
                        found[is_fast].append(way(home, options.count) / options.count * 1e6)
                finally:
                    shutil.rmtree(home)
        row = [f"{min(found[one]):.2f} / {statistics.median(found[one]):.2f} us" for one in found]
        saved = statistics.median(found[False]) - statistics.median(found[True])
        print(f"| {name} | {row[0]} | {row[1]} | {saved:.2f} us |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
