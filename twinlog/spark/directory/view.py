"""A store directory as the source sees it: RocketMQ's or ours, beside a running node or alone.

The view is pinned when the directory is opened: where the log begins and ends, and what each queue
holds. Nothing is written and no lock is taken.

Where the log ends:

* **ours**: the checkpointed confirm offset, in use or not; bytes above it may still be cut. Where
  they are asked for, or no checkpoint is there: as for a store that was stopped;
* **RocketMQ's, in use**: where the queues end; its dispatcher follows the log by milliseconds. Of
  queues in RocksDB nothing is known: refused, but for what is written and holds together;
* **stopped cleanly**: the last record after the newest one that a queue names. Records there have
  no queue entry yet; they are found by walking the log from that trusted start;
* **crashed**: where recovery would cut, as `twinlog.store.reader` finds it, with the queues that
  recovery would rebuild. That reads the whole log once; recovering the node first is cheaper.

Units: queue offsets count records, log offsets are bytes, times are milliseconds.

Not here: reading records (`twinlog.spark.directory.log_bytes`), choosing topics, cutting.

Sources: RocketMQ 5.3 (``DefaultMessageStore.recover``, ``ConsumeQueue.correctMinOffset``).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format.epoch_file import epoch_file_unpack
from twinlog.format.record import decode
from twinlog.kernels import codes
from twinlog.spark.arrow import np
from twinlog.spark.directory.queue_files import (
    ENTRY,
    AnyQueueFiles,
    Entries,
    open_queue,
    queue_folders,
)
from twinlog.spark.errors import SourceError
from twinlog.spark.plan.decoding import are_inner
from twinlog.spark.plan.splits import Piece, Span
from twinlog.store.files import FileSeries, is_store, log_folders, store_root
from twinlog.store.log import first_stamp
from twinlog.store.marks import read_marks
from twinlog.store.reader import StoreReader
from twinlog.store.topics import queues_in_database
from twinlog.units import parse_whole

BATCH: Any = np.dtype(
    [
        ("start", ">u8"),
        ("length", ">u4"),
        ("count", ">u4"),
        ("epoch", ">u4"),
        ("crc", ">u4"),
        ("time", ">u8"),
        ("kind", ">u4"),
        ("flushed", ">u8"),
        ("own", ">u4"),
    ]
)
assert BATCH.itemsize == 48


class Held:
    """Entries of one queue that no file holds: recovery would make them.

    Args:
        topic: Its topic.
        queue: Its number.
        entries: At least one; an inner batch is one that stands for several queue offsets.
        last: How many queue offsets the last one stands for.
    """

    def __init__(self, topic: str, queue: int, entries: Entries, last: int = 1) -> None:
        self.topic = topic
        self.queue = queue
        self.entries = entries
        self.first = int(entries.numbers[0])
        self.end = int(entries.numbers[-1]) + last

    def _index(self, number: int) -> int:
        return max(int(np.searchsorted(self.entries.numbers, number, "right")) - 1, 0)

    def cuts(self, first: int, stop: int, points: Any) -> Any:
        """As `QueueFiles.cuts`."""
        bounds = np.append(self.entries.numbers, self.end)
        found = bounds[np.searchsorted(self.entries.offsets, points, "left")]
        return np.clip(found, first, stop)

    def place(self, number: int) -> int:
        """As `QueueFiles.place`."""
        return int(self.entries.offsets[self._index(number)])

    def sizes(self, first: int, stop: int) -> Any:
        """Return the sizes of the records ``first..stop``."""
        return self.entries.sizes[self._index(first) : self._index(stop - 1) + 1]


class PinnedQueue:
    """One queue of the pinned view: entries of its files, then those held."""

    def __init__(self, files: AnyQueueFiles | None, held: Held | None, log: Directory) -> None:
        one = files or held
        assert one is not None, "a queue has entries somewhere"
        self.topic = one.topic
        self.queue = one.queue
        self.files = files
        self.held = held
        self._log = log
        self.stored_end = self._stored_end()
        self._start: int | None = None

    def _stored_end(self) -> int:
        """Return the queue offset after the last stored entry below the log's end."""
        files = self.files
        if files is None:
            return self.held.first if self.held else 0
        end, limit = files.end, self._log.end
        if end > files.start and files.place(end - 1) >= limit:
            end = files.first_at(limit, files.start, end)
        return min(end, self.held.first) if self.held else end

    @property
    def end(self) -> int:
        """Queue offset after the last record of the view."""
        return self.held.end if self.held else self.stored_end

    @property
    def start(self) -> int:
        """First queue offset whose record is in the log."""
        if self._start is None:
            self._start = self._first_kept()
        return self._start

    def _first_kept(self) -> int:
        files = self.files
        if files is None:
            return self.held.first if self.held else 0
        if files.start >= self.stored_end:
            return self.stored_end
        if files.place(files.start) >= self._log.start:
            return files.start
        return files.first_at(self._log.start, files.start, self.stored_end)

    def at_time(self, ms: int) -> int:
        """Return the first queue offset stored at or after ``ms``, else the end."""
        low, high = self.start, self.end
        while low < high:
            middle = (low + high) // 2
            stamp = self._log.time_at(self.place(middle))
            if stamp is not None and stamp < ms:
                low = middle + 1
            else:
                high = middle
        return low

    def place(self, number: int) -> int:
        """Return the log offset of a record; -1 when it is unknown."""
        if number >= self.stored_end and self.held:
            return self.held.place(number)
        return self.files.place(number) if self.files else -1

    def cuts(self, first: int, stop: int, points: Any) -> Any:
        """As `QueueFiles.cuts`, over both kinds of entries."""
        middle = min(max(self.stored_end, first), stop)
        out = np.full(len(points), stop, np.int64)
        if self.held and middle < stop:
            out = self.held.cuts(middle, stop, points)
        if self.files and first < middle:
            stored = self.files.cuts(first, middle, points)
            out = np.where(stored < middle, stored, out)
        return out

    def sizes(self, first: int, stop: int) -> Any:
        """Return the sizes of some records, for estimates."""
        if self.files and first < self.stored_end:
            return self.files.entries(first, min(stop, self.stored_end)).sizes
        return self.held.sizes(first, stop) if self.held else np.empty(0, np.int64)

    def spans(self, piece: Piece) -> Iterable[Span]:
        """Return the spans of ``piece``: what files name, and what the log is walked for."""
        middle = min(max(self.stored_end, piece.first), piece.stop)
        if piece.first < middle:
            yield Span(Piece(piece.topic, piece.queue, piece.first, middle), self)
        if middle < piece.stop:
            yield Span(Piece(piece.topic, piece.queue, middle, piece.stop), self, walk=True)


