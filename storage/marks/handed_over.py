"""``twinlog/handed-over``: ``twinlog store handover`` has made the store ready for RocketMQ.

Its log has records that no group knows, so no node opens it again: groups would get messages that
RocketMQ may have given them. Tools may, and an adoption makes a store of a new
group of it: that sets the whole folder ``twinlog`` aside, the mark with it.

Not here: the handover (`storage.tools.handover`).
"""

from __future__ import annotations

from storage.disk.disk import Disk
from storage.errors import ForeignStore

HANDED_OVER = "twinlog/handed-over"


def is_handed_over(disk: Disk) -> bool:
    """Whether a handover has begun."""
    return disk.exists(HANDED_OVER)


def note_handover(disk: Disk) -> None:
    """Write the mark durably."""
    disk.write_file(HANDED_OVER, b"see: twinlog store adopt\n", "handover.mark")


def forget_handover(disk: Disk) -> None:
    """Remove the mark: nothing was changed."""
    disk.remove(HANDED_OVER, "handover.mark.remove")


def check_kept(disk: Disk) -> None:
    """Raise where the mark is.

    Raises:
        ForeignStore: The store was handed over.
    """
    if is_handed_over(disk):
        raise ForeignStore(
            "the store was handed over to RocketMQ",
            hint="it is no member of its group any more: start the node with an empty directory, "
            "or make the store the beginning of a new group: twinlog store adopt",
            code="handed-over",
        )
