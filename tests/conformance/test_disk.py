"""One suite for both disks: what the store may rely on.

The fake disk must not be kinder than the real one; where the real one promises more (it flushes
whole files), the fake one keeps to the letter of the protocol and only that is tested here.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from storage.disk.disk import Disk, RealDisk
from storage.errors import DirectoryInUse, DiskError
from tests.fakes.disk import FakeDisk

Make = Callable[[], Disk]


@pytest.fixture(params=["real", "fake"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Open the same directory again and again, as processes one after the other do."""
    if request.param == "real":
        return lambda: RealDisk(tmp_path / "data")
    fake = FakeDisk()
    return lambda: fake


@pytest.fixture
def disk(make: Make) -> Disk:
    """One open disk with a directory in it."""
    opened = make()
    opened.make_dir("d", "test.make")
    return opened


def test_a_created_mapping_is_zero_and_has_its_size(disk: Disk) -> None:
    """A new mapped file has its full length and holds zeros."""
    mapping = disk.map("d/f", 8192, op="test.map", create=True)
    assert mapping.size == 8192
    assert bytes(mapping.buffer) == bytes(8192)
    assert disk.size("d/f") == 8192


def test_what_is_written_through_a_mapping_is_read_through_a_file(disk: Disk) -> None:
    """Mapping, file and a second mapping are one page cache."""
    mapping = disk.map("d/f", 8192, op="test.map", create=True)
    mapping.buffer[100:105] = b"hello"
    assert disk.read_at("d/f", 100, 5, "test.read") == b"hello"
    disk.write_at("d/f", 200, b"world", "test.write")
    assert bytes(mapping.buffer[200:205]) == b"world"
    again = disk.map("d/f", 8192, op="test.map")
    again.buffer[0:1] = b"x"
    assert mapping.buffer[0] == ord("x")


def test_everything_can_be_made_durable_at_once(disk: Disk) -> None:
    """Files and names; where the system cannot, it says so and files are flushed one by one."""
    disk.create_sparse("d/f", 4096, "test.make")
    disk.write_at("d/f", 0, b"hello", "test.write")
    assert disk.sync_all("test.sync") in (True, False)
    if isinstance(disk, FakeDisk):
        disk.crash(keep_page_cache=False, rng=Random(0))
    assert disk.read_at("d/f", 0, 5, "test.read") == b"hello"


def test_a_closed_mapping_is_held_by_its_views(disk: Disk) -> None:
    """A reader's view keeps the bytes, and it shows; without one, nobody holds it."""
    mapping = disk.map("d/f", 8192, op="test.map", create=True)
    mapping.buffer[:5] = b"hello"
    view = mapping.buffer[:5]
    mapping.close()
    assert mapping.held()
    assert bytes(view) == b"hello"
    view.release()
    assert not mapping.held()
    assert not mapping.held()


def test_a_retired_mapping_reaches_its_file_until_it_is_closed(disk: Disk) -> None:
    """It gives no views; it reads, and overwrites under whatever name; views keep their bytes."""
    mapping = disk.map("d/f", 8192, op="test.map", create=True)
    mapping.buffer[4094:4099] = b"hello"
    assert mapping.read(4090, 4100, "test.read") == b"\0\0\0\0hello\0"
    assert mapping.read(8190, 9000, "test.read") == b"\0\0"
    view = mapping.buffer[4094:4099]
    mapping.retire()
    assert mapping.buffer.nbytes == 0
    assert mapping.held()
    view.release()
    assert not mapping.held()
    disk.remove("d/f", "test.remove")
    assert mapping.read(4094, 4099, "test.read") == b"hello"
    mapping.erase("test.erase")
    assert mapping.read(0, 8192, "test.read") == bytes(8192)
    mapping.close()
    mapping.close()
    with pytest.raises(DiskError):
        mapping.read(0, 1, "test.read")


def test_what_is_in_memory_is_read_without_waiting(disk: Disk) -> None:
    """All of it, or nothing is said of it; a closed mapping has nothing in memory."""
    if isinstance(disk, FakeDisk):
        disk.resident = True
    mapping = disk.map("d/f", 8192, op="test.map", create=True)
    mapping.buffer[4094:4099] = b"hello"
    room = memoryview(bytearray(5))
    if mapping.read_now(4094, room):  # a file system may not be able to tell
        assert bytes(room) == b"hello"
    assert not mapping.read_now(8190, room), "beyond the end of the file"
    mapping.expect_reads(0, 8192)
    mapping.close()
    assert not mapping.read_now(4094, room)
    mapping.expect_reads(0, 8192)


