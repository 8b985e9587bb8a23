"""A batch that comes alone: the short way leaves what the general way would have left."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from replication.core.messages import pack_entries
from storage import Store, Token, Who
from storage.errors import BadBatch, DiskFull, StaleToken
from storage.log.segments import covered
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import SLAVE, append, fill, lead, master, open_store, section, settle
from twinlog.format.batch_index import KIND_EPOCH, KIND_FILLER, KIND_REBUILT, BatchEntry


def slave(disk: FakeDisk) -> Store:
    """An empty store under a slave's token."""
    store = open_store(disk, who=Who("cluster", "g1", "n2"))
    store.take_token(SLAVE)
    return store


def batch(source: Store, start: int) -> tuple[BatchEntry, bytes]:
    """The batch that begins there, as a master ships it."""
    entry = source.entries(start, max_bytes=1)[0]
    return entry, bytes(source.view(entry.start, entry.start + covered(entry)))


def alone(store: Store, entry: BatchEntry, payload: bytes, writer: Token = SLAVE) -> bool:
    """Hand one batch over as the driver does first."""
    return store.receive_alone(writer, pack_entries([entry]), memoryview(payload))


def test_both_ways_leave_the_same() -> None:
    """Files, topics, epochs and store timestamps; control records and fillers go the other way."""
    first = master(FakeDisk())
    fill(first, 20)
    lead(first, epoch=2)
    fill(first, 20, epoch=2)
    fill(first, 20, epoch=2, records=1)
    left: list[tuple[object, ...]] = []
    taken: list[bool] = []
    for short in (True, False):
        disk = FakeDisk(seed=2)
        second = slave(disk)
        while second.end < first.end:
            entry, payload = batch(first, second.end)
            if short:
                taken.append(alone(second, entry, payload))
            if not (short and taken[-1]):
                second.receive(SLAVE, [entry], memoryview(payload))
        stamp = second._log.timestamp  # pyright: ignore[reportPrivateUsage]
        second.set_confirm(second.end)
        settle(second)
        names = [f"{where}/{name}" for where in ("commitlog", "twinlog/batches")
                 for name in disk.list(where)]  # fmt: skip
        files = {name: bytes(disk.peek(name) or b"") for name in names}
        left.append((files, second.reads.topics(), second.epochs, stamp))
    assert left[0] == left[1]
    assert len(taken) - sum(taken) >= 4, "epoch records, the topic and fillers went the other way"
    assert sum(taken) > 30


SPOILT: dict[str, Callable[[BatchEntry, bytes], tuple[BatchEntry, bytes]]] = {
    "crc": lambda entry, data: (entry, data[:-1] + bytes([data[-1] ^ 4])),
    "epoch": lambda entry, data: (replace(entry, epoch=9), data),
    "rebuilt": lambda entry, data: (replace(entry, kind=KIND_REBUILT), data),
    "epoch record": lambda entry, data: (replace(entry, kind=KIND_EPOCH, count=1), data),
    "filler": lambda entry, data: (replace(entry, kind=KIND_FILLER), data[:8]),
    "beyond the file": lambda entry, data: (
        replace(entry, length=20_000), data + bytes(20_000 - len(data))
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILT)
def test_a_bad_one_goes_the_general_way(what: str) -> None:
    """Which names it; nothing is stored, and the good one is taken afterwards."""
    first, second = master(FakeDisk()), slave(FakeDisk(seed=2))
    append(first, section(3))
    while second.end < first.entries(first.end - 1, max_bytes=1)[0].start:
        entry, payload = batch(first, second.end)
        second.receive(SLAVE, [entry], memoryview(payload))
    entry, payload = batch(first, second.end)
    bad, data = SPOILT[what](entry, payload)
    end = second.end
    assert not alone(second, bad, data)
    with pytest.raises(BadBatch):
        second.receive(SLAVE, [bad], memoryview(data))
    assert second.end == end
    assert not any(second.view(end, second.settings.segment_size))
    assert not alone(second, replace(entry, start=end + 1), payload)
    assert not alone(second, entry, payload[:-1])
    assert not second.receive_alone(SLAVE, b"", memoryview(payload))
    assert alone(second, entry, payload)
    assert second.chain_crc(0, second.end) == first.chain_crc(0, first.end)


def test_a_full_disk_and_another_writer_store_nothing() -> None:
    """The batch is taken when there is space, from the writer alone."""
    disk = FakeDisk(seed=2)
    first, second = master(FakeDisk()), slave(disk)
    fill(first, 1)
    while second.end < first.entries(first.end - 1, max_bytes=1)[0].start:
        entry, payload = batch(first, second.end)
        second.receive(SLAVE, [entry], memoryview(payload))
    entry, payload = batch(first, second.end)
    disk.faults.fail("log.receive", after=0, error=28)
    with pytest.raises(DiskFull):
        alone(second, entry, payload)
    assert second.disk_full
    assert not any(second.view(second.end, second.settings.segment_size))
    with pytest.raises(StaleToken):
        alone(second, entry, payload, replace(SLAVE, epoch=99))
    assert alone(second, entry, payload)
    assert not second.disk_full
