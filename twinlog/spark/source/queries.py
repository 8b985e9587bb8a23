"""The two kinds of stores behind one interface: directories and clusters, batch and stream.

    query = batch_query({"servers": "127.0.0.1:7410", "subscribe": "orders"})
    for task in query.tasks(now_ms):
        for batch in read_any(task):            # pyarrow.RecordBatch
            ...

Units: times are ms since 1970.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from twinlog.spark.archive.view import ArchiveTask, Tiers, read_archive
from twinlog.spark.plan.columns import Column
from twinlog.spark.plan.decoding import Context
from twinlog.spark.plan.option_parser import parse
from twinlog.spark.plan.selection import check_named, selected
from twinlog.spark.plan.splits import Piece, QueueView, Sizing, bounds_of
from twinlog.spark.plan.stream import Json
from twinlog.spark.source.batch import (
    BatchQuery,
    DirectoryQuery,
    Task,
    archived_tasks,
    columns_of,
    read_task,
    reading_of,
    tiers_of,
)
from twinlog.spark.source.cluster import ClusterTask, ClusterView, LateArchive, read_cluster
from twinlog.spark.source.pushdown import narrow
from twinlog.spark.source.stream_directory import DirectoryStream
from twinlog.spark.source.stream_query import Places, StreamQuery
from twinlog.store.marks import Owner

_log = logging.getLogger("twinlog.spark")

AnyTask = Task | ClusterTask | ArchiveTask


class ClusterQuery(BatchQuery[ClusterTask | ArchiveTask]):
    """A batch query over a cluster."""

    def tasks(self, now_ms: int) -> list[ClusterTask | ArchiveTask]:
        """Pin the cluster and return the tasks.

        Raises:
            SourceUnavailable: No node answered.
            DataLossError: A start is before what is kept, and that is not allowed.
        """
        options, made_of = self.options, list[Tiers]()

        def kept(owner: Owner) -> Iterable[tuple[str, int]]:
            """Return what the archive has: which one it must be is only known from the route."""
            found = tiers_of(options, owner)
            made_of.extend([found] if found else [])
            return found.view.keys if found else ()

        view = ClusterView(options, kept=kept)
        tiers = made_of[0] if made_of else None
        sizing = Sizing(options.split_bytes, options.min_partitions)
        try:
            check_named(view.chosen, options)
            queues: Sequence[QueueView] = list(view.queues.values())
            if tiers is not None:
                queues = tiers.queues(view.queues, view.chosen)
            bounds = self._narrowed.bounds(bounds_of(queues, options, now_ms))
            reading = replace(
                self._narrowed.reading(view.reading(self.columns)),
                since_ms=bounds.since_ms,
                until_ms=bounds.until_ms,
            )
            made, pieces, gone = archived_tasks(tiers, bounds.pieces, reading, sizing)
            for text in (*bounds.warnings, *gone):
                _log.warning("%s", text)
            sought = self._narrowed.sought(options.keys)
            if sought is not None and options.key_index == "auto":
                pieces = view.keys().pieces(pieces, sought)
            rows = sum(piece.stop - piece.first for piece in pieces)
            live = view.tasks(pieces, reading, view.parts(rows))
        finally:
            view.close()
        if tiers is not None:
            check = options.check_crc != "off"
            archive = LateArchive(str(tiers.view.root), view.owner, check)
            live = [replace(task, archive=archive) for task in live]
        return [*made, *live]


class ArchiveQuery(BatchQuery[ArchiveTask]):
    """A batch query over an archive alone."""

    def tasks(self, now_ms: int) -> list[ArchiveTask]:
        """Pin the archive and return the tasks.

        Raises:
            SourceError: There is no archive, or a topic or queue that is named does not exist.
            DataLossError: A start is before the archive's first row, and that is not allowed.
        """
        options = self.options
        tiers = Tiers(options, None)
        keys = selected(tiers.view.keys, options)
        check_named(keys, options)
        queues = tiers.queues({}, keys)
        bounds = self._narrowed.bounds(bounds_of(queues, options, now_ms))
        reading = replace(
            self._narrowed.reading(reading_of(options, self.columns, Context())),
            since_ms=bounds.since_ms,
            until_ms=bounds.until_ms,
        )
        sizing = Sizing(options.split_bytes, options.min_partitions)
        made, _, gone = archived_tasks(tiers, bounds.pieces, reading, sizing)
        for text in (*bounds.warnings, *gone):
            _log.warning("%s", text)
        return made


class ClusterStream(StreamQuery[ClusterView, ClusterTask]):
    """A streaming query over a cluster."""

    def look(self, read: Places) -> list[ClusterView]:
        """Return the cluster as it is now; see `StreamQuery.look`."""
        return [ClusterView(self.options, read)]

    def tasks_of(self, view: ClusterView, pieces: Sequence[Piece], end: Json) -> list[ClusterTask]:
        """Return the tasks that read ``pieces``, as many as the offset says."""
        return view.tasks(pieces, view.reading(self.columns), self.count_of(view, pieces, end))


AnyStream = DirectoryStream | ClusterStream
AnyBatch = DirectoryQuery | ClusterQuery | ArchiveQuery


def batch_query(
    given: Mapping[str, str],
    columns: Sequence[Column] | None = None,
    filters: Sequence[Any] = (),
) -> AnyBatch:
    """Return the batch query that Spark's options describe.

    Args:
        given: The options.
        columns: The schema; None: what the options ask for.
        filters: What Spark will keep of the rows; see `twinlog.spark.source.pushdown`.

    Raises:
        SourceError: An option is wrong.
    """
    options = parse(given, use="batch")
    wanted = columns if columns is not None else columns_of(options)
    narrowed = narrow(filters)
    if options.path is None and options.servers is None:
        return ArchiveQuery(options, wanted, narrowed)
    return (DirectoryQuery if options.path else ClusterQuery)(options, wanted, narrowed)


def stream_query(given: Mapping[str, str], columns: Sequence[Column] | None = None) -> AnyStream:
    """Return the streaming query that Spark's options describe; as `batch_query`."""
    options = parse(given, use="stream")
    wanted = columns if columns is not None else columns_of(options)
    return (DirectoryStream if options.path else ClusterStream)(options, wanted)


def read_any(task: AnyTask) -> Iterator[Any]:
    """Yield the Arrow batches of a task of either kind."""
    match task:
        case ClusterTask():
            return read_cluster(task)
        case ArchiveTask():
            return read_archive(task)
        case _:
            return read_task(task)
