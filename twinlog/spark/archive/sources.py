"""Where segments come from: the directory of a store, or the nodes of a cluster.

A segment is sealed when it will never change:

* **twinlog**: all of it is confirmed according to the checkpoint, also in a stopped store: a former
master's log may hold records that were never confirmed. In a cluster the answer of one node is
enough; a task reads the bytes from any node that has them.
* **RocketMQ**: the next file begins with a record (a broker allocates files before it uses them),
  and recovery after a crash would not cut it: it is before the file where recovery begins, or
  before the end that recovery finds. That end is determined only if it decides, because that reads
  the whole log.

Offsets are log offsets in bytes, ages seconds.

Not here: reading a segment (`archive.scan`).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from twinlog.format.batch_index import BatchEntry
from twinlog.format.log_file import file_name
from twinlog.spark.archive.archive_dir import sha256_of
from twinlog.spark.archive.manifest import Segment
from twinlog.spark.archive.scan import Sealed
from twinlog.spark.nodes.nodes import NodeAccess
from twinlog.spark.nodes.remote_log import LogPiece, RemoteLog, proven
from twinlog.store.files import LogFile, log_file
from twinlog.store.log import Run, TwinLog, first_stamp
from twinlog.store.reader import StoreReader

STALENESS_SECONDS = 30.0
"""How long a task looks for a node that has a segment which another one has confirmed."""


def of_directory(path: Path, group: str) -> list[Sealed]:
    """Return the log files of a store directory that will never change.

    Raises:
        UsageError: There is no store.
    """
    with StoreReader(path) as store:
        epochs = store.epochs()
        found: list[Sealed] = []
        for file, following in zip(store.series.files, store.series.files[1:], strict=False):
            if file.end != following.start or not _sealed(store, file, following):
                continue
            own = epochs_of(epochs, file.start, file.end)
            root, name = store.name, file.path.name
            found.append(Sealed(root, group, name, file.start, file.end, own, store.ours))
        return found


def _sealed(store: StoreReader, file: LogFile, following: LogFile) -> bool:
    if isinstance(store.log, TwinLog):
        return file.end <= store.marks.confirm and _tiled(store.log, file.start, file.end)
    if first_stamp(store.series.view(following)) is None:
        return False
    return store.clean or file.end <= store.log.recovery_start or file.end <= store.end


def changed_since(path: Path, segments: Sequence[Segment]) -> Segment | None:
    """Return an archived segment whose log file in a directory has other bytes; None: no such.

    Checked are the newest one, and those that do not end like a full file: only they can have been
    archived while they were written.
    """
    there = [s for s in segments if log_file(path, file_name(s.base)).is_file()]
    for segment in there:
        ended = segment.records_end == segment.end or bool(segment.rest)
        if ended and segment is not there[-1]:
            continue
        if sha256_of(log_file(path, file_name(segment.base))) != segment.sha256:
            return segment
    return None


def epochs_of(epochs: Sequence[tuple[int, int]], start: int, end: int) -> Sequence[tuple[int, int]]:
    """Return those of (epoch, start), oldest first, that wrote something of ``start..end``.

    >>> epochs_of([(1, 0), (2, 80), (3, 200)], 100, 200)
    [(2, 80)]
    """
    following = [begin for _, begin in epochs[1:]] + [end + 1]
    return [
        (epoch, begin)
        for (epoch, begin), after in zip(epochs, following, strict=False)
        if begin < end and after > start
    ]


def _tiled(log: TwinLog, start: int, end: int) -> bool:
    """Whether good batch index entries cover a whole file."""
    at = start
    for _, entry in log.entries.get(start, ()):
        if entry is None or entry.start != at:
            return False
        at = entry.end
    return at == end


def older_in_directory(path: Path, found: Sequence[Sealed], seconds: float) -> list[Sealed]:
    """Return the segments whose newest record is at least this old."""
    if not seconds:
        return list(found)
    limit = (time.time() - seconds) * 1000
    with StoreReader(path) as store:
        times = {
            run.file.start: store.last_timestamp(run)
            for item in found
            for run in store.pieces(item.base, item.end)
            if isinstance(run, Run)
        }
    return [item for item in found if times.get(item.base, 0) <= limit]


class Cluster:
    """The sealed segments of a running cluster; a context.

    Args:
        access: Access to the nodes, here and in the tasks.

    Raises:
        SourceUnavailable: No node answers.
    """

    def __init__(self, access: NodeAccess) -> None:
        self._log = RemoteLog(access)
        self._access = replace(access, epoch=self._log.nodes.route.epoch)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connections."""
        self._log.close()

    @property
    def group(self) -> str:
        """The group that the nodes belong to."""
        return self._log.nodes.route.group

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self._log.nodes.route.cluster

    def contradicts(self, segments: Sequence[Segment]) -> Segment | None:
        """Return an archived segment of which the nodes have other bytes; None: no such.

        Compared are the newest one that they still keep, and those written in other epochs: a
        divergent log has another end.

        Args:
            segments: Of the group, oldest first.

        Raises:
            SourceUnavailable: No node served them.
            CorruptionError: Every node served damaged bytes.
        """
        borders = self._log.borders()
        start, end = min(one.start for one in borders), max(one.confirm for one in borders)
        kept = [s for s in segments if s.base >= start and s.end <= end]
        epochs = [(epoch, begin) for begin, epoch in self._log.nodes.epochs()]
        for segment in kept:
            same = list(segment.epochs) == epochs_of(epochs, segment.base, segment.end)
            if (segment is kept[-1] or (epochs and not same)) and self._differs(segment):
                return segment
        return None

    def _differs(self, segment: Segment) -> bool:
        digest = hashlib.sha256()

        def reset() -> None:
            nonlocal digest
            digest = hashlib.sha256()

        def take(piece: LogPiece) -> None:
            digest.update(piece.data)

        proven(self._log, segment.base, segment.end, take, reset)
        return digest.hexdigest() != segment.sha256

    def sealed(self) -> list[Sealed]:
        """Return the log files that some node has confirmed to their ends; slaves share them.

        Raises:
            SourceUnavailable: No node answers.
        """
        borders = self._log.borders()
        size = borders[0].segment_size
        start = min(one.start for one in borders)
        end = max(one.confirm for one in borders)
        epochs = [(epoch, begin) for begin, epoch in self._log.nodes.epochs()]
        return [
            Sealed(
                "",
                self.group,
                file_name(base),
                base,
                base + size,
                epochs_of(epochs, base, base + size),
                batches=True,
                access=replace(self._access, turn=base // size),
            )
            for base in range(start, end - size + 1, size)
        ]

    def older(self, found: Sequence[Sealed], seconds: float) -> list[Sealed]:
        """Return the segments whose newest record is at least this old.

        The first batch after a segment decides: it was stored later. Without such a batch the
        segment is new.
        """
        if not seconds:
            return list(found)
        limit, kept = (time.time() - seconds) * 1000, list[Sealed]()
        end = max(one.confirm for one in self._log.borders())
        for item in found:
            if item.end >= end:
                continue
            piece = next(self._log.read(item.end, min(item.end + 1, end)))
            entry = BatchEntry.unpack(piece.entries) if piece.entries else None
            if entry is not None and entry.store_timestamp <= limit:
                kept.append(item)
        return kept


__all__ = [
    "STALENESS_SECONDS",
    "Cluster",
    "changed_since",
    "of_directory",
    "older_in_directory",
]
