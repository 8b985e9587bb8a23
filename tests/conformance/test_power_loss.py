"""What the fake disk forgets: exactly what nobody flushed, in every combination."""

from __future__ import annotations

import contextlib
import errno
from random import Random

import pytest

from storage.errors import DiskError, DiskFull
from tests.fakes.disk import FakeDisk
from tests.fakes.faults import SimulatedCrash
from tests.fakes.files import PAGE_SIZE


def four_pages() -> FakeDisk:
    """A disk with one durable file of four zero pages."""
    disk = FakeDisk()
    disk.make_dir("d", "make")
    disk.fsync_dir(".", "fsync")
    disk.map("d/f", 4 * PAGE_SIZE, op="map", create=True)
    disk.fsync("d/f", "fsync")
    disk.fsync_dir("d", "fsync")
    return disk


def test_a_kill_keeps_everything() -> None:
    """Bytes, names and the boot id survive the end of a process; its lock does not."""
    disk = four_pages()
    disk.lock("lock")
    disk.write_at("d/f", 0, b"x" * 100, "write")
    disk.rename("d/f", "d/g", "rename")
    boot = disk.boot_id()
    disk.crash(keep_page_cache=True, rng=Random(1))
    disk.lock("lock")
    assert disk.read_at("d/g", 0, 100, "read") == b"x" * 100
    assert disk.boot_id() == boot


def test_a_power_loss_takes_any_subset_of_unflushed_pages() -> None:
    """Each page is wholly there or wholly not, and every combination comes up."""
    seen: set[tuple[bool, ...]] = set()
    for seed in range(200):
        disk = four_pages()
        mapping = disk.map("d/f", 4 * PAGE_SIZE, op="map")
        mapping.buffer[:] = b"x" * (4 * PAGE_SIZE)
        disk.crash(keep_page_cache=False, rng=Random(seed))
        content = disk.read("d/f", "read")
        pages = [content[at : at + PAGE_SIZE] for at in range(0, len(content), PAGE_SIZE)]
        assert all(page in (bytes(PAGE_SIZE), b"x" * PAGE_SIZE) for page in pages)
        seen.add(tuple(page[0] != 0 for page in pages))
    assert len(seen) == 16


def test_flushed_pages_survive_and_their_neighbours_may_not() -> None:
    """`flush_range` covers the pages of its range; a flushed page keeps what it had then."""
    lost_neighbour = lost_newer = False
    for seed in range(50):
        disk = four_pages()
        mapping = disk.map("d/f", 4 * PAGE_SIZE, op="map")
        mapping.buffer[: 2 * PAGE_SIZE] = b"x" * (2 * PAGE_SIZE)
        mapping.flush_range(10, 20, "flush")
        assert disk.is_durable("d/f", 0, PAGE_SIZE)
        assert not disk.is_durable("d/f", 0, PAGE_SIZE + 1)
        mapping.buffer[0:1] = b"y"
        disk.crash(keep_page_cache=False, rng=Random(seed))
        content = disk.read("d/f", "read")
        assert content[1:PAGE_SIZE] == b"x" * (PAGE_SIZE - 1)
        lost_newer = lost_newer or content[0:1] == b"x"
        lost_neighbour = lost_neighbour or content[PAGE_SIZE] == 0
    assert (lost_newer, lost_neighbour) == (True, True)


def test_names_survive_one_by_one_until_the_directory_is_flushed() -> None:
    """A creation and a rename are each kept or lost; after `fsync_dir` they are kept."""
    seen: set[tuple[str, ...]] = set()
    for seed in range(100):
        disk = four_pages()
        disk.map("d/new", 10, op="map", create=True)
        disk.rename("d/f", "d/g", "rename")
        disk.crash(keep_page_cache=False, rng=Random(seed))
        seen.add(tuple(disk.list("d")))
    assert seen == {("f",), ("g",), ("f", "new"), ("g", "new")}
    disk = four_pages()
    disk.rename("d/f", "d/g", "rename")
    disk.fsync_dir("d", "fsync")
    disk.crash(keep_page_cache=False, rng=Random(3))
    assert disk.list("d") == ["g"]


