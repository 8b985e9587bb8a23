"""Why a log is quarantined, kept over restarts.

Path ``twinlog/quarantine`` (a sealed map): place and kind of the damage, who found it, and the
store timestamp of the newest record at that moment. It is written before the node ends its role. A
start that finds it is quarantined and unclean, even if its walk over the newest batches finds
nothing: the damage may be anywhere in the log (R7).

The first finding stays. Only a repair that has verified the whole store removes it
(`storage.tools.repair`), or starting with an empty directory.

Not here: finding damage, the effects of a quarantine (`storage.recovery.opened`).
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
    """Who found the damage."""

    STORE = "store"
    """Bytes differ from their checksums: a repair can be verified here."""
    PEERS = "peers"
    """Another node has different bytes: nothing in this directory tells which are right."""


@dataclass(frozen=True, slots=True)
class Quarantine:
    """One finding.

    Attributes:
        damage: Its place and kind.
        by: Who found it.
        newest_ms: Store timestamp of the newest record when it was found.
    """

    damage: Damage
    by: FoundBy
    newest_ms: int


def write_quarantine(disk: Disk, value: Quarantine, op: str) -> None:
    """Write the finding durably; an earlier one stays.

    Raises:
        DiskError: It is unknown whether the next start will see it.
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
    """Return the finding of an earlier run; None without one.

    An unreadable file counts as a finding: it is only written when there is one.
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
        what = "a finding of an earlier run, which is unreadable now"
        return Quarantine(Damage(QUARANTINE, 0, 0, what), FoundBy.STORE, 0)


def clear_quarantine(disk: Disk, op: str) -> None:
    """Remove the finding, durably: the store was verified again."""
    if disk.exists(QUARANTINE):
        disk.remove(QUARANTINE, op)
        disk.fsync_dir("twinlog", op + ".dir")
