"""Leases of archiver runs, and the removal of files of dead runs.

A run of the archiver has a folder ``_twinlog/runs/RUN`` and touches the file ``beat`` in it every
`BEAT_SECONDS`. Each file that it writes has RUN in its name, and each manifest is written in its
folder first and linked from there to its number (`twinlog.spark.archive.archive_dir`).

`collect` takes files only of runs that cannot commit any more. A run that has been silent for too
long first loses its folder, by one rename; then the manifest is read, and files that it does not
name are removed. Either the run linked its manifest before the rename, and the manifest that is
read names its files, or it links after, and fails, because the name that it links from is gone. So
no clock and no pause of a living run can make a commit name a removed file; the limit only says how
long a run may be stopped without losing its work. A beat alone would not suffice: a run can be
stopped between its last check of the lease and its commit.

Ages are measured by the clock of the archive's file system, which the collector's own beat shows.
Files without a lease (of a run that ended, or of an earlier version) are judged by their age.

Not here: the content of a commit (`twinlog.spark.archive.manifest`), notifying nodes
(`twinlog.spark.archive.notify_nodes`).
"""

from __future__ import annotations

import os
import re
import shutil
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Self

from twinlog.spark.archive.archive_dir import META, ArchiveDir, taken_away

RUNS = f"{META}/runs"
BEAT = "beat"
TAKEN = ".taken"
"""Ends the name of a folder that was taken from a silent run."""

BEAT_SECONDS = 30.0
"""Pause between two signs of life; a run is dead after `ORPHAN_SECONDS` without one."""

_OF_RUN = re.compile(r"-([0-9a-f]{12})-[0-9a-f]{12}(?:\.parquet)?$")


class Lease:
    """The folder of one run; a context, in which its beat continues in a thread.

    Args:
        root: Directory of the archive.

    Attributes:
        run: Part of the name of each file of the run.
        folder: Where its manifests are written first.
    """

    def __init__(self, root: Path) -> None:
        self.run = uuid.uuid4().hex[:12]
        self.folder = root / RUNS / self.run
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._go_on, name="twinlog archive beat", daemon=True
        )

    def __enter__(self) -> Self:
        """Make the folder and begin to beat."""
        self.folder.mkdir(parents=True)
        (self.folder / BEAT).touch()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the beat and remove the folder."""
        self._ended.set()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _go_on(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OSError):  # the run's own work will report the error
                os.utime(self.folder / BEAT)

    def beat(self) -> float:
        """Give a sign of life and return its time on the file system's clock.

        Raises:
            UnavailableError: The run was silent for so long that its folder was removed.
        """
        try:
            os.utime(self.folder / BEAT)
            return (self.folder / BEAT).stat().st_mtime
        except FileNotFoundError:
            raise taken_away(self.folder) from None


def run_of(name: str) -> str:
    """Return the run that wrote a file; empty if its name has none.

    >>> run_of("part-g1-00000000000000004096-0123456789ab-ba9876543210.parquet")
    '0123456789ab'
    """
    found = _OF_RUN.search(name)
    return found.group(1) if found else ""


def collect(place: ArchiveDir, lease: Lease, older_than: float) -> int:
    """Remove the files of dead runs and return how many.

    Args:
        place: The archive.
        lease: The lease of the run that collects.
        older_than: Silence of a run, and age of a file that belongs to no run, seconds.

    Raises:
        UnavailableError: The collector itself was considered dead.
        CorruptionError: The manifest is damaged; nothing was removed.
    """
    limit = lease.beat() - older_than
    # The order is the proof: the run of a file listed here is among the folders read next, or it
    # has ended, and then the manifest, which is read last, has its commits.
    found = place.stored()
    living, dead = _runs(place.root, lease, limit)
    named = place.newest().files()
    removed = 0
    for path in found:
        run = run_of(path.name)
        if path.relative_to(place.root).as_posix() in named or run in living:
            continue
        with suppress(FileNotFoundError):  # another collector removed it
            if run in dead or path.stat().st_mtime <= limit:
                path.unlink()
                removed += 1
    for run in dead:
        shutil.rmtree(place.root / RUNS / f"{run}{TAKEN}", ignore_errors=True)
    return removed


def _runs(root: Path, lease: Lease, limit: float) -> tuple[set[str], set[str]]:
    """Return the runs that may commit, and those that cannot: silent ones lose their folders."""
    living, dead = {lease.run}, set[str]()
    for folder in (root / RUNS).iterdir():
        run = folder.name.removesuffix(TAKEN)
        if run == lease.run:
            continue
        if run == folder.name and _last_sign(folder) > limit:
            living.add(run)
            continue
        with suppress(FileNotFoundError):  # it ended, or was taken by another collector
            if run == folder.name:
                folder.rename(folder.with_name(f"{run}{TAKEN}"))
            dead.add(run)
    return living, dead


def _last_sign(folder: Path) -> float:
    """Return when a run last gave a sign of life; a new run may not have a beat yet."""
    for path in (folder / BEAT, folder):
        with suppress(FileNotFoundError):
            return path.stat().st_mtime
    return float("inf")  # it ended meanwhile
