"""Directories that nobody would write: the tools say what is wrong, and end with the right code.

Files that are folders, pipes, links that lead nowhere, names in other digits, sizes beyond reason,
counts beyond what is kept; and stores whose files go while they are read.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli.app import main
from tests.stores.golden import unpack
from tests.stores.sample import SEGMENT, Ours, flip, put, sample, slot
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import BatchEntry
from twinlog.format.log_file import file_name
from twinlog.format.record import encode
from twinlog.kernels import crc32c
from twinlog.store import files
from twinlog.store.damage import Grade, Harm
from twinlog.store.find import by_offset
from twinlog.store.queues import load_queues
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import FINDINGS_MAX, verify
from twinlog.store.verify.compare import compare

FIRST, MIDDLE, LAST = (file_name(SEGMENT * number) for number in range(3))


def verified(capsys: pytest.CaptureFixture[str], root: Path) -> tuple[int, dict[str, Any]]:
    code = main(["log", "verify", str(root), "-o", "json"], {})
    said = capsys.readouterr()
    assert "internal error in twinlog" not in said.err
    found: dict[str, Any] = json.loads(said.out)
    return code, found


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("nothing/here")


def circle(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def empty(path: Path) -> None:
    path.write_bytes(b"")


WAYS = [folder, pipe, dangling, circle, empty, Path.unlink]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", [FIRST, MIDDLE, LAST])
def test_a_lost_log_file_of_ours_is_damage(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, way: Callable[[Path], None]
) -> None:
    """Wherever it lay: the batch index, or the checkpoint, says that something was there."""
    ours = sample()
    root = ours.write(tmp_path, flushed=ours.end)
    way(root / "commitlog" / name)
    code, found = verified(capsys, root)
    assert code == 65
    assert any(f["file"] == f"commitlog/{name}" for f in found["findings"])
    with StoreReader(root) as store:
        assert sum(d.length for d in store.damage if d.harm is Harm.DAMAGE) > 0
        assert any(store.records())
    assert main(["log", "dump", str(root), "-o", "jsonl"], {}) == 0
    kinds = [json.loads(line)["kind"] for line in capsys.readouterr().out.splitlines()]
    assert "Damage" in kinds


def test_the_checkpoint_says_where_the_log_begins(tmp_path: Path) -> None:
    """Log file and index are both gone: only the checkpoint knows. Below it nothing counts."""
    ours = sample()
    root = ours.write(tmp_path, flushed=ours.end)
    kept = (root / "commitlog" / FIRST).read_bytes()
    for start, lost in ((0, [FIRST]), (SEGMENT, [])):
        marks = b"\x83\xa7flushed\xcd" + ours.end.to_bytes(2, "big")
        marks += b"\xa7confirm\xcd" + ours.end.to_bytes(2, "big")
        marks += b"\xa5start\xcd" + start.to_bytes(2, "big")
        put(root / "twinlog" / "checkpoint", slot(marks, 9))
        if not start:
            (root / "commitlog" / FIRST).unlink()
            (root / "twinlog" / "batches" / FIRST).unlink()
        else:  # a retention that was killed: a start removes what it left
            put(root / "commitlog" / FIRST, kept)
        with StoreReader(root) as store:
            assert store.start == SEGMENT
            wrong = [f for f in verify(store).findings if f.grade is Grade.DAMAGE]
        assert [f.file for f in wrong] == [f"commitlog/{name}" for name in lost]


@pytest.mark.parametrize("way", [folder, pipe, dangling, circle])
def test_what_is_no_file_is_unreadable_in_rocketmqs_stores(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, way: Callable[[Path], None]
) -> None:
    """Exit 2: nothing is known about it, nor about entries that lead there."""
    root = unpack("02-rollover", tmp_path)
    last = max((root / "commitlog").iterdir())
    way(last)
    code, found = verified(capsys, root)
    said = [f for f in found["findings"] if f["file"] == f"commitlog/{last.name}"]
    assert [f["grade"] for f in said] == ["unreadable"]
    assert [f["grade"] for f in found["findings"]] == ["unreadable"]
    assert (code, found["state"]) == (2, "unreadable")


@pytest.mark.parametrize("kind", ["index", "consumequeue"])
def test_nothing_is_known_of_an_index_or_queue_that_cannot_be_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, kind: str
) -> None:
    """It was damage: a size that tells nothing, records without an entry."""
    root = unpack("02-rollover", tmp_path)
    folder(min(path for path in (root / kind).rglob("*") if path.is_file()))
    code, found = verified(capsys, root)
    assert [f["grade"] for f in found["findings"]] == ["unreadable"]
    assert (code, found["state"]) == (2, "unreadable")
    if kind == "index":
        assert main(["log", "find", str(root), "--key", "nosuch"], {}) == 2
        assert "cannot be read, so the keys in it are unknown" in capsys.readouterr().err


def test_names_in_other_digits_are_foreign(tmp_path: Path) -> None:
    """A name of superscripts, a number beyond 63 bits: no file of the log, and no crash."""
    ours = sample()
    root = ours.write(tmp_path)
    put(root / "commitlog" / ("²" * 20), b"x")
    put(root / "commitlog" / ("9" * 20), b"x")
    put(root / "consumequeue" / "t" / "²" / FIRST, bytes(20))
    put(root / "index" / "²", b"x")
    findings = verify(StoreReader(root)).findings
    assert {f.grade for f in findings} == {Grade.NOTE}
    assert len(findings) == 2


@pytest.mark.parametrize(
    "name", ["twinlog/batches/" + FIRST, "twinlog/checkpoint", "checkpoint", "commitlog/" + LAST]
)
def test_a_file_of_terabytes_takes_no_memory(tmp_path: Path, name: str) -> None:
    """Holes are skipped, and of small files only the beginning is read."""
    ours = sample()
    root = ours.write(tmp_path, flushed=ours.end)
    with (root / name).open("ab") as opened:
        opened.truncate(1 << 42)
    with StoreReader(root) as store:
        assert store.end == ours.end
        assert len(list(store.records())) == sum(entry.count for entry in ours.entries)


def test_a_config_file_of_gigabytes_is_named(tmp_path: Path) -> None:
    """And not read; nor is one that nests deeper than Python goes."""
    root = unpack("01-basic", tmp_path)
    path = root / "config" / "topics.json"
    path.with_suffix(".json.bak").unlink(missing_ok=True)
    with path.open("ab") as opened:
        opened.truncate(1 << 33)
    for _ in range(2):
        said = [f for f in verify(StoreReader(root)).findings if f.grade is Grade.DAMAGE]
        assert [f.file for f in said] == ["config/topics.json"]
        path.write_bytes(b'{"a":' * 100_000)


@pytest.mark.parametrize("at", [0, 7, 8, 11, 12, 19])
def test_every_byte_of_a_queue_entry_is_compared(tmp_path: Path, at: int) -> None:
    """The sign of an offset too, which once read as the end of the queue, and as sound."""
    ours = sample()
    root = ours.write(tmp_path)
    flip(root / "consumequeue" / "t" / "0" / FIRST, 60 + at, bit=0x80)
    wrong = [f for f in verify(StoreReader(root)).findings if f.grade is Grade.DAMAGE]
    assert [(f.file, f.position) for f in wrong] == [(f"consumequeue/t/0/{FIRST}", 60)]


def test_entries_in_each_others_place(tmp_path: Path) -> None:
    """Each leads to a record of its queue, and none of them to its own."""
    ours = sample()
    held = ours.queues["t", 0]
    held[20:40], held[40:60] = held[40:60], held[20:40]
    wrong = [f.position for f in verify(StoreReader(ours.write(tmp_path))).findings]
    assert wrong == [20, 40]


def test_a_hole_in_a_queue_is_damage_where_a_start_looks_no_more(tmp_path: Path) -> None:
    """Below the newest snapshot; above it, and at the end of a file, recovery fills it."""
    ours = sample()
    held = ours.queues["t", 0]
    at = struct.unpack_from(">q", held, 60)[0]
    held[60:80] = bytes(20)
    for clean, covered, grade in (
        (True, None, Grade.DAMAGE),
        (False, None, Grade.NOTE),
        (False, at, Grade.NOTE),
        (False, at + 1, Grade.DAMAGE),
    ):
        root = ours.write(tmp_path / f"{clean}{covered}", clean=clean)
        if covered is not None:
            put(root / "twinlog" / "state" / file_name(covered), b"x")
        found = verify(StoreReader(root)).findings
        assert max(found, key=lambda f: f.grade is Grade.DAMAGE).grade is grade
        assert found[-1].what == "1 records of the log have no entry"


def test_notes_do_not_hide_damage(tmp_path: Path) -> None:
    """More findings than are kept: the verdict is about all of them."""
    ours = sample()
    root = ours.write(tmp_path, clean=False)
    for number in range(FINDINGS_MAX + 5):
        put(root / "commitlog" / f"stray-{number}", b"x")
    flip(root / "consumequeue" / "t" / "0" / FIRST, 67)
    verdict = verify(StoreReader(root))
    assert len(verdict.findings) == FINDINGS_MAX
    assert (verdict.damaged, verdict.more) == (True, 6)


def test_entries_behind_the_end_are_one_finding(tmp_path: Path) -> None:
    """A live store has thousands; but one that has right entries behind it is damage."""
    ours = sample()
    held = ours.queues["t", 0]
    for number in range(4):
        held += struct.pack(">qiq", ours.end + 200 * number, 100, 0)
    [found] = verify(StoreReader(ours.write(tmp_path / "a", clean=False))).findings
    assert found.grade is Grade.NOTE
    assert found.what.endswith("points after the end of the log, 3 after it")


def test_an_epoch_file_without_a_backup(tmp_path: Path) -> None:
    """Damage is no reason to call a history empty; verify says it too."""
    root = unpack("12-controller-a", tmp_path)
    (root / "epochFileCheckpoint.bak").unlink()
    flip(root / "epochFileCheckpoint", 2)
    with StoreReader(root) as store, pytest.raises(CorruptionError):
        store.epochs()
    [found] = [f for f in verify(StoreReader(root)).findings if f.grade is not Grade.NOTE]
    assert (found.grade, found.file) == (Grade.DAMAGE, "epochFileCheckpoint")
    assert main(["log", "compare", str(root), str(root)], {}) == 0


def test_a_compacted_copy_is_verified(tmp_path: Path) -> None:
    """A flipped byte of a body in RocketMQ's second copy of a topic."""
    root = unpack("14-compaction", tmp_path)
    assert verify(StoreReader(root)).findings == []
    path = min((root / "compaction" / "compactionLog").rglob("0" * 20))
    flip(path, 95)
    for _ in range(2):
        [found] = verify(StoreReader(root)).findings
        assert found.file.startswith("compaction/compactionLog/")
        flip(path, 95)
        lost = min((root / "compaction" / "compactionCq").rglob("0" * 20))
        lost.write_bytes(b"")


