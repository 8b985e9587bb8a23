"""Who is at work in an archive, and what becomes of the files of those who died.

A run of the archiver has a folder ``_twinlog/runs/RUN`` and touches the file ``beat`` in it every
`BEAT_SECONDS`. Each file that it writes has RUN in its name, and each manifest is written in its
folder first and linked from there to its number (`twinlog.spark.archive.archive_dir`).

`collect` takes files only of runs that cannot commit any more. A run that has been silent for too
long loses its folder first, by one renaming; then the manifest is read, and what it does not name
goes. Either the run linked its manifest before the renaming, and the manifest that is read names
its files, or it links after, and then the name that it links from is gone. So no clock and no pause
of a living run can make a commit name a file that was taken; the limit only says how long a run may
be stopped without losing its work. A beat alone would not do: a run can stop between its last look
at the lease and its commit.

Ages are those of the file system that holds the archive: the collector's own beat says what time it
is there. Files without a lease (of a run that ended, or of an earlier version) go by their age.

Not here: what a commit says (`twinlog.spark.archive.manifest`), who is notified
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
"""Between two signs of life; a run is silent after `archive.place.ORPHAN_SECONDS`."""

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
        """End the beat and give the folder up."""
        self._ended.set()
        self._thread.join()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _go_on(self) -> None:
        while not self._ended.wait(BEAT_SECONDS):
            with suppress(OSError):  # whoever works for the run says what is wrong
                os.utime(self.folder / BEAT)

    def beat(self) -> float:
        """Give a sign of life and return its time on the file system's clock.

        Raises:
            UnavailableError: The run was silent for so long that its folder was taken away.
        """
        try:
            os.utime(self.folder / BEAT)
            return (self.folder / BEAT).stat().st_mtime
        except FileNotFoundError:
            raise taken_away(self.folder) from None


def run_of(name: str) -> str:
    """Return the run that wrote a file; empty when its name has none.

    >>> run_of("part-g1-00000000000000004096-0123456789ab-ba9876543210.parquet")
    '0123456789ab'
    """
    found = _OF_RUN.search(name)
    return found.group(1) if found else ""


def collect(place: ArchiveDir, lease: Lease, older_than: float) -> int:
    """Remove the files of dead runs and return how many.

    Args:
        place: The archive.
        lease: Of the run that collects.
        older_than: Silence of a run, and age of a file that belongs to no run, seconds.

    Raises:
        UnavailableError: The collector itself was held for dead.
        CorruptionError: The manifest is damaged; nothing was removed.
    """
    limit = lease.beat() - older_than
    # The order is the proof: a file that is listed here has its run among the folders that are
    # looked at next, or the run ended, and then the manifest that is read last knows its commits.
    found = place.stored()
    living, dead = _runs(place.root, lease, limit)
    named = place.newest().files()
    removed = 0
    for path in found:
        run = run_of(path.name)
        if path.relative_to(place.root).as_posix() in named or run in living:
            continue
        with suppress(FileNotFoundError):  # another collector was quicker
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
    """Return when a run last gave a sign; one that has just begun may have made no beat yet."""
    for path in (folder / BEAT, folder):
        with suppress(FileNotFoundError):
            return path.stat().st_mtime
    return float("inf")  # it ended meanwhile
