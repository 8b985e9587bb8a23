"""RocketMQ's timer files, damaged byte by byte: nothing that matters goes unnoticed."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tests.stores.golden import unpack
from twinlog.format.waiting.timers import BLANK_MAGIC
from twinlog.store.damage import Grade
from twinlog.store.reader import StoreReader
from twinlog.store.timers import Timers
from twinlog.store.verify.check import verify
from twinlog.store.verify.findings import Finding
from twinlog.store.verify.timers import check_timers

FIRST, SECOND = (f"timerlog/{start:020d}" for start in (0, 1056))
CHAINED = 52
"""A unit with one before it in its second."""
WAITING = 624
"""A unit of a second that is still to come."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack("05-timer", tmp_path_factory.mktemp("timer"))


@pytest.fixture
def root(original: Path, tmp_path: Path) -> Path:
    """A copy of all but the wheel's holes, which `cp --sparse` alone would keep."""
    copy = tmp_path / "store"
    shutil.copytree(original, copy, ignore=shutil.ignore_patterns("timerwheel"))
    with (original / "timerwheel").open("rb") as whole, (copy / "timerwheel").open("wb") as sparse:
        sparse.truncate(1_209_600 * 32)
        for slot in Timers(original).slots():
            for opened in (whole, sparse):
                opened.seek(32 * slot.index)
            sparse.write(whole.read(32))
    return copy


def findings(root: Path) -> list[Finding]:
    with StoreReader(root) as store:
        return list(check_timers(store))


def change(root: Path, name: str, at: int, data: bytes) -> None:
    with (root / name).open("r+b") as opened:
        opened.seek(at)
        opened.write(data)


def slot_of(root: Path, position: int) -> int:
    """Return the byte of the wheel where the slot of the newest unit ``position`` begins."""
    return next(32 * slot.index for slot in Timers(root).slots() if slot.last == position)


LOG = [
    (CHAINED + 3, b"\x35", "no unit of a timer log"),
    (CHAINED + 4, b"\x80", "one before it of its second; it is 0"),
    (CHAINED + 11, b"\x34", "the unit names 52 as the one before it of its second; it is 0"),
    (WAITING + 4, b"\x00" * 8, "the unit names 0 as the one before it of its second; there is"),
    (CHAINED + 15, b"\x05", "differ in whether they take another one back"),
    (CHAINED + 26, b"\x00", "as the one before it of its second"),
    (CHAINED + 28, b"\x80", "the unit points to no timer of 388 bytes at"),
    (CHAINED + 35, b"\x00", "the unit points to no timer of 388 bytes at 512"),
    (CHAINED + 36, b"\x01", "the unit points to no timer of"),
    (CHAINED + 43, b"\x00", "the unit is of another topic than its record, Timer_20c5e9e0"),
    (CHAINED, b"\0" * 104, "2 places without a unit"),
]


@pytest.mark.parametrize(("at", "data", "what"), LOG)
def test_a_damaged_timer_log(root: Path, at: int, data: bytes, what: str) -> None:
    """Each field of a unit is compared with its record, its chain or the format."""
    change(root, FIRST, at, data)
    found = findings(root)
    assert any(one.file == FIRST and what in one.what for one in found), found
    assert any(one.grade is Grade.DAMAGE for one in found)


def test_files_of_the_timer_log(root: Path) -> None:
    """The first is gone, is short, or holds a blank of another length."""
    whole = (root / FIRST).read_bytes()
    (root / FIRST).unlink()
    assert "begins at 1056, though nothing of the log was deleted" in findings(root)[0].what
    (root / FIRST).write_bytes(whole[:1000])
    assert any("the timer log before it ends at 1000" in one.what for one in findings(root))
    blank = struct.pack(">iqi", 17, 0, BLANK_MAGIC)
    (root / FIRST).write_bytes(whole[:1040] + blank)
    assert [one.what for one in findings(root)][:1] == ["no unit of a timer log"]
    (root / FIRST).write_bytes(whole)
    (root / SECOND).unlink()
    names = {one.file for one in findings(root)}
    assert names == {"timerwheel", "config/timercheck"}
    (root / SECOND).mkdir()
    assert any(one.grade is Grade.UNREADABLE for one in findings(root))


