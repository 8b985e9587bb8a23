"""Opening a store: from the files of a data directory to a usable store.

Order: identity (nothing is changed before the store is known to be this node's), lock, a new
store's files, traces of the last stop and of other programs, an interrupted cut, recovery of the
log, derived state (from the newest snapshot, then from the log up to the confirm offset), whether
the start is clean, and last the marks of a running store: ``abort`` and ``twinlog/run`` are
written, then the clean mark is removed.

With damage, log and batch index are not changed: the store opens quarantined, serves the undamaged
part, and writes no batch.

Not here: the rules (`storage.recovery.log_end`, `storage.marks.identity`), formats of the files.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

from storage.damage import Damage
from storage.disk.disk import Disk, Mapping
from storage.errors import DirectoryInUse, DiskError, DiskFull, ForeignStore
from storage.log import reserve, segment
from storage.log.batch_index import DIRECTORY as INDEX_DIRECTORY
from storage.log.batch_index import ENTRY_SIZE, BatchIndex, growth_for, index_path
from storage.log.block_cache import Blocks
from storage.log.commit_log import CommitLog
from storage.log.epoch_history import EpochHistory
from storage.log.sealed_index import SealedIndex, open_sealed
from storage.log.segment import Segment, log_path, remove_segment
from storage.log.segments import DIFFERS, Segments, covered
from storage.marks.archive_mark import ArchiveMark
from storage.marks.checkpoint import (
    ROCKETMQ_CHECKPOINT,
    CheckpointFile,
    Trusted,
    write_rocketmq_checkpoint,
)
from storage.marks.clean_start import decide_clean
from storage.marks.identity import Identity, Who, check_identity, read_identity, write_identity
from storage.marks.promise import Promise, PromiseFile
from storage.marks.quarantine import (
    FINDINGS_MAX,
    FoundBy,
    Quarantine,
    read_quarantine,
    write_quarantine,
)
from storage.marks.run import (
    ABORT,
    CLEAN,
    STARTS_KEPT,
    CleanMark,
    Run,
    RunFile,
    abort_is_ours,
    abort_line,
    read_clean_mark,
)
from storage.queues.consume_queue import DIRECTORY as QUEUE_DIRECTORY
from storage.recovery import config_export, reseed, snapshot, truncate
from storage.recovery.derived import Doubt, derive
from storage.recovery.log_end import Found, Plan, plan, wrong_length
from storage.recovery.opened import Opened
from storage.recovery.summary import BootSummary
from storage.settings import StoreSettings
from twinlog.format.batch_index import BatchEntry
from twinlog.format.checkpoint import Checkpoint
from twinlog.kernels import crc32c

_EVERYTHING = 1 << 62
PROVE_BACK = 1024 * 1024
"""Bytes before the checkpointed flushed offset that a start compares with their CRCs."""


@dataclass(slots=True)
class _Start:
    """Facts gathered while opening."""

    disk: Disk
    settings: StoreSettings
    identity: Identity
    run: RunFile
    checkpoint: CheckpointFile
    promises: PromiseFile
    mark: CleanMark | None = None
    trusted: Trusted = field(default_factory=Trusted)
    changed_by_others: str = ""
    new: bool = False
    copied: bool = False
    intent_replayed: bool = False
    quarantine: Quarantine | None = None
    wounds: dict[int, Damage] = field(default_factory=lambda: dict[int, Damage]())
    floor: int = 0


def open_store(
    disk: Disk,
    settings: StoreSettings,
    who: Who,
    *,
    guard: AbstractContextManager[object],
    wall_ms: int,
) -> Opened:
    """Open the store in ``disk`` for this process; ``guard`` excludes its jobs from each other.

    Raises:
        IdentityMismatch, NewerVersion, ForeignStore: Not the requested store; nothing was changed.
        DirectoryInUse: Another process has it.
        CorruptionError: A small file that only twinlog writes is damaged.
        DiskError: An operation of the system failed.
    """
    found = read_identity(disk)
    if found is not None:
        check_identity(found, who, settings)
    elif any(name.isdigit() for name in disk.list(segment.DIRECTORY)):
        raise ForeignStore(
            "the data directory holds a log that twinlog did not write: it has no twinlog/identity",
            hint="read it with twinlog log; make it the beginning of a store: twinlog store adopt",
        )
    _lock(disk, found, who)
    start: _Start | None = None
    try:
        start = _begin(disk, settings, who, found, wall_ms)
        return _open(start, guard, wall_ms)
    except BaseException as error:
        failed = isinstance(error, DiskError) and not isinstance(error, DiskFull)
        if failed and start is not None:
            start.run.note_io_error()  # the kernel reports a lost write only once
        disk.unlock()
        raise


def _lock(disk: Disk, found: Identity | None, who: Who) -> None:
    try:
        disk.lock("open.lock")
    except DirectoryInUse as error:
        holder = found.who.node if found is not None else "a node that is just starting"
        raise DirectoryInUse(
            f"{error.text}: it is the store of {holder}, and {who.node} wants it",
            hint=error.hint,
            holder=holder,
            node=who.node,
        ) from None


def _begin(
    disk: Disk, settings: StoreSettings, who: Who, found: Identity | None, wall_ms: int
) -> _Start:
    run, checkpoint, promises = RunFile(disk), CheckpointFile(disk), PromiseFile(disk)
    if found is None:
        for name in (
            segment.DIRECTORY, QUEUE_DIRECTORY, "index", config_export.DIRECTORY,
            INDEX_DIRECTORY, snapshot.DIRECTORY,
        ):  # fmt: skip
            disk.make_dir(name, "create.make-dir")
        run.create()
        checkpoint.create()
        checkpoint.untidy = False
        checkpoint.write(Trusted(), "create.checkpoint")
        promises.create()
        promises.write(Promise(), "create.promise")
        write_rocketmq_checkpoint(disk, Checkpoint(), "create.rocketmq-checkpoint")
        identity = Identity(
            who, disk.random_bytes(8).hex(), settings.segment_size, settings.queue_file_size,
            wall_ms,
        )  # fmt: skip
        disk.fsync_dir(".", "create.dir")
        write_identity(disk, identity, "create.identity")
        return _Start(disk, settings, identity, run, checkpoint, promises, new=True)
    reserve.give_up(disk, "open")
    start = _Start(disk, settings, found, run, checkpoint, promises)
    run.load()
    start.mark = read_clean_mark(disk)
    start.trusted = checkpoint.load()
    start.copied = run.copied
    start.changed_by_others = _traces_of_others(start)
    return start


def _traces_of_others(start: _Start) -> str:
    """Return the evidence that another program opened the store since the last start, or ""."""
    disk, last, mark = start.disk, start.run.value, start.mark
    if last is None:
        return ""
    line = disk.read(ABORT, "open.abort") if disk.exists(ABORT) else None
    ours = line is not None and abort_is_ours(line, start.identity.store_id, last.start_id)
    if mark is None:
        if ours:
            return ""
        return f"neither {CLEAN} nor {ABORT} is as twinlog left it"
    if line is not None and not ours:
        return f"{ABORT} shows that another program ran after the clean stop"
    there = disk.exists(ROCKETMQ_CHECKPOINT)
    data = disk.read(ROCKETMQ_CHECKPOINT, "open.rocketmq-checkpoint") if there else b""
    if crc32c(data) != mark.checkpoint:
        return f"the file {ROCKETMQ_CHECKPOINT} is not as twinlog left it"
    if _bytes_at(start, mark.end):
        base = mark.end - mark.end % start.settings.segment_size
        return f"there are bytes beyond the end of the clean stop in {log_path(base)}"
    return ""


def _bytes_at(start: _Start, end: int) -> bool:
    """Whether a record or a blank begins at log offset ``end``: both begin with their size."""
    base = end - end % start.settings.segment_size
    path = log_path(base)
    return start.disk.exists(path) and any(start.disk.read_at(path, end - base, 4, "open.tail"))


def _open(start: _Start, guard: AbstractContextManager[object], wall_ms: int) -> Opened:
    disk, settings = start.disk, start.settings
    promise = start.promises.load()
    _finish_interrupted(start)
    found = start.quarantine = read_quarantine(disk)
    if found is not None and found.repairable:
        # Batches of a log that is otherwise in order can be repaired while the store is open.
        start.wounds = {one.offset: one for one in found.findings}
    files, planned, old = _recover(start)
    # Before anything is cut: the end found may be that of the other program's records.
    if start.changed_by_others:
        _refuse_changed_log(start, planned)
    if found is not None and not found.repairable and planned.damage is None:
        planned = replace(planned, damage=found.damage)  # the walk looks at the newest batches only
    why = _clean(start, planned)
    last = start.run.value
    if planned.cut_batches and why and last is not None and last.unclean_since is None:
        # after the cut nothing shows that batches were lost: a crash here must not hide it
        start.run.write(replace(last, unclean_since=wall_ms), "open.unclean")
    if planned.cut_batches and planned.damage is None and not start.checkpoint.untidy:
        start.checkpoint.untidy = True  # a second start would not see that anything was cut
        start.checkpoint.write(start.trusted, "open.untidy")
    log, cut_bytes = _log(start, files, planned, old)
    confirm = min(start.trusted.confirm, log.end)
    derived = derive(
        disk, settings, log, confirm,
        rebuild=bool(start.changed_by_others), doubt=_doubt(start, planned),
    )  # fmt: skip
    if derived.damage is not None and planned.damage is None and not start.wounds:
        planned = replace(planned, damage=derived.damage)
    confirm = max(confirm, derived.dispatcher.position)
    why = why or _clean(start, planned)  # `derive` may have found damage
    run = _mark_running(start, log, why, wall_ms)
    if planned.damage is None:
        start.checkpoint.untidy = False
        # Everything up to the end was flushed above, so the next start trusts it (R2).
        start.checkpoint.write(Trusted(log.end, confirm), "open.checkpoint")
    damage = planned.damage or _wounded(start, wall_ms)
    boot = BootSummary(
        start.identity.store_id, run.start_id, run.unseen, not why, why, start.new, len(files),
        cut_bytes, planned.cut_batches, damage, start.intent_replayed, derived.rebuilt,
        log.end,
    )  # fmt: skip
    return Opened(
        disk, settings, start.identity, start.run, start.checkpoint, start.promises, promise, log,
        derived, confirm, boot, guard, damage, wounds=start.wounds,
        condemned=planned.damage is not None, underived=bool(start.wounds),
    )  # fmt: skip


def _finish_interrupted(start: _Start) -> None:
    """Finish a cut, or a log that begins again, which the last process began."""
    disk, settings = start.disk, start.settings
    intent = truncate.read_intent(disk)
    if intent is not None:
        # A start cannot be retried later: without space the side file is given up.
        truncate.carry_out(
            disk, intent, settings.segment_size, start.checkpoint,
            archive=ArchiveMark(disk), may_lose=True,
        )  # fmt: skip
        start.trusted = start.checkpoint.load()
        start.intent_replayed = True
    if (seed := reseed.read_seed(disk)) is not None:
        reseed.carry_out(
            disk, seed, queue_file_size=settings.queue_file_size, checkpoint=start.checkpoint,
            archive=ArchiveMark(disk),
        )  # fmt: skip
        start.trusted = start.checkpoint.load()
        start.intent_replayed = True


def _wounded(start: _Start, wall_ms: int) -> Damage | None:
    """Write down what the walk found, as every finding is, and return the first one."""
    for wound in start.wounds.values():
        write_quarantine(start.disk, Quarantine(wound, FoundBy.STORE, wall_ms), "open.quarantine")
    return next(iter(start.wounds.values()), None)


def _doubt(start: _Start, planned: Plan) -> Doubt:
    """Return what queue files may hold that is not of this log."""
    last = start.run.value
    if start.mark is not None and start.mark.end == planned.end:
        return Doubt.NOTHING
    if last is None or last.boot_id != start.disk.boot_id() or last.io_error:
        return Doubt.LOST
    changed = start.copied or start.changed_by_others or planned.damage is not None
    if changed or start.checkpoint.untidy:
        return Doubt.ANYTHING
    return Doubt.TOUCHED


# -- the log


def _recover(start: _Start) -> tuple[list[int], Plan, list[Found]]:
    """Return the starts of all files, the plan, and the files that were walked."""
    disk, size = start.disk, start.settings.segment_size
    names = {int(name) for name in disk.list(segment.DIRECTORY) if name.isdigit()}
    names |= {int(name) for name in disk.list(INDEX_DIRECTORY) if name.isdigit()}
    # The log begins where the checkpoint says, not at the first file found: if the name of the
    # first file is lost, that is damage, not a log that begins later.
    floor = start.floor = _floor(start)
    starts = sorted(name for name in names if name % size == 0 and name >= floor)
    prove_from = max(start.trusted.flushed - PROVE_BACK, floor)
    # Whole files: the entries before the offset in this file decide whether it is continuous.
    first = prove_from - prove_from % size
    walked = [_found(disk, at) for at in starts if at >= min(first, starts[-1])]
    if walked and walked[0].start > first:
        walked.insert(0, Found(first, 0, b""))
    mappings: dict[int, Mapping] = {}

    def check(entry: BatchEntry) -> str | None:
        base = entry.start - entry.start % size
        if base not in mappings:
            mappings[base] = disk.map(log_path(base), size, op="open.map")
        at = entry.start - base
        data = mappings[base].buffer[at : at + covered(entry)]
        whole = crc32c(data) == entry.crc
        return None if whole or _is_wound(start, entry) else DIFFERS

    planned = plan(
        walked, segment_size=size, prove_from=prove_from, flushed=start.trusted.flushed,
        check=check,
    )  # fmt: skip
    for mapping in mappings.values():
        mapping.close()
    for at in range(floor, first, size):
        if planned.damage is None:
            planned = replace(planned, damage=_sealed_damage(disk, at, size))
    return starts, planned, walked


def _is_wound(start: _Start, entry: BatchEntry) -> bool:
    """Whether a batch that was on the disk, and has its entry, waits to be repaired."""
    if entry.start not in start.wounds:
        if entry.end > start.trusted.flushed or len(start.wounds) >= FINDINGS_MAX:
            return False
        path = log_path(entry.start - entry.start % start.settings.segment_size)
        start.wounds[entry.start] = Damage(path, entry.start, entry.length, DIFFERS)
    return True


def _floor(start: _Start) -> int:
    """Return where the log begins: from the checkpoint, or if that is lost, from the snapshot."""
    if start.checkpoint.lost:
        newest = snapshot.Snapshots(start.disk).newest(_EVERYTHING)
        start.checkpoint.start = newest.start if newest is not None else 0
    return start.checkpoint.start


def _drop_below(start: _Start) -> None:
    """Finish an interrupted retention: remove files below the log's start."""
    disk = start.disk
    names = {int(name) for name in disk.list(segment.DIRECTORY) if name.isdigit()}
    names |= {int(name) for name in disk.list(INDEX_DIRECTORY) if name.isdigit()}
    below = sorted(name for name in names if name < start.floor)
    for name in below:
        remove_segment(disk, name, "open.retention")
    if below:
        segment.flush_names(disk, "open.retention")


