"""Whose directory it is, whether a start is clean, and what others left behind."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from storage import Promise, Store, StoreSettings, Who
from storage.disk.disk import RealDisk
from storage.disk.packing import seal
from storage.errors import (
    DirectoryInUse,
    DiskError,
    ForeignStore,
    IdentityMismatch,
    NewerVersion,
)
from storage.marks.clean_start import decide_clean
from storage.marks.promise import PromiseFile
from storage.marks.run import CleanMark, Run, abort_is_ours, abort_line
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import Forgetful
from tests.stores.workbench import (
    MASTER,
    SETTINGS,
    WHO,
    append,
    bodies,
    fill,
    lead,
    master,
    open_store,
    queue_files,
    run,
    section,
    settle,
    token,
)
from twinlog.errors import UsageError


def contents(disk: FakeDisk) -> dict[str, bytes]:
    """All small files of a directory."""
    return {
        name: disk.read(name, "test")
        for name in ("twinlog/identity", "twinlog/run", "abort", "checkpoint")
        if disk.exists(name)
    }


# -- refusals


@pytest.mark.parametrize(
    ("who", "names"),
    [
        (Who("other", "g1", "n1"), ("cluster", "other")),
        (Who("cluster", "g2", "n1"), ("g1", "g2")),
        (Who("cluster", "g1", "n7"), ("n1", "n7")),
        (Who("cluster", "g1", "n1", 6), ("4", "6")),
    ],
)
def test_another_identity_is_refused_with_both_names(who: Who, names: tuple[str, str]) -> None:
    """And the directory is as it was."""
    disk = FakeDisk()
    master(disk).close(clean=True)
    before = contents(disk)
    with pytest.raises(IdentityMismatch) as caught:
        open_store(disk, who=who)
    assert all(name in str(caught.value) for name in names)
    assert caught.value.hint
    assert contents(disk) == before
    open_store(disk).close(clean=True)


def test_another_segment_size_is_refused() -> None:
    """Sizes are facts of the group."""
    disk = FakeDisk()
    master(disk).close(clean=True)
    with pytest.raises(IdentityMismatch, match="16384"):
        open_store(disk, settings=StoreSettings(segment_size=32 * 1024))


def test_a_newer_version_is_refused() -> None:
    """By number, untouched."""
    disk = FakeDisk()
    master(disk).close(clean=True)
    disk.write_file("twinlog/identity", seal({"version": 99}), "test")
    before = contents(disk)
    with pytest.raises(NewerVersion, match="99"):
        open_store(disk)
    assert contents(disk) == before


def test_a_directory_in_use_is_refused_with_both_names(tmp_path: Path) -> None:
    """The lock is RocketMQ's; it holds within one process too, and goes with the store."""
    disk = RealDisk(tmp_path)
    store = Store.open(disk, SETTINGS, WHO, wall_ms=1)
    with pytest.raises(DirectoryInUse) as caught:
        Store.open(RealDisk(tmp_path), SETTINGS, WHO, wall_ms=2)
    assert "n1" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    store.close(clean=False)
    Store.open(RealDisk(tmp_path), SETTINGS, WHO, wall_ms=3).close(clean=True)


def test_a_log_that_twinlog_did_not_write_is_refused() -> None:
    """A RocketMQ store is no member of a group."""
    disk = FakeDisk()
    disk.make_dir("commitlog", "test")
    disk.create_sparse("commitlog/00000000000000000000", 1 << 14, "test")
    with pytest.raises(ForeignStore, match="twinlog did not write"):
        open_store(disk)
    assert not disk.exists("twinlog/identity")


@pytest.mark.parametrize(
    "changes",
    [
        {"buffer_pool_bytes": 5000}, {"flush": "never"}, {"segment_size": 1000},
        {"segment_size": 100_001}, {"quality": "hoped"}, {"message_size_max": 1 << 23},
        {"batch_size_max": 1}, {"queue_segment_entries": 0}, {"index_slots": 0},
        {"index_cells": 1},
    ],
)  # fmt: skip
def test_settings_that_cannot_work_are_refused(changes: dict[str, object]) -> None:
    """When they are made, not when they are used."""
    with pytest.raises(UsageError):
        StoreSettings(**changes)  # type: ignore[arg-type]  # pyright: ignore


# -- traces of others


