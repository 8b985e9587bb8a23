"""Looking at this machine and at data directories on it, for ``doctor``.

Everything here only reads, but `flush_seconds`, which flushes a file that has no name and so leaves
nothing. What cannot be found out is None.

Not here: what it means (``cli.doctor.checks``).
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import resource
import shutil
import subprocess
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cli.doctor.checks import Directory, Machine
from storage.marks.quarantine import QUARANTINE
from twinlog.run_file import read_run_file

SETTINGS = (
    "vm/swappiness",
    "vm/max_map_count",
    "vm/overcommit_memory",
    "vm/dirty_ratio",
    "vm/dirty_bytes",
)
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
CLOCK_SOURCE = Path("/sys/devices/system/clocksource/clocksource0/current_clocksource")
FLUSHES = 5
"""Of which the median counts."""
JAVA_SECONDS = 10.0
TIME_ERROR = 5
"""What adjtimex(2) returns while the clock is not synchronized."""


def look_at_machine(*, lock_wanted: bool) -> Machine:
    """Find out about this machine."""
    from twinlog import kernels

    memory = _memory()
    return Machine(
        python=platform.python_version(),
        kernels=kernels.which(),
        cores=os.cpu_count(),
        memory=memory.get("MemTotal"),
        descriptors=_limit(resource.RLIMIT_NOFILE),
        locked=_limit(resource.RLIMIT_MEMLOCK),
        lock_wanted=lock_wanted,
        settings={name: value for name in SETTINGS if (value := _setting(name)) is not None},
        clock_set=_clock_set(),
        swap_used=_difference(memory.get("SwapTotal"), memory.get("SwapFree")),
        huge_pages=chosen(_line(HUGE_PAGES)),
        clock_source=_line(CLOCK_SOURCE),
        java=_java(),
        spark=_installed("pyspark"),
    )


def _limit(which: int) -> int:
    """The largest value that a process here may take; -1: none."""
    hard = resource.getrlimit(which)[1]
    return -1 if hard == resource.RLIM_INFINITY else hard


def _setting(name: str) -> int | None:
    try:
        return int(Path("/proc/sys", name).read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None


def _line(place: Path) -> str | None:
    try:
        return place.read_text().strip() or None
    except OSError:
        return None


def chosen(line: str | None) -> str | None:
    """Return the choice that the kernel marks in a line.

    >>> chosen("always [madvise] never")
    'madvise'
    """
    match = re.search(r"\[(\w+)\]", line or "")
    return match[1] if match is not None else None


def _memory() -> dict[str, int]:
    """Lines of ``/proc/meminfo``, bytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return {}
    found = (re.match(r"(\w+):\s+(\d+) kB", line) for line in lines)
    return {match[1]: int(match[2]) * 1024 for match in found if match is not None}


def _difference(total: int | None, free: int | None) -> int | None:
    return None if total is None or free is None else total - free


def _clock_set() -> bool | None:
    """Whether the kernel takes its clock for synchronized."""
    try:
        library = ctypes.CDLL(None, use_errno=True)
        buffer = ctypes.create_string_buffer(512)  # struct timex, modes 0: nothing is changed
        state = int(library.adjtimex(buffer))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != TIME_ERROR


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if program is None:
        return None
    try:
        told = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "([^"]+)"', told.stderr + told.stdout)
    return match[1] if match is not None else None


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def look_at_directory(node: str, place: Path) -> Directory:
    """Find out about the data directory of a node."""
    if not place.is_dir():
        return Directory(node=node, place=str(place), exists=False)
    free: int | None = None
    size: int | None = None
    try:
        stats = os.statvfs(place)
        free, size = stats.f_bavail * stats.f_frsize, stats.f_blocks * stats.f_frsize
    except OSError:
        pass
    return Directory(
        node=node,
        place=str(place),
        writable=os.access(place, os.W_OK),
        kind=file_system(place),
        free=free,
        size=size,
        flush=flush_seconds(place),
        quarantined=(place / QUARANTINE).exists(),
        runs=runs(place),
    )


def runs(place: Path) -> bool:
    """Whether a node runs on a data directory of this machine."""
    pid = (read_run_file(place) or {}).get("pid")
    return isinstance(pid, int) and Path("/proc", str(pid)).exists()


def file_system(place: Path, mounts: str | None = None) -> str | None:
    """The kind of the file system of a directory, by the longest mount point above it."""
    try:
        text = Path("/proc/self/mounts").read_text() if mounts is None else mounts
        real = os.path.realpath(place)
    except OSError:
        return None
    best, kind = "", None
    for line in text.splitlines():
        words = line.split()
        if len(words) < 3:
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), words[1])
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, words[2]
    return kind


def flush_seconds(place: Path) -> float | None:
    """The median time of a small flush in a directory; None where it cannot be measured.

    The file has no name: nothing is left, whatever happens.
    """
    try:
        descriptor = os.open(place, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError:
        return None
    times: list[float] = []
    try:
        for number in range(FLUSHES):
            os.pwrite(descriptor, b"x" * 4096, number * 4096)
            began = time.perf_counter()
            os.fdatasync(descriptor)
            times.append(time.perf_counter() - began)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return sorted(times)[FLUSHES // 2]
