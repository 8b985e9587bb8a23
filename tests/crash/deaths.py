"""A store that lives through the history of `tests.stores.histories` and dies in one disk call."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

import pytest

from storage import Store
from storage.disk.disk import Disk
from storage.log.log_folders import Folders, MultiFolderDisk
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.stores.histories.delays import DelayHistory, examine_delays
from tests.stores.histories.groups import GroupHistory, examine_groups
from tests.stores.histories.history import History, examine, lose
from tests.stores.histories.timers import TimerHistory, examine_timers, small_grains


def _nothing(history: History, store: Store) -> None:
    """Look at nothing more."""


@dataclass(frozen=True)
class Deaths:
    """One way to lay a store out, one history of it, and the deaths in that."""

    seen: Callable[[FakeDisk], Disk]
    """The disk as a new process sees it."""
    lives: Callable[[Disk], History] = History
    """Makes the history."""
    also: Callable[[History, Store], None] = _nothing
    """What else is looked at in a store that was recovered."""
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    """What is different while it lives."""

    @cached_property
    def calls(self) -> int:
        """Disk calls of the whole history."""
        disk = FakeDisk(page_size=512)
        with self.around():
            self.lives(self.seen(disk)).play()
        return disk.faults.calls

    def die(self, number: int, kind: str) -> None:
        """Die in one call, lose something, and look at what is left."""
        disk = FakeDisk(page_size=512)
        history = self.lives(self.seen(disk))
        disk.faults.crash(after=number)
        with self.around():
            with pytest.raises(SimulatedCrash):
                history.play()
            lose(disk, kind, number)
            examine(self.seen(disk), history, kind, also=lambda _, store: self.also(history, store))


def _spread(disk: FakeDisk) -> Disk:
    return MultiFolderDisk(disk, Folders(("second", "third/logs")))


def _groups(history: History, store: Store) -> None:
    assert isinstance(history, GroupHistory)
    examine_groups(history, store)


def _delays(history: History, store: Store) -> None:
    assert isinstance(history, DelayHistory)
    examine_delays(history, store)


def _timers(history: History, store: Store) -> None:
    assert isinstance(history, TimerHistory)
    examine_timers(history, store)


ONE_FOLDER = Deaths(lambda disk: disk)
THREE_FOLDERS = Deaths(_spread)
GROUPS = Deaths(lambda disk: disk, GroupHistory, _groups)
DELAYS = Deaths(lambda disk: disk, DelayHistory, _delays)
TIMERS = Deaths(lambda disk: disk, TimerHistory, _timers, small_grains)