@pytest.mark.parametrize("name", ["identity", "run", "promise", "checkpoint"])
def test_small_files_without_which_a_node_does_not_start(tmp_path: Path, name: str) -> None:
    """Whole, damaged, lost: verify names the file."""
    ours = sample()
    root = ours.write(tmp_path)
    put(root / "twinlog" / "identity", crc32c(b"\x80").to_bytes(4, "big") + b"\x80")
    for other, size in (("run", 4096), ("promise", 32768), ("checkpoint", 4096)):
        put(root / "twinlog" / other, slot(b"\x80", 1).ljust(2 * size, b"\0"))
    assert verify(StoreReader(root)).findings == []
    flip(root / "twinlog" / name, 3)
    for _ in range(2):
        [found] = verify(StoreReader(root)).findings
        assert (found.grade, found.file) == (Grade.DAMAGE, f"twinlog/{name}")
        (root / "twinlog" / name).unlink(missing_ok=True)


def test_a_store_of_ours_that_lost_its_batch_index(tmp_path: Path) -> None:
    """It is not taken for RocketMQ's, whose logs need none."""
    ours = sample()
    root = ours.write(tmp_path, flushed=ours.end)
    put(root / "twinlog" / "identity", crc32c(b"\x80").to_bytes(4, "big") + b"\x80")
    for path in (root / "twinlog" / "batches").iterdir():
        path.unlink()
    with StoreReader(root) as store:
        assert store.ours
        assert verify(store).damaged


