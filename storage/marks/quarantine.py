"""Why a log is quarantined, kept over restarts.

Path ``twinlog/quarantine`` (a sealed map): place and kind of the damage, who found it, and the
store timestamp of the newest record at that moment. It is written before the node ends its role. A
start that finds it is quarantined and unclean, even if its walk over the newest batches finds
nothing: the damage may be anywhere in the log (R7).

The first finding stays, later ones are added to it. A finding that names a batch ends when its
bytes are whole again, and durably so (`storage.scrub`); any other one when a repair has verified
the whole store (`storage.tools.repair`), or with an empty directory.

Not here: finding damage, the effects of a quarantine (`storage.recovery.opened`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from storage.damage import Damage
from storage.disk.disk import Disk
from storage.disk.packing import number, seal, text, unseal
from twinlog.errors import CorruptionError

QUARANTINE = "twinlog/quarantine"
FINDINGS_MAX = 64
"""Findings of one file; with more of them a log is not repaired batch by batch."""


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
        more: What was found since.
    """

    damage: Damage
    by: FoundBy
    newest_ms: int
    more: tuple[Damage, ...] = ()

    @property
    def findings(self) -> tuple[Damage, ...]:
        """All of them, the first one first."""
        return (self.damage, *self.more)

    @property
    def repairable(self) -> bool:
        """Whether every finding names a batch that another node may have whole."""
        few = len(self.more) < FINDINGS_MAX
        return few and self.by is FoundBy.STORE and all(one.is_batch for one in self.findings)


def write_quarantine(disk: Disk, value: Quarantine, op: str) -> None:
    """Write the finding durably; earlier ones stay, and so does a peer's word.

    Raises:
        DiskError: It is unknown whether the next start will see it.
    """
    known = read_quarantine(disk)
    if known is not None:
        more = tuple(one for one in value.findings if one not in known.findings)
        if known.by is FoundBy.PEERS or not more or len(known.more) >= FINDINGS_MAX:
            return
        value = replace(known, by=value.by, more=(*known.more, *more))
    _write(disk, value, op)


def end_finding(disk: Disk, offset: int, op: str) -> bool:
    """Take the finding of the batch at ``offset`` away, durably; return whether none is left.

    Raises:
        DiskError: It is not known whether the next start sees it.
    """
    known = read_quarantine(disk)
    if known is None:
        return True
    left = [one for one in known.findings if not (one.is_batch and one.offset == offset)]
    if not left:
        clear_quarantine(disk, op)
    elif len(left) < len(known.findings):
        _write(disk, replace(known, damage=left[0], more=tuple(left[1:])), op)
    return not left


def _write(disk: Disk, value: Quarantine, op: str) -> None:
    fields: dict[str, object] = {
        **_fields(value.damage), "by": value.by.value, "newest": value.newest_ms,
    }  # fmt: skip
    if value.more:
        fields["more"] = [_fields(one) for one in value.more]
    disk.write_file(QUARANTINE, seal(fields), op)


def _fields(damage: Damage) -> dict[str, object]:
    return {
        "file": damage.file, "offset": damage.offset, "length": damage.length, "what": damage.what,
    }  # fmt: skip


def _damage(fields: Mapping[str, object]) -> Damage:
    return Damage(
        text(fields, "file"), number(fields, "offset"), number(fields, "length"),
        text(fields, "what"),
    )  # fmt: skip


def read_quarantine(disk: Disk) -> Quarantine | None:
    """Return the finding of an earlier run; None without one.

    An unreadable file counts as a finding: it is only written when there is one.
    """
    if not disk.exists(QUARANTINE):
        return None
    try:
        fields = unseal(disk.read(QUARANTINE, "open.quarantine"))
        listed = cast("list[dict[str, object]]", fields.get("more", []))
        return Quarantine(
            _damage(fields), FoundBy(text(fields, "by")), number(fields, "newest"),
            tuple(_damage(one) for one in listed),
        )  # fmt: skip
    except (CorruptionError, ValueError, TypeError):
        what = "a finding of an earlier run, which is unreadable now"
        return Quarantine(Damage(QUARANTINE, 0, 0, what), FoundBy.STORE, 0)


def clear_quarantine(disk: Disk, op: str) -> None:
    """Remove all findings, durably: the store was verified again."""
    if disk.exists(QUARANTINE):
        disk.remove(QUARANTINE, op)
        disk.fsync_dir("twinlog", op + ".dir")
