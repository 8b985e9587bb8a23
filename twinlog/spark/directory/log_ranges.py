"""Cut the log of a store directory into ranges that can be read independently.

A range begins at a *trusted* start: the beginning of a file, a batch index entry, or a queue entry.
Scanning for something that looks like a record is not enough, for a body may carry a copy of one.
A wrong start cannot go unnoticed either: the range before must end exactly there.

Ranges are within one file. The last one of a file that nothing else bounds is ``open``: it ends a
little after the last byte of the file that is not zero, and its records may end before.

Bytes are read with ``pread``, never mapped: a slave that cuts its log under a mapping would end the
process. Offsets are log offsets in bytes, ends exclusive. Nothing is written.

Not here: what readers do with a range.
"""

from __future__ import annotations

import itertools
import os
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.log_file import BLANK
from twinlog.format.record import MAGIC_V1, MAGIC_V2
from twinlog.kernels import codes
from twinlog.spark.directory import read_buffer
from twinlog.store.files import LogFile, log_file
from twinlog.store.log import TwinLog, first_stamp
from twinlog.store.queues import AnyQueue, Queue
from twinlog.store.reader import StoreReader
from twinlog.units import MiB

MAGICS = tuple(magic.to_bytes(4, "big", signed=True) for magic in (MAGIC_V1, MAGIC_V2))
SPLIT_BYTES = 64 * MiB
"""Of one range: large enough that opening costs nothing, small enough to be held in memory."""


@dataclass(frozen=True, slots=True)
class LogRange:
    """One range of one log file.

    The records of an open range may end before it does; what then is there must be zeros or
    remains of an older log (`records_of`).

    Attributes:
        root: Directory of the store.
        file: Name of the log file.
        base: Its start.
        start: Where the range begins; a record begins there.
        end: Where it ends.
        open: Whether the records may end before ``end``; only zeros follow behind ``end``.
        file_end: End of the file; what a blank must fill.
        follows: Whether a record begins a later file: then this one is full.
        named: Log offset after the newest record of the file that a queue names; 0 without one.
    """

    root: str
    file: str
    base: int
    start: int
    end: int
    open: bool = False
    file_end: int = 0
    follows: bool = False
    named: int = 0

    def read(self) -> memoryview:
        """Return the bytes of the range; fewer when the file has become shorter.

        They are lent (`twinlog.spark.directory.read_buffer`): valid until this thread reads another
        range.

        Raises:
            OSError: The file is gone or cannot be read.
        """
        path = log_file(self.root, self.file)
        return read_buffer.read(path, self.start - self.base, self.end - self.start)


def pread(path: Path, at: int, length: int) -> bytes:
    """Return up to ``length`` bytes of a file from byte ``at`` on."""
    fd = os.open(path, os.O_RDONLY)
    try:
        parts: list[bytes] = []
        while length > 0:
            part = os.pread(fd, length, at)
            if not part:
                break
            parts.append(part)
            at, length = at + len(part), length - len(part)
    finally:
        os.close(fd)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def records_of(split: LogRange) -> tuple[memoryview, int]:
    """Return the bytes of a range, lent as by `Split.read`, and where its records end in them.

    Raises:
        CorruptionError: They end where the log continues: what follows is damaged.
    """
    data = split.read()
    _, length, code, _, _ = kernels.walk(data, 0, len(data), check_crc=False)
    if split.open:  # old records after the end are whole, but do not name their own place
        _, bad, _ = kernels.verify_records(
            data, 0, length, split.start, check_crc=False, check_offsets=True
        )
        if bad >= 0:
            length, code = bad - split.start, codes.OFFSET
    end = split.start + length
    if split.open:
        whole = code == codes.FINE
    else:  # fewer bytes came than there were: the file has become shorter
        whole = code == codes.FINE and end == split.end
    whole = whole or (code == codes.BLANK and _fills(data, length, split))
    if split.open and not whole and not split.follows and split.named <= end:
        whole = split.named == end or not goes_on(bytes(data), length, split.start)
    if not whole or (code == codes.FINE and split.follows and end < split.file_end):
        text = (
            f"{split.file}: at {end}: {kernels.EXPLANATIONS[code]}, and the log continues after it"
        )
        hint = "look: twinlog spark verify"
        raise CorruptionError(text, hint=hint, offset=end, file=split.file)
    return data, length


