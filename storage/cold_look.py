"""A look for something that may have to come from the disk.

Made by the store's owner, run in a worker thread, judged by the owner afterwards
(``Store.looked_at``), because files may leave and the log may be cut meanwhile.

Not here: what is looked for (`storage.looks`), who runs the threads.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
Stop = Callable[[], bool]
"""Says whether nobody waits any more."""


@dataclass(frozen=True, slots=True)
class ColdLook(Generic[T]):
    """Something to be looked up in a worker thread.

    Attributes:
        work: Looks it up; asks its argument now and then whether nobody waits any more.
        size: Bytes that what it brings may take.
        lowest: Once the log starts behind this log offset, an error says nothing.
        generation: How often the log had been cut.
    """

    work: Callable[[Stop], T]
    size: int
    lowest: int
    generation: int = 0

    def run(self, stop: Stop) -> T | Exception:
        """Return what was found, or what ended it; in a worker thread."""
        try:
            return self.work(stop)
        except Exception as error:
            return error
