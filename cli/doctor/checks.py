"""What ``doctor`` makes of what it found: each check says what it is, what it means, what to do.

A check that could not be made is ``unknown``, which is an answer of its own. Pure: facts come in,
findings go out. Sizes are bytes, durations seconds.

Not here: looking (``cli.doctor.machine``), the command (``cli.doctor.doctor``), what is wrong with
a running cluster (``cli.cluster.health``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cli.fields import Fields
from twinlog.units import format_duration, format_size

GiB = 1 << 30

DESCRIPTORS_MIN = 16_384
"""Below it few queues and clients fit: a node keeps files of queues open."""
FLUSH_SECONDS_MAX = 0.02
"""A disk that takes longer makes every durable acknowledgement slow."""
CLOCK_SECONDS_MAX = 3.0
"""How far clocks of nodes may seem to differ: they are read at the same time, but a busy node
answers up to 2 s later. Times of messages and leases are by them."""
SWAPPINESS_MAX = 10
DIRTY_BYTES_MAX = 4 * GiB
"""What the kernel may keep unwritten before it makes writers wait."""
FAST_CLOCKS = frozenset({"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"})
"""Clocks that a process reads without a call into the kernel."""
DISK_USED_MAX = 0.85
MAPS_MIN = 65_530
"""The kernel's default; each log file and each open queue file is a mapping."""

UNFIT = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "vboxsf"})
"""File systems whose locks or flushes do not mean what a store needs."""
FLEETING = frozenset({"tmpfs", "ramfs"})


class Grade(StrEnum):
    """How bad a finding is."""

    FINE = "ok"
    UNKNOWN = "unknown"
    BETTER = "could be better"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check.

    Attributes:
        area: ``machine``, ``directory n1``, ``cluster``.
        check: What was looked at.
        found: What is there.
        means: What follows from it; empty when it is fine.
        command: What to do; empty where there is nothing.
    """

    area: str
    check: str
    grade: Grade
    found: str
    means: str = ""
    command: str = ""

    def fields(self) -> Fields:
        """The finding as machines see it."""
        return {
            "area": self.area,
            "check": self.check,
            "result": self.grade.value,
            "found": self.found,
            "means": self.means or None,
            "command": self.command or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What was found of the machine; None: it could not be found out.

    Attributes:
        kernels: ``compiled`` or ``python``.
        descriptors: Largest number of open files that a process here may have.
        locked: Largest memory that a process may lock, bytes; ``lock_wanted``: a node wants to.
        settings: Of the kernel, by their names below ``/proc/sys``.
        clock_set: The kernel takes its clock for synchronized.
        huge_pages: When the kernel uses huge pages by itself: ``always``, ``madvise``, ``never``.
        clock_source: What the kernel reads its clock from.
        java: Its version, where one is installed.
    """

    python: str = ""
    kernels: str = "compiled"
    cores: int | None = None
    memory: int | None = None
    descriptors: int | None = None
    locked: int | None = None
    lock_wanted: bool = False
    settings: Mapping[str, int] = field(default_factory=dict[str, int])
    clock_set: bool | None = None
    swap_used: int | None = None
    huge_pages: str | None = None
    clock_source: str | None = None
    java: str | None = None
    spark: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """What was found of the data directory of a node.

    Attributes:
        node: Its name; empty: no node of a cluster file.
        place: The directory.
        exists, writable: For who runs the command.
        kind: Of its file system.
        free, size: Of its file system, bytes.
        flush: The time of one small flush there, the median of some.
        quarantined: The store is marked as damaged.
        runs: A process runs on it.
    """

    node: str
    place: str
    exists: bool = True
    writable: bool | None = None
    kind: str | None = None
    free: int | None = None
    size: int | None = None
    flush: float | None = None
    quarantined: bool = False
    runs: bool = False


def machine(found: Machine) -> list[Finding]:
    """Judge the machine."""

    def say(check: str, grade: Grade, what: str, means: str = "", command: str = "") -> Finding:
        return Finding("machine", check, grade, what, means, command)

    results = [_kernels(found), say("processors", *_cores(found.cores))]
    results.append(
        _most(
            "machine", "open files", value=found.descriptors, least=DESCRIPTORS_MIN,
            means="a node has room for few queues and clients; systemd: LimitNOFILE=1048576",
            command="ulimit -n 1048576",
        )
    )  # fmt: skip
    if found.lock_wanted:
        results.append(_locked(found.locked))
    results += _kernel_settings(found.settings)
    results += _unwritten(found.settings, found.memory)
    results += _of_kernel(found)
    results.append(_clock(found.clock_set))
    if found.swap_used is not None:
        used = format_size(found.swap_used)
        if found.swap_used > GiB // 4:
            means = "parts of processes were swapped out; a node that waits for them stands still"
            results.append(say("swap", Grade.BETTER, f"{used} in use", means, "free -h"))
        else:
            results.append(say("swap", Grade.FINE, f"{used} in use"))
    results.append(_spark(found))
    return results


