"""Mapped files: the protocol, the real implementation, and locked memory without a file.

Beyond reading and writing, a mapping gives the kernel advice, which may be refused without harm:
populate pages ahead of the writer, release old ones, use huge pages, lock memory.

Facts this rests on (Linux 6.18, ext4, a virtual machine; `benchmarks/log/fresh_pages.c` measures
them):

* a fresh page is expensive when the host has to provide the memory: 2 to 3 ms of CPU per MiB,
against 0.2 ms for memory that this machine freed a moment ago. How the bytes get in (a touched
mapping, faults while copying, ``pwrite``) changes little. So releasing old pages as fast as new
ones are populated costs a tenth;
* huge pages (MADV_HUGEPAGE on the mapping of a file being written) make touching, cleaning at a
  flush and unmapping cheaper by a third; but a flush then writes 2 MiB for one dirty byte, so a
  store with synchronous flushes does not use them;
* POSIX_FADV_DONTNEED skips pages that a process has mapped, so MADV_DONTNEED comes first. Bytes are
  safe in either order: both drop clean pages only.

Not here: names and directories (`storage.disk.disk`), when to advise what
(`storage.log.page_advice`).
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import socket
import threading
from typing import Protocol

from storage.disk.drill_faults import DrillFaults
from storage.errors import DiskError, disk_error

PAGE = 4096
_ZERO_BY_HAND_MAX = 64 * 1024
"""Shorter ranges are cheaper to overwrite than to hand to the file system."""
_TOUCH_STEP = 4 * 1024 * 1024
_HUGE_MIN = 4 * 1024 * 1024
"""Files below this size gain nothing from pages of 2 MiB."""
_MADV_DONTNEED = 4
_MADV_HUGEPAGE = 14
_MADV_NOHUGEPAGE = 15
_MADV_POPULATE_WRITE = 23
_FALLOC_FL_ZERO_RANGE = 0x10
_NOWAIT = getattr(os, "RWF_NOWAIT", 0)
_NOT_LENT = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
"""Errors of sendfile on a file system that does not support it."""
LEND_MIN = 64 * 1024
"""Shorter pieces are copied, which is cheaper than a sendfile call."""


class Mapping(Protocol):
    """A file of fixed length in memory, readable and writable.

    Attributes:
        buffer: The file's bytes; a view of it stays valid after `close`.
        size: Bytes.
    """

    buffer: memoryview
    size: int

    def flush_range(self, start: int, end: int, op: str) -> None:
        """Return when bytes ``start..end``, as they were when called, are on the disk."""
        ...

    def touch(self, start: int, end: int) -> None:
        """Make the pages of the range present and writable, without changing a byte."""
        ...

    def release(self, start: int, end: int) -> None:
        """Drop the clean pages of the range from memory; whole pages only, no byte changes."""
        ...

    def lock(self, start: int, end: int) -> bool:
        """Keep the pages of the range in memory; False when this process may not."""
        ...

    def unlock(self, start: int, end: int) -> None:
        """Undo `lock`; does nothing to a range that is not locked."""
        ...

    def expect_writes(self, huge: bool) -> None:
        """Say whether the file is being written; with ``huge`` in pages of 2 MiB, if available."""
        ...

    def zero(self, start: int, end: int, op: str) -> None:
        """Make the range zeros, in memory and, after a flush, on the disk."""
        ...

    def read(self, start: int, end: int, op: str) -> bytes:
        """Return a copy of bytes ``start..end``, read with ``pread``, not through the mapping.

        For bytes that may have to come from the disk: a page fault holds the interpreter lock, so
        all threads would wait, and a disk error during it kills the process (SIGBUS). Works after
        `retire`.

        Raises:
            DiskError: They cannot be read, or the mapping was closed.
        """
        ...

    def read_now(self, start: int, into: memoryview) -> bool:
        """Fill ``into`` with the bytes from ``start`` on, if all of them are in memory.

        False: some must come from the disk, or the system cannot tell; ``into`` may be partly
        filled. Never waits for the disk.
        """
        ...

    def expect_reads(self, start: int, end: int) -> None:
        """Ask the system to read the range ahead; may be refused without harm."""
        ...

    def send(self, to: int, start: int, end: int) -> int:
        """Send bytes ``start..end`` to the socket descriptor ``to``; return how many it took.

        Uses sendfile, which copies nothing: bytes that are overwritten before they have left reach
        the peer as overwritten.

        Raises:
            BlockingIOError: The socket takes nothing now.
            OSError: The socket's error, or the disk's.
            DiskError: The mapping was closed, or sendfile is not supported for its file: send a
                copy.
        """
        ...

    def retire(self) -> None:
        """Hand out no more views; `read` and `erase` still reach the file until `close`."""
        ...

    def erase(self, op: str) -> None:
        """Overwrite the file with zeros, durably, even if it was renamed; after `retire`.

        A file that has another name, in a snapshot of the node, is left as it is.

        Raises:
            DiskError: Part of it may be overwritten.
        """
        ...

    def close(self) -> None:
        """Close the file; views that are still held keep the memory alive."""
        ...

    def held(self) -> bool:
        """Whether a view of a retired or closed mapping is still in use."""
        ...


class Loan:
    """Bytes of a mapped file on their way to a socket, at least `LEND_MIN`.

    It holds a view, so `Mapping.held` is true until all bytes have been sent. Bytes that the socket
    took and the peer has not received are still pages of the file: if the file is erased or cut at
    that moment, the peer gets zeros and notices by the CRC, which was computed before. A file that
    is only removed keeps its bytes until they have left.
    """

    __slots__ = ("_mapping", "_start", "_view")

    def __init__(self, mapping: Mapping, start: int, view: memoryview) -> None:
        self._mapping = mapping
        self._start = start
        self._view = view

    def __len__(self) -> int:
        return len(self._view)

    def give(self, sock: socket.socket) -> int:
        """Send what the socket takes now, at least one byte; a closed mapping's bytes are copied.

        Raises:
            OSError: As `Mapping.send`.
        """
        start = self._start
        try:
            return self._mapping.send(sock.fileno(), start, start + len(self._view))
        except DiskError:
            return sock.send(self._view)

    @property
    def view(self) -> memoryview:
        """The bytes, for a socket that needs a copy of them."""
        return self._view

    def after(self, count: int) -> Loan | memoryview:
        """Return the rest after ``count`` bytes were sent."""
        rest = self._view[count:]
        return rest if len(rest) < LEND_MIN else Loan(self._mapping, self._start + count, rest)


class Memory(Protocol):
    """Anonymous memory, without a file.

    Attributes:
        buffer: Zeros at first.
        locked: Whether it is locked in memory; False if this process may lock no more.
    """

    buffer: memoryview
    locked: bool


def _libc() -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(None, use_errno=True)
    except OSError:
        return None


_LIBC = _libc()


def _zero_range(descriptor: int, start: int, length: int) -> bool:
    """Ask the file system for zeros; False where it has no such call."""
    call = getattr(_LIBC, "fallocate", None) if _LIBC is not None else None
    if call is None:
        return False
    status = call(
        ctypes.c_int(descriptor),
        ctypes.c_int(_FALLOC_FL_ZERO_RANGE),
        ctypes.c_longlong(start),
        ctypes.c_longlong(length),
    )
    return bool(status == 0)


def data_sync(descriptor: int) -> None:
    """Flush a file's bytes and its length; not its times, which would cost a journal commit."""
    os.fdatasync(descriptor) if hasattr(os, "fdatasync") else os.fsync(descriptor)


