"""How many bytes of a cached log `twinlog log verify` checks in a second of one core.

    python benchmarks/log/verify_log.py --size 512MiB

A twinlog store is written into a temporary directory, read once so that it is cached, and verified:
every batch CRC, body CRC, log offset, batch border and queue entry. The figure is bytes of log for
each second of CPU time, the median of the rounds; wall time on a shared machine says little.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from storage import CreateTopic, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import Checks, verify
from twinlog.units import parse_size

QUEUES = 4
SECTION = 64 * 1024


def write(root: Path, size: int, body: int) -> None:
    """Write a store of at least ``size`` bytes of log, bodies of ``body`` bytes."""
    settings = StoreSettings(segment_size=128 << 20)
    store = Store.open(RealDisk(root), settings, Who("bench", "g1", "n1", 4), wall_ms=1)
    token = Token("master", 1, 1)
    store.take_token(token)
    store.append_epoch(token, epoch=1, node="n1", session=1, wall_ms=1, reason="", by="")
    store.append_control(token, CreateTopic("t", QUEUES, 1), wall_ms=1)
    store.set_confirm(store.end)
    properties = encode_properties({"KEYS": "key", "TAGS": "a"})
    count = max(SECTION // (body + 100), 1)
    data: list[bytes] = []
    for queue in range(QUEUES):
        encoder = RecordEncoder("t", queue)
        for _ in range(count):
            encoder.add(b"x" * body, properties=properties, born_timestamp=1)
        data.append(bytes(encoder.take()))
    while store.end < size:
        store.append(token, [Section("t", q, count, data[q]) for q in range(QUEUES)], wall_ms=2)
        store.set_confirm(store.end)
        store.dispatch(1 << 22)
    store.close(clean=True)


def seconds(root: Path, checks: Checks) -> tuple[float, float, int, int]:
    """Verify once; return CPU seconds, wall seconds, bytes of log, records."""
    cpu, wall = time.process_time(), time.perf_counter()
    with StoreReader(root, check_crc=not checks.fast) as store:
        verdict = verify(store, checks)
    assert not verdict.findings, verdict.findings[0]
    spent = time.process_time() - cpu, time.perf_counter() - wall
    return *spent, verdict.end, verdict.records


def main() -> None:
    """Measure 1 KiB and 100 B bodies, all checks and ``--fast``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", default="512MiB")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print("body  checks  GB/s of CPU  ns/record  GB/s of wall")
    for body in (1024, 100):
        with tempfile.TemporaryDirectory(prefix="verify-") as folder:
            root = Path(folder) / "store"
            write(root, parse_size(given.size), body)
            seconds(root, Checks())
            for name, checks in (("all", Checks()), ("fast", Checks(fast=True))):
                found = [seconds(root, checks) for _ in range(given.rounds)]
                cpu = statistics.median(one[0] for one in found)
                wall = statistics.median(one[1] for one in found)
                end, records = found[0][2:]
                rates = f"{end / cpu / 1e9:11.2f}  {cpu / records * 1e9:9.1f}"
                print(f"{body:4}  {name:6}  {rates}  {end / wall / 1e9:12.2f}", flush=True)


if __name__ == "__main__":
    main()
