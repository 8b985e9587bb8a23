"""Batch queues made from RocketMQ's log are the files that RocketMQ made, byte for byte."""

from __future__ import annotations

from pathlib import Path

from storage.queues.queues import ConsumeQueues
from tests.fakes.disk import FakeDisk
from tests.stores.golden import unpack
from twinlog.kernels import gather_units
from twinlog.store.log import Run
from twinlog.store.reader import StoreReader

FOLDER = "batchconsumequeue"


def test_the_files_are_those_of_rocketmq(tmp_path: Path) -> None:
    """Plain messages and inner batches, several files, zeros behind the last unit."""
    root = unpack("09-batch", tmp_path)
    wanted = {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted((root / FOLDER).rglob("*"))
        if path.is_file()
    }
    topics = frozenset(path.split("/")[1] for path in wanted)
    disk = FakeDisk()
    queues = ConsumeQueues(disk, 200, topics)  # ten units of a file, as in the golden store
    with StoreReader(root) as store:
        for piece in store.pieces():
            if isinstance(piece, Run):
                data = store.series.read(piece.offset, piece.end - piece.offset)
                names = queues.batched_names
                for name, queue, first, _, units in gather_units(
                    data, 0, len(data), piece.offset, names
                ):
                    queues.write(name.decode(), queue, first, units)
        ends = {(q.topic, q.queue): (q.min, q.max) for q in store.queues() if q.topic in topics}
    assert len(wanted) >= 4
    assert {path: disk.read(path, "test") for path in wanted} == wanted
    assert {(q.topic, q.queue): (q.start, q.end) for q in queues} == ends
    files = {f"{FOLDER}/{t}/{q}/{n}" for t in topics for q in "01"
             for n in disk.list(f"{FOLDER}/{t}/{q}")}  # fmt: skip
    assert files == set(wanted)