def test_the_name_of_a_bad_index_entry_counts_bad_ones_before_it(tmp_path: Path) -> None:
    """The byte in the index file, with another bad entry in front."""
    ours = sample()
    root = ours.write(tmp_path, flushed=ours.end)
    for number in (2, 5):
        flip(root / "twinlog" / "batches" / FIRST, 48 * number + 20)
    found = verify(StoreReader(root)).findings
    assert [f.position for f in found] == [96, 240]


def test_files_that_retention_takes_are_read_to_the_end(tmp_path: Path) -> None:
    """Held from the opening on; queue files that go are no error."""
    ours = sample()
    root = ours.write(tmp_path)
    with StoreReader(root) as store:
        for path in ("commitlog", "twinlog/batches", "consumequeue/t/0"):
            (root / path / FIRST).unlink()
        assert len(list(store.records())) == sum(entry.count for entry in ours.entries)
        verdict = verify(store)
    assert not verdict.damaged
    assert not verdict.unreadable


def test_a_file_that_goes_while_the_folder_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log begins with the next one then."""
    root = sample().write(tmp_path)
    view = files.FileSeries.view

    def late(self: files.FileSeries, file: files.LogFile) -> memoryview:
        (root / "commitlog" / FIRST).unlink(missing_ok=True)
        return view(self, file)

    monkeypatch.setattr(files.FileSeries, "view", late)
    assert StoreReader(root).series.start == SEGMENT


def test_few_files_are_mapped_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of 100,000 queues has more files than a process may map."""
    ours = Ours()
    for number in range(40):
        ours.batch(b"x", queue=number)
    root = ours.write(tmp_path)
    monkeypatch.setattr(files, "MAPPED_MAX", 3)
    with StoreReader(root) as store:
        assert verify(store).findings == []
        held = [queue for queue in store.stored_queues.values() if vars(queue)["_series"]._views]
        assert len(held) <= 3


