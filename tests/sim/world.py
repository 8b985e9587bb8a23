"""The whole world of one run: nodes, coordinator, network, users, faults, and the judge.

A run has three parts. It *starts*: nodes boot, one is elected, the first topic is made. Then
``seconds`` of the plan's faults. Then it *heals*: faults end, everybody is started, an operator
looks after the cluster, and within `HEAL_SECONDS` all promises of liveness must hold.

The judge sees everything: after each thing a node did, `World.observe` compares the node's
positions with the shadow the ledger keeps of it and calls the invariants for what moved.

Not here: single faults (`tests.sim.faults`), the invariants (`tests.sim.invariants`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.sim.faults import Faults
from tests.sim.invariants.court import Court
from tests.sim.judge.contents import BATCH_TOPIC, BRIEF_TOPIC, STEP_TOPIC, Contents
from tests.sim.judge.healing import unhealed, unheard
from tests.sim.judge.history import History
from tests.sim.judge.layout import Layout
from tests.sim.judge.ledger import Batch, Ledger, Shadow, Violation
from tests.sim.limits import put_in_force
from tests.sim.machines.coordinator import SimCoordinator
from tests.sim.machines.network import Network
from tests.sim.machines.node import SimNode
from tests.sim.patches import Patches
from tests.sim.profiles.delays import Delays
from tests.sim.profiles.deletions import Deletions
from tests.sim.profiles.groups import Groups
from tests.sim.profiles.timed import Timed
from tests.sim.profiles.transactions import QUEUES, Transactions
from tests.sim.schedule import Schedule
from tests.sim.trace import Trace
from tests.sim.users.askers import Askers
from tests.sim.users.clients import Producer
from tests.sim.users.operator import Operator
from tests.sim.users.readers import Readers
from twinlog.wire.frames import Frame, Type

if TYPE_CHECKING:
    from storage import SectionResult
    from tests.sim.swarm import Plan
    from tests.sim.users.clients import Outgoing, Request

START_SECONDS = 10.0
HEAL_SECONDS = 150.0
RARE = (
    "switchover", "switchover-over", "slept", "newer-epoch-seen", "quarantined", "own-copy-damaged",
    "acknowledged-bytes-missing", "batch-damaged", "slaves-overtaken", "registered-elsewhere",
    "deposed", "begun again", "recovered", "gone", "learner", "promoted",
)  # fmt: skip
"""Events whose number says whether the runs met the states that they are meant to meet."""
BY_HAND = ("acknowledged-bytes-missing",)
"""Those that need a disk which lies, and so a test:
`tests/unit/replication/core/master/test_doubt.py`."""

_SAMPLE_EVERY = 5.0
_WALL_START_MS = 1_700_000_000_000


class World:
    """One run.

    Args:
        plan: Its circumstances.
        printing: Print the trace.
        alone: The only invariant that is checked, see `Court`; all are when it is empty.
    """

    def __init__(self, plan: Plan, *, printing: bool = False, alone: str = "") -> None:
        self.plan = plan
        self.schedule = Schedule(plan.seed)
        self.log = Trace(printing=printing)
        self.network = Network(self.schedule)
        self.ledger = Ledger(plan.nodes)
        self.contents = Contents()
        self.layout = Layout(plan.segment_size)
        self.confirmed_under = (0, 0)
        """Epoch of the newest confirmed batch's master, and the revision of the set it counted."""
        self.rotten: set[str] = set()
        """Nodes whose disk has changed a confirmed byte; they count for nothing."""
        self.rotting: set[str] = set()
        """Those of them whose process had proven the byte before: it may serve it as it is now."""
        self.damaged: set[str] = set()
        """Nodes that have found out that their log is damaged."""
        self.starts: dict[str, int] = {}
        self.retained = 0
        self.begun_again = 0
        self.topics: list[str] = []
        self.topic_queues: dict[str, int] = {}
        self.topics_apart: set[str] = set()
        """Topics that no producer sends to."""
        self.coordinator = SimCoordinator(self)
        self.history = History(self)
        self.court = Court(self, alone)
        self.nodes = {name: SimNode(self, name) for name in plan.nodes}
        self.operator = Operator(self)
        self.readers = Readers(self)
        self.askers = Askers(self)
        self.producers = [
            Producer(self, number, acknowledge) for number, acknowledge in enumerate(plan.producers)
        ]
        self.faults: Faults | None = None
        self.healed_after = -1.0
        self.answers = 0
        self.cuts = 0
        self.events: Counter[str] = Counter()
        self.groups = Groups(self)
        self.deletions = Deletions(self)
        self.transactions = Transactions(self)
        self.delays = Timed(self) if self.plan.timed else Delays(self)
        self._limits = Patches()

    def trace(self, who: str, what: str, text: str = "") -> None:
        """Write one line of the run's story."""
        self.log.line(self.schedule.now, who, what, text)

    def wall_ms(self) -> int:
        """Simulated wall clock, ms."""
        return _WALL_START_MS + int(self.schedule.now * 1000)

    def is_durable(self, node: SimNode) -> bool:
        """True when this node never acknowledged what a loss of power can take."""
        return node.quality == "durable" and self.coordinator.always_durable

    # -- who is who

    def counting(self) -> list[str]:
        """Members of in-sync set and ELR whose stores have all they ever counted on."""
        state = self.coordinator.state
        shadows = self.ledger.shadows
        return [name for name in sorted({*state.isr, *state.elr}) if shadows[name].intact]

    def counts(self, name: str) -> bool:
        """True when this node counts, see `counting`."""
        return name in self.counting()

    def somebody_else_counts(self, victim: str) -> bool:
        """True when the confirmed log survives the loss of this node's page cache.

        A member that a request on its way takes out of the set does not count: once it is out, it
        may not stand, and what the victim had alone is for an operator to give up. Nor does one
        whose flush failed: it will register as unclean, and the register does not know it yet.
        """
        return any(
            name != victim
            and not self.nodes[name].disk.faults.armed
            and not self.nodes[name].unclean_pending
            and self.coordinator.leaving[name] <= 0
            for name in self.counting()
        )

    def newest_master(self) -> SimNode | None:
        """The node that acts as master in the newest epoch, if it does."""
        best: SimNode | None = None
        epoch = self.coordinator.state.epoch - 1
        for node in self.nodes.values():
            acting = node.acts_in_epoch()
            if acting is not None and acting > epoch:
                best, epoch = node, acting
        return best

    # -- the judge

    def observe(self, node: SimNode) -> None:
        """Compare a node with its shadow and check what moved."""
        store = node.store
        if store is None:
            return
        if store._opened.losing and store.committed == store.start:
            return  # it died while it began again; the next start shows what it left
        shadow = self.ledger.shadows[node.name]
        self._look_for_seed(node, shadow)
        if node.is_quarantined:
            self.damaged.add(node.name)
        end = store.committed
        if node.cut_before and not node.cutting:
            node.cut_before = False
            self._was_cut(node, shadow, end)
        if end != shadow.end:
            self._end_moved(node, shadow, end)
        if store.start != self.starts.get(node.name, 0):
            self._start_moved(node, store.start)
        flushed = store.flushed
        if flushed != shadow.flushed:
            if flushed > shadow.flushed and node.name not in self.rotten:
                for one in self.court.flushed:
                    one.flushed(node, shadow, flushed)
            shadow.flushed = flushed
        confirm = store.confirm
        if confirm != shadow.confirm:
            self._confirm_moved(node, shadow, confirm)
            if store.dispatched < confirm:
                self.askers.queues_behind(node)

    def _look_for_seed(self, node: SimNode, shadow: Shadow) -> None:
        """A log that was deleted and begins again: beyond its old end, or empty inside the old log.

        The second is that of a slave of whose log only the part before the master's start agreed.
        """
        assert node.store is not None
        start = node.store.start
        empty = start > self.starts.get(node.name, 0) and node.store.committed == start
        if start <= shadow.end and not (empty and start < shadow.end):
            return
        node.cut_before = False
        self.begun_again += 1
        self.trace(node.name, "begins again", f"{shadow.end} -> {start}")
        for one in self.court.began_again if shadow.end else ():  # else it is another disk
            one.began_again(node)
        self.ledger.begin_again(shadow, start)
        self.starts[node.name] = start

    def _start_moved(self, node: SimNode, start: int) -> None:
        """Retention, or a start: a crash may bring back what had left and was not removed."""
        before = self.starts.get(node.name, 0)
        self.starts[node.name] = start
        self.trace(node.name, "start", f"{before} -> {start}")
        if start > before:
            self.retained += 1
            for one in self.court.started:
                one.started(node, start)

    def _was_cut(self, node: SimNode, shadow: Shadow, end: int) -> None:
        """A cut is done; in the same step the log may have grown again, as a new master's does."""
        store = node.store
        assert store is not None
        count = shadow.count_up_to(end)
        while count:
            last = shadow.batches[count - 1]
            if last.end <= store.start:
                break  # cut to the first byte that retention has left
            if store.border_at_or_below(last.end) == last.end:
                entry = store.entries(last.start, max_bytes=1)[0]
                if (entry.start, entry.epoch, entry.crc) == (last.start, last.epoch, last.crc):
                    break
            count -= 1
        self._cut(node, shadow, shadow.batches[count - 1].end if count else 0)

    def _cut(self, node: SimNode, shadow: Shadow, end: int) -> None:
        self.cuts += 1
        self.trace(node.name, "cut", f"{shadow.end} -> {end}")
        for one in self.court.cut:
            one.cut(node, shadow, end)
        self.ledger.cut(shadow, end)
        shadow.flushed = min(shadow.flushed, end)
        shadow.acked = min(shadow.acked, end)

    def _end_moved(self, node: SimNode, shadow: Shadow, end: int) -> None:
        if end < shadow.end:
            self._was_cut(node, shadow, end)
        if end > shadow.end:
            grown = self.ledger.grow(shadow, node.entries(shadow.end, end))
            if shadow.end != end:
                raise Violation(
                    "EveryByteHasEntry", f"{node.name}: end {end}, entries to {shadow.end}"
                )
            self.trace(node.name, "end", f"{end} {len(grown)} batches e{grown[-1].epoch}")
            for one in self.court.grew:
                one.grew(node, shadow, grown)

    def _confirm_moved(self, node: SimNode, shadow: Shadow, confirm: int) -> None:
        acting = node.acts_in_epoch() or node.acted_before
        if acting is not None and confirm > self.ledger.canon_end:
            gained = self.ledger.confirm(shadow, confirm)
            for batch in gained:
                self._enter(node, batch)
            leading = node.driver.core.leading if node.driver is not None else None
            if gained and leading is not None:
                self.confirmed_under = (leading.epoch, leading.insync.set_revision)
            if gained:
                for one in self.court.canon_grew:
                    one.canon_grew()
        for one in self.court.confirmed:
            one.confirmed(node, shadow, confirm)
        shadow.confirm = confirm
        if acting is not None:
            shadow.acked = max(shadow.acked, confirm)
        shadow.confirm_floor = max(shadow.confirm_floor, confirm)
        self.trace(node.name, "confirm", str(confirm))

    def _enter(self, node: SimNode, batch: Batch) -> None:
        assert node.store is not None
        length = 8 if batch.kind == 1 else batch.length
        data = bytes(node.store.view(batch.start, batch.start + length))
        found = self.contents.add(batch, data)
        if self.contents.others and self.groups.members:
            self.groups.enter(batch, self.contents.others)
        if self.plan.deletions:
            self.deletions.enter(found, self.contents.others)
        if self.plan.transactions:
            self.transactions.enter(self.contents.others)
        if self.plan.delayed:
            self.delays.enter(batch, found, self.contents.others)
        for topic, queue, stored in found:
            producer, epoch, sequence, number, _ = stored.name.split(b"|", 4)
            if int(number) != 0:
                continue
            key = (topic, queue, int(epoch), int(sequence))
            section = self.producers[int(producer[1:])].sent.get(key)
            if section is None or not section.may_exist:
                raise Violation(
                    "RefusedStaysAway", f"{stored.name!r} is confirmed, every attempt was refused"
                )

    def sample(self) -> None:
        """Check what costs the length of a log, on nodes where nothing is under way."""
        for node in self.nodes.values():
            sound = node.name not in self.rotten
            if sound and node.alive and not node.paused and not node.cutting:
                for one in self.court.sample:
                    one.sample(node)

    def _sample_again(self) -> None:
        self.sample()
        self.schedule.after(_SAMPLE_EVERY, self._sample_again)

    # -- what nodes tell

    def booted(self, node: SimNode) -> None:
        """A store is open again: what it holds must be what it held, or what a crash leaves."""
        store, shadow = node.store, self.ledger.shadows[node.name]
        assert store is not None
        self.rotting.discard(node.name)
        self._look_for_seed(node, shadow)
        for one in self.court.booted:
            if one.of_rotten or node.name not in self.rotten:
                one.booted(node, shadow)
        if node.name in self.rotten and not store.boot.clean:
            node.unclean_pending = True
        kept = store.boot.clean and store.end >= shadow.acked
        if node.lost_power and (self.is_durable(node) or kept) and node.name not in self.rotten:
            shadow.intact = shadow.was_intact
        if store.end < shadow.end:
            self.ledger.cut(shadow, store.end)
        self._compare_whole(node, shadow)
        shadow.flushed = min(shadow.flushed, store.end)
        shadow.acked = min(shadow.acked, store.end)
        shadow.confirm = store.confirm
        self.observe(node)
        wrong = self.layout.first_wrong(node, shadow)
        if wrong is not None and node.name not in self.rotten:
            raise Violation("OnlyZerosBeyond", f"{node.name} after its start: {wrong}")
        if wrong is None and not node.is_quarantined:
            self.damaged.discard(node.name)  # a crash came between the repair and its event (R66)

    def _compare_whole(self, node: SimNode, shadow: Shadow) -> None:
        previous: Batch | None = None
        assert node.store is not None
        start = node.store.start
        known = [batch for batch in shadow.batches if batch.start >= start]
        previous = known[0].previous if known else None
        for entry, batch in zip(node.entries(start, shadow.end), known, strict=True):
            previous = self.ledger.intern(entry, previous)
            if previous is not batch:
                raise Violation("RestartLosesNothing", f"{node.name}: {batch} became {previous}")

    def lost_bytes(self, node: SimNode) -> None:
        """A page cache is gone: the store counts for nothing until it is known what is left."""
        shadow = self.ledger.shadows[node.name]
        shadow.was_intact = shadow.intact or (shadow.was_intact and not node.opened)
        shadow.intact = False

    def wiped(self, node: SimNode) -> None:
        """A disk was exchanged for an empty one, or for an old copy."""
        for known in (self.rotten, self.rotting, self.damaged):
            known.discard(node.name)
        floor = self.ledger.canon_end
        self.ledger.shadows[node.name] = Shadow(
            node.name, intact=False, was_intact=False, confirm_floor=floor
        )

    def sending(self, node: SimNode, frame: Frame) -> None:
        """A node puts a frame on the wire."""
        if frame.type == Type.HA_ACK:
            end, flushed = frame.fields["end"], frame.fields["flushed"]
            assert isinstance(end, int)
            assert isinstance(flushed, int)
            assert node.driver is not None
            shadow = self.ledger.shadows[node.name]
            durable = node.driver.core.context.quality == "durable"
            shadow.acked = max(shadow.acked, flushed if durable else end)
            for one in self.court.acked:
                one.acked(node, frame.epoch, end, flushed)

    def event(self, node: SimNode, name: str, level: str, facts: dict[str, object]) -> None:
        """A node logs an event."""
        self.events[name] += 1
        if name == "registered":
            node.unclean_pending = False
        if name == "batch-rotten" and node.disk.faults.full:
            node.unclean_pending = True  # the finding had no room: the node trusts itself no more
        if name == "quarantine-ended":
            self.damaged.discard(node.name)
        if name == "master":
            self.observe(node)
            for one in self.court.leads:
                one.leads(node)
        if name == "batch-repaired" and node.store is not None and not node.store.scrub.wounds:
            self.rotten.discard(node.name)
            self.rotting.discard(node.name)
            self._find_whole()
        if self.log.wanted:
            text = " ".join(f"{key}={value}" for key, value in facts.items())
            self.trace(node.name, name[:12], f"{level} {text}"[:200])

    def role_changed(self, node: SimNode) -> None:
        """A node's view moved."""
        if node.view_moved() and self.faults is not None:
            self.faults.node_changed(node)
            if node.acts_in_epoch() is not None:
                self.askers.master_began(node.name)

    def register_changed(self) -> None:
        """The coordinator's state changed."""
        self._find_whole()
        for one in self.court.register_changed:
            one.register_changed()

    def _find_whole(self) -> None:
        """Stores that are registered, and have no damage, count as whole again."""
        state = self.coordinator.state
        for name, node in self.nodes.items():
            shadow, known = self.ledger.shadows[name], state.reg.get(name)
            sound = name not in self.rotten
            if sound and not shadow.intact and known is not None and node.store is not None:
                shadow.intact = known.start == node.store.boot.start_id

    def replied(self, node: SimNode, request: Request, results: list[SectionResult]) -> None:
        """A node answers an append: the promise must hold now."""
        self.observe(node)
        for section, result in zip(request.sections, results, strict=True):
            if result.outcome in (0, 1):
                self.answers += 1
                self._promise_holds(node, section, result)
        assert node.driver is not None
        newest = node.driver.core.context.newest
        leader = newest.leader or "" if newest is not None else ""
        epoch = node.driver.core.context.promise.epoch
        self.network.post(
            node.name, "clients", request.producer.answer, request, results, epoch, leader
        )

    def _promise_holds(self, node: SimNode, section: Outgoing, result: SectionResult) -> None:
        store, line = node.store, section.line
        assert store is not None
        if line.producer.acknowledge != "confirmed" and node.driver is not None:
            for one in self.court.weakly_acknowledged:
                one.weakly_acknowledged(node, node.driver.core.context.promise.epoch)
        what = f"{node.name} answers {line.producer.name!r} {line.topic}/{line.queue}"
        match line.producer.acknowledge:
            case "confirmed":
                key = line.producer.name + b"%s/%d" % (line.topic.encode(), line.queue)
                place = self.contents.places.get((key, section.epoch, section.sequence))
                if place is None:
                    raise Violation("AckHolds", f"{what} {section.sequence}: not confirmed")
                known = result.end > 0 and result.log_offset >= 0
                told = (result.log_offset, result.queue_offset)
                if known and told != (place.log_offset, place.queue_offset):
                    raise Violation("AckHolds", f"{what}: at {told}, is {place}")
                epoch = node.driver.core.context.promise.epoch if node.driver is not None else 0
                self.askers.acknowledged(epoch, place.log_offset + place.size)
            case "flushed" if result.end > store.flushed:
                raise Violation("AckHolds", f"{what}: {result.end} flushed {store.flushed}")
            case "replicated" if not self.ledger.held_elsewhere(
                self.ledger.shadows[node.name], result.end
            ):  # a slave may have lost it since it said so: nobody promises more
                raise Violation("AckHolds", f"{what}: no slave has had {result.end}")
            case _ if result.end > store.end:
                raise Violation("AckHolds", f"{what}: {result.end} beyond the end {store.end}")

    def topic_answered(self, epoch: int, name: str, queues: int, result: SectionResult) -> None:
        """A master of that epoch answers the order of a topic."""
        self.trace("oper", "topic is", f"{name} {result.outcome.name} {result.code}")
        if name in (STEP_TOPIC, BRIEF_TOPIC):
            if result.outcome in (0, 1):
                self.topics_apart.add(name)
            return
        if result.outcome in (0, 1) and name not in self.topics:
            self.topics.append(name)
            self.topic_queues[name] = queues
            self.askers.created(epoch, name)

    def facts(self) -> dict[str, int]:
        """Counts of what the run did, for a person who asks whether it tested anything."""
        return {
            "events": self.schedule.events,
            "frames": self.network.frames,
            "seconds": int(self.schedule.now),
            "masters": self.coordinator.masters,
            "changes": self.coordinator.changes,
            "batches": len(self.ledger.canon),
            "answers": self.answers,
            "reads": self.readers.records,
            "believed": self.askers.believed,
            "again": self.askers.again,
            "starts": sum(node.incarnation for node in self.nodes.values()),
            "cuts": self.cuts,
            "retained": self.retained,
            **{name: self.events[name] for name in RARE},
            "deposed": self.askers.deposed,
            "begun again": self.begun_again,
            "gone": self.coordinator.deposed,
            "recovered": self.coordinator.recovered,
            **self.groups.facts(),
            **self.delays.facts(),
            **self.deletions.counts,
            **self.transactions.facts(),
            "faults": sum(self.faults.counts.values()) if self.faults else 0,
        }

    # -- the run

    def run(self, seconds: float) -> None:
        """Start, suffer for ``seconds``, heal.

        Raises:
            Violation: An invariant does not hold.
        """
        self._limits = put_in_force(self.plan.limits)
        try:
            self._run(seconds)
        finally:
            self._limits.undo()

    def _run(self, seconds: float) -> None:
        self.coordinator.start()
        for node in self.nodes.values():
            node.boot()
        self.operator.create_until_known("topic0", 2)
        if self.plan.batches:
            self.operator.create_until_known(BATCH_TOPIC, 2)
        if self.groups.members:
            self.operator.create_until_known(STEP_TOPIC, 1)
        if self.plan.transactions:
            self.operator.create_until_known(STEP_TOPIC, QUEUES)
        self._until(START_SECONDS, "Start", self._started)
        for producer in self.producers:
            producer.start()
        self.readers.start()
        self.askers.start()
        self.groups.start()
        self.deletions.start()
        self.transactions.start()
        self.schedule.after(_SAMPLE_EVERY, self._sample_again)
        self.network.weather = self.plan.weather
        self.faults = Faults(self)
        self.operator.watch_the_register()
        self.schedule.run_until(self.schedule.now + seconds)
        self._heal()

    def _started(self) -> str:
        return "" if self.topics else "no first topic"

    def _heal(self) -> None:
        assert self.faults is not None
        self.trace("world", "heal")
        self.faults.heal()
        self._limits.undo()
        self.groups.heal()
        self.deletions.deleting = False
        self.transactions.heal()
        self.operator.care()
        begin = self.schedule.now
        self._until(HEAL_SECONDS / 2, "MasterComesBack", self._has_master)
        self.schedule.run_until(self.schedule.now + 2.0)
        self._until(HEAL_SECONDS / 2, "HealedWorldWorks", self.deletions.missing)
        for producer in self.producers:
            producer.active = False
        self._until(HEAL_SECONDS / 2, "HealedWorldWorks", partial(unhealed, self))
        self._until(HEAL_SECONDS / 2, "ConsumersGoOn", self.groups.unfinished)
        self._until(HEAL_SECONDS / 2, "DeliveredInTheEnd", self.delays.unfinished)
        self._until(HEAL_SECONDS / 2, "DeliveredInTheEnd", self.transactions.unfinished)
        self._until(HEAL_SECONDS / 2, "HealedWorldWorks", partial(unhealed, self))
        self._until(HEAL_SECONDS / 2, "HealedWorldWorks", partial(unheard, self))
        self.healed_after = self.schedule.now - begin
        self.sample()
        for name in self.rotten:  # nobody needed what is bad there, so nobody has noticed
            self.nodes[name].kill(power=False)
        for one in self.court.finished:
            one.finished()

    def _until(self, seconds: float, name: str, why_not: Callable[[], str]) -> None:
        end = self.schedule.now + seconds
        while True:
            reason = why_not()
            if not reason:
                return
            if self.schedule.now >= end:
                raise Violation(name, f"after {seconds:g} s without faults: {reason}")
            self.schedule.run_until(self.schedule.now + 0.25)

    def _has_master(self) -> str:
        return "" if self.newest_master() is not None else "no master"
