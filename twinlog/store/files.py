"""The files of a store as read-only mappings, whatever their sizes.

A series is a folder of log-like files, each named by its start in 20 decimal digits. Sizes are
taken from the files, so a series may hold files of several sizes; a gap between two files is a
fact, not an error. The log's files may be in several folders (`log_folders`). Nothing is ever
written, and nothing is locked: the directory may be live.

Units: bytes from the series' beginning; ends are exclusive.

Not here: what the bytes mean.

Sources: RocketMQ 5.3 (``MappedFileQueue``, ``MultiPathMappedFileQueue``).
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import ref

from twinlog.errors import CorruptionError, UsageError

FOLDERS = "twinlog/folders"
"""Names the folders besides ``commitlog`` that hold log files of a twinlog store, one a line."""
EMPTY = "an empty file"
"""State of one that holds nothing."""
SMALL_MAX = 64 * 1024 * 1024
"""Bytes of a file that is read whole; RocketMQ's largest config files have a few."""
MAPPED_MAX = 16_384
"""Files besides the log that are mapped at the same time; Linux maps 65,530 for a process."""
_OFFSET_MAX = (1 << 63) - 1
_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


def store_root(path: Path | str) -> Path:
    """Return the directory of a store; the first part of ``ROOT,FOLDER,...``.

    So a RocketMQ store is named whose ``storePathCommitLog`` is a list; where commas separate
    stores (Spark's ``path``), by semicolons. A directory whose name has one is what it is.
    """
    return Path(_parts(path)[0])


def _parts(path: Path | str) -> list[str]:
    return [str(path)] if Path(path).is_dir() else str(path).replace(";", ",").split(",")


def log_folders(path: Path | str) -> tuple[Path, ...]:
    """Return the folders that hold a store's log files: its own, noted ones, named ones.

    Raises:
        UsageError: A folder is missing (code ``log-folder``).
        CorruptionError: The note of the folders is damaged.
    """
    first, *named = map(Path, _parts(path))
    noted = first / FOLDERS
    try:
        lines = small_file(noted).decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise CorruptionError(f"{FOLDERS} is no text", file=FOLDERS, offset=0) from None
    found = [first / "commitlog"]
    for folder in [*(first / line for line in lines), *named]:
        if not folder.is_dir():
            text = f"log folder {folder} of {first} is missing"
            raise UsageError(text, code="log-folder", hint="mount it", folder=str(folder))
        if folder not in found:
            found.append(folder)
    return tuple(found)


def is_store(path: Path | str) -> bool:
    """Whether a directory is that of a store: it has, or names, folders of log files."""
    root = store_root(path)
    return (root / "commitlog").is_dir() or (root.is_dir() and root != Path(path))


def log_file(path: Path | str, name: str) -> Path:
    """Return where the log file ``name`` of a store is; in its own folder if it is nowhere."""
    found = [folder / name for folder in log_folders(path)]
    return next((one for one in found if one.is_file()), found[0])


def small_file(path: Path, most: int = SMALL_MAX) -> bytes:
    """Return the bytes of a file that is read whole; none when there is no such file.

    Raises:
        CorruptionError: It has more than ``most``: no file of its kind has.
    """
    data = head_of(path, most + 1)
    if len(data) > most:
        name = f"{path.parent.name}/{path.name}"
        raise CorruptionError(f"{name} has more than {most} bytes", file=name, offset=most)
    return data


