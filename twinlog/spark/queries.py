"""The two kinds of stores behind one interface: directories and clusters, batch and stream.

    query = batch_query({"servers": "127.0.0.1:7410", "subscribe": "orders"})
    for task in query.tasks(now_ms):
        for batch in read_any(task):            # pyarrow.RecordBatch
            ...

Units: times are ms since 1970.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from twinlog.spark.batch import DirectoryQuery, Task, columns_of, read_task
from twinlog.spark.cluster import ClusterTask, ClusterView, read_cluster
from twinlog.spark.columns import Column
from twinlog.spark.errors import SourceError
from twinlog.spark.options import Options, parse
from twinlog.spark.planning import Piece, bounds_of, clipped
from twinlog.spark.pushdown import Narrowed, narrow
from twinlog.spark.stream import Json, Stream
from twinlog.spark.stream_directory import DirectoryStream

LOOK_SECONDS = 0.1
"""How long a look at a cluster serves; Spark asks several times for each trigger."""
_log = logging.getLogger("twinlog.spark")

AnyTask = Task | ClusterTask


class BatchQuery(Protocol):
    """A batch query."""

    def tasks(self, now_ms: int) -> Sequence[AnyTask]:
        """Pin the store and return the tasks."""
        ...


class StreamQuery(Protocol):
    """A streaming query."""

    @property
    def options(self) -> Options:
        """What is asked for."""
        ...

    @property
    def stream(self) -> Stream:
        """Its decisions."""
        ...

    def tasks(self, start: Json, end: Json) -> Sequence[AnyTask]:
        """Return the tasks of the batch between two offsets."""
        ...

    def close(self) -> None:
        """Let go of connections."""
        ...


class ClusterQuery:
    """A batch query over a cluster.

    Args:
        options: What is asked for.
        columns: The schema.
        narrowed: What Spark's filters leave.
    """

    def __init__(
        self, options: Options, columns: Sequence[Column], narrowed: Narrowed | None = None
    ) -> None:
        self.options = options
        self.columns = tuple(columns)
        self._narrowed = narrowed or Narrowed()

    def tasks(self, now_ms: int) -> list[ClusterTask]:
        """Pin the cluster and return the tasks.

        Raises:
            SourceUnavailable: No node answered.
            DataLossError: A start lies before what is kept, and that is not allowed.
        """
        view = ClusterView(self.options)
        try:
            found = bounds_of(view.queues.values(), self.options, now_ms)
            bounds = self._narrowed.bounds(found)
            for text in bounds.warnings:
                _log.warning("%s", text)
            made = view.tasks(bounds.pieces, self.columns, self.options.split_bytes)
        finally:
            view.close()
        since, until = bounds.since_ms, bounds.until_ms
        return [
            replace(
                task,
                reading=replace(
                    self._narrowed.reading(task.reading), since_ms=since, until_ms=until
                ),
            )
            for task in made
        ]


class ClusterStream:
    """A streaming query over a cluster.

    Args:
        options: What is asked for.
        columns: The schema.
    """

    def __init__(self, options: Options, columns: Sequence[Column]) -> None:
        self.options = options
        self._columns = tuple(columns)
        self._view: ClusterView | None = None
        self._looked = 0.0
        self.stream = Stream(
            options,
            self.views,
            now=time.monotonic,
            wall_ms=lambda: round(time.time() * 1000),
            warn=lambda text: _log.warning("%s", text),
        )

    def views(self) -> list[ClusterView]:
        """Return the cluster as it is now, or was a moment ago."""
        now = time.monotonic()
        if self._view is None or now - self._looked > LOOK_SECONDS:
            self.close()
            self._view = ClusterView(self.options)
            self._looked = time.monotonic()
        return [self._view]

    def close(self) -> None:
        """Close the connections."""
        if self._view is not None:
            self._view.close()
            self._view = None

    def tasks(self, start: Json, end: Json) -> list[ClusterTask]:
        """Return the tasks of the batch between two offsets.

        Raises:
            DataLossError: Rows of it are gone, and that is not allowed.
        """
        pieces, size = self.stream.pieces(start, end)
        (view,) = self.views()
        kept: list[Piece] = []
        for piece in pieces.get(view.group, []):
            queue = view.queues.get((piece.topic, piece.queue))
            if queue is None:
                text = f"topic {piece.topic}, queue {piece.queue} is not there any more"
                hint = "use another checkpointLocation"
                raise SourceError(text, code="checkpoint", hint=hint)
            first, lost = clipped(queue, piece.first, self.options.fail_on_data_loss)
            if lost:
                _log.warning("%s", lost)
            if first < piece.stop:
                kept.append(replace(piece, first=first))
        return view.tasks(kept, self._columns, size)


def batch_query(
    given: Mapping[str, str],
    columns: Sequence[Column] | None = None,
    filters: Sequence[Any] = (),
) -> DirectoryQuery | ClusterQuery:
    """Return the batch query that Spark's options describe.

    Args:
        given: The options.
        columns: The schema; None: what the options ask for.
        filters: What Spark will keep of the rows; see `twinlog.spark.pushdown`.

    Raises:
        SourceError: An option is wrong.
    """
    options = parse(given, use="batch")
    wanted = columns if columns is not None else columns_of(options)
    narrowed = narrow(filters)
    return (DirectoryQuery if options.path else ClusterQuery)(options, wanted, narrowed)


def stream_query(
    given: Mapping[str, str], columns: Sequence[Column] | None = None
) -> DirectoryStream | ClusterStream:
    """Return the streaming query that Spark's options describe; as `batch_query`."""
    options = parse(given, use="stream")
    wanted = columns if columns is not None else columns_of(options)
    return (DirectoryStream if options.path else ClusterStream)(options, wanted)


def read_any(task: AnyTask) -> Iterator[Any]:
    """Yield the Arrow batches of a task of either kind."""
    return read_cluster(task) if isinstance(task, ClusterTask) else read_task(task)
