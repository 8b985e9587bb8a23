"""A slave's way into the log: what it takes, and that it takes nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from storage import Store, Who
from storage.errors import BadBatch, DiskFull, Gap
from storage.log.segments import Segments, covered
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SLAVE,
    append,
    bodies,
    fill,
    lead,
    master,
    open_store,
    queue_files,
    section,
    settle,
    ship,
)
from twinlog.format.batch_index import (
    KIND_EPOCH,
    KIND_FILLER,
    KIND_REBUILT,
    KIND_RECORDS,
    BatchEntry,
)
from twinlog.kernels import crc32c

Batches = tuple[list[BatchEntry], bytes]


def slave(disk: FakeDisk | None = None) -> Store:
    """An empty store under a slave's token."""
    store = open_store(disk or FakeDisk(seed=2), who=Who("cluster", "g1", "n2"))
    store.take_token(SLAVE)
    return store


def batches(source: Store, start: int, most: int) -> Batches:
    """Entries and payload as a master ships them."""
    entries = source.entries(start, max_bytes=most)
    parts = [bytes(source.view(one.start, one.start + covered(one))) for one in entries]
    return entries, b"".join(parts)


@pytest.mark.parametrize("most", [1, 700, 5000, 60_000])
def test_a_slave_has_the_same_log(most: int) -> None:
    """Bytes, borders, epochs, topics and queue files are equal, however the stream is cut."""
    disks = FakeDisk(), FakeDisk(seed=2)
    first, second = master(disks[0]), slave(disks[1])
    fill(first, 30)
    ship(first, second, SLAVE, most=most)
    settle(first)
    settle(second)
    assert second.end == first.end
    assert second.chain_crc(0, second.end) == first.chain_crc(0, first.end)
    assert second.epochs == first.epochs
    assert second.reads.topics() == first.reads.topics()
    assert queue_files(disks[0]) == queue_files(disks[1])
    assert bodies(second, 3) == bodies(first, 3)


def test_a_file_that_follows_another_one_is_refused() -> None:
    """Its head carries the chain of the file before; at a start a difference is damage."""
    disk = FakeDisk(seed=2)
    first, second = master(FakeDisk()), slave(disk)
    fill(first, 30)
    entries, payload = batches(first, 0, 1 << 20)
    head = next(one for one in entries[1:] if one.kind == KIND_EPOCH)
    below = [one for one in entries if one.end <= head.start]
    size = sum(covered(one) for one in below)
    second.receive(SLAVE, below, memoryview(payload[:size]))
    index = second._log.segments.all[-1].index
    index._chain_crc = index.chain_whole() ^ 1  # as if one of its entries were another
    with pytest.raises(BadBatch, match="the file before it"):
        second.receive(SLAVE, [head], memoryview(payload[size : size + head.length]))
    index._chain_crc ^= 1
    second.receive(SLAVE, [head], memoryview(payload[size : size + head.length]))
    assert second.end == head.end
    real = Segments.chain_before
    second.close(clean=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Segments, "chain_before", lambda self, at: (real(self, at) or 0) ^ 1)
        again = open_store(disk, who=second.who)
    assert again.damage is not None
    assert again.damage.offset == head.start


def test_an_epoch_follows_its_record() -> None:
    """A slave learns new epochs in the middle of a file and at the head of one."""
    first, second = master(FakeDisk()), slave()
    for epoch in (2, 3, 4):
        lead(first, epoch=epoch)
        fill(first, 5, epoch=epoch)
    ship(first, second, SLAVE, most=1 << 20)
    assert second.epochs == first.epochs
    assert second.last_epoch == 4


def wrong_crc(batch: Batches) -> Batches:
    """One bit of the last batch's bytes is another."""
    data = bytearray(batch[1])
    data[-1] ^= 4
    return batch[0], bytes(data)


def wrong_epoch(batch: Batches) -> Batches:
    """The last batch claims an epoch that no record opened."""
    return [*batch[0][:-1], replace(batch[0][-1], epoch=9)], batch[1]


def wrong_kind(batch: Batches) -> Batches:
    """A batch that was rebuilt by a scan proves nothing."""
    return [*batch[0][:-1], replace(batch[0][-1], kind=KIND_REBUILT)], batch[1]


def wrong_epoch_record(batch: Batches) -> Batches:
    """Ordinary records dressed as an epoch record."""
    return [*batch[0][:-1], replace(batch[0][-1], kind=KIND_EPOCH, count=1)], batch[1]


