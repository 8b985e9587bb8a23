"""Rebuilds the batch index of a sealed file from its records.

A twinlog file begins with an epoch record and ends with a filler, so the epoch of every byte
follows from its records. Valid entries of the old index are kept; the bytes between two of them
become one batch if exactly one entry is missing there, else batches of whole records. Epoch records
and control records are batches of their own, as they were.

The epoch record at the head of the next file holds the CRC of the old index's entries: if the new
entries match it, they are the old ones, byte for byte, and count as proven. Otherwise the new
entries are of kind 2: their borders and CRCs do not prove who wrote the bytes.

Not here: a file that is not full, whose end is unknown (`storage.recovery.log_end`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

from storage.log.epoch_history import decode_epoch
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import (
    BATCH_LENGTH_MAX,
    KIND_EPOCH,
    KIND_FILLER,
    KIND_REBUILT,
    KIND_RECORDS,
    BatchEntry,
)
from twinlog.format.log_file import BLANK
from twinlog.format.record import decode
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META
from twinlog.kernels import codes, crc32c, walk
from twinlog.store.epochs import head_mark
from twinlog.store.files import LogFile
from twinlog.store.log import TwinLog
from twinlog.store.reader import StoreReader

_CHAINED = 24
_OWN = (SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META)


def rebuilt_index(reader: StoreReader, start: int) -> tuple[BatchEntry, ...] | None:
    """Return the entries of the sealed file at ``start``; None if its records are damaged.

    Args:
        reader: The directory, by twinlog's rules.
        start: Log offset of the file's first byte.
    """
    log = reader.log
    file = reader.series.at(start)
    if not isinstance(log, TwinLog) or file is None:
        return None
    view = reader.series.view(file)
    _, stop, code, _, _ = walk(view, 0, file.size)
    if code != codes.BLANK or BLANK.unpack_from(view, stop)[0] != file.size - stop:
        return None
    entries = _with_epochs(view, file, list(_spans(view, file, log, stop)))
    if entries is None:
        return None
    head = bytes(view[stop : stop + BLANK.size])
    last = entries[-1]
    filler = BatchEntry(
        start + stop, file.size - stop, 0, last.epoch, crc32c(head), last.store_timestamp,
        KIND_FILLER, 0,
    )  # fmt: skip
    entries.append(filler)
    return tuple(entries if _proven(reader, log, file, entries) else map(_unproven, entries))


def _unproven(entry: BatchEntry) -> BatchEntry:
    return replace(entry, kind=KIND_REBUILT) if entry.kind == KIND_RECORDS else entry


def _spans(view: memoryview, file: LogFile, log: TwinLog, stop: int) -> Iterator[tuple[int, int]]:
    """Yield (start, end) in the file of every batch, kept or new."""
    at, missing = 0, 0
    for _, entry in log.entries.get(file.start, ()):
        if entry is None:
            missing += 1
            continue
        begin = entry.start - file.start
        if entry.kind == KIND_FILLER or begin < at or begin > stop:
            continue
        yield from _between(view, at, begin, whole=missing == 1)
        yield begin, begin + entry.length
        at, missing = begin + entry.length, 0
    yield from _between(view, at, stop, whole=missing == 1)


def _between(view: memoryview, at: int, end: int, *, whole: bool) -> Iterator[tuple[int, int]]:
    if at < end and whole and end - at <= BATCH_LENGTH_MAX:
        yield at, end
        return
    begun = at
    while at < end:
        (size,) = struct.unpack_from(">i", view, at)
        own = decode(view, at, check_crc=False).topic in _OWN
        if (own or at + size - begun > _PIECE) and begun < at:
            yield begun, at
            begun = at
        at += size
        if own:
            yield begun, at
            begun = at
    if begun < at:
        yield begun, at


_PIECE = 1024 * 1024


def _with_epochs(
    view: memoryview, file: LogFile, spans: list[tuple[int, int]]
) -> list[BatchEntry] | None:
    """Return the spans as entries; None if one is not of whole records of a known epoch."""
    found: list[BatchEntry] = []
    epoch = 0
    for begin, end in spans:
        count, stop, code, stamp, _ = walk(view, begin, end)
        if code or stop != end:
            return None
        kind = KIND_RECORDS
        if count == 1 and decode(view, begin, check_crc=False).topic == SYSTEM_TOPIC_EPOCH:
            try:
                epoch, kind = decode_epoch(view[begin:end]).epoch, KIND_EPOCH
            except CorruptionError:
                return None
        if not found and kind != KIND_EPOCH:
            return None
        crc = crc32c(view[begin:end])
        found.append(BatchEntry(file.start + begin, end - begin, count, epoch, crc, stamp, kind, 0))
    return found or None


def _proven(reader: StoreReader, log: TwinLog, file: LogFile, entries: list[BatchEntry]) -> bool:
    """Whether the next file's head holds the CRC of these entries."""
    following = reader.series.at(file.end)
    mark = head_mark(reader.series, log, following) if following is not None else None
    chain = crc32c(b"".join(entry.pack()[:_CHAINED] for entry in entries))
    return mark is not None and mark.chain == chain
