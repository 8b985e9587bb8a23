"""The chains of the key index: sound in RocketMQ's stores, and a break is named."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.stores.golden import cases, unpack
from twinlog.store.damage import Grade
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify
from twinlog.store.verify.key_chains import broken_file, odd_indexes, settled_indexes

SLOTS = 100
CELLS = 40 + 4 * SLOTS


@pytest.mark.slow
@pytest.mark.parametrize("case", cases())
def test_rocketmqs_indexes_are_whole(tmp_path: Path, case: str) -> None:
    """Every chain of every golden case, crashed ones included."""
    with StoreReader(unpack(case, tmp_path)) as store:
        assert list(odd_indexes(store)) == []
        assert [broken_file(file) for file in settled_indexes(store) if broken_file(file)] == []


def damaged(tmp_path: Path, at: int, value: int) -> list[tuple[str, int, str, Grade]]:
    root = unpack("01-basic", tmp_path)
    path = sorted((root / "index").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[at : at + 4] = struct.pack(">i", value)
    path.write_bytes(data)
    with StoreReader(root) as store:
        said = [f for f in verify(store).findings if f.file.startswith("index/")]
    return [(f.file, f.position, f.what, f.grade) for f in said]


@pytest.mark.parametrize(
    ("at", "value", "position", "what"),
    [
        (
            CELLS + 20 * 57 + 16,
            3,
            CELLS + 20 * 57,
            "cell 57 continues its chain at cell 3",
        ),
        (CELLS + 20 * 57, -5, CELLS + 20 * 57, "cell 57 has the negative hash -5"),
        (32, 7, 32, "the header counts 7 slots in use, there are "),
        (36, 500, 36, "the header says that cell 500 is next; the file ends before it"),
    ],
)
def test_a_break_is_named(tmp_path: Path, at: int, value: int, position: int, what: str) -> None:
    """Which file, which byte, which cell."""
    [(name, found, text, damage)] = damaged(tmp_path, at, value)
    assert name.startswith("index/")
    assert (found, damage) == (position, Grade.DAMAGE)
    assert text.startswith(what)


def test_a_slot_that_names_another_cell(tmp_path: Path) -> None:
    """Its place in the table is named."""
    [(_, position, text, _)] = damaged(tmp_path, 40 + 4 * 11, 399)
    assert position == 40 + 4 * 11
    assert text.startswith("slot 11 points to cell 399, its newest is ")


def of_other_capacity(tmp_path: Path) -> Path:
    """A store whose index files have room for seven cells more than four for each slot."""
    root = unpack("01-basic", tmp_path)
    for path in (root / "index").iterdir():
        path.write_bytes(path.read_bytes() + bytes(7 * 20))
    return root


def said(root: Path, capacity: tuple[int, int] | None) -> list[tuple[str, Grade]]:
    """What verify says of the index, told so many slots and cells."""
    with StoreReader(root, index_capacity=capacity) as store:
        found = verify(store).findings
        return [(f.what, f.grade) for f in found if f.file.startswith("index/")]


def test_what_is_told_counts_before_the_size(tmp_path: Path) -> None:
    """105 slots and 399 cells are as many bytes as 100 and 400, which these files have."""
    assert {grade for _, grade in said(unpack("01-basic", tmp_path), (105, 399))} == {Grade.DAMAGE}


def test_another_capacity_is_checked_when_it_is_told(tmp_path: Path) -> None:
    """Untold nobody knows; told wrongly neither; told, the files are sound, and a break is seen."""
    root = of_other_capacity(tmp_path)
    [(text, grade), *_] = said(root, None)
    assert grade is Grade.UNREADABLE
    assert text.endswith("say how many it has: --index-slots N --index-cells M")
    assert {grade for _, grade in said(root, (100, 406))} == {Grade.UNREADABLE}
    assert said(root, (100, 407)) == []
    path = min((root / "index").iterdir())
    data = bytearray(path.read_bytes())
    data[CELLS + 20 : CELLS + 24] = struct.pack(">i", -5)
    path.write_bytes(data)
    damage = ("cell 1 has the negative hash -5", Grade.DAMAGE)
    assert said(root, (100, 407)) == [damage]
    path.write_bytes(data[:-20])
    assert said(root, (100, 407)) == [
        ("its size and its cells do not agree on a number of slots", Grade.DAMAGE)
    ]
