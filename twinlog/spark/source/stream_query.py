"""A streaming query: the looks that its decisions need, and the tasks of a batch.

The same for directories (`twinlog.spark.source.stream_directory`) and clusters
(`twinlog.spark.source.cluster`). A store is looked at again for every question, at most every
`LOOK_SECONDS`: it may grow, be trimmed or have another master while the query runs.

A look that shows less than the checkpoint counts for nothing while history does not say that rows
were cut: a replica lags, or a running node's directory says less than it did when it was stopped.
It is taken again until ``maxStaleness`` is over. So no query goes back, and none ends early,
because a master died.

Units: seconds, on a clock that never goes back.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from twinlog.spark.errors import SourceUnavailable
from twinlog.spark.plan.columns import Column
from twinlog.spark.plan.options import Options
from twinlog.spark.plan.splits import Piece
from twinlog.spark.plan.stream import Json, Reached, Stream, StreamView, reached_of, tasks_of

LOOK_SECONDS = 0.1
"""How long a look serves; Spark asks several times for each trigger."""
_log = logging.getLogger("twinlog.spark")


class Look(StreamView, Protocol):
    """A view that is let go."""

    @property
    def end(self) -> int:
        """Log offset that everything it shows is before."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


V = TypeVar("V", bound=Look)
T = TypeVar("T")
Places = Mapping[str, Reached]
"""How far each group was read, by its name."""


class StreamQuery(ABC, Generic[V, T]):
    """A streaming query over one kind of store.

    Args:
        options: What is asked for.
        columns: The schema.
    """

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.options = options
        self.columns = tuple(columns)
        self._views: list[V] = []
        self._looked = float("-inf")
        self.stream = Stream(
            options,
            self.views,
            now=time.monotonic,
            wall_ms=lambda: round(time.time() * 1000),
            warn=lambda text: _log.warning("%s", text),
        )

    @abstractmethod
    def look(self, read: Places) -> list[V]:
        """Look at the stores; what is returned has got as far as ``read``.

        Raises:
            SourceUnavailable: None had within ``maxStaleness``.
        """

    @abstractmethod
    def tasks_of(self, view: V, pieces: Sequence[Piece], end: Json) -> list[T]:
        """Return the tasks that read ``pieces``, which belong to the batch that ends at ``end``."""

    def views(self, read: Places) -> list[V]:
        """Return the stores as they are now, or were a moment ago; as `look`."""
        now = time.monotonic()
        old = now - self._looked > LOOK_SECONDS
        if old or not all(has(view, read.get(view.group)) for view in self._views):
            self.close()
            self._views = self.look(read)
            self._looked = time.monotonic()
        return self._views

    def close(self) -> None:
        """Let go of what was looked at."""
        for view in self._views:
            view.close()
        self._views, self._looked = [], float("-inf")

    def tasks(self, start: Json, end: Json) -> list[T]:
        """Return the tasks of the batch between two offsets.

        Raises:
            DataLossError: Rows of it are gone, and that is not allowed.
            SourceUnavailable: The store does not show all of it, and did not in time.
        """
        pieces = self.stream.pieces(start, end)
        read = reached_of(end)
        made: list[T] = []
        for view in self.views(read):
            if view.group in read:
                kept = self.stream.kept(view, pieces.get(view.group, []), read[view.group])
                made += self.tasks_of(view, kept, end)
        return made

    def count_of(self, view: V, pieces: Sequence[Piece], end: Json) -> int:
        """Return into how many tasks a batch is divided: as its offset says.

        Offsets of older versions do not say; then it is counted again.
        """
        rows = sum(piece.stop - piece.first for piece in pieces)
        return tasks_of(end, view.group) or view.parts(rows) or 1


def has(view: Look, read: Reached | None) -> bool:
    """Whether a view shows what was read, or its history says what became of it."""
    if read is None or view.end >= read.end:
        return True
    cut = None if read.epoch is None else view.cut_of(read.epoch)
    return cut is not None and cut < read.end


def waited(look: Callable[[], list[V]], read: Places, seconds: float) -> list[V]:
    """Look until every view has got as far as ``read``.

    Raises:
        SourceUnavailable: One has not after ``seconds``.
    """
    began = time.monotonic()
    while True:
        views = look()
        late = [view for view in views if not has(view, read.get(view.group))]
        if not late:
            return views
        left = seconds - (time.monotonic() - began)
        if left <= 0:
            name, end = late[0].group, late[0].end
            text = f"{name} ends at log offset {end}, below the {read[name].end} that was read"
            hint = "wait until the node has caught up; another store needs another checkpoint"
            raise SourceUnavailable(text, code="offset-not-available", hint=hint)
        time.sleep(min(LOOK_SECONDS, left))
