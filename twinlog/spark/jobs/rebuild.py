"""rebuild: queue files and key index anew from the log, byte for byte as RocketMQ makes them.

A record names its own queue offset, so its entry's place is known: each task writes the entries of
its range into sparse files of full length, without any shuffle. The sums must tile afterwards; a
queue where they do not (RocketMQ trusts the place in the queue more than the number in the record)
is written again in order, by one task, with RocketMQ's rule. Light queues follow the names and
offsets that records carry in ``INNER_MULTI_DISPATCH``.

Index files are made one after the other from the keys of all ranges (`jobs.index_files`): equal
content; the name is the creation time and cannot be equal, so it is the local time of the first
entry's record.

Nothing is touched until all is built: into ``--to``, or beside the old directories, which are then
exchanged by rename. A rebuild in place takes the node's lock. What is left of an interrupted one is
a directory ``*.building``, and the next one removes it.

Offsets are log offsets in bytes unless called queue offsets.

Not here: batch queues (BatchCQ), queue extensions; they are left as they are.

Sources: RocketMQ 5.3 (``ConsumeQueue.putMessagePositionInfo``, ``IndexService.buildIndex``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from twinlog import kernels
from twinlog.errors import CorruptionError, UsageError
from twinlog.kernels import codes
from twinlog.layout import (
    INDEX_CELLS_DEFAULT,
    INDEX_SLOTS_DEFAULT,
    QUEUE_ENTRY,
    QUEUE_FILE_SIZE_DEFAULT,
    file_name,
)
from twinlog.record import decode
from twinlog.spark.jobs.engine import Engine
from twinlog.spark.jobs.index_files import Image, build
from twinlog.spark.jobs.report import Report, Rows, Value, Verdict
from twinlog.spark.jobs.splits import SPLIT_BYTES, Split, plan
from twinlog.store_files import FileSeries
from twinlog.store_keys import KeyIndex
from twinlog.store_queues import Queue

Key = tuple[str, int]
"""(topic, queue)."""

BLANK_ENTRY = QUEUE_ENTRY.pack(0, 0x7FFFFFFF, 0)
"""What fills a queue's first file up to its first entry."""

FINDINGS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class RebuildSettings:
    """What to rebuild and where.

    Attributes:
        path: The store.
        queues: Whether queue files are built.
        index: Whether the key index is.
        to: Directory for the result; None: in place.
        check: Compare with what is there and keep nothing.
    """

    path: Path
    queues: bool = True
    index: bool = True
    to: Path | None = None
    check: bool = False
    split_bytes: int = SPLIT_BYTES


@dataclass(frozen=True, slots=True)
class Wrote:
    """What a task wrote of one queue: ``count`` entries from queue offset ``first`` on."""

    key: Key
    first: int
    count: int


def run(engine: Engine, settings: RebuildSettings) -> Report:
    """Rebuild queues and index of a store directory.

    Raises:
        UsageError: There is no store, or ``to`` exists already, or a node runs on it (code
            ``directory-in-use``).
        CorruptionError: The log itself does not hold together.
    """
    root = settings.path
    if settings.to is not None and settings.to.exists():
        hint = "name a directory that does not exist, or remove this one"
        raise UsageError(f"{settings.to} exists already", code="exists", hint=hint)
    in_place = settings.to is None and not settings.check
    target = (settings.to or root / "rebuilt").with_suffix(".building")
    with _locked(root, wanted=in_place):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        try:
            return _build(engine, settings, target)
        finally:
            shutil.rmtree(target, ignore_errors=True)


def _build(engine: Engine, settings: RebuildSettings, target: Path) -> Report:
    cut = plan(settings.path, settings.split_bytes)
    size = queue_file_size(settings.path)
    rows: list[tuple[Value, ...]] = []
    odd: list[Key] = []
    if settings.queues:
        (target / "consumequeue").mkdir()
        left = left_as_they_are(settings.path)
        work = partial(write_queues, target=str(target / "consumequeue"), size=size, left=left)
        wrote = [item for found in engine.spread(work, cut.splits) for item in found]
        odd = odd_queues(wrote)
        if odd:
            _in_order(engine, cut.splits, odd, target / "consumequeue", size)
        _fill_first(target / "consumequeue", wrote, odd, size)
        for topic in left & _names(settings.path / "consumequeue"):
            shutil.copytree(settings.path / "consumequeue" / topic, target / "consumequeue" / topic)
        rows += _queue_rows(wrote)
    images = 0
    if settings.index:
        (target / "index").mkdir()
        images = build_index(engine, settings.path, cut.splits, target / "index")
    if settings.check:
        return _checked(settings, target, rows, images)
    names = [name for name, on in _wanted(settings) if on]
    if settings.to is None:
        for name in names:
            exchange(settings.path / name, target / name)
    else:
        target.rename(settings.to)
    return _report(settings, rows, images, odd)