def _fills(data: memoryview, at: int, split: LogRange) -> bool:
    """Whether the blank at ``at`` reaches to the end of the file."""
    return bool(BLANK.unpack_from(data, at)[0] == split.file_end - split.start - at)


def goes_on(data: bytes, at: int, base: int) -> bool:
    """Whether records of the same log are after ``at``, where none begins.

    What remains of an older log after a cut is at its own place as well, but is older than the
    record before it.
    """
    least = _stamp_before(data, at)
    for magic in MAGICS:
        found = data.find(magic, at)
        while found >= 0:
            start = found - 4
            if start >= at and _is_record(data, start, base) and _stamp(data, start) >= least:
                return True
            found = data.find(magic, found + 1)
    return False


def _is_record(data: bytes, at: int, base: int) -> bool:
    size = int.from_bytes(data[at : at + 4], "big")
    if int.from_bytes(data[at + 28 : at + 36], "big") != base + at or at + size > len(data):
        return False
    return kernels.walk(data, at, at + size, check_crc=False)[:2] == (1, at + size)


def _stamp(data: bytes, at: int) -> int:
    return first_stamp(memoryview(data)[at:]) or 0


def _stamp_before(data: bytes, at: int) -> int:
    """Return the store timestamp of the last record before ``at``, which begins behind another."""
    return kernels.store_timestamp_last(data, 0, at) if at else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """A log, cut.

    ``doubts`` are reasons why the ranges alone cannot prove the store sound; empty is good.
    ``gaps`` are those of them that mean: the ranges may lack records that the log holds.
    """

    root: str
    ours: bool
    splits: Sequence[LogRange]
    batches: int = 0
    doubts: Sequence[str] = field(default_factory=tuple[str, ...])
    gaps: Sequence[str] = field(default_factory=tuple[str, ...])

    def complete(self) -> None:
        """Return when the ranges hold every record of the log.

        Raises:
            CorruptionError: They may lack some.
        """
        if self.gaps:
            hint = "look: twinlog spark verify; starting its node repairs a store that crashed"
            raise CorruptionError(f"{self.root}: {'; '.join(self.gaps)}", hint=hint)


def plan(root: Path | str, split_bytes: int = SPLIT_BYTES, *, probe: bool = True) -> Plan:
    """Cut the log of a store directory.

    Args:
        root: Directory of the store.
        split_bytes: Wanted length of a range; one batch or record may make it longer.
        probe: Whether to look if a node runs on it; not where this process holds the node's lock.

    Raises:
        UsageError: There is no store.
    """
    with StoreReader(root, probe=probe) as store:
        log = store.log
        if isinstance(log, TwinLog):
            return _of_ours(store, log, split_bytes)
        splits: list[LogRange] = []
        queues = [queue for queue in store.stored_queues.values() if isinstance(queue, Queue)]
        for file in store.series.files:
            splits += _of_rocket(store, file, queues, split_bytes)
        gaps = _gaps(store)
        return Plan(store.name, False, splits, 0, [*_doubts(store), *gaps], gaps)


def _doubts(store: StoreReader) -> list[str]:
    doubts: list[str] = []
    if store.series.strays:
        doubts.append("files that are not part of the log")
    if not store.clean and not store.ours:
        doubts.append("not stopped cleanly")
    return doubts


def _gaps(store: StoreReader) -> list[str]:
    pairs = itertools.pairwise(store.series.files)
    return ["a gap between two files"] if any(one.end != two.start for one, two in pairs) else []


