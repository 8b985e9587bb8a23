"""What one turn has decided and not yet appended. Pure.

Decisions of a turn see each other: each row is applied here as soon as it is decided, to a copy of
its share made at the first touch. All rows are appended in one record; the store applies them to
the master's fold then. Where the append is refused, this is dropped, and nothing has happened.
"""

from __future__ import annotations

from storage.messaging.fold import Messaging, Shares
from storage.messaging.share import Share
from twinlog.format.group_rows import MemberRow, Row, ShareRow


class Scratch:
    """See the module.

    Attributes:
        rows: What is to be appended, in order.
    """

    def __init__(self, base: Shares) -> None:
        self._base = base
        self._fold: Messaging | None = None
        self.rows: list[Row] = []

    def share(self, number: int) -> Share | None:
        """See `storage.messaging.fold.Shares`."""
        found = self._fold.share(number) if self._fold is not None else None
        return found if found is not None else self._base.share(number)

    def find(self, group: str, topic: str, queue: int) -> Share | None:
        """See `storage.messaging.fold.Shares`."""
        found = self._fold.find(group, topic, queue) if self._fold is not None else None
        return found if found is not None else self._base.find(group, topic, queue)

    def shares_of(self, group: str) -> list[Share]:
        """See `storage.messaging.fold.Shares`."""
        found = list(self._base.shares_of(group))
        if self._fold is None:
            return found
        own = {share.id: share for share in self._fold.shares_of(group)}
        return [own.pop(share.id, share) for share in found] + list(own.values())

    def next_share(self) -> int:
        """See `storage.messaging.fold.Shares`."""
        return self._base.next_share() if self._fold is None else self._fold.next_share()

    def write(self, row: Row) -> bool:
        """Take a row if it changes something; return whether it does."""
        fold = self._fold
        if fold is None:
            fold = self._fold = Messaging()
            fold.number_from(self._base.next_share())
        if isinstance(row, MemberRow):  # who is a member is for the caller to know
            self.rows.append(row)
            return True
        if not isinstance(row, ShareRow) and fold.share(row[0]) is None:
            share = self._base.share(row[0])
            if share is None:
                return False
            fold.adopt(share.copy())
        changed = fold.apply(row, 0)
        if changed:
            self.rows.append(row)
        return changed
