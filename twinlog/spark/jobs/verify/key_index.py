"""Does the key index of a store say what the log says?

Two questions, each spread over tasks. Of every index file: does every slot chain hold, are the
counts right? Of every range of the log: is each key of each record in a cell, and does each cell of
the range belong to a record's key? A cell that is there twice is legal: RocketMQ enters the last
record again after a restart.

Records newer than the newest cell are no fault in a twinlog store, or one that was not stopped
cleanly: recovery enters them. Records older than the oldest file have outlived their index. Where
no file holds a cell, keys of the log are a fault in a store of RocketMQ that was stopped cleanly;
elsewhere nobody can tell (ours may run without an index), and they are counted.

Offsets are log offsets in bytes, positions bytes in an index file. Nothing is written.

Not here: building an index (`twinlog.spark.jobs.rebuild.job`), what a whole chain is
(`twinlog.format.key_index`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twinlog import kernels
from twinlog.format.key_index import (
    INDEX_CELL,
    INDEX_KEY,
    IndexHeader,
    cell_at,
    chain_fault,
    slot_at,
)
from twinlog.spark.directory.log_ranges import LogRange, pread
from twinlog.spark.engine.engine import Engine
from twinlog.store.key_index import IndexFile, KeyIndex
from twinlog.store.reader import StoreReader

FAULTS_MAX = 20
"""Faults of one range or file that are told; the rest would say the same."""


@dataclass(frozen=True, slots=True)
class IndexFault:
    """One thing in an index file that is not as it should be."""

    file: str
    position: int
    offset: int | None
    what: str


@dataclass(frozen=True, slots=True)
class IndexCheck:
    """What the check found.

    Attributes:
        faults: What is wrong.
        unseen: Keys of the log that could be looked up nowhere: there is no index.
    """

    faults: Sequence[IndexFault] = ()
    unseen: int = 0


@dataclass(frozen=True, slots=True)
class IndexPart:
    """What a task must know of one index file; ``header`` is what the file says of itself."""

    path: str
    slots: int
    header: IndexHeader

    @property
    def name(self) -> str:
        """The file's name."""
        return Path(self.path).name

    def cell(self, number: int) -> tuple[int, int]:
        """Return (hash, log offset) of a cell."""
        data = pread(Path(self.path), cell_at(self.slots, number), INDEX_CELL.size)
        hashed, offset, _, _ = INDEX_CELL.unpack(data)
        return int(hashed), int(offset)

    def span(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (number, hash, log offset) of the cells with offsets in ``start..end``."""
        numbers = range(1, self.header.next_cell)
        first = bisect_left(numbers, start, key=lambda n: self.cell(n)[1])
        last = bisect_left(numbers, end, key=lambda n: self.cell(n)[1])
        at, length = cell_at(self.slots, first + 1), INDEX_CELL.size * (last - first)
        data = pread(Path(self.path), at, length)
        for number, (hashed, offset, _, _) in enumerate(INDEX_CELL.iter_unpack(data), first + 1):
            yield number, hashed, offset


def check_index(engine: Engine, root: Path, splits: Sequence[LogRange]) -> IndexCheck:
    """Return what is wrong with the key index of a store whose log is sound."""
    with StoreReader(root) as store:
        # After a crash RocketMQ throws away what is newer than its checkpoint; so does this view.
        trusted = None if store.clean or store.ours else store.checkpoint.index_timestamp
        index = KeyIndex(store.root / "index", trusted)
        faults = [IndexFault(name, 0, None, "not an index file") for name in index.unreadable]
        counted = "the header counts no cell, and a slot points to one"
        faults += [
            IndexFault(file.name, slot_at(0) - 4, None, counted)
            for file in index.files
            if file.slots and file.header.next_cell <= 1 and any_slot(file)
        ]
        parts = [
            IndexPart(str(store.root / "index" / file.name), file.slots, file.header)
            for file in index.files
            if file.slots and file.header.next_cell > 1
        ]
        complete = store.clean and not store.ours
    if not parts:
        return _without(engine, splits, faults, complete=complete)
    chains = [fault for found in engine.spread(_check_chains, parts) for fault in found]
    work = partial(_check_range, parts=tuple(parts), complete=complete)
    for found in engine.spread(work, splits):
        faults += found
    # A cell with another hash breaks its chain further on: the cell is the fault, not the break.
    # A key that merely has no cell names no place in the file, so there the chain says more.
    named = {fault.file for fault in faults if fault.position}
    return IndexCheck([fault for fault in chains if fault.file not in named] + faults)


def any_slot(file: IndexFile) -> bool:
    """Whether a slot of an index file points to a cell."""
    return bytes(file.table).count(0) != len(file.table)


def _without(
    engine: Engine, splits: Sequence[LogRange], faults: Sequence[IndexFault], *, complete: bool
) -> IndexCheck:
    """Judge a store without a cell in any index file."""
    found = [item for item in engine.spread(_keys_in, splits) if item[0]]
    count = sum(number for number, _ in found)
    if not count or not complete or faults:
        return IndexCheck(faults, count)
    text = f"no index file holds any of the log's {count} keys"
    return IndexCheck([IndexFault("", 0, min(at for _, at in found), text)])


def _keys_in(split: LogRange) -> tuple[int, int]:
    """Return how many keys the records of a range have, and the log offset of the first."""
    data = split.read()
    length = kernels.walk(data, 0, len(data), check_crc=False)[1]
    packed = kernels.scan_keys(data, 0, length, split.start)
    return len(packed) // INDEX_KEY.size, next(
        (at for _, at, _ in INDEX_KEY.iter_unpack(packed)), -1
    )


def _check_chains(part: IndexPart) -> list[IndexFault]:
    path, header = Path(part.path), part.header
    first = slot_at(part.slots)
    table = pread(path, slot_at(0), first - slot_at(0))
    cells = pread(path, first, cell_at(part.slots, header.next_cell) - first)
    fault = chain_fault(part.slots, header, table, cells) or _foreign_cell(part, cells)
    return [IndexFault(part.name, fault[0], None, fault[1])] if fault else []


def _foreign_cell(part: IndexPart, cells: bytes) -> tuple[int, str] | None:
    """Return (byte in the file, text) of a cell outside of what the header says the file holds.

    The comparison with the log goes by ranges of it, and would not meet such a cell.
    """
    first, last = part.header.begin_offset, part.header.end_offset
    for number, (_, offset, _, _) in enumerate(INDEX_CELL.iter_unpack(cells[INDEX_CELL.size :]), 1):
        if not first <= offset <= last:
            text = f"cell {number} names {offset}; the header says {first} to {last}"
            return cell_at(part.slots, number), text
    return None


def _check_range(
    split: LogRange, parts: tuple[IndexPart, ...], *, complete: bool
) -> list[IndexFault]:
    data = split.read()
    length = kernels.walk(data, 0, len(data), check_crc=False)[1]
    expected = {
        (offset, hashed)
        for hashed, offset, _ in INDEX_KEY.iter_unpack(
            kernels.scan_keys(data, 0, length, split.start)
        )
    }
    held: dict[tuple[int, int], tuple[str, int]] = {}
    for part in parts:
        if part.header.begin_offset < split.end and part.header.end_offset >= split.start:
            for number, hashed, offset in part.span(split.start, split.end):
                held[offset, hashed] = part.name, cell_at(part.slots, number)
    oldest, newest = parts[0].header.begin_offset, parts[-1].header.end_offset
    faults: list[IndexFault] = []
    strange = sorted(held.keys() - expected)
    for offset, hashed in strange:
        name, position = held[offset, hashed]
        text = f"a cell names hash {hashed}, which no key of the record at {offset} has"
        faults.append(IndexFault(name, position, offset, text))
    told = {offset for offset, _ in strange}
    for offset, hashed in sorted(expected - held.keys()):
        # A file is full in the middle of a record's keys, too: its neighbour may be gone.
        if offset > oldest and offset not in told and (complete or offset < newest):
            text = f"no cell for a key (hash {hashed}) of the record at {offset}"
            faults.append(IndexFault(_file_for(parts, offset), 0, offset, text))
    return faults[:FAULTS_MAX]


def _file_for(parts: Sequence[IndexPart], offset: int) -> str:
    for part in parts:
        if part.header.begin_offset <= offset <= part.header.end_offset:
            return part.name
    return parts[-1].name