def _wanted(settings: RebuildSettings) -> list[tuple[str, bool]]:
    return [("consumequeue", settings.queues), ("index", settings.index)]


def exchange(old: Path, new: Path) -> None:
    """Put ``new`` in the place of ``old``; at every moment one of them is complete on the disk."""
    aside = old.with_name(f"{old.name}.before")
    shutil.rmtree(aside, ignore_errors=True)
    if old.exists():
        old.rename(aside)
    new.rename(old)
    shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _locked(root: Path, *, wanted: bool) -> Generator[None]:
    """Hold the lock of the data directory, as a node does."""
    if not wanted:
        yield
        return
    import fcntl

    fd = os.open(root / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError:
            text = f"a node runs on {root}"
            hint = "stop it, or build beside it: --to NEWDIR"
            raise UsageError(text, code="directory-in-use", hint=hint) from None
        yield
    finally:
        os.close(fd)


def queue_file_size(root: Path) -> int:
    """Return the length of queue files in a store: that of one that is there, else the default."""
    with suppress(StopIteration):
        found = next(path for path in (root / "consumequeue").glob("*/*/*") if path.is_file())
        return found.stat().st_size or QUEUE_FILE_SIZE_DEFAULT
    return QUEUE_FILE_SIZE_DEFAULT


# ── queues ──────────────────────────────────────────────────────────────────────────────────────


def entries_of(split: Split) -> list[tuple[Key, int, bytes]]:
    """Return (queue, first queue offset, entries) of the records of a range.

    Raises:
        CorruptionError: A range that something bounds ends elsewhere.
    """
    data = split.read()
    _, length, code, _, _ = kernels.walk(data, 0, len(data), check_crc=False)
    if code not in (codes.FINE, codes.BLANK) and not split.open:
        text = f"{split.file}: at {split.start + length}: {kernels.EXPLANATIONS[code]}"
        hint = "look: twinlog spark verify"
        raise CorruptionError(text, hint=hint, offset=split.start + length, file=split.file)
    if split.open:  # old records behind the end are whole, but do not name their own place
        _, bad, _ = kernels.verify_records(
            data, 0, length, split.start, check_crc=False, check_offsets=True
        )
        length = bad - split.start if bad >= 0 else length
    found = [
        ((topic.decode("utf-8", "replace"), number), first, entries)
        for topic, number, first, entries in kernels.gather_queues(data, 0, length, split.start)
    ]
    return [*found, *_light(data, length, split.start)]


def _light(data: bytes, length: int, base: int) -> Iterator[tuple[Key, int, bytes]]:
    """Yield the entries of light queues, which a record names itself."""
    for at, value in kernels.find_property(data, 0, length, b"INNER_MULTI_DISPATCH"):
        record = decode(data, at, check_crc=False)
        offsets = record.properties.get("INNER_MULTI_QUEUE_OFFSET", "").split(",")
        names = value.decode("utf-8", "replace").split(",")
        if len(names) != len(offsets) or not record.queued:
            continue
        entry = QUEUE_ENTRY.pack(base + at, record.size, record.tags_code)
        for name, number in zip(names, offsets, strict=True):
            queue = 0 if name.startswith("%LMQ%") else record.queue
            with suppress(ValueError):
                yield (name, queue), int(number), entry


def left_as_they_are(root: Path) -> frozenset[str]:
    """Return the topics of a store with batch queues or queue extensions."""
    return frozenset(_names(root / "batchconsumequeue") | _names(root / "consumequeue_ext"))


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def write_queues(
    split: Split, target: str, size: int, left: frozenset[str] = frozenset()
) -> list[Wrote]:
    """Write the queue entries of one range to their places; the same again changes nothing."""
    wrote: list[Wrote] = []
    for key, first, entries in entries_of(split):
        if key[0] in left:
            continue
        _put(Path(target), key, 20 * first, entries, size)
        wrote.append(Wrote(key, first, len(entries) // 20))
    return wrote


def _put(target: Path, key: Key, at: int, data: bytes, size: int) -> None:
    folder = target / key[0] / str(key[1])
    folder.mkdir(parents=True, exist_ok=True)
    view = memoryview(data)
    while view:
        base = at - at % size
        part = view[: base + size - at]
        fd = os.open(folder / file_name(base), os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            if os.fstat(fd).st_size != size:
                os.ftruncate(fd, size)
            os.pwrite(fd, part, at - base)
        finally:
            os.close(fd)
        at, view = at + len(part), view[len(part) :]


def odd_queues(wrote: Sequence[Wrote]) -> list[Key]:
    """Return the queues whose runs do not follow each other without gap or overlap.

    >>> odd_queues([Wrote(("t", 0), 5, 2), Wrote(("t", 0), 7, 1), Wrote(("t", 1), 0, 1)])
    []
    >>> odd_queues([Wrote(("t", 0), 5, 2), Wrote(("t", 0), 6, 1)])
    [('t', 0)]
    """
    ends: dict[Key, int] = {}
    odd: dict[Key, None] = {}
    for item in wrote:
        if ends.get(item.key, item.first) != item.first:
            odd[item.key] = None
        ends[item.key] = item.first + item.count
    return list(odd)


def _in_order(
    engine: Engine, splits: Sequence[Split], odd: Sequence[Key], target: Path, size: int
) -> None:
    """Write the odd queues again, with RocketMQ's rule."""
    found = engine.spread(partial(_runs_of, keys=frozenset(odd)), splits)
    for key in odd:
        queue = Queue(key[0], key[1], FileSeries(), FileSeries())
        for runs in found:
            for its, first, entries in runs:
                if its == key:
                    queue.dispatch(first, entries)
        shutil.rmtree(target / key[0] / str(key[1]))
        again = [
            QUEUE_ENTRY.pack(entry.log_offset, entry.size, entry.tags_code)
            for entry in queue.entries(0)
        ]
        _put(target, key, 20 * queue.min, b"".join(again), size)


def _runs_of(split: Split, keys: frozenset[Key]) -> list[tuple[Key, int, bytes]]:
    return [item for item in entries_of(split) if item[0] in keys]


def _fill_first(target: Path, wrote: Sequence[Wrote], odd: Sequence[Key], size: int) -> None:
    """Fill each queue's first file with blanks up to the first entry."""
    first: dict[Key, int] = {}
    for item in wrote:
        first.setdefault(item.key, item.first)
    for key, number in first.items():
        end = 20 * number
        if end % size and key not in odd:
            _put(target, key, end - end % size, BLANK_ENTRY * (end % size // 20), size)


def _queue_rows(wrote: Sequence[Wrote]) -> list[tuple[Value, ...]]:
    spans: dict[Key, tuple[int, int]] = {}
    for item in wrote:
        first, last = spans.get(item.key, (item.first, item.first))
        end = item.first + item.count
        spans[item.key] = min(first, item.first), max(last, end)
    return [(topic, queue, *span) for (topic, queue), span in sorted(spans.items())]


# ── index ───────────────────────────────────────────────────────────────────────────────────────


def keys_of(split: Split) -> bytes:
    """Return the packed keys of the records of one range."""
    data = split.read()
    length = kernels.walk(data, 0, len(data), check_crc=False)[1]
    if split.open:
        _, bad, _ = kernels.verify_records(
            data, 0, length, split.start, check_crc=False, check_offsets=True
        )
        length = bad - split.start if bad >= 0 else length
    return kernels.scan_keys(data, 0, length, split.start)


def build_index(engine: Engine, root: Path, splits: Sequence[Split], target: Path) -> int:
    """Write the index files of all ranges into ``target`` and return their number."""
    slots, cells = index_shape(root)
    packed = engine.spread(keys_of, splits)
    before, count = 0, 0
    for image in build(packed, slots=slots, cells=cells):
        before = max(image.header.begin_timestamp, before + 1)
        _write_image(target / index_name(before), image, image.size(cells))
        count += 1
    return count


def index_shape(root: Path) -> tuple[int, int]:
    """Return (slots, cells) of a store's index files: of one that is there, else the default."""
    for file in KeyIndex(root / "index", None).files:
        if file.slots:
            return file.slots, 4 * file.slots
    return INDEX_SLOTS_DEFAULT, INDEX_CELLS_DEFAULT


def index_name(ms: int) -> str:
    """Return an index file's name: the local time, to the millisecond."""
    return datetime.fromtimestamp(ms // 1000).strftime("%Y%m%d%H%M%S") + f"{ms % 1000:03d}"


def _write_image(path: Path, image: Image, size: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        os.ftruncate(fd, size)
        for at, data in image.pieces():
            os.pwrite(fd, data, at)
    finally:
        os.close(fd)


# ── checking and reporting ──────────────────────────────────────────────────────────────────────


def _checked(
    settings: RebuildSettings, target: Path, rows: Sequence[tuple[Value, ...]], images: int
) -> Report:
    """Compare what was built with what is there."""
    found: list[tuple[Value, ...]] = []
    if settings.queues:
        found += queue_differences(settings.path / "consumequeue", target / "consumequeue")
    if settings.index:
        found += index_differences(settings.path / "index", target / "index")
    fields = _fields(settings, rows, images, ())
    fields["differences_found"] = len(found)
    headers = "FILE POSITION> STORED BUILT WHAT"
    tables = {"differences": Rows(headers, found[:FINDINGS_SHOWN])}
    word = "as the log says" if not found else f"{len(found)} differences"
    verdict = Verdict.NO if found else Verdict.FINE
    return Report("SparkRebuild", f"{settings.path} · {word}", fields, tables, verdict)


def queue_differences(stored: Path, built: Path) -> list[tuple[Value, ...]]:
    """Return a row for each queue file that is not as built: where, and both entries there."""
    names = sorted(
        {path.relative_to(base).as_posix() for base in (stored, built) for path in _files(base)}
    )
    rows: list[tuple[Value, ...]] = []
    for name in names:
        one, two = stored / name, built / name
        if not one.is_file() or not two.is_file():
            what = "is missing" if two.is_file() else "the log has no record for it"
            rows.append((f"consumequeue/{name}", 0, None, None, what))
            continue
        held, made = one.read_bytes(), two.read_bytes()
        if held != made:
            at = next(
                i
                for i in range(0, max(len(held), len(made)), 20)
                if held[i : i + 20] != made[i : i + 20]
            )
            pair = held[at : at + 20].hex(), made[at : at + 20].hex()
            rows.append((f"consumequeue/{name}", at, *pair, f"entry {at // 20} of the file"))
    return rows


def _files(base: Path) -> Iterator[Path]:
    for path in base.glob("*/*/*"):
        if path.is_file():
            yield path


def index_differences(stored: Path, built: Path) -> list[tuple[Value, ...]]:
    """Return a row for each pair of index files whose content differs; names never count."""
    one, two = KeyIndex(stored, None), KeyIndex(built, None)
    rows: list[tuple[Value, ...]] = []
    if len(one.files) != len(two.files):
        counts = str(len(one.files)), str(len(two.files))
        rows.append(("index", 0, *counts, "number of files"))
    for held, made in zip(one.files, two.files, strict=False):
        # Behind the last used cell there is nothing, in files that are mostly holes.
        used = 40 + 4 * held.slots + 20 * max(held.header.next_cell, made.header.next_cell)
        kept, fresh = bytes(held.view[:used]), bytes(made.view[:used])
        if kept != fresh:
            at = next(i for i in range(0, used, 4) if kept[i : i + 4] != fresh[i : i + 4])
            pair = kept[at : at + 4].hex(), fresh[at : at + 4].hex()
            rows.append((f"index/{held.name}", at, *pair, _index_place(at, held.slots)))
    return rows


def _index_place(at: int, slots: int) -> str:
    if at < 40:
        return "header"
    cells = 40 + 4 * slots
    return f"slot {(at - 40) // 4}" if at < cells else f"cell {(at - cells) // 20}"


def _fields(
    settings: RebuildSettings,
    rows: Sequence[tuple[Value, ...]],
    images: int,
    odd: Sequence[Key],
) -> dict[str, Value | Sequence[Value] | Mapping[str, Value]]:
    return {
        "directory": str(settings.path),
        "to": str(settings.to) if settings.to else None,
        "queues": len(rows),
        "entries": sum(int(str(row[3])) - int(str(row[2])) for row in rows),
        "index_files": images,
        "written_in_order": [f"{topic}/{queue}" for topic, queue in odd],
    }


def _report(
    settings: RebuildSettings,
    rows: Sequence[tuple[Value, ...]],
    images: int,
    odd: Sequence[Key],
) -> Report:
    fields = _fields(settings, rows, images, odd)
    head = (
        f"{settings.path} · {fields['queues']} queues with {fields['entries']} entries, "
        f"{images} index files"
    )
    tables = {"rebuilt": Rows("TOPIC QUEUE> START> END>", rows)}
    return Report("SparkRebuild", head, fields, tables)
