"""The chains of the key index: sound in RocketMQ's stores, and a break is named."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.golden.manifest import cases, unpack
from twinlog.store_check import Grade, verify
from twinlog.store_key_check import broken_indexes
from twinlog.store_reader import StoreReader

SLOTS = 100
CELLS = 40 + 4 * SLOTS


@pytest.mark.slow
@pytest.mark.parametrize("case", cases())
def test_rocketmqs_indexes_are_whole(tmp_path: Path, case: str) -> None:
    """Every chain of every golden case, crashed ones included."""
    with StoreReader(unpack(case, tmp_path)) as store:
        assert list(broken_indexes(store)) == []


def damaged(tmp_path: Path, at: int, value: int) -> list[tuple[str, int, str, Grade]]:
    root = unpack("01-basic", tmp_path)
    path = sorted((root / "index").iterdir())[0]
    data = bytearray(path.read_bytes())
    data[at : at + 4] = struct.pack(">i", value)
    path.write_bytes(data)
    with StoreReader(root) as store:
        found = list(broken_indexes(store))
        said = [f for f in verify(store).findings if f.file.startswith("index/")]
    assert [(f.file, f.position, f.what, f.grade) for f in said] == [
        (name, position, what, Grade.DAMAGE) for name, position, what, _ in found
    ]
    return found


@pytest.mark.parametrize(
    ("at", "value", "position", "what"),
    [
        (CELLS + 20 * 57 + 16, 3, CELLS + 20 * 57, "cell 57 does not continue its chain"),
        (CELLS + 20 * 57, -5, CELLS + 20 * 57, "cell 57 does not continue its chain"),
        (32, 7, 32, "the header counts 7 used slots"),
        (36, 500, 32, "the header names cell 500, which does not fit"),
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
    assert text == "slot 11 does not name the newest cell of its chain"
