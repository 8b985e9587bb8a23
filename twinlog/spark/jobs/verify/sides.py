"""Logs that are compared: of a directory, of one node of a cluster, or of a cluster as a whole.

`Side` names one for a task and says what is known of it; `opened` gives its bytes. A cluster as a
whole is any of its nodes, slaves first: bytes below confirm are the same on all of them, or one of
them is wrong, which comparing the nodes one by one finds.

Offsets are log offsets in bytes. Nothing is written.

Not here: comparing (`twinlog.spark.jobs.verify.compare`).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from twinlog import kernels
from twinlog.format.batch_index import BATCH_LENGTH_MAX, BatchEntry
from twinlog.spark.directory.log_ranges import first_start
from twinlog.spark.nodes.nodes import NodeAccess
from twinlog.spark.nodes.remote_log import Borders, RemoteLog
from twinlog.store.files import FileSeries, LogFile, log_folders
from twinlog.store.log import TwinLog
from twinlog.store.reader import StoreReader
from twinlog.units import KiB, MiB

RECORD_MAX = 8 * MiB
"""Largest record that is looked at as such."""
READ_BYTES = 256 * KiB
"""Read of a directory at once: few enough to be compared in the cache, in memory used again."""
STALENESS_SECONDS = 10.0
"""How long a task waits for its node: it had the bytes when the job was planned."""


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one log.

    Attributes:
        name: Of the directory, the node or the cluster.
        start: First log offset it keeps.
        end: Log offset after what it has, or has confirmed.
        epochs: (epoch, start), oldest first.
        access: How its bytes are asked for; None: ``name`` is a directory.
    """

    name: str
    start: int
    end: int
    epochs: Sequence[tuple[int, int]]
    access: NodeAccess | None = None

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the byte at ``offset``; None without a history."""
        found = [epoch for epoch, start in self.epochs if start <= offset]
        return found[-1] if found else None


class Bytes(Protocol):
    """The bytes of one side."""

    def read(self, at: int, length: int) -> bytes:
        """Return up to this many bytes, at least one where there is one."""
        ...

    def trusted_before(self, offset: int) -> int:
        """Return the last place at or before ``offset`` where a record is known to begin."""
        ...

    def close(self) -> None:
        """Let go of files and connections."""
        ...


def opened(side: Side) -> Bytes:
    """Open a side's bytes; close them."""
    return _Directory(side.name) if side.access is None else _Nodes(side, side.access)


class _Directory:
    def __init__(self, root: str) -> None:
        self._root = root
        self._series = FileSeries(*log_folders(root))
        self._open: tuple[LogFile, int] | None = None

    def read(self, at: int, length: int) -> bytes:
        file = self._series.at(at)
        if file is None:
            return b""
        if self._open is None or self._open[0] is not file:
            self._shut()
            self._open = file, os.open(file.path, os.O_RDONLY)
        return os.pread(self._open[1], min(length, file.end - at, READ_BYTES), at - file.start)

    def close(self) -> None:
        self._shut()
        self._series.close()

    def _shut(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None

    def trusted_before(self, offset: int) -> int:
        with StoreReader(self._root) as store:
            file = store.series.at(offset)
            found = file.start if file is not None else offset
            if isinstance(store.log, TwinLog):
                for _, entry in store.log.entries.get(found, ()):
                    if entry and entry.start <= offset:
                        found = entry.start
                return found
            queues = list(store.stored_queues.values())
            step = 1 << 16
            while step < RECORD_MAX * 16:
                near = first_start(queues, max(found, offset - step))
                if near is not None and near <= offset:
                    return near
                step *= 4
            return found


class _Nodes:
    def __init__(self, side: Side, access: NodeAccess) -> None:
        self._side = side
        self._log = RemoteLog(access)

    def read(self, at: int, length: int) -> bytes:
        end = min(at + length, self._side.end)
        return bytes(next(self._log.read(at, end)).data) if at < end else b""

    def close(self) -> None:
        self._log.close()

    def trusted_before(self, offset: int) -> int:
        """As its protocol says: no batch is longer than `BATCH_LENGTH_MAX`."""
        found = low = max(self._side.start, offset - BATCH_LENGTH_MAX)
        for piece in self._log.read(low, offset + 1):
            for at in range(0, len(piece.entries), 48):
                entry = BatchEntry.unpack(piece.entries, at)
                if entry is not None and low <= entry.start <= offset:
                    found = entry.start
        return found


def of_directory(path: Path) -> Side:
    """Return what is known of a store directory.

    Raises:
        UsageError: It is not a store.
    """
    with StoreReader(path) as store:
        return Side(str(path), store.start, _end(store), store.epochs())


def _end(store: StoreReader) -> int:
    """Return the end of the log; of a twinlog log without reading it."""
    if isinstance(store.log, TwinLog) and not store.raw:
        ends = [e.end for es in store.log.entries.values() for _, e in es if e]
        end = max(ends, default=store.start)
        return min(end, store.marks.confirm) if store.marks.live else end
    if not store.clean or not store.series.files:
        return store.end
    # Stopped cleanly: earlier files are full, so only the last one is walked.
    last = store.series.files[-1]
    view = store.series.view(last)
    stop = kernels.walk(view, 0, last.size, check_crc=False)[1]
    _, bad, _ = kernels.verify_records(view, 0, stop, last.start, check_crc=False)
    return bad if bad >= 0 else last.start + stop  # old records after the end name another place


def of_nodes(servers: Sequence[str]) -> tuple[list[Side], list[str]]:
    """Return what is known of each node of a cluster that answers, the master first, and who does
    not answer.

    Raises:
        SourceUnavailable: None answers.
    """
    log = RemoteLog(NodeAccess(tuple(servers), "any", STALENESS_SECONDS))
    try:
        found = [_of_node(log, tuple(servers), borders) for borders in log.borders()]
        route = log.nodes.route
    finally:
        log.close()
    absent = sorted({node.name for node in route.nodes} - {side.name for side in found})
    return sorted(found, key=lambda side: (side.name != route.leader, side.name)), absent


def _of_node(log: RemoteLog, servers: tuple[str, ...], borders: Borders) -> Side:
    access = NodeAccess(servers, borders.node, STALENESS_SECONDS)
    epochs = [(epoch, start) for start, epoch in log.nodes.epochs_of(borders.node)]
    return Side(borders.node, borders.start, borders.confirm, epochs, access)


def of_cluster(servers: Sequence[str]) -> Side:
    """Return a cluster as one side: what its nodes keep and have confirmed between them.

    Raises:
        SourceUnavailable: No node answers.
    """
    nodes, _ = of_nodes(servers)
    best = max(nodes, key=lambda side: side.end)
    access = NodeAccess(tuple(servers), "slave", STALENESS_SECONDS)
    start = min(side.start for side in nodes)
    return replace(best, name=",".join(servers), start=start, access=access)
