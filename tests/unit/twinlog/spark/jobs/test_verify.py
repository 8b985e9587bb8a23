"""verify: proven in parts or judged as a whole, the answer is the one of ``twinlog log verify``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.stores.golden import cases, unpack
from tests.stores.sample import Ours
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Report, Verdict
from twinlog.spark.jobs.verify.directory import Level, VerifySettings, run
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

PROVEN = {"01-basic", "02-rollover", "04-delay", "06-transaction", "10-ipv6", "16-defaults"}


def verified(root: Path, split_bytes: int = 20_000, level: Level = Level.FULL) -> Report:
    """The report on a store, cut small."""
    return run(PlainEngine(), VerifySettings(root, level, split_bytes))


@pytest.mark.parametrize("case", cases())
def test_a_store_of_rocketmq_is_judged_as_by_the_reference(case: str, tmp_path: Path) -> None:
    """Counts, ends and findings equal those of the plain reader, whatever the cut."""
    root = unpack(case, tmp_path)
    with StoreReader(root) as store:
        wanted = verify(store)
    found = verified(root)
    assert found.fields["start"] == wanted.start
    assert found.fields["end"] == wanted.end
    assert found.fields["records"] == wanted.records
    assert found.fields["queue_entries"] == wanted.entries
    rows = found.tables["findings"].rows
    assert [(row[0], row[1], row[3], row[5]) for row in rows] == [
        (f.grade.value, f.file, f.offset, f.what) for f in wanted.findings
    ][: len(rows)]
    assert (found.verdict is Verdict.DAMAGED) == wanted.damaged
    if case in PROVEN:
        assert found.fields["proven_in_parts"]


def ours(root: Path) -> Path:
    """A store of ours with three epochs over several files."""
    made = Ours()
    for epoch in (1, 2, 3):
        made.open_epoch(epoch)
        for number in range(20):
            made.batch(b"x" * 100, b"y" * (50 + number), queue=number % 2)
    made.write(root)
    return root


@pytest.mark.parametrize("split_bytes", [1, 3000, 1 << 20])
def test_a_store_of_ours_is_proven_in_parts(split_bytes: int, tmp_path: Path) -> None:
    """Batches, chains and queues hold; nothing had to be read twice."""
    root = ours(tmp_path)
    with StoreReader(root) as store:
        wanted = verify(store)
    found = verified(root, split_bytes)
    assert found.verdict is Verdict.FINE
    assert found.fields["proven_in_parts"]
    assert (found.fields["records"], found.fields["batches"]) == (wanted.records, wanted.batches)
    assert found.fields["end"] == wanted.end


def flip(path: Path, at: int) -> None:
    """Turn one bit of a file."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "at"),
    [
        ("commitlog/00000000000000004096", 700),
        ("twinlog/batches/00000000000000004096", 48 + 20),
        ("consumequeue/t/0/00000000000000000000", 45),
    ],
)
def test_a_planted_fault_is_found_where_it_is(name: str, at: int, tmp_path: Path) -> None:
    """One flipped bit: the same findings as the reference, and exit 65."""
    root = ours(tmp_path)
    flip(root / name, at)
    with StoreReader(root) as store:
        wanted = verify(store)
    found = verified(root, 3000)
    assert wanted.damaged
    assert found.verdict is Verdict.DAMAGED
    assert [row[1:4] for row in found.tables["findings"].rows] == [
        (f.file, f.position, f.offset) for f in wanted.findings
    ]


def test_a_bad_body_in_a_clean_store_of_rocketmq(tmp_path: Path) -> None:
    """One bit of a body: found by the range that holds it, told as the reference tells it."""
    root = unpack("02-rollover", tmp_path)
    with StoreReader(root) as store:
        record = next(r for r in store.records(200_000) if len(r.body) > 20)
    path = root / "commitlog" / f"{record.log_offset // 65_536 * 65_536:020d}"
    flip(path, record.log_offset % 65_536 + 95)
    with StoreReader(root) as store:
        wanted = verify(store)
    found = verified(root)
    assert found.verdict is Verdict.DAMAGED
    assert [row[3] for row in found.tables["findings"].rows] == [f.offset for f in wanted.findings]
    assert verified(root, level=Level.STRUCTURE).fields["proven_in_parts"]
    assert not verified(root, level=Level.CRC).fields["proven_in_parts"]


def test_levels_look_at_less(tmp_path: Path) -> None:
    """A wrong body is no matter of structure; a wrong queue is no matter of CRCs."""
    root = unpack("01-basic", tmp_path)
    flip(next((root / "consumequeue").glob("Payments*/0/*")), 30)
    assert verified(root, level=Level.CRC).verdict is Verdict.FINE
    assert verified(root).verdict is Verdict.DAMAGED


