"""Jobs: work of a store that runs away from the event loop.

The store's owner asks for a job, runs `Job.run` in a worker thread (the simulator: later, on the
same thread), and hands the job back to ``Store.finish`` whether it worked or not. Only ``finish``
moves positions. A job made before a cut does nothing and moves nothing.

Not here: what the jobs do (`storage.background`, `storage.cuts`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Job:
    """One piece of work.

    Attributes:
        kind: ``flush``, ``checkpoint``, ``promise``, ``prepare``, ``snapshot``, ``cut``, ``scrub``,
            ``repair`` ...
        work: What `run` does.
        apply: What ``Store.finish`` does; it looks at `error`.
        result: What the work returned.
        error: The exception that ended it.
    """

    kind: str
    work: Callable[[], object]
    apply: Callable[[Job], None]
    result: object = None
    error: Exception | None = None

    def run(self) -> None:
        """Do the work; may run in a worker thread.

        Raises:
            DiskError: Or any other exception; it is also kept in `error`, so that no position
                moves. The job must still be handed to ``Store.finish``.
        """
        try:
            self.result = self.work()
        except Exception as error:
            self.error = error
            raise
