"""compact: the newest record of each key, as a key-value view of a topic.

Within a topic and queue the record with the highest queue offset wins; an empty body deletes the
key, as in RocketMQ's compaction. Records without a key have no place in the result and are counted.

Two passes, so that bodies are never shuffled: tasks report the newest offset of each key in their
range, the winners are chosen here, and tasks write the winners of their range as Parquet, with the
columns of the archive. The result appears under its name when all of it is there.

Not here: RocketMQ's own compaction files.

Sources: RocketMQ 5.3 (``CompactionLog``): KEYS as a whole is the key.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twinlog.errors import UnknownTopic, UsageError
from twinlog.record import decode
from twinlog.spark.archive.rows import table_of
from twinlog.spark.archive.writing import parquet
from twinlog.spark.jobs.building import building
from twinlog.spark.jobs.engine import Engine
from twinlog.spark.jobs.report import Report, Rows, Value
from twinlog.spark.jobs.splits import SPLIT_BYTES, Split, plan, records_of

Newest = dict[tuple[str, int, str], tuple[int, int, bool]]
"""(topic, queue, key) -> (queue offset, log offset, whether the body has bytes)."""


@dataclass(frozen=True, slots=True)
class CompactSettings:
    """What to compact.

    Attributes:
        path: The store.
        topic: The topic.
        to: Directory of Parquet files that is made; None: only count.
    """

    path: Path
    topic: str
    to: Path | None = None
    split_bytes: int = SPLIT_BYTES


def run(engine: Engine, settings: CompactSettings) -> Report:
    """Compact a topic of a store directory.

    Raises:
        UnknownTopic: The store has no record of the topic.
        UsageError: There is no store, or ``to`` exists already.
        CorruptionError: The log does not hold together: records may be missing.
    """
    if settings.to is not None and settings.to.exists():
        hint = "name a directory that does not exist"
        raise UsageError(f"{settings.to} exists already", code="exists", hint=hint)
    cut = plan(settings.path, settings.split_bytes)
    cut.complete()
    splits = cut.splits
    newest: Newest = {}
    records = keyless = 0
    for found, count, without in engine.spread(partial(keys_of, topic=settings.topic), splits):
        merge(newest, found)
        records, keyless = records + count, keyless + without
    if not records:
        text = f"the store has no record of {settings.topic}"
        raise UnknownTopic(text, hint="twinlog log info shows what it has")
    live = {place for _, place, full in newest.values() if full}
    if settings.to is not None:
        _write(engine, splits, sorted(live), settings.to)
    queues = sorted({(topic, queue) for topic, queue, _ in newest})
    rows: list[tuple[Value, ...]] = [
        (topic, queue, *_counts(newest, topic, queue)) for topic, queue in queues
    ]
    fields: dict[str, Value | Sequence[Value] | Mapping[str, Value]] = {
        "directory": str(settings.path),
        "topic": settings.topic,
        "to": str(settings.to) if settings.to else None,
        "records": records,
        "without_key": keyless,
        "kept": len(live),
        "deleted_keys": len(newest) - len(live),
    }
    head = f"{settings.topic} · {records} records, {len(live)} kept"
    tables = {"queues": Rows("TOPIC QUEUE> KEYS> KEPT> DELETED>", rows)}
    return Report("SparkCompact", head, fields, tables)


def _counts(newest: Newest, topic: str, queue: int) -> tuple[int, int, int]:
    held = [full for key, (_, _, full) in newest.items() if key[:2] == (topic, queue)]
    return len(held), sum(held), len(held) - sum(held)


def merge(newest: Newest, found: Newest) -> None:
    """Take what is newer into ``newest``.

    >>> held = {("t", 0, "a"): (5, 50, True)}
    >>> merge(held, {("t", 0, "a"): (4, 40, True), ("t", 0, "b"): (6, 60, False)})
    >>> held
    {('t', 0, 'a'): (5, 50, True), ('t', 0, 'b'): (6, 60, False)}
    """
    for key, place in found.items():
        if key not in newest or newest[key][0] < place[0]:
            newest[key] = place


def keys_of(split: Split, topic: str) -> tuple[Newest, int, int]:
    """Return (newest of each key, records, records without a key) of one range."""
    data, length = records_of(split)
    found: Newest = {}
    count = without = at = 0
    while at < length:
        record = decode(data, at, check_crc=False)
        at += record.size
        if record.topic != topic or not record.queued:
            continue
        count += 1
        if record.key is None:
            without += 1
            continue
        place = record.queue_offset, record.log_offset, bool(record.body)
        merge(found, {(record.topic, record.queue, record.key): place})
    return found, count, without


def _write(engine: Engine, splits: Sequence[Split], live: Sequence[int], to: Path) -> None:
    """Write the winners and put them under their name."""
    items: list[tuple[Split, list[int]]] = []
    for split in splits:
        own = [place for place in live if split.start <= place < split.end]
        if own:
            items.append((split, own))
    with building(to) as aside:
        engine.spread(partial(write_part, to=str(aside)), items)
        aside.rename(to)


def write_part(item: tuple[Split, list[int]], to: str) -> int:
    """Write the winners of one range; the same again replaces the file by the same."""
    split, places = item
    data = split.read()
    picked, starts = bytearray(), list[int]()
    for place in places:
        at = place - split.start
        size = int.from_bytes(data[at : at + 4], "big")
        starts.append(len(picked))
        picked += data[at : at + size]
    table = table_of(bytes(picked), starts, len(picked), [])
    target = Path(to) / f"part-{split.start:020d}.parquet"
    aside = target.with_name(f".{target.name}.{os.getpid()}")
    parquet().write_table(table, aside, compression="zstd")
    aside.replace(target)
    return len(places)
