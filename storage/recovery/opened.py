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
from storage.marks.quarantine import (
    FINDINGS_MAX,
    FoundBy,
    Quarantine,
    write_quarantine,
)
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
        repairs: Whole copies of damaged batches are looked for (`storage.scrub`).
        wounds: Batches that are refused until they are repaired, by log offset. A store that has
            some is not quarantined yet, or was quarantined for them.
        condemned: The store is quarantined for more than its wounds: repairing does not end it.
        underived: The start had wounds: what it derived may lack what they hold, or say otherwise.
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
    repairs: bool = False
    wounds: dict[int, Damage] = field(default_factory=lambda: dict[int, Damage]())
    condemned: bool = False
    underived: bool = False

    @property
    def shape(self) -> int | None:
        """Changes with each cut; None while one is running."""
        return None if self.cutting else self.generation

    def quarantine(self, damage: Damage, by: FoundBy = FoundBy.STORE) -> None:
        """Stop writing: something that was flushed is not as it was written.

        The finding is durable when this returns: the node gives up its role afterwards, and a
        restart must not forget why. If it cannot be written, the next start is unclean.
        """
        wound = damage.is_batch and by is FoundBy.STORE and self.repairs
        if self.damage is not None:
            return
        self.damage = damage
        self.condemned = not wound
        if wound:
            self.wounds[damage.offset] = damage
        if by is FoundBy.PEERS or not damage.file.startswith(_DERIVED):
            self._write_down(damage, by)

    def _write_down(self, damage: Damage, by: FoundBy) -> None:
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
        """Take what a read found: see `wound`; what cannot be repaired quarantines the store.

        Unless its log is the only copy: stopping it would make its undamaged records unavailable,
        and no node could be elected.
        """
        damage = damage_of(error)
        if self.only_copy and len(self.refused) < REFUSED_KEPT:
            self.refused.append(damage)
        if not self.wound(damage) and not self.only_copy:
            self.quarantine(damage)

    def wound(self, damage: Damage) -> bool:
        """Refuse a damaged batch until it is repaired; False for what cannot be.

        The finding is on the disk when this returns, as that of a quarantine is: a restart before
        it is repaired is one of a quarantined store. Not so for the only copy.
        """
        if damage.offset in self.wounds:
            return True
        if not (self.repairs and damage.is_batch) or len(self.wounds) >= FINDINGS_MAX:
            return False
        if not self.only_copy:
            self._write_down(damage, FoundBy.STORE)
        self.wounds[damage.offset] = damage
        return True