def test_a_socket_is_given_what_it_takes(disk: Disk) -> None:
    """From the file, also of a retired mapping; a full socket says so, a closed mapping too."""
    size = 1 << 20
    mapping = disk.map("d/f", size, op="test.map", create=True)
    mapping.buffer[:] = data = Random(1).randbytes(size)
    mapping.retire()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 100_000)
        at, got, full = 1000, b"", False
        while not full:
            try:
                at += mapping.send(ours.fileno(), at, size)
            except BlockingIOError:
                full = True
        while len(got) < at - 1000:
            got += theirs.recv(size)
        assert got == data[1000:at]
        mapping.close()
        with pytest.raises(DiskError):
            mapping.send(ours.fileno(), 0, size)


def test_creating_what_exists_keeps_its_bytes(disk: Disk) -> None:
    """`map` with create and `create_sparse` lengthen a file and lose nothing of it."""
    disk.create_sparse("d/f", 10, "test.create")
    disk.write_at("d/f", 0, b"0123456789", "test.write")
    disk.create_sparse("d/f", 20, "test.create")
    assert disk.read("d/f", "test.read") == b"0123456789" + bytes(10)
    mapping = disk.map("d/f", 30, op="test.map", create=True)
    assert bytes(mapping.buffer) == b"0123456789" + bytes(20)


def test_zero_clears_exactly_its_range(disk: Disk) -> None:
    """Bytes outside the range stay, also for long ranges with odd borders."""
    size = 1 << 18
    mapping = disk.map("d/f", size, op="test.map", create=True)
    mapping.buffer[:] = b"\x01" * size
    mapping.zero(4097, size - 3, "test.zero")
    assert bytes(mapping.buffer[:4097]) == b"\x01" * 4097
    assert bytes(mapping.buffer[4097 : size - 3]) == bytes(size - 3 - 4097)
    assert bytes(mapping.buffer[size - 3 :]) == b"\x01" * 3


def test_a_view_outlives_its_mapping(disk: Disk) -> None:
    """Readers hold slices of the log; closing the mapping leaves them whole."""
    mapping = disk.map("d/f", 4096, op="test.map", create=True)
    mapping.buffer[0:3] = b"abc"
    view = mapping.buffer[0:3]
    mapping.close()
    mapping.close()
    assert bytes(view) == b"abc"
    assert mapping.buffer.nbytes == 0


def test_a_closed_mapping_does_nothing(disk: Disk) -> None:
    """Flush and zero of a closed mapping are errors; of an empty range, nothing at all."""
    mapping = disk.map("d/f", 4096, op="test.map", create=True)
    mapping.flush_range(5, 5, "test.flush")
    mapping.flush_range(0, 4096, "test.flush")
    mapping.touch(0, 4096)
    mapping.close()
    mapping.flush_range(5, 5, "test.flush")
    with pytest.raises(DiskError):
        mapping.flush_range(0, 10, "test.flush")
    with pytest.raises(DiskError):
        mapping.zero(0, 10, "test.zero")


@pytest.mark.parametrize(
    "call",
    [
        lambda disk: disk.read("d/none", "test.read"),
        lambda disk: disk.read_at("d/none", 0, 1, "test.read"),
        lambda disk: disk.write_at("d/none", 0, b"x", "test.write"),
        lambda disk: disk.fsync("d/none", "test.fsync"),
        lambda disk: disk.fsync_dir("none", "test.fsync"),
        lambda disk: disk.size("d/none"),
        lambda disk: disk.rename("d/none", "d/other", "test.rename"),
        lambda disk: disk.remove("d/none", "test.remove"),
        lambda disk: disk.inode("d/none"),
        lambda disk: disk.map("d/none", 10, op="test.map"),
        lambda disk: disk.map("none/f", 10, op="test.map", create=True),
        lambda disk: disk.create_sparse("none/f", 10, "test.create"),
        lambda disk: disk.write_file("none/f", b"x", "test.write"),
    ],
)
def test_what_is_missing_is_an_error_with_its_path(
    disk: Disk, call: Callable[[Disk], object]
) -> None:
    """A missing file or directory is ENOENT, and the error names it."""
    with pytest.raises(DiskError) as caught:
        call(disk)
    assert caught.value.errno == errno.ENOENT
    assert "none" in caught.value.path