def test_compare_of_what_cannot_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A lost file is no difference; one behind it still is."""
    ours = sample()
    one, two = ours.write(tmp_path / "one"), ours.write(tmp_path / "two")
    (two / "commitlog" / MIDDLE).unlink()
    found = compare(StoreReader(one), StoreReader(two))
    assert (found.difference, found.unread, found.equal_to) == (None, SEGMENT, SEGMENT)
    assert main(["log", "compare", str(one), str(two)], {}) == 2
    flip(two / "commitlog" / LAST, 30)
    found = compare(StoreReader(one, raw=True), StoreReader(two, raw=True))
    assert (found.difference, found.unread) == (2 * SEGMENT + 30, SEGMENT)
    assert main(["log", "compare", str(one), str(two)], {}) in (1, 2)
    capsys.readouterr()


def test_a_record_of_any_size_is_found_by_a_byte_of_it(tmp_path: Path) -> None:
    """RocketMQ's ``maxMessageSize`` can be set to more than ours is."""
    data = encode("t", 0, bytes(5 << 20), log_offset=0, queue_offset=0, store_timestamp=1)
    put(tmp_path / "commitlog" / file_name(0), data.ljust(6 << 20, b"\0"))
    record = by_offset(StoreReader(tmp_path), len(data) - 3)
    assert record is not None
    assert record.size == len(data)


