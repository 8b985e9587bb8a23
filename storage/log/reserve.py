"""Disk space reserved for a start, a cut and a stop on a full disk.

Path ``twinlog/reserve``, `RESERVE_BYTES` of zeros, allocated. A start needs space for a few small
files, and so do a cut's intent and a clean stop. When the disk has less free space than that, the
reserve is deleted first, together with the log file made ahead, which is not needed yet; it is made
again once there is space. Until then no new log file may use that space: the next start, cut or
stop needs it too.

A copy-on-write file system may need more space to remove a file than the file frees.

Not here: freeing space (`storage.retention.policy`), what is refused on a full disk.
"""

from __future__ import annotations

from storage.disk.disk import Disk
from storage.errors import DiskFull
from storage.log.segment import remove_ahead

PATH = "twinlog/reserve"
RESERVE_BYTES = 1024 * 1024
NEEDED_BYTES = 8 * RESERVE_BYTES
"""Free space that must be available before the reserve is made."""


def give_up(disk: Disk, op: str) -> None:
    """Remove the reserve and the file made ahead, if less than `RESERVE_BYTES` are free."""
    if disk.free_bytes()[0] >= RESERVE_BYTES:
        return
    remove_ahead(disk, op + ".ahead")
    release(disk, op)


def leaves_room(disk: Disk, size: int) -> bool:
    """Whether a new file of ``size`` bytes leaves the reserved space free."""
    if disk.exists(PATH):
        return True
    free, total = disk.free_bytes()
    return not total or free >= size + RESERVE_BYTES


def release(disk: Disk, op: str) -> None:
    """Remove the reserve, if there is one."""
    if disk.exists(PATH):
        disk.remove(PATH, op + ".reserve")


def hold(disk: Disk, op: str) -> None:
    """Make the reserve if it is missing and there is ample space; on a full disk do nothing."""
    if disk.exists(PATH) or disk.free_bytes()[0] < NEEDED_BYTES:
        return
    try:
        disk.map(PATH, RESERVE_BYTES, op=op + ".reserve", create=True).close()
    except DiskFull:
        return
