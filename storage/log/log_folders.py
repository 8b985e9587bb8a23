"""Log files in several folders: finds each file, and chooses the folder of a new one.

The rest of the engine names log files ``commitlog/{20 digits}`` in the data directory, wherever
they are. `MultiFolderDisk` translates: it passes every call on to the disk below it, with the path
of the folder that holds the file. All other files are in the data directory.

The layout is RocketMQ's (``storePathCommitLog`` with commas, ``readOnlyCommitLogStorePaths``):

* each folder holds log files under their names, and the log is all of them together;
* a new file goes to ``folders[n % count]`` of the folders that take new files, sorted by name, n
  being the file's number (start / size). A folder is skipped, and tried again for the next file, if
  its file system is fuller than `FULL`, has no space for the file, is mounted read-only or is not
  writable for this process; if all are that full, they are tried all the same.

``twinlog/folders`` lists the folders, one per line, so that tools find the files
(`twinlog.store.files`), and so that a start notices a folder that is not mounted or no longer
configured. It then refuses to open: without those files the log would look damaged.

Not here: how a file is made (`storage.log.segment`), when the oldest one is deleted
(`storage.retention.policy`).

Sources: RocketMQ 5.3 (``MultiPathMappedFileQueue``).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from storage.disk.disk import Disk, Mapping, Memory
from storage.errors import DiskError, DiskFull, LogFolder
from storage.log.segment import AHEAD_LOG, DIRECTORY
from twinlog.store.files import FOLDERS

FULL = 0.85
"""Share of a file system in use above which its folder takes no new file while others have room."""
_PREFIX = DIRECTORY + "/"
_ELSEWHERE = {
    errno.ENOSPC: "there is no room for a log file",
    errno.EDQUOT: "the quota is used up",
    errno.EROFS: "it is mounted read-only",
    errno.EPERM: "the system does not permit files to be made there",
    errno.EACCES: "this user may not write there",
}
"""Errors after which another folder is tried, and what they mean for this one."""
_PIECE = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one store's log.

    Attributes:
        more: Folders in addition to ``commitlog`` of the data directory: absolute, or relative to
        it.
        closed: Folders, possibly ``commitlog`` too, that take no new files.
        adopted: Accept log files in folders that are new to the store: RocketMQ wrote them.
    """

    more: tuple[str, ...] = ()
    closed: frozenset[str] = frozenset()
    adopted: bool = False

    @property
    def all(self) -> tuple[str, ...]:
        """Every folder, that of the data directory first."""
        return (DIRECTORY, *self.more)


def order(folders: Sequence[str], start: int, size: int, full: Callable[[str], bool]) -> list[str]:
    """Return the folders for the file that starts at ``start``, the best one first.

    >>> order(["b", "a"], 3 * 1024, 1024, lambda folder: False)
    ['b', 'a']
    >>> order(["c", "b", "a"], 1024, 1024, lambda folder: folder == "b")
    ['c', 'a', 'b']
    """
    room = sorted(folder for folder in folders if not full(folder))
    rest = sorted(folder for folder in folders if folder not in room)
    first = room or rest
    turn = start // size % len(first) if first else 0
    return [*first[turn:], *first[:turn], *(rest if room else ())]