def _found(disk: Disk, start: int) -> Found:
    log, index = log_path(start), index_path(start)
    size = disk.size(log) if disk.exists(log) else 0
    return Found(start, size, disk.read(index, "open.index") if disk.exists(index) else b"")


def _sealed_damage(disk: Disk, start: int, size: int) -> Damage | None:
    """Return what is wrong with an old, full file: checks its length and its last entry only."""
    log = log_path(start)
    held = disk.size(log) if disk.exists(log) else 0
    if held != size:
        return Damage(log, start, 0, wrong_length(held, size))
    if open_sealed(disk, start, start + size, Blocks()) is None:
        return Damage(index_path(start), start, 0, "batch index does not reach the file's end")
    return None


def _index(
    disk: Disk, start: int, size: int, *, walked: Found | None, count: int | None, blocks: Blocks
) -> BatchIndex | SealedIndex:
    """Return the index of a file: with ``count`` entries if it was walked, else read in parts.

    A damaged index of a file that was not walked is loaded whole, so that its valid entries are
    found.
    """
    if walked is None:
        sealed = open_sealed(disk, start, start + size, blocks)
        if sealed is not None:
            return sealed
    found = walked or _found(disk, start)
    kept = _stripped(found.entries)
    if count is not None:
        kept = found.entries[: count * ENTRY_SIZE]
    return BatchIndex(disk, start, kept, size=len(found.entries), growth=growth_for(size))


