"""A process that buffers dies in any disk call: only what was not committed is lost.

The history of `tests.stores.histories` with ``async-buffered``: steps commit every third
time, so that the pool is full, empty and half-way when the end comes. kill -9 leaves everything
below the committed offset; a power loss leaves what that test allows of it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.stores.histories.history import LOSSES, History, examine, lose
from tests.stores.workbench import SETTINGS

BUFFERED = replace(SETTINGS, flush="async-buffered", buffer_pool_bytes=8192)
PARTS = 16


class BufferedHistory(History):
    """Commits now and then, and always looks at what is in the file only."""

    settings = BUFFERED
    unnoted_max = 12  # a commit has the batches of three steps

    def step(self, number: int) -> None:
        """One step; every third commits."""
        super().step(number)
        assert self.store is not None
        if number % 3 == 2:
            self.store.commit()
            self.note()


@cache
def calls() -> int:
    """Disk calls of the whole history."""
    disk = FakeDisk(page_size=512)
    BufferedHistory(disk).play()
    return disk.faults.calls


def test_the_pool_is_in_use() -> None:
    """Commits of several batches, batches that pass a full pool, and rolls that empty it."""
    disk = FakeDisk(page_size=512)
    disk.faults.recording = True
    history = BufferedHistory(disk)
    history.play()
    ops = [op for op, _ in disk.faults.record]
    assert min(ops.count(op) for op in ("log.commit", "log.roll.commit")) >= 1
    assert ops.count("log.commit") < 30


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
@pytest.mark.parametrize("part", range(4))
def test_every_sixteenth_call(kind: str, part: int) -> None:
    """See the module's text; each kind of loss has calls of its own."""
    for number in range(4 * part + LOSSES.index(kind), calls(), PARTS):
        disk = FakeDisk(page_size=512)
        history = BufferedHistory(disk)
        disk.faults.crash(after=number)
        with pytest.raises(SimulatedCrash):
            history.play()
        lose(disk, kind, number)
        examine(disk, history, kind)
