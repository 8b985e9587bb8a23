"""Mutants of delayed messages: batches, progress, time, and what holds the log.

Not here: how they are hunted (`tests.sim.mutants`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import node.delivery.service as service_module
from node.delivery.service import Deliveries
from replication.driver.driver import Driver
from storage.messaging.ahead import Ahead
from storage.messaging.copies import deliveries
from storage.messaging.fold import Messaging, Values
from storage.recovery.derived import Derived
from tests.sim.mutants.mutant import Mutant, always
from tests.sim.patches import Patches
from tests.sim.swarm import Plan
from twinlog.format.group_rows import DelayRow


def waiting(*, timed: bool = False, keep_files: int = 0, **rates: float) -> Callable[[Plan], None]:
    """Many messages that wait, for a level or a time; few members, exactly these faults."""

    def change(plan: Plan) -> None:
        plan.rates = dict(rates)
        plan.members, plan.disturbance, plan.fast_share = 1, 0.5, 0.0
        plan.delayed, plan.timed, plan.keep_files = 0.6, timed, keep_files
        plan.span_max = plan.runs_max = plan.dead_max = 0
        plan.weather.damage_share = 0.0
        if keep_files:
            plan.segment_size, plan.body_max = 16 * 1024, 1500

    return change


def _mark_apart(patches: Patches) -> None:
    whole = Driver.append_rows

    def apart(self: Driver, now: float, rows: Any, *, sections: Any = (), **names: Any) -> None:
        if not sections or not any(isinstance(row, DelayRow) for row in rows):
            whole(self, now, rows, sections=sections, **names)
            return
        self.append(
            now, sections, ack="confirmed", deadline=names["deadline"], reply=lambda *_: None
        )
        whole(self, now, rows, **names)

    patches.set(Driver, "append_rows", apart)


def _mark_at_confirm(patches: Patches) -> None:
    bound = Ahead.apply

    def later(self: Ahead, row: Any, at: int) -> bool:
        return not isinstance(row, DelayRow) and bound(self, row, at)

    patches.set(Ahead, "apply", later)


def _forgotten(patches: Patches) -> None:
    whole = Messaging.values

    def without(self: Messaging) -> Values:
        return replace(whole(self), delays=())

    patches.set(Messaging, "values", without)


def copy_lost(patches: Patches) -> None:
    """The last section of a delivery is missing."""

    def fewer(*args: Any, **names: Any) -> Any:
        copies, taken = deliveries(*args, **names)
        return (copies[:-1] or copies), taken

    patches.set(service_module, "deliveries", fewer)


def soon(patches: Patches) -> None:
    """Everything comes too early."""
    exact = Deliveries._now_ms  # pyright: ignore[reportPrivateUsage]
    patches.set(Deliveries, "_now_ms", lambda self, now: exact(self, now) + 300)


MUTANTS = (
    Mutant(
        "delay_mark_apart", "R71: copies and their mark are one batch", _mark_apart,
        waiting(), alone="MarkWithCopies",
    ),
    Mutant(
        "delay_mark_at_confirm", "R71: a mark binds from its append", _mark_at_confirm,
        waiting(), alone="DeliveredOnce",
    ),
    Mutant(
        "delays_forgotten", "R71: a snapshot says how far levels are delivered", _forgotten,
        waiting(kill=0.3, failover=0.2),
    ),
    Mutant(
        "delay_copy_lost", "R71: what a mark passes has a copy", copy_lost,
        waiting(), alone="MarkWithCopies",
    ),
    Mutant(
        "delays_not_held", "R71: retention keeps what waits",
        lambda patches: patches.set(Derived, "delayed_from", always(sys.maxsize)),
        waiting(keep_files=1), alone="NothingWaitingLeaves",
    ),
    Mutant(
        "delay_due_soon", "R72: a record is due at its time", soon, waiting(), alone="NotEarly",
    ),
    Mutant(
        "dispatch_wakes_no_delay", "R71: what is dispatched is looked at",
        lambda patches: patches.set(Deliveries, "_stirred", property(always(False))),
        waiting(), alone="",
    ),
)  # fmt: skip
"""Every mutant of delays."""
