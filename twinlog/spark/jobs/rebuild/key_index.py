"""The key index of `rebuild`: files built one after the other from the keys of all ranges.

Their content equals RocketMQ's (`twinlog.format.key_index.build`). A file's name is its creation
time and cannot be equal, so it is the local time of the first entry's record.

Times are milliseconds since 1970.

Sources: RocketMQ 5.3 (``IndexService.buildIndex``).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from twinlog import kernels
from twinlog.format.key_index import (
    CELLS_PER_SLOT,
    INDEX_CELLS_DEFAULT,
    INDEX_SLOTS_DEFAULT,
    Image,
    build,
    cell_at,
    index_file_name,
    index_size,
    slot_at,
)
from twinlog.spark.directory.log_ranges import LogRange, records_of
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Value
from twinlog.store.key_index import KeyIndex


def keys_of(split: LogRange) -> bytes:
    """Return the packed keys of the records of one range; see `records_of`."""
    data, length = records_of(split)
    return kernels.scan_keys(data, 0, length, split.start)


def build_index(engine: Engine, root: Path, splits: Sequence[LogRange], target: Path) -> int:
    """Write the index files of all ranges into ``target`` and return their number."""
    target.mkdir()
    slots, cells = index_shape(root)
    packed = engine.spread(keys_of, splits)
    before, count = 0, 0
    for image in build(packed, slots=slots, cells=cells):
        before = max(image.header.begin_timestamp, before + 1)
        _write_image(target / index_file_name(before), image, index_size(slots, cells))
        count += 1
    return count


def index_shape(root: Path) -> tuple[int, int]:
    """Return (slots, cells) of a store's index files: of one that is there, else the default."""
    for file in KeyIndex(root / "index", None).files:
        if file.slots:
            return file.slots, CELLS_PER_SLOT * file.slots
    return INDEX_SLOTS_DEFAULT, INDEX_CELLS_DEFAULT


def _write_image(path: Path, image: Image, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(fd, size)
        for at, data in image.pieces():
            os.pwrite(fd, data, at)
    finally:
        os.close(fd)


def index_differences(stored: Path, built: Path) -> list[tuple[Value, ...]]:
    """Return a row for each pair of index files whose content differs; names never count."""
    one, two = KeyIndex(stored, None), KeyIndex(built, None)
    rows: list[tuple[Value, ...]] = []
    if len(one.files) != len(two.files):
        counts = str(len(one.files)), str(len(two.files))
        rows.append(("index", 0, *counts, "number of files"))
    for held, made in zip(one.files, two.files, strict=False):
        # After the last used cell there are only zeros, and files are mostly holes.
        used = cell_at(held.slots, max(held.header.next_cell, made.header.next_cell))
        kept, fresh = bytes(held.view[:used]), bytes(made.view[:used])
        if kept != fresh:
            at = next(i for i in range(0, used, 4) if kept[i : i + 4] != fresh[i : i + 4])
            pair = kept[at : at + 4].hex(), fresh[at : at + 4].hex()
            rows.append((f"index/{held.name}", at, *pair, _index_place(at, held.slots)))
    return rows


def _index_place(at: int, slots: int) -> str:
    if at < slot_at(0):
        return "header"
    cells = slot_at(slots)
    return f"slot {(at - slot_at(0)) // 4}" if at < cells else f"cell {(at - cells) // 20}"
