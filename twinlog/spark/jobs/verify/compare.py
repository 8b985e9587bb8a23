"""compare: do replicas hold the same bytes, and if not, where do they part and why?

Logs are those of directories, of the nodes of a running cluster, or of clusters
(`twinlog.spark.jobs.verify.sides`). They are cut at the same offsets, and each task compares one
range of another log with the first. What differs is narrowed to the byte, then to the record that
holds it: both headers, both epochs, which field differs, and whether the record is after an epoch
border (a cut that was missed) or inside an epoch (corruption, and whose CRC holds).

Bytes that one side does not have (retention, a slave that lags) are named and are no difference.

Offsets are log offsets in bytes. Nothing is written.

Not here: which of two is right (``replication``), repair.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twinlog.errors import CorruptionError, UsageError
from twinlog.format.epoch_history import HistoriesDiffer, consistent_point
from twinlog.format.record import Record, body_crc, decode
from twinlog.spark.directory.log_ranges import SPLIT_BYTES
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Report, Rows, Value, Verdict
from twinlog.spark.jobs.verify.sides import (
    RECORD_MAX,
    Bytes,
    Side,
    of_cluster,
    of_directory,
    of_nodes,
    opened,
)
from twinlog.units import MiB

BLOCK_BYTES = 8 * MiB
"""Most bytes of a side that are asked for at once."""


@dataclass(frozen=True, slots=True)
class CompareSettings:
    """Which logs; the first is what the others are compared with.

    Attributes:
        paths: Store directories.
        split_bytes: Bytes of one piece of work.
        servers: Clusters, each by the addresses of its nodes. One cluster and no directory: its
            nodes are compared with its master; otherwise each cluster is one log.
    """

    paths: Sequence[Path]
    split_bytes: int = SPLIT_BYTES
    servers: Sequence[tuple[str, ...]] = ()


def run(engine: Engine, settings: CompareSettings) -> Report:
    """Compare two or more logs.

    Raises:
        UsageError: Fewer than two, or one is not a store.
        SourceUnavailable: A cluster does not answer.
    """
    sides, absent = sides_of(settings)
    if len(sides) < 2:
        text = "comparing needs two directories or more, or a cluster of several nodes"
        hint = "name each one: --path A --path B, or --servers ADDRESSES"
        raise UsageError(text, hint=hint)
    rows: list[tuple[Value, ...]] = []
    records: list[tuple[Value, ...]] = []
    for other in sides[1:]:
        found = compare_sides(engine, sides[0], other, settings.split_bytes)
        rows.append(_row(sides[0], other, found))
        if found is not None:
            records += divergence(sides[0], other, found)
    differing = [row for row in rows if row[4] is not None]
    apart = [row for row in rows if int(str(row[2])) >= int(str(row[3]))]
    undecided = bool(apart or absent)
    verdict = Verdict.NO if differing else Verdict.UNDECIDED if undecided else Verdict.FINE
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "equal": None if apart and not differing else not differing,
        "logs": [side.name for side in sides],
        "absent": absent,
    }
    word = "equal where both have bytes"
    if apart:
        word = f"nothing to compare: {apart[0][0]} and {apart[0][1]} have no byte in common"
    if differing:
        word = f"first differing byte at {min(int(str(row[4])) for row in differing)}"
    if absent:
        word += f"; {', '.join(absent)} not reached"
    tables = {
        "sides": Rows(
            "FIRST SECOND START> END> DIFFERENCE> PROMISED-EQUAL> ONLY-FIRST> ONLY-SECOND>", rows
        )
    }
    if records:
        headers = "LOG OFFSET> EPOCH> TOPIC QUEUE> QUEUE-OFFSET> SIZE> STORED-MS> CRC WHAT"
        tables["records"] = Rows(headers, records, "first divergent record")
    return Report("SparkCompare", word, fields, tables, verdict)


def sides_of(settings: CompareSettings) -> tuple[list[Side], list[str]]:
    """Return what is compared, in the order in which it is named, and nodes that do not answer.

    Raises:
        UsageError: A directory is not a store.
        SourceUnavailable: A cluster does not answer.
    """
    if len(settings.servers) == 1 and not settings.paths:
        return of_nodes(settings.servers[0])
    found = [of_directory(path) for path in settings.paths]
    return found + [of_cluster(servers) for servers in settings.servers], []


def compare_sides(engine: Engine, one: Side, two: Side, split_bytes: int) -> int | None:
    """Return the offset of the first byte that differs where both have bytes; None: none does."""
    start, end = max(one.start, two.start), min(one.end, two.end)
    ranges = [(at, min(at + split_bytes, end)) for at in range(start, end, split_bytes)]
    found = engine.spread(partial(_first_difference, one=one, two=two), ranges)
    return min((at for at in found if at is not None), default=None)


def _first_difference(span: tuple[int, int], one: Side, two: Side) -> int | None:
    at, end = span
    with ExitStack() as stack:
        sides = [opened(side) for side in (one, two)]
        for side in sides:
            stack.callback(side.close)
        parts = [b"", b""]
        while at < end:
            for i, side in enumerate(sides):
                parts[i] = parts[i] or side.read(at, min(BLOCK_BYTES, end - at))
            size = min(len(part) for part in parts)
            if not size:
                return at
            if parts[0][:size] != parts[1][:size]:
                return at + differs(parts[0][:size], parts[1][:size])
            parts = [part[size:] for part in parts]  # sides may hand out pieces of other lengths
            at += size
    return None


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
    promised: Value
    try:
        promised = consistent_point(one.epochs, one.end, two.epochs, two.end)
    except HistoriesDiffer as conflict:
        promised = str(conflict)
    only = [
        max(0, min(start, side.end) - side.start) + max(0, side.end - max(end, side.start))
        for side in (one, two)
    ]
    return (one.name, two.name, start, end, found, promised, *only)


# ── the record that differs ─────────────────────────────────────────────────────────────────────


def divergence(one: Side, two: Side, offset: int) -> list[tuple[Value, ...]]:
    """Return a row for each side's record that holds the byte at ``offset``."""
    at = min(_record_start(one, offset), _record_start(two, offset))
    rows: list[tuple[Value, ...]] = []
    held = [_record(side, at) for side in (one, two)]
    what = difference_of(held[0], held[1])
    reason = _reason(one, two, at)
    for side, record in zip((one, two), held, strict=True):
        epoch = side.epoch_at(at)
        if record is None:
            rows.append((side.name, at, epoch, None, None, None, None, None, "none", reason))
            continue
        crc = "holds" if body_crc(record.body) == record.body_crc else "does not hold"
        text = f"{what}; {reason}"
        place = (record.topic, record.queue, record.queue_offset, record.size)
        rows.append((side.name, at, epoch, *place, record.store_timestamp, crc, text))
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


def _record_start(side: Side, offset: int) -> int:
    """Return where the record that holds the byte at ``offset`` begins, as far as is known."""
    log = opened(side)
    try:
        at = log.trusted_before(offset)
        while at < offset:
            size = int.from_bytes(_held(log, at, 4), "big")
            if not 0 < size <= RECORD_MAX or at + size > offset:
                return at
            at += size
        return at
    finally:
        log.close()


def _held(log: Bytes, at: int, length: int) -> bytes:
    """Return this many bytes, fewer at the end of a file or of the log."""
    out = b""
    while len(out) < length and (part := log.read(at + len(out), length - len(out))):
        out += part
    return out


def _record(side: Side, at: int) -> Record | None:
    log = opened(side)
    try:
        size = int.from_bytes(_held(log, at, 4), "big")
        return decode(_held(log, at, min(size, RECORD_MAX)), 0, check_crc=False)
    except CorruptionError:
        return None
    finally:
        log.close()
