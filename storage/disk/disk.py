"""The only way from the storage engine to files: a protocol, and the real disk.

Every call that changes or reads bytes carries ``op``, the name of the operation it belongs to
(``log.roll.create``, ``cut.intent.write``), so that a test can make the third fsync of a cut fail
by that name. Paths are relative to the data directory, with ``/``. Errors of the operating system
are raised as `DiskError`, a full disk as `DiskFull`; both name operation and path.

Facts this rests on (Linux; measured with CPython 3.11):

* ``mmap.flush`` holds the interpreter lock for as long as the disk takes, ``os.fdatasync`` does
  not, and it flushes the pages that were written through a mapping; so mappings keep their
  descriptor;
* a sparse mapping on a full disk ends in SIGBUS: mapped files are allocated when they are created,
  sparse files are only ever written with ``pwrite``;
* FALLOC_FL_ZERO_RANGE under a live shared mapping shows zeros at once and takes milliseconds for
any length. On file systems without it (tmpfs, overlay) zeros are written;
* a POSIX record lock belongs to the process and is released by any close of the file. We take an
  open file description lock on the same byte: it conflicts with RocketMQ's lock and with a second
  store in this process.

`Mapping.flush_range` and `Mapping.touch` may run in a worker thread while others write to the
buffer; everything else is called by the store's owner, or by a job while the owner does not use
those files. No call waits for a call about another file (`storage.disk.descriptors`).

macOS has neither zero range nor open file description locks; the fallbacks are slower or exclude
less, but are correct.

Not here: which file holds what.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from storage.disk.descriptors import Descriptors
from storage.disk.drill_faults import DrillFaults
from storage.disk.mapping import (
    PAGE,
    Mapping,
    Memory,
    RealMapping,
    RealMemory,
    data_sync,
    sync_file_system,
)
from storage.disk.thread_names import name_thread
from storage.errors import DirectoryInUse, disk_error

__all__ = ["PAGE", "Disk", "Mapping", "Memory", "RealDisk"]

_ALLOCATE_STEP = 4 * 1024 * 1024
_TOGETHER_MAX = 4
"""Threads that run the second call of a pair (`Disk.together`); jobs may run several pairs at
once."""
_DESCRIPTORS_MAX = 512
"""Open descriptors of unmapped files; a node with more queues opens them again when needed."""


class Disk(Protocol):
    """The data directory; see the module's text."""

    def map(self, path: str, size: int, *, op: str, create: bool = False) -> Mapping:
        """Map ``size`` bytes; with ``create`` the file is made if needed, allocated and zero."""
        ...

    def memory(self, size: int) -> Memory:
        """Return memory without a file, locked if this process may."""
        ...

    def together(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Run both at the same time; return when both have ended. An error of either is raised."""
        ...

    def create_sparse(self, path: str, size: int, op: str) -> None:
        """Make a file of ``size`` zeros without allocating; only for `write_at`."""
        ...

    def read(self, path: str, op: str) -> bytes:
        """Return the whole file."""
        ...

    def read_at(self, path: str, offset: int, length: int, op: str) -> bytes:
        """Return up to ``length`` bytes from ``offset``; fewer at the end of the file."""
        ...

    def look(self, path: str, size: int, places: Sequence[int], length: int) -> list[bytes] | None:
        """Return ``length`` bytes at each of ``places``; None unless it is a file of ``size``.

        For files that are seldom used: the descriptor is not kept open.
        """
        ...

    def write_at(self, path: str, offset: int, data: bytes | memoryview, op: str) -> None:
        """Write all of ``data`` into an existing file, growing it where needed."""
        ...

    def write_file(self, path: str, data: bytes, op: str) -> None:
        """Replace a file durably: ``.new`` aside, fsync, rename, fsync of the directory."""
        ...

    def fsync(self, path: str, op: str) -> None:
        """Return when the file's bytes and length are on the disk."""
        ...

    def fsync_dir(self, path: str, op: str) -> None:
        """Return when creations, renames and removals in the directory are on the disk."""
        ...

    def sync_all(self, op: str) -> bool:
        """Make everything on the file system durable; False where there is no such call."""
        ...

    def exists(self, path: str) -> bool:
        """Whether a file or directory has this name."""
        ...

    def size(self, path: str) -> int:
        """Length of a file, bytes."""
        ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is no such directory."""
        ...

    def make_dir(self, path: str, op: str) -> None:
        """Make a directory and those above it, where missing."""
        ...

    def rename(self, path: str, target: str, op: str) -> None:
        """Give a file another name, replacing what has it."""
        ...

    def remove(self, path: str, op: str) -> None:
        """Remove a file."""
        ...

    def free_bytes(self, path: str = ".") -> tuple[int, int]:
        """Free and total bytes of the file system that holds the directory ``path``."""
        ...

    def lock(self, op: str) -> None:
        """Take the data directory; raises `DirectoryInUse`."""
        ...

    def unlock(self) -> None:
        """Give the data directory back."""
        ...

    def boot_id(self) -> str | None:
        """Id of this boot of the kernel; None where it cannot be read."""
        ...

    def device(self) -> int:
        """Number of the device that holds the data directory."""
        ...

    def inode(self, path: str) -> int:
        """Number of a file's inode."""
        ...

    def random_bytes(self, count: int) -> bytes:
        """Unpredictable bytes; in the simulator they come from its seed."""
        ...


class RealDisk:
    """The data directory ``root`` of this machine.

    Args:
        root: Made, with the directories above it, if missing.
        descriptors_max: Unmapped files that are open at the same time.
        drill: What a drill wants to go wrong; None: nothing.
    """

    def __init__(
        self,
        root: Path,
        *,
        descriptors_max: int = _DESCRIPTORS_MAX,
        drill: DrillFaults | None = None,
    ) -> None:
        self.root = root
        self._drill = drill
        self._prefix = os.path.join(root, "")
        self._open = Descriptors(descriptors_max, _open_file)
        self._guard = threading.Lock()
        self._lock = -1
        self._helper: ThreadPoolExecutor | None = None
        try:
            root.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise disk_error("open.make-dir", str(root), error) from None

    def _path(self, path: str) -> str:
        return path if path[:1] == "/" else self._prefix + path  # a log folder elsewhere

    def map(self, path: str, size: int, *, op: str, create: bool = False) -> RealMapping:
        """See `Disk`. A created file that meets a full disk is removed again."""
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        made = create and not self.exists(path)
        descriptor = -1
        try:
            if made and self._drill is not None:
                self._drill.create()
            descriptor = os.open(self._path(path), flags, 0o644)
            if create:
                _allocate(descriptor, size)
            elif os.fstat(descriptor).st_size < size:
                raise OSError(errno.EINVAL, "shorter than its size")
            return RealMapping(path, descriptor, size, self._drill)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
                if made:
                    os.unlink(self._path(path))
            raise disk_error(op, path, error) from None

    def memory(self, size: int) -> RealMemory:
        """See `Disk`."""
        return RealMemory(size)

    def together(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """See `Disk`. The second runs in a thread that is kept for the next call."""
        with self._guard:
            if self._helper is None:
                self._helper = ThreadPoolExecutor(
                    _TOGETHER_MAX, "flush", name_thread, ("flush beside",)
                )
            running = self._helper.submit(second)
        try:
            first()
        finally:
            failed = running.exception()
        if failed is not None:
            raise failed

    def create_sparse(self, path: str, size: int, op: str) -> None:
        """See `Disk`."""
        try:
            if self._drill is not None:
                self._drill.create()
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(self._path(path), flags, 0o644)
            try:
                os.ftruncate(descriptor, size)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise disk_error(op, path, error) from None

    def read(self, path: str, op: str) -> bytes:
        """See `Disk`."""
        try:
            return Path(self._path(path)).read_bytes()
        except OSError as error:
            raise disk_error(op, path, error) from None

    def read_at(self, path: str, offset: int, length: int, op: str) -> bytes:
        """See `Disk`."""
        try:
            found = self._open.pin(self._path(path))  # every read of a queue comes through here
            try:
                return os.pread(found.descriptor, length, offset)
            finally:
                self._open.leave(found)
        except OSError as error:
            raise disk_error(op, path, error) from None

    def look(self, path: str, size: int, places: Sequence[int], length: int) -> list[bytes] | None:
        """See `Disk`."""
        try:
            descriptor = os.open(self._path(path), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_error("look", path, error) from None
        try:
            if os.fstat(descriptor).st_size != size:
                return None
            return [os.pread(descriptor, length, at) for at in places]
        except OSError as error:
            raise disk_error("look", path, error) from None
        finally:
            os.close(descriptor)

    def write_at(self, path: str, offset: int, data: bytes | memoryview, op: str) -> None:
        """See `Disk`."""
        try:
            found = self._open.pin(self._path(path))
            try:
                done = os.pwrite(found.descriptor, data, offset)
                while done < len(data):
                    rest = memoryview(data)[done:]
                    done += os.pwrite(found.descriptor, rest, offset + done)
            finally:
                self._open.leave(found)
        except OSError as error:
            raise disk_error(op, path, error) from None

    def write_file(self, path: str, data: bytes, op: str) -> None:
        """See `Disk`."""
        aside = self._path(path + ".new")
        try:
            if self._drill is not None:
                self._drill.flush()
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
            descriptor = os.open(aside, flags, 0o644)
            try:
                view = memoryview(data)
                while view:
                    view = view[os.write(descriptor, view) :]
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.rename(aside, self._path(path))
        except OSError as error:
            raise disk_error(op, path, error) from None
        self._open.forget(self._path(path))
        self.fsync_dir(path.rpartition("/")[0] or ".", op + ".fsync_dir")

    def fsync(self, path: str, op: str) -> None:
        """See `Disk`. Uses its own descriptor, so that no other thread waits for this one."""
        self._sync(path, os.O_RDWR, op, data_sync)

    def fsync_dir(self, path: str, op: str) -> None:
        """See `Disk`."""
        self._sync(path, os.O_RDONLY | os.O_DIRECTORY, op, os.fsync)

    def _sync(self, path: str, flags: int, op: str, sync: Callable[[int], None]) -> None:
        try:
            if self._drill is not None:
                self._drill.flush()
            descriptor = os.open(self._path(path), flags | os.O_CLOEXEC)
            try:
                sync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise disk_error(op, path, error) from None

    def sync_all(self, op: str) -> bool:
        """See `Disk`. Linux reports write errors here since 5.8."""
        try:
            descriptor = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                return sync_file_system(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise disk_error(op, ".", error) from None

    def exists(self, path: str) -> bool:
        """See `Disk`."""
        return os.path.exists(self._path(path))

    def size(self, path: str) -> int:
        """See `Disk`."""
        try:
            return os.stat(self._path(path)).st_size
        except OSError as error:
            raise disk_error("size", path, error) from None

    def list(self, path: str) -> list[str]:
        """See `Disk`."""
        try:
            return sorted(os.listdir(self._path(path)))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise disk_error("list", path, error) from None

    def make_dir(self, path: str, op: str) -> None:
        """See `Disk`."""
        try:
            os.makedirs(self._path(path), exist_ok=True)
        except OSError as error:
            raise disk_error(op, path, error) from None

    def rename(self, path: str, target: str, op: str) -> None:
        """See `Disk`."""
        name, new = self._path(path), self._path(target)
        held = self._open.take(name, new)
        try:
            os.rename(name, new)
        except OSError as error:
            if held is not None:
                self._open.leave(held)
            raise disk_error(op, path, error) from None
        self._open.forget(name, new)
        if held is not None:
            self._open.put(new, held)

    def remove(self, path: str, op: str) -> None:
        """See `Disk`."""
        name = self._path(path)
        self._open.forget(name)
        try:
            os.unlink(name)
        except OSError as error:
            raise disk_error(op, path, error) from None
        self._open.forget(name)

    def free_bytes(self, path: str = ".") -> tuple[int, int]:
        """See `Disk`."""
        try:
            found = os.statvfs(self._path(path))
        except OSError as error:
            raise disk_error("free-bytes", path, error) from None
        # As df and RocketMQ count: blocks reserved for root are neither free nor in use.
        free, used = found.f_bavail, found.f_blocks - found.f_bfree
        if self._drill is not None and self._drill.full:
            free, used = 0, free + used
        return free * found.f_frsize, (free + used) * found.f_frsize

    def lock(self, op: str) -> None:
        """See `Disk`. The file stays; its content, four bytes, is as RocketMQ writes it."""
        descriptor = -1
        try:
            descriptor = os.open(self._path("lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            _take(descriptor)
            os.pwrite(descriptor, b"lock", 0)
            os.fsync(descriptor)
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            if descriptor >= 0 and error.errno in (errno.EAGAIN, errno.EACCES):
                raise DirectoryInUse(
                    f"another process holds the data directory {self.root}",
                    hint="stop that process, or use another data directory",
                    directory=str(self.root),
                ) from None
            raise disk_error(op, "lock", error) from None
        self._lock = descriptor

    def unlock(self) -> None:
        """See `Disk`. Also closes all descriptors; calling it twice does nothing."""
        self._open.close()
        with self._guard:
            if self._helper is not None:
                self._helper.shutdown(wait=False)
                self._helper = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def boot_id(self) -> str | None:
        """See `Disk`."""
        try:
            found = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        except OSError:
            return None
        return self._drill.boot_id(found) if found and self._drill is not None else found or None

    def device(self) -> int:
        """See `Disk`."""
        return os.stat(self.root).st_dev

    def inode(self, path: str) -> int:
        """See `Disk`."""
        try:
            return os.stat(self._path(path)).st_ino
        except OSError as error:
            raise disk_error("inode", path, error) from None

    def random_bytes(self, count: int) -> bytes:
        """See `Disk`."""
        return os.urandom(count)


def _open_file(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _allocate(descriptor: int, size: int) -> None:
    """Allocate ``size`` bytes of disk for the file."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, size)
        return
    at = os.fstat(descriptor).st_size
    while at < size:
        at += os.pwrite(descriptor, bytes(min(_ALLOCATE_STEP, size - at)), at)


def _take(descriptor: int) -> None:
    """Lock byte 0 for writing, without waiting."""
    kind = getattr(fcntl, "F_OFD_SETLK", None)
    if kind is None:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0, 0)
        return
    flock = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)
    fcntl.fcntl(descriptor, kind, flock)
