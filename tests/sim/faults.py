"""Carries out what the plan drew: crashes, cuts, pauses, full disks, orders of a nervous operator.

Every fault ends by itself, and `Faults.heal` ends all of them for the second part of a run, in
which the cluster has to show that it recovers.

One rule keeps the run honest. With quality ``received`` the protocol promises nothing once every
member of in-sync set and ELR has lost its page cache, so a loss of power is drawn only when
somebody who counts stays whole (`Faults.may_lose_power`). With ``durable`` it may hit all at once.

Not here: rates (`tests.sim.swarm`), what a crash does to a disk (`tests.fakes.disk`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.judge.layout import LOG

if TYPE_CHECKING:
    from tests.sim.judge.ledger import Batch
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

_CALLS_UNTIL_CRASH = 60  # a crash in a disk call comes within so many calls
_COORDINATOR = "coord"
_FLUSHES = ("flush", "snapshot.log", "promise.fsync")
_CHANGE_CRASH_SHARE = 0.05  # a node that has just changed its mind dies


class Faults:
    """The plan's faults at work.

    Attributes:
        counts: How often each fault was carried out.
        active: False once the world heals.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = world.schedule.rng
        self.counts: dict[str, int] = {}
        self.active = True
        for name in world.plan.rates:
            self._next(name)

    def _next(self, name: str) -> None:
        delay = self.rng.expovariate(self.world.plan.rates[name])
        self.world.schedule.after(delay, self._due, name)

    def _due(self, name: str) -> None:
        if not self.active:
            return
        action: Callable[[], bool] = getattr(self, f"_{name}")
        if action():
            self.counts[name] = self.counts.get(name, 0) + 1
        self._next(name)

    def heal(self) -> None:
        """End everything that still goes on."""
        self.active = False
        world = self.world
        for node in world.nodes.values():
            node.disk.faults.disarm()
            node.disk.faults.full = False
            node.disk.crowded = False
            node.resume()
            if not node.alive:
                node.boot()
        world.network.unblock_all()
        world.network.weather.lost_share = 0.0
        world.network.weather.cut_share = 0.0
        world.network.weather.slow_share = 0.0
        world.network.weather.damage_share = 0.0
        world.plan.disk_slow = world.plan.disk_delay
        world.coordinator.newest_back()
        world.coordinator.start()

    # -- processes

    def _living(self) -> SimNode | None:
        living = [node for node in self.world.nodes.values() if node.alive]
        return self.rng.choice(living) if living else None

    def _start_later(self, node: SimNode) -> None:
        delay = self.rng.choice((0.1, 1.0, 6.0)) * (0.5 + self.rng.random())
        self.world.schedule.after(delay, self._start, node)

    def _start(self, node: SimNode) -> None:
        if not node.alive:
            node.boot()

    def may_lose_power(self, victim: SimNode) -> bool:
        """True when the protocol's promise survives a loss of this node's page cache."""
        if self.world.is_durable(victim):
            return True
        return self.world.somebody_else_counts(victim.name)

    def node_died(self, node: SimNode) -> None:
        """A disk call killed the process: sometimes the machine goes too; it comes back."""
        self._start_later(node)

    def node_changed(self, node: SimNode) -> None:
        """A node's role, epoch or set moved: the worst moment to die."""
        if not self.active or "kill" not in self.world.plan.rates or not node.alive:
            return
        if self.rng.random() < _CHANGE_CRASH_SHARE:
            delay = self.rng.random() * 0.004
            self.world.schedule.after(delay, self._kill_same, node, node.incarnation)

    def _kill_same(self, node: SimNode, incarnation: int) -> None:
        if self.active and node.alive and node.incarnation == incarnation:
            self._crash(node, power="power" in self.world.plan.rates and self.rng.random() < 0.5)

    def _crash(self, node: SimNode, *, power: bool) -> None:
        node.kill(power=power and self.may_lose_power(node))
        self._start_later(node)

    def _kill(self) -> bool:
        node = self._living()
        if node is not None:
            self._crash(node, power=False)
        return node is not None

    def _power(self) -> bool:
        node = self._living()
        if node is None or not self.may_lose_power(node):
            return False
        self._crash(node, power=True)
        return True

    def _crash_in_call(self) -> bool:
        node = self._living()
        if node is not None:
            node.disk.faults.crash(after=self.rng.randrange(_CALLS_UNTIL_CRASH))
        return node is not None

    def _all_killed(self) -> bool:
        for node in self.world.nodes.values():
            if node.alive:
                self._crash(node, power=False)
        return True

    def _blackout(self) -> bool:
        for node in self.world.nodes.values():
            if node.alive:
                self._crash(node, power=True)
        return True

    def _pause(self) -> bool:
        node = self._living()
        if node is None or node.paused:
            return False
        node.pause()
        length = self.rng.choice((0.05, 1.0, 5.0)) * (0.5 + self.rng.random())
        self.world.schedule.after(length, node.resume)
        return True

    def _suspend(self) -> bool:
        """The machine sleeps, and so does the clock that its processes go by."""
        node = self._living()
        if node is None or node.paused:
            return False
        node.pause()
        node.clock.suspend()
        length = self.rng.choice((0.5, 3.0, 15.0)) * (0.5 + self.rng.random())
        self.world.schedule.after(length, node.resume)
        return True

    def _wall_jump(self) -> bool:
        """A clock on the wall is set, hours back or forward, or right."""
        node = self.rng.choice(list(self.world.nodes.values()))
        node.clock.jump(self.rng.choice((0, -3_600_000, 50, -50, 86_400_000)))
        return True

    # -- network

    def _block(self, ways: list[tuple[str, str]]) -> None:
        network = self.world.network
        length = self.rng.choice((0.3, 2.0, 6.0)) * (0.5 + self.rng.random())
        for source, target in ways:
            network.block(source, target)
            self.world.schedule.after(length, network.unblock, source, target)

    def _partition(self) -> bool:
        names = list(self.world.plan.nodes)
        self.rng.shuffle(names)
        cut = self.rng.randint(1, len(names) - 1)
        near, far = names[:cut], names[cut:]
        self._block([way for a in near for b in far for way in ((a, b), (b, a))])
        return True

    def _isolate(self) -> bool:
        """The master is cut off from all but its clients, and another one is elected meanwhile."""
        world, master = self.world, self.world.newest_master()
        state = world.coordinator.state
        if master is None or master.name != state.leader:
            return False
        others = sorted({*state.isr, *state.elr} - {master.name})
        if not others:
            return False
        places = [*(name for name in world.plan.nodes if name != master.name), _COORDINATOR]
        self._block(
            [way for other in places for way in ((master.name, other), (other, master.name))]
        )
        world.schedule.after(self.rng.random(), world.operator.failover, self.rng.choice(others))
        return True

    def _one_way(self) -> bool:
        source, target = self.rng.sample(self.world.plan.nodes, 2)
        self._block([(source, target)])
        return True

    def _coordinator_cut(self) -> bool:
        name = self.rng.choice(self.world.plan.nodes)
        ways = [(name, _COORDINATOR), (_COORDINATOR, name)]
        self._block(self.rng.choice((ways, ways[:1], ways[1:])))
        return True

    def _coordinator_crash(self) -> bool:
        coordinator = self.world.coordinator
        coordinator.crash()
        length = self.rng.choice((0.2, 3.0, 10.0)) * (0.5 + self.rng.random())
        self.world.schedule.after(length, coordinator.start)
        return True

    def _register_restored(self) -> bool:
        length = self.rng.choice((1.0, 5.0)) * (0.5 + self.rng.random())
        if not self.world.coordinator.old_copy():
            return False
        self.world.schedule.after(length, self.world.coordinator.newest_back)
        return True

    def _register_rolled_back(self) -> bool:
        """As restored, and the newest database is gone: an operator must recover the register."""
        return self.world.coordinator.old_copy(for_good=True)

    def _register_lost(self) -> bool:
        """The coordinator's disk is exchanged for an empty one."""
        return self.world.coordinator.lose()

    def _set_forgotten(self) -> bool:
        """An old copy of the register, while the master, which knows better, is away from it."""
        length = 5.0 * (0.5 + self.rng.random())
        master = self.world.newest_master()
        if master is None or not self.world.coordinator.copy_of_this_epoch():
            return False
        for source, target in ((master.name, _COORDINATOR), (_COORDINATOR, master.name)):
            self.world.network.block(source, target)
            self.world.schedule.after(length, self.world.network.unblock, source, target)
        self.world.schedule.after(length, self.world.coordinator.newest_back)
        return True

    def _stream_cut(self) -> bool:
        self.world.network.cut_some(0.4)
        return True

    # -- disks

    def _disk_full(self) -> bool:
        node = self._living()
        if node is None or node.disk.faults.full:
            return False
        node.disk.faults.full = True
        length = self.rng.choice((0.5, 3.0)) * (0.5 + self.rng.random())
        self.world.schedule.after(length, self._disk_free, node)
        return True

    def _disk_free(self, node: SimNode) -> None:
        node.disk.faults.full = False

    def _crowded(self) -> bool:
        """Other files fill the disk: the oldest files of the log must go, whoever lacks them."""
        node = self._living()
        if node is None or node.disk.crowded:
            return False
        node.disk.crowded = True
        length = self.rng.choice((1.0, 5.0)) * (0.5 + self.rng.random())
        self.world.schedule.after(length, self._deserted, node)
        return True

    def _deserted(self, node: SimNode) -> None:
        node.disk.crowded = False

    def _rot(self) -> bool:
        """A bit of a confirmed batch flips: on the master, where a slave still lacks that batch, or
        on any node in a file that is full.

        Only where confirmed means two copies: with one, the damaged log may be all there is.
        """
        world, node = self.world, self.world.newest_master()
        old = self.rng.random() < 0.5
        node = self._living() if old else node
        if node is None or node.store is None or node.paused or node.cutting:
            return False
        if world.rotten or world.plan.in_sync_min < 2:
            return False
        shadows = world.ledger.shadows
        low = min(one.end for name, one in shadows.items() if name != node.name)
        low, high = max(low, node.store.start), 1 << 62
        if old:
            low, high = node.store.start, node.store.scrub.sealed[1]
        wanted = [
            batch
            for batch in shadows[node.name].batches
            if low <= batch.start
            and batch.end <= min(high, world.ledger.canon_end)
            and batch.kind != 1
        ]
        if not wanted or not world.somebody_else_counts(node.name):
            return False
        world.rotting.add(node.name)
        self._rot_batch(node, self.rng.choice(wanted))
        return True

    def _rot_asleep(self) -> bool:
        """A bit of a confirmed batch flips while the machine is off, on any node."""
        world, node = self.world, self._living()
        if node is None or world.rotten or not world.somebody_else_counts(node.name):
            return False
        kept = node.store.start if node.store is not None else 0
        wanted = [
            batch
            for batch in world.ledger.shadows[node.name].batches
            if batch.start >= kept and batch.end <= world.ledger.canon_end and batch.kind != 1
        ]
        if not wanted or node.cutting:
            return False
        flushed = world.ledger.shadows[node.name].flushed
        lasting = [batch for batch in wanted if batch.end <= flushed]
        power = world.is_durable(node) and bool(lasting) and self.rng.random() < 0.5
        wanted = lasting if power else wanted
        self._crash(node, power=power)
        self._rot_batch(node, self.rng.choice(wanted))
        return True

    def _rot_batch(self, node: SimNode, batch: Batch) -> None:
        world = self.world
        base = batch.start - batch.start % world.plan.segment_size
        node.disk.rot(LOG.format(base), self.rng.randrange(batch.start, batch.end) - base)
        world.trace(node.name, "rot", str(batch))
        world.rotten.add(node.name)
        world.ledger.shadows[node.name].intact = False

    def _io_error(self) -> bool:
        node = self._living()
        if node is None or not self.world.somebody_else_counts(node.name):
            return False
        name = node.name
        node.disk.faults.fail(
            self.rng.choice(_FLUSHES), allowed=lambda: self.world.somebody_else_counts(name)
        )
        return True

    def _wipe(self) -> bool:
        node = self._living()
        if node is None or not self.world.somebody_else_counts(node.name):
            return False
        self._crash(node, power=False)
        node.wipe()
        return True

    def _old_disk(self) -> bool:
        """Copy a directory; the next time, put the copy in its place."""
        node = self.rng.choice(list(self.world.nodes.values()))
        if node.copied is None:
            if node.name not in self.world.rotten and node.store is not None and not node.cutting:
                node.back_up()
            return False
        if not node.alive or not self.world.somebody_else_counts(node.name):
            return False
        self._crash(node, power=False)
        node.restore()
        return True

    def _restart(self) -> bool:
        node = self._living()
        if node is not None and not node.paused:
            node.order_stop()
        return node is not None

    def _late_writer(self) -> bool:
        """Somebody who held a token until it ended writes under it: a thread, an old answer."""
        node = self._living()
        if node is None or node.paused or node.ended is None or node.store is None:
            return False
        for one in self.world.court.late_write:
            one.late_write(node)
        self.world.observe(node)
        return True

    # -- operators

    def _failover(self) -> bool:
        self.world.operator.failover(self.rng.choice(self.world.plan.nodes))
        return True

    def _switchover(self) -> bool:
        self.world.operator.switchover(self.rng.choice(self.world.plan.nodes))
        return True

    def _unkind(self) -> bool:
        return self.world.operator.be_unkind()

    def _topic(self) -> bool:
        self.world.operator.create_topic()
        return True
