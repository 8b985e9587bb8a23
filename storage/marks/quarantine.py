"""Why a log must not be trusted, kept over restarts.

Path ``twinlog/quarantine`` (a sealed map): where the damage lies, what it is, who found it, and the
store timestamp of the newest record at that moment. It is written before the node gives its role
up. A start that finds it is quarantined and unclean, although its walk over the newest batches may
find nothing: the damage may lie anywhere in the log.

The first finding stays. Only a repair that has verified the whole store takes it away
(`storage.tools.repair`), or an empty directory.

Not here: who looks for damage, the rest of a quarantine (`storage.recovery.opened`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from storage.damage import Damage
from storage.disk.disk import Disk
from storage.disk.packing import number, seal, text, unseal
from twinlog.errors import CorruptionError

QUARANTINE = "twinlog/quarantine"


class FoundBy(StrEnum):
    """Who found that a log must not be trusted."""

    STORE = "store"
    """Bytes differ from their check sums: whether they are repaired can be verified here."""
    PEERS = "peers"
    """Another node has something else: nothing in this directory tells who is right."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """One finding.

    Attributes:
        damage: Where and what.
        by: Who found it.
        newest_ms: Store timestamp of the newest record when it was found.
    """

    damage: Damage
    by: FoundBy
    newest_ms: int


def write_quarantine(disk: Disk, value: Quarantine, op: str) -> None:
    """Write the finding durably; an earlier one stays.

    Raises:
        DiskError: It is not known whether the next start sees it.
    """
    if disk.exists(QUARANTINE):
        return
    damage = value.damage
    fields: dict[str, object] = {
        "file": damage.file, "offset": damage.offset, "length": damage.length,
        "what": damage.what, "by": value.by.value, "newest": value.newest_ms,
    }  # fmt: skip
    disk.write_file(QUARANTINE, seal(fields), op)


def read_quarantine(disk: Disk) -> Quarantine | None:
    """Return the finding of an earlier run; None when there is none.

    A file that cannot be read counts as a finding: somebody had one to write down.
    """
    if not disk.exists(QUARANTINE):
        return None
    try:
        fields = unseal(disk.read(QUARANTINE, "open.quarantine"))
        damage = Damage(
            text(fields, "file"), number(fields, "offset"), number(fields, "length"),
            text(fields, "what"),
        )  # fmt: skip
        return Quarantine(damage, FoundBy(text(fields, "by")), number(fields, "newest"))
    except (CorruptionError, ValueError):
        what = "a finding of an earlier run, which cannot be read any more"
        return Quarantine(Damage(QUARANTINE, 0, 0, what), FoundBy.STORE, 0)


def clear_quarantine(disk: Disk, op: str) -> None:
    """Take the finding away, durably: what it named is verified again."""
    if disk.exists(QUARANTINE):
        disk.remove(QUARANTINE, op)
        disk.fsync_dir("twinlog", op + ".dir")
