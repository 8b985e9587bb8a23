"""The state of an open store, shared by its parts.

`storage.store.Store`, its reads, its jobs and the removal at the log's head all hold the same
`Opened`. A cut replaces ``derived``, so no other object may keep a part of it across a cut unless
it is rewired (`storage.reads.StoreReads.rewire`).

Not here: how it is made (`storage.recovery.open`), who changes it (the parts).
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from storage.damage import Damage, damage_of
from storage.disk.disk import Disk
from storage.errors import DiskError, DiskFull
from storage.log import reserve
from storage.log.commit_log import CommitLog
from storage.marks.checkpoint import CheckpointFile
from storage.marks.identity import Identity
from storage.marks.promise import Promise, PromiseFile
from storage.marks.quarantine import FoundBy, Quarantine, write_quarantine
from storage.marks.run import RunFile
from storage.recovery.derived import Derived
from storage.recovery.summary import BootSummary
from storage.settings import StoreSettings
from twinlog.errors import CorruptionError

_DERIVED = ("consumequeue/", "batchconsumequeue/", "index/")
"""Files that are derived from the log: a start rebuilds them, which ends their damage."""


REFUSED_KEPT = 64
"""Findings kept until they are reported; more of the same say nothing new."""


@dataclass(slots=True, eq=False)
class Opened:
    """See the module's text.

    Attributes:
        derived: State derived from the log; a cut below the dispatcher replaces it.
        promise: The newest durable promise.
        confirm: Confirm offset; falls only in a cut below it.
        boot: What the start found.
        damage: Why the store is quarantined; None normally.
        guard: Held while a job writes files that other jobs or a cut write too.
        generation: Number of cuts so far: jobs and cold reads of an older generation are void.
        cutting: A cut is running.
        losing: It removes confirmed records, so reads are refused meanwhile.
        disk_full: The last write met a full disk.
        only_copy: No other node is known to have this log's records: reads of a damaged batch are
        refused, and everything else continues.
        refused: Findings of reads while ``only_copy``, not yet reported.
    """

    disk: Disk
    settings: StoreSettings
    identity: Identity
    run: RunFile
    checkpoint: CheckpointFile
    promises: PromiseFile
    promise: Promise
    log: CommitLog
    derived: Derived
    confirm: int
    boot: BootSummary
    guard: AbstractContextManager[object]
    damage: Damage | None = None
    generation: int = 0
    cutting: bool = False
    losing: bool = False
    disk_full: bool = False
    only_copy: bool = False
    refused: list[Damage] = field(default_factory=lambda: list[Damage]())

    @property
    def shape(self) -> int | None:
        """Changes with each cut; None while one is running."""
        return None if self.cutting else self.generation

    def quarantine(self, damage: Damage, by: FoundBy = FoundBy.STORE) -> None:
        """Stop writing: something that was flushed is not as it was written.

        The finding is durable when this returns: the node gives up its role afterwards, and a
        restart must not forget why. If it cannot be written, the next start is unclean.
        """
        if self.damage is not None:
            return
        self.damage = damage
        # Not durable: the next start rebuilds these files, and nothing of the log is in doubt.
        if by is FoundBy.STORE and damage.file.startswith(_DERIVED):
            return
        value = Quarantine(damage, by, self.log.timestamp)
        try:
            try:
                write_quarantine(self.disk, value, "quarantine")
            except DiskFull:
                reserve.release(self.disk, "quarantine")
                write_quarantine(self.disk, value, "quarantine")
        except DiskError:
            self.run.note_io_error()

    def damaged(self, error: CorruptionError) -> None:
        """Quarantine the store for damage that a job found."""
        self.quarantine(damage_of(error))

    def read_damaged(self, error: CorruptionError) -> None:
        """Quarantine the store for damage that a read found, unless its log is the only copy.

        Stopping the only copy would make its undamaged records unavailable, and no node could be
        elected.
        """
        if not self.only_copy:
            self.damaged(error)
        elif len(self.refused) < REFUSED_KEPT:
            self.refused.append(damage_of(error))
