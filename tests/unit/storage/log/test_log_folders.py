"""Log files in several folders: where new ones go, what a start refuses, what tools find."""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random

import pytest

from storage import Store
from storage.disk.disk import Disk, RealDisk
from storage.errors import DiskFull, LogFolder
from storage.log.log_folders import Folders, MultiFolderDisk, multi_folder_disk, noted, passed_over
from storage.marks.identity import Who
from storage.tools.adopt import carry_out, plan_adoption
from storage.tools.recover import disk_at, identity_of, recover, settings_of
from tests.fakes.disk import FakeDisk
from tests.stores.golden import manifest, unpack
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    WHO,
    append,
    bodies,
    fill,
    lead,
    master,
    run,
    section,
    settle,
    token,
)
from twinlog.errors import UsageError
from twinlog.format.log_file import file_name
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import verify

SIZE = SETTINGS.segment_size
THREE = Folders(("second", "third/logs"))


def opened(disk: Disk, epoch: int = 0) -> Store:
    """A store on ``disk``; as master of ``epoch`` if that is not 0."""
    if epoch:
        return master(disk, epoch=epoch)
    return Store.open(disk, SETTINGS, WHO, wall_ms=1000)


def filled(fake: FakeDisk, folders: Folders = THREE, sections: int = 60) -> Store:
    """A store of some files; every other one is made ahead of its need."""
    store = opened(MultiFolderDisk(fake, folders), 1)
    for number in range(sections):
        append(store, section(10, queue=number % 4, mark=number))
        if number % 20 < 10:
            run(store, store.jobs.prepare_job())
    settle(store)
    return store


def places(fake: FakeDisk) -> dict[int, str]:
    """Which folder holds the file of each number."""
    return {
        int(name) // SIZE: folder
        for folder in THREE.all
        for name in fake.list(folder)
        if name.isdigit()
    }


def test_new_files_take_turns_as_rocketmqs_do() -> None:
    """File n goes to sorted(folders)[n % 3], made ahead or not; all of them are one log."""
    fake = FakeDisk()
    store = filled(fake)
    found = places(fake)
    assert len(found) >= 6
    assert found == {n: ("commitlog", "second", "third/logs")[n % 3] for n in found}
    wanted = {queue: bodies(store, queue) for queue in range(4)}
    ends = (store.start, store.end)
    store.close(clean=True)
    assert fake.read("twinlog/folders", "test") == b"second\nthird/logs\n"
    for _ in range(2):
        again = opened(MultiFolderDisk(fake, THREE))
        assert (again.boot.damage, again.start, again.end) == (None, *ends)
        assert {queue: bodies(again, queue) for queue in range(4)} == wanted
        again.close(clean=False)


def test_a_folder_where_nothing_can_be_written_is_passed_over_at_a_start() -> None:
    """The store opens, and files go there once they can."""
    fake = FakeDisk()
    for folder in THREE.more:
        fake.make_dir(folder, "test")
    for _ in range(40):
        fake.faults.fail("open.folder", error=errno.EROFS)
    store = opened(MultiFolderDisk(fake, THREE), 1)
    fake.faults.fail("log.roll", error=errno.EACCES)
    at = 0
    while len(places(fake)) < 3:
        append(store, section(10, mark=at))
        at += 1
    assert set(places(fake)) - {"commitlog"}
    assert store.damage is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EPERM])
@pytest.mark.parametrize("op", ["prepare.create", "log.roll.create"])
def test_a_folder_without_room_is_passed_over(number: int, op: str) -> None:
    """The file goes to the next folder; with no room anywhere nothing is made."""
    fake = FakeDisk()
    store = opened(MultiFolderDisk(fake, THREE), 1)
    fake.faults.fail(op, error=number)
    at = 0
    while len(places(fake)) < 2:
        append(store, section(10, mark=at))
        if op == "prepare.create":
            run(store, store.jobs.prepare_job())
        at += 1
    assert not fake.faults.armed
    assert places(fake)[1] == "third/logs"
    for call in range(3):
        fake.faults.fail(op, after=call, error=number)
    spread = MultiFolderDisk(fake, THREE)
    path = f"commitlog/{file_name(90 * SIZE)}"
    with pytest.raises(DiskFull):
        spread.map(path, SIZE, op=op, create=True)
    assert 90 not in places(fake)
    assert set(passed_over(spread)) == {"commitlog", *THREE.more}
    spread.map(path, SIZE, op=op, create=True)
    assert len(passed_over(spread)) == 2, "not the one that took the file"