def _stripped(entries: bytes) -> bytes:
    used = len(entries.rstrip(b"\0"))
    return entries[: used + -used % ENTRY_SIZE]


def _log(
    start: _Start, starts: list[int], planned: Plan, walked: list[Found]
) -> tuple[CommitLog, int]:
    """Make the log that the plan describes; without damage, remove everything beyond its end."""
    disk, settings = start.disk, start.settings
    size, end = settings.segment_size, planned.end
    found, blocks = {file.start: file for file in walked}, Blocks()
    segments: list[Segment] = []
    for at in starts:
        if at >= end or not disk.exists(log_path(at)) or disk.size(log_path(at)) != size:
            continue
        index = _index(
            disk, at, size, walked=found.get(at), count=planned.counts.get(at), blocks=blocks
        )
        mapping = disk.map(log_path(at), size, op="open.map")
        segments.append(Segment(at, mapping, index, durable=True))
    cut_bytes = 0
    if planned.damage is None:
        _drop_below(start)
        cut_bytes = _drop_beyond(start, starts, segments, walked, end)
    log = CommitLog(disk, settings, Segments(size, segments, end, blocks), EpochHistory(), end)
    if planned.damage is None:
        log.segments.seal(disk, end)
    else:
        log.flushed = min(end, start.trusted.flushed)  # nothing was flushed here
    if segments and segments[-1].index.count:
        newest = segments[-1].index
        if isinstance(newest, BatchIndex):
            newest.chain_whole()  # now, not during the append that changes files
        log.timestamp = newest.entry(newest.count - 1).store_timestamp
    return log, cut_bytes


