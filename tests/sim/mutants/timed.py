"""Mutants of messages that wait for a time: rows, time, cancels, and what holds the log.

Not here: how they are hunted (`tests.sim.mutants`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import storage.state.dispatcher as dispatcher_module
from storage.messaging.fold import Messaging, Values
from storage.messaging.timers import NOTHING, Timers, TimersAhead
from storage.recovery.derived import Derived
from tests.sim.mutants.delays import copy_lost, soon, waiting
from tests.sim.mutants.mutant import Mutant, always
from tests.sim.patches import Patches
from twinlog.format.group_rows import CancelRow, TimerRow


def _at_confirm(kind: type[TimerRow | CancelRow]) -> Callable[[Patches], None]:
    def change(patches: Patches) -> None:
        bound = TimersAhead.apply

        def later(self: TimersAhead, row: Any) -> bool:
            return not isinstance(row, kind) and bound(self, row)

        patches.set(TimersAhead, "apply", later)

    return change


def _unseen_passed(patches: Patches) -> None:
    exact = Timers.apply

    def blind(self: Timers, row: Any) -> bool:
        return exact(self, row._replace(seen=sys.maxsize) if isinstance(row, TimerRow) else row)

    patches.set(Timers, "apply", blind)


def _rescued_anew(patches: Patches) -> None:
    patches.set(dispatcher_module, "origin_of", always(-1))


def _rescued_and_gone(patches: Patches) -> None:
    def lost(self: Timers, due: int, offset: int, at: int, size: int) -> None:
        self.apply(CancelRow(due, offset))

    patches.set(Timers, "move", lost)


def _rescued_though_delivered(patches: Patches) -> None:
    exact = Timers.move

    def again(self: Timers, due: int, offset: int, at: int, size: int) -> None:
        if self.find(due, offset) is None:
            self.enter(due, offset, size)
        exact(self, due, offset, at, size)

    patches.set(Timers, "move", again)
    patches.set(TimersAhead, "is_at", lambda self, due, offset, at: True)


def _forgotten(patches: Patches) -> None:
    whole = Messaging.values

    def without(self: Messaging) -> Values:
        return replace(whole(self), timers=NOTHING)

    patches.set(Messaging, "values", without)


MUTANTS = (
    Mutant(
        "timer_mark_at_confirm", "R73: a mark binds from its append", _at_confirm(TimerRow),
        waiting(timed=True), alone="DeliveredOnce",
    ),
    Mutant(
        "timer_cancel_at_confirm", "R73: a cancel binds from its append", _at_confirm(CancelRow),
        waiting(timed=True), alone="CancelHolds",
    ),
    Mutant(
        "timer_unseen_passed", "R73: a row passes only what its master had seen", _unseen_passed,
        waiting(timed=True), alone="WaitingFollowsLog",
    ),
    Mutant(
        "timers_forgotten", "R73: a snapshot says what waits", _forgotten,
        waiting(timed=True, kill=0.3, failover=0.2), alone="",
    ),
    Mutant(
        "timer_copy_lost", "R73: what a row passes has a copy", copy_lost,
        waiting(timed=True), alone="MarkWithCopies",
    ),
    Mutant(
        "timers_not_held", "R73: retention keeps what waits",
        lambda patches: patches.set(Derived, "timed_from", always(sys.maxsize)),
        waiting(timed=True, keep_files=1), alone="",
    ),
    Mutant(
        "rescued_anew", "R73: what is rescued is the same message", _rescued_anew,
        waiting(timed=True, keep_files=1), alone="",
    ),
    Mutant(
        "rescued_and_gone", "R73: what is rescued waits on", _rescued_and_gone,
        waiting(timed=True, keep_files=1), alone="",
    ),
    Mutant(
        "rescued_though_delivered", "R73: what waits no more is not rescued",
        _rescued_though_delivered, waiting(timed=True, keep_files=1), alone="",
    ),
    Mutant(
        "timer_due_soon", "R73: a record is due at its time", soon, waiting(timed=True),
        alone="NotEarly",
    ),
)  # fmt: skip
"""Every mutant of messages that wait for a time."""
