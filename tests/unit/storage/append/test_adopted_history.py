"""What RocketMQ wrote before a store was adopted, epoch 0, reaches a slave like any other batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from storage import Store
from storage.errors import BadBatch
from storage.log.segments import covered
from tests.stores.adopted import adopted, follower
from tests.stores.golden import manifest, unpack
from tests.stores.workbench import SLAVE, ship
from twinlog.format.batch_index import KIND_RECORDS
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify


def settle(store: Store) -> None:
    """Confirm and dispatch everything."""
    store.set_confirm(store.end)
    while store.dispatch(1 << 20):
        pass


@pytest.mark.parametrize("most", [700, 1 << 20])
@pytest.mark.parametrize("case", ["01-basic", "02-rollover", "09-batch", "10-ipv6", "15b-v2-pop"])
def test_a_slave_receives_adopted_history(tmp_path: Path, case: str, most: int) -> None:
    """Log, borders, epochs and every queue entry are equal, before and after a restart."""
    first = adopted(unpack(case, tmp_path / "a"))
    (tmp_path / "b").mkdir()
    second = follower(tmp_path / "b", first)
    ship(first, second, SLAVE, most=most)
    settle(first)
    settle(second)
    assert second.epochs == first.epochs
    assert first.epochs[0].epoch == 0
    assert second.chain_crc(0, second.end) == first.chain_crc(0, first.end)
    assert second.reads.topics() == first.reads.topics()
    assert second.close(clean=True)
    second = follower(tmp_path / "b", first)
    assert (second.damage, second.epochs) == (None, first.epochs)
    second.close(clean=False)
    with StoreReader(tmp_path / "b") as reader:
        assert [f for f in verify(reader).findings if f.grade.value != "note"] == []
        for queue in manifest(case)["queues"]:
            held = reader.queue(queue["topic"], queue["queue_id"])
            assert (held is not None) == bool(queue["entries"])
            if held is not None:
                assert (held.min, held.max) == (queue["min"], queue["max"])


def test_epoch_zero_is_nothing_but_adopted_history(tmp_path: Path) -> None:
    """Ordinary batches of epoch 0, and adopted ones after an epoch of ours, are refused."""
    first = adopted(unpack("01-basic", tmp_path / "a"))
    (tmp_path / "b").mkdir()
    second = follower(tmp_path / "b", first)
    entry = first.entries(0, max_bytes=1)[0]
    data = memoryview(bytes(first.view(0, covered(entry))))
    with pytest.raises(BadBatch):
        second.receive(SLAVE, [replace(entry, kind=KIND_RECORDS)], data)
    ship(first, second, SLAVE)
    settle(second)
    assert second.last_epoch == first.last_epoch > 0
    again = replace(entry, start=second.end)
    with pytest.raises(BadBatch, match="epoch 0"):
        second.receive(SLAVE, [again], data)