def _drop_beyond(
    start: _Start, starts: list[int], segments: list[Segment], walked: list[Found], end: int
) -> int:
    """Zero and remove everything beyond the end, and flush what is not checkpointed."""
    disk = start.disk
    torn = [
        entry.length
        for file in walked
        for at in range(0, len(file.entries) - ENTRY_SIZE + 1, ENTRY_SIZE)
        if file.start + start.settings.segment_size > end
        and (entry := BatchEntry.unpack(file.entries, at)) is not None
        and entry.start >= end
    ]
    for at in sorted(starts, reverse=True):
        if at >= end:
            remove_segment(disk, at, "open.remove")
    clean_stop = start.mark is not None and start.mark.end == end and not torn
    if segments and not clean_stop:
        last = segments[-1]
        last.growing.take_back("open.index.zero")
        last.mapping.zero(end - last.start, last.size, "open.log.zero")
        for one in segments:
            if one.end > start.trusted.flushed or one is last:
                one.flush(one.start, one.end, "open.flush")
        segment.flush_names(disk, "open.flush")
    return sum(torn)


def _log_files(disk: Disk) -> list[str]:
    return [name for name in disk.list(segment.DIRECTORY) if name.isdigit()]


def _refuse_changed_log(start: _Start, planned: Plan) -> None:
    """Refuse a store whose log another program has changed.

    An unchanged log is accepted: it ends where the clean mark says, and only zeros follow.
    """
    disk, size, mark = start.disk, start.settings.segment_size, start.mark
    untouched = mark is not None and mark.end == planned.end and planned.damage is None
    if untouched and planned.end:
        base = (planned.end - 1) - (planned.end - 1) % size
        tail = disk.read_at(log_path(base), planned.end - base, size, "open.tail")
        later = [name for name in _log_files(disk) if int(name) > base]
        untouched = not any(tail) and not any(
            any(disk.read(f"{segment.DIRECTORY}/{name}", "open.tail")) for name in later
        )
    elif untouched:
        untouched = not _log_files(disk)
    if not untouched:
        raise ForeignStore(
            f"another program changed the store: {start.changed_by_others}",
            hint="it is no member of its group any more: start the node with an empty directory, "
            "or go on outside the group with what was written: twinlog store adopt",
            log_end=planned.end,
        )