def test_a_rocketmq_that_only_looked_leaves_the_store_ours() -> None:
    """It wrote another checkpoint; the log ends where we left it, so queues are made anew."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 12)
    store.close(clean=False)
    store = open_store(disk)
    settle_all(store)
    files, end = queue_files(disk), store.end
    store.close(clean=True)
    disk.write_at("checkpoint", 0, b"\0\1", "test")
    again = open_store(disk)
    assert (again.end, again.boot.queues_rebuilt, again.boot.clean) == (end, True, True)
    assert queue_files(disk) == files


def settle_all(store: Store) -> None:
    """Lead, so that everything can be confirmed."""
    lead(store, epoch=store.last_epoch + 1)
    settle(store)


def test_a_log_that_others_appended_to_is_refused() -> None:
    """Bytes behind the end of a clean stop, or a running mark that is not ours."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    settle(store)
    store.close(clean=True)
    disk.write_at("checkpoint", 0, b"\0\1", "test")
    disk.write_at("commitlog/00000000000000000000", store.end, b"\0\0\1\1", "test")
    with pytest.raises(ForeignStore, match="file checkpoint"):
        open_store(disk)
    disk = FakeDisk()
    master(disk).close(clean=False)
    disk.write_file("abort", b"4711", "test")
    with pytest.raises(ForeignStore, match="neither twinlog/clean nor abort"):
        open_store(disk)
    disk.remove("abort", "test")
    with pytest.raises(ForeignStore):
        open_store(disk)


def test_the_running_mark_is_one_line_of_ours() -> None:
    """A start that died between its two marks is still ours."""
    line = abort_line("store", "start2", "start1")
    assert abort_is_ours(line, "store", "start2")
    assert abort_is_ours(line, "store", "start1")
    assert not abort_is_ours(line, "store", "start0")
    assert not abort_is_ours(line, "other", "start2")
    assert not abort_is_ours(b"4711", "store", "start2")


# -- clean or not


def test_a_kill_is_clean_and_a_power_loss_is_not() -> None:
    """The boot id tells them apart."""
    for keep, clean in ((True, True), (False, False)):
        disk = FakeDisk()
        store = master(disk)
        fill(store, 3)
        disk.crash(keep_page_cache=keep, rng=Random(1))
        boot = open_store(disk).boot
        assert (boot.clean, bool(boot.why_unclean)) == (clean, not clean)
        assert boot.unseen == (store.boot.start_id,)
        assert boot.store_id == store.boot.store_id


def test_an_unclean_start_hangs_over_until_the_coordinator_has_answered() -> None:
    """A kill between the two must not launder a power loss, and neither must a clean stop."""
    disk = FakeDisk()
    store = master(disk)
    store.registered()
    disk.crash(keep_page_cache=False, rng=Random(1))
    unclean = open_store(disk)
    assert not unclean.boot.clean
    disk.crash(keep_page_cache=True, rng=Random(1))
    second = open_store(disk)
    assert not second.boot.clean
    second.close(clean=True)
    third = open_store(disk)
    assert not third.boot.clean
    assert len(third.boot.unseen) == 3
    third.registered()
    third.close(clean=False)
    last = open_store(disk)
    assert last.boot.clean
    assert last.boot.unseen == (third.boot.start_id,)


def test_an_io_error_makes_the_next_start_unclean() -> None:
    """A flush that came back with an error may have lost pages."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    disk.faults.fail("flush.log")
    with pytest.raises(DiskError):
        run(store, store.jobs.flush_job(thorough=True))
    store.close(clean=False)
    assert "error" in open_store(disk).boot.why_unclean


def test_an_io_error_at_a_start_is_remembered() -> None:
    """The kernel reports a lost write once: the next start would flush without an error."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    store.close(clean=False)
    disk.faults.fail("open.flush.log")
    with pytest.raises(DiskError):
        open_store(disk)
    assert "error" in open_store(disk).boot.why_unclean


