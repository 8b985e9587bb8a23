"""Searching the key index: RocketMQ's walk, and a check that each record really has the key.

A query visits files from the newest to the oldest, and in each the chain of one slot, so hits come
newest first. A cell is only a hint: it holds the key's hash and a time in seconds; so every hit is
looked up in the log, where topic, key and store time are compared. The first cell of a file holds
no time (a quirk of RocketMQ).

`Lookup` is made by the store's owner, because only the owner may read the slot table of the growing
file; `Lookup.run` reads cells and records and may run in a worker thread.

Limits: ``most`` records and ``max_bytes``, after which the query can be continued below the last
record it found (``before``); `LOOKS_MAX` cells, or `Lookup.stop`, which end it for good.

Units: ms since 1970, log offsets in bytes. Not here: building (`storage.key_index.index`).

Sources: RocketMQ 5.3 (``IndexService.queryOffset``, ``IndexFile.selectPhyOffset``).
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from storage.disk.disk import Disk
from storage.errors import DiskError
from storage.key_index.checksums import Seals
from storage.key_index.file import FileMark, KeyFile, read_cells, read_slot
from storage.log.segments import Segments
from twinlog.errors import CorruptionError
from twinlog.format import record
from twinlog.format.key_index import INDEX_CELL, INDEX_SLOT, BrokenChain, slot_at, walk
from twinlog.kernels import key_hash, scan_keys

RESULTS_DEFAULT = 32
"""RocketMQ's default of ``queryMessage``."""
RESULTS_MAX = 64
"""RocketMQ's ``maxMsgsNumBatch``."""
LOOKS_MAX = 100_000
"""Cells that one query reads: some tenths of a second."""
TIME_MAX = (1 << 63) - 1
_SECOND = 1000
_HIT = struct.Struct(">iq")


@dataclass(frozen=True, slots=True)
class KeyQuery:
    """A query by key.

    Attributes:
        topic: Topic name.
        key: One word of ``KEYS``, or the ``UNIQ_KEY``.
        most: Number of records at most.
        begin: Stored at or after, ms.
        end: Stored at or before, ms.
        before: Only records that begin below this log offset.
        unique: Match ``UNIQ_KEY`` only.
        max_bytes: Bytes of records at most, unless the first one alone is larger.
    """

    topic: str
    key: str
    most: int = RESULTS_DEFAULT
    begin: int = 0
    end: int = TIME_MAX
    before: int = TIME_MAX
    unique: bool = False
    max_bytes: int = 1 << 20


@dataclass(slots=True)
class Found:
    """The result of a query.

    Attributes:
        slices: Records as they are stored, newest first.
        more: It ended at ``most`` or ``max_bytes``: continue below the last record.
        complete: It neither ended at `LOOKS_MAX` nor was it stopped.
        looks: Cells that were read.
    """

    slices: list[memoryview] = field(default_factory=list[memoryview])
    more: bool = False
    complete: bool = True
    looks: int = 0


class _Ended(Exception):
    """The query stops within a chain: too many cells, or the client no longer waits."""


def _never() -> bool:
    return False


