"""What must never happen to a group: epochs, sets, confirm offsets, promises.

Not here: one store by itself (`tests.sim.invariants.store`), what clients see
(`tests.sim.invariants.clients`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replication.register.leases import LEASE_SECONDS, WHO
from tests.sim.invariants.invariant import Invariant
from tests.sim.judge.ledger import Batch, Shadow

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World


class CandidatesComplete(Invariant):
    """Each member of in-sync set and ELR with an intact store holds every confirmed batch."""

    rules = "R21, R22, R24, R27, R30, R32, R35"

    def canon_grew(self) -> None:
        self._check()

    def register_changed(self) -> None:
        self._check()

    def cut(self, node: SimNode, shadow: Shadow, end: int) -> None:
        if end < self.world.ledger.canon_end and self.world.counts(node.name):
            self.fail(
                f"{node.name} counts and cuts to {end}, confirmed {self.world.ledger.canon_end}"
            )

    def _check(self) -> None:
        ledger = self.world.ledger
        for name in self.world.counting():
            shadow = ledger.shadows[name]
            if not ledger.holds_canon(shadow):
                self.fail(
                    f"{name} counts, matches {shadow.matched} of {len(ledger.canon)} confirmed"
                    f" batches (end {shadow.end}, confirmed {ledger.canon_end})"
                )


class MasterComplete(Invariant):
    """The acting master of the newest epoch holds every confirmed batch."""

    rules = "R22, R35"

    def canon_grew(self) -> None:
        node = self.world.newest_master()
        if node is not None and not self.world.ledger.holds_canon(
            self.world.ledger.shadows[node.name]
        ):
            self.fail(f"{node.name} is master and lacks confirmed batches")

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        if batches[-1].kind == 3 and self.world.newest_master() is node:
            self.canon_grew()


class OneMasterPerEpoch(Invariant):
    """An epoch is granted once, and only its master appends under it."""

    rules = "R15, R22"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._granted: dict[int, tuple[str, int]] = {}

    def register_changed(self) -> None:
        state = self.world.coordinator.state
        if not state.leader:
            return
        granted = (state.leader, state.leader_session)
        if self._granted.setdefault(state.epoch, granted) != granted:
            self.fail(f"epoch {state.epoch} is {self._granted[state.epoch]}'s and {granted}'s")

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        master = node.acts_in_epoch()
        if master is None:
            return
        session = node.session()
        granted = self._granted.setdefault(master, (node.name, session))
        if granted != (node.name, session):
            self.fail(f"{node.name} appends in epoch {master}, which is {granted}'s")


class SetsNameIncarnations(Invariant):
    """Who is in a set of the register is there as its present incarnation, and in one of them."""

    rules = "R20, R25"

    def register_changed(self) -> None:
        state = self.world.coordinator.state
        for name, members in (("isr", state.isr), ("elr", state.elr), ("suspect", state.suspect)):
            for member, session in members.items():
                if session != state.session_of(member):
                    now = state.session_of(member)
                    self.fail(f"{member} is in {name} with session {session}, has {now}")
        if state.isr.keys() & state.elr.keys():
            self.fail(f"{sorted(state.isr.keys() & state.elr.keys())} are in sync and eligible")
        if state.leader is not None and state.leader not in state.isr:
            self.fail(f"{state.leader} leads and is not in sync")
        if state.elr and len(state.isr) >= state.min_isr:
            self.fail(f"{sorted(state.elr)} are eligible beside {sorted(state.isr)}")


class EpochsRise(Invariant):
    """A store's promised epoch never falls, and nothing is written or acknowledged below it."""

    rules = "R13, R14"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._promised: dict[tuple[str, int], int] = {}  # by store and which copy of it

    def _promise(self, node: SimNode) -> int:
        assert node.store is not None
        store = node.store.boot.store_id, node.copies
        promised = node.store.promise.epoch
        if promised < self._promised.get(store, 0):
            self.fail(f"{node.name} promised {self._promised[store]}, now {promised}")
        self._promised[store] = promised
        return promised

    def booted(self, node: SimNode, shadow: Shadow) -> None:
        self._promise(node)

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        promised = self._promise(node)
        acting = node.acts_in_epoch()
        if acting is not None and acting != promised:
            self.fail(f"{node.name} appends in epoch {acting}, promised {promised}")

    def acked(self, node: SimNode, epoch: int, end: int, flushed: int) -> None:
        promised = self._promise(node)
        if epoch != promised:
            self.fail(f"{node.name} acknowledges in epoch {epoch}, promised {promised}")


class EpochIsFlushedFirst(Invariant):
    """A master takes writes only once the record that opens its epoch is flushed."""

    rules = "R35"

    def leads(self, node: SimNode) -> None:
        assert node.store is not None
        epoch = node.acts_in_epoch()
        for batch in reversed(self.world.ledger.shadows[node.name].batches):
            if batch.epoch == epoch and batch.kind == 3 and batch.end > node.store.flushed:
                self.fail(f"{node.name} leads, flushed {node.store.flushed}: {batch}")
            if batch.epoch != epoch:
                return


class QuarantineStays(Invariant):
    """Who was found damaged and left the sets joins none before that has its end."""

    rules = "R7"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._out: set[tuple[str, int]] = set()
        self._recovered = 0

    def register_changed(self) -> None:
        state, nodes = self.world.coordinator.state, self.world.nodes
        if self._recovered != self.world.coordinator.recovered:
            # Made again from what nodes had seen: that one left may have been seen by none (R58).
            self._recovered = self.world.coordinator.recovered
            self._out.clear()
        self._out &= {(name, nodes[name].copies) for name in self.world.damaged}
        for name in self.world.damaged:
            disk = (name, nodes[name].copies)
            if not state.counts(name):
                self._out.add(disk)
            elif disk in self._out:
                self.fail(f"{name} was found damaged, left the sets, and is a member again")