def early_filler(batch: Batches) -> Batches:
    """A filler that does not reach the end of its file."""
    return [*batch[0][:-1], replace(batch[0][-1], kind=KIND_FILLER)], batch[1][
        : 8 - batch[0][-1].length
    ]


def too_long(batch: Batches) -> Batches:
    """A batch beyond the end of its file."""
    more = 20_000 - batch[0][-1].length
    return [*batch[0][:-1], replace(batch[0][-1], length=20_000)], batch[1] + bytes(more)


@pytest.mark.parametrize(
    "spoil",
    [
        wrong_crc, wrong_epoch, wrong_kind, wrong_epoch_record, early_filler, too_long,
    ],
)  # fmt: skip
def test_a_bad_batch_does_not_exist(spoil: Callable[[Batches], Batches]) -> None:
    """Its start is named, nothing of the frame's file is in the log, beyond the end are zeros."""
    first, second = master(FakeDisk()), slave()
    fill(first, 4)
    ship(first, second, SLAVE)
    append(first, section(3), section(2, queue=1))
    append(first, section(4))
    entries, payload = spoil(batches(first, second.end, 1 << 20))
    end = second.end
    with pytest.raises(BadBatch) as caught:
        second.receive(SLAVE, entries, memoryview(payload))
    assert caught.value.start == entries[-1].start
    assert second.end == end
    assert not any(second.view(end, second.settings.segment_size))
    ship(first, second, SLAVE)
    assert second.chain_crc(0, second.end) == first.chain_crc(0, first.end)


def test_a_filler_shorter_than_a_blank_is_refused() -> None:
    """No master has so little room; to write it would reach beyond the file."""
    first, second = master(FakeDisk()), slave()
    fill(first, 1)
    ship(first, second, SLAVE)
    size, end = second.settings.segment_size, second.end
    entry = replace(second.entries(0, max_bytes=1 << 20)[-1], kind=KIND_RECORDS)
    entries = [
        replace(entry, start=end, length=size - 4 - end),
        replace(entry, start=size - 4, length=4, kind=KIND_FILLER),
    ]
    payload = bytes(size - 4 - end)
    entries[0] = replace(entries[0], crc=crc32c(payload))
    with pytest.raises(BadBatch) as caught:
        second.receive(SLAVE, entries, memoryview(payload + bytes(8)))
    assert (caught.value.start, second.end) == (size - 4, end)


def test_a_gap_is_refused() -> None:
    """Batches that begin elsewhere than at the end, leave one out, or bring more bytes."""
    first, second = master(FakeDisk()), slave()
    fill(first, 4)
    entries, payload = batches(first, 0, 1 << 20)
    with pytest.raises(Gap):
        second.receive(SLAVE, entries[1:], memoryview(payload)[entries[0].length :])
    third = [entries[0], *entries[2:]]
    with pytest.raises(Gap):
        second.receive(SLAVE, third, memoryview(payload))
    with pytest.raises(Gap):
        second.receive(SLAVE, entries, memoryview(payload + b"x"))
    with pytest.raises(Gap):
        second.receive(SLAVE, entries, memoryview(payload[:-1]))
    assert second.end == 0
    ship(first, second, SLAVE)


def test_a_full_disk_leaves_whole_batches() -> None:
    """A slave that met a full disk goes on from its end when there is space."""
    first = master(FakeDisk())
    fill(first, 30)
    for after in range(8):
        disk = FakeDisk(seed=2)
        second = slave(disk)
        disk.faults.fail("log.", after=after, error=28)
        with pytest.raises(DiskFull):
            ship(first, second, SLAVE, most=3000)
        assert second.disk_full
        ship(first, second, SLAVE, most=3000)
        assert second.chain_crc(0, second.end) == first.chain_crc(0, first.end)
        settle(second)
        assert second.reads.topics() == first.reads.topics()


def test_a_promoted_slave_goes_on_where_the_master_was() -> None:
    """Next queue offsets and sequences are those of the log, its unconfirmed tail included."""
    first, second = master(FakeDisk()), slave()
    append(first, section(3, producer=9), section(2, producer=9, sequence=3))
    append(first, section(4, queue=1))
    ship(first, second, SLAVE)
    second.set_confirm(second.entries(0, max_bytes=1)[0].end)
    lead(second, epoch=2)
    second.set_confirm(second.end)
    again = append(second, section(2, producer=9, sequence=3), epoch=2)[0]
    assert (again.outcome.name, again.queue_offset) == ("DUPLICATE", 3)
    fresh = append(second, section(2, producer=9, sequence=5), section(1, queue=1), epoch=2)
    assert [one.queue_offset for one in fresh] == [5, 4]
