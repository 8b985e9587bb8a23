"""An archive's directory: its files, reading the newest manifest, committing the next one.

A manifest is created under a name that no other writer can take: it is written in the folder of the
run that commits, flushed, and linked to its number, which fails when the number exists. So of two
writers only one commits; the other reads the new manifest and tries again with the next number. A
run whose folder was removed cannot commit (`twinlog.spark.archive.lease`).

The directory must be a file system with hard links. Times are seconds since 1970.

Not here: the content of a manifest (`twinlog.spark.archive.manifest`), Parquet
(`twinlog.spark.archive.rows`).
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from twinlog.errors import CorruptionError, UnavailableError, UsageError
from twinlog.spark.archive.manifest import Manifest, Segment, digest, parse

META = "_twinlog"
ORPHAN_SECONDS = 24 * 3600.0
"""A run without a sign of life for this long is dead; a file of no run is kept for this long."""

_NUMBERED = re.compile(r"manifest-(\d{20})\.json", re.ASCII)

TRIES = 10
"""Commits tried against other writers before giving up."""


class ArchiveDir:
    """The directory of an archive; it need not exist yet."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def path_of(self, number: int) -> Path:
        """Return the path of manifest ``number``."""
        return self.root / META / f"manifest-{number:020d}.json"

    def newest(self) -> Manifest:
        """Return the newest manifest; an empty one in a new archive.

        Raises:
            CorruptionError: It cannot be read, or does not follow the one before.
        """
        numbers = self._numbers()
        if not numbers:
            return Manifest()
        path = self.path_of(numbers[-1])
        found = parse(_text(path), str(path))
        if found.number != numbers[-1]:
            raise CorruptionError(f"{path} says it is number {found.number}", file=str(path))
        before = self.path_of(found.number - 1)
        if before.is_file() and digest(_text(before)) != found.previous:
            text = f"{path} does not follow the manifest before it: one of them was changed"
            raise CorruptionError(text, file=str(path))
        return found

    def _numbers(self) -> list[int]:
        folder = self.root / META
        names = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        found = [_NUMBERED.fullmatch(name) for name in names]
        return sorted(int(one[1]) for one in found if one is not None)

    def commit(self, added: Sequence[Segment], run: Path, cluster: str = "") -> Manifest:
        """Add segments to the archive and return the manifest that has them.

        Segments that another writer has added meanwhile are left out; their files become orphans.

        Args:
            added: New segments.
            run: Folder of the run that commits (`archive.lease.Lease.folder`).
            cluster: Name of the cluster they were read from; empty where nothing names one.

        Raises:
            CorruptionError: The archive is of another cluster, or has other bytes there.
            UnavailableError: Other writers committed first, `TRIES` times, or the run's folder was
                removed (code ``lease``).
        """
        for _ in range(TRIES):
            now = self.newest()
            now.require(cluster, "what is added is of")
            path = self.path_of(now.number)
            text = _text(path) if now.number else ""
            following = now.after(added, digest(text) if text else "")
            name = now.id or uuid.uuid4().hex
            following = replace(following, id=name, cluster=now.cluster or cluster)
            if len(following.segments) == len(now.segments):
                return now
            if self._create(following, run):
                return following
        raise UnavailableError(f"other writers keep committing to {self.root}", code="busy")

    def _create(self, manifest: Manifest, run: Path) -> bool:
        """Create the file of a manifest; False if its number is taken."""
        target = self.path_of(manifest.number)
        aside = run / f"{target.name}.{uuid.uuid4().hex}"
        try:
            write_durably(aside, manifest.text().encode())
            os.link(aside, target)
        except FileExistsError:
            return False
        except FileNotFoundError:
            raise taken_away(run) from None
        finally:
            aside.unlink(missing_ok=True)
        sync_directory(target.parent)
        return True

    def stored(self) -> list[Path]:
        """Return all files of segments, named by a manifest or not."""
        folders = [self.root / name for name in ("data", "keys", f"{META}/batches")]
        found = [path for folder in folders for path in folder.rglob("*")]
        return sorted(path for path in found if path.is_file())


def _text(path: Path) -> str:
    """Return the text of a manifest; invalid bytes are replaced, so that its checksum fails."""
    return path.read_bytes().decode("utf-8", "surrogateescape")


def taken_away(run: Path) -> UnavailableError:
    """Return the error of a run whose folder was removed."""
    text = f"{run} was removed: the run was considered dead, and its files were deleted"
    return UnavailableError(text, code="lease", hint="start it again: it continues where it was")


def write_durably(path: Path, data: bytes) -> None:
    """Write a file that must not exist, and flush it."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Flush a file that was written by other means."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    sync_file(path)


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def require_directory(path: Path) -> None:
    """Check that a path is a directory, or does not exist yet.

    Raises:
        UsageError: It is something else.
    """
    if not path.is_dir() and (path.exists() or path.is_symlink()):
        hint = "name a directory, or one that does not exist yet"
        raise UsageError(f"{path} is not a directory", code="exists", hint=hint)