def test_an_io_error_in_a_clean_stop_is_remembered() -> None:
    """The stop was not clean, and what its flush may have lost is not forgotten."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    disk.faults.fail("close.log")
    with pytest.raises(DiskError):
        store.close(clean=True)
    assert "error" in open_store(disk).boot.why_unclean


def test_durable_stores_start_clean_after_a_power_loss() -> None:
    """Nothing that was acknowledged rested on the page cache."""
    settings = StoreSettings(segment_size=16 * 1024, queue_segment_entries=40, quality="durable")
    disk = FakeDisk()
    store = master(disk, settings=settings)
    fill(store, 3)
    run(store, store.jobs.flush_job(thorough=True))
    end = store.end
    append(store, section(9))
    disk.crash(keep_page_cache=False, rng=Random(7))
    again = open_store(disk, settings=settings)
    assert again.boot.clean
    assert again.end >= end


def test_a_copied_directory_is_another_store(tmp_path: Path) -> None:
    """Two nodes with one store id would count twice."""
    import shutil

    first, second = tmp_path / "a", tmp_path / "b"
    store = Store.open(RealDisk(first), SETTINGS, WHO, wall_ms=1)
    store.close(clean=True)
    shutil.copytree(first, second)
    copy = Store.open(RealDisk(second), SETTINGS, WHO, wall_ms=2)
    assert copy.boot.store_id != store.boot.store_id
    assert not copy.boot.clean
    copy.close(clean=True)
    again = Store.open(RealDisk(first), SETTINGS, WHO, wall_ms=2)
    assert again.boot.store_id == store.boot.store_id
    again.close(clean=True)


LAST = Run("boot", 1, "start", (), 5)


@pytest.mark.parametrize(
    ("last", "changes", "clean"),
    [
        (None, {}, True),
        (LAST, {}, True),
        (LAST, {"boot_id": "other"}, False),
        (LAST, {"boot_id": None}, False),
        (LAST, {"device": 2}, False),
        (LAST, {"cut_batches": 1}, False),
        (None, {"lost": True}, False),
        (None, {"lost": True, "mark": CleanMark(100, "start", 0)}, False),
        (LAST, {"boot_id": "other", "mark": CleanMark(100, "start", 0)}, True),
        (LAST, {"boot_id": "other", "mark": CleanMark(90, "start", 0)}, False),
        (Run("boot", 1, "s", (), 5, unclean_since=9), {}, False),
        (Run("boot", 1, "s", (), 5, io_error=True), {}, False),
        (Run(None, 1, "s", (), 5), {}, False),
        (Run("boot", 1, "s", (), 5, quality="durable"), {"boot_id": "other"}, True),
        (
            Run("boot", 1, "s", (), 5, quality="durable"),
            {"boot_id": "other", "flushed": 101},
            False,
        ),
        (Run("boot", 1, "s", (), 5, io_error=True, quality="durable"), {}, False),
    ],
)
def test_the_rule_of_clean_starts(
    last: Run | None, changes: dict[str, object], clean: bool
) -> None:
    """Each condition alone decides."""
    mark = changes.pop("mark", None)
    facts: dict[str, object] = {
        "boot_id": "boot", "device": 1, "end": 100, "cut_batches": 0, "flushed": 100,
        "lost": False,
    }  # fmt: skip
    why = decide_clean(last, mark, **(facts | changes))  # type: ignore[arg-type]  # pyright: ignore
    assert (why == "") is clean, why


@pytest.mark.parametrize("way", ["missing", "unreadable"])
def test_a_start_after_the_run_file_was_lost_is_not_clean(way: str) -> None:
    """Nothing tells what the last start met; and a crash in that start does not hide it."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 2)
    settle(store)
    store.close(clean=True)
    if way == "missing":
        disk.remove("twinlog/run", "test")
    else:
        disk.write_at("twinlog/run", 0, b"\1" * 8192, "test")
    disk.faults.fail("open.run.write")
    with pytest.raises(DiskError):
        open_store(disk)
    again = open_store(disk)
    assert (again.boot.clean, again.end) == (False, store.end)
    assert "lost" in again.boot.why_unclean
    again.registered()
    again.close(clean=True)
    assert open_store(disk).boot.clean


def test_log_files_that_were_copied_back_make_another_store() -> None:
    """The run file is where it was, and the newest log file is not; a cut is no such copy."""
    disk = FakeDisk()
    store = master(disk)
    while store.end < 3 * SETTINGS.segment_size:
        fill(store, 4)
    settle(store)
    end = store.entries(0, max_bytes=9000)[-1].end
    store.close(clean=False)
    store = open_store(disk)
    store.take_token(MASTER)
    run(store, store.cut_job(MASTER, end))
    lead(store, epoch=3)
    while store.end < 3 * SETTINGS.segment_size:
        fill(store, 4, epoch=3)
    store.close(clean=False)
    again = open_store(disk)
    assert (again.boot.clean, again.boot.store_id) == (True, store.boot.store_id)
    path = f"commitlog/{disk.list('commitlog')[-1]}"
    data = disk.read(path, "test")
    again.close(clean=False)
    disk.remove(path, "test")
    disk.write_file(path, data, "test")
    copy = open_store(disk)
    assert copy.boot.store_id != store.boot.store_id
    assert (copy.boot.clean, copy.boot.why_unclean) == (False, "the data directory is a copy")


