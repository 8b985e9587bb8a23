"""The files of a store as read-only mappings, whatever their sizes.

A series is a folder of log-like files, each named by its start in 20 decimal digits. Sizes are
taken from the files, so a series may hold files of several sizes; a gap between two files is a
fact, not an error. The log's files may lie in several folders (`log_folders`). Nothing is ever
written, and nothing is locked: the directory may be live.

Units: bytes from the series' beginning; ends are exclusive.

Not here: what the bytes mean.

Sources: RocketMQ 5.3 (``MappedFileQueue``, ``MultiPathMappedFileQueue``).
"""

from __future__ import annotations

import mmap
import os
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import Path

from twinlog.errors import UsageError

FOLDERS = "twinlog/folders"
"""Names the folders besides ``commitlog`` that hold log files of a store of ours, one a line."""
_CHUNK = 1 << 20
_ZEROS = bytes(_CHUNK)


def store_root(path: Path | str) -> Path:
    """Return the directory of a store; the first part of ``ROOT,FOLDER,...``.

    So a store of RocketMQ's is named whose ``storePathCommitLog`` is a list; where commas separate
    stores (Spark's ``path``), by semicolons. A directory whose name has one is what it is.
    """
    return Path(_parts(path)[0])


def _parts(path: Path | str) -> list[str]:
    return [str(path)] if Path(path).is_dir() else str(path).replace(";", ",").split(",")


def log_folders(path: Path | str) -> tuple[Path, ...]:
    """Return the folders that hold a store's log files: its own, noted ones, named ones.

    Raises:
        UsageError: A folder is missing (code ``log-folder``).
    """
    first, *named = map(Path, _parts(path))
    noted = first / FOLDERS
    lines = noted.read_text(encoding="utf-8").splitlines() if noted.is_file() else []
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
    """Return where the log file ``name`` of a store lies; in its own folder if it is nowhere."""
    found = [folder / name for folder in log_folders(path)]
    return next((one for one in found if one.is_file()), found[0])


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

    Files whose names are not 20 digits are ``strays``; empty ones hold nothing and are left out.
    """

    def __init__(self, *folders: Path) -> None:
        files: list[LogFile] = []
        strays: list[Path] = []
        for folder in folders:
            for path in sorted(folder.iterdir()) if folder.is_dir() else ():
                if len(path.name) == 20 and path.name.isdigit() and path.is_file():
                    size = path.stat().st_size
                    if size:
                        files.append(LogFile(path, int(path.name), size))
                elif path.is_file():
                    strays.append(path)
        self.files: tuple[LogFile, ...] = tuple(sorted(files, key=lambda file: file.start))
        self.strays: tuple[Path, ...] = tuple(strays)
        self._starts = [file.start for file in self.files]
        self._views: dict[int, memoryview] = {}
        self.unreadable: dict[int, str] = {}
        """Why the file that starts there could not be read."""

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

    def view(self, file: LogFile) -> memoryview:
        """Return the whole file, mapped; empty when it cannot be read, see `unreadable`."""
        view = self._views.get(file.start)
        if view is None:
            try:
                with file.path.open("rb") as opened:
                    mapped = mmap.mmap(opened.fileno(), file.size, access=mmap.ACCESS_READ)
                view = memoryview(mapped)
            except (OSError, ValueError) as error:  # ValueError: it has become shorter
                self.unreadable[file.start] = str(error)
                view = memoryview(b"")
            self._views[file.start] = view
        return view

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
        if file.start in self.unreadable:
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
    fd = os.open(file.path, os.O_RDONLY)
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