class WeakAckNeedsLease(Invariant):
    """With automatic failover, nobody acknowledges weakly long after another epoch began.

    For as long as the lease runs by a clock of its own a deposed master may, and it wakes from a
    suspension by a clock that stood still: such a node is left out.
    """

    rules = "R59"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._over: dict[int, float] = {}  # epoch to when it ended
        self._newest = 0

    def register_changed(self) -> None:
        epoch = self.world.coordinator.state.epoch
        if epoch > self._newest:
            self._over[self._newest] = self.world.schedule.now
            self._newest = epoch

    def weakly_acknowledged(self, node: SimNode, epoch: int) -> None:
        known = node.driver.core.context.newest if node.driver is not None else None
        manual = known is None or known.failover != "automatic"
        since = self._over.get(epoch)
        if manual or since is None or node.clock.was_suspended:
            return
        allowed = LEASE_SECONDS * (1 + 2 * self.world.plan.drift)
        allowed += 1.0 + self.world.plan.disk_slow  # what was admitted before waits for the disk
        if self.world.schedule.now - since > allowed:
            self.fail(f"{node.name} acknowledges weakly in epoch {epoch}, over since {since:.1f} s")


class HoldsHold(Invariant):
    """No node in maintenance is elected; during a pause no master is deposed for its silence."""

    rules = "R68"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._before = world.coordinator.state

    def register_changed(self) -> None:
        before, state = self._before, self.world.coordinator.state
        self._before = state
        elected = state.leader is not None and state.epoch > before.epoch
        if elected and state.leader in before.maintenance:
            self.fail(f"{state.leader} is elected for epoch {state.epoch}, in maintenance")
        ended = before.leader is not None and state.leader is None and state.by == WHO
        if ended and before.pause is not None:
            self.fail(f"{before.leader} is deposed although failover is paused: {state.reason}")


class LearnersCountNowhere(Invariant):
    """A learner is no replica and in no set, and no confirmation needs it."""

    rules = "R70"

    def register_changed(self) -> None:
        state = self.world.coordinator.state
        counted = {*state.replicas, *state.isr, *state.elr, *state.suspect, state.leader}
        if wrong := sorted(counted & set(state.learners)):
            self.fail(f"{wrong} count, and are learners")


class LevelIsKnown(Invariant):
    """The level never falls, and every registered node knows what the log may hold."""

    rules = "R74"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._level = 0

    def register_changed(self) -> None:
        state = self.world.coordinator.state
        if state.level < self._level:
            self.fail(f"the level falls from {self._level} to {state.level}")
        self._level = state.level
        low = {n: k for n, k in state.levels.items() if n in state.reg and k < state.level}
        if low:
            self.fail(f"the group is at level {state.level}, registered are {low}")


class GivesUpOnlyOutside(Invariant):
    """A log is deleted to begin again only by a node that nobody counts on."""

    rules = "R57"

    def began_again(self, node: SimNode) -> None:
        state = self.world.coordinator.state
        if node.name in {*state.isr, *state.elr}:
            self.fail(f"{node.name} begins again, a member of {state.isr}, {state.elr}")


class AckedIsHeld(Invariant):
    """A slave acknowledges only what it has, as flushed only what is flushed."""

    rules = "R5, R42"

    def acked(self, node: SimNode, epoch: int, end: int, flushed: int) -> None:
        store = node.store
        assert store is not None
        if end > store.end or flushed > store.flushed:
            self.fail(f"{node.name} acknowledges {end}/{flushed}, has {store.end}/{store.flushed}")


class ConfirmBehindEnd(Invariant):
    """A node's confirm offset is inside its log, and everything below it is confirmed."""

    rules = "R1, R3"

    def confirmed(self, node: SimNode, shadow: Shadow, confirm: int) -> None:
        ledger = self.world.ledger
        if confirm > shadow.end:
            self.fail(f"{node.name}: confirm {confirm}, end {shadow.end}")
        if confirm > ledger.canon_end:
            self.fail(f"{node.name}: confirm {confirm}, nobody confirmed above {ledger.canon_end}")
        count = shadow.count_up_to(confirm)
        ledger.match(shadow)
        if shadow.matched < count:
            self.fail(
                f"{node.name}: {shadow.batches[shadow.matched]} is below its confirm offset"
                f" {confirm} and was not confirmed"
            )


class ConfirmNeverFalls(Invariant):
    """The confirm offset of a store never decreases; what a start finds may lag, never lead."""

    rules = "R2"

    def confirmed(self, node: SimNode, shadow: Shadow, confirm: int) -> None:
        if confirm < shadow.confirm:
            self.fail(f"{node.name}: confirm was {shadow.confirm}, is {confirm}")

    def booted(self, node: SimNode, shadow: Shadow) -> None:
        assert node.store is not None
        if node.store.confirm > shadow.confirm_floor:
            self.fail(
                f"{node.name}: starts with confirm {node.store.confirm}, had {shadow.confirm_floor}"
            )


class TruncateOnlyUnconfirmed(Invariant):
    """No log is cut below its own confirm offset."""

    rules = "R40"

    def cut(self, node: SimNode, shadow: Shadow, end: int) -> None:
        if end < shadow.confirm:
            self.fail(f"{node.name} cuts to {end}, its confirm offset is {shadow.confirm}")
