"""Files of a disk in memory: one inode, and a file mapped writable.

Not here: names, crashes and faults (`tests.fakes.disk`).
"""

from __future__ import annotations

import errno
import os
from random import Random
from typing import TYPE_CHECKING

from storage.errors import DiskError

if TYPE_CHECKING:
    from tests.fakes.disk import FakeDisk

PAGE_SIZE = 4096


class FakeFile:
    """One inode: what is in the page cache, and what is on the platter.

    Attributes:
        number: Inode number.
        content: What a process sees.
        durable: What a power loss leaves.
        written: Pages of a sparse file that have space; None when all have.
    """

    __slots__ = ("content", "durable", "number", "written")

    def __init__(self, number: int, size: int = 0) -> None:
        self.number = number
        self.written: set[int] | None = None
        self.content = bytearray(size)
        self.durable = bytearray()

    def needs_space(self, start: int, end: int) -> bool:
        """Return whether a write there needs space that the file has not."""
        if end > len(self.content):
            return True
        return self.written is not None and not self.written.issuperset(pages_of(start, end))

    def has_space(self, start: int, end: int) -> None:
        """Note that a write there had the space it needed."""
        if self.written is not None:
            self.written.update(pages_of(start, end))

    def flush(self) -> None:
        """Make all bytes and the length durable."""
        self.durable = bytearray(self.content)

    def grow(self, size: int) -> None:
        """Lengthen the file with zeros."""
        if size > len(self.content):
            self.content.extend(bytes(size - len(self.content)))

    def after_power_loss(self, rng: Random, page_size: int, kept_share: float) -> None:
        """Keep each unflushed page with probability ``kept_share``; start a new buffer."""
        old, seen = self.durable, self.content
        size = len(seen)
        if len(old) != size and rng.random() >= kept_share:
            size = len(old)
        survived = old[:size]
        survived.extend(bytes(size - len(survived)))
        if survived != seen[:size]:
            for at in range(0, size, page_size):
                page = seen[at : min(at + page_size, size)]
                if survived[at : at + len(page)] != page and rng.random() < kept_share:
                    survived[at : at + len(page)] = page
        self.content = survived
        self.durable = bytearray(survived)


class FakeMapping:
    """A file mapped writable: the buffer is the page cache itself."""

    __slots__ = ("_disk", "_file", "_open", "buffer", "path", "size")

    def __init__(self, disk: FakeDisk, path: str, file: FakeFile, size: int) -> None:
        self._disk = disk
        self._file = file
        self.path = path
        self.size = size
        self.buffer = memoryview(file.content)[:size]
        self._open = True

    def _use(self, op: str) -> None:
        if not self._open:
            raise DiskError("mapping.use", self.path, errno.EBADF)
        self._disk.called(op, self.path)

    def flush_range(self, start: int, end: int, op: str) -> None:
        """Make the pages of ``start..end`` durable, and no others: kinder disks flush more."""
        if start >= end:
            return
        self._use(op)
        page = self._disk.page_size
        file = self._file
        start -= start % page
        end = min(end + -end % page, len(file.content))
        if len(file.durable) < len(file.content):
            file.durable.extend(bytes(len(file.content) - len(file.durable)))
        file.durable[start:end] = file.content[start:end]

    def touch(self, start: int, end: int) -> None:
        """Nothing is ever cold here."""

    def release(self, start: int, end: int) -> None:
        """Nothing leaves this memory."""

    def lock(self, start: int, end: int) -> bool:
        """Refuse where the disk was told that memory may not be locked."""
        return self._disk.may_lock

    def unlock(self, start: int, end: int) -> None:
        """Nothing leaves this memory."""

    def expect_writes(self, huge: bool) -> None:
        """Pages are of one size here."""

    def zero(self, start: int, end: int, op: str) -> None:
        """Write zeros over ``start..end``."""
        if start >= end:
            return
        self._use(op)
        self.buffer[start:end] = bytes(end - start)

    def read(self, start: int, end: int, op: str) -> bytes:
        """Return a copy."""
        self._use(op)
        return bytes(memoryview(self._file.content)[start:end])

    def read_now(self, start: int, into: memoryview) -> bool:
        """Copy where the disk was told that its pages are in memory."""
        if not self._open or not self._disk.resident:
            return False
        part = memoryview(self._file.content)[start : start + len(into)]
        into[: len(part)] = part
        return len(part) == len(into)

    def expect_reads(self, start: int, end: int) -> None:
        """Note what was asked for."""
        self._disk.read_ahead.append((self.path, start, end))

    def send(self, to: int, start: int, end: int) -> int:
        """Write a copy."""
        if not self._open:
            raise DiskError("mapping.send", self.path, errno.EBADF)
        return os.write(to, memoryview(self._file.content)[start:end])

    def retire(self) -> None:
        """Let the buffer go; the file is still there."""
        self.buffer = memoryview(b"")

    def erase(self, op: str) -> None:
        """Overwrite the file, durably."""
        self._use(op)
        self._file.content[: self.size] = bytes(self.size)
        self._use(op + ".fsync")
        self._file.flush()

    def close(self) -> None:
        """Let the buffer go; slices that are still held keep it alive."""
        self._open = False
        self.buffer = memoryview(b"")

    def held(self) -> bool:
        """Whether a slice of a closed mapping is alive: its bytes cannot be moved then."""
        content = self._file.content
        try:
            content.append(0)
        except BufferError:
            return True
        content.pop()
        return False


class FakeMemory:
    """Memory without a file."""

    __slots__ = ("buffer", "locked")

    def __init__(self, size: int, *, locked: bool) -> None:
        self.buffer = memoryview(bytearray(size))
        self.locked = locked


def pages_of(start: int, end: int) -> range:
    return range(start // PAGE_SIZE, (end + PAGE_SIZE - 1) // PAGE_SIZE)
