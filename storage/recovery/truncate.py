"""Cutting the end of the log off, durably.

Steps, each of which may be repeated after a crash:

1. the intent (where to, and where the log ended) is written durably to ``twinlog/intent``;
2. the bytes that will be cut are copied to ``twinlog/divergent-{epoch}-{P}-{ms}`` and fsynced:
evidence for people, never read by twinlog (``ms``: store timestamp of the newest record). They were
never confirmed, and a node that cannot cut cannot be a member: if the disk has no space for them,
they are given up after some attempts (`SIDE_ATTEMPTS`), which is reported;
3. the archive's mark falls to the border of the file that holds P: bytes written after P from now
on are not archived (`storage.marks.archive_mark`); snapshots beyond P are removed;
4. batch index and log: zeros from P to the end of the file that holds it (file lengths never
   change), later files removed, the index file of each before its log file; queue entries are
   removed when the queues are opened again (`storage.recovery.derived`);
5. files and directories fsynced, then a checkpoint with a flushed offset of at most P, and the note
that queue files may hold entries beyond it;
6. the intent is removed.

A start with an intent repeats steps 2 to 6 before it recovers anything (R41). The order matters:
with the older checkpoint the missing bytes would look like damage, so the new one is written last
before the intent is removed.

Not here: the choice of P (``replication``), ending the writer (`storage.store`).
"""

from __future__ import annotations

from dataclasses import dataclass

from storage.disk.disk import Disk
from storage.disk.packing import number, seal, unseal
from storage.errors import DiskFull
from storage.log.batch_index import DIRECTORY as INDEX_DIRECTORY
from storage.log.batch_index import index_path
from storage.log.segment import DIRECTORY as LOG_DIRECTORY
from storage.log.segment import flush_names, log_path, remove_segment
from storage.marks.archive_mark import ArchiveMark
from storage.marks.checkpoint import CheckpointFile, Trusted
from storage.recovery.snapshot import Snapshots
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import BatchEntry
from twinlog.format.log_file import file_name

INTENT = "twinlog/intent"
SIDE_ATTEMPTS = 3
"""Attempts to write the side file before the bytes are given up."""
_SIDE = "divergent"
_PIECE = 1024 * 1024
_ENTRY = 48


@dataclass(frozen=True, slots=True)
class Intent:
    """A cut that has begun.

    Attributes:
        to: Log offset after the last byte that stays.
        end: End of the log before the cut.
        epoch: Last epoch of the log before the cut; names the side file.
        flushed: Flushed offset after the cut.
        confirm: Confirm offset after the cut.
        newest_ms: Store timestamp of the newest record before the cut.
    """

    to: int
    end: int
    epoch: int
    flushed: int
    confirm: int
    newest_ms: int = 0


def write_intent(disk: Disk, value: Intent) -> None:
    """Write the intent durably."""
    fields = {
        "to": value.to, "end": value.end, "epoch": value.epoch, "flushed": value.flushed,
        "confirm": value.confirm, "newest": value.newest_ms,
    }  # fmt: skip
    disk.write_file(INTENT, seal(fields), "cut.intent")


def read_intent(disk: Disk) -> Intent | None:
    """Return the cut that a crash interrupted; None without one."""
    if not disk.exists(INTENT):
        return None
    try:
        fields = unseal(disk.read(INTENT, "cut.intent.read"))
    except CorruptionError:
        raise CorruptionError(f"{INTENT} is damaged", file=INTENT, offset=0) from None
    to, end, epoch, flushed, confirm = (
        number(fields, name) for name in ("to", "end", "epoch", "flushed", "confirm")
    )
    newest = number(fields, "newest") if "newest" in fields else 0
    return Intent(to, end, epoch, flushed, confirm, newest)


def side_files(disk: Disk) -> list[tuple[str, int]]:
    """Return the side files and the time (ms) of their newest record; 0 if the name has none."""
    found: list[tuple[str, int]] = []
    for name in disk.list("twinlog"):
        parts = name.split("-")
        if parts[0] == _SIDE and len(parts) in (3, 4):
            ms = parts[3].partition(".")[0] if len(parts) == 4 else ""
            found.append((f"twinlog/{name}", int(ms) if ms.isdigit() else 0))
    return found