class Lookup:
    """A running query.

    Args:
        disk: The data directory.
        segments: The log.
        query: The query.
        confirm: Confirm offset.
        since: Records below it are of a deleted topic of this name.
    """

    def __init__(
        self, disk: Disk, segments: Segments, query: KeyQuery, confirm: int, since: int = 0
    ) -> None:
        self._disk = disk
        self._segments = segments
        self.confirm = confirm
        self.since = since
        self.query = query
        self._hash = key_hash(f"{query.topic}#{query.key}".encode())
        self._chains: list[tuple[FileMark, int]] = []
        self._seals: Seals | None = None
        self._grows = ""
        self._reading = ""
        self.found = Found()
        self.stop: Callable[[], bool] = _never
        """Called before each cell, in the thread of `run`: true once the client no longer waits."""
        self.generation = 0
        """The store's generation when the search began: a cut raises it."""
        self.at = TIME_MAX
        """Log offset of the record that was read last: if retention has deleted it meanwhile, an
        error says nothing about the log."""
        self.bad_file = ""
        """Name of the inconsistent index file, after `run` raised."""

    def over(
        self, files: Sequence[FileMark], current: KeyFile | None, seals: Seals | None = None
    ) -> Lookup:
        """Choose the files, newest first; must be called by the store's owner.

        Full files are checked against ``seals``, where these have checksums. The newest cell is
        read now, so cells that are written later are not part of the answer.
        """
        begin, end = self.query.begin, self.query.end
        self._seals, self._grows = seals, current.mark.name if current is not None else ""
        for mark in reversed(files):
            header = mark.header
            if header.next_cell <= 1 or header.begin_timestamp > end:
                continue
            if header.end_timestamp < begin:
                break
            first = -1
            if current is not None and mark.name == current.mark.name:
                (first,) = INDEX_SLOT.unpack_from(current.slots, self._hash % mark.slots * 4)
            self._chains.append((mark, first))
        return self

    def run(self) -> Found:
        """Walk the chains and check the records; may run in a worker thread.

        Raises:
            CorruptionError: A file of the index (`bad_file`), or the log, is damaged.
            DiskError: A file could not be read.
            IndexError: Retention deleted a file of the log meanwhile.
        """
        try:
            self._walk()
        except CorruptionError as error:
            if error.facts.get("file") == f"index/{self._reading}":
                self.bad_file = self._reading
            raise
        except DiskError as error:
            if error.errno != errno.ENOENT or error.path != f"index/{self._reading}":
                raise
            self.bad_file, text = self._reading, f"{error.path}: the file is missing"
            raise CorruptionError(text, file=error.path, offset=0) from None
        return self.found

    def _walk(self) -> None:
        size = 0
        for offset in self._hits():
            self.at = offset
            view = self._proven(offset)
            if view is None:
                continue
            if self.found.slices and size + len(view) > self.query.max_bytes:
                self.found.more = True
                break
            self.found.slices.append(view)
            size += len(view)
            if len(self.found.slices) >= self.query.most:
                self.found.more = True
                break

    def _hits(self) -> Iterator[int]:
        """Yield log offsets of cells with the key's hash, newest first; each once."""
        last = self.confirm
        for mark, first in self._chains:
            if not self.found.complete:
                return
            self._reading = mark.name
            number = first if first >= 0 else self._slot(mark)
            for offset in self._chain(mark, number):
                if self.since <= offset < last and offset < self.query.before:
                    yield offset
                    last = offset

    def _slot(self, mark: FileMark) -> int:
        slot = self._hash % mark.slots
        self._prove(mark, slot_at(slot), INDEX_SLOT.size)
        return read_slot(self._disk, mark, slot)

    def _prove(self, mark: FileMark, at: int, length: int) -> None:
        seals = self._seals if mark.name != self._grows else None
        if seals is not None and not seals.prove(mark, at, length):
            raise mark.damaged(f"bytes around {at} are not as they were when it was full")

    def _chain(self, mark: FileMark, number: int) -> Iterator[int]:
        """Walk one chain from cell ``number``; a damaged one is an error."""
        header, slot = mark.header, self._hash % mark.slots
        try:
            for at, cell in walk(mark.slots, header, slot, number, partial(self._cell, mark)):
                earliest = header.begin_timestamp + cell.seconds * _SECOND
                # Cells of a chain are in order of time, newest first; cell 1 holds no time. A
                # cell's seconds are rounded down, hence the second added.
                if at > 1 and earliest + _SECOND <= self.query.begin:
                    return
                if cell.hashed == self._hash and (at == 1 or earliest <= self.query.end):
                    yield cell.offset
        except BrokenChain as broken:
            raise mark.damaged(str(broken)) from None
        except _Ended:
            self.found.complete = False

    def _cell(self, mark: FileMark, number: int) -> bytes:
        if self.found.looks >= LOOKS_MAX or self.stop():
            raise _Ended
        self.found.looks += 1
        self._prove(mark, mark.cell_at(number), INDEX_CELL.size)
        return read_cells(self._disk, mark, number, number + 1)

    def _proven(self, offset: int) -> memoryview | None:
        """Return the record at ``offset`` if it matches the query."""
        segments, query = self._segments, self.query
        if not segments.all or offset < segments.all[0].start:
            return None  # deleted by retention meanwhile
        index = segments.at(offset).index
        # The log itself is checked before it may contradict the index: damage of either is named as
        # such.
        segments.prove(offset, offset + 1)
        entry = index.entry(index.find(offset))
        view = segments.view(entry.start, entry.end)
        keys = scan_keys(view, 0, len(view), entry.start)
        hit = _HIT.pack(self._hash, offset)
        at = keys.find(hit)
        while at % 20 and at >= 0:
            at = keys.find(hit, at + 1)
        # Every cell was made of a record with this hash; if none begins there, the cell is damaged.
        if at < 0:
            raise CorruptionError(
                f"index/{self._reading}: no record with such a key begins at {offset}",
                file=f"index/{self._reading}", offset=offset,
            )  # fmt: skip
        found = record.decode(view, offset - entry.start, check_crc=False)
        unique = found.unique_id == query.key
        if found.topic != query.topic or not (unique or (query.key in _words(found, query))):
            return None
        if not query.begin <= found.store_timestamp <= query.end:
            return None
        start = offset - entry.start
        return view[start : start + found.size]


def _words(found: record.Record, query: KeyQuery) -> Sequence[str]:
    return () if query.unique else found.keys
