"""Open descriptors of files that are not mapped: a cache whose lock is never held during I/O.

The lock is held to find or count a descriptor, never across a call that may reach the disk: a
worker that overwrites a gigabyte stalls no append. A descriptor that is evicted while in use is
closed by its last user.

The descriptor of a file that is removed or replaced is evicted before and after the call: a
descriptor opened in between is used once and not kept, because its path no longer names that file.
A file that is renamed stays open: the first write under the new name comes from an append, which
must not wait.

Not here: what is done with a descriptor (`storage.disk.disk`).
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Opened:
    """An open descriptor and the number of its users; the cache counts as one."""

    __slots__ = ("descriptor", "users")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.users = 1


class Descriptors:
    """Descriptors by path, open for reading and writing.

    Args:
        most: How many are kept open; the least recently used is closed first.
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

        Like `use`, without a context manager, which would cost an append more than the write.

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
            # Unchanged since before the open: no file was removed or replaced meanwhile, so the
            # path still names this file.
            elif forgotten == self._forgotten:
                made.users += 1
                self._known[path] = made
                while len(self._known) > self._most:
                    gone.append(self._known.popitem(last=False)[1])
        self._leave(gone)
        return made

    def leave(self, one: Opened) -> None:
        """Release what `pin` returned; the last user of an evicted descriptor closes it."""
        with self._guard:
            one.users -= 1
            unused = one.users == 0
        if unused:
            os.close(one.descriptor)

    def _leave(self, some: list[Opened]) -> None:
        """Release each; descriptors without a user are closed."""
        with self._guard:
            for one in some:
                one.users -= 1
            unused = [one for one in some if one.users == 0]
        for one in unused:
            os.close(one.descriptor)

    def forget(self, *paths: str) -> None:
        """Evict these names, and keep no descriptor that is being opened at this moment."""
        with self._guard:
            self._forgotten += 1
            gone = [one for path in paths if (one := self._known.pop(path, None)) is not None]
        self._leave(gone)

    def take(self, path: str, *replaced: str) -> Opened | None:
        """Take the descriptor of a file that gets another name out of the cache; None without one.

        `put` or `leave` must follow. Descriptors under the names ``replaced`` are evicted.
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