def head_of(path: Path, length: int) -> bytes:
    """Return up to ``length`` bytes from a file's beginning; none when there is no such file."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would wait for ever
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return b""
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return b""
    with os.fdopen(fd, "rb") as opened:
        return opened.read(length)


_NOTHING_THERE = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP)


def is_number(name: str) -> bool:
    """Whether a file name is a whole number; digits of other scripts do not count."""
    return name.isascii() and name.isdigit()


def listed(folder: Path) -> Iterator[tuple[Path, int, str]]:
    """Yield (path, size, why it is no file) of what a folder holds, by name.

    The reason is empty for a file. A folder that is not there holds nothing, and what goes while
    the folder is looked at was never there: retention takes files of a live store.
    """
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            return
        raise
    for name in names:
        path = folder / name
        try:
            found = path.stat()
        except OSError as error:
            if path.is_symlink():
                yield path, 0, f"a link that cannot be followed: {error.strerror}"
            elif error.errno != errno.ENOENT:
                yield path, 0, str(error.strerror)
            continue
        if stat.S_ISREG(found.st_mode):
            yield path, found.st_size, ""
        else:
            yield path, 0, "a folder" if stat.S_ISDIR(found.st_mode) else "neither file nor folder"


_mapped: deque[tuple[ref[FileSeries], int]] = deque()
"""Files that may be unmapped and mapped again, oldest first."""


@dataclass(frozen=True, slots=True)
class LogFile:
    """One file of a series."""

    path: Path
    start: int
    size: int

    @property
    def end(self) -> int:
        """Offset after its last byte."""
        return self.start + self.size


class FileSeries:
    """The log-like files of one or more folders, in order of their starts.

    Args:
        folders: Where they are.
        start: Files that end at or below this offset are rubbish, and left out.

    Files whose names are not 20 digits are ``strays``; empty ones hold nothing and are left out.

    Attributes:
        odd: Start, path and state of what has a file's name and is empty, or is no file.
    """

    def __init__(self, *folders: Path, start: int = 0) -> None:
        files: list[LogFile] = []
        strays: list[Path] = []
        self.odd: list[tuple[int, Path, str]] = []
        for folder in folders:
            for path, size, why in listed(folder):
                named = len(path.name) == 20 and is_number(path.name)
                first = int(path.name) if named else _OFFSET_MAX + 1
                if first + size > _OFFSET_MAX or not named:
                    strays += [] if why else [path]
                elif why or not size:
                    self.odd.append((first, path, why or EMPTY))
                elif first + size > start:
                    files.append(LogFile(path, first, size))
        self.files: tuple[LogFile, ...] = tuple(sorted(files, key=lambda file: file.start))
        self.strays: tuple[Path, ...] = tuple(strays)
        self._starts = [file.start for file in self.files]
        self._views: dict[int, memoryview] = {}
        self.unreadable: dict[int, str] = {}
        """Why the file that starts there could not be read."""
        self._held = False

    def hold(self) -> None:
        """Map all files now: what retention removes later can still be read.

        Those at the beginning that went since they were listed are taken off the list.
        """
        self._held, gone = True, 0
        for number, file in enumerate(self.files):
            if not self.view(file) and file.start not in self.unreadable:
                if number == gone:
                    gone += 1
                else:
                    self.unreadable[file.start] = "it went while the folder was looked at"
        self.files, self._starts = self.files[gone:], self._starts[gone:]

    @property
    def start(self) -> int:
        """Offset of the first byte; 0 without files."""
        return self.files[0].start if self.files else 0

    @property
    def end(self) -> int:
        """Offset after the last file; 0 without files."""
        return self.files[-1].end if self.files else 0

    def at(self, offset: int) -> LogFile | None:
        """Return the file that holds the byte at ``offset``."""
        i = bisect_right(self._starts, offset) - 1
        return self.files[i] if i >= 0 and offset < self.files[i].end else None

    def behind(self, offset: int) -> int:
        """Return where the next file begins after ``offset``; a large number after the last."""
        i = bisect_right(self._starts, offset)
        return self._starts[i] if i < len(self._starts) else _OFFSET_MAX

    def between(self, start: int, end: int) -> Iterator[LogFile]:
        """Yield the files that have bytes of ``start..end``."""
        for i in range(max(bisect_right(self._starts, start) - 1, 0), len(self.files)):
            if self.files[i].start >= end:
                return
            if self.files[i].end > start:
                yield self.files[i]

    def view(self, file: LogFile) -> memoryview:
        """Return the whole file, mapped; empty when it cannot be read, see `unreadable`."""
        view = self._views.get(file.start)
        if view is None:
            try:
                with file.path.open("rb") as opened:
                    mapped = mmap.mmap(opened.fileno(), file.size, access=mmap.ACCESS_READ)
                view = memoryview(mapped)
            except FileNotFoundError:  # it was there when the folder was listed
                view = memoryview(b"")
            except (OSError, ValueError, OverflowError) as error:  # ValueError: it is shorter now
                self.unreadable[file.start] = str(error)
                view = memoryview(b"")
            self._views[file.start] = view
            if not self._held:
                self._let_go(file.start)
        return view

    def _let_go(self, start: int) -> None:
        """Unmap what was mapped longest ago, of any series, when there is too much."""
        _mapped.append((ref(self), start))
        while len(_mapped) > MAPPED_MAX:
            series, oldest = _mapped.popleft()
            if (found := series()) is not None:
                found._views.pop(oldest, None)

    def read(self, offset: int, length: int) -> memoryview:
        """Return up to ``length`` bytes from ``offset`` on, within one file; empty outside."""
        file = self.at(offset)
        if file is None:
            return memoryview(b"")
        at = offset - file.start
        return self.view(file)[at : at + length]

    def last_written(self, file: LogFile, offset: int) -> int:
        """Return the offset after the last byte that is not zero at or after ``offset``.

        ``offset`` itself when all are zero. Holes of sparse files are skipped, not read.
        """
        view = self.view(file)
        if not view:
            return offset
        for start, end in reversed(extents(file, offset - file.start)):
            for at in reversed(range(start, end, _CHUNK)):  # a full file ends in its last bytes
                data = bytes(view[at : min(at + _CHUNK, end)])
                if data != _ZEROS[: len(data)]:  # stripping zeros is slow, comparing is not
                    return file.start + at + len(data.rstrip(b"\0"))
        return offset

    def close(self) -> None:
        """Drop the mappings; slices handed out stay valid until they are dropped too."""
        self._views.clear()


def extents(file: LogFile, at: int) -> list[tuple[int, int]]:
    """Return the (start, end) stretches of ``file`` from byte ``at`` on that are not holes."""
    if not hasattr(os, "SEEK_DATA"):
        return [(at, file.size)]
    extents: list[tuple[int, int]] = []
    try:
        fd = os.open(file.path, os.O_RDONLY)
    except FileNotFoundError:  # retention took its name; a mapping still has its bytes
        return [(at, file.size)]
    try:
        while at < file.size:
            start = os.lseek(fd, at, os.SEEK_DATA)
            at = os.lseek(fd, start, os.SEEK_HOLE)
            extents.append((start, min(at, file.size)))
    except OSError:  # ENXIO: only a hole follows
        pass
    finally:
        os.close(fd)
    return extents
