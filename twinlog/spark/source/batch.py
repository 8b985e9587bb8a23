"""A batch query over store directories, planned and read without Spark.

    query = DirectoryQuery.make({"path": "/srv/store", "subscribe": "orders"})
    for task in query.tasks(now_ms):
        for batch in query.read(task):          # pyarrow.RecordBatch
            ...

Spark's reader is a thin layer over this (`twinlog.spark.source.data_source`); jobs and tests use it
as it is. The plan is made once, on the driver; a task is a few hundred bytes and goes to an
executor.

Units: times are ms since 1970.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Generic, TypeVar

from twinlog.spark.archive.view import ArchiveTask, Tiers
from twinlog.spark.directory.split_reader import Only, Reading, read_split
from twinlog.spark.directory.view import Directory
from twinlog.spark.plan.columns import Column, chosen
from twinlog.spark.plan.decoding import Context
from twinlog.spark.plan.option_parser import parse
from twinlog.spark.plan.options import Options
from twinlog.spark.plan.selection import check_named, selected
from twinlog.spark.plan.splits import (
    Piece,
    QueueView,
    Sizing,
    Split,
    bounds_of,
    cut_points,
    splits_of,
)
from twinlog.spark.source.key_lookup import DirectoryKeys
from twinlog.spark.source.pushdown import Narrowed
from twinlog.store.marks import Owner, owner_of

_log = logging.getLogger("twinlog.spark")


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Task:
    """What one task reads: a split of one directory, and how.

    Attributes:
        root: The directory.
        split: The part of it.
        reading: How.
        only: Only these topics and queues, where the whole log is walked; None: all.
    """

    root: str
    split: Split
    reading: Reading
    only: Only | None = None


class BatchQuery(ABC, Generic[T]):
    """One batch query over one kind of store.

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

    @abstractmethod
    def tasks(self, now_ms: int) -> list[T]:
        """Pin the store and return the tasks."""


class DirectoryQuery(BatchQuery[Task | ArchiveTask]):
    """A batch query over directories."""

    @classmethod
    def make(
        cls, given: Mapping[str, str], columns: Sequence[Column] | None = None
    ) -> DirectoryQuery:
        """Return the query that Spark's options describe.

        Raises:
            SourceError: An option is wrong.
        """
        options = parse(given, use="batch")
        return cls(options, columns if columns is not None else columns_of(options))

    def tasks(self, now_ms: int) -> list[Task | ArchiveTask]:
        """Pin the directories and return the tasks, in log order.

        Raises:
            SourceError: A directory is not a store, or what is named does not exist.
            DataLossError: A start is before what is kept, and that is not allowed.
        """
        written = self.options.isolation == "written"
        found = {root: Directory(root, written=written) for root in self.options.path or ()}
        roots = list(found)  # an archive belongs to one store
        tiers = tiers_of(self.options, owner_of(roots[0]) if len(roots) == 1 else None)
        if tiers is not None and not found[roots[0]].ours:
            tiers.before(found[roots[0]].start)
        more = set(tiers.view.keys) if tiers else set[tuple[str, int]]()
        keys = {root: selected({*one.queues, *more}, self.options) for root, one in found.items()}
        check_named((key for each in keys.values() for key in each), self.options)
        made: list[Task | ArchiveTask] = []
        for root, directory in found.items():
            made += self._of(root, directory, now_ms, keys=keys[root], tiers=tiers)
        return made

    def _of(
        self,
        root: str,
        directory: Directory,
        now_ms: int,
        *,
        keys: Sequence[tuple[str, int]],
        tiers: Tiers | None,
    ) -> list[Task | ArchiveTask]:
        options = self.options
        sizing = Sizing(options.split_bytes, options.min_partitions)
        if options.split_mode == "log":
            only = _only(keys, options)
            splits = log_splits(directory, sizing)
            reading = self._reading(directory)
            return [Task(root, split, reading, only) for split in splits]
        queues: Sequence[QueueView]
        if tiers is None:
            queues = [directory.queues[key] for key in keys]
        else:
            queues = tiers.queues(directory.queues, keys)
        bounds = self._narrowed.bounds(bounds_of(queues, options, now_ms))
        reading = replace(
            self._reading(directory), since_ms=bounds.since_ms, until_ms=bounds.until_ms
        )
        made, pieces, gone = archived_tasks(tiers, bounds.pieces, reading, sizing)
        for text in (*bounds.warnings, *gone):
            _log.warning("%s", text)
        keys_wanted = self._narrowed.sought(options.keys)
        if keys_wanted is not None and options.key_index == "auto":
            pieces = DirectoryKeys(directory).pieces(pieces, keys_wanted)
        spans = [
            span
            for piece in pieces
            for span in directory.queues[piece.topic, piece.queue].spans(piece)
        ]
        splits = splits_of(spans, directory.files, sizing)
        return [*made, *(Task(root, split, reading) for split in splits)]

    def _reading(self, directory: Directory) -> Reading:
        context = context_of(directory, self.columns)
        return self._narrowed.reading(reading_of(self.options, self.columns, context))

    def read(self, task: Task) -> Iterator[Any]:
        """Yield the Arrow batches of a task; see `read_split`."""
        return read_task(task)


