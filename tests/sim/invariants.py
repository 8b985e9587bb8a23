"""What must never happen, each with a name.

An invariant is a class whose docstring is what it says; its methods are the moments at which it is
checked. Reports, mutants and docs use the class names. Everything that costs the length of a log
is checked at samples (a start, a cut, every few seconds, the end); the rest costs what the step
changed.

Checked inside the judge's memory, because there it costs nothing: `ConfirmedStays`,
`PrefixAgreement`, `BatchesEqual`, `EveryByteHasEntry` (`tests.sim.ledger`), `NoGapNoDouble`,
`ProducerOrder` (`tests.sim.contents`).

``rules`` of a class are those of docs/protocol.md that it holds.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from cli.history.checker import check
from storage.errors import StaleToken
from storage.state.controls import ForgetProducers
from tests.sim.clients import INSIDE_MAX
from tests.sim.ledger import Batch, Shadow, Violation
from tests.stores import workbench
from twinlog.errors import CorruptionError

if TYPE_CHECKING:
    from tests.sim.node import SimNode
    from tests.sim.world import World


class Invariant:
    """Base: every moment, doing nothing."""

    rules: ClassVar[str] = ""
    """Numbers of docs/protocol.md that it holds."""

    def __init__(self, world: World) -> None:
        self.world = world

    def fail(self, text: str) -> None:
        """Raise the violation of this invariant."""
        raise Violation(type(self).__name__, text)

    def booted(self, node: SimNode, shadow: Shadow) -> None:
        """A node's store is open again; the shadow still shows it as it was before."""

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        """A store's log became longer."""

    def cut(self, node: SimNode, shadow: Shadow, end: int) -> None:
        """A store's log will be cut in the shadow; in the store it is."""

    def flushed(self, node: SimNode, shadow: Shadow, flushed: int) -> None:
        """A store says that more is flushed; the shadow has the old value."""

    def confirmed(self, node: SimNode, shadow: Shadow, confirm: int) -> None:
        """A store's confirm offset moved; the shadow has the old value."""

    def started(self, node: SimNode, start: int) -> None:
        """A store's log begins later than it did."""

    def canon_grew(self) -> None:
        """A master confirmed more than anybody before."""

    def register_changed(self) -> None:
        """The coordinator's state changed."""

    def acked(self, node: SimNode, epoch: int, end: int, flushed: int) -> None:
        """A slave puts an acknowledgement on the wire."""

    def began_again(self, node: SimNode) -> None:
        """A store has deleted its log and begins at its master's seed."""

    def late_write(self, node: SimNode) -> None:
        """Somebody holds a token of this process that has ended, and writes."""

    def asked(self, wrong: str) -> None:
        """A reader believes an answer that lacks what was acknowledged before it asked."""

    def sample(self, node: SimNode) -> None:
        """A good moment for what costs the length of a log; the node is alive and idle."""

    def finished(self) -> None:
        """The run is over and healed."""


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


class FilesAreFilled(Invariant):
    """A filler ends a file only when the next batch does not fit."""

    rules = "R10"

    def grew(self, node: SimNode, shadow: Shadow, batches: list[Batch]) -> None:
        plan = self.world.plan
        more = INSIDE_MAX * 100 if plan.batches else 0
        more += 200 if plan.lights else 0
        largest = plan.records_max * (plan.body_max + more + 300) + 1024
        for batch in batches:
            if batch.kind == 1 and batch.length > largest:
                self.fail(f"{node.name}: {batch} skips {batch.length} bytes, {largest} would do")


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


class QueueFollowsLog(Invariant):
    """Queue entries are those of the confirmed log, dense, and never beyond confirm."""

    rules = "R3, R49"

    def sample(self, node: SimNode) -> None:
        self.world.readers.compare_queues(node)

    def finished(self) -> None:
        for node in self.world.nodes.values():
            self.world.readers.compare_queues(node, complete=True)


class KeysFindRecords(Invariant):
    """A query for a key finds the confirmed records with it, newest first, and nothing else."""

    rules = "R3, R50"

    def sample(self, node: SimNode) -> None:
        self.world.readers.compare_keys(node)

    def finished(self) -> None:
        for node in self.world.nodes.values():
            self.world.readers.compare_keys(node)


class AckedIsFound(Invariant):
    """What a producer was told is confirmed is in the confirmed log, once, in every store."""

    rules = "R46, R47"

    def finished(self) -> None:
        places = self.world.contents.places
        for producer in self.world.producers:
            if producer.acknowledge != "confirmed":
                continue
            for (topic, queue, epoch, sequence), section in producer.sent.items():
                if not section.promised:
                    continue
                line = producer.name + b"%s/%d" % (topic.encode(), queue)
                for number in range(section.count):
                    if (line, epoch, sequence + number) not in places:
                        self.fail(f"{line!r} {epoch}.{sequence + number} acknowledged and gone")


class ReaderFindsAcknowledged(Invariant):
    """Whoever begins to read after a record or topic was acknowledged finds it; see `Askers`.

    And in a healed world there is an answer.
    """

    rules = "R53"

    def asked(self, wrong: str) -> None:
        self.fail(wrong)

    def finished(self) -> None:
        if not self.world.rotten and (lacking := self.world.askers.ask_all()):
            self.fail(f"nobody answers in a healed world: {lacking}")


class OneLogExplainsAll(Invariant):
    """One log explains what all clients saw, says a checker that knows nothing of logs."""

    rules = "R46, R47, R52, R53"

    def finished(self) -> None:
        verdict = check(self.world.history.operations())
        for one in verdict.findings:
            self.fail(f"{one.kind}: {one.text} ({', '.join(one.operations)})")


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


ALL: tuple[type[Invariant], ...] = (
    CandidatesComplete,
    MasterComplete,
    OneMasterPerEpoch,
    SetsNameIncarnations,
    EpochsRise,
    EpochsAlongLog,
    FilesAreFilled,
    ConfirmBehindEnd,
    ConfirmNeverFalls,
    TruncateOnlyUnconfirmed,
    GivesUpOnlyOutside,
    AckedIsHeld,
    FlushedIsDurable,
    EndedWriterWritesNothing,
    RestartLosesNothing,
    CutIsDurable,
    CleanMeansComplete,
    OnlyZerosBeyond,
    SnapshotIsFlushed,
    QueueFollowsLog,
    KeysFindRecords,
    AckedIsFound,
    ReaderFindsAcknowledged,
    OneLogExplainsAll,
    KeepsWhatIsNeeded,
)


class Court:
    """Invariants, called only for the moments they care about.

    Args:
        world: The run.
        alone: The name of the only one that sits; all sit when it is empty.
    """

    def __init__(self, world: World, alone: str = "") -> None:
        self.all = [kind(world) for kind in ALL if not alone or kind.__name__ == alone]
        self.booted = self._having("booted")
        self.grew = self._having("grew")
        self.cut = self._having("cut")
        self.began_again = self._having("began_again")
        self.flushed = self._having("flushed")
        self.confirmed = self._having("confirmed")
        self.started = self._having("started")
        self.canon_grew = self._having("canon_grew")
        self.register_changed = self._having("register_changed")
        self.acked = self._having("acked")
        self.late_write = self._having("late_write")
        self.asked = self._having("asked")
        self.sample = self._having("sample")
        self.finished = self._having("finished")

    def _having(self, moment: str) -> list[Invariant]:
        base = getattr(Invariant, moment)
        return [one for one in self.all if getattr(type(one), moment) is not base]
