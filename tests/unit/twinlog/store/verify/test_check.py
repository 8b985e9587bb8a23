"""`verify` finds each kind of damage where it is; `compare` finds the first byte that differs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.stores.golden import unpack
from tests.stores.sample import SEGMENT, Ours, flip, put, sample
from twinlog.format.batch_index import KIND_EPOCH
from twinlog.format.log_file import file_name
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH
from twinlog.kernels import crc32c
from twinlog.store.damage import Grade
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import Finding, verify
from twinlog.store.verify.compare import compare


def findings(root: Path) -> list[Finding]:
    return verify(StoreReader(root)).findings


def test_a_sound_directory(tmp_path: Path) -> None:
    """Everything is counted, nothing is found."""
    ours = sample()
    verdict = verify(StoreReader(ours.write(tmp_path)))
    assert (verdict.findings, verdict.damaged, verdict.unreadable) == ([], False, False)
    assert verdict.records == sum(entry.count for entry in ours.entries)
    assert verdict.batches == len(ours.entries)
    assert verdict.entries == verdict.records


@pytest.mark.parametrize("at", [2, 10, 21, 33, 60, 100, 388])
def test_any_flipped_bit_of_a_batch_is_found(tmp_path: Path, at: int) -> None:
    """Size, CRC, queue offset, log offset, host, body, properties: the batch's CRC covers all."""
    ours = sample()
    bad = ours.entries[5]
    assert at < bad.length
    ours.write(tmp_path, flushed=ours.end)
    flip(tmp_path / "commitlog" / file_name(0), bad.start + at)
    [found] = [f for f in findings(tmp_path) if f.grade is Grade.DAMAGE]
    assert found.file == f"commitlog/{file_name(0)}"
    assert (found.position, found.offset, found.length) == (bad.start, bad.start, bad.length)
    assert str(bad.end) in found.readable


def test_a_flipped_bit_of_the_index_is_found(tmp_path: Path) -> None:
    """The finding names the index file and the entry's place in it."""
    ours = sample()
    ours.write(tmp_path, flushed=ours.end)
    flip(tmp_path / "twinlog" / "batches" / file_name(0), 48 * 3 + 20)
    [found] = findings(tmp_path)
    assert (found.grade, found.file) == (Grade.DAMAGE, f"twinlog/batches/{file_name(0)}")
    assert (found.position, found.offset) == (48 * 3, ours.entries[3].start)


def test_an_entry_that_miscounts_its_records(tmp_path: Path) -> None:
    """A good CRC of the entry does not make it true."""
    ours = sample()
    entry = ours.entries[2]
    ours.entries[2] = type(entry)(
        entry.start, entry.length, 9, 1, entry.crc, entry.store_timestamp, 0, entry.flushed
    )
    ours.write(tmp_path)
    found, chain = findings(tmp_path)
    assert "says it was" in chain.what
    assert "says 9 records" in found.what
    assert found.position == 96


def test_an_epoch_that_falls(tmp_path: Path) -> None:
    """Epochs only rise."""
    ours = sample()
    ours.open_epoch(1)
    [found] = findings(ours.write(tmp_path))
    assert found.what == "epoch 1 follows epoch 2"


def test_a_lost_or_changed_index_entry_breaks_the_chain(tmp_path: Path) -> None:
    """Two batches written as one entry: each CRC is good, the next file's head tells."""
    ours = sample()
    one, two = ours.entries[1], ours.entries[2]
    data = bytes(ours.log[one.start : two.end])
    span = (one.start, len(data), one.count + two.count, 1, crc32c(data))
    ours.entries[1:3] = [type(one)(*span, two.store_timestamp, 0, 0)]
    [found] = findings(ours.write(tmp_path))
    assert (found.grade, found.offset) == (Grade.DAMAGE, SEGMENT)
    assert file_name(0) in found.what


@pytest.mark.parametrize("body", [b"epoch", b"\x80", b"\xc1", b""])
def test_a_file_must_begin_with_an_epoch_record(tmp_path: Path, body: bytes) -> None:
    """A record of that topic whose body says nothing is none."""
    ours = Ours()
    ours.append([(SYSTEM_TOPIC_EPOCH, 0, body)], KIND_EPOCH)
    ours.batch(b"x")
    [found] = findings(ours.write(tmp_path))
    assert "does not begin with an epoch record" in found.what


@pytest.mark.parametrize("clean", [True, False])
def test_queue_entries_are_compared_with_the_log(tmp_path: Path, clean: bool) -> None:
    """A changed entry is found at its place; a missing one is only a note."""
    ours = sample()
    del ours.queues["t", 1][-40:]
    ours.write(tmp_path, clean=clean)
    flip(tmp_path / "consumequeue" / "t" / "0" / file_name(0), 60 + 7)
    found = findings(tmp_path)
    wrong = [f for f in found if f.grade is Grade.DAMAGE]
    assert [(f.file, f.position) for f in wrong] == [(f"consumequeue/t/0/{file_name(0)}", 60)]
    assert [f.what for f in found if f.grade is Grade.NOTE] == [
        "2 records of the log have no entry"
    ]


