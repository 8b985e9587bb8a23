"""Whatever happens to the files of a store, reading it never fails, loops or invents records.

Files are flipped, cut, filled with zeros or noise, removed; in ours and in RocketMQ's.
"""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.stores.golden import unpack
from tests.stores.sample import sample
from twinlog.errors import CorruptionError
from twinlog.store.reader import Record, Run, StoreReader
from twinlog.store.verify.check import verify
from twinlog.store.verify.compare import compare


@dataclass(frozen=True)
class Original:
    """An undamaged store and what it holds."""

    kind: str
    root: Path
    records: dict[int, Record]


@pytest.fixture(scope="module", params=["ours", "03-crash", "01-basic", "18-cqext", "09-batch"])
def original(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Original:
    kind: str = request.param
    root = tmp_path_factory.mktemp(kind)
    if kind == "ours":
        sample().write(root, clean=False, flushed=6000)
    else:
        root = unpack(kind, root)
    with StoreReader(root) as store:
        return Original(kind, root, {record.log_offset: record for record in store.records()})


def hurt(path: Path, how: str, at: int, noise: bytes) -> None:
    """Damage one file."""
    data = bytearray(path.read_bytes())
    at %= max(len(data), 1)
    match how:
        case "flip" if data:
            data[at] ^= 1 << noise[0] % 8
        case "cut":
            del data[at:]
        case "zero":
            data[at:] = bytes(len(data) - at)
        case "noise":
            data[at : at + len(noise)] = noise
        case "lengthen":
            data += noise * 20
        case _:
            path.unlink()
            return
    path.write_bytes(data)


def look_at_everything(root: Path, *, raw: bool) -> list[Record]:
    """Use every door of the reader; damage must come as findings, not as exceptions."""
    with StoreReader(root, raw=raw) as store:
        found = list(store.records())
        verify(store)
        compare(store, store)
        for queue in store.queues():
            list(queue.entries())
            list(queue.extensions())
            store.get(queue.topic, queue.queue, queue.min, 8)
            store.offset_by_time(queue.topic, queue.queue, 1795245430000)
            store.offset_by_time(queue.topic, queue.queue, 1795245430000, upper=True)
        store.find_key("Payments-bsuhf", "key-wye81")
        spans = [(p.offset, p.end) for p in store.pieces() if isinstance(p, Run)]
        assert spans == sorted(spans)
        assert all(store.start <= start < end <= store.end for start, end in spans)
        assert sum(record.size for record in found) == sum(end - start for start, end in spans)
        return found


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 10**6),
        st.sampled_from(["flip", "flip", "cut", "zero", "noise", "lengthen", "remove"]),
        st.integers(0, 10**7),
        st.binary(min_size=1, max_size=200),
    ),
    min_size=1,
    max_size=3,
)


@pytest.mark.slow
@given(CHANGES, st.booleans())
@settings(max_examples=12, deadline=None)
def test_no_damage_stops_the_reader(
    original: Original, changes: list[tuple[int, str, int, bytes]], raw: bool
) -> None:
    """And a record that comes from a proven batch of ours is one that was written."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "store"
        shutil.copytree(original.root, root)
        files = sorted(path for path in root.rglob("*") if path.is_file())
        for number, how, at, noise in changes:
            path = files[number % len(files)]
            if path.exists():
                hurt(path, how, at, noise)
        found = look_at_everything(root, raw=raw)
        proven = original.kind == "ours" and not raw and any(root.glob("twinlog/batches/*"))
        assert not proven or all(original.records.get(r.log_offset) == r for r in found)


def test_a_damaged_epoch_file(tmp_path: Path) -> None:
    """The backup is used; without one the damage is an error of its own."""
    root = unpack("12-controller-a", tmp_path)
    want = StoreReader(root).epochs()
    backup = root / "epochFileCheckpoint.bak"
    assert backup.exists()
    shutil.copy(root / "epochFileCheckpoint", backup)
    (root / "epochFileCheckpoint").write_bytes(b"3\n17\n1-0\n")
    assert StoreReader(root).epochs() == want
    backup.write_bytes(b"x")
    with pytest.raises(CorruptionError):
        StoreReader(root).epochs()
