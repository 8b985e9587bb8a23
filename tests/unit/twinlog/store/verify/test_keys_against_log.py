"""The cells of the key index beside the keys of the log: what does not fit is named."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.stores.golden import cases, unpack
from twinlog.store.damage import Grade
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import Finding, verify
from twinlog.store.verify.key_chains import settled_indexes
from twinlog.store.verify.keys_against_log import compare_index

CELLS = 40 + 4 * 100


def said(root: Path) -> list[Finding]:
    """What verify says of the index."""
    with StoreReader(root) as store:
        return [f for f in verify(store).findings if f.file.startswith("index")]


@pytest.mark.slow
@pytest.mark.parametrize("case", cases())
def test_rocketmqs_indexes_are_those_of_their_logs(tmp_path: Path, case: str) -> None:
    """Nothing in any golden case; a broker that cut its log did not enter some records again."""
    with StoreReader(unpack(case, tmp_path)) as store:
        found = [(f.grade, f.what) for f in compare_index(store, settled_indexes(store))]
    lacking = "18 keys of records before its last one are in no cell"
    assert found == ([(Grade.NOTE, lacking)] if case == "12-controller-a" else [])


def edited(path: Path, at: int, form: str, change: Callable[[int], int]) -> None:
    """Change one number of a file."""
    data = bytearray(path.read_bytes())
    (value,) = struct.unpack_from(form, data, at)
    struct.pack_into(form, data, at, change(value))
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "form", "what"),
    [
        (CELLS + 20 * 57 + 4, ">q", "no record at 10177 has the key of a cell"),
        (CELLS + 20 * 57 + 12, ">i", "cell 57 names another second than its record at 10176 has"),
        (CELLS + 20 * 1 + 12, ">i", "cell 1 names another second than its record at 0 has"),
        (0, ">q", "its header names time 1795245424079, the record of cell 1 1795245424078"),
        (8, ">q", "its header names time 1795245428345, the record of cell 399 1795245428344"),
        (16, ">q", "its header names log offset 1, cell 1 0"),
        (24, ">q", "its header names log offset 73499, cell 399 73498"),
    ],
)
def test_what_does_not_fit_is_damage(tmp_path: Path, at: int, form: str, what: str) -> None:
    """Chains, slots and counts stay whole: only the log tells that the number is another."""
    root = unpack("01-basic", tmp_path)
    edited(min((root / "index").iterdir()), at, form, lambda value: value + 1)
    [found] = said(root)
    assert (found.what[: len(what)], found.grade) == (what, Grade.DAMAGE)
    assert found.position == (CELLS + (at - CELLS) // 20 * 20 if at >= CELLS else 0)


def test_a_place_behind_the_end_of_the_log(tmp_path: Path) -> None:
    """A cell of a clean store that names bytes which the log does not have."""
    root = unpack("01-basic", tmp_path)
    edited(
        max((root / "index").iterdir()), CELLS + 20 * 9 + 4, ">q", lambda value: value + (1 << 40)
    )
    [found] = said(root)
    assert found.what.startswith("a cell names 1099511")
    assert found.grade is Grade.DAMAGE


def test_two_files_that_changed_places(tmp_path: Path) -> None:
    """RocketMQ walks them by name: the newer one must have the newer records."""
    root = unpack("01-basic", tmp_path)
    first, second = sorted((root / "index").iterdir())
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    assert Grade.DAMAGE in {found.grade for found in said(root)}


def test_keys_that_no_cell_names_are_noted(tmp_path: Path) -> None:
    """A file that was lost, the newest, or all: an index can be switched off, so nobody knows."""
    root = unpack("02-rollover", tmp_path)
    files = sorted((root / "index").iterdir())
    files[2].unlink()
    [found] = said(root)
    assert (found.file, found.grade) == (f"index/{files[3].name}", Grade.NOTE)
    assert found.what.startswith("399 keys ")
    files[-1].unlink()
    assert [f.what.split()[0] for f in said(root)] == ["399", "275"]
    for path in (root / "index").iterdir():
        path.unlink()
    [none] = said(root)
    assert (none.what, none.grade) == ("no index file exists, though records have keys", Grade.NOTE)
