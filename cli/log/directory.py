"""The directory that a ``log`` command is given: opened as a store, sized, refused when in use.

Not here: reading (``twinlog.store.reader``), names of topics in it (``cli.log.topics``).
"""

from __future__ import annotations

from pathlib import Path

from cli.failures import Exit, Failure
from twinlog.store.files import is_store, listed, log_folders, store_root
from twinlog.store.log import Watch
from twinlog.store.marks import read_marks
from twinlog.store.reader import StoreReader


def open_store(
    directory: Path,
    *,
    raw: bool = False,
    check_crc: bool = True,
    index_capacity: tuple[int, int] | None = None,
    watch: Watch | None = None,
) -> StoreReader:
    """Open a store for reading.

    Raises:
        Failure: There is no such directory, or it is not a store (exit 66).
    """
    require_store(directory)
    return StoreReader(
        directory, raw=raw, check_crc=check_crc, watch=watch, index_capacity=index_capacity
    )


def require_store(directory: Path) -> None:
    """Raise unless the directory is a store.

    Raises:
        Failure: There is no such directory, or it is not a store (exit 66).
    """
    if is_store(directory):
        return
    what = f"there is no directory {directory}"
    if directory.is_dir():
        what = f"{directory} is not a store: it has no directory commitlog"
    elif directory.exists():
        what = f"{directory} is not a store: it is a file, not a directory"
    raise Failure(Exit.MISSING, what, hints=("name the data directory of a node",))


def require_free(directory: Path) -> None:
    """Raise where a node or a broker has locked the directory.

    Raises:
        Failure: It is in use (exit 69).
    """
    if is_store(directory) and read_marks(store_root(directory)).live:
        raise Failure(
            Exit.UNAVAILABLE,
            f"{directory} is in use",
            hints=("stop its node or broker, or work on a copy",),
        )


def log_size(directory: Path) -> int:
    """Bytes of the log files; 0 when the directory is not a store."""
    if not is_store(directory):
        return 0
    return sum(size for folder in log_folders(directory) for _, size, _ in listed(folder))


def index_capacity(slots: int | None, cells: int | None) -> tuple[int, int] | None:
    """Return what --index-slots and --index-cells say; None: RocketMQ's four cells per slot.

    Raises:
        Failure: One without the other, or below 1 (exit 64).
    """
    if (slots is None) != (cells is None):
        raise Failure(Exit.USAGE, "--index-slots and --index-cells go together")
    if slots is None or cells is None:
        return None
    for name, value in (("slots", slots), ("cells", cells)):
        if value < 1:
            raise Failure(Exit.USAGE, f"--index-{name} is {value}; it must be at least 1")
    return slots, cells
