"""Repairs a store directory: first a plan for people to read, then its execution.

Only redundant data can be repaired. The log is the source: queues, key index and marks follow from
it, and the batch index of a sealed twinlog file can be rebuilt from its records. Flushed bytes of
the log are never cut: such damage is *lost* here and must be restored from a copy or a peer.

For a RocketMQ directory the plan is what RocketMQ's own recovery would do, and what it omits: it
does not rebuild a lost queue after a clean stop, and leaves old bytes after a cut. If a log file
cannot be read, the plan is empty: queues built from the rest would lack records. For a twinlog
directory the plan is what recovery cannot do by itself, followed by recovery
(`storage.tools.recover`).

Nothing is deleted: bytes and files that are cut or replaced are kept in ``cut/repair-N``.

Units: log offsets in bytes. Not here: finding damage (`twinlog.store.verify.check`), the
confirmation by the user (``cli``).

Sources: RocketMQ 5.3 (``DefaultMessageStore.recover``).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum

from storage.disk.disk import Disk, RealDisk
from storage.key_index.index import KeyIndex
from storage.log.batch_index import growth_for, index_path
from storage.log.segment import log_path
from storage.marks.checkpoint import write_rocketmq_checkpoint
from storage.marks.quarantine import QUARANTINE, FoundBy, clear_quarantine, read_quarantine
from storage.marks.run import ABORT
from storage.queues.batch_queue import BatchQueue
from storage.queues.consume_queue import ConsumeQueue
from storage.queues.light_queues import light_runs
from storage.queues.queues import ConsumeQueues
from storage.settings import StoreSettings
from storage.tools.recover import recover, require_marks
from storage.tools.reindex import rebuilt_index
from twinlog.errors import UsageError
from twinlog.format.batch_index import BatchEntry
from twinlog.format.checkpoint import Checkpoint
from twinlog.format.consume_queue import QUEUE_ENTRY, QUEUE_FILE_SIZE_DEFAULT
from twinlog.format.key_index import INDEX_SLOTS_DEFAULT
from twinlog.format.light_queues import LIGHT_PROPERTY
from twinlog.kernels import find_property, gather_queues, gather_units, scan_keys
from twinlog.store.damage import Damage, Grade
from twinlog.store.key_index import SAY_IT
from twinlog.store.key_index import KeyIndex as StoredKeys
from twinlog.store.log import Run
from twinlog.store.queues import AnyQueue, Queue
from twinlog.store.queues import BatchQueue as StoredBatchQueue
from twinlog.store.reader import StoreReader
from twinlog.store.verify.check import Finding, short_files, usual_length, verify
from twinlog.store.verify.key_chains import of_other_capacity

ASIDE = "cut"
_PIECE = 1024 * 1024
_BATCHES = "twinlog/batches/"
Indexes = dict[int, tuple[BatchEntry, ...]]
"""Batch indexes that will be written, by the start of their log file."""
_DIRECTORIES = ("consumequeue", "batchconsumequeue", "index")
"""Directories that are rebuilt from the log."""


class Kind(StrEnum):
    """What one action does."""

    FILL = "fill"
    """A truncated log file that lacks only zeros is extended to its length."""
    CUT = "cut"
    """Bytes beyond the end of the log are copied aside and overwritten with zeros."""
    ASIDE = "aside"
    """A file or folder is moved aside."""
    QUEUE = "queue"
    """A queue is rebuilt from the log."""
    KEYS = "keys"
    """The key index is rebuilt from the log."""
    BATCHES = "batches"
    """The batch index of a sealed file is rebuilt from its records."""
    MARKS = "marks"
    """The marks of a clean stop are written."""
    QUARANTINE = "quarantine"
    """The damage of an earlier run is repaired: the node may take part again."""


@dataclass(frozen=True, slots=True)
class Action:
    """One step of a repair: what is done to which path, and why."""

    kind: Kind
    path: str
    offset: int | None
    length: int
    what: str


@dataclass(frozen=True, slots=True)
class Repair:
    """A plan.

    Attributes:
        ours: A twinlog store; recovery follows the actions.
        end: End of the log, before and after.
        actions: In order of execution; empty: nothing to do.
        lost: Damage that cannot be repaired from this directory.
        indexes: Batch indexes that are rebuilt.
        index_slots: As given to the plan; 0 for none.
    """

    ours: bool
    end: int
    actions: tuple[Action, ...]
    lost: tuple[Finding, ...]
    indexes: Indexes = field(default_factory=dict[int, tuple[BatchEntry, ...]])
    index_slots: int = 0


def plan_repair(reader: StoreReader, *, index_slots: int | None = None) -> Repair:
    """Return what a repair of a directory will do; nothing is written.

    Args:
        reader: The directory, by the rules of its own kind.
        index_slots: Slots of a rebuilt key index (RocketMQ's ``maxHashSlotNum``; with four cells
            each, unless the reader was given its capacity); None: as the existing files, else
            RocketMQ's default.

    Raises:
        CorruptionError: Files that recovery itself needs cannot be read.
        UsageError: The key index has a capacity other than four cells per slot, which was not given
            (code ``index-capacity``): an index that fits the broker cannot be built.
    """
    untold = of_other_capacity(reader)
    if untold and not reader.ours and index_slots is None:
        what = "the files of the key index do not have four cells per slot"
        raise UsageError(what, code="index-capacity", hint=SAY_IT)
    verdict = verify(reader)
    if not reader.ours and any(not piece.harm.readable for piece in reader.damage):
        wrong = tuple(one for one in verdict.findings if one.grade is not Grade.NOTE)
        return Repair(ours=False, end=reader.end, actions=(), lost=wrong)
    actions = [*_strays(reader), *_fills(reader)]
    actions += _cuts(reader)
    indexes = dict(_lost_indexes(reader)) if reader.ours else {}
    for start, entries in indexes.items():
        what = f"the batch index is rebuilt: {len(entries)} batches"
        actions.append(Action(Kind.BATCHES, index_path(start), start, 48 * len(entries), what))
    queues, beyond = _queues(reader, verdict.findings)
    actions += queues
    if not reader.ours:
        slots = index_slots or _stored_slots(reader) or INDEX_SLOTS_DEFAULT
        actions += _keys(reader, slots, verdict.findings)
        if not reader.clean or actions:
            what = "the marks of a clean stop: checkpoint written, abort removed"
            actions.append(Action(Kind.MARKS, ABORT, None, 0, what))
    else:
        broken = [f for f in verdict.findings if f.file.startswith("index/")][:1]
        for one in broken if not untold else ():  # the node knows the capacity, and checks itself
            actions.append(Action(Kind.KEYS, "index", None, 0, f"{one.file}: {one.what}"))
        if not reader.clean or actions:
            actions.append(Action(Kind.MARKS, ABORT, None, 0, "recovery, then a clean stop"))
    repaired = {f"{_BATCHES}{log_path(start)[-20:]}" for start in indexes}
    filled = {(action.path, _held(action)) for action in actions if action.kind is Kind.FILL}
    lost = [
        finding
        for finding in verdict.findings
        if finding.grade is not Grade.NOTE
        and finding.file not in repaired
        and (finding.file, finding.position) not in filled
        and finding.file.split("/")[0] not in _DIRECTORIES
        and not _cut_away(finding, reader)
    ]
    lost += beyond
    if reader.ours:
        before, after = _quarantine(RealDisk(reader.root), bool(lost))
        actions = [*actions[:-1], *before, *actions[-1:]] if actions else before
        lost += after
    return Repair(reader.ours, reader.end, tuple(actions), tuple(lost), indexes, index_slots or 0)


def _quarantine(disk: Disk, damaged: bool) -> tuple[list[Action], list[Finding]]:
    """Return the end of a quarantine, or why it cannot end.

    The whole store was verified for the plan: without a finding, the damage is repaired. Damage
    that peers found can only be undone by them: an empty node gets their log.
    """
    found = read_quarantine(disk)
    if found is None:
        return [], []
    where = found.damage
    if found.by is FoundBy.PEERS:
        what = f"{where.what}: start this node with an empty directory"
        return [], [
            Finding(Grade.DAMAGE, QUARANTINE, 0, where.offset, where.length, what, "everything")
        ]
    if damaged:
        return [], []
    what = f"{where.file} at {where.offset} is whole again; it was quarantined for: {where.what}"
    return [Action(Kind.QUARANTINE, QUARANTINE, where.offset, where.length, what)], []


def _cut_away(finding: Finding, reader: StoreReader) -> bool:
    """Whether a finding is about the torn tail, which the plan cuts."""
    tails = [d.offset for d in reader.damage if d.harm.cut_by_recovery]
    return finding.offset is not None and any(finding.offset >= offset for offset in tails)


def _strays(reader: StoreReader) -> list[Action]:
    what = "a file that is not part of a log; RocketMQ would not start"
    return [
        Action(Kind.ASIDE, f"commitlog/{path.name}", None, path.stat().st_size, what)
        for path in reader.series.strays
    ]


def _fills(reader: StoreReader) -> list[Action]:
    """Extend truncated log files, if only bytes beyond the log's end are missing."""
    return [
        Action(
            Kind.FILL, f"commitlog/{file.path.name}", file.end, usual - file.size,
            f"it has {file.size} bytes, not {usual}",
        )
        for file, usual in short_files(reader)
        if reader.end <= file.end and not reader.in_damage(file.end)
    ]  # fmt: skip