def test_a_folder_that_is_nearly_full_takes_no_file_while_others_have_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """86 % in use is too much; when all are that full, all are tried."""
    fake = FakeDisk()
    used = {"second": 86}

    def free(path: str = ".") -> tuple[int, int]:
        return (100 - used.get(path, 84)) << 30, 100 << 30

    monkeypatch.setattr(fake, "free_bytes", free)
    store = filled(fake)
    assert set(places(fake).values()) == {"commitlog", "third/logs"}
    used.update({"commitlog": 90, "third/logs": 99})
    assert MultiFolderDisk(fake, THREE).free_bytes() == (14 << 30, 100 << 30), (
        "the emptiest folder is the log's"
    )
    used["."] = 95
    assert MultiFolderDisk(fake, THREE).free_bytes() == (5 << 30, 100 << 30), (
        "but queues need room as well"
    )
    before = len(places(fake))
    fill(store, 60)
    assert len(places(fake)) >= before + 3
    assert "second" in places(fake).values()


def test_a_closed_folder_takes_no_file_and_may_be_left_out_once_it_is_empty() -> None:
    """Retention empties it; until then its files are part of the log."""
    fake = FakeDisk()
    filled(fake).close(clean=True)
    closed = Folders(THREE.more, frozenset({"second"}))
    store = opened(MultiFolderDisk(fake, closed), 2)
    had = {n for n, folder in places(fake).items() if folder == "second"}
    for number in range(60):
        append(store, section(10, mark=number), epoch=2)
    settle(store)
    assert {n for n, folder in places(fake).items() if folder == "second"} == had
    for _ in range(2):
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job(force=True))
        append(store, section(1), epoch=2)
        settle(store)
    without = Folders(("third/logs",))
    store.head.leave((max(had) + 1) * SIZE, store.confirm, 0.0)
    left = [one.start for one in store.head.left()]
    run(store, store.head.remove_job(left, erase=True))
    end = store.end
    store.close(clean=True)
    assert "second" not in places(fake).values()
    again = opened(MultiFolderDisk(fake, without))
    assert (again.boot.damage, again.end) == (None, end)
    again.close(clean=True)
    assert fake.read("twinlog/folders", "test") == b"third/logs\n"


def files_of(fake: FakeDisk) -> dict[str, bytes]:
    """What lies in the folders of the log, of its index and of snapshots."""
    folders = (*THREE.all, "twinlog/batches", "twinlog/state")
    paths = [f"{folder}/{name}" for folder in folders for name in fake.list(folder)]
    return {path: fake.read(path, "test") for path in paths if path.rpartition("/")[2].isdigit()}


def test_what_a_start_refuses() -> None:
    """A missing folder, one that is named no more, one of another store, a file twice."""
    fake = FakeDisk()
    filled(fake).close(clean=True)
    before = files_of(fake)
    with pytest.raises(LogFolder, match="no longer named"):
        opened(multi_folder_disk(fake, Folders()))
    with pytest.raises(LogFolder, match="log folder third/logs holds files"):
        opened(MultiFolderDisk(fake, Folders(("second",))))
    other = FakeDisk()
    filled(other, Folders(("fourth",))).close(clean=True)
    fake.make_dir("fourth", "test")
    fake.write_file(f"fourth/{file_name(0)}", b"x", "test")
    with pytest.raises(LogFolder, match="fourth is new to this store"):
        opened(MultiFolderDisk(fake, Folders((*THREE.more, "fourth"))))
    fake.write_file(f"second/{file_name(0)}", b"x", "test")
    with pytest.raises(LogFolder, match=f"{file_name(0)} is in commitlog and in second"):
        opened(MultiFolderDisk(fake, THREE))
    for path in (f"second/{file_name(0)}", f"fourth/{file_name(0)}"):
        fake.remove(path, "test")
    assert files_of(fake) == before
    opened(MultiFolderDisk(fake, THREE)).close(clean=False)


