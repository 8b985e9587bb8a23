"""Open descriptors of files that are not mapped: nobody waits for another file's call.

Not here: what the calls of the disk do (`tests.conformance.test_disk`).
"""

from __future__ import annotations

import errno
import gc
import os
import threading
from pathlib import Path

import pytest

from storage.disk import disk as disk_module
from storage.disk.descriptors import Descriptors
from storage.disk.disk import RealDisk
from storage.errors import DiskError

LONG = 30.0
"""Seconds after which a test that waits for a thread has failed."""


@pytest.mark.parametrize("call", ["pwrite", "pread"])
def test_a_call_that_lasts_stalls_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """While the file system keeps one thread waiting, others read and write elsewhere."""
    disk = RealDisk(tmp_path)
    for name in ("slow", "fast", "new"):
        disk.create_sparse(name, 4096, "test")
    disk.write_at("fast", 0, b"old", "test")
    disk.write_at("slow", 0, b"old", "test")
    slow = os.stat(tmp_path / "slow").st_ino
    inside, go = threading.Event(), threading.Event()
    real = getattr(os, call)

    def held(descriptor: int, *rest: object) -> object:
        if os.fstat(descriptor).st_ino == slow:
            inside.set()
            assert go.wait(2 * LONG)
        return real(descriptor, *rest)

    monkeypatch.setattr(disk_module.os, call, held)
    work = {
        "pwrite": lambda: disk.write_at("slow", 0, b"new", "test"),
        "pread": lambda: disk.read_at("slow", 0, 3, "test"),
    }[call]
    thread = threading.Thread(target=work)
    thread.start()
    assert inside.wait(LONG)
    done = threading.Event()

    def others() -> None:
        disk.write_at("fast", 0, b"new", "test")
        disk.write_at("new", 0, b"new", "test")
        assert disk.read_at("fast", 0, 3, "test") == b"new"
        disk.remove("new", "test")
        done.set()

    beside = threading.Thread(target=others)
    beside.start()
    passed = done.wait(LONG)
    go.set()
    thread.join(LONG)
    beside.join(LONG)
    assert passed, "a call about another file waited"


def opener(path: str) -> int:
    """Open as the disk does."""
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def is_open(descriptor: int) -> bool:
    """Whether a descriptor is open."""
    try:
        os.fstat(descriptor)
    except OSError as error:
        return error.errno != errno.EBADF
    return True


def test_a_descriptor_in_use_outlives_the_cache(tmp_path: Path) -> None:
    """Pushed out, forgotten or closed: the last user closes it, and nobody before."""
    paths = [str(tmp_path / name) for name in "abc"]
    for path in paths:
        Path(path).write_bytes(b"x")
    cache = Descriptors(1, opener)
    with cache.use(paths[0]) as first:
        with cache.use(paths[1]) as second, cache.use(paths[1]) as again:
            assert second == again
            assert is_open(first)
            cache.forget(paths[1])
            assert is_open(second)
        assert not is_open(second)
        assert is_open(first)
    assert not is_open(first)
    with cache.use(paths[2]) as third:
        cache.close()
        assert is_open(third)
    assert not is_open(third)
    assert len(cache) == 0


def test_the_one_that_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    """And no more are open than asked for."""
    seen: list[str] = []

    def opening(path: str) -> int:
        seen.append(Path(path).name)
        return opener(path)

    cache = Descriptors(2, opening)
    for name in "abacab":
        (tmp_path / name).write_bytes(b"x")
        with cache.use(str(tmp_path / name)):
            pass
    assert "".join(seen) == "abcb"
    assert len(cache) == 2
    cache.close()


def test_what_is_opened_while_its_name_goes_is_not_kept(tmp_path: Path) -> None:
    """The next user opens the file that has the name then."""
    path = tmp_path / "f"
    path.write_bytes(b"old")

    def replaced(name: str) -> int:
        descriptor = opener(name)
        cache.forget(name)
        path.unlink()
        cache.forget(name)
        path.write_bytes(b"new")
        return descriptor

    cache = Descriptors(9, lambda name: opening(name))
    opening = replaced
    with cache.use(str(path)) as descriptor:
        assert os.pread(descriptor, 3, 0) == b"old"
    opening = opener
    with cache.use(str(path)) as descriptor:
        assert os.pread(descriptor, 3, 0) == b"new"
    cache.close()


def test_two_that_open_at_once_share_one(tmp_path: Path) -> None:
    """The later one closes its own."""
    path = str(tmp_path / "f")
    Path(path).write_bytes(b"x")
    opened: list[int] = []

    def twice(name: str) -> int:
        if not opened:
            opened.append(-1)
            with cache.use(name) as inner:
                opened.append(inner)
        opened.append(opener(name))
        return opened[-1]

    cache = Descriptors(9, twice)
    with cache.use(path) as found:
        assert is_open(found)
        assert found == opened[2]
    assert [is_open(one) for one in set(opened[1:])].count(True) == 1
    cache.close()


def test_an_error_names_operation_and_path(tmp_path: Path) -> None:
    """A missing file is an error of the disk."""
    disk = RealDisk(tmp_path)
    with pytest.raises(DiskError, match="some-op of nowhere: ENOENT"):
        disk.write_at("nowhere", 0, b"x", "some-op")


def test_a_file_that_gets_another_name_stays_open(tmp_path: Path) -> None:
    """What the new name led to is forgotten, and the old name leads nowhere."""
    disk = RealDisk(tmp_path)
    for name in ("made", "target"):
        disk.create_sparse(name, 8, "test")
        disk.write_at(name, 0, name.encode(), "test")
    before = len(disk._open)
    disk.rename("made", "target", "test")
    assert len(disk._open) == before - 1
    disk.write_at("target", 0, b"T", "test")
    assert (tmp_path / "target").read_bytes()[:4] == b"Tade"
    with pytest.raises(DiskError):
        disk.write_at("made", 0, b"x", "test")
    (tmp_path / "dir").mkdir()
    with pytest.raises(DiskError):
        disk.rename("target", "dir", "test")
    assert len(disk._open) == before - 2
    disk.write_at("target", 1, b"A", "test")
    assert (tmp_path / "target").read_bytes()[:4] == b"TAde"


def test_a_mapping_that_is_let_go_closes_its_descriptor(tmp_path: Path) -> None:
    """A store that ends without `Mapping.close`, as each tool's does, leaves nothing open."""
    gc.collect()  # what other tests left behind
    before = len(os.listdir("/proc/self/fd"))
    mapping = RealDisk(tmp_path).map("a", 4096, op="test", create=True)
    view = mapping.buffer
    assert len(os.listdir("/proc/self/fd")) > before
    del mapping
    view.release()
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before
