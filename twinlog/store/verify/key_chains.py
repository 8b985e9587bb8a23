"""Are the chains of the key index whole?

The slot table of an index file follows from its cells: cell n names the cell that its slot named
before, and the slot then names n. So all cells are linked again, from the first to the last, and
must give the table and the count in the header. A cell that is no link of its chain, a slot that
names another cell and a header that counts otherwise are found. Whether the records are there that
the cells of a whole file name is asked next (`twinlog.store.verify.keys_against_log`).

Files that have not RocketMQ's four cells for each slot can be checked only when the reader was
given their number (`StoreReader.index_capacity`): a file of that size is judged by that number.

Of a store that was not stopped cleanly, or that is live, the newest file is not judged: its slots
and header are written later than its cells.

Not here: the other checks (`twinlog.store.verify.check`), searching (`twinlog.store.key_index`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from twinlog.format.key_index import chain_fault, index_size, slots_for
from twinlog.store.damage import Grade
from twinlog.store.files import listed
from twinlog.store.key_index import SAY_IT, IndexFile, KeyIndex
from twinlog.store.reader import StoreReader


def odd_indexes(store: StoreReader) -> Iterator[tuple[str, int, str, Grade]]:
    """Yield (file, byte in it, what is wrong, how bad that is) for files that cannot be judged."""
    told = store.index_capacity
    index = KeyIndex(store.root / "index", None, capacity=told)
    files = [_by_word(file, told) for file in index.files]
    known = {file.name for file in files if file.slots}
    grade = Grade.NOTE if store.ours else Grade.DAMAGE
    text = "its size and its cells do not agree on a number of slots"
    if of_other_capacity(store):
        grade = grade if store.ours else Grade.UNREADABLE
        text += f"; {SAY_IT}"
    for name in index.unreadable:
        if (why := index.unread.get(name)) and not store.ours:
            yield f"index/{name}", 0, f"the file cannot be read: {why}", Grade.UNREADABLE
        elif name not in known:
            yield f"index/{name}", 0, text, grade


def broken_file(file: IndexFile) -> tuple[int, str] | None:
    """Return (byte in the file, what is wrong) of an index file; None when its chains are whole."""
    return chain_fault(file.slots, file.header, file.table, file.cells)


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
    """Return the file with the number of slots given; cells that contradict it are wrong."""
    if file.slots or told is None or len(file.view) != index_size(*told):
        return file
    return replace(file, slots=told[0])


def of_other_capacity(store: StoreReader) -> bool:
    """Whether all files have one size, and not that of four cells a slot: set by configuration.

    False where the reader was given the capacity (`StoreReader.index_capacity`).
    """
    told = store.index_capacity
    index = KeyIndex(store.root / "index", None, capacity=told)
    if any(_by_word(file, told).slots for file in index.files):
        return False
    found = listed(store.root / "index")
    sizes = {size for path, size, _ in found if path.name in index.unreadable}
    if len(sizes) != 1:
        return False
    size = sizes.pop()
    return size > index_size(0, 0) and not slots_for(size)
