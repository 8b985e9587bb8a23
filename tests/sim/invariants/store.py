"""What must never happen to one store: its log, its disk, its starts.

Not here: a group (`tests.sim.invariants.group`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from storage.errors import StaleToken
from storage.state.controls import ForgetProducers
from tests.sim.invariants.invariant import Invariant
from tests.sim.judge.ledger import Batch, Shadow
from tests.sim.users.clients import INSIDE_MAX
from tests.stores import workbench
from twinlog.errors import CorruptionError

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World


class EpochsAlongLog(Invariant):
    """Epochs never fall along a log, and each begins with its epoch record.

    Or with the filler that makes room for it: then the record is the next batch.
    """

    rules = "R10"

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        for batch in batches:
            before = batch.previous.epoch if batch.previous else 0
            if batch.epoch < before:
                self.fail(f"{node.name}: {batch} after epoch {before}")
            if batch.epoch > before and batch.kind not in (3, 1):
                self.fail(f"{node.name}: {batch} opens its epoch and is no epoch record")
            if batch.start % self.world.plan.segment_size == 0 and batch.kind != 3:
                self.fail(f"{node.name}: {batch} opens a file and is no epoch record")

    def sample(self, node: SimNode) -> None:
        assert node.store is not None
        seen: list[tuple[int, int]] = []
        for batch in self.world.ledger.shadows[node.name].batches:
            if not seen or seen[-1][0] != batch.epoch:
                seen.append((batch.epoch, batch.start))
        known = [(epoch.epoch, epoch.start) for epoch in node.store.epochs]
        if known != seen:
            self.fail(f"{node.name}: epochs {known}, the log says {seen}")


COPIES_MAX = 40
"""Of delayed messages, in one batch: what became due while no master served."""


class FilesAreFilled(Invariant):
    """A filler ends a file only when the next batch does not fit."""

    rules = "R10"

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        plan = self.world.plan
        more = INSIDE_MAX * 100 if plan.batches else 0
        more += 200 if plan.lights else 0
        records = plan.records_max if not plan.delayed else COPIES_MAX
        largest = records * (plan.body_max + more + 300) + 1024
        for batch in batches:
            if batch.kind == 1 and batch.length > largest:
                self.fail(f"{node.name}: {batch} skips {batch.length} bytes, {largest} would do")


class FlushedIsDurable(Invariant):
    """The flushed offset covers log and index: a power loss now would take nothing below it."""

    rules = "R6"

    def flushed(self, node: SimNode, shadow: Shadow, flushed: int) -> None:
        lost = self.world.layout.first_not_durable(node, shadow, flushed)
        if lost is not None:
            self.fail(f"{node.name} says flushed {flushed}, a power loss could take {lost}")


class EndedWriterWritesNothing(Invariant):
    """A token that has ended writes nothing, whoever still holds it; see `Faults` for who does."""

    rules = "R16"

    def late_write(self, node: SimNode) -> None:
        store, token = node.store, node.ended
        assert store is not None
        assert token is not None
        late = workbench.section(2, topic="topic0", queue=0)
        for write in (
            lambda: store.append(token, [late], wall_ms=self.world.wall_ms()),
            lambda: store.receive(token, [], memoryview(b"")),
            lambda: store.append_control(token, ForgetProducers(0), wall_ms=self.world.wall_ms()),
        ):
            with suppress(StaleToken, CorruptionError):
                write()
                self.fail(f"{node.name} writes under {token}, which has ended")


class RestartLosesNothing(Invariant):
    """A killed process finds its whole log again; a power loss takes nothing that was flushed."""

    rules = "R7"

    def booted(self, node: SimNode, shadow: Shadow) -> None:
        assert node.store is not None
        floor = shadow.flushed if node.lost_power else shadow.end
        if node.died_cutting:
            floor = min(floor, shadow.confirm)
        if node.store.end < floor:
            self.fail(
                f"{node.name} starts with end {node.store.end}, had {floor}"
                f" ({'flushed' if node.lost_power else 'in the page cache'})"
            )


class FlushedIsKnown(Invariant):
    """A start never takes for a torn tail what had counted as flushed, not even where it rotted."""

    rules = "R67"
    of_rotten = True

    def booted(self, node: SimNode, shadow: Shadow) -> None:
        assert node.store is not None
        boot = node.store.boot
        if node.died_cutting or boot.damage is not None or node.store.end >= shadow.flushed:
            return
        self.fail(
            f"{node.name} starts with end {node.store.end} and knows of no damage; it had flushed"
            f" {shadow.flushed}"
        )


class CutIsDurable(Invariant):
    """What a finished cut took away, no start finds again."""

    rules = "R41"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._gone: dict[tuple[str, int], set[tuple[int, int, int]]] = {}

    def _of(self, node: SimNode) -> set[tuple[int, int, int]]:
        return self._gone.setdefault((node.name, node.copies), set())

    def cut(self, node: SimNode, shadow: Shadow, end: int) -> None:
        gone = shadow.batches[shadow.count_up_to(end) :]
        self._of(node).update((one.epoch, one.start, one.crc) for one in gone)

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        self._of(node).difference_update((one.epoch, one.start, one.crc) for one in batches)

    def booted(self, node: SimNode, shadow: Shadow) -> None:
        assert node.store is not None
        if node.store.end <= shadow.end or node.died_in_call:
            return  # what was being written when the process died may be there
        for entry in node.entries(shadow.end, node.store.end):
            if (entry.epoch, entry.start, entry.crc) in self._of(node):
                self.fail(f"{node.name} finds a batch at {entry.start} that a cut took")


class CleanMeansComplete(Invariant):
    """A start is clean after a kill, and never clean when bytes may be gone unnoticed."""

    rules = "R26"

    def booted(self, node: SimNode, shadow: Shadow) -> None:
        assert node.store is not None
        boot = node.store.boot
        durable = self.world.is_durable(node) and node.lost_power
        whole = shadow.intact or durable
        kept = whole or node.store.end >= shadow.acked
        if boot.clean and not kept and shadow.end and not boot.new:
            self.fail(f"{node.name} lost bytes and starts clean")
        if not boot.clean and whole and not node.unclean_pending:
            self.fail(f"{node.name} lost nothing and starts unclean: {boot.why_unclean}")
        node.unclean_pending = not boot.clean


class OnlyZerosBeyond(Invariant):
    """Every byte below the end has an entry with a good CRC, only zeros lie beyond."""

    rules = "R8"

    def sample(self, node: SimNode) -> None:
        wrong = self.world.layout.first_wrong(node, self.world.ledger.shadows[node.name])
        if wrong is not None:
            self.fail(f"{node.name}: {wrong}")


class SnapshotIsFlushed(Invariant):
    """A state snapshot covers only what no loss of power can take."""

    rules = "R50"

    def sample(self, node: SimNode) -> None:
        shadow = self.world.ledger.shadows[node.name]
        names = [int(name) for name in node.disk.list("twinlog/state") if name.isdigit()]
        newest = max(names, default=0)
        if shadow.flushed < newest <= shadow.end:
            lost = self.world.layout.first_not_durable(node, shadow, newest)
            if lost is not None:
                self.fail(f"{node.name} has a snapshot of {newest}, a power loss could take {lost}")


class KeepsWhatIsNeeded(Invariant):
    """Retention drops nothing above confirm, dispatched, flushed or the older snapshot.

    A snapshot that is kept twice counts as the older one, too.
    """

    rules = "R51"

    def started(self, node: SimNode, start: int) -> None:
        store = node.store
        assert store is not None
        files = node.disk.list("twinlog/state")
        names = sorted(
            int(name[:20]) for name in files if name[:20].isdigit() and name[20:] in ("", ".twin")
        )
        older = names[-2] if len(names) > 1 else 0
        limit = min(store.confirm, store.dispatched, store.flushed, older)
        if start > limit:
            self.fail(f"{node.name}: the log begins at {start}, {limit} is needed")
