"""A process whose log lies in several folders dies in any disk call.

The history of `tests.stores.histories` on a `MultiFolderDisk`: files are made, adopted,
cut and removed in three folders, whose names become durable one by one.
"""

from __future__ import annotations

from functools import cache

import pytest

from storage.log.log_folders import Folders, MultiFolderDisk
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.stores.histories import LOSSES, History, examine, lose

PARTS = 96


def spread(disk: FakeDisk) -> MultiFolderDisk:
    """The disk as a new process sees it."""
    return MultiFolderDisk(disk, Folders(("second", "third/logs")))


class SpreadHistory(History):
    """The same history in three folders."""

    def __init__(self, disk: FakeDisk) -> None:
        super().__init__(spread(disk))


@cache
def calls() -> int:
    """Disk calls of the whole history."""
    disk = FakeDisk(page_size=512)
    SpreadHistory(disk).play()
    return disk.faults.calls


def die(number: int, kind: str) -> None:
    """Die in one call, lose something, and look at what is left."""
    disk = FakeDisk(page_size=512)
    history = SpreadHistory(disk)
    disk.faults.crash(after=number)
    with pytest.raises(SimulatedCrash):
        history.play()
    lose(disk, kind, number)
    examine(spread(disk), history, kind)


@pytest.mark.slow
@pytest.mark.parametrize("kind", LOSSES)
def test_every_ninety_sixth_call(kind: str) -> None:
    """See the module's text; each kind of loss has calls of its own."""
    for number in range(PARTS // 3 * LOSSES.index(kind), calls(), PARTS):
        die(number, kind)