def test_a_directory_may_be_lost_with_all_that_is_durable_in_it() -> None:
    """Flushing a directory does not flush its own name; once that is flushed, all of it stays."""
    seen: set[bool] = set()
    for seed in range(20):
        disk = FakeDisk()
        disk.make_dir("a/b", "make")
        disk.write_file("a/b/f", b"x", "write")
        disk.fsync_dir("a", "fsync")
        if seed < 10:
            disk.crash(keep_page_cache=False, rng=Random(seed))
            seen.add(disk.exists("a/b/f"))
            continue
        disk.fsync_dir(".", "fsync")
        disk.crash(keep_page_cache=False, rng=Random(seed))
        assert disk.read("a/b/f", "read") == b"x"
    assert seen == {True, False}


def test_a_removed_file_may_come_back() -> None:
    """A removal that no directory flush covers is lost as often as kept."""
    back = 0
    for seed in range(50):
        disk = four_pages()
        disk.remove("d/f", "remove")
        disk.crash(keep_page_cache=False, rng=Random(seed))
        back += disk.exists("d/f")
    assert 5 < back < 45


def test_an_allocated_length_may_be_lost() -> None:
    """A file whose name is durable but which was never flushed may be empty afterwards."""
    sizes: set[int] = set()
    for seed in range(60):
        disk = four_pages()
        disk.map("d/new", PAGE_SIZE, op="map", create=True)
        disk.fsync_dir("d", "fsync")
        disk.crash(keep_page_cache=False, rng=Random(seed))
        sizes.add(disk.size("d/new"))
    assert sizes == {0, PAGE_SIZE}


def test_write_file_is_old_or_new_at_every_call() -> None:
    """A replaced file is whole whenever the process or the machine dies."""
    for after in range(5):
        for seed in range(20):
            disk = four_pages()
            disk.write_file("d/small", b"old", "small")
            disk.faults.crash("small", after=after)
            with contextlib.suppress(SimulatedCrash):
                disk.write_file("d/small", b"new content", "small")
            disk.crash(keep_page_cache=False, rng=Random(seed))
            assert disk.read("d/small", "read") in (b"old", b"new content")


def test_armed_faults_meet_the_named_call() -> None:
    """The n-th call of an operation fails with the given error, others go on."""
    disk = four_pages()
    disk.faults.recording = True
    disk.faults.fail("cut.fsync", after=1)
    disk.fsync("d/f", "cut.fsync")
    disk.fsync("d/f", "log.fsync")
    with pytest.raises(DiskError) as caught:
        disk.fsync("d/f", "cut.fsync")
    assert caught.value.errno == errno.EIO
    disk.fsync("d/f", "cut.fsync")
    assert disk.faults.record == [
        ("cut.fsync", "d/f"),
        ("log.fsync", "d/f"),
        ("cut.fsync", "d/f"),
        ("cut.fsync", "d/f"),
    ]


def test_a_full_disk_refuses_what_needs_space() -> None:
    """New files and holes need space; bytes that are allocated do not."""
    disk = four_pages()
    disk.write_at("d/f", 0, b"x", "write")
    disk.faults.full = True
    disk.write_at("d/f", 0, b"y", "write")
    assert disk.free_bytes()[0] < 4096
    for call in (
        lambda: disk.map("d/new", 10, op="map", create=True),
        lambda: disk.create_sparse("d/new", 10, "create"),
        lambda: disk.write_file("d/new", b"x", "write"),
        lambda: disk.write_at("d/f", 5 * PAGE_SIZE, b"x", "write"),
    ):
        with pytest.raises(DiskFull):
            call()
    assert disk.list("d") == ["f"]
    disk.faults.disarm()
    disk.write_file("d/new", b"x", "write")
