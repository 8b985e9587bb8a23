"""A little space held back for the day when the disk is full.

Path ``twinlog/reserve``, `RESERVE_BYTES` of zeros, really allocated. A start needs room for a few
small files, and so do a cut's intent and a clean stop. When the disk has less than that to give,
the reserve is given up first, together with the log file made ahead, which is not needed yet; it is
made again once there is room. Until then no new log file takes the room that it gave up: the next
start, cut or stop needs it too.

A file system that copies on write may need more room to remove a file than the file gives back.

Not here: what makes room (`storage.retention.policy`), what a full disk refuses.
"""

from __future__ import annotations

from storage.disk.disk import Disk
from storage.errors import DiskFull
from storage.log.segment import remove_ahead

PATH = "twinlog/reserve"
RESERVE_BYTES = 1024 * 1024
NEEDED_BYTES = 8 * RESERVE_BYTES
"""Room that must be there before the reserve is made."""


def give_up(disk: Disk, op: str) -> None:
    """Remove the reserve and what was made ahead, when the disk has less than `RESERVE_BYTES`."""
    if disk.free_bytes()[0] >= RESERVE_BYTES:
        return
    remove_ahead(disk, op + ".ahead")
    release(disk, op)


def leaves_room(disk: Disk, size: int) -> bool:
    """Whether a new file of ``size`` bytes leaves what the reserve stands for."""
    if disk.exists(PATH):
        return True
    free, total = disk.free_bytes()
    return not total or free >= size + RESERVE_BYTES


def release(disk: Disk, op: str) -> None:
    """Remove the reserve, if there is one."""
    if disk.exists(PATH):
        disk.remove(PATH, op + ".reserve")


def hold(disk: Disk, op: str) -> None:
    """Make the reserve where it is missing and there is ample room; a full disk changes nothing."""
    if disk.exists(PATH) or disk.free_bytes()[0] < NEEDED_BYTES:
        return
    try:
        disk.map(PATH, RESERVE_BYTES, op=op + ".reserve", create=True).close()
    except DiskFull:
        return