class MultiFolderDisk:
    """A `storage.disk.disk.Disk` whose log files are in several folders.

    Args:
        disk: The data directory; it must also reach absolute paths.
        folders: The folders of the log.
    """

    def __init__(self, disk: Disk, folders: Folders) -> None:
        self._disk = disk
        self._folders = folders
        self._open = tuple(one for one in folders.all if one not in folders.closed)
        self._held: dict[str, str] = {}
        self._unmade: set[str] = set()
        """Folders in which this process could not create files; tried again."""
        self.passed_over: dict[str, str] = {}
        """Folders that refused the last file they should have taken, and why."""

    # -- where files lie

    def _ahead(self, folder: str) -> str:
        """Return where the file ahead of the log is made, on the file system of ``folder``."""
        return AHEAD_LOG if folder == DIRECTORY else f"{folder}/{AHEAD_LOG}"

    def _in(self, folder: str, path: str) -> str:
        return self._ahead(folder) if path == AHEAD_LOG else folder + path[len(DIRECTORY) :]

    def _at(self, path: str) -> str:
        """Return the real path of the file ``path``; in the data directory if it does not exist."""
        if path != AHEAD_LOG and not path.startswith(_PREFIX):
            return path
        known = self._held.get(path)
        if known is not None:
            return known
        for folder in self._folders.all:
            found = self._in(folder, path)
            if self._disk.exists(found):
                if path != AHEAD_LOG:
                    self._held[path] = found
                return found
        return path

    def _full(self, folder: str) -> bool:
        free, total = self._disk.free_bytes(folder)
        return total > 0 and 1 - free / total > FULL

    def _new(self, path: str, size: int) -> list[str]:
        """Return the folders for a new log file, the best one first."""
        names = [int(name) for name in self.list(DIRECTORY) if name.isdigit()]
        ahead = path == AHEAD_LOG
        start = (max(names) + size if names else 0) if ahead else int(path[len(_PREFIX) :])
        return order(self._open, start, size, self._full)

    # -- the folders themselves

    def lock(self, op: str) -> None:
        """See `Disk`; then the folders are checked, and new ones are made and recorded.

        Raises:
            LogFolder: A folder is missing, or is not as recorded; nothing has changed.
        """
        self._disk.lock(op)
        try:
            self._settle()
        except BaseException:
            self._disk.unlock()
            raise

    def _settle(self) -> None:
        known = noted(self._disk)
        self._check(known)
        for folder in self._folders.more:
            if folder not in known:
                self._disk.make_dir(DIRECTORY, "open.log.dir")
                self._make(folder, "open.folder")
                if folder in self._unmade and not self._disk.exists(folder):
                    raise LogFolder(
                        f"log folder {folder} does not exist and cannot be made",
                        hint="make it, or let this user write in the folder above it",
                    )
        lines = "".join(f"{folder}\n" for folder in self._folders.more)
        if set(known) != set(self._folders.more):
            self._disk.make_dir("twinlog", "open.folders")
            self._disk.write_file(FOLDERS, lines.encode(), "open.folders")

    def _make(self, folder: str, op: str) -> bool:
        """Make what a folder needs; False where this process may not write there."""
        try:
            self._make_in(folder, op)
        except DiskError as error:
            if error.errno not in _ELSEWHERE:
                raise
            self._unmade.add(folder)
            self.passed_over[folder] = _ELSEWHERE[error.errno]
            return False
        self._unmade.discard(folder)
        return True

    def _make_in(self, folder: str, op: str) -> None:
        self._disk.make_dir(self._ahead(folder).rpartition("/")[0], op)
        # its name and those above it; an earlier start may have died after making them
        self._disk.fsync_dir(folder, op)
        above = folder
        while above not in ("/", "."):
            above = above.rpartition("/")[0] or ("/" if folder[0] == "/" else ".")
            try:
                self._disk.fsync_dir(above, op)
            except DiskError as error:
                if error.errno not in (errno.EACCES, errno.EPERM):
                    raise
                break  # not accessible, so we cannot have made a name there

    def _check(self, known: Sequence[str]) -> None:
        for folder in known:
            if folder not in self._folders.more:
                if self._disk.exists(folder) and not self._files(folder):
                    continue  # retention has emptied it
                raise LogFolder(
                    f"log folder {folder} holds files of this store, and is no longer named",
                    hint="name it under log_folders; to empty it, let retention take its files: "
                    "name it under log_folders_closed as well",
                )
            if not self._disk.exists(folder):
                raise LogFolder(
                    f"log folder {folder} is missing, and files of this store are in it",
                    hint="mount it; when its disk is lost, so is this copy of the log: start with "
                    "an empty data folder",
                )
        names: dict[str, str] = {}
        for folder in self._folders.all:
            for name in self._files(folder):
                if folder not in known and folder != DIRECTORY and not self._folders.adopted:
                    raise LogFolder(
                        f"log folder {folder} is new to this store, and log files are in it",
                        hint="name a folder of its own for each store",
                    )
                other = names.setdefault(name, folder)
                if other != folder:
                    raise LogFolder(
                        f"log file {name} is in {other} and in {folder}",
                        hint="keep the one that was changed last, move the other one away",
                    )

    def _files(self, folder: str) -> list[str]:
        return [name for name in self._disk.list(folder) if name.isdigit()]

    # -- the calls of `Disk`

    def map(self, path: str, size: int, *, op: str, create: bool = False) -> Mapping:
        """See `Disk`. A new log file is made in the first folder that has room for it."""
        place = self._at(path)
        is_log = path == AHEAD_LOG or path.startswith(_PREFIX)
        if not create or not is_log or self._disk.exists(place):
            return self._disk.map(place, size, op=op, create=create)
        last: DiskError | None = None
        for folder in self._new(path, size):
            place = self._in(folder, path)
            if folder in self._unmade and not self._make(folder, op):
                continue
            try:
                made = self._disk.map(place, size, op=op, create=True)
            except DiskError as error:
                if error.errno not in _ELSEWHERE:
                    raise
                self.passed_over[folder] = _ELSEWHERE[error.errno]
                last = error
                continue
            self.passed_over.pop(folder, None)
            if path != AHEAD_LOG:
                self._held[path] = place
            return made
        # No folder takes a file now: writes are refused and repeated, as when all are full.
        raise DiskFull(op, path, last.errno if last is not None else errno.EROFS)

    def memory(self, size: int) -> Memory:
        """See `Disk`."""
        return self._disk.memory(size)

    def together(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """See `Disk`."""
        self._disk.together(first, second)

    def create_sparse(self, path: str, size: int, op: str) -> None:
        """See `Disk`."""
        self._disk.create_sparse(self._at(path), size, op)

    def read(self, path: str, op: str) -> bytes:
        """See `Disk`."""
        return self._disk.read(self._at(path), op)

    def read_at(self, path: str, offset: int, length: int, op: str) -> bytes:
        """See `Disk`."""
        return self._disk.read_at(self._at(path), offset, length, op)

    def look(self, path: str, size: int, places: Sequence[int], length: int) -> list[bytes] | None:
        """See `Disk`."""
        return self._disk.look(self._at(path), size, places, length)

    def write_at(self, path: str, offset: int, data: bytes | memoryview, op: str) -> None:
        """See `Disk`."""
        self._disk.write_at(self._at(path), offset, data, op)

    def write_file(self, path: str, data: bytes, op: str) -> None:
        """See `Disk`."""
        self._disk.write_file(self._at(path), data, op)

    def fsync(self, path: str, op: str) -> None:
        """See `Disk`."""
        self._disk.fsync(self._at(path), op)

    def fsync_dir(self, path: str, op: str) -> None:
        """See `Disk`; that of the log files means all of their folders."""
        for folder in self._folders.all if path == DIRECTORY else (path,):
            self._disk.fsync_dir(folder, op)

    def sync_all(self, op: str) -> bool:
        """See `Disk`; the file system of the data directory."""
        return self._disk.sync_all(op)

    def exists(self, path: str) -> bool:
        """See `Disk`."""
        return self._disk.exists(self._at(path))

    def size(self, path: str) -> int:
        """See `Disk`."""
        return self._disk.size(self._at(path))

    def list(self, path: str) -> list[str]:
        """See `Disk`; that of the log files is the names in all of their folders."""
        if path != DIRECTORY:
            return self._disk.list(path)
        names = {name for folder in self._folders.more for name in self._disk.list(folder)}
        return sorted(set(self._disk.list(path)) | {name for name in names if name.isdigit()})

    def make_dir(self, path: str, op: str) -> None:
        """See `Disk`; that of the log files means all of their folders."""
        self._disk.make_dir(path, op)
        if path == DIRECTORY:
            for folder in self._folders.more:
                self._make(folder, op)

    def rename(self, path: str, target: str, op: str) -> None:
        """See `Disk`. A log file that leaves its file system is copied, then removed."""
        place = self._at(path)
        self._held.pop(path, None)
        if path == AHEAD_LOG and target.startswith(_PREFIX):
            folder = next(one for one in self._folders.all if self._ahead(one) == place)
            into = self._in(folder, target)
            self._disk.rename(place, into, op)
            self._held[target] = into
        elif place == path:
            self._disk.rename(path, self._at(target), op)
        else:
            self._copy(place, target, op)
            self._disk.remove(place, op + ".remove")

    def _copy(self, place: str, target: str, op: str) -> None:
        size = self._disk.size(place)
        self._disk.create_sparse(target, size, op + ".create")
        for at in range(0, size, _PIECE):
            data = self._disk.read_at(place, at, min(_PIECE, size - at), op + ".read")
            self._disk.write_at(target, at, data, op + ".write")
        self._disk.fsync(target, op + ".fsync")
        self._disk.fsync_dir(target.rpartition("/")[0] or ".", op + ".dir")

    def remove(self, path: str, op: str) -> None:
        """See `Disk`."""
        place = self._at(path)
        self._held.pop(path, None)
        self._disk.remove(place, op)

    def free_bytes(self, path: str = ".") -> tuple[int, int]:
        """See `Disk`. For the data directory: its own or the log's, whichever is fuller.

        The log counts as full as the emptiest folder that takes new files.
        """
        if path != ".":
            return self._disk.free_bytes(path)
        own = self._disk.free_bytes()
        log = max((self._disk.free_bytes(folder) for folder in self._open), key=_share, default=own)
        return min(own, log, key=_share)

    def unlock(self) -> None:
        """See `Disk`."""
        self._disk.unlock()

    def boot_id(self) -> str | None:
        """See `Disk`."""
        return self._disk.boot_id()

    def device(self) -> int:
        """See `Disk`."""
        return self._disk.device()

    def inode(self, path: str) -> int:
        """See `Disk`."""
        return self._disk.inode(self._at(path))

    def random_bytes(self, count: int) -> bytes:
        """See `Disk`."""
        return self._disk.random_bytes(count)


def _share(space: tuple[int, int]) -> float:
    """Return the free share of a file system."""
    free, total = space
    return free / total if total else 1.0


def noted(disk: Disk) -> tuple[str, ...]:
    """Return the additional folders that a store has recorded."""
    if not disk.exists(FOLDERS):
        return ()
    return tuple(disk.read(FOLDERS, "open.folders").decode().splitlines())


def passed_over(disk: Disk) -> dict[str, str]:
    """Return the log folders that take no files at present though they should, and why."""
    return dict(disk.passed_over) if isinstance(disk, MultiFolderDisk) else {}


def multi_folder_disk(disk: Disk, folders: Folders) -> Disk:
    """Return ``disk`` with its log files in ``folders``, as the configuration names them."""
    return MultiFolderDisk(disk, folders) if folders.more or disk.exists(FOLDERS) else disk
