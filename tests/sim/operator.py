"""An operator at the keyboard: failover, switchover, topics.

Orders go through the same doors as those of the command line: failover to the coordinator,
switchover and topics to the master. An operator who gets no answer does not repeat an order by
itself, except in the healing phase, where it is the operator's job to get the cluster going.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.world import World

TOPICS_MAX = 6
_CARE = 2.0  # seconds between two looks at a cluster without a master
_DEADLINE = 5.0  # seconds an order may take


class Operator:
    """Gives orders.

    Attributes:
        orders: How many were given.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.orders = 0
        self._caring = False

    def failover(self, to: str) -> None:
        """Depose the master and elect ``to``; the coordinator may refuse.

        An operator looks before: a node that is down, or up and not yet registered, is not chosen.
        To elect one that then turns out to have lost its page cache would cost the eligibility of
        a deposed master that lost nothing.
        """
        if not self.world.nodes[to].is_registered():
            return
        self.orders += 1
        self.world.trace("oper", "failover", to)
        self.world.coordinator.order_failover(to)

    def switchover(self, to: str) -> None:
        """Ask the acting master to hand over."""
        master = self.world.newest_master()
        if master is None or master.driver is None:
            return
        self.orders += 1
        self.world.trace("oper", "switchover", f"{master.name} -> {to}")
        master.order_transfer(to)

    def create_topic(self) -> None:
        """Ask the acting master for one more topic."""
        if len(self.world.topics) < TOPICS_MAX:
            name = f"topic{len(self.world.topics)}"
            self.create(name, self.world.schedule.rng.randint(1, 3))

    def create(self, name: str, queues: int) -> None:
        """Ask the acting master for this topic, until there is one; producers learn of it then."""
        master = self.world.newest_master()
        if master is None or master.driver is None:
            return
        self.orders += 1
        self.world.trace("oper", "topic", f"{name} {queues}")
        master.order_topic(name, queues, _DEADLINE)

    def create_until_known(self, name: str, queues: int) -> None:
        """Repeat the order of a topic until it is done."""
        if name not in self.world.topics:
            self.create(name, queues)
            self.world.schedule.after(0.5, self.create_until_known, name, queues)

    def care(self) -> None:
        """Keep looking after the cluster until the run ends."""
        if not self._caring:
            self._caring = True
            self._look()

    def _vouch(self) -> None:
        """Speak for replicas that lost what they saw, once all run and none has seen more.

        Without it a group that loses the disks of a majority while its coordinator is away waits.
        """
        coordinator, stores = self.world.coordinator, []
        missing = coordinator.missing
        for node in self.world.nodes.values():
            if node.store is None:
                return
            stores.append(node.store)
        newest = max(store.promise.revision for store in stores)
        if missing and newest <= coordinator.state.revision:
            self.world.trace("oper", "vouch", ",".join(missing))
            coordinator.order_vouch(missing)

    def _look(self) -> None:
        world = self.world
        world.schedule.after(_CARE, self._look)
        for node in world.nodes.values():
            if node.is_displaced():
                # A registration of a former disk came late: the node alarms and waits for a person.
                node.kill(power=False)
                node.boot()
            if node.name in world.rotten and node.is_quarantined:
                node.kill(power=False)
                node.wipe()
                node.boot()
        self._vouch()
        master = world.newest_master()
        state = world.coordinator.state
        if master is not None and master.name == state.leader:
            return
        best = ""
        rank = (-1, -1)
        for name in sorted({*state.isr, *state.elr}):
            node = world.nodes[name]
            if node.is_registered() and node.store is not None and not node.paused:
                mine = (node.store.last_epoch, node.store.committed)
                if mine > rank:
                    best, rank = name, mine
        if best:
            self.failover(best)
