"""compare: do replicas hold the same bytes, and if not, where do they part and why?

Both logs are cut at the same offsets, and each task compares one block of every other directory
with the first. What differs is narrowed to the byte, then to the record that holds it: both
headers, both epochs, which field differs, and whether the record lies behind an epoch border (a cut
that was missed) or inside an epoch (corruption, and whose CRC holds).

Bytes that one side does not have (retention, a slave that lags) are named and are no difference.

Offsets are log offsets in bytes. Nothing is written.

Not here: who of two is right (`twinlog.replication`); mending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twinlog import kernels
from twinlog.errors import CorruptionError, UsageError
from twinlog.record import Record, body_crc, decode
from twinlog.spark.jobs.engine import Engine
from twinlog.spark.jobs.report import Report, Rows, Value, Verdict
from twinlog.spark.jobs.splits import SPLIT_BYTES, first_start, pread
from twinlog.store_compare import consistent_point
from twinlog.store_files import FileSeries, log_folders
from twinlog.store_log import TwinLog
from twinlog.store_reader import StoreReader
from twinlog.units import MiB

BLOCK_BYTES = 8 * MiB
"""Bytes of both sides that are held at once."""

RECORD_MAX = 8 * MiB
"""Largest record that is looked at as such."""


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """Which directories; the first is what the others are compared with."""

    paths: Sequence[Path]
    split_bytes: int = SPLIT_BYTES


@dataclass(frozen=True, slots=True)
class Side:
    """What is known of one directory."""

    path: str
    start: int
    end: int
    epochs: Sequence[tuple[int, int]]

    def epoch_at(self, offset: int) -> int | None:
        """Return the epoch of the byte at ``offset``; None without a history."""
        found = [epoch for epoch, start in self.epochs if start <= offset]
        return found[-1] if found else None


def run(engine: Engine, settings: CompareSettings) -> Report:
    """Compare two or more store directories.

    Raises:
        UsageError: Fewer than two, or one is no store.
    """
    if len(settings.paths) < 2:
        text = "comparing needs two directories or more"
        raise UsageError(text, hint="name each one: --path A --path B")
    sides = [_side(path) for path in settings.paths]
    rows: list[tuple[Value, ...]] = []
    records: list[tuple[Value, ...]] = []
    for other in sides[1:]:
        found = compare_sides(engine, sides[0], other, settings.split_bytes)
        rows.append(_row(sides[0], other, found))
        if found is not None:
            records += divergence(sides[0], other, found)
    differing = [row for row in rows if row[4] is not None]
    verdict = Verdict.NO if differing else Verdict.FINE
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "equal": not differing,
        "directories": [side.path for side in sides],
    }
    word = "equal where both have bytes"
    if differing:
        word = f"first differing byte at {min(int(str(row[4])) for row in differing)}"
    tables = {
        "sides": Rows(
            "FIRST SECOND START> END> DIFFERENCE> PROMISED-EQUAL> ONLY-FIRST> ONLY-SECOND>", rows
        )
    }
    if records:
        headers = "LOG OFFSET> EPOCH> TOPIC QUEUE> QUEUE-OFFSET> SIZE> STORED-MS> CRC WHAT"
        tables["records"] = Rows(headers, records, "first divergent record")
    return Report("SparkCompare", word, fields, tables, verdict)


def _side(path: Path) -> Side:
    with StoreReader(path) as store:
        return Side(str(path), store.start, _end(store), store.epochs())


def _end(store: StoreReader) -> int:
    """Return the end of the log; of a log of ours without reading it."""
    if isinstance(store.log, TwinLog) and not store.raw:
        ends = [e.end for es in store.log.entries.values() for _, e in es if e]
        end = max(ends, default=store.start)
        return min(end, store.marks.confirm) if store.marks.live else end
    if not store.clean or not store.series.files:
        return store.end
    # Stopped cleanly: earlier files are full, so only the last one is walked.
    last = store.series.files[-1]
    view = store.series.view(last)
    stop = kernels.walk(view, 0, last.size, check_crc=False)[1]
    _, bad, _ = kernels.verify_records(view, 0, stop, last.start, check_crc=False)
    return bad if bad >= 0 else last.start + stop  # old records behind the end name another place


def compare_sides(engine: Engine, one: Side, two: Side, split_bytes: int) -> int | None:
    """Return the offset of the first byte that differs where both have bytes; None: none does."""
    start, end = max(one.start, two.start), min(one.end, two.end)
    ranges = [(at, min(at + split_bytes, end)) for at in range(start, end, split_bytes)]
    found = engine.spread(partial(_first_difference, one=one.path, two=two.path), ranges)
    return min((at for at in found if at is not None), default=None)


def _first_difference(span: tuple[int, int], one: str, two: str) -> int | None:
    at, end = span
    sides = [FileSeries(*log_folders(path)) for path in (one, two)]
    while at < end:
        parts = [_bytes(side, at, min(BLOCK_BYTES, end - at)) for side in sides]
        size = min(len(part) for part in parts)
        if not size:
            return at
        if parts[0][:size] != parts[1][:size]:
            return at + differs(parts[0][:size], parts[1][:size])
        at += size
    return None


def _bytes(series: FileSeries, at: int, length: int) -> bytes:
    file = series.at(at)
    return pread(file.path, at - file.start, min(length, file.end - at)) if file else b""


def differs(one: bytes, two: bytes) -> int:
    """Return the index of the first byte that differs; there is one.

    >>> differs(b"abcd", b"abXd")
    2
    """
    low, high = 0, len(one)
    while high - low > 1:
        mid = (low + high) // 2
        low, high = (mid, high) if one[low:mid] == two[low:mid] else (low, mid)
    return low


def _row(one: Side, two: Side, found: int | None) -> tuple[Value, ...]:
    start, end = max(one.start, two.start), min(one.end, two.end)
    promised = consistent_point(list(one.epochs), one.end, list(two.epochs), two.end)
    only = [
        max(0, min(start, side.end) - side.start) + max(0, side.end - max(end, side.start))
        for side in (one, two)
    ]
    return (one.path, two.path, start, end, found, promised, *only)


# ── the record that differs ─────────────────────────────────────────────────────────────────────


def divergence(one: Side, two: Side, offset: int) -> list[tuple[Value, ...]]:
    """Return a row for each side's record that holds the byte at ``offset``."""
    at = min(_record_start(one.path, offset), _record_start(two.path, offset))
    rows: list[tuple[Value, ...]] = []
    held = [_record(side, at) for side in (one, two)]
    what = difference_of(held[0], held[1])
    reason = _reason(one, two, at)
    for side, record in zip((one, two), held, strict=True):
        epoch = side.epoch_at(at)
        if record is None:
            rows.append((side.path, at, epoch, None, None, None, None, None, "none", reason))
            continue
        crc = "holds" if body_crc(record.body) == record.body_crc else "does not hold"
        text = f"{what}; {reason}"
        place = (record.topic, record.queue, record.queue_offset, record.size)
        rows.append((side.path, at, epoch, *place, record.store_timestamp, crc, text))
    return rows


