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

A cell with another hash breaks its chain further on. So both are asked, and the log has the first
word: the cell that it names is the fault, else the place where the chain breaks.

Each file is compared alone (`compare_file`): ``twinlog log verify`` takes one after the other, a
Spark job (`twinlog.spark.jobs.verify.key_index`) one in each task, and `findings_of` makes the same
answer of both.

Not here: chains, slots and headers within a file (`twinlog.store.verify.key_chains`).

Sources: RocketMQ 5.3 (``IndexFile``, ``IndexService``).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from twinlog.errors import TwinlogError
from twinlog.format.key_index import INDEX_CELL, INDEX_KEY, cell_at
from twinlog.kernels import enter_keys, scan_keys
from twinlog.store.damage import Grade
from twinlog.store.key_index import IndexFile
from twinlog.store.log import Run
from twinlog.store.reader import StoreReader
from twinlog.store.verify.findings import Finding
from twinlog.store.verify.key_chains import broken_file

_CELL, _KEY = INDEX_CELL.size, INDEX_KEY.size
_LINK = 16
"""Bytes of a cell before the number of the one before it, which is not compared here."""
READABLE = "the records, through the log; repair builds the index again"


@dataclass(frozen=True, slots=True)
class LogFacts:
    """What a comparison must know of the log beside its keys.

    Attributes:
        ours: It is a twinlog store.
        start: Where the log begins.
        end: Log offset after its last record.
        whole: Stopped cleanly, not running, nothing torn: cells after ``end`` are wrong.
        cuts: Where RocketMQ may have cut its log, the starts of epochs; None when that is unknown.
        damaged: Start and end of damage, in log order.
    """

    ours: bool
    start: int
    end: int
    whole: bool
    cuts: Sequence[int] | None = ()
    damaged: Sequence[tuple[int, int]] = ()

    def in_damage(self, offset: int) -> bool:
        """Whether the byte at a log offset is in damage."""
        return any(start <= offset < end for start, end in self.damaged)


class LogKeys:
    """The keys of a log, stretch by stretch; those of the last stretch asked for are kept.

    Args:
        spans: Start and end of stretches of whole records, in log order.
        scan: Returns the keys of the stretch with a number, as `scan_keys` packs them.
    """

    def __init__(self, spans: Sequence[tuple[int, int]], scan: Callable[[int], bytes]) -> None:
        self._spans = spans
        self._scan = scan
        self._starts = [start for start, _ in spans]
        self._kept: tuple[int, bytes] = (-1, b"")

    def __len__(self) -> int:
        return len(self._spans)

    def of(self, number: int) -> bytes:
        """Return the packed keys of a stretch."""
        if self._kept[0] != number:
            self._kept = number, self._scan(number)
        return self._kept[1]

    def stretch_at(self, offset: int) -> int:
        """Return the number of the stretch that holds a log offset; -1 when none does."""
        number = bisect_right(self._starts, offset) - 1
        return number if number >= 0 and offset < self._spans[number][1] else -1

    def place(self, cell: bytes) -> tuple[int, int] | None:
        """Return stretch and place in it of the key that a cell names; None without such a key."""
        number = self.stretch_at(_offset(cell))
        if number < 0:
            return None
        keys = self.of(number)
        count, wanted = len(keys) // _KEY, cell[4:12]  # never negative: bytes compare as numbers
        at = bisect_left(range(count), wanted, key=lambda i: keys[_KEY * i + 4 : _KEY * i + 12])
        while at < count and keys[_KEY * at + 4 : _KEY * at + 12] == wanted:
            if keys[_KEY * at : _KEY * at + 4] == cell[:4]:
                return number, at
            at += 1
        return None


@dataclass(frozen=True, slots=True)
class Compared:
    """What one comparison found.

    Attributes:
        file: Name of the index file.
        damage: The first thing of it that is wrong; None when all fits.
        lacking: Keys before its last one that no cell names.
        after: For the newest file, keys after its last one.
    """

    file: str
    damage: Finding | None = None
    lacking: int = 0
    after: int = 0


