"""Turns a foreign directory into the beginning of a twinlog history: ``twinlog store adopt``.

A directory that RocketMQ wrote, or a twinlog store to which RocketMQ appended, cannot be a member
of a group: its bytes were not replicated. An operator may accept them. Then the whole log becomes
epoch 0, closed by a filler, and the first twinlog epoch starts in a new file:

1. the log is read by RocketMQ's rules and must be undamaged up to its end; the part that a twinlog
batch index covers must match it;
2. the rest of the last file becomes a blank and zeros, files beyond it are set aside;
3. each file gets a batch index: existing twinlog entries keep borders and CRC, the rest is divided
into batches of whole records; all are of kind 2 (rebuilt) and epoch 0;
4. identity, checkpoint and a state snapshot at the border are written, the identity last;
5. the store is opened, its first epoch begins, topics and groups are created by control records,
   rows say what the groups have consumed, and the store is stopped cleanly.

Adopting the same directory again gives the same bytes, on any node and at any time: times and hosts
come from its last record. So copies that are adopted on several nodes have equal logs. The former
``twinlog`` folder and the exported files that are replaced are kept in ``cut/adopt-N``. A crash
before step 4 leaves a foreign directory, a crash after it a twinlog store without topics; adopting
again completes it, and recognizes the blank that closes epoch 0.

Units: log offsets in bytes, times in ms. Not here: the confirmation by the user (``cli``), noticing
that a store is foreign (`storage.recovery.open`), epoch 0 on a slave (`storage.append.receiver`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from storage.disk.disk import Disk
from storage.errors import ForeignStore
from storage.log.batch_index import DIRECTORY as INDEX_DIRECTORY
from storage.log.batch_index import growth_for, index_path
from storage.log.epoch_history import EPOCH_FILE, decode_epoch
from storage.log.segment import DIRECTORY as LOG_DIRECTORY
from storage.log.segment import log_path
from storage.log.stretches import STRETCH_MAX
from storage.marks.checkpoint import CheckpointFile, Trusted
from storage.marks.identity import Identity, Who, write_identity
from storage.marks.promise import Promise, PromiseFile
from storage.marks.run import ABORT, CLEAN, RunFile
from storage.queues.names import topic_refusal
from storage.recovery.config_export import TOPICS
from storage.recovery.snapshot import DIRECTORY as STATE_DIRECTORY
from storage.recovery.snapshot import Snapshot, Snapshots
from storage.settings import SEGMENT_SIZE_MIN
from storage.state.controls import CreateTopic
from storage.state.group_controls import CreateGroups
from storage.state.sections import Outcome
from storage.state.topic_controls import AlterTopic
from storage.state.topics import READ, WRITE
from storage.store import Store
from storage.token import Token
from storage.tools.adopt_delays import NOTHING_DELAYED, Delayed, read_delayed
from storage.tools.adopt_groups import NOTHING, Consumed, read_consumed
from storage.tools.adopt_halves import NOTHING_OPEN, OpenHalves, read_halves
from storage.tools.adopt_timers import NOTHING_TIMED, Timed, read_timed
from storage.tools.recover import identity_of, index_capacity, settings_of
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import KIND_FILLER, KIND_REBUILT, BatchEntry
from twinlog.format.consume_queue import BATCH_QUEUE_UNIT, QUEUE_FILE_SIZE_DEFAULT
from twinlog.format.epoch_history import Epoch
from twinlog.format.group_rows import DelayRow, Row
from twinlog.format.light_queues import LIGHT_PREFIX
from twinlog.format.log_file import BLANK
from twinlog.format.record import FLAG_STORE_V6, MAGIC_BLANK, Record
from twinlog.kernels import crc32c, walk
from twinlog.store.damage import Grade
from twinlog.store.files import LogFile
from twinlog.store.log import Run, TwinLog
from twinlog.store.queues import BatchQueue, Queue
from twinlog.store.reader import StoreReader
from twinlog.store.rocketmq_config import topic_queues, topic_terms
from twinlog.store.topics import Deleted, queues_in_database
from twinlog.store.verify.check import verify

ASIDE = "cut"
REASON = "store adopt"
"""Reason in the record of the epoch that an adoption begins."""
UNSOUND = "unsound-store"
"""Code of the refusal of a store that is damaged, or whose log has no certain end."""
UNREADABLE = "unreadable-store"
"""Code of the refusal of a store that could not be read completely."""
BATCH_MAX = 1024 * 1024
"""Records are joined up to this many bytes, as an append does."""
GROUPS_TOGETHER = 20
"""Groups that one control record creates: it fits into the smallest log file."""
ROWS_TOGETHER = 40
"""Rows of one record; likewise."""
_BLANK_MIN = BLANK.size
_BROKERS_OWN = frozenset(
    {
        "TBW102", "BenchmarkTest", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT", "SCHEDULE_TOPIC_XXXX",
        "RMQ_SYS_TRACE_TOPIC", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "TRANS_CHECK_MAX_TIME_TOPIC", "rmq_sys_wheel_timer",
    }
)  # fmt: skip
"""Topics that every broker creates for itself: not created if they have no record."""
_TIMERS = ("timerlog/", "timerwheel", "config/timercheck")
"""Files of RocketMQ's timers, which a twinlog store does not use."""
_ABORT_WORDS = 3
"""Words of twinlog's line in ``abort``; RocketMQ writes one number, or nothing."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """What adopting a directory will do.

    Attributes:
        start: Log offset of the first byte.
        end: End of the log by RocketMQ's rules.
        border: Where the first twinlog epoch will begin.
        proven: Bytes below were written by twinlog and match its batch index; ``start`` if none.
        epoch: The epoch that will begin; above every epoch in the directory.
        records: Records of the log.
        segment_size: Bytes of a log file.
        queue_file_size: Bytes of a queue file.
        family: Address family of the last record's store host.
        timestamp: Store time of the last record.
        topics: (name, queues) that will be created.
        terms: (name, queues that take messages, permission) of those that are altered afterwards.
        left_out: (name, why) of topics whose records stay in the log without a topic.
        queues: (topic, queue, start, end) of every queue.
        batched: Names of the topics that have batch queues.
        beyond: Starts of log files beyond the end.
        timed: Messages that wait for a time; they are delivered when due.
        delayed: How far each delay level is delivered, and what waits: it is delivered when due.
        consumed: Groups, their positions, and what they had popped.
        halves: Messages of transactions that nothing has ended; their producers are asked.
        before: Whose store it was; None for RocketMQ's.
    """

    start: int
    end: int
    border: int
    proven: int
    epoch: int
    records: int
    segment_size: int
    queue_file_size: int
    family: int
    timestamp: int
    topics: tuple[tuple[str, int], ...]
    left_out: tuple[tuple[str, str], ...]
    queues: tuple[tuple[str, int, int, int], ...]
    beyond: tuple[int, ...]
    batched: tuple[str, ...] = ()
    timed: Timed = NOTHING_TIMED
    delayed: Delayed = NOTHING_DELAYED
    consumed: Consumed = NOTHING
    terms: tuple[tuple[str, int, int], ...] = ()
    halves: OpenHalves = NOTHING_OPEN

    @property
    def foreign(self) -> int:
        """Bytes that no twinlog batch index covers."""
        return self.end - self.proven


def plan_adoption(reader: StoreReader, ours: StoreReader) -> Adoption:
    """Return what adopting a directory will do; nothing is written.

    Args:
        reader: The directory by RocketMQ's rules (``StoreReader(root, rocketmq=True)``).
        ours: The same directory by the rules of its own kind.

    Raises:
        ForeignStore: It cannot be adopted now; says why and what to do first. Code `UNSOUND` if it
            is damaged or was not stopped cleanly, `UNREADABLE` if nothing is known to be damaged
            but a part could not be read, ``nothing-to-adopt`` without a log file,
            ``queue-extension`` if its queues have one or are in a database, ``pop-database`` if
            what POP has handed out is in one, ``delay-levels`` if it has more than twinlog knows,
            ``segment-size`` if twinlog does not support the
            length of its log files.
    """
    abort = reader.root / ABORT
    if not reader.clean and len(abort.read_bytes().split()) != _ABORT_WORDS:
        repair = f"stop its broker cleanly, or: twinlog log repair {reader.name}"
        raise _refused("it was not stopped cleanly", repair)
    size = _segment_size(reader)
    _must_be_sound(reader, ours)
    proven = ours.end if ours.ours else reader.start
    if proven > reader.end and _closed(reader, size) == proven:
        proven = reader.end
    if proven > reader.end:
        raise _refused(
            f"RocketMQ has cut the log at {reader.end}; twinlog had written up to {proven}",
            "take the store of another node, or a copy from before",
        )
    last = _last_record(reader)
    topics, left_out = _topics(reader)
    end = reader.end
    return Adoption(
        start=reader.start,
        end=end,
        border=end if end % size == 0 else end - end % size + size,
        proven=proven,
        epoch=max((epoch for epoch, _ in ours.epochs()), default=0) + 1,
        records=sum(piece.count for piece in reader.pieces() if isinstance(piece, Run)),
        segment_size=size,
        queue_file_size=_queue_file_size(reader),
        family=6 if last is not None and last.sys_flag & FLAG_STORE_V6 else 4,
        timestamp=last.store_timestamp if last is not None else 0,
        topics=topics,
        left_out=left_out,
        queues=tuple((q.topic, q.queue, q.min, q.max) for q in reader.queues()),
        beyond=tuple(file.start for file in reader.series.files if file.start >= end),
        batched=tuple(sorted(reader.batch_topics)),
        timed=read_timed(reader),
        delayed=read_delayed(reader),
        consumed=read_consumed(reader),
        terms=_terms(reader, topics),
        halves=read_halves(reader),
    )


def _closed(reader: StoreReader, size: int) -> int:
    """Return the border to which an interrupted adoption has already closed the last file."""
    border = -(-reader.end // size) * size
    blank = BLANK.pack(border - reader.end, MAGIC_BLANK)
    return border if bytes(reader.series.read(reader.end, len(blank))) == blank else reader.end


def _refused(text: str, hint: str, code: str = UNSOUND) -> ForeignStore:
    return ForeignStore(f"the directory cannot be adopted: {text}", hint=hint, code=code)


def _segment_size(reader: StoreReader) -> int:
    sizes = {file.size for file in reader.series.files}
    if not sizes:
        hint = "an empty store needs no adoption: a node makes it when it starts"
        raise _refused("it has no log file", hint, "nothing-to-adopt")
    if len(sizes) != 1:
        what = f"its log files have {len(sizes)} lengths, {min(sizes)} to {max(sizes)} bytes"
        raise _refused(what, f"twinlog log repair {reader.name}")
    [size] = sizes
    if size < SEGMENT_SIZE_MIN or size % 4096 or reader.start % size:
        text = f"its log files have {size} bytes; twinlog needs n x 4 KiB, at least 16 KiB"
        raise _refused(text, "read it with twinlog log", "segment-size")
    return size


def _queue_file_size(reader: StoreReader) -> int:
    stored = reader.stored_queues.values()
    repair = f"twinlog log repair {reader.name}"
    batch = {size for q in stored if isinstance(q, BatchQueue) for size in q.lengths().values()}
    if len(batch) > 1 or any(size % BATCH_QUEUE_UNIT.size for size in batch):
        raise _refused("its batch queue files differ in size", repair)
    sizes = {size for q in stored if isinstance(q, Queue) for size in q.lengths().values()}
    if not sizes:
        return QUEUE_FILE_SIZE_DEFAULT
    if len(sizes) != 1 or max(sizes) % 20:
        raise _refused("its queue files differ in size", repair)
    return max(sizes)


def _must_be_sound(reader: StoreReader, ours: StoreReader) -> None:
    see = f"see: twinlog log verify {reader.name}"
    if queues_in_database(reader.root) and not ours.ours:
        text = "its queues are in a database (RocksDB), not in files"
        raise _refused(text, "read it with twinlog log", "queue-extension")
    bad = [d for d in ours.damage if d.harm.in_log] if ours.ours else []
    if bad and _is_begun(ours):
        bad = [d for d in bad if not d.harm.cut_by_recovery]
    if bad:
        damaged = [d for d in bad if d.harm.readable]
        one = (damaged or bad)[0]
        text = f"{one.name} at {one.offset}: {one.what}"
        raise _refused(text, see, UNSOUND if damaged else UNREADABLE)
    for queue in reader.queues():
        if any(True for _ in queue.extensions()):
            text = f"queue {queue.topic}/{queue.queue} has an extension (consumequeue_ext)"
            raise _refused(text, "read it with twinlog log", "queue-extension")
    wrong = [
        found
        for found in verify(reader).findings
        if found.grade is not Grade.NOTE and not found.file.startswith(_TIMERS)
    ]
    damage = [found for found in wrong if found.grade is Grade.DAMAGE]
    if damage:
        text = f"{damage[0].file}: {damage[0].what}"
        raise _refused(text, f"{see}; then: twinlog log repair {reader.name}")
    if wrong:
        raise _refused(f"{wrong[0].file}: {wrong[0].what}", see, UNREADABLE)


def _is_begun(ours: StoreReader) -> bool:
    """Whether the only data after the adopted log comes from an interrupted adoption.

    Then the tail that recovery would cut was written by that adoption, and is written again. A tail
    that a node wrote may hold records of its group: only recovery may cut those.
    """
    epoch, start = max(ours.epochs(), default=(0, 0))
    if epoch == 0:
        return True
    record = ours.record_at(start)
    if record is None:
        return False
    try:
        return decode_epoch(ours.series.read(start, record.size)).reason == REASON
    except CorruptionError:  # its writer is unknown
        return False


def _last_record(reader: StoreReader) -> Record | None:
    runs = [piece for piece in reader.pieces() if isinstance(piece, Run)]
    if not runs:
        return None
    run = runs[-1]
    view, start = reader.series.view(run.file), run.file.start
    *_, at = walk(view, run.offset - start, run.end - start, check_crc=False)
    return reader.record_at(start + at)


def _topics(
    reader: StoreReader,
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[str, str], ...]]:
    """Return topics to create and those that cannot be; from the queues and topics.json."""
    wanted = {name: max(numbers) + 1 for name, numbers in reader.topics().items()}
    for name, queues in topic_queues(reader.config()).items():
        if name in wanted or name not in _BROKERS_OWN:
            wanted[name] = max(queues, wanted.get(name, 0))
    for name in [name for name in wanted if name.startswith(LIGHT_PREFIX)]:
        del wanted[name]  # a light queue needs no topic
    deleted = Deleted(reader)
    refused = {
        name: "it was deleted" if deleted.has(name) else topic_refusal(name) for name in wanted
    }
    created = tuple((n, wanted[n]) for n in sorted(wanted) if refused[n] is None and wanted[n])
    used = set(reader.topics())
    left_out = tuple((n, why) for n, why in sorted(refused.items()) if why and n in used)
    return created, left_out


def _terms(
    reader: StoreReader, topics: tuple[tuple[str, int], ...]
) -> tuple[tuple[str, int, int], ...]:
    """Return the topics that do not take messages in all of their queues, or may not be used."""
    known, found = topic_terms(reader.config()), list[tuple[str, int, int]]()
    for name, queues in topics:
        write, permission = known.get(name, (queues, READ | WRITE))
        if write < 1:
            write, permission = queues, permission & READ
        if write < queues or permission != READ | WRITE:
            found.append((name, min(write, queues), permission))
    return tuple(found)


def carry_out(
    disk: Disk, value: Adoption, who: Who, *, reader: StoreReader, ours: StoreReader
) -> int:
    """Adopt the directory; return the end of its log. The readers are those of the plan.

    Raises:
        DirectoryInUse: Another process has it; nothing was changed.
        DiskError: The directory is still foreign, or a twinlog store without topics; adopt again.
    """
    disk.lock("adopt.lock")
    try:
        capacity = reader.index_capacity or index_capacity(disk)
        _set_aside(disk, value)
        files = [file for file in reader.series.files if file.start < value.end]
        entries = {file.start: _entries(value, file, reader, ours) for file in files}
        if ours.ours:
            disk.rename("twinlog", f"{_aside(disk)}/twinlog", "adopt.aside")
        for name in (INDEX_DIRECTORY, STATE_DIRECTORY):
            disk.make_dir(name, "adopt.make-dir")
        for file in files:
            _close_file(disk, value, file)
            packed = b"".join(entry.pack() for entry in entries[file.start])
            growth = growth_for(value.segment_size)
            padded = packed.ljust(-(-len(packed) // growth) * growth, b"\0")
            disk.write_file(index_path(file.start), padded, "adopt.index")
        disk.fsync_dir(LOG_DIRECTORY, "adopt.log-dir")
        _write_marks(disk, value, who)
    finally:
        disk.unlock()
    return _first_epoch(disk, value, who, capacity)


def _aside(disk: Disk) -> str:
    """Return the folder of this adoption: the newest one."""
    taken = [int(name[6:]) for name in disk.list(ASIDE) if name[:6] == "adopt-"]
    return f"{ASIDE}/adopt-{max(taken, default=0)}"


def _set_aside(disk: Disk, value: Adoption) -> None:
    """Make the folder of this adoption and copy the files into it that will be replaced."""
    number = int(_aside(disk).rsplit("-", 1)[1]) + 1
    folder = f"{ASIDE}/adopt-{number}"
    disk.make_dir(folder, "adopt.make-dir")
    for path in (TOPICS, EPOCH_FILE, "checkpoint"):
        if disk.exists(path):
            name = path.rsplit("/", 1)[-1]
            disk.write_file(f"{folder}/{name}", disk.read(path, "adopt.read"), "adopt.keep")
    for start in value.beyond:
        name = log_path(start).rsplit("/", 1)[-1]
        disk.rename(log_path(start), f"{folder}/{name}", "adopt.beyond")
    if disk.exists("index"):  # keys are entered again
        disk.rename("index", f"{folder}/index", "adopt.index.aside")
    disk.make_dir("index", "adopt.make-dir")
    disk.fsync_dir(folder, "adopt.aside-dir")


def _entries(
    value: Adoption, file: LogFile, reader: StoreReader, ours: StoreReader
) -> list[BatchEntry]:
    """Return the batch index of one file: twinlog's batches as they were, then scanned ones."""
    view, found, at = reader.series.view(file), list[BatchEntry](), file.start
    log = ours.log
    known = log.entries.get(file.start, ()) if isinstance(log, TwinLog) else ()
    for _, entry in known:
        if entry is not None and entry.start == at and entry.kind != KIND_FILLER:
            span = entry.start, entry.length, entry.count
            found.append(_entry(*span, entry.crc, entry.store_timestamp))
            at = entry.end
    stop = _data_end(value, file, reader)
    for start, end, count, stamp in _batches(view, at - file.start, stop - file.start):
        crc = crc32c(view[start:end])
        found.append(_entry(file.start + start, end - start, count, crc, stamp))
    if stop < file.end:
        head = BLANK.pack(file.end - stop, MAGIC_BLANK)
        stamp = found[-1].store_timestamp if found else 0
        filler = _entry(stop, file.end - stop, 0, crc32c(head), stamp, kind=KIND_FILLER)
        found.append(filler)
    return found