def test_a_file_shorter_than_its_mapping_is_refused(disk: Disk) -> None:
    """Mapping beyond the end would end the process at the first touch."""
    disk.create_sparse("d/f", 10, "test.create")
    with pytest.raises(DiskError) as caught:
        disk.map("d/f", 11, op="test.map")
    assert caught.value.errno == errno.EINVAL


def test_write_at_grows_and_read_at_stops_at_the_end(disk: Disk) -> None:
    """A write beyond the end fills the gap with zeros; a read there returns what there is."""
    disk.create_sparse("d/f", 4, "test.create")
    disk.write_at("d/f", 6, memoryview(b"xy"), "test.write")
    assert disk.read("d/f", "test.read") == bytes(6) + b"xy"
    assert disk.read_at("d/f", 6, 100, "test.read") == b"xy"
    assert disk.read_at("d/f", 50, 100, "test.read") == b""


def test_a_look_takes_a_file_of_its_size_only(disk: Disk) -> None:
    """Bytes at each place; nothing where the file is missing or has another size."""
    assert disk.look("a", 10, [0], 2) is None
    disk.create_sparse("a", 10, "test.create")
    disk.write_at("a", 0, b"0123456789", "test.write")
    assert disk.look("a", 10, [8, 0, 9], 2) == [b"89", b"01", b"9"]
    assert disk.look("a", 11, [0], 2) is None
    assert disk.look("d/a", 10, [0], 2) is None


def test_write_file_replaces_the_whole_file(disk: Disk) -> None:
    """The new content is all there is, and nothing is left beside it."""
    disk.write_file("d/f", b"long content", "test.write")
    first = disk.inode("d/f")
    disk.write_file("d/f", b"short", "test.write")
    assert disk.read("d/f", "test.read") == b"short"
    assert disk.list("d") == ["f"]
    assert disk.inode("d/f") != first
    disk.write_file("g", b"at the top", "test.write")
    assert disk.read("g", "test.read") == b"at the top"


def test_names(disk: Disk) -> None:
    """Directories are made with those above them; lists are sorted; renames replace."""
    disk.make_dir("a/b/c", "test.make")
    disk.make_dir("a/b/c", "test.make")
    assert [disk.exists(name) for name in ("a/b/c", "a", "a/x")] == [True, True, False]
    disk.write_file("a/b/2", b"two", "test.write")
    disk.write_file("a/b/1", b"one", "test.write")
    assert disk.list("a/b") == ["1", "2", "c"]
    assert disk.list("nowhere") == []
    number = disk.inode("a/b/2")
    disk.rename("a/b/2", "a/b/1", "test.rename")
    assert disk.list("a/b") == ["1", "c"]
    assert disk.read("a/b/1", "test.read") == b"two"
    assert disk.inode("a/b/1") == number
    disk.remove("a/b/1", "test.remove")
    assert not disk.exists("a/b/1")
    disk.fsync_dir("a/b", "test.fsync")
    disk.fsync_dir(".", "test.fsync")


def test_a_directory_is_renamed_with_what_is_in_it(disk: Disk) -> None:
    """Files and directories below it go along; what only begins alike stays."""
    disk.make_dir("d/e", "test.make")
    disk.make_dir("da", "test.make")
    disk.write_file("d/e/f", b"1", "test.write")
    disk.rename("d", "da/new", "test.rename")
    assert (disk.read("da/new/e/f", "test.read"), disk.exists("d")) == (b"1", False)
    assert disk.list("da") == ["new"]


def test_a_removed_file_lives_in_its_mapping(disk: Disk) -> None:
    """Removing a file takes its name, not the bytes that somebody maps."""
    mapping = disk.map("d/f", 4096, op="test.map", create=True)
    disk.remove("d/f", "test.remove")
    mapping.buffer[0:1] = b"x"
    assert bytes(mapping.buffer[0:1]) == b"x"