def compare_index(store: StoreReader, files: Sequence[IndexFile]) -> Iterator[Finding]:
    """Yield what of the index is not as the log says, one finding a file at most.

    Args:
        store: The directory.
        files: Its index files, oldest first, all of a known number of slots.
    """
    if files:
        facts, keys = facts_of(store), keys_of(store)
        compared = (compare_file(facts, keys, files, number) for number in range(len(files)))
        yield from findings_of(facts, compared)
    elif index_is_missing(store):
        keys = keys_of(store)
        yield from without_index(any(keys.of(number) for number in range(len(keys))))


def facts_of(store: StoreReader) -> LogFacts:
    """Return what a directory says of its log; RocketMQ's is read for that."""
    torn = any(piece.harm.in_log for piece in store.damage)
    whole = store.clean and not store.marks.live and not torn
    damaged = tuple((one.offset, one.offset + one.length) for one in store.damage)
    return LogFacts(store.ours, store.start, store.end, whole, cuts_of(store), damaged)


def keys_of(store: StoreReader) -> LogKeys:
    """Return the keys of a directory's log."""
    runs = [piece for piece in store.pieces() if isinstance(piece, Run)]

    def scan(number: int) -> bytes:
        run = runs[number]
        start = run.file.start
        return scan_keys(
            store.series.view(run.file), run.offset - start, run.end - start, run.offset
        )

    return LogKeys([(run.offset, run.end) for run in runs], scan)


def index_is_missing(store: StoreReader) -> bool:
    """Whether a RocketMQ store that was stopped cleanly has no index file."""
    if store.ours or not store.clean or store.marks.live:
        return False
    return not store.keys.files and not store.keys.unreadable


def without_index(keys: bool) -> Iterator[Finding]:
    """Yield a note on a missing index when the log has keys: it may have been switched off."""
    if keys:
        text = "no index file exists, though records have keys"
        yield Finding(Grade.NOTE, "index", 0, None, 0, text, READABLE)


def findings_of(facts: LogFacts, compared: Iterable[Compared]) -> Iterator[Finding]:
    """Yield the findings of all files, oldest first.

    Keys that no cell names are only noted, and only while nothing was damage: after that it is
    unknown which they are.
    """
    sound = True
    for one in compared:
        if one.damage is not None:
            sound = False
            yield one.damage
        elif sound and not facts.ours:
            for lacking in filter(None, (one.lacking, one.after)):
                text = f"{lacking} keys of records before its last one are in no cell"
                yield Finding(Grade.NOTE, f"index/{one.file}", 0, None, 0, text, READABLE)


def compare_file(
    facts: LogFacts, keys: LogKeys, files: Sequence[IndexFile], number: int
) -> Compared:
    """Compare one of ``files``, oldest first; the files before it say where it begins."""
    return _Comparison(facts, keys, files[:number]).look(
        files[number], newest=number == len(files) - 1
    )


