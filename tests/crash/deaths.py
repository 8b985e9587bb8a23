"""A store that lives through the history of `tests.stores.histories` and dies in one disk call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import pytest

from storage.disk.disk import Disk
from storage.log.log_folders import Folders, MultiFolderDisk
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.stores.histories import History, examine, lose


@dataclass(frozen=True)
class Deaths:
    """One way to lay a store out, and the deaths in it."""

    seen: Callable[[FakeDisk], Disk]
    """The disk as a new process sees it."""

    @cached_property
    def calls(self) -> int:
        """Disk calls of the whole history."""
        disk = FakeDisk(page_size=512)
        History(self.seen(disk)).play()
        return disk.faults.calls

    def die(self, number: int, kind: str) -> None:
        """Die in one call, lose something, and look at what is left."""
        disk = FakeDisk(page_size=512)
        history = History(self.seen(disk))
        disk.faults.crash(after=number)
        with pytest.raises(SimulatedCrash):
            history.play()
        lose(disk, kind, number)
        examine(self.seen(disk), history, kind)


def _spread(disk: FakeDisk) -> Disk:
    return MultiFolderDisk(disk, Folders(("second", "third/logs")))


ONE_FOLDER = Deaths(lambda disk: disk)
THREE_FOLDERS = Deaths(_spread)
