"""A process with batch queues dies in any disk call: they are what the log says, and nothing more.

`tests.stores.histories.history.BatchHistory` sends to a batch topic, too: an inner batch and a
message of its own, three times at each step.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.crash.rotation import PARTS, numbers
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.stores.histories.history import (
    BATCH_FOLDER,
    LOSSES,
    BatchHistory,
    examine,
    examine_batches,
    lose,
)

STRIDE = 160


@cache
def calls() -> int:
    """Disk calls of the whole history."""
    disk = FakeDisk(page_size=512)
    BatchHistory(disk).play()
    return disk.faults.calls


def test_batch_queues_are_in_use() -> None:
    """Several files of them, cuts and retention among the calls."""
    disk = FakeDisk(page_size=512)
    disk.faults.recording = True
    BatchHistory(disk).play()
    touched = {op for op, path in disk.faults.record if path.startswith(BATCH_FOLDER)}
    assert {"queue.create", "queue.write", "retention.queue.remove"} <= touched


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_a_part_of_the_calls(kind: str) -> None:
    """See the module's text; each kind of loss has calls of its own, ``some`` others each day."""
    step = STRIDE // PARTS if kind == "some" else STRIDE
    for number in numbers(calls(), kind, first=LOSSES.index(kind), step=step):
        disk = FakeDisk(page_size=512)
        history = BatchHistory(disk)
        disk.faults.crash(after=number)
        with pytest.raises(SimulatedCrash):
            history.play()
        lose(disk, kind, number)
        examine(disk, history, kind, also=examine_batches)
