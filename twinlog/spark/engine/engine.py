"""Who runs the parts of a job: Spark, or this process.

`Engine.spread` applies a function to items and returns the results in order. The function must be
defined in a module (Spark sends it by name) and must not keep anything between two items.

Items are bundled into a few tasks for each core: an empty task alone costs 25 ms of CPU. A task
that dies with its executor is run again by Spark, so applying the function twice must be harmless.

An error of twinlog is a task's result, not its failure: Spark would run the task again and keep
only a text, and damage would look the same as an unreachable node. So retries belong inside
the function. Every other error is left to Spark and ends as a `TaskError`.

Not here: starting a session (`twinlog.spark.engine.session`).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

from twinlog.errors import TwinlogError
from twinlog.spark.engine.worker_memory import settle

T = TypeVar("T")
R = TypeVar("R")

TASKS_PER_CORE = 3
"""Bundles for each core: enough to balance uneven items, few enough to cost nothing."""

PROGRESS_SECONDS = 0.5
"""How often Spark is asked how many tasks are done."""

Progress = Callable[[int, int], None]
"""Takes (tasks done, all tasks)."""


class TaskError(TwinlogError):
    """A task ended with an error, on every attempt; the text is the last one's."""

    default_code = "task"


class Engine(Protocol):
    """What runs a function over many items."""

    @property
    def at_once(self) -> int:
        """How many items make good use of it at least."""
        ...

    def spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return ``work(item)`` for every item, in order.

        Raises:
            TwinlogError: The first item, in their order, that ended with one.
            TaskError: One could not be done for another reason.
        """
        ...


class PlainEngine:
    """Runs everything here, one item after the other: the reference, and small stores."""

    at_once = 1

    def spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """See `Engine`."""
        return [work(item) for item in items]


class Rdd(Protocol):
    """What is used of Spark's RDD."""

    def mapPartitions(self, f: Callable[[Iterator[object]], Iterable[object]]) -> Rdd:
        """See Spark."""
        ...

    def collect(self) -> list[object]:
        """See Spark."""
        ...


class StageInfo(Protocol):
    """What is used of Spark's stage information."""

    numTasks: int
    numCompletedTasks: int


class StatusTracker(Protocol):
    """What is used of Spark's status tracker."""

    def getActiveStageIds(self) -> Sequence[int]:
        """See Spark."""
        ...

    def getStageInfo(self, stageId: int) -> StageInfo | None:
        """See Spark."""
        ...


class SparkContext(Protocol):
    """What is used of Spark's context."""

    defaultParallelism: int

    def parallelize(self, c: Iterable[object], numSlices: int) -> Rdd:
        """See Spark."""
        ...

    def statusTracker(self) -> StatusTracker:
        """See Spark."""
        ...

    def cancelAllJobs(self) -> None:
        """See Spark."""
        ...


class SparkEngine:
    """Runs items as tasks of a Spark context.

    Args:
        context: Of a classic session; Spark Connect has none.
    """

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    @property
    def at_once(self) -> int:
        """See `Engine`."""
        return TASKS_PER_CORE * max(1, self._context.defaultParallelism)

    def spread(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """See `Engine`; Ctrl-C cancels the tasks."""
        if not items:
            return []
        tasks = min(len(items), self.at_once)
        # Item i goes to task i % tasks: neighbours, which are alike, are shared out evenly.
        bundles = [[(i, items[i]) for i in range(at, len(items), tasks)] for at in range(tasks)]
        rdd = self._context.parallelize(bundles, tasks).mapPartitions(partial(_bundle, work))
        try:
            found = _collected(rdd)
        except KeyboardInterrupt:
            self._context.cancelAllJobs()
            raise
        results: dict[int, R | _Refused] = dict(found)  # type: ignore[arg-type]  # pyright: ignore
        for i in sorted(results):
            result = results[i]
            if isinstance(result, _Refused):
                raise result.error
        return [results[i] for i in range(len(items))]  # type: ignore[misc]  # pyright: ignore


class Watch:
    """Reports how many tasks of a context are done, those of other code too, until it is stopped.

    Args:
        context: Of a classic session.
        progress: Told twice a second while there are tasks, on a thread of the watch's own.
    """

    def __init__(self, context: SparkContext, progress: Progress) -> None:
        self._tracker = context.statusTracker()
        self._progress = progress
        self._stopped = threading.Event()
        name = "twinlog spark progress"
        self._thread = threading.Thread(target=self._watch, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Tell nothing more; to be called before the session stops."""
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(PROGRESS_SECONDS):
            try:
                self._tell()
            except Exception:  # py4j's: a session that ends under it has no tasks to tell of
                return

    def _tell(self) -> None:
        stages = [self._tracker.getStageInfo(i) for i in self._tracker.getActiveStageIds()]
        running = [stage for stage in stages if stage is not None]
        if running:
            done = sum(stage.numCompletedTasks for stage in running)
            self._progress(done, sum(stage.numTasks for stage in running))


@dataclass(frozen=True, slots=True)
class _Refused:
    """What an item came to that ended with an error of twinlog."""

    error: TwinlogError


def _bundle(
    work: Callable[[T], R], bundles: Iterator[object]
) -> Iterator[tuple[int, R | _Refused]]:
    """Do the items of one task, up to the first that ends with an error.

    The worker is settled after the items: by then they have imported what they need.
    """
    for bundle in bundles:
        items: list[tuple[int, T]] = bundle  # type: ignore[assignment]  # pyright: ignore
        for number, item in items:
            try:
                found: R | _Refused = work(item)
            except TwinlogError as error:
                yield number, _Refused(error)
                return
            yield number, found
    settle()


def _collected(rdd: Rdd) -> list[object]:
    try:
        return rdd.collect()
    except KeyboardInterrupt:
        raise
    except Exception as error:  # py4j's errors have no common type that is importable without it
        raise TaskError(last_words(str(error)), hint="the log of the executors has more") from None


_LINE = re.compile(r"^(?:[\w.]+\.)?(\w*(?:Error|Exception|Corrupt|Full|Exit))(?:: (.*))?$")


def last_words(text: str) -> str:
    r"""Return the last Python error line in the text of a failed Spark job.

    >>> last_words("Job aborted\nTraceback\n  x\nOSError: no space\n\n\tat org.apache.Spark")
    'no space'
    """
    found = ""
    for line in text.splitlines():
        match = _LINE.match(line.strip())
        if match and not line.startswith(("\tat", "Caused by")) and "org.apache" not in line:
            found = match.group(2) or match.group(1)
    return found or (text.strip().splitlines() or ["a task ended without a word"])[0][:500]
