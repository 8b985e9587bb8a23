"""Messages that a member has fetched ahead, in the order in which its body gets them.

In an ordered group the next message of a queue is handed out once the one before is acknowledged.
Where one fails, is given back or settled too late, those after it are of no use any more: they are
given back, and so is what a pop brings that was decided before the master knew: until it was told,
it took the queue for this member's and may have leased more of it.

Pure. Not here: when something is asked (``twinlog.groups.core``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable

from twinlog.groups.leases import Held


class Ready:
    """See the module.

    Args:
        ordered: Whether queues are handled in order.
    """

    def __init__(self, *, ordered: bool) -> None:
        self.ordered = ordered
        self._line: deque[Held] = deque()
        self._last: dict[int, int] = {}
        """By share: the highest offset that may be here."""
        self._cut: dict[int, tuple[int, int]] = {}
        """By share: the offset after which messages are unwanted, of pops up to this number."""

    def __len__(self) -> int:
        """Return how many messages there are."""
        return len(self._line)

    def take(self, busy: Container[int]) -> Held | None:
        """Take the next message whose share is not busy; None: there is none."""
        line = self._line
        if not self.ordered:
            return line.popleft() if line else None
        for at, held in enumerate(line):
            if held.share not in busy:
                del line[at]
                return held
        return None

    def beyond(self, busy: Container[int]) -> bool:
        """Whether there is a message of a share that is not busy."""
        return any(held.share not in busy for held in self._line)

    def add(self, found: Iterable[Held], pop: int) -> list[Held]:
        """Take what pop number ``pop`` brought; return what is to be given back."""
        if not self.ordered:
            self._line.extend(found)
            return []
        unwanted: list[Held] = []
        for held in found:
            offset, last = self._cut.get(held.share, (0, 0))
            if pop <= last and held.offset > offset:
                unwanted.append(held)
                continue
            # A queue that begins again was leased after the master knew: all of it is in order.
            self._cut.pop(held.share, None)
            if held.offset < self._last.get(held.share, -1):
                unwanted += self._after(held.share, held.offset)
            self._last[held.share] = held.offset
            self._line.append(held)
        self._cut = {share: cut for share, cut in self._cut.items() if cut[1] > pop}
        return unwanted

    def cut(self, share: int, offset: int, last_pop: int) -> list[Held]:
        """Take the messages of a queue after ``offset``, which is to come again.

        Those that pops up to number ``last_pop`` are still to bring will not be kept either.
        """
        if not self.ordered:
            return []
        before, last = self._cut.get(share, (offset, 0))
        self._cut[share] = min(before, offset), max(last, last_pop)
        return self._after(share, offset)

    def _after(self, share: int, offset: int) -> list[Held]:
        kept, found = deque[Held](), list[Held]()
        for one in self._line:
            (found if one.share == share and one.offset > offset else kept).append(one)
        self._line = kept
        return found

    def forget(self) -> None:
        """Say that no pop so far will be answered any more."""
        self._cut.clear()

    def clear(self) -> list[Held]:
        """Take all."""
        found, self._line = list(self._line), deque()
        return found