def test_a_damaged_wheel(root: Path) -> None:
    """A slot at another's place, one that leads elsewhere, one that is gone, no wheel."""
    at = slot_of(root, 728)
    slot = (root / "timerwheel").read_bytes()[at : at + 32]
    told = {
        0: (b"\1", "which has another place"),
        23: (b"\xd9", "names 729 as its newest unit; it is 728"),
        20: (b"\xff\xff\xff\xff", "as its newest unit; it is 728"),
    }
    for place, (data, what) in told.items():
        change(root, "timerwheel", at + place, data)
        found = findings(root)
        assert any(what in one.what and one.position == at for one in found), found
        assert {one.grade for one in found} == {Grade.DAMAGE}
        change(root, "timerwheel", at, slot)
    change(root, "timerwheel", at, b"\0" * 32)
    assert [one.what for one in findings(root)] == [
        "no slot points to the units of 1795248000000, which wait"
    ]
    change(root, "timerwheel", at, slot)
    change(root, "timerwheel", at + 27, b"\7")  # how many it has: RocketMQ delivers by the chain
    assert [one.grade for one in findings(root)] == [Grade.NOTE]
    (root / "timerwheel").unlink()
    assert [one.what for one in findings(root)] == [
        "the file is missing, though units of 10 seconds wait"
    ]
    (root / "timerwheel").write_bytes(slot)
    assert "RocketMQ would not start" in findings(root)[0].what


def test_a_damaged_timercheck(root: Path) -> None:
    """Where it ends otherwise than the timer log and the queue, or is gone."""
    whole = (root / "config" / "timercheck").read_bytes()
    for at, what in (
        (8, "the timer log was flushed up to"),
        (16, "the timer queue was read up to"),
    ):
        change(root, "config/timercheck", at, b"\1")
        assert [one.what[: len(what)] for one in findings(root)] == [what]
        (root / "config" / "timercheck").write_bytes(whole)
    (root / "config" / "timercheck").unlink()
    assert "RocketMQ would deliver timers again" in findings(root)[0].what


def test_after_a_kill_what_was_not_flushed_is_a_note(root: Path) -> None:
    """Its start cuts the timer log there; below what was flushed nothing helps."""
    (root / "abort").touch()
    assert findings(root) == []
    change(root, "config/timercheck", 8, (1056 + 10 * 52).to_bytes(8, "big"))
    change(root, SECOND, 11 * 52, b"\xff")
    assert {one.grade for one in findings(root)} == {Grade.NOTE}
    change(root, SECOND, 9 * 52, b"\xff")
    assert Grade.DAMAGE in {one.grade for one in findings(root)}


def test_it_is_part_of_verify(root: Path) -> None:
    """What is wrong counts; what nobody can judge is named, with other things of the folder."""
    (root / "notes.txt").touch()
    (root / "config" / "rdb").mkdir()
    with StoreReader(root) as store:
        verdict = verify(store)
    assert not verdict.damaged
    reasons = dict(verdict.unchecked)
    assert reasons["notes.txt"] == "not known as part of a store"
    assert reasons["config/rdb"] == "a RocketMQ database"
    assert sorted(reasons) == ["checkpoint", "config/rdb", "config/timercheck", "notes.txt"]
    change(root, FIRST, CHAINED + 43, b"\0")
    with StoreReader(root) as store:
        assert verify(store).damaged


def test_a_queue_extension(tmp_path: Path) -> None:
    """Sizes, the chain of units, store times; the bitmaps are named as not judged."""
    root = unpack("18-cqext", tmp_path)
    folder = "consumequeue_ext/Ext_8aa172c2/0"
    name = f"{folder}/{0:020d}"
    whole = (root / name).read_bytes()
    told = {
        34 + 1: (b"\x21", "no unit of an extension: its size is 33"),
        34 + 19: (b"\x0f", "no unit of an extension: its size is 34"),
        34 + 17: (b"\0", "the unit of entry 1 names another store time than its record"),
        34 + 9: (b"\0", "entry 1 is not what the log says"),
    }
    for at, (data, what) in told.items():
        change(root, name, at, data)
        with StoreReader(root) as store:
            verdict = verify(store)
        assert verdict.damaged
        assert what in {one.what for one in verdict.findings}, verdict.findings
        (root / name).write_bytes(whole)
    with StoreReader(root) as store:
        verdict = verify(store)
    assert verdict.findings == []
    assert "bitmaps" in dict(verdict.unchecked)["consumequeue_ext"]