def _held(action: Action) -> int:
    """Return the present length of the log file that an action extends."""
    return (action.offset or 0) - int(action.path[-20:])


def _cuts(reader: StoreReader) -> list[Action]:
    """Write zeros beyond the end of the log; move files beyond it aside, with all later ones.

    A file that is cut stays, and so does an empty one, unless an earlier one is moved: RocketMQ
    reads across a gap between two files as if there were none.
    """
    found: list[Action] = []
    cut: set[int] = set()
    for piece in reader.damage:
        if piece.harm.zeroed_by_repair and piece.length:
            start = piece.offset - _in_file(reader, piece)
            cut.add(start)
            path = f"commitlog/{log_path(start)[-20:]}"
            found.append(Action(Kind.CUT, path, piece.offset, piece.length, piece.what))
    moved = False
    for file in reader.series.files:
        if file.start >= reader.end and file.start > reader.start and file.start not in cut:
            written = reader.series.last_written(file, file.start) - file.start
            moved = moved or written > 0
            if moved:
                what = f"a file beyond the end of the log, which is at {reader.end}"
                found.append(
                    Action(Kind.ASIDE, f"commitlog/{file.path.name}", file.start, written, what)
                )
    return found


def _in_file(reader: StoreReader, piece: Damage) -> int:
    file = reader.series.at(piece.offset)
    return piece.offset - file.start if file is not None else 0


