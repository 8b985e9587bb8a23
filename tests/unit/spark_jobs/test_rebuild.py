"""rebuild: the bytes that the broker wrote, from the log alone."""

from __future__ import annotations

import fcntl
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.golden.manifest import unpack
from twinlog.errors import UsageError
from twinlog.layout import INDEX_CELL, IndexHeader
from twinlog.spark.jobs.engine import PlainEngine
from twinlog.spark.jobs.index_files import KEY, build, chain_fault
from twinlog.spark.jobs.rebuild import BLANK_ENTRY, RebuildSettings, queue_differences, run
from twinlog.spark.jobs.report import Verdict

SAME = [
    "01-basic",
    "02-rollover",
    "03-crash",
    "04-delay",
    "05-timer",
    "06-transaction",
    "07-consuming",
    "08-lmq",
    "10-ipv6",
    "11-compressed",
    "14-compaction",
    "15-propcrc-v2",
    "15b-v2-pop",
    "16-defaults",
]
"""Golden stores whose queues and index RocketMQ built without a cut or a restart in between."""


@pytest.mark.parametrize("case", SAME)
def test_queues_and_index_are_the_brokers(case: str, tmp_path: Path) -> None:
    """Every queue file byte for byte, every index file's content byte for byte."""
    root = unpack(case, tmp_path)
    found = run(PlainEngine(), RebuildSettings(root, check=True, split_bytes=20_000))
    assert found.verdict is Verdict.FINE, found.tables["differences"].rows
    assert not (root / "rebuilt.building").exists()


@pytest.mark.parametrize("case", ["12-controller-a", "12-controller-b"])
def test_what_a_restart_leaves_is_listed(case: str, tmp_path: Path) -> None:
    """The broker indexed the last record twice: named, in the index only."""
    root = unpack(case, tmp_path)
    found = run(PlainEngine(), RebuildSettings(root, check=True))
    assert found.verdict is Verdict.NO
    assert all(str(row[0]).startswith("index/") for row in found.tables["differences"].rows)


def test_a_queue_that_does_not_begin_at_0_is_filled_up(tmp_path: Path) -> None:
    """Retention took the first records: blanks up to the first entry, then the broker's entries."""
    root, to = unpack("13-trimmed", tmp_path), tmp_path / "new"
    run(PlainEngine(), RebuildSettings(root, index=False, to=to))
    blanks = 0
    for path in (to / "consumequeue").glob("*/*/*"):
        built = path.read_bytes()
        stored = (root / path.relative_to(to)).read_bytes()
        assert len(built) == len(stored)
        at = 0
        while built[at : at + 20] == BLANK_ENTRY:
            at, blanks = at + 20, blanks + 1
        assert built[at:] == stored[at:]
    assert blanks


def test_a_lost_queue_comes_back_in_place(tmp_path: Path) -> None:
    """Queues that were deleted are what they were; again changes nothing."""
    root = unpack("02-rollover", tmp_path)
    shutil.copytree(root / "consumequeue", tmp_path / "before")
    for path in list((root / "consumequeue").glob("*/0/*")):
        path.unlink()
    run(PlainEngine(), RebuildSettings(root, split_bytes=20_000))
    assert queue_differences(tmp_path / "before", root / "consumequeue") == []
    run(PlainEngine(), RebuildSettings(root))
    assert queue_differences(tmp_path / "before", root / "consumequeue") == []
    assert not (root / "consumequeue.before").exists()


def test_into_a_new_directory(tmp_path: Path) -> None:
    """``--to`` leaves the store alone and refuses what exists."""
    root, to = unpack("01-basic", tmp_path), tmp_path / "new"
    run(PlainEngine(), RebuildSettings(root, to=to))
    assert queue_differences(root / "consumequeue", to / "consumequeue") == []
    with pytest.raises(UsageError, match="exists already"):
        run(PlainEngine(), RebuildSettings(root, to=to))


def test_an_interrupted_rebuild_leaves_the_store_alone(tmp_path: Path) -> None:
    """Ctrl-C in the middle: queues as before, no half result."""

    class Interrupting(PlainEngine):
        def spread(self, work, items):  # type: ignore[no-untyped-def]
            super().spread(work, items[:1])
            raise KeyboardInterrupt

    root = unpack("02-rollover", tmp_path)
    shutil.copytree(root / "consumequeue", tmp_path / "before")
    with pytest.raises(KeyboardInterrupt):
        run(Interrupting(), RebuildSettings(root, split_bytes=20_000))
    assert queue_differences(tmp_path / "before", root / "consumequeue") == []
    assert not list(root.glob("*.building"))


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    """A process that holds the node's lock keeps a rebuild in place out."""
    import subprocess
    import sys

    root = unpack("01-basic", tmp_path)
    (root / "lock").touch()
    script = (
        "import fcntl, sys\n"
        f"f = open({str(root / 'lock')!r}, 'r+b')\n"
        "fcntl.lockf(f, fcntl.LOCK_EX, 1)\nprint('held', flush=True)\nsys.stdin.read()"
    )
    assert fcntl.LOCK_EX
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None and other.stdout.readline() == b"held\n"
        with pytest.raises(UsageError, match="a node runs"):
            run(PlainEngine(), RebuildSettings(root))
        other.communicate(b"")


KEYS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 10), st.integers(0, 2_000_000)), max_size=60
)


@given(KEYS, st.integers(1, 7), st.integers(3, 9))
def test_index_files_are_chains_that_hold(
    keys: list[tuple[int, int, int]], slots: int, cells: int
) -> None:
    """Each key is reached from its slot, newest first, and a flipped field is noticed."""
    offset, packed = 0, b""
    for hashed, step, stamp in keys:
        offset += step
        packed += KEY.pack(hashed, offset, stamp)
    images = list(build([packed], slots=slots, cells=cells))
    found: list[tuple[int, int]] = []
    for image in images:
        assert chain_fault(slots, image.header, image.slots, image.cells) == (-1, "")
        for hashed, at, _, _ in INDEX_CELL.iter_unpack(image.cells[20:]):
            found.append((hashed, at))
        assert image.header.next_cell <= cells
    assert found == [(hashed, at) for hashed, at, _ in KEY.iter_unpack(packed)]
    for image in images:
        table = struct.unpack(f">{slots}i", image.slots)
        wrong = struct.pack(f">{slots}i", *[value ^ 1 for value in table])
        assert chain_fault(slots, image.header, wrong, image.cells)[1]
        less = IndexHeader(*[*_fields(image.header)[:4], 99, image.header.next_cell])
        assert chain_fault(slots, less, image.slots, image.cells)[0] == 32


def _fields(header: IndexHeader) -> list[int]:
    return [getattr(header, name) for name in IndexHeader.__slots__]