def test_times_and_texts_that_nobody_meant(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A year beyond 9999, line ends in keys, names that are no UTF-8: printed, one row each."""
    said = {"KEYS": "a\nb\x1b[31m", "TAGS": "t\ty"}
    data = encode("t", 0, b"x", properties=said, log_offset=0, store_timestamp=1 << 62)
    put(tmp_path / "commitlog" / file_name(0), data.ljust(4096, b"\0"))
    name = os.fsdecode(b"\xff\xfe")
    put(tmp_path / "consumequeue" / name / "0" / file_name(0), bytes(20))
    for output in ("table", "tsv", "json", "jsonl", "name"):
        assert main(["log", "dump", str(tmp_path), "-o", output], {}) == 0
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        if output == "table":
            assert len(shown.splitlines()) == 2
        assert main(["log", "info", str(tmp_path), "--queues", "-o", output], {}) == 0
        assert "xff" in capsys.readouterr().out.replace("udc", "x") or output in ("name", "jsonl")


def test_a_batch_with_a_made_up_crc_does_not_hang_the_reader(tmp_path: Path) -> None:
    """Zeros that a batch index calls records: an error with its place."""
    ours = Ours()
    ours.batch(b"x")
    at = len(ours.log)
    ours.log += bytes(200)
    ours.entries.append(BatchEntry(at, 200, 2, 1, crc32c(bytes(200)), 0, 0, 0))
    with StoreReader(ours.write(tmp_path)) as store, pytest.raises(CorruptionError):
        list(store.pieces(0, ours.end - 1))


def test_a_missing_folder_of_the_log_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Exit 66, not 64: the call is right, the disk is not mounted."""
    root = sample().write(tmp_path)
    put(root / "twinlog" / "folders", b"../gone\n")
    assert main(["log", "verify", str(root)], {}) == 66
    put(root / "twinlog" / "folders", b"\xff\xfe")
    assert main(["log", "verify", str(root)], {}) == 65
    capsys.readouterr()


def test_a_light_queue_that_was_lost_is_told_and_shown(tmp_path: Path) -> None:
    """Its entries follow from the log, as those of all queues do; nothing said so."""
    root = unpack("08-lmq", tmp_path)
    folder = min(root.glob("consumequeue/%LMQ%*"))
    with StoreReader(root) as store:
        queue = store.queue(folder.name, 0)
        assert queue is not None
        wanted = list(queue.entries())
    shutil.rmtree(folder)
    put(root / "abort", b"")
    with StoreReader(root) as store:
        queue = store.queue(folder.name, 0)
        assert queue is not None
        assert [entry.log_offset for entry in queue.entries(0)] == [e.log_offset for e in wanted]
        [found] = verify(store).findings
    assert found.file == f"consumequeue/{folder.name}/0"
    assert found.what == f"{len(wanted)} records of the log have no entry"


@pytest.mark.parametrize("folder", ["consumequeue", "batchconsumequeue"])
def test_entries_that_a_running_node_adds_are_no_damage(tmp_path: Path, folder: str) -> None:
    """Files grow after they were opened; what is there then follows an entry that is good."""
    fields = (0, 100, 0) if folder == "consumequeue" else (0, 100, 0, 1, 0, 1, -1, 0)
    box = struct.Struct(">qiq" if folder == "consumequeue" else ">qiqqqhii")
    path = tmp_path / folder / "t" / "0" / FIRST
    put(path, box.pack(*fields).ljust(40 * box.size, b"\0"))
    queue = load_queues(tmp_path)["t", 0]
    with path.open("r+b") as opened:
        opened.write(box.pack(*fields) * 3)
    assert queue.broken() is None
    with path.open("r+b") as opened:
        opened.seek(box.size)
        opened.write(bytes(box.size))
    broken = queue.broken()
    assert broken is not None
    assert (broken[0], broken[1], broken[3]) == (FIRST, box.size, True)


def test_an_index_file_of_one_slot_with_a_large_count(tmp_path: Path) -> None:
    """The header names cells that the file cannot hold."""
    root = unpack("01-basic", tmp_path)
    put(root / "index" / "20000101000000000", bytes(36) + struct.pack(">i", 9) + bytes(84))
    found = [f.file for f in verify(StoreReader(root)).findings]
    assert found == ["index/20000101000000000"]
