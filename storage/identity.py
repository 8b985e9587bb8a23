"""Whose data directory it is, and which start of which store this is.

``twinlog/identity`` (a sealed map, written once): version, cluster, group, node, store id, address
family, segment size, queue file size. All of them are facts: a store that is opened under another
name or size is refused and stays as it is.

``twinlog/run`` (slots): what the current or last start wrote before it registered. It tells a later
start whether the page cache of the last one can have been lost, and whether the directory is a
copy. ``abort`` is RocketMQ's mark of a running store; while we run it holds one line of ours
(store id, start id, start id before), so a RocketMQ that opened the store in between shows.
``twinlog/clean`` is the mark of a clean stop.

Not here: the decision whether a start is clean (`decide_clean` is pure and here; what it is told
comes from `storage.opening`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import cast

from storage.disk import Disk
from storage.errors import DiskError, IdentityMismatch, NewerVersion
from storage.packing import number, pack, seal, text, unpack, unseal
from storage.settings import StoreSettings
from storage.slots import Slots
from twinlog.errors import CorruptionError

IDENTITY = "twinlog/identity"
RUN = "twinlog/run"
CLEAN = "twinlog/clean"
ABORT = "abort"
VERSION = 1
STARTS_KEPT = 64
"""Start ids that the coordinator has not seen: more restarts than that are another trouble."""


@dataclass(frozen=True, slots=True)
class Who:
    """Whose store it shall be.

    Attributes:
        cluster: Cluster name.
        group: Group name.
        node: Node name.
        family: Address family of the cluster's store hosts, 4 or 6.
    """

    cluster: str
    group: str
    node: str
    family: int = 4


@dataclass(frozen=True, slots=True)
class Identity:
    """The content of ``twinlog/identity``."""

    who: Who
    store_id: str
    segment_size: int
    queue_file_size: int
    created_ms: int


def write_identity(disk: Disk, value: Identity, op: str) -> None:
    """Write ``twinlog/identity`` durably."""
    fields: dict[str, object] = {
        "version": VERSION,
        "cluster": value.who.cluster,
        "group": value.who.group,
        "node": value.who.node,
        "family": value.who.family,
        "store": value.store_id,
        "segment_size": value.segment_size,
        "queue_file_size": value.queue_file_size,
        "created": value.created_ms,
    }
    disk.write_file(IDENTITY, seal(fields), op)


def read_identity(disk: Disk) -> Identity | None:
    """Return the directory's identity; None when twinlog never made a store there.

    Raises:
        NewerVersion: A later twinlog made it.
        CorruptionError: The file is damaged.
    """
    if not disk.exists(IDENTITY):
        return None
    try:
        fields = unseal(disk.read(IDENTITY, "open.identity"))
        version = number(fields, "version")
        if version > VERSION:
            raise NewerVersion(
                f"the data directory was made by format {version}, this twinlog knows {VERSION}",
                hint="use the newer twinlog",
                found=version,
                known=VERSION,
            )
        who = Who(
            text(fields, "cluster"),
            text(fields, "group"),
            text(fields, "node"),
            number(fields, "family"),
        )
        sizes = number(fields, "segment_size"), number(fields, "queue_file_size")
        return Identity(who, text(fields, "store"), *sizes, number(fields, "created"))
    except CorruptionError as error:
        raise CorruptionError(f"{IDENTITY} is damaged: {error}", file=IDENTITY, offset=0) from None


def check_identity(found: Identity, who: Who, settings: StoreSettings) -> None:
    """Refuse a store that is not the one that was asked for.

    Raises:
        IdentityMismatch: Names both sides.
    """
    pairs: tuple[tuple[str, object, object], ...] = (
        ("cluster", found.who.cluster, who.cluster),
        ("group", found.who.group, who.group),
        ("node", found.who.node, who.node),
        ("address family", found.who.family, who.family),
        ("segment size", found.segment_size, settings.segment_size),
        ("queue file size", found.queue_file_size, settings.queue_file_size),
    )
    for name, there, here in pairs:
        if there != here:
            raise IdentityMismatch(
                f"the data directory has {name} {there}, this node has {here}",
                hint="name the right data directory, or start with an empty one",
                what=name,
                found=there,
                wanted=here,
            )


@dataclass(frozen=True, slots=True)
class Run:
    """What one start wrote down.

    Attributes:
        boot_id: Boot of the kernel; None where it cannot be read.
        device: Number of the data directory's device.
        start_id: Random id of the start.
        unseen: Earlier start ids that the coordinator has not seen, oldest first.
        inode: Of the run file itself; another one means a copied directory.
        unclean_since: Wall time (ms) of the first start that was not clean and has not been
            answered by the coordinator; None when there is none.
        io_error: A flush came back with an error during this run.
        quality: The acknowledgement quality of this run.
    """

    boot_id: str | None
    device: int
    start_id: str
    unseen: tuple[str, ...]
    inode: int
    unclean_since: int | None = None
    io_error: bool = False
    quality: str = "received"


class RunFile:
    """``twinlog/run``.

    Attributes:
        value: What it holds; None before the first start.
    """

    def __init__(self, disk: Disk) -> None:
        self._slots = Slots(disk, RUN)
        self.value: Run | None = None

    def load(self) -> None:
        """Read it."""
        data = self._slots.load("open.run")
        self.value = _run(unpack(data)) if data is not None else None

    def create(self) -> None:
        """Make the file, so that it has an inode."""
        self._slots.create("open.run.create")

    def write(self, value: Run, op: str) -> None:
        """Write it durably, keeping the inode."""
        self._slots.store(pack({name: getattr(value, name) for name in Run.__slots__}), op)
        self.value = value

    def note_io_error(self) -> None:
        """Write down that a flush met an error; a disk that cannot even do that is gone anyway."""
        if self.value is not None and not self.value.io_error:
            with suppress(DiskError):
                self.write(replace(self.value, io_error=True), "io-error")


def _run(fields: Mapping[str, object]) -> Run:
    unclean = fields.get("unclean_since")
    boot = fields.get("boot_id")
    return Run(
        boot if isinstance(boot, str) else None,
        number(fields, "device"),
        text(fields, "start_id"),
        tuple(cast("Sequence[str]", fields["unseen"])),
        number(fields, "inode"),
        unclean if isinstance(unclean, int) else None,
        bool(fields.get("io_error")),
        text(fields, "quality"),
    )


@dataclass(frozen=True, slots=True)
class CleanMark:
    """What a clean stop left.

    Attributes:
        end: End of the log.
        start_id: The start that stopped.
        checkpoint: crc32c of RocketMQ's ``checkpoint`` as we left it.
    """

    end: int
    start_id: str
    checkpoint: int


def write_clean_mark(disk: Disk, value: CleanMark) -> None:
    """Write ``twinlog/clean`` durably."""
    fields = {"end": value.end, "start": value.start_id, "checkpoint": value.checkpoint}
    disk.write_file(CLEAN, seal(fields), "close.clean")


def read_clean_mark(disk: Disk) -> CleanMark | None:
    """Return the mark of a clean stop; None when there is none that can be read."""
    if not disk.exists(CLEAN):
        return None
    try:
        fields = unseal(disk.read(CLEAN, "open.clean"))
        names = number(fields, "end"), text(fields, "start"), number(fields, "checkpoint")
    except CorruptionError:
        return None
    return CleanMark(*names)


def abort_line(store_id: str, start_id: str, before: str) -> bytes:
    """Return the line that ``abort`` holds while we run."""
    return f"{store_id} {start_id} {before or '-'}\n".encode()


def abort_is_ours(line: bytes, store_id: str, start_id: str) -> bool:
    """Whether ``abort`` was left by the start that ``twinlog/run`` names, or by one after it.

    A start writes ``abort`` before ``run``; a crash between the two leaves the start id before in
    the third place.
    """
    parts = line.split()
    ours = len(parts) == 3 and parts[0] == store_id.encode()
    return ours and start_id.encode() in parts[1:]


def decide_clean(
    last: Run | None,
    mark: CleanMark | None,
    *,
    boot_id: str | None,
    device: int,
    end: int,
    cut_batches: int,
    flushed: int,
) -> str:
    """Return why this start is not clean, or "" when it is.

    Args:
        last: What the last start wrote; None for a new store.
        mark: The mark of a clean stop.
        boot_id: Of the running kernel.
        device: Of the data directory now.
        end: The recovered end.
        cut_batches: Batches with a valid entry that recovery cut.
        flushed: Largest flushed offset that anything names.
    """
    if last is None:
        return ""
    if last.unclean_since is not None:
        return "an earlier start was not clean and has not been registered"
    if mark is not None and mark.end == end:
        return ""
    if last.io_error:
        return "the disk reported an error while the store was running"
    if last.quality == "durable" and end >= flushed:
        return ""
    if last.boot_id is None or boot_id is None:
        return "the kernel's boot id cannot be read"
    if last.boot_id != boot_id:
        return "the machine was started anew while the store was running"
    if last.device != device:
        return "the data directory lies on another device"
    if cut_batches:
        return f"{cut_batches} written batches were lost"
    return ""