def _kernels(found: Machine) -> Finding:
    if found.kernels == "compiled":
        return Finding("machine", "kernels", Grade.FINE, f"compiled, Python {found.python}")
    means = "the plain kernels are correct, and many times slower"
    command = "uv sync --reinstall-package twinlog"
    return Finding("machine", "kernels", Grade.BETTER, "plain Python", means, command)


def _cores(cores: int | None) -> tuple[Grade, str, str]:
    if cores is None:
        return Grade.UNKNOWN, "?", ""
    if cores < 2:
        return Grade.BETTER, str(cores), "a node's event loop and its flushes share one processor"
    return Grade.FINE, str(cores), ""


def _most(
    area: str, check: str, *, value: int | None, least: int, means: str, command: str
) -> Finding:
    """Judge a limit that should be at least ``least``; a negative one means no limit."""
    if value is None:
        return Finding(area, check, Grade.UNKNOWN, "?")
    shown = "no limit" if value < 0 else str(value)
    if 0 <= value < least:
        return Finding(area, check, Grade.BETTER, shown, means, command)
    return Finding(area, check, Grade.FINE, shown)


def _locked(locked: int | None) -> Finding:
    if locked is None:
        return Finding("machine", "locked memory", Grade.UNKNOWN, "?")
    shown = "no limit" if locked < 0 else format_size(locked)
    if 0 <= locked < GiB:
        means = "storage.lock_memory wants more; systemd: LimitMEMLOCK=infinity"
        return Finding(
            "machine", "locked memory", Grade.BETTER, shown, means, "ulimit -l unlimited"
        )
    return Finding("machine", "locked memory", Grade.FINE, shown)


def _kernel_settings(settings: Mapping[str, int]) -> Iterable[Finding]:
    value = settings.get("vm/swappiness")
    if value is None:
        yield Finding("machine", "vm.swappiness", Grade.UNKNOWN, "?")
    elif value > SWAPPINESS_MAX:
        means = "the kernel swaps processes out to keep files in memory; nodes then stand still"
        command = f"sysctl -w vm.swappiness={SWAPPINESS_MAX}"
        yield Finding("machine", "vm.swappiness", Grade.BETTER, str(value), means, command)
    else:
        yield Finding("machine", "vm.swappiness", Grade.FINE, str(value))
    maps = settings.get("vm/max_map_count")
    command = "sysctl -w vm.max_map_count=262144"
    means = "each log file and each open file of a queue is a mapping; beyond it a node ends"
    yield _most(
        "machine", "vm.max_map_count", value=maps, least=MAPS_MIN, means=means, command=command
    )
    policy = settings.get("vm/overcommit_memory")
    if policy == 2:
        means = "the kernel refuses memory that is only reserved: a start can fail"
        yield Finding("machine", "vm.overcommit_memory", Grade.BETTER, "2", means)
    elif policy is not None:
        yield Finding("machine", "vm.overcommit_memory", Grade.FINE, str(policy))


def _unwritten(settings: Mapping[str, int], memory: int | None) -> Iterable[Finding]:
    """Judge how much the kernel lets files change in memory before it makes writers wait."""
    share = settings.get("vm/dirty_ratio")
    most = settings.get("vm/dirty_bytes") or (
        memory * share // 100 if memory is not None and share is not None else None
    )
    if most is None:
        return
    shown = f"{format_size(most)} unwritten"
    if most <= DIRTY_BYTES_MAX:
        yield Finding("machine", "vm.dirty_bytes", Grade.FINE, shown)
        return
    means = "when that waits for the disk, writers stand still until it is written"
    command = f"sysctl -w vm.dirty_bytes={DIRTY_BYTES_MAX}"
    yield Finding("machine", "vm.dirty_bytes", Grade.BETTER, shown, means, command)


def _of_kernel(found: Machine) -> Iterable[Finding]:
    """Judge what may cost time at any moment: huge pages, and how the clock is read."""
    if found.huge_pages == "always":
        means = "the kernel moves memory together for huge pages, and a node waits meanwhile"
        command = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
        yield Finding("machine", "huge pages", Grade.BETTER, "always", means, command)
    elif found.huge_pages is not None:
        yield Finding("machine", "huge pages", Grade.FINE, found.huge_pages)
    clock = found.clock_source
    if clock is not None and clock not in FAST_CLOCKS:
        means = "each look at the clock is a call into the kernel, several for each request"
        yield Finding("machine", "clock source", Grade.BETTER, clock, means)
    elif clock is not None:
        yield Finding("machine", "clock source", Grade.FINE, clock)