def _of_ours(store: StoreReader, log: TwinLog, split_bytes: int) -> Plan:
    """Cut at batch borders, up to where a running node has confirmed."""
    limit = store.marks.confirm if store.marks.live else 1 << 63
    splits: list[LogRange] = []
    doubts, gaps, batches, ended = _doubts(store), _gaps(store), 0, False
    newest = max((start for start, own in log.entries.items() if own), default=0)
    for file in store.series.files:
        start = at = file.start
        for _, entry in log.entries.get(file.start, ()):
            if at >= limit:
                break
            if entry is None or entry.start != at or entry.end > file.end:
                gaps.append(f"the batch index of {file.path.name}")
                break
            batches += 1
            at = entry.end
            if at - start >= split_bytes:
                splits.append(_split(store, file, start, at))
                start = at
        if at > start:
            splits.append(_split(store, file, start, at))
        if at < file.end:
            if store.series.last_written(file, at) > at and at < limit:
                # a death leaves bytes whose entry was never written; the next start cuts them
                torn = not store.clean and file.start == newest
                text = f"bytes of {file.path.name} after the last batch"
                (doubts if torn else gaps).append(text)
            ended = True
        elif ended:
            gaps.append("the log continues after its end")
    return Plan(store.name, True, splits, batches, [*doubts, *gaps], gaps)


def _split(store: StoreReader, file: LogFile, start: int, end: int) -> LogRange:
    return LogRange(store.name, file.path.name, file.start, start, end, False, file.end)


def _of_rocket(
    store: StoreReader, file: LogFile, queues: Sequence[Queue], split_bytes: int
) -> list[LogRange]:
    """Cut one file at queue entries."""
    borders = [file.start]
    while borders[-1] + split_bytes < file.end:
        found = first_start(queues, borders[-1] + split_bytes)
        if found is None or found >= file.end:
            break
        borders.append(found)
    # A record without properties ends in two zeros.
    end = min(store.series.last_written(file, borders[-1]) + 8, file.end)
    name, root = file.path.name, store.name
    later = (other for other in store.series.files if other.start >= file.end)
    follows = any(first_stamp(store.series.view(other)) is not None for other in later)
    named = _named(store, file, queues)
    last = LogRange(root, name, file.start, borders[-1], end, True, file.end, follows, named)
    return [*(_split(store, file, *pair) for pair in itertools.pairwise(borders)), last]


def _named(store: StoreReader, file: LogFile, queues: Sequence[Queue]) -> int:
    """Return the end of the newest record of a file that a queue names and that is there."""
    ends: list[tuple[int, int]] = []
    for queue in queues:
        numbers = range(queue.min, queue.max)
        at = bisect_left(numbers, file.end, key=queue_offset(queue))
        if at:
            place, size, _ = QUEUE_ENTRY.unpack(queue.stored(numbers[at - 1], 1))
            if place >= file.start:
                ends.append((place, size))
    for place, size in sorted(ends, reverse=True):
        data = bytes(store.series.read(place, size))
        if len(data) == size and _is_record(data, 0, place):
            return place + size
    return 0


def first_start(queues: Sequence[AnyQueue], offset: int) -> int | None:
    """Return the first log offset at or after ``offset`` at which a queue entry points."""
    found: list[int] = []
    for queue in queues:
        if isinstance(queue, Queue) and queue.max > queue.min:
            numbers = range(queue.min, queue.max)
            at = bisect_left(numbers, offset, key=queue_offset(queue))
            if at < len(numbers):
                found.append(queue_offset(queue)(numbers[at]))
    return min(found, default=None)


class queue_offset:
    """The log offset in entry n of a queue; fill-up entries count as -1."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def __call__(self, number: int) -> int:
        """Return the log offset of entry ``number``."""
        data = self._queue.stored(number, 1)
        if int.from_bytes(data[8:12], "big") == 0x7FFFFFFF:
            return -1
        return int.from_bytes(data[:8], "big", signed=True)