def carry_out(
    disk: Disk,
    intent: Intent,
    segment_size: int,
    checkpoint: CheckpointFile,
    *,
    archive: ArchiveMark,
    may_lose: bool = False,
) -> bool:
    """Do steps 2 to 6; see the module's text.

    Args:
        disk: The data directory.
        intent: The durable intent.
        segment_size: Bytes of a log file.
        checkpoint: Gets the new flushed offset.
        archive: Lowered with the log.
        may_lose: On a full disk, go on without the side file.

    Returns:
        Whether the side file was kept.

    Raises:
        DiskFull: Without ``may_lose``: there is no room for the side file.
        DiskError: The intent stays; the cut must be carried out again before the log is used.
    """
    kept = True
    try:
        _keep_side_file(disk, intent, segment_size)
    except DiskFull:
        if not may_lose:
            raise
        kept = False
        _remove_half(disk, intent)
    base = intent.to - intent.to % segment_size
    # Before the log changes: after a crash in between, the mark must not cover bytes that a new
    # master writes here.
    archive.lower_to(base)
    # A snapshot beyond P describes records that no longer exist (R50).
    Snapshots(disk).cut(intent.to)
    if base < intent.to:
        # Index first: log bytes without an entry are no batch, an entry without its bytes is
        # damage.
        _zero_index(disk, base, intent.to)
        _zero_log(disk, base, intent.to, segment_size)
        base += segment_size
    # Later files from the newest down, so that a crash leaves no gap in the middle.
    starts = {int(name) for name in disk.list(LOG_DIRECTORY) if name.isdigit()}
    starts |= {int(name) for name in disk.list(INDEX_DIRECTORY) if name.isdigit()}
    for start in sorted(starts, reverse=True):
        if start >= base:
            remove_segment(disk, start, "cut.remove")
    flush_names(disk, "cut")
    checkpoint.untidy = True  # until the queues are rebuilt
    checkpoint.write(Trusted(intent.flushed, intent.confirm), "cut.checkpoint")
    disk.remove(INTENT, "cut.clear")
    disk.fsync_dir("twinlog", "cut.clear.dir")
    return kept


def _side_path(intent: Intent) -> str:
    return f"twinlog/{_SIDE}-{intent.epoch}-{file_name(intent.to)}-{intent.newest_ms}"


def _remove_half(disk: Disk, intent: Intent) -> None:
    aside = _side_path(intent) + ".new"
    if disk.exists(aside):
        disk.remove(aside, "cut.side.remove")


def _keep_side_file(disk: Disk, intent: Intent, segment_size: int) -> None:
    path = _side_path(intent)
    if intent.end <= intent.to or disk.exists(path):
        return
    aside = path + ".new"
    if disk.exists(aside):
        disk.remove(aside, "cut.side.remove")
    disk.create_sparse(aside, intent.end - intent.to, "cut.side.create")
    at = intent.to
    while at < intent.end:
        base = at - at % segment_size
        if not disk.exists(log_path(base)):
            break
        length = min(_PIECE, intent.end - at, base + segment_size - at)
        data = disk.read_at(log_path(base), at - base, length, "cut.side.read")
        disk.write_at(aside, at - intent.to, data, "cut.side.write")
        at += length
    disk.fsync(aside, "cut.side.fsync")
    disk.rename(aside, path, "cut.side.rename")
    disk.fsync_dir("twinlog", "cut.side.dir")


def _zero_index(disk: Disk, base: int, end: int) -> None:
    path = index_path(base)
    data = disk.read(path, "cut.index.read")
    keep = 0
    for at in range(0, len(data) - _ENTRY + 1, _ENTRY):
        entry = BatchEntry.unpack(data, at)
        if entry is None or entry.start >= end:
            break
        keep = at + _ENTRY
    if any(data[keep:]):
        disk.write_at(path, keep, bytes(len(data) - keep), "cut.index.zero")
    disk.fsync(path, "cut.index.fsync")


def _zero_log(disk: Disk, base: int, end: int, segment_size: int) -> None:
    mapping = disk.map(log_path(base), segment_size, op="cut.log.map")
    try:
        mapping.zero(end - base, segment_size, "cut.log.zero")
        mapping.flush_range(end - base, segment_size, "cut.log.fsync")
    finally:
        mapping.close()
