"""The epoch records of a twinlog log: who wrote which bytes, and whether the batch index is whole.

Each log file begins with an epoch record: a record in queue 0 of ``rmq_sys_TWINLOG_EPOCH`` whose
body is a msgpack map with at least ``epoch``, ``start`` (log offset where that epoch began, maybe
in an older file) and ``chain``: CRC-32C over the first 24 bytes of every batch index entry of the
file before. So a file tells its epoch after retention, and an index that lost or changed an entry
is noticed although each entry that is left has a good CRC of its own.

Not here: which of two histories wins (``replication``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import cast

import msgpack

from twinlog.errors import CorruptionError
from twinlog.format.batch_index import KIND_EPOCH, KIND_REBUILT
from twinlog.format.record import decode
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH
from twinlog.kernels import crc32c
from twinlog.store.files import FileSeries, LogFile
from twinlog.store.log import TwinLog

_CHAINED = 24
_unpack = cast("Callable[[bytes], object]", msgpack.unpackb)  # pyright: ignore


@dataclass(frozen=True, slots=True)
class EpochMark:
    """What an epoch record says."""

    epoch: int
    start: int
    chain: int


def read_mark(data: memoryview) -> EpochMark | None:
    """Return the content of the epoch record in ``data``; None when it is not an epoch record."""
    try:
        record = decode(data)
        found = _unpack(record.body) if record.topic == SYSTEM_TOPIC_EPOCH else None
    except CorruptionError:
        return None
    except Exception:  # msgpack raises several unrelated types for bytes that are not msgpack
        return None
    if not isinstance(found, dict):
        return None
    fields = cast("dict[str, object]", found)
    epoch, start, chain = (fields.get(name) for name in ("epoch", "start", "chain"))
    if isinstance(epoch, int) and isinstance(start, int) and isinstance(chain, int):
        return EpochMark(epoch, start, chain)
    return None


def history(series: FileSeries, log: TwinLog) -> list[tuple[int, int]]:
    """Return (epoch, start), oldest first, from the entries and the oldest file's epoch record.

    The oldest epoch may have begun in a file that no longer exists; its record still says where.
    """
    found = log.epochs()
    if found and series.files:
        mark = head_mark(series, log, series.files[0])
        if mark is not None and mark.epoch == found[0][0]:
            found[0] = (mark.epoch, min(mark.start, found[0][1]))
    return found


def head_mark(series: FileSeries, log: TwinLog, file: LogFile) -> EpochMark | None:
    """Return the content of the epoch record at the head of ``file``; None without one."""
    entries = log.entries.get(file.start)
    head = entries[0][1] if entries else None
    if head is None or head.kind != KIND_EPOCH or head.start != file.start:
        return None
    return read_mark(series.read(head.start, head.length))


def broken_chains(
    series: FileSeries, batches: FileSeries, log: TwinLog
) -> Iterator[tuple[LogFile, str]]:
    """Yield (log file, what is wrong) for heads and chains that do not hold.

    A file after one whose index is damaged in plain sight, or was rebuilt by a scan, is not
    judged by its chain. The chain of an adopted file counts: it was taken after the adoption.
    """
    before: LogFile | None = None
    for file in series.files:
        if not log.entries.get(file.start):
            before = None
            continue
        mark = head_mark(series, log, file)
        first = log.entries[file.start][0][1]
        if mark is None and first is not None and first.epoch == 0:
            pass  # RocketMQ wrote it: an adopted file
        elif mark is None:
            yield file, "the file does not begin with an epoch record"
        elif before is not None and before.end == file.start:
            chained = _chain(batches, log, before)
            if chained is not None and chained != mark.chain:
                text = f"the batch index of {before.path.name} is not what this file says it was"
                yield file, text
        before = file


def _chain(batches: FileSeries, log: TwinLog, file: LogFile) -> int | None:
    entries = log.entries[file.start]
    index = batches.at(file.start)
    if index is None or any(entry is None or entry.kind == KIND_REBUILT for _, entry in entries):
        return None
    view = batches.view(index)
    parts = [view[48 * i : 48 * i + _CHAINED] for i, _ in entries]
    return crc32c(b"".join(parts))
