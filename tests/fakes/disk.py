"""A disk in memory that forgets what nobody flushed.

It implements the `Disk` protocol of ``storage/disk/disk.py`` and passes the same conformance suite
as the real one. What it adds is the difference between what a process sees and what a power loss
leaves:

* each file has its *current* bytes and its *durable* bytes; `fsync` and `FakeMapping.flush_range`
  copy from the first to the second, whole pages at a time (``page_size``, 4096 unless a test wants
  other borders). Nothing tracks writes: at a crash every page that differs is kept or lost by
  chance, one by one, as a kernel would have written it back or not;
* the length of a file (fallocate, a growing write) is durable after a flush of that file;
* creations, renames and removals are durable after `fsync_dir`; before, each is kept or lost by
  itself, in the order in which they were made. A rename is one change, as in a journal, and
  belongs to the directory of the new name;
* `crash` with ``keep_page_cache`` is kill -9: everything stays. Without it the machine lost its
  power: the rules above apply and the boot id changes.

Faults: `FakeDisk.faults` (see `tests.fakes.faults`). Every call is counted, so that a test can
crash at each one.

Not modelled: torn sectors inside a page (use a smaller ``page_size``), hard links, permissions, an
fsync that lies. One thread at a time.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from storage.errors import DirectoryInUse, DiskError, DiskFull
from tests.fakes.faults import Faults
from tests.fakes.files import PAGE_SIZE, FakeFile, FakeMapping, FakeMemory

_DEVICE = 2049
"""Any number: the simulated machine has one block device."""


@dataclass(slots=True)
class _Change:
    """One change of the namespace that no directory fsync covers yet."""

    kind: str
    path: str
    target: str = ""
    file: FakeFile | None = None
    settled: bool = False


@dataclass(slots=True)
class _Names:
    """A namespace: files by path, and the directories that exist."""

    files: dict[str, FakeFile] = field(default_factory=dict)
    directories: dict[str, None] = field(default_factory=dict)

    def copy(self) -> _Names:
        return _Names(dict(self.files), dict(self.directories))

    def apply(self, change: _Change) -> None:
        """Make one change; one that has lost its ground does nothing."""
        match change.kind:
            case "create" if _parent(change.path) in self.directories:
                assert change.file is not None
                self.files[change.path] = change.file
            case "directory" if _parent(change.path) in self.directories:
                self.directories[change.path] = None
            case "remove":
                self.files.pop(change.path, None)
            case "rename" if _parent(change.target) in self.directories:
                assert change.file is not None
                self.files.pop(change.path, None)
                self.files[change.target] = change.file
            case "move" if _parent(change.target) in self.directories:
                self._move(change.path, change.target)
            case _:
                pass

    def _move(self, path: str, target: str) -> None:
        """Give a directory, with what is in it, another name."""
        for held in (self.files, self.directories):
            for name in [name for name in held if f"{name}/".startswith(f"{path}/")]:
                held[target + name[len(path) :]] = held.pop(name)  # type: ignore[assignment]


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


class FakeDisk:
    """The disk of one simulated node.

    Args:
        page_size: Bytes that survive or vanish together.
        seed: Source of `random_bytes`.
        total: Capacity that `free_bytes` reports, bytes.

    Attributes:
        faults: What goes wrong, and the record of operations.
        page_size: As given.
        may_lock: Whether memory may be locked.
        resident: Whether old files count as being in memory.
        read_ahead: What was to be brought into memory: path, start, end.
        capacity: Bytes that files may have in all, None for no limit; pages of sparse files count
            once they are written.
    """

    def __init__(
        self, *, page_size: int = PAGE_SIZE, seed: int | str = 0, total: int = 1 << 40
    ) -> None:
        self.page_size = page_size
        self.faults = Faults()
        self.may_lock = True
        self.resident = False
        self.read_ahead: list[tuple[str, int, int]] = []
        self._turned = False
        self._bytes = Random(seed)
        self._total = total
        self.crowded = False
        """Other files take most of the disk: it says that 5 % are free."""
        self._now = _Names(directories={"": None})
        self._durable = _Names(directories={"": None})
        self._pending: list[_Change] = []
        self._numbers = 1
        self._boot = 1
        self._locked = False
        self.capacity: int | None = None

    # -- faults

    def room(self) -> int:
        """Return how many bytes still fit."""
        if self.faults.full:
            return 1
        if self.capacity is None:
            return self._total // 2
        used = 0
        for file in self._now.files.values():
            sparse = file.written
            used += len(file.content) if sparse is None else len(sparse) * PAGE_SIZE
        return max(self.capacity - used, 0)

    def called(self, op: str, path: str, *, needs_space: bool = False, more: int = 0) -> None:
        """Count one call and meet its fault, if one is due.

        Raises:
            DiskError: An armed error.
            DiskFull: ENOSPC, armed or because the disk is full.
            SimulatedCrash: The process dies here.
        """
        number = self.faults.called(op, path)
        if number is None and needs_space and self.faults.full:
            number = errno.ENOSPC
        if number is None and needs_space and self.capacity is not None and self.room() < more:
            number = errno.ENOSPC
        if number is None:
            return
        if number == errno.ENOSPC:
            raise DiskFull(op, path, number)
        raise DiskError(op, path, number)

    def _file(self, path: str, op: str) -> FakeFile:
        file = self._now.files.get(path)
        if file is None:
            raise DiskError(op, path, errno.ENOENT)
        return file

    def _change(self, change: _Change) -> None:
        self._now.apply(change)
        self._pending.append(change)

    def _create(self, path: str, op: str, size: int = 0) -> FakeFile:
        if _parent(path) not in self._now.directories:
            raise DiskError(op, path, errno.ENOENT)
        self._numbers += 1
        file = FakeFile(self._numbers, size)
        self._change(_Change("create", path, file=file))
        return file

    # -- the protocol: mapped files

    def map(self, path: str, size: int, *, op: str, create: bool = False) -> FakeMapping:
        """Map ``size`` bytes; with ``create`` the file is made, allocated and zero."""
        self.called(op, path, needs_space=create, more=size)
        file = self._now.files.get(path)
        if file is None and create:
            file = self._create(path, op, size)
        if file is None:
            raise DiskError(op, path, errno.ENOENT)
        if create:
            file.grow(size)
        if len(file.content) < size:
            raise DiskError(op, path, errno.EINVAL)
        return FakeMapping(self, path, file, size)

    def memory(self, size: int) -> FakeMemory:
        """Return memory that a crash loses."""
        return FakeMemory(size, locked=self.may_lock)

    def together(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Do one after the other, in one order and the next time in the other: both happen."""
        self._turned = not self._turned
        for work in (second, first) if self._turned else (first, second):
            work()

    def create_sparse(self, path: str, size: int, op: str) -> None:
        """Make a file of ``size`` zeros without allocating."""
        self.called(op, path, needs_space=True, more=1)
        file = self._now.files.get(path)
        if file is None:
            self._create(path, op, size).written = set()
        else:
            del file.content[size:]
            file.grow(size)

    # -- the protocol: small files

    def read(self, path: str, op: str) -> bytes:
        """Return the whole file."""
        self.called(op, path)
        return bytes(self._file(path, op).content)

    def read_at(self, path: str, offset: int, length: int, op: str) -> bytes:
        """Return up to ``length`` bytes from ``offset``."""
        self.called(op, path)
        return bytes(self._file(path, op).content[offset : offset + length])

    def look(self, path: str, size: int, places: Sequence[int], length: int) -> list[bytes] | None:
        """Return ``length`` bytes at each of ``places``; None unless it is a file of ``size``."""
        file = self._now.files.get(path)
        if file is None or len(file.content) != size:
            return None
        return [self.read_at(path, at, length, "look") for at in places]

    def write_at(self, path: str, offset: int, data: bytes | memoryview, op: str) -> None:
        """Write inside a file, growing it where needed; one that fails has written its half."""
        file = self._file(path, op)
        end = offset + len(data)
        try:
            self.called(op, path, needs_space=file.needs_space(offset, end), more=len(data))
        except DiskError:
            half = min(len(data) // 2, len(file.content) - offset)
            if half > 0 and not file.needs_space(offset, offset + half):
                file.content[offset : offset + half] = data[:half]
            raise
        file.has_space(offset, end)
        file.grow(end)
        file.content[offset:end] = data

    def write_file(self, path: str, data: bytes, op: str) -> None:
        """Replace a file durably: aside, fsync, rename, fsync of the directory."""
        aside = path + ".new"
        self.called(op, path, needs_space=True, more=len(data))
        self._now.files.pop(aside, None)
        file = self._create(aside, op)
        file.content[:] = data
        self.called(op + ".fsync", path)
        file.flush()
        self.called(op + ".rename", path)
        self._change(_Change("rename", aside, path, file=file))
        self.fsync_dir(_parent(path), op + ".fsync_dir")

    # -- the protocol: durability

    def fsync(self, path: str, op: str) -> None:
        """Make a file's bytes and length durable."""
        self.called(op, path)
        self._file(path, op).flush()

    def sync_all(self, op: str) -> bool:
        """Make every file and every name durable."""
        self.called(op, ".")
        for file in self._now.files.values():
            file.flush()
        for change in self._pending:
            self._durable.apply(change)
        self._pending = []
        return True

    def fsync_dir(self, path: str, op: str) -> None:
        """Make creations, renames and removals in a directory durable."""
        directory = "" if path == "." else path
        self.called(op, path)
        if directory not in self._now.directories:
            raise DiskError(op, path, errno.ENOENT)
        left: list[_Change] = []
        for change in self._pending:
            parent = _parent(change.target or change.path)
            change.settled = change.settled or parent == directory
            if change.settled and parent in self._durable.directories:
                self._durable.apply(change)
            else:  # also what is settled in a directory whose own name may still be lost
                left.append(change)
        self._pending = left

    # -- the protocol: names

    def exists(self, path: str) -> bool:
        """True when a file or directory has this name."""
        return path in self._now.files or path in self._now.directories

    def size(self, path: str) -> int:
        """Length of a file, bytes."""
        return len(self._file(path, "size").content)

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted; empty when there is none."""
        path = "" if path == "." else path
        found = [name for name in (*self._now.files, *self._now.directories) if name]
        return sorted(name.rpartition("/")[2] for name in found if _parent(name) == path)

    def make_dir(self, path: str, op: str) -> None:
        """Make a directory and those above it."""
        self.called(op, path)
        parts = path.split("/")
        for count in range(1, len(parts) + 1):
            name = "/".join(parts[:count])
            if name not in self._now.directories:
                self._change(_Change("directory", name))

    def rename(self, path: str, target: str, op: str) -> None:
        """Give a file another name, replacing what has it; or a directory, with what is in it."""
        self.called(op, path)
        if path in self._now.directories and _parent(target) in self._now.directories:
            self._change(_Change("move", path, target))
            return
        file = self._file(path, op)
        if _parent(target) not in self._now.directories:
            raise DiskError(op, path, errno.ENOENT)
        if path != target:
            self._change(_Change("rename", path, target, file=file))

    def remove(self, path: str, op: str) -> None:
        """Remove a file."""
        self.called(op, path)
        self._file(path, op)
        self._change(_Change("remove", path))

    # -- the protocol: the machine

    def free_bytes(self, path: str = ".") -> tuple[int, int]:
        """Free and total bytes."""
        total = self._total if self.capacity is None else self.capacity
        return (total // 20 if self.crowded else self.room()), total

    def lock(self, op: str) -> None:
        """Take the data directory for this process."""
        self.called(op, "lock")
        if self._locked:
            raise DirectoryInUse("another process holds the data directory")
        if "lock" not in self._now.files:
            self._create("lock", op, 4)
        self._locked = True

    def unlock(self) -> None:
        """Give the data directory back."""
        self._locked = False

    def boot_id(self) -> str | None:
        """Id of this boot of the machine."""
        return f"boot-{self._boot}"

    def device(self) -> int:
        """Number of the block device."""
        return _DEVICE

    def inode(self, path: str) -> int:
        """Number of a file's inode."""
        return self._file(path, "inode").number

    def random_bytes(self, count: int) -> bytes:
        """Bytes from the seed: store ids, start ids."""
        return self._bytes.randbytes(count)

    # -- what the world does

    def crash(self, *, keep_page_cache: bool, rng: Random) -> None:
        """End the process; without ``keep_page_cache`` the machine loses its power."""
        self._locked = False
        self.faults.forget()
        if keep_page_cache:
            return
        self._boot += 1
        names = self._durable
        for change in self._pending:
            if change.settled or rng.random() < 0.5:
                names.apply(change)
        self._pending = []
        kept_share = rng.choice((0.0, 0.1, 0.5, 0.9, 1.0))
        for path in sorted(names.files):
            names.files[path].after_power_loss(rng, self.page_size, kept_share)
        self._now = names
        self._durable = names.copy()

    def copy(self, seed: int | str) -> FakeDisk:
        """Return the directory as a backup tool copies it: same bytes, other inodes, durable."""
        made = FakeDisk(page_size=self.page_size, seed=seed, total=self._total)
        made._boot = self._boot
        made._numbers = self._numbers + 1
        for name in self._now.directories:
            made._now.directories[name] = None
        for path, file in self._now.files.items():
            made._numbers += 1
            twin = FakeFile(made._numbers)
            twin.content[:] = file.content
            twin.flush()
            made._now.files[path] = twin
        made._durable = made._now.copy()
        return made

    def is_durable(self, path: str, start: int, end: int) -> bool:
        """True when a power loss now could not change these bytes of this file."""
        file = self._now.files.get(path)
        if file is None or self._durable.files.get(path) is not file:
            return False
        return len(file.durable) >= end and file.durable[start:end] == file.content[start:end]

    def write_back(self, rng: Random, share: float) -> None:
        """The kernel writes some dirty pages back by itself."""
        for path in sorted(self._now.files):
            file = self._now.files[path]
            if len(file.durable) != len(file.content):
                continue
            for at in range(0, len(file.content), self.page_size):
                if rng.random() < share:
                    end = at + self.page_size
                    file.durable[at:end] = file.content[at:end]

    def rot(self, path: str, at: int) -> None:
        """Flip a bit of a file, on the platter and in the page cache; nobody is told."""
        file = self._now.files[path]
        file.content[at] ^= 1
        if at < len(file.durable):
            file.durable[at] ^= 1

    def peek(self, path: str) -> bytearray | None:
        """The current bytes of a file, for a judge: no call, no fault, no copy."""
        file = self._now.files.get(path)
        return None if file is None else file.content