def _queues(reader: StoreReader, findings: list[Finding]) -> tuple[list[Action], list[Finding]]:
    """Return the queues to rebuild, and findings about queues that cannot be rebuilt."""
    built, odd = _built(reader)
    wrong: dict[tuple[str, int], str] = {}
    lost: list[Finding] = []
    void = {
        key
        for key, queue in reader.stored_queues.items()
        if not reader.ours and key not in built and _all_behind(reader, queue)
    }
    for finding in findings:
        parts = finding.file.split("/")
        if parts[0] not in _DIRECTORIES or len(parts) < 3:  # findings of the index have two
            continue
        key = (parts[1], int(parts[2]))
        if key in odd:
            what = f"{finding.what}; its records have queue offsets out of order: left as it is"
            lost.append(replace(finding, what=what))
        elif parts[0] == _folder_of(reader, parts[1]) and key in built:
            wrong.setdefault(key, finding.what)
            # After RocketMQ's clean stop such entries had records; after a crash RocketMQ's
            # recovery drops them, and so does this repair.
            if finding.beyond and reader.clean and not reader.ours:
                lost.append(finding)
        elif key not in void or parts[0] != _folder_of(reader, parts[1]) or reader.clean:
            lost.append(finding)
    for key, queue in reader.stored_queues.items():
        if key in built and key not in odd and queue.max_log_offset > reader.end:
            wrong.setdefault(key, "its last entries point beyond the end of the log")
    actions = [
        Action(
            Kind.QUEUE,
            f"{_folder_of(reader, topic)}/{topic}/{number}",
            None,
            built[topic, number],
            what,
        )
        for (topic, number), what in sorted(wrong.items())
    ]
    what = "all its entries point beyond the end of the log"
    actions += [
        Action(Kind.ASIDE, f"{_folder_of(reader, topic)}/{topic}/{number}", None, 0, what)
        for topic, number in sorted(void)
    ]
    return actions, lost