def _reason(one: Side, two: Side, at: int) -> str:
    epochs = one.epoch_at(at), two.epoch_at(at)
    if None in epochs or epochs[0] == epochs[1]:
        return "inside an epoch: corruption"
    return f"epoch {epochs[0]} here, epoch {epochs[1]} there: a cut was missed"


def difference_of(one: Record | None, two: Record | None) -> str:
    """Return which fields of two records differ."""
    if one is None or two is None:
        return "one side holds no record here"
    names = [name for name in one.__slots__ if getattr(one, name) != getattr(two, name)]
    return f"differs in {', '.join(names)}" if names else "differs in bytes that no field shows"


def _record_start(root: str, offset: int) -> int:
    """Return where the record that holds the byte at ``offset`` begins, as far as can be told."""
    with StoreReader(root) as store:
        at = _trusted_before(store, offset)
        file = store.series.at(offset)
        if file is None:
            return offset
        view = store.series.view(file)
        while at < offset:
            size = int.from_bytes(view[at - file.start : at - file.start + 4], "big")
            if not 0 < size <= RECORD_MAX or at + size > offset:
                return at
            at += size
        return at


def _trusted_before(store: StoreReader, offset: int) -> int:
    """Return the last trusted start at or before ``offset``."""
    file = store.series.at(offset)
    found = file.start if file is not None else offset
    if isinstance(store.log, TwinLog):
        for _, entry in store.log.entries.get(found, ()):
            if entry and entry.start <= offset:
                found = entry.start
        return found
    queues = list(store.stored_queues.values())
    step = 1 << 16
    while step < RECORD_MAX * 16:
        near = first_start(queues, max(found, offset - step))
        if near is not None and near <= offset:
            return near
        step *= 4
    return found


def _record(side: Side, at: int) -> Record | None:
    series = FileSeries(*log_folders(side.path))
    try:
        record = decode(series.read(at, RECORD_MAX), 0, check_crc=False)
    except CorruptionError:
        return None
    finally:
        series.close()
    return record
