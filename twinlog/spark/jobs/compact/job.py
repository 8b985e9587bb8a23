"""compact: the newest record of each key, as a key-value view of a topic.

Within a topic and queue the record with the highest queue offset wins; an empty body deletes the
key, as in RocketMQ's compaction. Such a tombstone is a row of the result while it is younger than
``delete_retention``. Records without a key have no place in the result and are counted.

Two passes, so that bodies are never shuffled: tasks report the newest offset of each key in their
range, the winners are chosen here, and tasks write the winners of their range as Parquet, with the
columns of the archive, or into compaction files as RocketMQ has them
(`twinlog.spark.jobs.compact.files`). The result appears under its name when all of it is there.

Not here: where records come from (`twinlog.spark.jobs.compact.ranges`); results in a topic
(`twinlog.spark.jobs.compact.frames`).

Sources: RocketMQ 5.3 (``CompactionLog``): KEYS as a whole is the key.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path

from twinlog.errors import UnknownTopic, UsageError
from twinlog.format.record import decode
from twinlog.spark.archive.rows import table_of
from twinlog.spark.archive.writing import parquet
from twinlog.spark.directory.log_ranges import SPLIT_BYTES
from twinlog.spark.engine.atomic_output import building
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Report, Rows, Value
from twinlog.spark.jobs.compact.files import FileSizes, Slot, make_files, slots, write_records
from twinlog.spark.jobs.compact.ranges import (
    Range,
    picked,
    ranges_of_directory,
    ranges_of_source,
    records_in,
)

Field = Value | Sequence[Value] | Mapping[str, Value]
"""A field of a report."""

Newest = dict[tuple[str, int, str], tuple[int, int, bool, int, int]]
"""(topic, queue, key) -> (queue offset, log offset, whether it has a body, store time in ms, size
in bytes)."""


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """What to compact.

    Attributes:
        path: The store; None with ``servers``, or for an archive alone.
        topic: The topic.
        to: Directory of the result that is made; None: only count.
        split_bytes: Of a range of a directory's log, one task's.
        young_ms: Tombstones stored at or after this stay as rows; None: none stays. See `young`.
        servers: Addresses of the cluster that is read; empty with ``path``.
        archive: An archive in front of what is read, or read alone.
        files: Lengths of compaction files, which ``to`` is made of then; None: of Parquet files.
    """

    path: Path | None
    topic: str
    to: Path | None = None
    split_bytes: int = SPLIT_BYTES
    young_ms: int | None = None
    servers: str = ""
    archive: Path | None = None
    files: FileSizes | None = None


@dataclass(frozen=True, slots=True)
class CompactQueue:
    """What became of the keys of one queue.

    Attributes:
        keys: All that there are.
        kept: Rows of the result: keys with a body, and tombstones that stay.
        deleted: Keys whose newest record has an empty body.
        tombstones: Those of them that stay as rows.
    """

    topic: str
    number: int
    keys: int
    kept: int
    deleted: int
    tombstones: int


def young(now_ms: int, delete_retention: float) -> int:
    """Return the first store time of tombstones that are younger than that many seconds.

    >>> young(10_000, 1.5)
    8501
    """
    return now_ms - int(delete_retention * 1000) + 1


def run(engine: Engine, settings: CompactSettings) -> Report:
    """Compact a topic of a store directory, a cluster or an archive.

    Raises:
        UnknownTopic: There is no record of the topic.
        SourceError: The topic or the archive does not exist.
        UsageError: There is no store, ``to`` exists already, or a record fits into no file.
        CorruptionError: The log does not hold together: records may be missing.
        SourceUnavailable: No node answered in time.
    """
    if settings.to is not None and settings.to.exists():
        hint = "name a directory that does not exist"
        raise UsageError(f"{settings.to} exists already", code="exists", hint=hint)
    ranges = _ranges(settings)
    newest: Newest = {}
    records = keyless = 0
    results = engine.spread(partial(keys_of, topic=settings.topic), ranges)
    for found, count, without in results:
        merge(newest, found)
        records, keyless = records + count, keyless + without
    if not records:
        text = f"there is no record of {settings.topic}"
        raise UnknownTopic(text, hint="twinlog topic list, or twinlog log info, shows topics")
    if settings.to is not None:
        # `is`: whose place it was that won, so that one task alone writes it
        won: list[Newest] = [
            {
                key: place
                for key, place in found.items()
                if newest[key] is place and _stays(settings, *place[2:4])
            }
            for found, _, _ in results
        ]
        with building(settings.to) as aside:
            if settings.files is None:
                _write_parquet(engine, zip(ranges, won, strict=True), aside)
            else:
                _write_files(engine, list(zip(ranges, won, strict=True)), aside, settings.files)
            aside.rename(settings.to)
    fields: dict[str, Field] = {
        "directory": str(settings.path) if settings.path else None,
        "source": str(settings.path or settings.servers or settings.archive),
        "archive": str(settings.archive) if settings.archive else None,
        "topic": settings.topic,
        "to": str(settings.to) if settings.to else None,
    }
    queues = sorted({(topic, queue) for topic, queue, _ in newest})
    counts = [_counts(settings, newest, topic, queue) for topic, queue in queues]
    return report(settings.topic, fields, records, keyless, counts)


def report(
    topic: str,
    fields: Mapping[str, Field],
    records: int,
    keyless: int,
    queues: Sequence[CompactQueue],
) -> Report:
    """Return the report of a compaction.

    Args:
        topic: That was compacted.
        fields: Where it was read and what was made, for the document.
        records: Of the topic.
        keyless: Those of them without a key.
        queues: All that have a key, in order.
    """
    rows: list[tuple[Value, ...]] = [
        (q.topic, q.number, q.keys, q.kept, q.deleted, q.tombstones) for q in queues
    ]
    kept = sum(queue.kept for queue in queues)
    told: dict[str, Field] = {
        **fields,
        "records": records,
        "without_key": keyless,
        "kept": kept,
        "deleted_keys": sum(queue.deleted for queue in queues),
        "tombstones": sum(queue.tombstones for queue in queues),
    }
    table = Rows("TOPIC QUEUE> KEYS> KEPT> DELETED> TOMBSTONES>", rows)
    head = f"{topic} · {records} records, {kept} kept"
    return Report("SparkCompact", head, told, {"queues": table})


def _ranges(settings: CompactSettings) -> Sequence[Range]:
    path, archive = settings.path, settings.archive
    if path is not None and archive is None:
        return ranges_of_directory(path, settings.split_bytes)
    return ranges_of_source(settings.topic, path, settings.servers, archive)


def _stays(settings: CompactSettings, full: bool, stored: int) -> bool:
    return full or (settings.young_ms is not None and stored >= settings.young_ms)


def _counts(settings: CompactSettings, newest: Newest, topic: str, queue: int) -> CompactQueue:
    held = [
        (full, stored)
        for key, (_, _, full, stored, _) in newest.items()
        if key[:2] == (topic, queue)
    ]
    live = sum(full for full, _ in held)
    kept = sum(_stays(settings, full, stored) for full, stored in held)
    return CompactQueue(topic, queue, len(held), kept, len(held) - live, kept - live)


def merge(newest: Newest, found: Newest) -> None:
    """Take what is newer into ``newest``.

    >>> held = {("t", 0, "a"): (5, 50, True, 9, 10)}
    >>> merge(held, {("t", 0, "a"): (4, 40, True, 8, 10), ("t", 0, "b"): (6, 60, False, 9, 10)})
    >>> held
    {('t', 0, 'a'): (5, 50, True, 9, 10), ('t', 0, 'b'): (6, 60, False, 9, 10)}
    """
    for key, place in found.items():
        if key not in newest or newest[key][0] < place[0]:
            newest[key] = place


def keys_of(one: Range, topic: str) -> tuple[Newest, int, int]:
    """Return (newest of each key, records, records without a key) of one range."""
    found: Newest = {}
    count = without = 0
    for data, starts in records_in(one):
        for at in starts:
            record = decode(data, at, check_crc=False)
            if record.topic != topic or not record.queued:
                continue
            count += 1
            if record.key is None:
                without += 1
                continue
            full, stored = bool(record.body), record.store_timestamp
            place = record.queue_offset, record.log_offset, full, stored, record.size
            merge(found, {(record.topic, record.queue, record.key): place})
    return found, count, without


def _write_parquet(engine: Engine, won: Iterable[tuple[Range, Newest]], to: Path) -> None:
    parts: list[tuple[Range, list[int]]] = []
    for one, found in won:
        if found:
            parts.append((one, sorted(place for _, place, *_ in found.values())))
    engine.spread(partial(write_part, to=str(to)), parts)


def _write_files(
    engine: Engine, won: Sequence[tuple[Range, Newest]], to: Path, sizes: FileSizes
) -> None:
    """Give each winner its slot, make the files, and let tasks write the records."""
    queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
    for _, found in won:
        for (topic, queue, _), (number, place, _, _, size) in found.items():
            queues.setdefault((topic, queue), []).append((number, place, size))
    where: dict[int, Slot] = {}
    ends: dict[tuple[str, int], list[tuple[Slot, int]]] = {}
    for key, held in queues.items():
        held.sort()
        last: dict[int, tuple[Slot, int]] = {}
        made = slots(*key, [size for *_, size in held], sizes)
        for (_, place, size), slot in zip(held, made, strict=True):
            where[place] = slot
            last[slot.base] = slot, size
        ends[key] = list(last.values())
    make_files(to, ends, sizes)
    parts: list[tuple[Range, list[tuple[int, Slot]]]] = []
    for one, found in won:
        if found:
            places = sorted(place for _, place, *_ in found.values())
            parts.append((one, [(place, where[place]) for place in places]))
    engine.spread(partial(write_slots, to=str(to)), parts)


def write_slots(item: tuple[Range, list[tuple[int, Slot]]], to: str) -> int:
    """Write the winners of one range into compaction files; the same again changes nothing."""
    one, given = item
    records = picked(one, [place for place, _ in given])
    write_records(Path(to), zip(records, (slot for _, slot in given), strict=True))
    return len(given)


def write_part(item: tuple[Range, list[int]], to: str) -> int:
    """Write the winners of one range; the same again replaces the file by the same."""
    one, places = item
    records = picked(one, places)
    starts = [0, *accumulate(map(len, records))]
    table = table_of(b"".join(records), starts[:-1], starts[-1], [])
    target = Path(to) / f"part-{places[0]:020d}.parquet"
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    parquet().write_table(table, aside, compression="zstd")
    aside.replace(target)
    return len(places)
