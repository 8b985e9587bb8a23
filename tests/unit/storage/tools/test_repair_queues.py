"""A damaged entry is planned by ``log repair`` whatever queue it lies in, and wherever.

Queues of a topic, light queues and batch queues; below the newest snapshot, where a start believes
the files, and above it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage.disk.disk import RealDisk
from storage.tools.recover import disk_at
from storage.tools.repair import Kind, carry_out, plan_repair
from tests.stores.golden import unpack
from tests.stores.histories.history import BatchHistory
from tests.stores.sample import flip
from tests.stores.workbench import master, run, settle
from twinlog.format.log_file import file_name
from twinlog.store.damage import Grade
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

FIRST = file_name(0)
QUEUES = {
    "consumequeue/flights/1": 20,
    "consumequeue/%LMQ%a/0": 20,
    "batchconsumequeue/together/1": 46,
}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a snapshot in its middle that was killed, all of its queues written."""
    root = tmp_path_factory.mktemp("killed")
    history = BatchHistory(RealDisk(root))  # type: ignore[arg-type]  # pyright: ignore
    store = history.store = master(history.disk)
    for number in (1, 2, 4, 5):
        history.step(number)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job(force=True))
    for number in (7, 8, 10, 11):
        history.step(number)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    store.close(clean=False)
    return root


@pytest.mark.parametrize("queue", QUEUES)
@pytest.mark.parametrize(("number", "byte"), [(1, 0), (1, 7), (-2, 0), (-2, 7), (-2, 15)])
def test_a_damaged_entry_is_planned_and_mended(
    killed: Path, tmp_path: Path, queue: str, number: int, byte: int
) -> None:
    """Named at its place, and gone after the repair."""
    root, size = shutil.copytree(killed, tmp_path / "store"), QUEUES[queue]
    path = root / queue / FIRST
    whole = path.read_bytes()
    count = -(-len(whole.rstrip(b"\0")) // size)
    at = number % count * size
    flip(path, at + byte, bit=0x80)
    with StoreReader(root) as reader:
        wrong = [f for f in verify(reader).findings if f.grade is Grade.DAMAGE]
        assert (f"{queue}/{FIRST}", at) in [(f.file, f.position) for f in wrong]
        plan = plan_repair(reader)
        assert [a.path for a in plan.actions if a.kind is Kind.QUEUE] == [queue]
        assert plan.lost == ()
        carry_out(disk_at(root), plan, reader=reader, wall_ms=1)
    assert path.read_bytes() == whole
    with StoreReader(root) as reader:
        assert not verify(reader).damaged


def test_a_queue_whose_records_disagree_is_left_as_it_is(tmp_path: Path) -> None:
    """A record's place flipped: built from the log the queue would lack all that follows it."""
    root = unpack("05-timer", tmp_path)
    queue = root / "consumequeue/Timer_20c5e9e0/0" / FIRST
    held = queue.read_bytes()
    flip(root / "commitlog" / FIRST, 14782 + 23)
    with StoreReader(root) as reader:
        repair = plan_repair(reader)
        carry_out(RealDisk(root), repair, reader=reader, wall_ms=1)
    assert [action.kind for action in repair.actions] == []
    [lost] = repair.lost
    assert lost.what.endswith("out of order: left as it is")
    assert queue.read_bytes() == held


def test_a_queue_file_that_is_too_long(tmp_path: Path) -> None:
    """It does not tell the size of all: it is named, and built anew with that of the others."""
    root = unpack("01-basic", tmp_path)
    before = {p: p.read_bytes() for p in (root / "consumequeue").rglob("0*") if p.is_file()}
    path = min(before)
    path.write_bytes(before[path] + bytes(20))
    with StoreReader(root) as reader:
        [found] = verify(reader).findings
        assert found.what == "it has 2020 bytes, other queue files 2000; RocketMQ would not start"
        carry_out(RealDisk(root), plan_repair(reader), reader=reader, wall_ms=1)
    assert {p: p.read_bytes() for p in before} == before
