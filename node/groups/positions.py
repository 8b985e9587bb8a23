"""Positions of broadcast members: each has its own, kept under ``group~name``. Pure.

A position only rises; setting it back is a reset. The same position once more is no error and no
row.
"""

from __future__ import annotations

from node.groups.context import Context, Turn
from node.groups.members import Session
from storage.messaging.fold import MEMBER_SIGN
from twinlog.errors import UnknownTopic
from twinlog.format.group_rows import PositionRow
from twinlog.wire.groups import DONE, POSITION_OFFSET, RECEIPT_UNKNOWN


def commit(
    context: Context, session: Session, turn: Turn, number: int, position: int
) -> tuple[str, int]:
    """Return the code of a row of COMMIT and the position after it."""
    share = turn.scratch.share(number)
    if share is None or share.group != session.group + MEMBER_SIGN + session.name:
        return RECEIPT_UNKNOWN, 0
    try:
        end = context.records.queue_range(share.topic, share.queue)[1]
    except UnknownTopic:
        return RECEIPT_UNKNOWN, 0
    if not share.next <= position <= max(end, share.next):
        return POSITION_OFFSET, share.next
    turn.scratch.write(PositionRow(number, session.member, 0, position))
    return DONE, position
