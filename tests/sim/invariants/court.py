"""What must never happen, each with a name.

An invariant is a class whose docstring is what it says; its methods are the moments at which it is
checked. Reports, mutants and docs use the class names. Everything that costs the length of a log
is checked at samples (a start, a cut, every few seconds, the end); the rest costs what the step
changed.

Checked inside the judge's memory, because there it costs nothing: `ConfirmedStays`,
`PrefixAgreement`, `BatchesEqual`, `EveryByteHasEntry` (`tests.sim.judge.ledger`), `NoGapNoDouble`,
`ProducerOrder` (`tests.sim.judge.contents`).

``rules`` of a class are those of docs/protocol.md that it holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.sim.invariants.clients import (
    AckedIsFound,
    KeysFindRecords,
    OneLogExplainsAll,
    QueueFollowsLog,
    ReaderFindsAcknowledged,
)
from tests.sim.invariants.delays import OF_DELAYS
from tests.sim.invariants.group import (
    AckedIsHeld,
    CandidatesComplete,
    ConfirmBehindEnd,
    ConfirmNeverFalls,
    EpochIsFlushedFirst,
    EpochsRise,
    GivesUpOnlyOutside,
    HoldsHold,
    LearnersCountNowhere,
    LevelIsKnown,
    MasterComplete,
    OneMasterPerEpoch,
    QuarantineStays,
    SetsNameIncarnations,
    TruncateOnlyUnconfirmed,
    WeakAckNeedsLease,
)
from tests.sim.invariants.invariant import Invariant
from tests.sim.invariants.messaging import (
    AheadMeetsConfirmed,
    AttemptsBounded,
    DeadOnce,
    ExportIsState,
    GraceIsGiven,
    InOrder,
    LeaseExclusive,
    MembersSurvive,
    NoneForgotten,
    ParkedPopsWake,
    PopOnce,
    RowsCount,
    SettledStays,
    StateFollowsLog,
    StepWhole,
)
from tests.sim.invariants.store import (
    CleanMeansComplete,
    CutIsDurable,
    EndedWriterWritesNothing,
    EpochsAlongLog,
    FilesAreFilled,
    FlushedIsDurable,
    FlushedIsKnown,
    KeepsWhatIsNeeded,
    OnlyZerosBeyond,
    RestartLosesNothing,
    SnapshotIsFlushed,
)
from tests.sim.invariants.transactions import OF_TRANSACTIONS
from tests.sim.profiles.deletions import DeletedStaysDeleted

if TYPE_CHECKING:
    from tests.sim.world import World

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
    HoldsHold,
    LearnersCountNowhere,
    LevelIsKnown,
    EpochIsFlushedFirst,
    QuarantineStays,
    WeakAckNeedsLease,
    AckedIsHeld,
    FlushedIsDurable,
    FlushedIsKnown,
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
    SettledStays,
    LeaseExclusive,
    InOrder,
    GraceIsGiven,
    PopOnce,
    AttemptsBounded,
    NoneForgotten,
    DeadOnce,
    StepWhole,
    RowsCount,
    MembersSurvive,
    StateFollowsLog,
    AheadMeetsConfirmed,
    ParkedPopsWake,
    ExportIsState,
    *OF_DELAYS,
    DeletedStaysDeleted,
    *OF_TRANSACTIONS,
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
        self.served = self._having("served")
        self.canon_grew = self._having("canon_grew")
        self.register_changed = self._having("register_changed")
        self.acked = self._having("acked")
        self.leads = self._having("leads")
        self.weakly_acknowledged = self._having("weakly_acknowledged")
        self.late_write = self._having("late_write")
        self.asked = self._having("asked")
        self.row = self._having("row")
        self.vain_row = self._having("vain_row")
        self.group_batch = self._having("group_batch")
        self.delay_batch = self._having("delay_batch")
        self.cancelled = self._having("cancelled")
        self.settled_batch = self._having("settled_batch")
        self.ended = self._having("ended")
        self.leased = self._having("leased")
        self.body = self._having("body")
        self.pop_stands = self._having("pop_stands")
        self.sample = self._having("sample")
        self.finished = self._having("finished")

    def _having(self, moment: str) -> list[Invariant]:
        base = getattr(Invariant, moment)
        return [one for one in self.all if getattr(type(one), moment) is not base]