# -- clean or not, and the marks of a running store


def _clean(start: _Start, planned: Plan) -> str:
    if start.copied:
        return "the data directory is a copy"
    if planned.damage is not None or start.quarantine is not None or start.wounds:
        return "the log is damaged"
    disk = start.disk
    return decide_clean(
        start.run.value, start.mark, lost=start.run.lost, boot_id=disk.boot_id(),
        device=disk.device(), end=planned.end, cut_batches=planned.cut_batches,
        flushed=planned.flushed,
    )  # fmt: skip


def _mark_running(start: _Start, log: CommitLog, why: str, wall_ms: int) -> Run:
    disk, last = start.disk, start.run.value
    if start.copied:
        start.identity = replace(start.identity, store_id=disk.random_bytes(8).hex())
        write_identity(disk, start.identity, "open.identity")
        # R21: the copy must not continue the original's starts: the register would take it for that
        # store.
        last = None
    start_id = disk.random_bytes(8).hex()  # R20: tells starts of one store apart
    before = last.start_id if last is not None else ""
    line = abort_line(start.identity.store_id, start_id, before)
    disk.write_file(ABORT, line, "open.abort")
    unseen = (*last.unseen, last.start_id)[-STARTS_KEPT:] if last is not None else ()
    unclean_since = last.unclean_since if last is not None else None
    if why and unclean_since is None:
        unclean_since = wall_ms
    newest = log.segments.last.start if log.segments.last is not None else -1
    run = Run(
        disk.boot_id(), disk.device(), start_id, unseen, disk.inode("twinlog/run"),
        unclean_since, False, start.settings.quality, newest,
        disk.inode(log_path(newest)) if newest >= 0 else 0,
    )  # fmt: skip
    # `abort` before `run`: with `run` first, a crash between would leave an `abort` line of unknown
    # origin, and the store would look changed by another program.
    start.run.write(run, "open.run")
    if disk.exists(CLEAN):
        disk.remove(CLEAN, "open.clean.remove")
        disk.fsync_dir("twinlog", "open.clean.dir")
    return run