def _only(keys: Sequence[tuple[str, int]], options: Options) -> Only | None:
    """Return what is read where the whole log is walked; None: every record."""
    if options.assign is not None:
        return options.assign
    if options.include_system and options.subscribe is None and options.pattern is None:
        return None
    return {topic: () for topic, _ in keys}


def tiers_of(options: Options, owner: Owner | None) -> Tiers | None:
    """Return the archive in front of a live view; None when the query reads none.

    Raises:
        SourceError: There is no such archive.
    """
    wanted = options.archive is not None and options.tier != "live"
    return Tiers(options, owner) if wanted else None


def archived_tasks(
    tiers: Tiers | None, pieces: Sequence[Piece], reading: Reading, sizing: Sizing
) -> tuple[list[ArchiveTask], Sequence[Piece], Sequence[str]]:
    """Return the tasks for an archive, the pieces left for live tasks, and what is missing.

    Raises:
        DataLossError: Rows are missing between the tiers, and that is not allowed.
    """
    if tiers is None:
        return [], pieces, ()
    archived, live, gone = tiers.divide(pieces)
    return tiers.view.tasks(archived, tiers.reading(reading), sizing), live, gone


def columns_of(options: Options) -> tuple[Column, ...]:
    """Return the schema that the options ask for."""
    return chosen(options.columns, kafka=options.kafka_columns, headers=options.include_headers)


def context_of(directory: Directory, columns: Sequence[Column]) -> Context:
    """Return what the records of a directory do not say themselves."""
    wanted = any(column.name == "epoch" for column in columns)
    return Context(epochs=directory.epochs if wanted else ())


def reading_of(options: Options, columns: Sequence[Column], context: Context) -> Reading:
    """Return how the options want records read."""
    return Reading(
        columns=tuple(columns),
        context=context,
        batch_rows=options.batch_rows,
        batch_bytes=options.batch_bytes,
        fail=options.fail_on_data_loss,
        check_crc=options.check_crc != "off",
        decompress=options.decompress,
        tags=options.tags,
        keys=options.keys,
    )


def log_splits(directory: Directory, sizing: Sizing) -> list[Split]:
    """Return splits that hold every record of the log, whether a queue names it or not.

    Cuts are where queues say that a record begins; a cut in a stretch that no queue knows moves
    to the next such place.
    """
    low, high = directory.start, directory.end
    if low >= high:
        return []
    size = sizing.size_for(high - low)
    points: list[int] = cut_points(low, high, directory.files, size).tolist()
    starts = {start for start, _ in directory.files}
    inner = [point for point in points if point not in starts]
    edges = sorted({low, high, *directory.trusted_starts(inner), *starts.intersection(points)})
    return [Split(a, b, (), walk=True) for a, b in pairwise(edges) if a < b <= high]


def read_task(task: Task) -> Iterator[Any]:
    """Yield the Arrow batches of a task; see `read_split`."""
    return read_split(task.root, task.split, task.reading, only=task.only)
