"""What must never happen to delayed messages.

Asked for every confirmed batch that has copies or marks (`tests.sim.profiles.delays`), before what
waits is counted that the batch itself brings.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from tests.sim.invariants.invariant import Invariant
from tests.sim.profiles.timed import Model, Timed

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.profiles.delays import DelayBatch
    from tests.sim.world import World


class DeliveredOnce(Invariant):
    """No delayed message has a second copy in the confirmed log."""

    rules = "R71"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._copies: Counter[bytes] = Counter()

    def delay_batch(self, batch: DelayBatch) -> None:
        for name, _ in batch.copies:
            self._copies[name] += 1
            if self._copies[name] > 1:
                self.fail(f"{name!r} was delivered {self._copies[name]} times")


class MarkWithCopies(Invariant):
    """What the rows of a batch pass are the records that its copies are of; progress rises."""

    rules = "R71"

    def delay_batch(self, batch: DelayBatch) -> None:
        for level, after, before in batch.marks:
            if after <= before:
                self.fail(f"level {level} goes from {before} to {after}")
        passed = Counter(one.name for one in batch.passed)
        copies = Counter(name for name, _ in batch.copies)
        if passed != copies:
            self.fail(
                f"{batch.marks} pass {sorted((passed - copies).elements())} without a copy,"
                f" {sorted((copies - passed).elements())} are copies without a mark"
            )


class NotEarly(Invariant):
    """The store time of a copy is not before the due time of its record."""

    rules = "R72"

    def delay_batch(self, batch: DelayBatch) -> None:
        due = {one.name: one.due_ms for one in batch.passed}
        for name, stamp in batch.copies:
            if stamp < due.get(name, 0):
                self.fail(f"{name!r} was due at {due[name]}, its copy is of {stamp}")


class NothingWaitingLeaves(Invariant):
    """Retention deletes no record that waits."""

    rules = "R71"

    def started(self, node: SimNode, start: int) -> None:
        for level, one in self.world.delays.left():
            if one.log_offset < start:
                self.fail(
                    f"{node.name} begins at {start}; {one.name!r} of level {level} waits at"
                    f" {one.log_offset}"
                )


class ProgressFollowsLog(Invariant):
    """Each node knows how far levels are delivered exactly as the log below its dispatcher says."""

    rules = "R60, R71"

    def sample(self, node: SimNode) -> None:
        if node.store is None or not self.world.delays.marks:
            return
        wanted = self.world.delays.at(node.store.dispatched)
        found = dict(node.store.messaging.confirmed.delays)
        if found != wanted:
            self.fail(f"{node.name} at {node.store.dispatched}: {found}, the log says {wanted}")


class WaitingFollowsLog(Invariant):
    """Each node knows what waits for a time, and where, as the log below its dispatcher says."""

    rules = "R60, R73"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._models: dict[str, Model] = {}

    def sample(self, node: SimNode) -> None:
        account = self.world.delays
        if node.store is None or not isinstance(account, Timed) or not account.events:
            return
        known = self._models.get(node.name, Model())
        model = self._models[node.name] = account.advance(known, node.store.dispatched)
        timers = node.store.messaging.confirmed.timers
        wanted = sorted((due, one, model.places[one]) for one, due in model.waiting.items())
        found = [(one.due, one.offset, one.at) for one in timers.after()]
        if found != wanted or timers.progress != model.progress or timers.count != len(found):
            self.fail(
                f"{node.name} at {node.store.dispatched} has progress {timers.progress} and"
                f" {found}; the log says {model.progress}, {wanted}"
            )


class CancelHolds(Invariant):
    """A message of which it was said that it is taken back has no copy."""

    rules = "R73"

    def cancelled(self, name: bytes) -> None:
        account = self.world.delays
        if isinstance(account, Timed) and name in account.copied:
            self.fail(f"{name!r} is said to be taken back, its copy is confirmed")

    def delay_batch(self, batch: DelayBatch) -> None:
        account = self.world.delays
        told = account.told if isinstance(account, Timed) else {}
        for name, _ in batch.copies:
            if told.get(name) == "cancelled":
                self.fail(f"{name!r} was taken back and is delivered")


OF_DELAYS = (
    DeliveredOnce, MarkWithCopies, NotEarly, NothingWaitingLeaves, ProgressFollowsLog,
    WaitingFollowsLog, CancelHolds,
)  # fmt: skip
