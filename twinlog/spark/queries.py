"""The two kinds of stores behind one interface: directories and clusters, batch and stream.

    query = batch_query({"servers": "127.0.0.1:7410", "subscribe": "orders"})
    for task in query.tasks(now_ms):
        for batch in read_any(task):            # pyarrow.RecordBatch
            ...

Units: times are ms since 1970.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from twinlog.spark.batch import BatchQuery, DirectoryQuery, Task, columns_of, read_task
from twinlog.spark.cluster import ClusterTask, ClusterView, read_cluster
from twinlog.spark.columns import Column
from twinlog.spark.options import parse
from twinlog.spark.planning import Piece, bounds_of
from twinlog.spark.pushdown import narrow
from twinlog.spark.selection import check_named
from twinlog.spark.stream import Json
from twinlog.spark.stream_directory import DirectoryStream
from twinlog.spark.stream_query import Places, StreamQuery

_log = logging.getLogger("twinlog.spark")

AnyTask = Task | ClusterTask


class ClusterQuery(BatchQuery[ClusterTask]):
    """A batch query over a cluster."""

    def tasks(self, now_ms: int) -> list[ClusterTask]:
        """Pin the cluster and return the tasks.

        Raises:
            SourceUnavailable: No node answered.
            DataLossError: A start lies before what is kept, and that is not allowed.
        """
        view = ClusterView(self.options)
        try:
            check_named(view.queues, self.options)
            found = bounds_of(view.queues.values(), self.options, now_ms)
            bounds = self._narrowed.bounds(found)
            for text in bounds.warnings:
                _log.warning("%s", text)
            rows = sum(piece.stop - piece.first for piece in bounds.pieces)
            made = view.tasks(bounds.pieces, self.columns, view.parts(rows))
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


class ClusterStream(StreamQuery[ClusterView, ClusterTask]):
    """A streaming query over a cluster."""

    def look(self, read: Places) -> list[ClusterView]:
        """Return the cluster as it is now; see `StreamQuery.look`."""
        return [ClusterView(self.options, read)]

    def tasks_of(self, view: ClusterView, pieces: Sequence[Piece], end: Json) -> list[ClusterTask]:
        """Return the tasks that read ``pieces``, as many as the offset says."""
        return view.tasks(pieces, self.columns, self.count_of(view, pieces, end))


AnyStream = DirectoryStream | ClusterStream
AnyBatch = DirectoryQuery | ClusterQuery


def batch_query(
    given: Mapping[str, str],
    columns: Sequence[Column] | None = None,
    filters: Sequence[Any] = (),
) -> AnyBatch:
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


def stream_query(given: Mapping[str, str], columns: Sequence[Column] | None = None) -> AnyStream:
    """Return the streaming query that Spark's options describe; as `batch_query`."""
    options = parse(given, use="stream")
    wanted = columns if columns is not None else columns_of(options)
    return (DirectoryStream if options.path else ClusterStream)(options, wanted)


def read_any(task: AnyTask) -> Iterator[Any]:
    """Yield the Arrow batches of a task of either kind."""
    return read_cluster(task) if isinstance(task, ClusterTask) else read_task(task)