def test_a_folder_that_is_not_mounted(tmp_path: Path) -> None:
    """The start names it and changes nothing; so do the tools. Back again, all is there."""
    root, far = tmp_path / "data", tmp_path / "far"
    folders = Folders((str(far),))
    store = opened(multi_folder_disk(RealDisk(root), folders), 1)
    fill(store, 40)
    end = store.end
    store.close(clean=True)
    assert len(list(far.glob("[0-9]*"))) == 2
    far.rename(tmp_path / "away")
    with pytest.raises(LogFolder, match=f"log folder {far} is missing"):
        opened(multi_folder_disk(RealDisk(root), folders))
    with pytest.raises(UsageError, match=f"log folder {far} of"):
        StoreReader(root)
    (tmp_path / "away").rename(far)
    with StoreReader(root) as reader:
        assert reader.end == end
        assert [one for one in verify(reader).findings if one.grade.value != "note"] == []
    found = recover(disk_at(root), wall_ms=2)
    assert (found.clean, found.end) == (True, end)


def scattered(case: str, tmp_path: Path) -> tuple[Path, str]:
    """A golden store whose log files lie as RocketMQ spreads them over three folders."""
    root = unpack(case, tmp_path)
    folders = [tmp_path / "a", tmp_path / "b", tmp_path / "c"]
    for folder in folders:
        folder.mkdir()
    for path in sorted((root / "commitlog").iterdir()):
        number = int(path.name) // path.stat().st_size
        path.rename(folders[number % 3] / path.name)
    (root / "commitlog").rmdir()
    return root, ",".join(map(str, [root, *folders]))


def test_rocketmqs_store_in_several_folders_is_read(tmp_path: Path) -> None:
    """DIRECTORY,FOLDER,... names such a store to every tool."""
    _, name = scattered("02-rollover", tmp_path)
    wanted = manifest("02-rollover")
    with StoreReader(name) as reader:
        found = [record.log_offset for record in reader.records()]
        assert found == [message["physical_offset"] for message in wanted["messages"]]
        assert len({file.path.parent for file in reader.series.files}) == 3
        assert [one for one in verify(reader).findings if one.grade.value != "note"] == []


def test_rocketmqs_store_in_several_folders_is_adopted(tmp_path: Path) -> None:
    """It goes on in the same folders, which it has noted: nobody need name them to a tool again."""
    root, name = scattered("02-rollover", tmp_path)
    who = Who("adopted", "g1", "n1", 4)
    disk = disk_at(Path(name))
    with StoreReader(name) as ours, StoreReader(name, rocketmq=True) as reader:
        value = plan_adoption(reader, ours)
        carry_out(disk, value, who, reader=reader, ours=ours)
    store = Store.open(disk_at(root), settings_of(identity_of(RealDisk(root))), who, wall_ms=1)
    assert store.damage is None
    lead(store, epoch=value.epoch + 1)
    end = store.end
    store.close(clean=True)
    with StoreReader(root) as reader:
        assert (reader.ours, reader.end) == (True, end)
        assert [one for one in verify(reader).findings if one.grade.value != "note"] == []


def test_a_cut_and_a_copy_across_file_systems() -> None:
    """A cut removes files wherever they lie; a log file that is set aside is copied."""
    fake = FakeDisk()
    store = filled(fake)
    to = store.border_at_or_below(2 * SIZE)
    store.take_token(token(1))
    run(store, store.cut_job(token(1), to))
    assert max(places(fake)) <= 2
    assert store.reads.topics().keys() <= {TOPIC}
    store.close(clean=True)
    disk = MultiFolderDisk(fake, THREE)
    data = disk.read(f"commitlog/{file_name(SIZE)}", "test")
    disk.rename(f"commitlog/{file_name(SIZE)}", "aside", "test")
    assert (fake.read("aside", "test"), places(fake).get(1)) == (data, None)


def test_a_folder_that_is_noted_survives_a_loss_of_power() -> None:
    """Its name and all names above it are durable before the note is."""
    for seed in range(40):
        disk = FakeDisk()
        multi_folder_disk(disk, Folders(("second", "third/of/all/logs"))).lock("test")
        disk.crash(keep_page_cache=False, rng=Random(seed))
        assert all(disk.exists(folder) for folder in noted(disk))