class _Comparison:
    """The cells of a file beside the keys of the log, after the files before it."""

    def __init__(self, facts: LogFacts, keys: LogKeys, before: Sequence[IndexFile]) -> None:
        self._facts, self._log = facts, keys
        self._next = (0, 0)
        """Stretch and place of the key that no cell has named yet."""
        self._last = -1
        """Log offset that the newest cell named."""
        self._before = before[-1].header.end_timestamp if before else 0
        """When the file before ended, ms; 0 for none."""
        self._missing = 0
        self._resume(before)

    def _resume(self, before: Sequence[IndexFile]) -> None:
        """Begin after the newest cell of the files before that names a record."""
        for file in reversed(before):
            cells = file.cells
            for number in range(len(cells) // _CELL - 1, 0, -1):
                cell = bytes(cells[_CELL * number : _CELL * (number + 1)])
                if _offset(cell) < self._facts.start:  # deleted by retention, as all before it
                    return
                place = self._log.place(cell)
                if place is not None:
                    self._next, self._last = (place[0], place[1] + 1), _offset(cell)
                    return

    def look(self, file: IndexFile, *, newest: bool) -> Compared:
        """Compare the file; with the newest one also count the keys after its last cell."""
        chain = broken_file(file)
        found = None
        if len(file.cells) >= _CELL * file.header.next_cell:
            found = self._wrong(file)
        if found is None and chain is None:
            missing, self._missing = self._missing, 0
            if newest and self._facts.whole and not self._facts.ours and self._last >= 0:
                self._skip_to((len(self._log), 0))  # only a cleanly stopped RocketMQ has all
            return Compared(file.name, None, missing, self._missing if newest else 0)
        at, what = chain or (-1, "")
        if found is not None:
            cell = cell_at(file.slots, found[0]) if found[0] else 0
            at, what = (at, what) if at == cell else (cell, found[1])
        place = (f"index/{file.name}", at, None, 0)
        return Compared(file.name, Finding(Grade.DAMAGE, *place, what, READABLE))

    def _wrong(self, file: IndexFile) -> tuple[int, str] | None:
        """Return (cell, what) of the first thing that does not fit; None when all does."""
        end, cells = file.header.next_cell, file.cells
        at = self._first_kept(cells, end)
        if at >= end:
            return None
        if (wrong := self._time(1, file.header.begin_timestamp, cells)) is not None:
            return wrong  # the seconds of all cells count from it
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
        start = self._facts.start
        offsets = range(1, end)
        return 1 + bisect_left(
            offsets, start, key=lambda i: _offset(cells[_CELL * i : _CELL * (i + 1)])
        )

    def _same(self, file: IndexFile, cells: memoryview, at: int, place: tuple[int, int]) -> int:
        """Return how many cells from ``at`` on are those of the keys from ``place`` on."""
        number, first = place
        keys = self._log.of(number)
        count = min(len(keys) // _KEY - first, file.header.next_cell - at)
        began = file.header.begin_timestamp if at > 1 else self._before
        table, marks = memoryview(bytearray(4)), memoryview(bytearray(1))
        made, _ = enter_keys(keys, _KEY * first, table, marks, (at, at + count, began))
        held = bytes(cells[_CELL * at : _CELL * (at + count)])
        same = _alike(made, held)
        if (
            not same
            and at == 1
            and (place > self._next or (not self._before and self._facts.start))
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
            self._missing += len(self._log.of(number)) // _KEY - first
            number, first = number + 1, 0
        self._next = max(self._next, place)

    def _unmatched(self, cell: bytes) -> str:
        """Say what is wrong with a cell that names no record; "" when that cannot be judged."""
        offset = _offset(cell)
        if self._log.stretch_at(offset) >= 0:
            return f"no record at {offset} has the key of a cell"
        if offset >= self._facts.end and not self._facts.whole:
            return ""
        if self._facts.in_damage(offset):
            return ""
        return f"a cell names {offset}, where no record is"

    def _was_cut(self, offset: int, following: int | None) -> bool:
        """Whether the record at ``offset`` may have been cut before the following one came."""
        return self._facts.cuts is None or any(
            self._last < cut <= offset and (following is None or cut <= following)
            for cut in self._facts.cuts
        )

    def _again(self, offset: int) -> bool:
        """Whether the log may have been cut, and have gone on at or below ``offset``."""
        return self._facts.cuts is None or any(cut <= offset for cut in self._facts.cuts)

    def _header(self, file: IndexFile, cells: memoryview) -> tuple[int, str] | None:
        """Compare a header with the records of the first and the last cell."""
        header = file.header
        for cell, offset, ms in (
            (1, header.begin_offset, header.begin_timestamp),
            (header.next_cell - 1, header.end_offset, header.end_timestamp),
        ):
            named = _offset(cells[_CELL * cell : _CELL * (cell + 1)])
            if named != offset:
                return 0, f"its header names log offset {offset}, cell {cell} {named}"
            if (wrong := self._time(cell, ms, cells)) is not None:
                return wrong
        return None

    def _time(self, cell: int, ms: int, cells: memoryview) -> tuple[int, str] | None:
        """Compare a time in the header with that of the record which a cell names."""
        place = self._log.place(bytes(cells[_CELL * cell : _CELL * (cell + 1)]))
        if place is None:
            return None
        keys, at = self._log.of(place[0]), _KEY * place[1]
        stamp = int.from_bytes(keys[at + 12 : at + 20], "big", signed=True)
        if stamp == ms:
            return None
        return 0, f"its header names time {ms}, the record of cell {cell} {stamp}"


def cuts_of(store: StoreReader) -> list[int] | None:
    """Return where RocketMQ may have cut its log, the starts of epochs; None: unreadable."""
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
