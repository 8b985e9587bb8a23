"""Files of a store copied to another directory, or linked there, with their checksums.

For backups: what is written here belongs to no store, so no fault is injected and no reserve is
kept. A link shares its bytes with the original: only for files that do not change any more.

Units: bytes. Not here: which files, and in what order (``storage.tools.snapshot``).
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from pathlib import Path

from storage.disk.disk import RealDisk

CHUNK = 4 * 1024 * 1024
"""Bytes that are copied or read at a time."""

_NO_LINK = {errno.EXDEV, errno.EPERM, errno.ENOTSUP, errno.EMLINK, errno.EACCES}
"""Another file system, or one without links."""


def link(source: Path, target: Path) -> bool:
    """Make ``target`` another name of ``source``; False where the file systems cannot.

    Raises:
        OSError: ``source`` is not there, or the disk is full.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno in _NO_LINK:
            return False
        raise
    return True


def copy(source: Path, target: Path) -> None:
    """Copy a file durably; zeros at its end become a hole of the same length.

    Raises:
        OSError: ``source`` is not there, or the disk is full.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with source.open("rb") as reads, target.open("xb") as writes:
        size = 0
        while piece := reads.read(CHUNK):
            size += len(piece)
            if piece.count(0) == len(piece):
                writes.seek(size)
            else:
                writes.write(piece)
        writes.truncate(size)
        writes.flush()
        os.fsync(writes.fileno())


def digest(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal digits.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as reads:
        return hashlib.file_digest(reads, "sha256").hexdigest()


def write_durably(path: Path, data: bytes) -> None:
    """Write a small file, complete or not at all.

    Raises:
        OSError: It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    with aside.open("wb") as writes:
        writes.write(data)
        writes.flush()
        os.fsync(writes.fileno())
    aside.rename(path)


def sync_folders(root: Path) -> None:
    """Make the names of all files below ``root``, and its own, durable."""
    for folder in [root.parent, root, *(one for one in root.rglob("*") if one.is_dir())]:
        RealDisk(folder).fsync_dir(".", "snapshot.folder")


def files_below(folder: Path) -> list[Path]:
    """Return the files below ``folder``, sorted; one that is deleted meanwhile may be named."""
    return sorted(one for one in folder.rglob("*") if one.is_file())


def remove_all(folder: Path) -> None:
    """Delete a folder and what is in it."""
    shutil.rmtree(folder)
