"""compare: the first record that differs, and why; lag and retention are no difference."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.stores.golden import unpack
from tests.stores.sample import Ours
from twinlog.errors import UsageError
from twinlog.spark.engine.engine import PlainEngine
from twinlog.spark.engine.report import Report, Verdict
from twinlog.spark.jobs.verify.compare import CompareSettings, run
from twinlog.store.reader import StoreReader
from twinlog.store.verify.compare import compare


def store(root: Path, *, epochs: tuple[int, ...] = (1, 2), batches: int = 20) -> Path:
    """A store of ours."""
    made = Ours()
    for epoch in epochs:
        made.open_epoch(epoch)
        for number in range(batches):
            made.batch(b"x" * 100, b"%d" % number, queue=number % 2)
    made.write(root)
    return root


def compared(*paths: Path) -> Report:
    """The report, cut small."""
    return run(PlainEngine(), CompareSettings(paths, 3000))


def test_equal_copies(tmp_path: Path) -> None:
    """The same bytes: exit 0 and no record."""
    found = compared(store(tmp_path / "a"), store(tmp_path / "b"))
    assert found.verdict is Verdict.FINE
    assert "records" not in found.tables


def test_one_byte_differs(tmp_path: Path) -> None:
    """One flipped bit in a body: that record, that field, whose CRC holds, inside an epoch."""
    one, two = store(tmp_path / "a"), store(tmp_path / "b")
    path = two / "commitlog" / "00000000000000004096"
    data = bytearray(path.read_bytes())
    at = data.index(b"x" * 100) + 50
    data[at] ^= 4
    path.write_bytes(data)
    found = compared(one, two)
    with StoreReader(one) as first, StoreReader(two) as second:
        wanted = compare(first, second)
        record = next(r for r in first.records() if r.log_offset + r.size > 4096 + at)
    assert found.verdict is Verdict.NO
    assert found.tables["sides"].rows[0][4] == wanted.difference == 4096 + at
    good, bad = found.tables["records"].rows
    assert good[1] == bad[1] == record.log_offset
    assert (good[8], bad[8]) == ("holds", "does not hold")
    assert good[9] == "differs in body; inside an epoch: corruption"


def test_a_lagging_slave_is_no_difference(tmp_path: Path) -> None:
    """What only one side has is named and counted."""
    one, two = store(tmp_path / "a", batches=30), store(tmp_path / "b", epochs=(1,), batches=30)
    found = compared(one, two)
    assert found.verdict is Verdict.FINE
    row = found.tables["sides"].rows[0]
    assert int(str(row[6])) > 0 and row[7] == 0


def test_a_missed_cut_is_told_from_corruption(tmp_path: Path) -> None:
    """Bytes of another epoch behind the border: the missed cut is named."""
    one, two = store(tmp_path / "a", epochs=(1, 2)), store(tmp_path / "b", epochs=(1, 3))
    found = compared(one, two)
    assert found.verdict is Verdict.NO
    text = found.tables["records"].rows[0][9]
    assert str(text).endswith("epoch 2 here, epoch 3 there: a cut was missed")


@pytest.mark.parametrize("case", ["01-basic", "02-rollover", "13-trimmed", "03-crash"])
def test_ends_of_rocketmqs_stores(case: str, tmp_path: Path) -> None:
    """A clean log's end is found without reading all of it, and is the reader's."""
    root = unpack(case, tmp_path)
    with StoreReader(root) as held:
        assert compared(root, root).tables["sides"].rows[0][2:4] == (held.start, held.end)


def test_one_directory_is_not_enough(tmp_path: Path) -> None:
    """The sentence says what to add."""
    with pytest.raises(UsageError, match="two directories"):
        compared(store(tmp_path / "a"))


def test_stores_without_a_common_byte_are_not_called_equal(tmp_path: Path) -> None:
    """Retention left the old half here and the new half there: nothing was compared."""
    one = store(tmp_path / "a")
    two = tmp_path / "b"
    shutil.copytree(one, two)
    files = sorted(path.name for path in (one / "commitlog").iterdir())
    for root, names in ((one, files[:1]), (two, files[1:])):
        for name in names:
            (root / "commitlog" / name).unlink()
            (root / "twinlog" / "batches" / name).unlink()
    found = run(PlainEngine(), CompareSettings([one, two]))
    assert (found.verdict, found.fields["equal"]) == (Verdict.UNDECIDED, None)
    assert "have no byte in common" in found.head
