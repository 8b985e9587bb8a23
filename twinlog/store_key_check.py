"""Are the chains of the key index whole?

The slot table of an index file follows from its cells: cell n names the cell that its slot named
before, and the slot then names n. So all cells are linked again, from the first to the last, and
must give the table and the count in the header. A cell that is no link of its chain, a slot that
names another cell and a header that counts otherwise are found. Whether the records are there that
the cells of a whole file name is asked next (`store_key_compare`).

Files that have not RocketMQ's four cells for each slot can be checked only when the reader was told
how many they have (`StoreReader.index_capacity`): a file of that size is judged by that number.

Of a store that was not stopped cleanly, or that is live, the newest file is not judged: its slots
and header are written later than its cells.

Not here: the other checks (`store_check`), searching (`store_keys`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from twinlog.kernels import link_cells
from twinlog.layout import INDEX_CELL, INDEX_HEADER, INDEX_SLOT
from twinlog.store_files import listed
from twinlog.store_findings import Grade
from twinlog.store_keys import SAY_IT, IndexFile, KeyIndex, index_size
from twinlog.store_reader import StoreReader


def broken_indexes(store: StoreReader) -> Iterator[tuple[str, int, str, Grade]]:
    """Yield (file, byte in it, what is wrong, how bad that is) for what does not hold."""
    told = store.index_capacity
    index = KeyIndex(store.root / "index", None, capacity=told)
    files = [_by_word(file, told) for file in index.files]
    known = {file.name for file in files if file.slots}
    grade = Grade.NOTE if store.ours else Grade.DAMAGE
    text = "its size and cells do not tell how many slots it has"
    if of_other_capacity(store):
        grade = grade if store.ours else Grade.UNREADABLE
        text += f"; {SAY_IT}"
    for name in index.unreadable:
        if (why := index.unread.get(name)) and not store.ours:
            yield f"index/{name}", 0, f"the file cannot be read: {why}", Grade.UNREADABLE
        elif name not in known:
            yield f"index/{name}", 0, text, grade
    for file in _settled(store, files):
        if file.slots:
            found = _wrong(file)
            if found is not None:
                yield f"index/{file.name}", found[0], found[1], Grade.DAMAGE


def settled_indexes(store: StoreReader) -> list[IndexFile]:
    """Return the index files that can be compared with the log, oldest first.

    Of a crashed store without those that recovery throws away.
    """
    told = store.index_capacity
    index = KeyIndex(store.root / "index", _trusted(store), capacity=told)
    return _settled(store, [_by_word(file, told) for file in index.files])


def _settled(store: StoreReader, files: list[IndexFile]) -> list[IndexFile]:
    """Leave out the newest file while its slots and header are written later than its cells."""
    return files[:-1] if store.marks.live or not store.clean else files


def _trusted(store: StoreReader) -> int | None:
    """Return how new a file may be that recovery keeps, ms; None where it keeps all."""
    if store.ours or store.clean:
        return None
    return store.checkpoint.index_timestamp


def _by_word(file: IndexFile, told: tuple[int, int] | None) -> IndexFile:
    """Return the file with as many slots as were told; cells that deny it are wrong."""
    if file.slots or told is None or len(file.view) != index_size(*told):
        return file
    return replace(file, slots=told[0])


def of_other_capacity(store: StoreReader) -> bool:
    """Whether all files have one size that is not of four cells a slot: somebody chose another.

    False where the reader was told which (`StoreReader.index_capacity`).
    """
    told = store.index_capacity
    index = KeyIndex(store.root / "index", None, capacity=told)
    if any(_by_word(file, told).slots for file in index.files):
        return False
    found = listed(store.root / "index")
    sizes = {size for path, size, _ in found if path.name in index.unreadable}
    if len(sizes) != 1:
        return False
    rest = sizes.pop() - INDEX_HEADER.size
    return rest > 0 and rest % (INDEX_SLOT.size + 4 * INDEX_CELL.size) != 0


def _wrong(file: IndexFile) -> tuple[int, str] | None:
    """Return (byte, what) of the first thing that is wrong with a file; None when nothing is."""
    table_end = INDEX_HEADER.size + INDEX_SLOT.size * file.slots
    first = table_end + INDEX_CELL.size
    end = table_end + INDEX_CELL.size * file.header.next_cell
    if end > len(file.view):
        return 32, f"the header names cell {file.header.next_cell}, which does not fit"
    table = memoryview(bytearray(INDEX_SLOT.size * file.slots))
    used, bad = link_cells(file.view[first:end], 1, table)
    if bad >= 0:
        return table_end + INDEX_CELL.size * bad, f"cell {bad} does not continue its chain"
    held = file.view[INDEX_HEADER.size : table_end]
    if held != table:
        slot = next(i for i in range(0, len(table), 4) if held[i : i + 4] != table[i : i + 4])
        text = f"slot {slot // 4} does not name the newest cell of its chain"
        return INDEX_HEADER.size + slot, text
    if used != file.header.slots_used:
        return 32, f"the header counts {file.header.slots_used} used slots, there are {used}"
    return None
