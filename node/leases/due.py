"""When leases end and what was given back is visible again: one heap for all shares. Pure.

An entry names a time, a share, a lease and its range. It is a hint: what is true is in the share,
so an entry whose messages were settled, extended or handed out again meanwhile is dropped when its
time comes. `advance` moves what is over to the *ready* entries, from which pops take.

Nothing here is in the log: a new master makes it from the shares it finds (`begin`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final

from storage.messaging.share import SETTLED, Run, Share

Entry = tuple[int, int, int, int, int]
"""Time in ms, share, n, first, last."""

TIDY_ENTRIES: Final = 65_536
"""As many entries are let in before the first look at which of them are still true."""


class Due:
    """See the module."""

    def __init__(self) -> None:
        self._later: list[Entry] = []
        self._most = TIDY_ENTRIES
        self._ready: dict[str, dict[int, deque[Entry]]] = {}

    def clear(self) -> None:
        """Forget everything: a reign has ended."""
        self._later.clear()
        self._ready.clear()

    def begin(self, shares: Iterator[Share]) -> None:
        """Take the leases and waiting messages of all shares."""
        self.clear()
        for share in shares:
            for run in share.runs:
                if run.state != SETTLED:
                    self._later.append((run.until, share.id, run.n, run.first, run.last))
        heapify(self._later)

    def tidy(self, find: Callable[[int], Share | None]) -> None:
        """Drop entries that are no longer true, once there are many: long leases that were settled.

        ``find`` returns a share by number. Half of what is looked at goes, or twice as many are
        let in before the next look, so an entry is looked at a few times in all.
        """
        if len(self._later) < self._most:
            return
        self._later = [
            entry
            for entry in self._later
            if (share := find(entry[1])) is not None and over(share, entry, entry[0])
        ]
        heapify(self._later)
        self._most = max(TIDY_ENTRIES, 2 * len(self._later))

    def add(self, at: int, share: int, n: int, first: int, last: int) -> None:
        """Look at a range again at ``at``."""
        heappush(self._later, (at, share, n, first, last))

    def next_ms(self) -> int | None:
        """Return when `advance` has something to do; None for never."""
        return self._later[0][0] if self._later else None

    def passed(self, now_ms: int) -> list[Entry]:
        """Take the entries whose time has come, oldest first."""
        found: list[Entry] = []
        later = self._later
        while later and later[0][0] <= now_ms:
            found.append(heappop(later))
        return found

    def ready(self, group: str, entry: Entry) -> None:
        """Let pops of a group take what an entry names."""
        self._ready.setdefault(group, {}).setdefault(entry[1], deque()).append(entry)

    def shares(self, group: str) -> list[int]:
        """Return the shares of a group that have ready entries, oldest first."""
        return list(self._ready.get(group, ()))

    def take(self, group: str, share: int) -> Entry | None:
        """Take the oldest ready entry of a share; None: it has no more."""
        shares = self._ready.get(group, {})
        entries = shares.get(share)
        if entries is None:
            return None
        entry = entries.popleft()
        if not entries:
            del shares[share]
            if not shares:
                del self._ready[group]
        return entry

    def put_back(self, group: str, entry: Entry) -> None:
        """Give back an entry that was taken, before all others of its share."""
        self._ready.setdefault(group, {}).setdefault(entry[1], deque()).appendleft(entry)


def over(share: Share, entry: Entry, now_ms: int) -> list[Run]:
    """Return what of an entry is true: runs of that lease in its range whose time has come."""
    _, _, n, first, last = entry
    found: list[Run] = []
    at = max(first, share.low)
    while at <= last and (run := share.run_at(at)) is not None:
        if run.n == n and run.state != SETTLED and run.until <= now_ms:
            found.append(run._replace(first=max(run.first, first), last=min(run.last, last)))
        at = run.last + 1
    return found