class Directory:
    """A store directory, pinned.

    Args:
        root: The directory that holds ``commitlog``.
        written: Show also what is written and not confirmed, as far as it holds together.

    Raises:
        SourceError: It is not a store, or keeps its queues where they cannot be read.
    """

    def __init__(self, root: str, *, written: bool = False) -> None:
        self.name = root
        self.root = store_root(root)
        if not is_store(root):
            text = f"{root} is not a store: it has no directory commitlog"
            hint = "name the data directory of a node"
            raise SourceError(text, code="not-a-store", hint=hint)
        self._series = FileSeries(*log_folders(root))
        self.ours = (self.root / "twinlog" / "batches").is_dir()
        marks = read_marks(self.root)
        self.live = marks.live
        self.start = self._series.start
        self.end = self._series.end
        self._stored = {
            (topic, queue): open_queue(topic, queue, folder, batch=batch)
            for topic, queue, folder, batch in queue_folders(self.root)
        }
        self._held: dict[tuple[str, int], Held] = {}
        # Without a checkpoint nothing tells what is confirmed: a copy of log files.
        known = self.ours and not written and (self.live or marks.confirm > 0)
        self._limit = marks.confirm if known else 1 << 63
        if self.live and not written:
            self.end = marks.confirm if self.ours else self._broker_end()
        elif (self.root / "abort").exists() and not self.live:
            self._recover()
        else:
            self._follow(self._named_end())
        self.end = min(self.end, self._limit)

    @property
    def files(self) -> list[tuple[int, int]]:
        """(start, end) of the log's files."""
        return [(file.start, file.end) for file in self._series.files]

    @cached_property
    def queues(self) -> dict[tuple[str, int], PinnedQueue]:
        """The queues of the view."""
        keys = sorted({*self._stored, *self._held})
        return {key: PinnedQueue(self._stored.get(key), self._held.get(key), self) for key in keys}

    # -- where the log ends ----------------------------------------------------------------------

    def _broker_end(self) -> int:
        """Return where the log of a running broker ends, as its queues have it.

        Raises:
            SourceError: They are in a database.
        """
        if queues_in_database(self.root):
            text = f"{self.name} is in use, and its queues, which say where it ends, are in RocksDB"
            hint = "read a copy, or set isolation=written for all that holds together"
            raise SourceError(text, code="queues", hint=hint)
        return self._named_end()

    def _named_end(self) -> int:
        """Return the end of the newest record that a queue names and that is there."""
        lasts: list[tuple[int, int]] = []
        for queue in self._stored.values():
            if queue.end > queue.start:
                last = queue.entries(queue.end - 1, queue.end)
                if len(last):
                    lasts.append((int(last.offsets[-1]), int(last.sizes[-1])))
        for offset, size in sorted(lasts, reverse=True):
            if self._is_record(offset, size):
                return offset + size
        return self._series.start

    def _is_record(self, offset: int, size: int) -> bool:
        data = bytes(self._series.read(offset, size))
        named = len(data) == size >= 91 and struct.unpack_from(">q", data, 28)[0] == offset
        return named and kernels.walk(data, 0, size)[:2] == (1, size)

    def _follow(self, at: int) -> None:
        """Find the end of a log that was stopped cleanly, and records no queue names yet."""
        end = at
        # RocketMQ begins one byte after the newest record named: the next one stays out
        least = at + 1 if at > self.start and not self.ours else at
        while (file := self._series.at(at)) is not None:
            view = self._series.view(file)
            count, stop, code, _, _ = kernels.walk(view, at - file.start, len(view))
            if count:
                self._hold(view, (at - file.start, stop), file.start, least)
                end = file.start + stop
            if code not in (codes.FINE, codes.BLANK) and not self._later(file.end):
                break
            at = file.end
        self.end = end

    def _later(self, offset: int) -> bool:
        """Whether a file from ``offset`` on begins with a record."""
        later = [file for file in self._series.files if file.start >= offset]
        return any(first_stamp(self._series.view(file)) is not None for file in later)

    def _hold(self, view: Any, span: tuple[int, int], base: int, least: int) -> None:
        """Keep the entries of the records in ``span`` of a file, from log offset ``least`` on."""
        start, stop = span
        for name, queue, first, raw in kernels.gather_queues(view, start, stop, base + start):
            early = int(np.searchsorted(np.frombuffer(raw, ENTRY)["offset"], least))
            key = name.decode("utf-8", "replace"), queue
            self._add(key, first + early, raw[20 * early :], (view, base))

    def _add(self, key: tuple[str, int], first: int, raw: bytes, log: tuple[Any, int]) -> None:
        """Keep entries of records in ``log``: bytes, and the log offset where they begin."""
        found = np.frombuffer(raw, ENTRY)
        numbers = np.arange(first, first + len(found), dtype=np.int64)
        parts = [numbers, *(found[name].astype(np.int64) for name in ("offset", "size", "tags"))]
        stored, held = self._stored.get(key), self._held.get(key)
        least = held.end if held else stored.end if stored else 0
        keep = (numbers >= least) & (parts[1] < self._limit)
        if not keep.any():
            return
        entries = Entries(*(part[keep] for part in parts))
        if held is not None:
            old = held.entries
            joined = (
                np.concatenate(pair)
                for pair in zip(
                    (old.numbers, old.offsets, old.sizes, old.tags),
                    (entries.numbers, entries.offsets, entries.sizes, entries.tags),
                    strict=True,
                )
            )
            entries = Entries(*joined)
        data, base = log
        last = _offsets_of(data, int(entries.offsets[-1]) - base)
        self._held[key] = Held(*key, entries, last)

    def _recover(self) -> None:
        """Take end and queues from what recovery would do."""
        with StoreReader(self.name) as store:
            self.end = store.end
            for queue in store.queues():
                stored = self._stored.get((queue.topic, queue.queue))
                if stored is not None and stored.batch:
                    continue
                first = stored.end if stored else queue.min
                found = list(queue.entries(first))
                if found:
                    rows = [(e.queue_offset, e.log_offset, e.size, e.tags_code) for e in found]
                    table = np.array(rows, np.int64)
                    table = table[table[:, 1] < self._limit]
                    if not len(table):
                        continue
                    entries = Entries(table[:, 0], table[:, 1], table[:, 2], table[:, 3])
                    last = _offsets_of(self.read(int(table[-1, 1]), int(table[-1, 2])), 0)
                    self._held[queue.topic, queue.queue] = Held(
                        queue.topic, queue.queue, entries, last
                    )

    def read(self, offset: int, size: int) -> bytes:
        """Return the bytes of the log at an offset; fewer where it ends."""
        return bytes(self._series.read(offset, size))

    # -- what else it knows ----------------------------------------------------------------------

    def time_at(self, offset: int) -> int | None:
        """Return the store timestamp of the record at ``offset``; None when it cannot be read."""
        file = self._series.at(offset)
        if file is None:
            return None
        try:
            with file.path.open("rb", buffering=0) as opened:
                opened.seek(offset - file.start)
                data = opened.read(76)
        except FileNotFoundError:
            return None
        if len(data) < 76:
            return None
        at = 68 if data[39] & 0x10 else 56
        return int.from_bytes(data[at : at + 8], "big", signed=True)

    @cached_property
    def epochs(self) -> tuple[tuple[int, int], ...]:
        """(start, epoch) of every epoch of the log, oldest first."""
        if not self.ours:
            return self._rocket_epochs()
        found: list[tuple[int, int]] = []
        folder = self.root / "twinlog" / "batches"
        for path in sorted(folder.iterdir()):
            if not path.name.isdigit():
                continue
            entries = np.fromfile(path, BATCH, path.stat().st_size // 48)
            entries = entries[entries["length"] > 0]
            epochs = entries["epoch"].astype(np.int64)
            moved = np.flatnonzero(np.diff(epochs, prepend=found[-1][1] if found else -1))
            found += [(int(entries["start"][i]), int(epochs[i])) for i in moved.tolist()]
        return tuple(found)

    def _rocket_epochs(self) -> tuple[tuple[int, int], ...]:
        for name in ("epochFileCheckpoint", "epochFileCheckpoint.bak"):
            path = self.root / name
            if path.is_file() and path.stat().st_size:
                with contextlib.suppress(CorruptionError):
                    return tuple((start, e) for e, start in epoch_file_unpack(path.read_bytes()))
        return ()

    def trusted_starts(self, points: Iterable[int]) -> list[int]:
        """Return for each log offset the first record at or after it that a queue names.

        The log's end where no queue names one.
        """
        found: list[int] = []
        for point in points:
            places = [
                queue.place(at)
                for queue in self.queues.values()
                if (at := int(queue.cuts(queue.start, queue.end, np.array([point]))[0])) < queue.end
            ]
            found.append(min((place for place in places if place >= point), default=self.end))
        return found


def _offsets_of(data: Any, at: int) -> int:
    """Return how many queue offsets the record at index ``at`` stands for."""
    if not are_inner(data, np.array([at]))[0]:
        return 1
    return parse_whole(decode(data, at, check_crc=False).properties.get("INNER_NUM", "")) or 1
