"""Does the key index name the records that the log holds?

An index file knows a hash, a log offset and a second for each key, and RocketMQ's format has no
checksum for them. But they follow from the log: its keys, in log order, give the cells, in order.
So the keys of the log are read once more and laid beside the cells of all files, the oldest first.
A cell that names no record of its key, another second, or a place before that of the cell before it
is damage; keys of records that no cell names are only noted, for an index can be switched off.

What cannot be judged is left out: cells of records that retention has deleted, or that are where
the log is damaged; and at an epoch's start the cells of records that RocketMQ has cut there, which
it leaves in the index. Of a store that was not stopped cleanly, or is live, the newest file is not
looked at, nor files that recovery would throw away, nor cells after the end of the log.

Not here: chains, slots and headers within a file (`twinlog.store.verify.key_chains`).

Sources: RocketMQ 5.3 (``IndexFile``, ``IndexService``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

from twinlog.errors import TwinlogError
from twinlog.format.key_index import INDEX_CELL, cell_at
from twinlog.kernels import enter_keys, scan_keys
from twinlog.store.damage import Grade
from twinlog.store.key_index import IndexFile
from twinlog.store.log import Run
from twinlog.store.reader import StoreReader
from twinlog.store.verify.findings import Finding

_CELL = INDEX_CELL.size
_LINK = 16
"""Bytes of a cell before the number of the one before it, which is not compared here."""
_KEYS = 20
READABLE = "the records, through the log; repair builds the index again"


def compare_index(store: StoreReader, files: list[IndexFile]) -> Iterator[Finding]:
    """Yield what of the index is not as the log says, one finding a file at most.

    Args:
        store: The directory.
        files: Its index files, oldest first, when the chains of all are whole.
    """
    if files:
        comparison = _Comparison(store)
        for file in files:
            yield from comparison.look(file)
        yield from comparison.rest(files[-1])
    elif _without_index(store):
        text = "no index file exists, though records have keys"
        yield Finding(Grade.NOTE, "index", 0, None, 0, text, READABLE)


def _without_index(store: StoreReader) -> bool:
    """Whether a RocketMQ store that was stopped cleanly has keys and no index file."""
    if store.ours or not store.clean or store.marks.live:
        return False
    if store.keys.files or store.keys.unreadable:
        return False
    log = _Keys(store)
    return any(log.of(number) for number in range(len(log.runs)))


class _Keys:
    """The keys of the log, run by run; the run that was asked for last is kept."""

    def __init__(self, store: StoreReader) -> None:
        self._store = store
        self.runs = [piece for piece in store.pieces() if isinstance(piece, Run)]
        self._starts = [run.offset for run in self.runs]
        self._kept: tuple[int, bytes] = (-1, b"")

    def of(self, number: int) -> bytes:
        """Return the keys of a run, as `scan_keys` packs them."""
        if self._kept[0] != number:
            run = self.runs[number]
            view, start = self._store.series.view(run.file), run.file.start
            keys = scan_keys(view, run.offset - start, run.end - start, run.offset)
            self._kept = number, keys
        return self._kept[1]

    def run_at(self, offset: int) -> int:
        """Return the number of the run that holds a log offset; negative when none does."""
        number = bisect_right(self._starts, offset) - 1
        return number if number >= 0 and offset < self.runs[number].end else -1

    def place(self, cell: bytes) -> tuple[int, int] | None:
        """Return run and place in it of the key that a cell names; None when there is none."""
        number = self.run_at(_offset(cell))
        if number < 0:
            return None
        keys = self.of(number)
        count, wanted = len(keys) // _KEYS, cell[4:12]  # never negative: bytes compare as numbers
        at = bisect_left(range(count), wanted, key=lambda i: keys[_KEYS * i + 4 : _KEYS * i + 12])
        while at < count and keys[_KEYS * at + 4 : _KEYS * at + 12] == wanted:
            if keys[_KEYS * at : _KEYS * at + 4] == cell[:4]:
                return number, at
            at += 1
        return None


class _Comparison:
    """Goes through the cells of all files beside the keys of the log."""

    def __init__(self, store: StoreReader) -> None:
        self._store, self._log = store, _Keys(store)
        self._cuts = _cuts(store)
        torn = any(piece.harm.in_log for piece in store.damage)
        self._whole = store.clean and not store.marks.live and not torn
        self._next = (0, 0)
        """Run and place of the key that no cell has named yet."""
        self._last = -1
        """Log offset that the newest cell named."""
        self._before = 0
        """When the file before ended, ms; 0 for none."""
        self._missing = 0
        self._sound = True
        """Nothing was damage so far: only then is it known which keys no cell names."""

    def look(self, file: IndexFile) -> Iterator[Finding]:
        """Yield what is wrong with a file, the first thing of it."""
        self._missing = 0
        found = self._wrong(file)
        if found is not None:
            cell, what = found
            place = (f"index/{file.name}", cell_at(file.slots, cell) if cell else 0, None, 0)
            self._sound = False
            yield Finding(Grade.DAMAGE, *place, what, READABLE)
        elif self._missing and self._sound and not self._store.ours:
            yield self._lacking(file)
        self._before = file.header.end_timestamp

    def rest(self, newest: IndexFile) -> Iterator[Finding]:
        """Yield a note on keys after the newest cell; only a cleanly stopped RocketMQ has all."""
        self._missing = 0
        if self._whole and self._sound and not self._store.ours and self._last >= 0:
            self._skip_to((len(self._log.runs), 0))
        if self._missing:
            yield self._lacking(newest)

    def _lacking(self, file: IndexFile) -> Finding:
        text = f"{self._missing} keys of records before its last one are in no cell"
        return Finding(Grade.NOTE, f"index/{file.name}", 0, None, 0, text, READABLE)

    def _wrong(self, file: IndexFile) -> tuple[int, str] | None:
        """Return (cell, what) of the first thing that does not fit; None when all does."""
        end, cells = file.header.next_cell, file.cells
        at = self._first_kept(cells, end)
        if at >= end:
            return None
        odd: tuple[int, int, str] | None = None
        while at < end:
            cell = bytes(cells[_CELL * at : _CELL * (at + 1)])
            place = self._log.place(cell)
            if place is None:
                why = self._unmatched(cell)
                if why and odd is None:
                    odd = at, _offset(cell), why
                at += 1
                continue
            here = _offset(cell)
            if odd is not None and not self._was_cut(odd[1], here):
                return odd[0], odd[2]
            odd = None
            if here < self._last and not self._again(here):
                return at, f"cell {at} names {here}, the one before it {self._last}"
            same = self._same(file, cells, at, place)
            if not same:
                return at, f"cell {at} names another second than its record at {here} has"
            at += same
        if odd is not None and not self._was_cut(odd[1], None):
            return odd[0], odd[2]
        return self._header(file, cells)

    def _first_kept(self, cells: memoryview, end: int) -> int:
        """Return the first cell whose record retention has not deleted."""
        start = self._store.start
        offsets = range(1, end)
        return 1 + bisect_left(
            offsets, start, key=lambda i: _offset(cells[_CELL * i : _CELL * (i + 1)])
        )

    def _same(self, file: IndexFile, cells: memoryview, at: int, place: tuple[int, int]) -> int:
        """Return how many cells from ``at`` on are those of the keys from ``place`` on."""
        number, first = place
        keys = self._log.of(number)
        count = min(len(keys) // _KEYS - first, file.header.next_cell - at)
        began = file.header.begin_timestamp if at > 1 else self._before
        table, marks = memoryview(bytearray(4)), memoryview(bytearray(1))
        made, _ = enter_keys(keys, _KEYS * first, table, marks, (at, at + count, began))
        held = bytes(cells[_CELL * at : _CELL * (at + count)])
        same = _alike(made, held)
        if (
            not same
            and at == 1
            and (place > self._next or (not self._before and self._store.start))
        ):
            same = 1  # its second counts from the end of a file that no longer exists
        if same:
            self._skip_to(place)
            self._next = max(self._next, (number, first + same))
            self._last = _offset(held[_CELL * (same - 1) : _CELL * same])
        return same

    def _skip_to(self, place: tuple[int, int]) -> None:
        """Count the keys that no cell names before that of ``place``."""
        number, first = self._next
        while (number, first) < place:
            if number == place[0]:
                self._missing += place[1] - first
                break
            self._missing += len(self._log.of(number)) // _KEYS - first
            number, first = number + 1, 0
        self._next = max(self._next, place)

    def _unmatched(self, cell: bytes) -> str:
        """Say what is wrong with a cell that names no record; "" when that cannot be judged."""
        offset = _offset(cell)
        if self._log.run_at(offset) >= 0:
            return f"no record at {offset} has the key of a cell"
        if offset >= self._store.end and not self._whole:
            return ""
        if self._store.in_damage(offset):
            return ""
        return f"a cell names {offset}, where no record is"

    def _was_cut(self, offset: int, following: int | None) -> bool:
        """Whether the record at ``offset`` may have been cut before the following one came."""
        return self._cuts is None or any(
            self._last < cut <= offset and (following is None or cut <= following)
            for cut in self._cuts
        )

    def _again(self, offset: int) -> bool:
        """Whether the log may have been cut, and have gone on at or below ``offset``."""
        return self._cuts is None or any(cut <= offset for cut in self._cuts)

    def _header(self, file: IndexFile, cells: memoryview) -> tuple[int, str] | None:
        """Compare a header with the records of the first and the last cell."""
        header = file.header
        for cell, offset, ms in (
            (1, header.begin_offset, header.begin_timestamp),
            (header.next_cell - 1, header.end_offset, header.end_timestamp),
        ):
            named = bytes(cells[_CELL * cell : _CELL * (cell + 1)])
            place = self._log.place(named)
            if _offset(named) != offset:
                return 0, f"its header names log offset {offset}, cell {cell} {_offset(named)}"
            if place is not None:
                keys, at = self._log.of(place[0]), _KEYS * place[1]
                stamp = int.from_bytes(keys[at + 12 : at + 20], "big", signed=True)
                if stamp != ms:
                    return 0, f"its header names time {ms}, the record of cell {cell} {stamp}"
        return None


def _cuts(store: StoreReader) -> list[int] | None:
    """Return where RocketMQ may have cut its log, the starts of epochs; None when nobody knows."""
    if store.ours:
        return []
    try:
        return [start for _, start in store.epochs()[1:]]
    except TwinlogError:
        return None


def _offset(cell: bytes | memoryview) -> int:
    return int.from_bytes(cell[4:12], "big", signed=True)


def _alike(made: bytes, held: bytes) -> int:
    """Return how many cells are equal, from the first on, but for the link to the one before."""
    count = len(made) // _CELL
    if all(made[byte::_CELL] == held[byte::_CELL] for byte in range(_LINK)):
        return count
    at = 0
    while made[at : at + _LINK] == held[at : at + _LINK]:
        at += _CELL
    return at // _CELL
