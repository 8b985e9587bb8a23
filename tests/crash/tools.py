"""Tools that change a directory, and small directories they have to change: for crashing them.

Each `Tool` has a directory as it lies before, says what it does to it, and looks at what a crash
left: the tool is run again, as its user would, and then the directory is as it should be. Readers
need real files; they see the directory in a folder of their own, the tool works on the fake disk.

Not here: which calls to die in (`tests.crash.rotation`), tools without a crash (``tests/unit``).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest

from storage import Store
from storage.marks.identity import Who
from storage.tools import adopt, handover, repair
from storage.tools.recover import identity_of, recover, settings_of
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.stores.histories.history import lose
from tests.stores.unsettled import OPEN, unsettled
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    WHO,
    append,
    fill,
    flip,
    log_records,
    master,
    run,
    section,
    settle,
)
from twinlog.format.log_file import file_name
from twinlog.store.damage import Grade
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

ADOPTER = Who("adopted", "g1", "n1")
Bodies = list[tuple[int, bytes]]


def to_files(disk: FakeDisk) -> Path:
    """Return a new folder with what is on the disk; the caller removes it."""
    root = Path(mkdtemp())
    for path in disk._now.files:
        target = root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(disk.read(path, "test"))
    for path in disk._now.directories:
        (root / path).mkdir(parents=True, exist_ok=True)
    return root


def from_files(root: Path) -> FakeDisk:
    """Return a disk with what is in a folder, all of it durable."""
    disk = FakeDisk(page_size=512)
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_dir():
            disk.make_dir(name, "test")
        else:
            disk.create_sparse(name, 0, "test")
            disk.write_at(name, 0, path.read_bytes(), "test")
    disk.sync_all("test")
    disk.faults.calls = 0
    return disk


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool and its directory.

    Attributes:
        before: The directory, as files.
        bodies: (log offset, record) that must be there after it.
        work: Runs the tool on a disk whose content lies in the folder as well.
        after: Looks at the disk when the tool is done; fails when it is not as it should be.
    """

    before: Path
    bodies: Bodies
    work: Callable[[FakeDisk, Path], None]
    after: Callable[[FakeDisk, Bodies], None]


@cache
def tools() -> dict[str, Tool]:
    """Every tool, by name."""
    return {
        "adopt": Tool(*_adoptable(), _adopt, _is_adopted),
        "repair-ours": Tool(*_damaged(), _repair, _is_ours),
        "repair-rocketmq": Tool(*_torn(), _repair, _is_sound),
        "recover": Tool(*_killed(), _recover, _is_ours),
        "handover": Tool(*_open(), _hand_over, _is_handed_over),
    }


def _kept(store: Store) -> Bodies:
    return [(found.log_offset, found.body) for found in log_records(store)]


def _adoptable() -> tuple[Path, Bodies]:
    """A stopped store without what is ours: RocketMQ's, as far as anybody can tell."""
    disk = FakeDisk(page_size=512)
    store = master(disk)
    fill(store, 20, records=5)
    settle(store)
    kept = _kept(store)
    store.close(clean=True)
    root = to_files(disk)
    shutil.rmtree(root / "twinlog")
    return root, kept


def _damaged() -> tuple[Path, Bodies]:
    """A killed store: a sealed batch index lost, a queue lost, a torn tail."""
    disk = FakeDisk(page_size=512)
    store = master(disk)
    for number in range(30):
        append(store, section(5, queue=number % 4, mark=number))
    settle(store)
    run(store, store.jobs.snapshot_job(force=True))
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    kept, end = _kept(store), store.end
    append(store, section(5))
    append(store, section(5))
    store.close(clean=False)
    size = SETTINGS.segment_size
    flip(disk, f"commitlog/{file_name(end - end % size)}", end % size + 70)
    disk.remove(f"consumequeue/{TOPIC}/1/{file_name(0)}", "test")
    disk.remove(f"twinlog/batches/{file_name(0)}", "test")
    return to_files(disk), kept


def _torn() -> tuple[Path, Bodies]:
    """RocketMQ's, as far as anybody can tell: a queue and the key index lost, a torn tail."""
    root, kept = _adoptable()
    with StoreReader(root) as reader:
        end = reader.end
    name, size = file_name(end - end % SETTINGS.segment_size), SETTINGS.segment_size
    with (root / "commitlog" / name).open("r+b") as log:
        log.seek(kept[-1][0] % size)
        torn = log.read(100)
        log.seek(end % size)
        log.write(torn)
    (root / "abort").touch()
    shutil.rmtree(root / "consumequeue" / TOPIC / "1")
    for path in (root / "index").iterdir():
        path.write_bytes(b"torn")
    return root, kept