def _entry(
    start: int, length: int, count: int, crc: int, stamp: int, *, kind: int = KIND_REBUILT
) -> BatchEntry:
    return BatchEntry(start, length, count, 0, crc, stamp, kind, 0)


def _data_end(value: Adoption, file: LogFile, reader: StoreReader) -> int:
    """Return where the records of a file end and its blank begins."""
    if file.end > value.end:
        return value.end
    blanks = [offset for offset, _ in reader.blanks() if file.start <= offset < file.end]
    return blanks[0] if blanks else file.end


def _batches(view: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Divide records into (start, end, count, last store time) of at most `BATCH_MAX` bytes."""
    while at < end:
        count, stop, _, stamp, _ = walk(view, at, min(at + BATCH_MAX, end), check_crc=False)
        if not count:
            (size,) = struct.unpack_from(">i", view, at)
            count, stop, _, stamp, _ = walk(view, at, at + size, check_crc=False)
        yield at, stop, count, stamp
        at = stop


def _close_file(disk: Disk, value: Adoption, file: LogFile) -> None:
    """Put the blank at the end of the last file, and zeros after every blank."""
    mapping = disk.map(log_path(file.start), file.size, op="adopt.map")
    try:
        if file.end > value.end:
            at = value.end - file.start
            mapping.zero(at, file.size, "adopt.zero")
            mapping.buffer[at : at + _BLANK_MIN] = BLANK.pack(file.size - at, MAGIC_BLANK)
        mapping.flush_range(0, file.size, "adopt.flush")
    finally:
        mapping.close()


def _write_marks(disk: Disk, value: Adoption, who: Who) -> None:
    """Write the small files of a twinlog store, the identity last."""
    RunFile(disk).create()
    checkpoint, promises = CheckpointFile(disk), PromiseFile(disk)
    checkpoint.create()
    checkpoint.start = value.start
    checkpoint.write(Trusted(value.border, value.border), "adopt.checkpoint")
    promises.create()
    promises.write(Promise(), "adopt.promise")
    snapshot = Snapshot(
        value.border,
        (Epoch(0, value.start),),
        (),
        value.queues,
        (),
        value.timestamp,
        start=value.start,
        batched=value.batched,
    )
    Snapshots(disk).write(snapshot, "adopt.snapshot")
    for name in (ABORT, CLEAN):
        if disk.exists(name):
            disk.remove(name, "adopt.mark.remove")
    identity = Identity(
        who, disk.random_bytes(8).hex(), value.segment_size, value.queue_file_size, value.timestamp
    )
    # The identity decides whether this is a twinlog store: everything before it is durable.
    disk.fsync_dir(".", "adopt.dir")
    write_identity(disk, identity, "adopt.identity")


def _first_epoch(disk: Disk, value: Adoption, who: Who, capacity: tuple[int, int] | None) -> int:
    """Begin the first twinlog epoch, create the topics, stop cleanly."""
    settings = settings_of(identity_of(disk), capacity)
    store = Store.open(disk, settings, who, wall_ms=value.timestamp)
    token, clean = Token("master", value.epoch, 0), False
    try:
        store.take_token(token)
        store.append_epoch(
            token, epoch=value.epoch, node="-", session=0, wall_ms=value.timestamp,
            reason=REASON, by="-",
        )  # fmt: skip
        store.set_confirm(store.end)
        for name, queues in value.topics:
            change = CreateTopic(name, queues, value.timestamp, name in value.batched)
            store.append_control(token, change, wall_ms=value.timestamp)
            store.set_confirm(store.end)
        for name, write, permission in value.terms:
            terms = AlterTopic(name, value.timestamp, write_queues=write, permission=permission)
            store.append_control(token, terms, wall_ms=value.timestamp)
            store.set_confirm(store.end)
        _take_over_groups(store, token, value)
        end, clean = store.end, True
    finally:
        store.close(clean=clean)
    return end


def _take_over_groups(store: Store, token: Token, value: Adoption) -> None:
    """Create the groups, and append what they have consumed, and what waits."""
    groups = value.consumed.groups
    rows: list[Row] = [*value.consumed.rows()]
    rows += [DelayRow(level, after) for level, after in value.delayed.next]
    rows += value.timed.rows
    rows += value.halves.rows
    for at in range(0, len(groups), GROUPS_TOGETHER):
        change = CreateGroups(groups[at : at + GROUPS_TOGETHER])
        made = store.append_control(token, change, wall_ms=value.timestamp)
        assert made.outcome is Outcome.STORED, made
        store.set_confirm(store.end)
    while store.dispatch(STRETCH_MAX):
        pass
    ended = value.halves.ended
    for at in range(0, len(ended), ROWS_TOGETHER):
        # With them goes the record that says the same to a broker which opens the store later.
        told = store.append_together(
            token, (), ended[at : at + ROWS_TOGETHER], wall_ms=value.timestamp
        )
        assert told.outcome is Outcome.STORED, told
        store.set_confirm(store.end)
    for at in range(0, len(rows), ROWS_TOGETHER):
        made = store.append_rows(token, rows[at : at + ROWS_TOGETHER], wall_ms=value.timestamp)
        assert made.outcome is Outcome.STORED, made
        store.set_confirm(store.end)
