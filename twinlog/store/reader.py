"""A read-only view of a store directory: RocketMQ's or ours, live or copied, clean or crashed.

    with StoreReader("data/n1") as store:
        for record in store.records():
            ...

What it shows is what the store would hold after its own recovery: the log up to the end that
recovery would find (`twinlog.store.log` says where that is), queues and keys with what recovery
would drop and add. ``raw=True`` shows everything that parses instead. Damage never stops it: it is
listed (`damage`) and reading continues at the next trusted start.

A live twinlog directory ends at the checkpointed confirm offset: bytes above it may still be cut.
The view is a snapshot of when it was opened.

Units: log offsets in bytes, queue offsets in records, times in milliseconds. Nothing is written, no
lock is taken, no network is used.

Not here: judging a directory (`twinlog.store.verify.check`), printing (``cli.log``).

Sources: RocketMQ 5.3 (``DefaultMessageStore.load``, ``recover``).
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

from twinlog import kernels
from twinlog.errors import CorruptionError, UsageError
from twinlog.format.checkpoint import CHECKPOINT_FILE_SIZE, Checkpoint
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.epoch_file import epoch_file_unpack
from twinlog.format.light_queues import LIGHT_PROPERTY
from twinlog.format.record import Record, decode
from twinlog.store.compacted_queues import CompactedQueue, compacted_queues
from twinlog.store.damage import Damage
from twinlog.store.epochs import history
from twinlog.store.files import (
    FileSeries,
    LogFile,
    head_of,
    is_number,
    is_store,
    listed,
    log_folders,
    small_file,
    store_root,
)
from twinlog.store.key_index import HITS_MAX, TIME_MAX, KeyIndex
from twinlog.store.log import Blank, Piece, RocketLog, Run, TwinLog, Watch, log_end
from twinlog.store.marks import Marks, read_marks
from twinlog.store.queues import (
    AnyQueue,
    BatchQueue,
    Entry,
    Extension,
    Pull,
    Queue,
    Status,
    dispatch_from,
    light_places,
    load_queues,
)
from twinlog.store.rocketmq_config import batch_topics, read_config

__all__ = [
    "Blank",
    "Entry",
    "Extension",
    "LogFile",
    "Piece",
    "Pull",
    "Record",
    "Run",
    "Status",
    "StoreReader",
]


class StoreReader:
    """A store directory, opened for reading.

    Args:
        root: The directory that holds ``commitlog``; further folders of log files may follow,
            separated by commas if RocketMQ's ``storePathCommitLog`` is a list.
        raw: Show everything that parses, not only what recovery would keep.
        rocketmq: Read it by RocketMQ's rules though it has a twinlog batch index: records that
        RocketMQ appended after the last twinlog batch are part of the log then.
        check_crc: Compare bodies and batches with their CRCs; without it damage inside them is not
            seen.
        watch: Called with the end of each log file that has been walked.
        index_capacity: Slots and cells of key index files that are not RocketMQ's four to one.

    Raises:
        UsageError: There is no such directory, or it has no ``commitlog`` (code ``not-a-store``).
    """

    def __init__(
        self,
        root: Path | str,
        *,
        raw: bool = False,
        rocketmq: bool = False,
        check_crc: bool = True,
        watch: Watch | None = None,
        index_capacity: tuple[int, int] | None = None,
        probe: bool = True,
    ) -> None:
        self.index_capacity = index_capacity
        self._check_crc = check_crc
        self._watch = watch
        self.name = str(root)
        self.root = store_root(root)
        self.raw = raw
        if not is_store(root):
            text = f"{self.root} is not a store: it has no directory commitlog"
            raise UsageError(text, code="not-a-store", hint="name the data directory of a node")
        # before the files are listed: what it says was flushed is in them, though a node may run
        marks = read_marks(self.root, probe=probe) if not rocketmq else Marks()
        kept = marks.start or 0
        self.batches = FileSeries(self.root / "twinlog" / "batches", start=kept)
        made_by_us = bool(self.batches.files) or (self.root / "twinlog" / "identity").exists()
        self.ours = made_by_us and not rocketmq
        self.log_folders = log_folders(root)
        self.series = FileSeries(*self.log_folders, start=kept if self.ours else 0)
        self.series.hold()
        self.batches.hold()
        self.clean = not (self.root / "abort").exists()
        self.checkpoint = Checkpoint.unpack(head_of(self.root / "checkpoint", CHECKPOINT_FILE_SIZE))
        self.marks: Marks = marks if self.ours else Marks()
        self.running = marks.live
        """Whether a node or a broker has it open."""

    def __enter__(self) -> StoreReader:
        """Return the reader itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Drop the mappings."""
        self.series.close()
        self.batches.close()
        if "compacted" in self.__dict__:
            for queue in self.compacted.values():
                queue.close()

    # -- the log ---------------------------------------------------------------------------------

    @cached_property
    def stored_queues(self) -> dict[tuple[str, int], AnyQueue]:
        """The queues as their files have them; never changed."""
        return load_queues(self.root)

    @cached_property
    def batch_topics(self) -> frozenset[str]:
        """Topics whose queues are batch queues: by their files, and by ``topics.json``."""
        stored = (q.topic for q in self.stored_queues.values() if isinstance(q, BatchQueue))
        try:
            named = batch_topics(self.config())
        except CorruptionError:  # `config` says so; the files are what is left to go by
            named = frozenset[str]()
        return named.union(stored)

    @cached_property
    def batch_names(self) -> frozenset[bytes]:
        """`batch_topics`, as the log has them."""
        return frozenset(name.encode("utf-8", "surrogatepass") for name in self.batch_topics)

    @cached_property
    def trusted_queues(self) -> int:
        """Log offset up to which a start believes the queue files of a twinlog store.

        All of the log after a clean stop, else what the newest snapshot covers.
        """
        if self.clean:
            return self.end
        names = (path.name for path, _, why in listed(self.root / "twinlog" / "state") if not why)
        return max((int(name) for name in names if is_number(name)), default=0)

    @cached_property
    def adopted(self) -> int:
        """Log offset up to which RocketMQ wrote a twinlog log; 0 for all others."""
        history = self._indexed.epochs() if self.ours else []
        if not history or history[0][0]:
            return 0
        return history[1][1] if len(history) > 1 else self.end

    def in_damage(self, offset: int) -> bool:
        """Whether the byte at log offset ``offset`` is in damage."""
        i = bisect_right(self._damaged, (offset, 1 << 63)) - 1
        return i >= 0 and offset < self._damaged[i][1]

    @cached_property
    def _damaged(self) -> list[tuple[int, int]]:
        """Start and end of damage in order; no start is behind a later end."""
        spans: list[tuple[int, int]] = []
        reach = 0
        for one in sorted(self.damage, key=lambda damage: damage.offset):
            reach = max(reach, one.offset + one.length)
            spans.append((one.offset, reach))
        return spans

    @cached_property
    def compacted(self) -> dict[tuple[str, int], CompactedQueue]:
        """RocketMQ's compacted copies of queues; none in most stores."""
        return compacted_queues(self.root)

    @cached_property
    def log(self) -> RocketLog | TwinLog:
        """The log by the rules of its kind."""
        if self.ours and not self.raw:
            return TwinLog(
                self.series,
                self.batches,
                flushed=self.marks.flushed,
                start=self.marks.start,
                check_crc=self._check_crc,
                watch=self._watch,
            )
        return RocketLog(
            self.series,
            clean=self.clean,
            raw=self.raw,
            checkpoint=self.checkpoint,
            trusted=self._trusted_starts,
            check_crc=self._check_crc,
            watch=self._watch,
        )

    @cached_property
    def _indexed(self) -> TwinLog:
        return TwinLog(self.series, self.batches, flushed=0)

    def _trusted_starts(self, low: int, high: int) -> list[tuple[int, int]]:
        found = {
            entry
            for queue in self.stored_queues.values()
            for entry in queue.stored_entries()
            if low <= entry[0] < high
        }
        for _, entry in self._indexed.entries.get(low, ()) if self.ours else ():
            if entry:
                found.add((entry.start, entry.length))
        return sorted(found)

    @cached_property
    def _pieces(self) -> list[Piece]:
        pieces = self.log.pieces()
        limit = self.marks.confirm if self.marks.live and not self.raw else None
        if limit is None:
            return pieces
        return [piece for piece in (_below(self, piece, limit) for piece in pieces) if piece]

    @property
    def start(self) -> int:
        """Log offset of the first byte kept."""
        return self.series.start

    @cached_property
    def end(self) -> int:
        """Log offset after the last record."""
        return log_end(self.series, self._pieces, ours=self.ours)

    def pieces(
        self, start: int | None = None, end: int | None = None, *, whole: bool = False
    ) -> Iterator[Piece]:
        """Yield runs of records, blanks and damage of ``start..end`` in log order.

        A run is cut to the records that begin in the range, unless runs are wanted ``whole``.
        """
        low = 0 if start is None else start
        high = 1 << 63 if end is None else end
        for piece in self._pieces:
            match piece:
                case Run():
                    if piece.end > low and piece.offset < high:
                        yield from [piece] if whole else self._trim(piece, low, high)
                case Blank():
                    if low <= piece.offset < high:
                        yield piece
                case Damage():
                    if piece.offset + max(piece.length, 1) > low and piece.offset < high:
                        yield piece

    def _trim(self, run: Run, low: int, high: int) -> Iterator[Run]:
        if low <= run.offset and run.end <= high:
            yield run
            return
        first, last, count = -1, -1, 0
        for at in self.starts(run):
            if at >= high:
                break
            if at >= low:
                first, last, count = at if first < 0 else first, at, count + 1
        if count:
            (size,) = struct.unpack_from(">i", self.series.view(run.file), last - run.file.start)
            yield Run(run.file, first, last + size, count)

    def starts(self, run: Run) -> Iterator[int]:
        """Yield the log offset of each record of a run.

        Raises:
            CorruptionError: A batch matches its CRC and yet holds no records: it was forged.
        """
        view, at = self.series.view(run.file), run.offset
        while at < run.end:
            yield at
            (size,) = struct.unpack_from(">i", view, at - run.file.start)
            if not 0 < size <= run.end - at:  # a batch whose CRC was forged
                text = f"no record begins at {at}, though the batch matches its CRC"
                raise CorruptionError(text, file=run.file.path.name, offset=at)
            at += size

    def last_timestamp(self, run: Run) -> int:
        """Return the store timestamp of a run's last record."""
        view, start = self.series.view(run.file), run.file.start
        return kernels.store_timestamp_last(view, run.offset - start, run.end - start)

    def decode_run(self, run: Run) -> Iterator[Record]:
        """Yield the records of a run."""
        view = self.series.view(run.file)
        for at in self.starts(run):
            yield decode(view, at - run.file.start, check_crc=False)

    def records(self, start: int | None = None, end: int | None = None) -> Iterator[Record]:
        """Yield the records that begin in ``start..end`` in log order."""
        for piece in self.pieces(start, end):
            if isinstance(piece, Run):
                yield from self.decode_run(piece)

    def blanks(self) -> list[tuple[int, int]]:
        """Return (log offset, declared size) of every blank in the log."""
        return [(p.offset, p.size) for p in self._pieces if isinstance(p, Blank)]

    @property
    def damage(self) -> list[Damage]:
        """What cannot be used: damage, the torn tail, leftovers."""
        return [piece for piece in self._pieces if isinstance(piece, Damage)]

    def record_at(self, offset: int) -> Record | None:
        """Return the record that begins at log offset ``offset``; None when none does."""
        if not self.start <= offset < self.end:
            return None
        file = self.series.at(offset)
        if file is None:
            return None
        try:
            record = decode(self.series.view(file), offset - file.start)
        except CorruptionError:
            return None
        return record if record.log_offset == offset else None

    def epochs(self) -> list[tuple[int, int]]:
        """Return (epoch, start) oldest first: from the batch index, else from RocketMQ's file.

        Raises:
            CorruptionError: The epoch file is damaged, and its backup is not there or is too.
        """
        if self.ours:
            return history(self.series, self._indexed)
        damaged: CorruptionError | None = None
        for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
            data = small_file(self.root / name)
            try:
                if data and (entries := epoch_file_unpack(data)):
                    return list(entries)
            except CorruptionError as error:
                damaged = damaged or CorruptionError(f"{name}: {error}", file=name, offset=0)
        if damaged is not None:
            raise damaged
        return []

    def kept_epochs(self) -> list[tuple[int, int]]:
        """Return those of `epochs` that have bytes below `end`: recovery may cut the newest."""
        return [one for one in self.epochs() if not self.ours or one[1] < self.end]

    def config(self) -> Mapping[str, dict[str, object]]:
        """Return RocketMQ's config files by name.

        Raises:
            CorruptionError: A file and its backup are both damaged.
        """
        return read_config(self.root)

    # -- queues and keys -------------------------------------------------------------------------

    @cached_property
    def _recovered(self) -> tuple[dict[tuple[str, int], AnyQueue], KeyIndex]:
        """Queues and keys with what recovery drops and adds."""
        queues = load_queues(self.root)
        trusted = None if self.clean else self.checkpoint.index_timestamp
        keys = KeyIndex(self.root / "index", trusted, capacity=self.index_capacity)
        everything = self.ours or not self.clean
        low = self.log.recovery_start if everything else dispatch_from(queues) + 1
        for run in self.pieces(low):
            if isinstance(run, Run):
                self._dispatch(run, queues, keys)
        cut = dispatch_from(queues) >= self.end
        for queue in queues.values():
            if cut:
                queue.cut(self.end)
            queue.correct_min(self.start)
        return queues, keys

    def _dispatch(self, run: Run, queues: dict[tuple[str, int], AnyQueue], keys: KeyIndex) -> None:
        view = self.series.view(run.file)
        at, end = run.offset - run.file.start, run.end - run.file.start
        batched = self.batch_names
        for name, number, first, entries in kernels.gather_queues(view, at, end, run.offset):
            if name in batched:
                continue
            topic = name.decode("utf-8", "replace")
            queue = queues.get((topic, number))
            if queue is None:
                queue = queues[topic, number] = Queue(topic, number, FileSeries(), FileSeries())
            if isinstance(queue, Queue):
                queue.dispatch(first, entries)
        units = kernels.gather_units(view, at, end, run.offset, batched) if batched else ()
        for name, number, _, _, rows in units:
            key = name.decode("utf-8", "replace"), number
            held = queues.setdefault(key, BatchQueue(*key, FileSeries()))
            if isinstance(held, BatchQueue):
                held.dispatch(rows)
        for where, _ in kernels.find_property(view, at, end, LIGHT_PROPERTY):
            record = decode(view, where, check_crc=False)
            entry = QUEUE_ENTRY.pack(run.file.start + where, record.size, record.tags_code)
            for topic, first in light_places(record, self.batch_topics):
                light = queues.get((topic, 0))
                if light is None:
                    light = queues[topic, 0] = Queue(topic, 0, FileSeries(), FileSeries())
                if isinstance(light, Queue):
                    light.dispatch(first, entry)
        if not self.ours:
            self._enter(run, keys)

    def _enter(self, run: Run, keys: KeyIndex) -> None:
        view, at = self.series.view(run.file), run.offset - run.file.start
        keys.add(kernels.scan_keys(view, at, run.end - run.file.start, run.offset))

    def queues(self) -> list[AnyQueue]:
        """Return all queues, by topic and number."""
        return [queue for _, queue in sorted(self._recovered[0].items())]

    def queue(self, topic: str, number: int) -> AnyQueue | None:
        """Return one queue; None when it has no files and no record."""
        return self._recovered[0].get((topic, number))

    def topics(self) -> dict[str, list[int]]:
        """Return the queue numbers of each topic that has a queue."""
        found: dict[str, list[int]] = {}
        for queue in self.queues():
            found.setdefault(queue.topic, []).append(queue.queue)
        return found

    def _gone(self, offset: int, size: int) -> int:
        file = self.series.at(offset)
        if file is not None and self.start <= offset and offset + size <= min(file.end, self.end):
            return 0
        return file.end if file is not None else offset + 1

    def _time_of(self, offset: int, size: int) -> int:
        if self._gone(offset, size):
            return -1
        data = self.series.read(offset, 76)
        if len(data) < 76:  # no record is that short
            return -1
        at = 68 if data[39] & 0x10 else 56
        return int.from_bytes(data[at : at + 8], "big", signed=True)

    def get(self, topic: str, queue: int, offset: int, max_records: int = 32) -> Pull:
        """Read a queue from queue offset ``offset`` on, with RocketMQ's statuses.

        A compacted topic is read from its compacted copy, as RocketMQ does: log offsets are places
        in that copy then.
        """
        compacted = self.compacted.get((topic, queue))
        if compacted is not None:
            return compacted.get(offset, max_records)
        found = self.queue(topic, queue)
        if found is None:
            return Pull(Status.NO_MATCHED_LOGIC_QUEUE, 0)
        return found.get(offset, max_records, self._gone)

    def offset_by_time(self, topic: str, queue: int, ms: int, *, upper: bool = False) -> int:
        """Return the queue offset for a store time; 0 for an unknown queue."""
        found = self.queue(topic, queue)
        if found is None:
            return 0
        return found.offset_by_time(ms, self._time_of, self.start, upper=upper)

    @cached_property
    def keys(self) -> KeyIndex:
        """The key index, with what recovery drops and adds.

        In a twinlog store that is every record after the last full file: the one that grows is
        half in memory while a node runs.
        """
        if not self.ours:
            return self._recovered[1]
        trusted = None if self.clean else self.checkpoint.index_timestamp
        keys = KeyIndex(self.root / "index", trusted, capacity=self.index_capacity)
        for run in self.pieces(max(keys.end, self.start)):
            if isinstance(run, Run):
                self._enter(run, keys)
        return keys

    def find_key(
        self,
        topic: str,
        key: str,
        *,
        most: int = HITS_MAX,
        begin: int = 0,
        end: int = TIME_MAX,
    ) -> list[int]:
        """Return log offsets of records that may carry ``key``, newest first; hashes only.

        ``begin`` and ``end``: store times, ms, by RocketMQ's rule (`KeyIndex.find`).
        """
        return self.keys.find(topic, key, most=most, begin=begin, end=end)


def _below(store: StoreReader, piece: Piece, limit: int) -> Piece | None:
    """Return what of a piece is below ``limit``, which is a batch border."""
    if piece.offset >= limit:
        return None
    if isinstance(piece, Run) and piece.end > limit:
        view, start = store.series.view(piece.file), piece.file.start
        count = kernels.walk(view, piece.offset - start, limit - start, check_crc=False)[0]
        return Run(piece.file, piece.offset, limit, count)
    return piece