@pytest.mark.parametrize("part", ["slot", "cell", "offset beyond the log"])
def test_a_fault_of_the_key_index_is_found(part: str, tmp_path: Path) -> None:
    """A flipped bit in a slot or a cell is named with its place, wherever the cell points to."""
    root = unpack("01-basic", tmp_path)
    path = next((root / "index").iterdir())
    data = path.read_bytes()
    slots = (len(data) - 40) // 84
    used = next(at for at in range(40, 40 + 4 * slots, 4) if any(data[at : at + 4]))
    cell = 40 + 4 * slots + 20 * 3
    last = 40 + 4 * slots + 20 * (int.from_bytes(data[36:40], "big") - 1)
    at = {"slot": used + 3, "cell": cell + 3, "offset beyond the log": last + 4}[part]
    flip(path, at)
    found = verified(root)
    assert found.verdict is Verdict.DAMAGED
    rows = found.tables["findings"].rows
    assert all(str(row[1]).startswith("index/") for row in rows)
    assert rows[0][2] in range(at - 20, at + 21)


def test_an_index_that_is_gone_is_said(tmp_path: Path) -> None:
    """It may have been switched off, so nobody can tell: the state says so, and counts the keys."""
    root = unpack("01-basic", tmp_path / "a")
    assert verified(root).fields["state"] == "sound"
    shutil.rmtree(root / "index")
    found = verified(root)
    assert (found.verdict, found.fields["state"]) == (Verdict.FINE, "sound; no key index")
    assert int(str(found.fields["keys_without_index"])) > 0
    ((grade, file, *_, what, _, _),) = found.tables["findings"].rows
    assert (grade, file) == ("note", "index")
    assert what == "no index file exists, though records have keys"
    assert verified(root, level=Level.CRC).fields["state"] == "sound"


def changes_of_an_index(root: Path) -> list[tuple[str, int, int]]:
    """One number in each part of two index files: (file, byte, bit)."""
    places: list[tuple[str, int, int]] = []
    for path in sorted((root / "index").iterdir())[:2]:
        data = path.read_bytes()
        slots = (len(data) - 40) // 84
        used = next(at for at in range(40, 40 + 4 * slots, 4) if any(data[at : at + 4]))
        cells = 40 + 4 * slots
        last = int.from_bytes(data[36:40], "big") - 1
        parts = (0, 8, 16, 24, 32, 36, used, cells + 20, cells + 24, cells + 32, cells + 20 * last)
        places += [(path.name, at + 3, 1) for at in parts]
    return places


def test_a_job_and_the_command_say_the_same_of_an_index(tmp_path: Path) -> None:
    """Whatever number of whatever file is another: the same findings, word for word."""
    root = unpack("01-basic", tmp_path)
    seen = set[str]()
    for name, at, bit in changes_of_an_index(root):
        path = root / "index" / name
        data = bytearray(path.read_bytes())
        path.write_bytes(data[:at] + bytes([data[at] ^ bit]) + data[at + 1 :])
        with StoreReader(root) as store:
            wanted = [(f.file, f.position, f.what) for f in verify(store).findings]
        rows = verified(root).tables["findings"].rows
        assert [(row[1], row[2], row[5]) for row in rows] == wanted
        seen |= {what.split()[0] for _, _, what in wanted}
        path.write_bytes(data)
    assert len(seen) >= 3, "several rules were broken"


@pytest.mark.parametrize("count", [0, 1])
def test_an_index_file_that_counts_no_cell_is_found(count: int, tmp_path: Path) -> None:
    """It used to be left out, and with it every cell."""
    root = unpack("01-basic", tmp_path)
    path, *others = sorted((root / "index").iterdir())
    for other in others:
        other.unlink()
    data = bytearray(path.read_bytes())
    data[36:40] = count.to_bytes(4, "big")
    path.write_bytes(data)
    found = verified(root)
    assert found.verdict is Verdict.DAMAGED
    assert (f"index/{path.name}", 36) in [row[1:3] for row in found.tables["findings"].rows]
    path.write_bytes(bytes(40) + data[40:])
    assert verified(root).verdict is Verdict.DAMAGED
    path.write_bytes(bytes(len(data)))
    assert verified(root).fields["state"] == "sound; no key index"


def test_an_empty_store_is_sound(tmp_path: Path) -> None:
    """A log without a file holds nothing wrong."""
    (tmp_path / "commitlog").mkdir()
    found = verified(tmp_path)
    assert found.verdict is Verdict.FINE
    assert found.fields["records"] == 0
