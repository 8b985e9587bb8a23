"""What one turn has decided and not yet appended. Pure.

Decisions of a turn see each other: each row is applied here as soon as it is decided, to a copy of
its share made at the first touch. A share that only moves, as those of broadcast members do, needs
none: where it is now is enough. All rows are appended in one record; the store applies them to
the master's fold then. Where the append is refused, this is dropped, and nothing has happened.
"""

from __future__ import annotations

from storage.messaging.fold import Messaging, Shares
from storage.messaging.share import Share
from twinlog.format.group_rows import MemberRow, PositionRow, Row, ShareRow


class Scratch:
    """See the module.

    Attributes:
        rows: What is to be appended, in order.
    """

    def __init__(self, base: Shares) -> None:
        self._base = base
        self._fold: Messaging | None = None
        self._moved: dict[int, int] = {}
        self.rows: list[Row] = []

    def position(self, number: int) -> tuple[Share, int] | None:
        """Return a share and where it goes on; None: no share has that number.

        The share is as it was before it was moved, if it was.
        """
        found = self._fold.share(number) if self._fold is not None else None
        if found is None:
            found = self._base.share(number)
        if found is None:
            return None
        return found, self._moved.get(number, found.next)

    def move(self, share: Share, row: PositionRow) -> bool:
        """Take a position of a share that `position` has returned; as `write`."""
        if self._fold is not None and self._fold.share(row.share) is not None:
            return self.write(row)
        if share.runs or row.next <= self._moved.get(row.share, share.next):
            return False
        self._moved[row.share] = row.next
        self.rows.append(row)
        return True

    def _copy_moved(self) -> None:
        """Copy what has moved, for those who look at the shares themselves."""
        for number, position in self._moved.items():
            share = self._base.share(number)
            if share is not None:
                copied = share.copy()
                copied.move(position)
                self._made().adopt(copied)
        self._moved.clear()

    def _made(self) -> Messaging:
        fold = self._fold
        if fold is None:
            fold = self._fold = Messaging()
            fold.number_from(self._base.next_share())
        return fold

    def share(self, number: int) -> Share | None:
        """See `storage.messaging.fold.Shares`."""
        if number in self._moved:
            self._copy_moved()
        found = self._fold.share(number) if self._fold is not None else None
        return found if found is not None else self._base.share(number)

    def find(self, group: str, topic: str, queue: int) -> Share | None:
        """See `storage.messaging.fold.Shares`."""
        self._copy_moved()
        found = self._fold.find(group, topic, queue) if self._fold is not None else None
        return found if found is not None else self._base.find(group, topic, queue)

    def shares_of(self, group: str) -> list[Share]:
        """See `storage.messaging.fold.Shares`."""
        self._copy_moved()
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
        if self._moved:
            self._copy_moved()
        fold = self._made()
        kind = type(row)
        if isinstance(row, MemberRow):  # who may become one is for the caller to know
            if not row.joined and not self._is_member(row.group, row.member):
                return False
            self.rows.append(row)
            return True
        if kind is not ShareRow and fold.share(row[0]) is None:
            share = self._base.share(row[0])
            if share is None:
                return False
            fold.adopt(share.copy())
        changed = fold.apply(row, 0)
        if changed:
            self.rows.append(row)
        return changed

    def _is_member(self, group: str, member: int) -> bool:
        """Whether it has not left, nor its group been deleted."""
        for row in reversed(self.rows):
            if isinstance(row, MemberRow) and row.member == member:
                return bool(row.joined)
        return member in self._base.members(group)