def test_bytes_behind_the_end_are_a_note(tmp_path: Path) -> None:
    """A receive that never finished hurts nobody."""
    ours = sample()
    ours.entries.pop()
    for held in ours.queues.values():
        del held[-20:]
    ours.write(tmp_path, clean=False)
    assert {f.grade for f in findings(tmp_path)} == {Grade.NOTE}


def test_a_gap_between_files_and_a_stray(tmp_path: Path) -> None:
    """A missing file in the middle is damage; a foreign file is a note."""
    ours = sample()
    ours.write(tmp_path)
    (tmp_path / "commitlog" / file_name(SEGMENT)).unlink()
    put(tmp_path / "commitlog" / "copy.tmp", b"x")
    found = findings(tmp_path)
    assert any(f.offset == SEGMENT and "gap" in f.what for f in found)
    assert any(f.file == "commitlog/copy.tmp" and f.grade is Grade.NOTE for f in found)


def test_a_file_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes are not judged; the others are."""
    ours = sample()
    ours.write(tmp_path)
    bad = tmp_path / "commitlog" / file_name(SEGMENT)
    opened = Path.open

    def refuse(self: Path, *arguments: str) -> object:
        if self == bad:
            raise PermissionError(13, "Permission denied", str(self))
        return opened(self, *arguments)

    monkeypatch.setattr(Path, "open", refuse)
    verdict = verify(StoreReader(tmp_path))
    assert verdict.unreadable
    [found] = [f for f in verdict.findings if f.grade is Grade.UNREADABLE]
    assert (found.file, found.offset) == (f"commitlog/{bad.name}", SEGMENT)


def test_a_rocketmq_store_with_a_flipped_bit(tmp_path: Path) -> None:
    """In the middle of a cleanly stopped store: damage of one record, and the rest is read."""
    root = unpack("02-rollover", tmp_path)
    store = StoreReader(root)
    record = list(store.records())[700]
    store.close()
    name = file_name(record.log_offset // 65536 * 65536)
    for at, length in [(100, record.size), (1, record.size)]:
        flip(root / "commitlog" / name, record.log_offset % 65536 + at)
        verdict = verify(StoreReader(root))
        [found] = verdict.findings
        assert (found.file, found.offset, found.length) == (
            f"commitlog/{name}",
            record.log_offset,
            length,
        )
        assert verdict.records == 1399
        flip(root / "commitlog" / name, record.log_offset % 65536 + at)
    assert verify(StoreReader(root)).findings == []


@pytest.mark.parametrize(
    ("case", "queue", "names"),
    [
        ("03-crash", "Crash_e324cba3/3", (2800, 6400)),
        ("02-rollover", "Roll2_fea46574/0", (200, 400)),
    ],
)
def test_queue_files_that_changed_places(
    tmp_path: Path, case: str, queue: str, names: tuple[int, int]
) -> None:
    """Each entry leads to a record of its queue; but RocketMQ only ever appends them in order."""
    root = unpack(case, tmp_path)
    first, second = (root / "consumequeue" / queue / file_name(name) for name in names)
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    found = findings(root)
    assert {(f.file.rpartition("/")[0], f.grade) for f in found} == {
        (f"consumequeue/{queue}", Grade.DAMAGE)
    }
    assert all(f.what.endswith("is out of order") for f in found)


def test_a_record_that_names_another_offset(tmp_path: Path) -> None:
    """No checksum of RocketMQ covers the header; the offset is compared with the place."""
    root = unpack("01-basic", tmp_path)
    flip(root / "commitlog" / file_name(0), 284 + 35)
    [found] = findings(root)
    assert (found.offset, found.length) == (284, 292)


def test_compare(tmp_path: Path) -> None:
    """Equal up to the shorter end; else the first differing byte."""
    ours = sample()
    one = StoreReader(ours.write(tmp_path / "one"))
    shorter = sample()
    cut = shorter.entries.pop()
    del shorter.log[cut.start :]
    two = StoreReader(shorter.write(tmp_path / "two"))
    found = compare(one, two)
    assert (found.difference, found.equal_to) == (None, cut.start)
    assert (found.end_first, found.end_second) == (ours.end, cut.start)
    assert found.consistent == cut.start
    other = sample()
    struct.pack_into(">q", other.log, 5000, -1)
    other.write(tmp_path / "three")
    raw = compare(StoreReader(tmp_path / "three", raw=True), one)
    want = next(i for i in range(5000, 5008) if other.log[i] != ours.log[i])
    assert raw.difference == raw.equal_to == want


def test_compare_names_histories_that_conflict(tmp_path: Path) -> None:
    """Epoch 2 from two starts: logs of two groups, of which nothing can be promised equal."""
    stores: list[StoreReader] = []
    for name, batches in (("one", 1), ("two", 2)):
        log = Ours()
        log.open_epoch(1)
        for _ in range(batches):
            log.batch(b"a")
        log.open_epoch(2)
        stores.append(StoreReader(log.write(tmp_path / name)))
    starts = [store.kept_epochs()[1][1] for store in stores]
    found = compare(*stores)
    assert found.consistent is None
    assert found.conflict == f"epoch 2 begins at {starts[0]} and at {starts[1]}"
    assert found.difference is not None
