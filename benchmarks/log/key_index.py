"""The key index: entries a second and core, and what it costs the append path.

    python benchmarks/log/key_index.py [--records N] [--rounds N]

Two runs of one store on a real disk, in turn, with the key index and without: sections of 256
records of 100 bytes with two keys each are appended, confirmed and dispatched as a node does it,
every 16 sections. CPU time of this process, the kernel's share included, is taken for appending
(which the index must not touch) and for dispatching (queues, with the index or without); the
difference of the latter is the index's. Slots and cells are RocketMQ's 5,000,000 and 20,000,000.

Needs some hundred megabytes of disk in the temporary directory; they go at the end.

Not here: queries, whose cost is a read of a cell for each entry of a chain.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from storage import CreateTopic, Section, Store, StoreSettings, Token, Who
from storage.disk.disk import RealDisk
from storage.key_index.search import KeyQuery
from twinlog.format.record import RecordEncoder, encode_properties

RECORDS = 256
TURN = 16
KEYS = 2


def sections(count: int) -> list[Section]:
    """Distinct sections; keys differ from record to record."""
    made: list[Section] = []
    for number in range(count):
        encoder = RecordEncoder("orders", number % 4)
        for record in range(RECORDS):
            name = number * RECORDS + record
            properties = encode_properties({"KEYS": f"order-{name} customer-{name % 9973}"})
            encoder.add(b"x" * 100, properties=properties, born_timestamp=1)
        made.append(Section("orders", number % 4, RECORDS, bytes(encoder.take())))
    return made


def run(folder: Path, made: list[Section], *, index: bool) -> tuple[float, float, float]:
    """Return CPU seconds of appending, of dispatching, and of one query."""
    settings = StoreSettings(segment_size=256 << 20, key_index=index)
    store = Store.open(RealDisk(folder), settings, Who("c", "g1", "n1"), wall_ms=1)
    token = Token("master", 1, 1)
    store.take_token(token)
    store.append_epoch(token, epoch=1, node="n1", session=1, wall_ms=1, reason="b", by="b")
    store.append_control(token, CreateTopic("orders", 4, 1), wall_ms=1)
    store.set_confirm(store.end)
    appending = dispatching = access = 0.0
    for first in range(0, len(made), TURN):
        begin = time.process_time()
        for section in made[first : first + TURN]:
            store.append(token, [section], wall_ms=1_000_000 + first)
        between = time.process_time()
        store.set_confirm(store.end)
        while store.dispatch(1 << 20, wall_ms=1_000_000):
            pass
        end = time.process_time()
        appending, dispatching = appending + between - begin, dispatching + end - between
    if index:
        begin = time.process_time()
        lookup = store.reads.look_up(KeyQuery("orders", "customer-17"))
        answer = lookup.run()
        access = time.process_time() - begin
        assert len(answer.slices) == min(32, len(made) * RECORDS // 9973 + 1)
    store.close(clean=False)
    return appending, dispatching, access


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    made = sections(given.records // RECORDS)
    rows: dict[bool, list[tuple[float, float, float]]] = {True: [], False: []}
    for _ in range(given.rounds):
        for index in (True, False):
            with tempfile.TemporaryDirectory() as folder:
                rows[index].append(run(Path(folder), made, index=index))
    records = len(made) * RECORDS

    def median(index: bool, column: int) -> float:
        return statistics.median(row[column] for row in rows[index])

    spent = median(True, 1) - median(False, 1)
    print(f"append, index on     {1e9 * median(True, 0) / records:8.1f} ns a record")
    print(f"append, index off    {1e9 * median(False, 0) / records:8.1f} ns a record")
    print(f"dispatch, index on   {1e9 * median(True, 1) / records:8.1f} ns a record")
    print(f"dispatch, index off  {1e9 * median(False, 1) / records:8.1f} ns a record")
    print(f"index                {KEYS * records / spent / 1e6:8.2f} million entries a core second")
    print(f"a query with 32 hits {1e3 * median(True, 2):8.2f} ms")


if __name__ == "__main__":
    main()