def sync_file_system(descriptor: int) -> bool:
    """Make everything on a file system durable; False where the C library cannot.

    Raises:
        OSError: Some data could not be written.
    """
    call = getattr(_LIBC, "syncfs", None) if _LIBC is not None else None
    if call is None:
        return False
    if call(ctypes.c_int(descriptor)):
        raise OSError(ctypes.get_errno() or errno.EIO, "syncfs")
    return True


def _memory_call(name: str, area: mmap.mmap, start: int, length: int, *more: int) -> bool:
    """Call the C library on a part of a mapping; False if the call is missing or fails."""
    call = getattr(_LIBC, name, None) if _LIBC is not None else None
    if call is None or area.closed:
        return False
    first = ctypes.c_char.from_buffer(area, start)
    address = ctypes.c_void_p(ctypes.addressof(first))
    status = call(address, ctypes.c_size_t(length), *(ctypes.c_int(value) for value in more))
    return bool(status == 0)


class RealMemory:
    """Anonymous memory, locked where the limit RLIMIT_MEMLOCK allows it."""

    def __init__(self, size: int) -> None:
        self._map = mmap.mmap(-1, size)
        self.buffer = memoryview(self._map)
        self.locked = _memory_call("mlock", self._map, 0, size)


class RealMapping:
    """A mapped file and its descriptor, which outlives `close` until a running flush returns."""

    def __init__(
        self, path: str, descriptor: int, size: int, drill: DrillFaults | None = None
    ) -> None:
        self.path = path
        self._drill = drill
        self.size = size
        self._descriptor = descriptor
        self._map = mmap.mmap(descriptor, size)
        self.buffer = memoryview(self._map)
        self._users = 1
        self._closed = False
        self._guard = threading.Lock()

    def __del__(self) -> None:
        """Close the descriptor of a mapping that was let go without `close`, as files do."""
        if getattr(self, "_users", 0):  # 0 where `mmap` refused: the caller closes it
            os.close(self._descriptor)

    def _enter(self) -> int:
        with self._guard:
            if self._users == 0:
                raise DiskError("mapping.use", self.path, errno.EBADF)
            self._users += 1
            return self._descriptor

    def _leave(self) -> None:
        with self._guard:
            self._users -= 1
            if self._users:
                return
        os.close(self._descriptor)

    def flush_range(self, start: int, end: int, op: str) -> None:
        """See `Mapping`. Flushes the whole file: there is no call for a part that also waits."""
        if start >= end:
            return
        descriptor = self._enter()
        try:
            if self._drill is not None:
                self._drill.flush()
            data_sync(descriptor)
            if self._drill is not None:
                self._drill.flushed(descriptor, end)
        except OSError as error:
            raise disk_error(op, self.path, error) from None
        finally:
            self._leave()

    def touch(self, start: int, end: int) -> None:
        """See `Mapping`. Advice only: a kernel before 5.14 gets plain reads."""
        buffer = self.buffer  # a cut may close this mapping meanwhile: the view keeps its pages
        start -= start % PAGE
        end = min(end, len(buffer))
        for at in range(start, end, _TOUCH_STEP):
            length = min(_TOUCH_STEP, end - at)
            if not self._populate(at, length):
                for page in range(at, at + length, PAGE):
                    _ = buffer[page]

    def _populate(self, start: int, length: int) -> bool:
        return _memory_call("madvise", self._map, start, length, _MADV_POPULATE_WRITE)

    def release(self, start: int, end: int) -> None:
        """See `Mapping`."""
        start += -start % PAGE
        end -= end % PAGE
        if start >= end:
            return
        try:
            descriptor = self._enter()
        except DiskError:
            return  # closed by a cut: the file and its pages are gone
        try:
            _memory_call("madvise", self._map, start, end - start, _MADV_DONTNEED)
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_DONTNEED)
        except OSError:
            return  # advice, may fail
        finally:
            self._leave()

    def lock(self, start: int, end: int) -> bool:
        """See `Mapping`."""
        start -= start % PAGE
        return start >= end or _memory_call("mlock", self._map, start, end - start)

    def unlock(self, start: int, end: int) -> None:
        """See `Mapping`."""
        start -= start % PAGE
        if start < end:
            _memory_call("munlock", self._map, start, end - start)

    def expect_writes(self, huge: bool) -> None:
        """See `Mapping`."""
        if self.size >= _HUGE_MIN:
            advice = _MADV_HUGEPAGE if huge else _MADV_NOHUGEPAGE
            _memory_call("madvise", self._map, 0, self.size, advice)

    def zero(self, start: int, end: int, op: str) -> None:
        """See `Mapping`."""
        if start >= end:
            return
        descriptor = self._enter()
        try:
            long = end - start > _ZERO_BY_HAND_MAX
            if not long or not _zero_range(descriptor, start, end - start):
                for at in range(start, end, _TOUCH_STEP):
                    stop = min(at + _TOUCH_STEP, end)
                    self.buffer[at:stop] = bytes(stop - at)
        finally:
            self._leave()

    def read(self, start: int, end: int, op: str) -> bytes:
        """See `Mapping`."""
        descriptor = self._enter()
        try:
            data = os.pread(descriptor, end - start, start)
            while 0 < len(data) < end - start:  # interrupted, or longer than one call can return
                more = os.pread(descriptor, end - start - len(data), start + len(data))
                if not more:
                    break
                data += more
        except OSError as error:
            raise disk_error(op, self.path, error) from None
        finally:
            self._leave()
        return data

    def read_now(self, start: int, into: memoryview) -> bool:
        """See `Mapping`."""
        if not _NOWAIT:
            return False
        try:
            descriptor = self._enter()
        except DiskError:
            return False
        try:
            return os.preadv(descriptor, [into], start, _NOWAIT) == len(into)
        except OSError:  # EAGAIN: not in memory; EOPNOTSUPP: the file system cannot tell
            return False
        finally:
            self._leave()

    def expect_reads(self, start: int, end: int) -> None:
        """See `Mapping`."""
        if not hasattr(os, "posix_fadvise") or start >= end:
            return
        try:
            descriptor = self._enter()
        except DiskError:
            return
        try:
            os.posix_fadvise(descriptor, start, end - start, os.POSIX_FADV_WILLNEED)
        except OSError:
            return  # advice, may fail
        finally:
            self._leave()

    def send(self, to: int, start: int, end: int) -> int:
        """See `Mapping`."""
        descriptor = self._enter()
        try:
            count = os.sendfile(to, descriptor, start, end - start)
        except (OSError, AttributeError) as error:
            code = error.errno if isinstance(error, OSError) else errno.ENOSYS
            if code in _NOT_LENT:
                raise DiskError("mapping.send", self.path, code or errno.ENOSYS) from None
            raise
        finally:
            self._leave()
        if not count:  # another program truncated the file
            raise OSError(errno.EIO, "the file ends too early")
        return count

    def retire(self) -> None:
        """See `Mapping`."""
        self.buffer = memoryview(b"")

    def erase(self, op: str) -> None:
        """See `Mapping`."""
        descriptor, zeros = self._enter(), bytes(_TOUCH_STEP)
        try:
            # A snapshot has linked the file: zeros would be in the backup, too.
            at = 0 if os.fstat(descriptor).st_nlink <= 1 else self.size
            while at < self.size:
                at += os.pwrite(descriptor, zeros[: self.size - at], at)
            os.fsync(descriptor)
        except OSError as error:
            raise disk_error(op, self.path, error) from None
        finally:
            self._leave()

    def close(self) -> None:
        """See `Mapping`. Calling it twice does nothing."""
        self.buffer = memoryview(b"")
        if not self._closed:
            self._closed = True
            self._leave()

    def held(self) -> bool:
        """See `Mapping`. Unmaps the file if no view is left."""
        if self.buffer.nbytes or self._users > (not self._closed):
            return True
        try:
            self._map.close()
        except BufferError:
            return True
        return False
