"""Work beside the event loop: in threads that are named after what they do, their time counted.

The name is what ``top -H``, ``ps -L`` and debuggers show while the work runs; the kernel keeps 15
bytes of it. What a thread has cost is counted under the same name when its work ends, so there are
as many names as kinds of work in the code, however many threads come and go.

Not here: who waits for whom (limiters belong to the callers).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import trio

T = TypeVar("T")

LOOP = "loop"
"""Under this name the thread is counted that runs the event loop."""


class Threads:
    """Runs work in threads and counts their processor time; see the module."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._spent: dict[str, float] = {}

    async def run(
        self,
        name: str,
        work: Callable[[], T],
        *,
        limiter: trio.CapacityLimiter | None = None,
        abandon: bool = False,
    ) -> T:
        """Run ``work`` in a thread of that name and return what it returns.

        Cancelled while it runs, it is waited for, or with ``abandon`` left to end by itself: its
        time is counted then.
        """

        def counted() -> T:
            before = time.thread_time()
            try:
                return work()
            finally:
                spent = time.thread_time() - before
                with self._guard:
                    self._spent[name] = self._spent.get(name, 0.0) + spent

        return await trio.to_thread.run_sync(
            counted, thread_name=name, limiter=limiter, abandon_on_cancel=abandon
        )

    def seconds(self) -> Mapping[str, float]:
        """Return processor time by name, seconds; to be called by the thread of the event loop."""
        with self._guard:
            return {**self._spent, LOOP: time.thread_time()}
