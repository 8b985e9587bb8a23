"""Our key index of a RocketMQ log is RocketMQ's, byte for byte after renaming; three differences.

Files are named by their creation, so they are compared in order. What may differ is what RocketMQ's
index says of records that its log no longer has, or says twice:

* ``LOST``: entries of records behind the end of the log, or replaced by others: RocketMQ never cuts
  its index, ours is cut with the log. And those others have no entry, up to the newest lost one:
  RocketMQ enters nothing below the last offset of its index;
* ``TRIMMED``: entries of records before the beginning of the log: an index that is built from the
  log does not know them;
* ``TWICE``: after a stop RocketMQ enters the last record a second time.

Where one applies, every entry that is left is the same, in the same order, with the same hash. Case
03d has lost its index.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from storage import Store, StoreSettings, Who
from storage.disk.disk import RealDisk
from storage.key_index.index import KeyIndex
from storage.tools.recover import identity_of, settings_of
from tests.stores.adopted import adopt
from tests.stores.golden import cases, manifest, unpack
from twinlog.format.key_index import INDEX_CELL, IndexHeader
from twinlog.kernels import scan_keys

SMALL = (100, 400)
SIZES = {"16-defaults": (5_000_000, 20_000_000)}
LOST, TRIMMED, TWICE = "lost", "trimmed", "twice"
DIFFERENT = {
    "03b-torn-tail": {LOST},
    "03c-bad-body": {LOST},
    "03f-torn-properties": {LOST},
    "12-controller-a": {LOST},
    "12-controller-b": {TWICE},
    "13-trimmed": {TRIMMED},
}
NO_INDEX = {"03d-queues-behind"}
Entry = tuple[int, int]


def contents(folder: Path, slots: int) -> list[bytes]:
    """Each file up to its last cell; behind it are zeros."""
    found: list[bytes] = []
    for path in sorted(folder.iterdir()):
        with path.open("rb") as opened:
            header = IndexHeader.unpack(opened.read(40))
            opened.seek(0)
            found.append(opened.read(40 + 4 * slots + 20 * header.next_cell))
            assert slots > 1000 or not any(opened.read()), path.name
    return found


def entries(files: list[bytes], slots: int) -> list[Entry]:
    """(hash, log offset) of all cells in order."""
    start = 40 + 4 * slots + 20
    cells = [cell for file in files for cell in INDEX_CELL.iter_unpack(file[start:])]
    return [(hashed, offset) for hashed, offset, _, _ in cells]


def build(root: Path, into: Path, end: int, sizes: tuple[int, int]) -> KeyIndex:
    """Enter the keys of a log, file by file."""
    disk = RealDisk(into)
    disk.make_dir("index", "test")
    index = KeyIndex(disk, StoreSettings(index_slots=sizes[0], index_cells=sizes[1]))
    for path in sorted((root / "commitlog").iterdir()):
        base = int(path.name)
        with path.open("rb") as opened:
            data = opened.read(max(end - base, 0))
        index.enter(scan_keys(data, 0, len(data), base), 0)
    index.flush().run("test")
    return index


@pytest.mark.parametrize("case", cases())
def test_files_are_rocketmqs(case: str, tmp_path: Path) -> None:
    """See the module's text."""
    root = unpack(case, tmp_path)
    sizes, log = SIZES.get(case, SMALL), manifest(case)["log"]
    build(root, tmp_path / "ours", log["max_offset"], sizes)
    ours = contents(tmp_path / "ours" / "index", sizes[0])
    if case in NO_INDEX:
        assert not (root / "index").exists()
        assert ours
        return
    theirs = contents(root / "index", sizes[0])
    known = DIFFERENT.get(case, set())
    if not known:
        assert ours == theirs
        return
    assert ours != theirs, "the difference is gone: take it from the list"
    mine, left = entries(ours, sizes[0]), entries(theirs, sizes[0])
    if TRIMMED in known:
        left = [entry for entry in left if entry[1] >= log["min_offset"]]
    if LOST in known:
        have = set(mine)
        assert [entry for entry in left if entry not in have]
        newest = max(offset for _, offset in set(left) - have)
        left = [entry for entry in left if entry in have]
        entered = set(left)
        mine = [entry for entry in mine if entry in entered or entry[1] >= newest]
    if TWICE in known:
        before = left
        left = [entry for number, entry in enumerate(left) if entry not in left[:number]]
        again = {offset for _, offset in before} - {offset for _, offset in left}
        assert len(left) < len(before) and not again
    assert left == mine


@pytest.mark.parametrize("case", ["02-rollover", "07-consuming", "14-compaction"])
def test_a_running_store_builds_the_same(case: str, tmp_path: Path) -> None:
    """RocketMQ's store, adopted, all that is derived lost: our node builds RocketMQ's index."""
    root = unpack(case, tmp_path)
    theirs = contents(root / "index", SMALL[0])
    value = adopt(root)
    for path in (root / "twinlog" / "state").iterdir():
        path.unlink()
    shutil.rmtree(root / "index")
    disk = RealDisk(root)
    settings = replace(settings_of(identity_of(disk)), index_slots=SMALL[0], index_cells=SMALL[1])
    who = Who("adopted", "g1", "n1", value.family)
    store = Store.open(disk, settings, who, wall_ms=value.timestamp)
    while store.dispatch(5000):
        pass
    store.close(clean=True)
    assert contents(root / "index", SMALL[0]) == theirs