def _all_behind(reader: StoreReader, queue: AnyQueue) -> bool:
    """Whether a queue has entries, and all of them point beyond the end of the log."""
    if queue.max_log_offset < reader.end:
        return False
    offsets = [offset for offset, _ in queue.stored_entries()]
    return bool(offsets) and min(offsets) >= reader.end


def _folder_of(reader: StoreReader, topic: str) -> str:
    return BatchQueue.ROOT if topic in reader.batch_topics else ConsumeQueue.ROOT


def _built(reader: StoreReader) -> tuple[dict[tuple[str, int], int], set[tuple[str, int]]]:
    """Return the bytes of each queue that can be built from the log, and the queues that cannot.

    If the queue offsets of a queue's records do not rise, headers were changed, or RocketMQ had
    lost the queue and begun it again: a queue built from them would lack records.
    """
    found: dict[tuple[str, int], int] = {}
    ends: dict[tuple[str, int], int] = {}
    odd: set[tuple[str, int]] = set()
    for topic, number, first, entries in _made(reader):
        key = topic, number
        found[key] = found.get(key, 0) + len(entries)
        if first < ends.get(key, 0):
            odd.add(key)
        batched = topic in reader.batch_topics
        ends[key] = first + (1 if batched else len(entries) // QUEUE_ENTRY.size)
    return found, set() if reader.ours else odd


def _made(reader: StoreReader) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield (topic, queue, first queue offset, entries or units) that follow from the log."""
    batched = reader.batch_names
    lights: dict[str, int] = {}
    for run in reader.pieces():
        if not isinstance(run, Run):
            continue
        view, start = reader.series.view(run.file), run.file.start
        span = (view, run.offset - start, run.end - start, run.offset)
        for name, number, first, entries in gather_queues(*span):
            if name not in batched:
                yield name.decode("utf-8", "replace"), number, first, entries
        for name, number, first, _, units in gather_units(*span, batched) if batched else ():
            yield name.decode("utf-8", "replace"), number, first, units
        data = view[run.offset - start : run.end - start]
        for light, first, entries in light_runs(
            data,
            run.offset,
            find_property(data, 0, len(data), LIGHT_PROPERTY),
            reader.batch_topics,
        ):
            at = lights.get(light, first)  # RocketMQ's records may name another queue offset
            lights[light] = at + len(entries) // QUEUE_ENTRY.size
            yield light, 0, at, entries


def _stored_slots(reader: StoreReader) -> int:
    """Return the slots of the existing index files; 0 if unknown."""
    files = StoredKeys(reader.root / "index", None).files
    return next((file.slots for file in files if file.slots), 0)


def _keys(reader: StoreReader, slots: int, findings: list[Finding]) -> list[Action]:
    """Return the rebuild of RocketMQ's index if part of it is unreadable, or after a crash."""
    folder = reader.root / "index"
    stored = StoredKeys(folder, None)
    broken = next((f for f in findings if f.file.startswith("index/")), None)
    if broken is not None:
        what = f"{broken.file}: {broken.what}"
    elif not reader.clean:
        what = "its newest file was never flushed; RocketMQ would delete it"
    elif not stored.files and _has_keys(reader):
        what = "no index file exists, though records have keys"
    else:
        return []
    size = f"{slots} slots"
    if reader.index_capacity is not None:
        size += f" and {reader.index_capacity[1]} cells"
    return [Action(Kind.KEYS, "index", None, 0, f"{what}; built with {size}")]


def _has_keys(reader: StoreReader) -> bool:
    for run in reader.pieces():
        if isinstance(run, Run):
            view, start = reader.series.view(run.file), run.file.start
            if scan_keys(view, run.offset - start, run.end - start, run.offset):
                return True
    return False


def _lost_indexes(reader: StoreReader) -> list[tuple[int, tuple[BatchEntry, ...]]]:
    """Return new batch indexes of the sealed files whose own is damaged and can be rebuilt."""
    damaged = {
        file.start
        for piece in reader.damage
        if piece.hides
        and piece.harm.readable
        and piece.name.startswith(_BATCHES)
        and (file := reader.series.at(piece.offset)) is not None
    }
    found: list[tuple[int, tuple[BatchEntry, ...]]] = []
    for start in sorted(damaged):
        entries = rebuilt_index(reader, start)
        if entries is not None:
            found.append((start, entries))
    return found


# -- carrying it out


def carry_out(disk: Disk, repair: Repair, *, reader: StoreReader, wall_ms: int) -> str:
    """Execute the plan; return the folder that keeps everything that was cut or replaced.

    Args:
        disk: The directory.
        repair: Its plan.
        reader: The reader that the plan was made from.
        wall_ms: Wall time, for recovery and for the names of new index files.

    Raises:
        DirectoryInUse: Another process has it; nothing was changed.
        CorruptionError: A small file that a start needs is missing; nothing was changed.
        DiskError: Some actions are done; a new plan shows the rest.
    """
    if repair.ours:
        require_marks(disk)
    disk.lock("repair.lock")
    try:
        folder = _folder(disk)
        for action in repair.actions:
            match action.kind:
                case Kind.FILL if action.offset is not None:
                    last = _held(action) + action.length - 1
                    disk.write_at(action.path, last, b"\0", "repair.fill")
                    disk.fsync(action.path, "repair.fill.fsync")
                case Kind.CUT if action.offset is not None:
                    _cut(disk, action, folder, zero=not repair.ours)
                case Kind.ASIDE:
                    _aside(disk, action.path, folder)
                case Kind.BATCHES if action.offset is not None:
                    _aside(disk, action.path, folder)
                    packed = b"".join(entry.pack() for entry in repair.indexes[action.offset])
                    growth = growth_for(_segment_size(reader))
                    padded = packed.ljust(-(-len(packed) // growth) * growth, b"\0")
                    disk.write_file(action.path, padded, "repair.batches")
                case Kind.QUARANTINE:
                    clear_quarantine(disk, "repair.quarantine")
                case _:
                    pass
        _rebuild_queues(disk, repair, reader, folder)
        _rebuild_keys(disk, repair, reader, folder, wall_ms=wall_ms)
        if not repair.ours and repair.actions:
            _clean_marks(disk, reader, folder)
    finally:
        disk.unlock()
    if repair.ours and repair.actions:
        recover(disk, wall_ms=wall_ms)
    return folder


def _segment_size(reader: StoreReader) -> int:
    return reader.series.files[0].size


def _folder(disk: Disk) -> str:
    taken = [int(name[7:]) for name in disk.list(ASIDE) if name[:7] == "repair-"]
    folder = f"{ASIDE}/repair-{max(taken, default=0) + 1}"
    disk.make_dir(folder, "repair.make-dir")
    return folder


def _aside(disk: Disk, path: str, folder: str) -> None:
    if disk.exists(path):
        above = path.rpartition("/")[0]
        disk.make_dir(f"{folder}/{above}", "repair.make-dir")
        disk.rename(path, f"{folder}/{path}", "repair.aside")
        disk.fsync_dir(f"{folder}/{above}", "repair.aside.dir")
        disk.fsync_dir(above or ".", "repair.aside.dir")


def _cut(disk: Disk, action: Action, folder: str, *, zero: bool) -> None:
    """Copy the bytes aside; RocketMQ's files are zeroed here, twinlog's by recovery."""
    assert action.offset is not None
    kept, base = f"{folder}/log-{action.offset:020d}", int(action.path[-20:])
    disk.create_sparse(kept, action.length, "repair.keep.create")
    for at in range(0, action.length, _PIECE):
        length = min(_PIECE, action.length - at)
        data = disk.read_at(action.path, action.offset - base + at, length, "repair.keep.read")
        disk.write_at(kept, at, data, "repair.keep.write")
    disk.fsync(kept, "repair.keep.fsync")
    disk.fsync_dir(folder, "repair.keep.dir")
    if zero:
        for at in range(0, action.length, _PIECE):
            length = min(_PIECE, action.length - at)
            disk.write_at(action.path, action.offset - base + at, bytes(length), "repair.zero")
        disk.fsync(action.path, "repair.zero.fsync")


def _rebuild_queues(disk: Disk, repair: Repair, reader: StoreReader, folder: str) -> None:
    """Move bad queues aside; RocketMQ's are rewritten here, twinlog's by recovery."""
    wanted = {action.path for action in repair.actions if action.kind is Kind.QUEUE}
    for path in sorted(wanted):
        _aside(disk, path, folder)
    if repair.ours or not wanted:
        return
    stored = reader.stored_queues.values()
    size = usual_length(stored, Queue.kind) or QUEUE_FILE_SIZE_DEFAULT
    batch_size = usual_length(stored, StoredBatchQueue.kind)
    queues = ConsumeQueues(disk, size, reader.batch_topics, batch_file_size=batch_size)
    for topic, number, first, entries in _made(reader):
        if f"{_folder_of(reader, topic)}/{topic}/{number}" in wanted:
            queues.write(topic, number, first, entries)
    queues.unflushed.flush(disk, "repair.queue")


def _rebuild_keys(
    disk: Disk, repair: Repair, reader: StoreReader, folder: str, *, wall_ms: int
) -> None:
    """Move a bad key index aside; RocketMQ's is rewritten here, twinlog's by recovery."""
    if not any(action.kind is Kind.KEYS for action in repair.actions):
        return
    slots = repair.index_slots or _stored_slots(reader) or INDEX_SLOTS_DEFAULT
    _aside(disk, "index", folder)
    disk.make_dir("index", "repair.make-dir")
    if repair.ours:
        return
    cells = 4 * slots if reader.index_capacity is None else reader.index_capacity[1]
    settings = StoreSettings(index_slots=slots, index_cells=cells)
    index = KeyIndex(disk, settings)
    for run in reader.pieces():
        if isinstance(run, Run):
            view, start = reader.series.view(run.file), run.file.start
            keys = scan_keys(view, run.offset - start, run.end - start, run.offset)
            index.enter(keys, wall_ms)
    index.flush().run("repair.index")


def _clean_marks(disk: Disk, reader: StoreReader, folder: str) -> None:
    """Write the checkpoint of a clean stop, then remove ``abort``."""
    runs = [piece for piece in reader.pieces() if isinstance(piece, Run)]
    stamp = reader.last_timestamp(runs[-1]) if runs else 0
    old = reader.checkpoint
    value = Checkpoint(stamp, stamp, old.index_timestamp, old.master_flushed, reader.end)
    write_rocketmq_checkpoint(disk, value, "repair.checkpoint")
    _aside(disk, ABORT, folder)