# -- promises


def test_a_promise_is_there_after_a_crash() -> None:
    """It counts from finish on, and the state comes with it."""
    disk = FakeDisk()
    store = open_store(disk)
    promise = Promise(7, 3, "register", 12, 2**64 - 1, b'{"leader": null}')
    job = store.jobs.save_promise_job(promise)
    job.run()
    assert store.promise == Promise()
    store.jobs.finish(job)
    disk.crash(keep_page_cache=False, rng=Random(3))
    assert open_store(disk).promise == promise


def test_a_promise_grows_with_its_group_state() -> None:
    """Larger than a slot was made, and back; beyond the most, without the state and not the end."""
    from tests.fakes.faults import SimulatedCrash

    disk = FakeDisk()
    store = open_store(disk)
    for number, size in enumerate((10, 33_000, 100, 500_000, 40_000), start=1):
        run(store, store.jobs.save_promise_job(Promise(epoch=number, state=b"x" * size)))
        store.close(clean=False)
        store = open_store(disk)
        assert (store.promise.epoch, len(store.promise.state)) == (number, size)
    run(store, store.jobs.save_promise_job(Promise(epoch=9, session=4, state=b"x" * 2_000_000)))
    store.close(clean=False)
    store = open_store(disk)
    assert (store.promise.epoch, store.promise.session, store.promise.state) == (9, 4, b"")
    for number in range(4):
        disk = FakeDisk()
        store = open_store(disk)
        run(store, store.jobs.save_promise_job(Promise(epoch=1)))
        disk.faults.crash("promise", after=number)
        try:
            run(store, store.jobs.save_promise_job(Promise(epoch=2, state=b"y" * 40_000)))
        except SimulatedCrash:
            disk.crash(keep_page_cache=False, rng=Random(number))
            store = open_store(disk)
        assert store.promise.epoch in (1, 2)


def test_a_promise_survives_a_crash_in_its_writing() -> None:
    """The older one or the newer one, never none."""
    from tests.fakes.faults import SimulatedCrash

    for number in range(2):
        for seed in range(20):
            disk = FakeDisk(page_size=64)
            store = open_store(disk)
            run(store, store.jobs.save_promise_job(Promise(epoch=1, state=b"x" * 500)))
            disk.faults.crash("promise", after=number)
            with pytest.raises(SimulatedCrash):
                run(store, store.jobs.save_promise_job(Promise(epoch=2, state=b"y" * 500)))
            disk.crash(keep_page_cache=False, rng=Random(seed))
            assert open_store(disk).promise.epoch in (1, 2)


def test_a_clean_stop_can_be_read_by_everybody() -> None:
    """The exports and RocketMQ's checkpoint are there, no mark of a running store."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 25)
    settle(store)
    store.close(clean=True)
    assert not disk.exists("abort")
    assert disk.read("epochFileCheckpoint", "test").endswith(b"\n1-0\n")
    assert b'"flights"' in disk.read("config/topics.json", "test")
    assert int.from_bytes(disk.read("checkpoint", "test")[:8], "big") == 2000
    assert len(disk.list("commitlog")) == store.end // SETTINGS.segment_size + 1
    assert sum(len(bodies(store, queue)) for queue in range(4)) == 250


def test_a_clean_stop_with_unconfirmed_records_makes_rocketmq_look_twice() -> None:
    """They have no queue entries, which only RocketMQ's other recovery would add."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 3)
    settle(store)
    confirm = store.confirm
    store.append(token(1), [section(4)], wall_ms=9000)
    end = store.end
    store.close(clean=True)
    assert disk.exists("abort")
    times = disk.read("checkpoint", "test")[:16]
    assert [int.from_bytes(times[at : at + 8], "big") for at in (0, 8)] == [9000, 2000]
    again = open_store(disk)
    assert (again.end, again.confirm, again.boot.clean) == (end, confirm, True)
    assert not again.boot.queues_rebuilt


def test_a_promise_that_was_read_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process died between write and fsync; the next one binds itself to what it read."""
    disk = FakeDisk()
    master(disk).close(clean=True)
    with monkeypatch.context() as patch:
        patch.setattr(FakeDisk, "fsync", lambda *_: None)
        file = PromiseFile(disk)
        file.load()
        file.write(Promise(epoch=5), "test")
    assert PromiseFile(disk).load().epoch == 5
    disk.crash(keep_page_cache=False, rng=Forgetful())
    assert PromiseFile(disk).load().epoch == 5