def _killed() -> tuple[Path, Bodies]:
    """A killed store with a tail that no flush covers, and records beyond confirm."""
    disk = FakeDisk(page_size=512)
    store = master(disk)
    fill(store, 12)
    settle(store)
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    kept = _kept(store)
    fill(store, 4)
    store.close(clean=False)
    return to_files(disk), kept


def _open() -> tuple[Path, Bodies]:
    """A stopped store whose groups have settled messages behind others that they have not."""
    disk = FakeDisk(page_size=512)
    store = unsettled(disk)
    kept = _kept(store)
    store.close(clean=True)
    return to_files(disk), kept


def _adopt(disk: FakeDisk, root: Path) -> None:
    with StoreReader(root) as ours, StoreReader(root, rocketmq=True) as reader:
        value = adopt.plan_adoption(reader, ours)
        adopt.carry_out(disk, value, ADOPTER, reader=reader, ours=ours)


def _repair(disk: FakeDisk, root: Path) -> None:
    with StoreReader(root) as reader:
        plan = repair.plan_repair(reader)
        if plan.actions:
            repair.carry_out(disk, plan, reader=reader, wall_ms=3000)
        elif reader.ours:
            recover(disk, wall_ms=3000)


def _hand_over(disk: FakeDisk, root: Path) -> None:
    with StoreReader(root) as reader:
        plan = handover.plan_handover(disk, reader)
    if plan.copied or plan.unfinished:
        handover.carry_out(disk, wall_ms=3000)


def _recover(disk: FakeDisk, root: Path) -> None:
    recover(disk, wall_ms=3000)


def _is_adopted(disk: FakeDisk, kept: Bodies) -> None:
    _holds(disk, kept, ADOPTER)
    store = Store.open(disk, settings_of(identity_of(disk)), ADOPTER, wall_ms=4000)
    assert store.damage is None
    assert store.reads.topics() == {TOPIC: 4}
    assert store.epochs[0].epoch == 0
    store.close(clean=True)


def _is_handed_over(disk: FakeDisk, kept: Bodies) -> None:
    _is_sound(disk, kept)
    root = to_files(disk)
    try:
        with StoreReader(root) as reader:
            assert handover.plan_handover(disk, reader).copied == ()
            copies = [one for one in reader.records() if one.topic == "%RETRY%billing"]
            assert [int(one.body.split(b"/")[1]) for one in copies] == [*OPEN]
            assert reader.clean
    finally:
        shutil.rmtree(root)


def _is_ours(disk: FakeDisk, kept: Bodies) -> None:
    _holds(disk, kept, WHO)


def _holds(disk: FakeDisk, kept: Bodies, who: Who) -> None:
    _is_sound(disk, kept)
    store = Store.open(disk, settings_of(identity_of(disk)), who, wall_ms=4000)
    assert store.damage is None
    held = dict(_kept(store))
    assert [(at, held.get(at)) for at, _ in kept] == kept
    store.close(clean=True)


def _is_sound(disk: FakeDisk, kept: Bodies) -> None:
    root = to_files(disk)
    try:
        with StoreReader(root) as reader:
            assert [one for one in verify(reader).findings if one.grade is Grade.DAMAGE] == []
            held = {found.log_offset: found.body for found in reader.records()}
            assert [(at, held.get(at)) for at, _ in kept] == kept
    finally:
        shutil.rmtree(root)


NAMES = ("adopt", "repair-ours", "repair-rocketmq", "recover", "handover")


def calls(tool: Tool) -> int:
    """Disk calls of the tool when nothing happens to it; it does its work."""
    disk = from_files(tool.before)
    tool.work(disk, tool.before)
    count = disk.faults.calls
    disk.faults.asleep = True
    tool.after(disk, tool.bodies)
    return count


def crash(tool: Tool, number: int, kind: str) -> None:
    """Die in call ``number``, lose something, run the tool again, and look."""
    again(tool, died(tool, number, kind))


def died(tool: Tool, number: int, kind: str) -> FakeDisk:
    """Return the disk of a run that died in call ``number`` and lost something."""
    disk = from_files(tool.before)
    disk.faults.crash(after=number)
    with pytest.raises(SimulatedCrash):
        tool.work(disk, tool.before)
    lose(disk, kind, number)
    return disk


def again(tool: Tool, disk: FakeDisk) -> None:
    """Run the tool once more, as its user would, and look."""
    root = to_files(disk)
    try:
        tool.work(disk, root)
    finally:
        shutil.rmtree(root)
    tool.after(disk, tool.bodies)
