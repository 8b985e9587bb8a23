"""Open descriptors of files that are not mapped: a cache that nobody waits in.

The lock is held to find or count a descriptor, never across a call that may reach the disk: a
worker that overwrites a gigabyte stalls no append. A descriptor that goes out of the cache while
somebody uses it is closed by the last user.

A file that is removed or replaced is forgotten before and after: what was opened between is used
once and not kept, or its name would lead to a file that is gone. One that gets another name stays
open: the first write under that name is an append's.

Not here: what is done with a descriptor (`storage.disk.disk`).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Opened:
    """An open descriptor with its users; the cache is one."""

    __slots__ = ("descriptor", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 1


class Descriptors:
    """Descriptors by path, open for reading and writing.

    Args:
        most: So many are kept open; the one that was used longest ago goes first.
        opening: Opens a path.
    """

    def __init__(self, most: int, opening: Callable[[str], int]) -> None:
        self._most = most
        self._opening = opening
        self._known: OrderedDict[str, Opened] = OrderedDict()
        self._guard = threading.Lock()
        self._forgotten = 0

    def __len__(self) -> int:
        """How many are kept open."""
        return len(self._known)

    @contextmanager
    def use(self, path: str) -> Generator[int, None, None]:
        """Give the descriptor of a file; it stays open for as long as the block runs.

        Raises:
            OSError: It cannot be opened.
        """
        found = self.pin(path)
        try:
            yield found.descriptor
        finally:
            self.leave(found)

    def pin(self, path: str) -> Opened:
        """Return the descriptor of a file; it stays open until `leave`, which must follow.

        `use` without its block, which costs an append more than the write.

        Raises:
            OSError: It cannot be opened.
        """
        with self._guard:
            found = self._known.get(path)
            if found is not None:
                self._known.move_to_end(path)
                found.users += 1
                return found
            forgotten = self._forgotten
        made = Opened(self._opening(path))
        gone: list[Opened] = []
        with self._guard:
            found = self._known.get(path)
            if found is not None:
                gone.append(made)
                made = found
                made.users += 1
            elif forgotten == self._forgotten:
                made.users += 1
                self._known[path] = made
                while len(self._known) > self._most:
                    gone.append(self._known.popitem(last=False)[1])
        self._leave(gone)
        return made

    def leave(self, one: Opened) -> None:
        """Give back what `pin` returned; the last user of what went out of the cache closes it."""
        with self._guard:
            one.users -= 1
            unused = one.users == 0
        if unused:
            os.close(one.descriptor)

    def _leave(self, some: list[Opened]) -> None:
        """Take a user from each; what has none is closed."""
        with self._guard:
            for one in some:
                one.users -= 1
            unused = [one for one in some if one.users == 0]
        for one in unused:
            os.close(one.descriptor)

    def forget(self, *paths: str) -> None:
        """Keep nothing open under these names, nor what is being opened at this moment."""
        with self._guard:
            self._forgotten += 1
            gone = [one for path in paths if (one := self._known.pop(path, None)) is not None]
        self._leave(gone)

    def take(self, path: str, *replaced: str) -> Opened | None:
        """Take the descriptor of a file that gets another name out of the cache; None without one.

        `put` or `leave` must follow. What the names ``replaced`` led to is forgotten.
        """
        self.forget(*replaced)
        with self._guard:
            self._forgotten += 1
            return self._known.pop(path, None)

    def put(self, path: str, one: Opened) -> None:
        """Keep what `take` returned open, under the name that the file has now."""
        with self._guard:
            self._forgotten += 1
            before = self._known.pop(path, None)
            self._known[path] = one
        if before is not None:
            self.leave(before)

    def close(self) -> None:
        """Keep nothing open."""
        with self._guard:
            self._forgotten += 1
            gone = list(self._known.values())
            self._known.clear()
        self._leave(gone)