def _clock(clock_set: bool | None) -> Finding:
    if clock_set is None:
        return Finding("machine", "clock", Grade.UNKNOWN, "?")
    if clock_set:
        return Finding("machine", "clock", Grade.FINE, "synchronized")
    means = "times of messages and leases are by this clock; no time service keeps it"
    return Finding("machine", "clock", Grade.BETTER, "not synchronized", means, "timedatectl")


def _spark(found: Machine) -> Finding:
    what = f"PySpark {found.spark or 'not installed'}, Java {found.java or 'not found'}"
    if not found.spark:
        return Finding("machine", "Spark", Grade.FINE, f"{what} (needed by Spark jobs only)")
    major = (found.java or "").partition(".")[0]
    if not major.isdigit() or int(major) < 17:
        means = "Spark needs Java 17 or newer"
        command = "uv sync --extra spark --extra spark-java"
        return Finding("machine", "Spark", Grade.BETTER, what, means, command)
    return Finding("machine", "Spark", Grade.FINE, what)


def directory(found: Directory) -> list[Finding]:
    """Judge a data directory."""
    area = f"directory {found.node}".strip()
    name = found.node or "NAME"
    if not found.exists:
        means = "it is made when the node starts for the first time"
        return [Finding(area, "exists", Grade.FINE, f"{found.place} does not exist yet", means)]
    results: list[Finding] = []
    if found.writable is False:
        means = "the node must be started by its owner"
        results.append(
            Finding(area, "writable", Grade.BETTER, f"{found.place}, not by this user", means)
        )
    else:
        results.append(Finding(area, "writable", Grade.FINE, found.place))
    results += _file_system(area, found)
    if found.quarantined:
        means = "the log is damaged below what was flushed; the node does not serve until repaired"
        command = f"twinlog log verify {found.place}"
        results.append(Finding(area, "store", Grade.WRONG, "quarantined", means, command))
    else:
        state = "a node runs on it" if found.runs else "no node runs on it"
        results.append(Finding(area, "store", Grade.FINE, state))
    if found.free is not None and found.size:
        used = 1 - found.free / found.size
        what = f"{format_size(found.free)} free, {used:.0%} in use"
        if used > DISK_USED_MAX:
            means = "retention deletes what may go, then writes are refused (retention.disk_refuse)"
            command = f"twinlog node show {name}"
            results.append(Finding(area, "space", Grade.BETTER, what, means, command))
        else:
            results.append(Finding(area, "space", Grade.FINE, what))
    return results


def _file_system(area: str, found: Directory) -> Iterable[Finding]:
    kind = found.kind
    if kind is None:
        yield Finding(area, "file system", Grade.UNKNOWN, "?")
    elif kind in UNFIT:
        means = "its locks and flushes do not protect a store: use a local disk"
        yield Finding(area, "file system", Grade.WRONG, kind, means)
    elif kind in FLEETING:
        means = "it lies in memory: a restart of the machine loses all of it"
        yield Finding(area, "file system", Grade.BETTER, kind, means)
    else:
        yield Finding(area, "file system", Grade.FINE, kind)
    if found.flush is None:
        yield Finding(area, "flush", Grade.UNKNOWN, "?")
        return
    what = format_duration(found.flush)
    if found.flush > FLUSH_SECONDS_MAX:
        means = 'every acknowledgement waits that long with ack = "durable" or flush = "sync"'
        yield Finding(area, "flush", Grade.BETTER, what, means)
    else:
        yield Finding(area, "flush", Grade.FINE, what)


def versions(found: Mapping[str, str]) -> Finding:
    """Judge the releases that nodes run, by their names."""
    different = sorted(set(found.values()))
    if len(different) <= 1:
        return Finding("cluster", "versions", Grade.FINE, ", ".join(different) or "?")
    what = ", ".join(f"{name} {version}" for name, version in sorted(found.items()))
    means = "a rolling upgrade is under way, or was not ended"
    return Finding(
        "cluster", "versions", Grade.BETTER, what, means, "twinlog cluster status -o wide"
    )


def clocks(ahead: Mapping[str, float]) -> Finding:
    """Judge the clocks of nodes, by how far each is ahead of the clock here, seconds."""
    if not ahead:
        return Finding("cluster", "clocks", Grade.UNKNOWN, "?")
    spread = max(ahead.values()) - min(ahead.values())
    what = f"{format_duration(round(spread, 3))} apart"
    if spread > CLOCK_SECONDS_MAX:
        names = f"{min(ahead, key=ahead.__getitem__)} and {max(ahead, key=ahead.__getitem__)}"
        means = f"{names}: after a failover times of messages leap, and leases stand still"
        return Finding("cluster", "clocks", Grade.BETTER, what, means, "timedatectl")
    return Finding("cluster", "clocks", Grade.FINE, what)
