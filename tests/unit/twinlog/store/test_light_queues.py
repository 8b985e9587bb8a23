"""Light queues of RocketMQ's stores: which of the records that name one are in it.

What RocketMQ 5.3.3 entered for such records was seen in a running one.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.disk.disk import RealDisk
from storage.tools.repair import carry_out, plan_repair
from tests.stores.light import LIGHT, write
from tests.stores.sample import put
from twinlog.store.find import places_in_log
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify


def test_a_sound_store_is_sound(tmp_path: Path) -> None:
    """Nothing is missing of what RocketMQ never enters."""
    write(tmp_path)
    with StoreReader(tmp_path) as store:
        assert verify(store).findings == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_light_queue_is_what_rocketmq_would_enter(tmp_path: Path, clean: bool) -> None:
    """One entry of the record that names it twice, none of what waits or lies in batch queues."""
    places = write(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / LIGHT)
    if not clean:
        put(tmp_path / "abort", b"")
    with StoreReader(tmp_path) as store:
        assert (LIGHT, 0) in places_in_log(store)
        if not clean:
            queue = store.queue(LIGHT, 0)
            assert queue is not None
            assert [(e.queue_offset, e.log_offset) for e in queue.entries()] == [
                (0, places[0]),
                (1, places[1]),
            ]
        plan = plan_repair(store, index_slots=10)
        carry_out(RealDisk(tmp_path), plan, reader=store, wall_ms=1)
    with StoreReader(tmp_path) as store:
        assert verify(store).findings == []
        queue = store.queue(LIGHT, 0)
        assert queue is not None
        assert [entry.log_offset for entry in queue.entries(0)] == list(places)
