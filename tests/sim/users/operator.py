"""An operator at the keyboard: failover, switchover, topics.

Orders go through the same doors as those of the command line: failover to the coordinator,
switchover and topics to the master. An operator who gets no answer does not repeat an order by
itself, except in the healing phase, where it is the operator's job to get the cluster going.
"""

from __future__ import annotations

import json
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from replication.register.group_state import GroupState
from replication.register.operations import (
    AddReplica,
    Change,
    ClearAlarm,
    Depose,
    Failover,
    Maintain,
    Operation,
    Pause,
    Recover,
    RemoveReplica,
    Resume,
    UncleanElect,
    Voice,
)
from replication.register.outcome import Refused
from replication.register.recovery import newest_first, recovered
from tests.sim.swarm import QUALITIES

if TYPE_CHECKING:
    from tests.sim.machines.node import SimNode
    from tests.sim.world import World

TOPICS_MAX = 6
_CARE = 2.0  # seconds between two looks at a cluster without a master
_PATIENCE = 12  # looks at a quarantined node until its disk is exchanged
_IMPATIENT = 0.3  # of the moments at which a register is lost and nodes are down
_DEADLINE = 5.0  # seconds an order may take
_LEARNS = 0.5  # of the nodes that are added again, as learners first


class Operator:
    """Gives orders.

    Attributes:
        orders: How many were given.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.orders = 0
        self.removed: set[str] = set()
        self._learning = Random(f"learners {world.plan.seed}")
        self._restarting = Random(f"restarters {world.plan.seed}")
        self._caring = False
        self._looks: Counter[tuple[str, int]] = Counter()
        self._rng = Random(f"operator {world.plan.seed}")

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
        if name not in self.world.topics and name not in self.world.topics_apart:
            self.create(name, queues)
            self.world.schedule.after(0.5, self.create_until_known, name, queues)

    # -- an operator who gives orders without a look

    def be_unkind(self) -> bool:
        """Give an order that a careful operator would not give; the register may refuse it."""
        rng = self.world.schedule.rng
        coordinator = self.world.coordinator
        name, epoch = rng.choice(self.world.plan.nodes), coordinator.state.epoch
        who = ("operator", "unkind")
        count = str(rng.randint(1, min(3, len(self.world.plan.nodes))))
        orders: list[Operation] = [
            Failover(rng.choice((name, None)), epoch, *who),
            Failover(name, max(0, epoch - 1), *who),
            Depose(coordinator.state.leader or name, 0, *who),
            ClearAlarm(*who),
            Change("in_sync_min", count, who[0]),
            Change("ack", rng.choice(QUALITIES), who[0]),
            Change("failover", rng.choice(("manual", "automatic")), who[0]),
            Change("after_power_loss", rng.choice(("wait", "best")), who[0]),
            RemoveReplica(name, who[0]),
            Pause(rng.randint(10, 60), *who),
            Maintain(name, rng.random() < 0.7, *who),
        ]
        order = rng.choice(orders)
        self.orders += 1
        self.world.trace("oper", "unkind", str(order))
        if not coordinator.order(order):
            return False
        if isinstance(order, RemoveReplica):
            self.removed.add(name)
            self.world.schedule.after(3.0 * rng.random(), self._add_again, name)
        return True

    def _add_again(self, name: str) -> None:
        """Add a removed node again; some are started again as well, most register by themselves."""
        if name not in self.removed:
            return
        first = name not in self.world.coordinator.state.learners
        learner = first and self._learning.random() < _LEARNS
        if not self.world.coordinator.order(AddReplica(name, 0, "operator", learner)):
            return
        if learner:
            self.world.events["learner"] += 1
            self.world.schedule.after(5.0 * self._learning.random(), self._add_again, name)
        else:
            self.removed.discard(name)
        if not first:
            self.world.events["promoted"] += 1
            return
        node = self.world.nodes[name]
        if node.alive and self._restarting.random() < 0.3:
            node.kill(power=False)
            node.boot()

    # -- an operator who gets a cluster going

    def care(self) -> None:
        """Keep looking after the cluster until the run ends."""
        if not self._caring:
            self._caring = True
            self._look()

    def watch_the_register(self) -> None:
        """Look every few seconds whether the coordinator has lost its register."""
        self.world.schedule.after(_CARE * (0.5 + self._rng.random()), self.watch_the_register)
        if self.world.coordinator.gone:
            self._recover()

    def _recover(self) -> None:
        """Ask every node what it has promised; a node that is down is left out if it may be."""
        world, voices, states = self.world, [], []
        absent: list[str] = []
        for node in world.nodes.values():
            if node.store is None or node.driver is None or node.paused:
                absent.append(node.name)
                continue
            promise = node.store.promise
            voices.append(
                Voice(
                    node.name, promise.register_id, promise.revision, promise.tag, promise.epoch,
                    promise.session, node.store.last_epoch,
                )
            )  # fmt: skip
            if promise.state:
                states.append(GroupState.from_json(json.loads(promise.state)))
        coordinator = world.coordinator
        own = coordinator.own if coordinator.own.epoch else None
        if not states or (absent and not self._may_leave_out(absent)):
            return
        state = newest_first([*states, *([own] if own is not None else [])], own)[0]
        left = tuple(name for name in absent if name in state.replicas)
        order = Recover(state, tuple(voices), left, "operator", "simulated")
        if absent and not self._keeps_everything(order):
            return
        world.trace("oper", "recover", f"r{state.revision} e{state.epoch} without {left}")
        coordinator.recover(order)

    def _may_leave_out(self, absent: list[str]) -> bool:
        """An operator gives up nodes that are down, not one that only does not answer now."""
        down = all(not self.world.nodes[name].alive for name in absent)
        return down and self._rng.random() < _IMPATIENT

    def _keeps_everything(self, order: Recover) -> bool:
        """An operator does not give up the only nodes that have everything."""
        after = recovered(self.world.coordinator.own, order, 0)
        if isinstance(after, Refused):
            return False
        shadows, ledger = self.world.ledger.shadows, self.world.ledger
        members = {*after.isr, *after.elr}
        whole = [n for n in members if shadows[n].intact and ledger.holds_canon(shadows[n])]
        return bool(whole) and len(whole) == len([n for n in members if shadows[n].intact])

    def _replace(self, node: SimNode) -> None:
        """Start a quarantined node again, in case that helps; at last exchange its disk.

        Not at once: while other nodes have what is damaged, it is repaired without a person.
        """
        disk = (node.name, node.copies)
        self._looks[disk] += 1
        gone = node.store is not None and node.store.scrub.condemned
        if not gone and self._looks[disk] < _PATIENCE:
            return
        node.kill(power=False)
        if self._looks[disk] > _PATIENCE or (gone and self._looks[disk] > 1):
            node.wipe()
        node.boot()

    def _elect_whole(self) -> None:
        """A disk was lost, or a log is damaged: only a person can say which node has everything."""
        world = self.world
        for name, shadow in world.ledger.shadows.items():
            whole = world.ledger.holds_canon(shadow) and name not in world.rotten
            if whole and world.nodes[name].is_registered():
                epoch = world.coordinator.state.epoch
                if world.coordinator.order(UncleanElect(name, epoch, "operator", "has it all")):
                    return

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
        if missing and newest <= coordinator.own.revision:
            self.world.trace("oper", "vouch", ",".join(missing))
            coordinator.order_vouch(missing)

    def _let_go(self) -> None:
        """End the pause and release what is in maintenance: the group has to work."""
        coordinator = self.world.coordinator
        if coordinator.state.pause is not None:
            coordinator.order(Resume("operator", "simulated"))
        for name in coordinator.state.maintenance:
            coordinator.order(Maintain(name, False, "operator", "simulated"))

    def _look(self) -> None:
        world = self.world
        world.schedule.after(_CARE, self._look)
        for node in world.nodes.values():
            if node.is_displaced():
                # A registration of a former disk came late: the node alarms and waits for a person.
                node.kill(power=False)
                node.boot()
            if node.name in world.rotten and node.is_quarantined:
                self._replace(node)
        members = world.coordinator.state.replicas
        if members:  # a removal whose answer was lost has happened all the same
            self.removed.update(name for name in world.nodes if name not in members)
        for name in sorted(self.removed):
            self._add_again(name)
        self._vouch()
        self._let_go()
        master = world.newest_master()
        state = world.coordinator.state
        if state.vacant:
            if not world.coordinator.order(Failover(None, state.epoch, "operator", "simulated")):
                self._elect_whole()
            return
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