def test_one_process_holds_the_directory(make: Make) -> None:
    """A second lock is refused until the first is given back."""
    first = make()
    first.lock("test.lock")
    second = make()
    with pytest.raises(DirectoryInUse):
        second.lock("test.lock")
    first.unlock()
    first.unlock()
    second.lock("test.lock")
    second.unlock()


def test_the_machine(disk: Disk) -> None:
    """Facts about boot, device and space have their types; random bytes differ."""
    assert disk.boot_id() == disk.boot_id()
    assert disk.device() == disk.device()
    free, total = disk.free_bytes()
    assert 0 < free <= total
    assert len(disk.random_bytes(16)) == 16
    assert disk.random_bytes(16) != disk.random_bytes(16)


def test_random_histories_agree(tmp_path: Path) -> None:
    """Two hundred random calls leave the same files and the same errors on both disks."""
    rng = Random(7)
    real, fake = RealDisk(tmp_path / "data"), FakeDisk()
    names = ["a", "b", "d/a", "d/b", "e/a"]
    for disk in (real, fake):
        disk.make_dir("d", "test.make")
    for step in range(200):
        name, other = rng.choice(names), rng.choice(names)
        at, size = rng.randrange(6000), rng.randrange(6000)
        kind = rng.randrange(7)
        outcomes = [_apply(disk, kind, name, other, at=at, size=size) for disk in (real, fake)]
        assert outcomes[0] == outcomes[1], (step, kind, name)
    for name in names:
        assert real.exists(name) == fake.exists(name)
        if real.exists(name):
            assert real.read(name, "test.read") == fake.read(name, "test.read")


def _apply(disk: Disk, kind: int, name: str, other: str, *, at: int, size: int) -> object:
    try:
        match kind:
            case 0:
                disk.write_file(name, b"w" * size, "test")
            case 1:
                disk.write_at(name, at, b"p" * size, "test")
            case 2:
                disk.create_sparse(name, 8192, "test")
            case 3:
                disk.rename(name, other, "test")
            case 4:
                disk.remove(name, "test")
            case 5:
                return disk.read_at(name, at, size, "test")
            case _:
                return disk.list(name.rpartition("/")[0] or ".")
    except DiskError as error:
        return error.errno
    return None


def test_advice_about_pages_changes_no_byte(disk: Disk) -> None:
    """Touched, locked, unlocked, let go (flushed or not) and read again: what was written."""
    size = 8 * 1024 * 1024
    mapping = disk.map("d/f", size, op="test.map", create=True)
    mapping.expect_writes(huge=True)
    mapping.touch(0, size)
    mapping.buffer[4096:8192] = b"a" * 4096
    mapping.flush_range(0, size, "test.flush")
    mapping.buffer[8192:8200] = b"unsynced"
    assert mapping.lock(100, 200) in (True, False)
    mapping.unlock(100, 200)
    mapping.unlock(0, size)
    mapping.release(0, size)
    mapping.release(10, 20)
    mapping.expect_writes(huge=False)
    assert bytes(mapping.buffer[4000:8200]) == bytes(96) + b"a" * 4096 + b"unsynced"
    mapping.buffer[0:4] = b"more"
    assert disk.read_at("d/f", 0, 4, "test.read") == b"more"
    mapping.close()
    mapping.release(0, size)


def test_memory_is_zeros_and_keeps_what_is_written(disk: Disk) -> None:
    memory = disk.memory(16384)
    assert bytes(memory.buffer) == bytes(16384)
    memory.buffer[5:8] = b"abc"
    assert bytes(memory.buffer[4:9]) == b"\0abc\0"
    assert memory.locked in (True, False)


def test_both_of_two_happen_and_an_error_of_either_arrives(disk: Disk) -> None:
    """The other one is waited for whatever happens to the first."""
    done: list[str] = []

    def bad() -> None:
        raise DiskError("test", "d/f", errno.EIO)

    disk.together(lambda: done.append("first"), lambda: done.append("second"))
    assert sorted(done) == ["first", "second"]
    with pytest.raises(DiskError):
        disk.together(lambda: done.append("third"), bad)
    with pytest.raises(DiskError):
        disk.together(bad, lambda: None)
    assert "third" in done
