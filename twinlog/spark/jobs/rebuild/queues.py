"""The queue files of `rebuild`: entries of every record at their places, without a shuffle.

A record names its own queue offset, so its entry's place is known: each task writes the entries of
its range into sparse files of full length. The sums must tile afterwards; a queue where they do not
(RocketMQ trusts the place in the queue more than the number in the record) is written again in
order, by one task, with RocketMQ's rule. Light queues follow the names and offsets that records
carry in ``INNER_MULTI_DISPATCH``.

Tasks and the driver see the same directory; `missing_files` says when they do not.

Offsets are log offsets in bytes unless called queue offsets.

Not here: batch queues (BatchCQ), queue extensions; they are left as they are.

Sources: RocketMQ 5.3 (``ConsumeQueue.putMessagePositionInfo``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from twinlog import kernels
from twinlog.errors import CorruptionError, UsageError
from twinlog.format.consume_queue import QUEUE_ENTRY, QUEUE_FILE_SIZE_DEFAULT
from twinlog.format.light_queues import LIGHT_PROPERTY
from twinlog.format.log_file import file_name
from twinlog.format.record import decode
from twinlog.spark.directory.log_ranges import LogRange, pread, records_of
from twinlog.spark.engine.engine import Engine
from twinlog.spark.engine.report import Value
from twinlog.store.files import FileSeries, log_file
from twinlog.store.queues import Queue, is_folder_name, light_places, load_queues

Key = tuple[str, int]
"""(topic, queue)."""

BLANK_ENTRY = QUEUE_ENTRY.pack(0, 0x7FFFFFFF, 0)
"""What fills a queue's first file up to its first entry."""


@dataclass(frozen=True, slots=True)
class Wrote:
    """What a task wrote of one queue: ``count`` entries from queue offset ``first`` on."""

    key: Key
    first: int
    count: int


def build_queues(
    engine: Engine, root: Path, splits: Sequence[LogRange], target: Path
) -> tuple[list[Wrote], list[Key]]:
    """Write the queue files of all ranges into ``target``.

    Returns:
        What was written, and the queues that had to be written in order.

    Raises:
        CorruptionError: The log is damaged, or a queue of the store holds more than was built.
        UsageError: Tasks wrote to a directory that this process does not see.
    """
    target.mkdir()
    size, left = queue_file_size(root), left_as_they_are(root)
    work = partial(write_queues, target=str(target), size=size, left=left)
    wrote = [item for found in engine.spread(work, splits) for item in found]
    gone = missing_files(target, wrote, size)
    if gone:
        hint = "name directories that this process and every task share"
        raise UsageError(f"tasks wrote {gone[0]}, and it is not here", code="not-shared", hint=hint)
    odd = odd_queues(wrote)
    if odd:
        write_in_order(engine, splits, odd, target, size)
    fill_first(target, wrote, odd, size)
    compare_ends(root, target.parent, splits, left)
    for topic in left & names_in(root / "consumequeue"):
        shutil.copytree(root / "consumequeue" / topic, target / topic)
    return wrote, odd


def missing_files(target: Path, wrote: Sequence[Wrote], size: int) -> list[str]:
    """Return the queue files that tasks say they wrote and that are not in ``target``."""
    names = {
        f"{item.key[0]}/{item.key[1]}/{file_name(base)}"
        for item in wrote
        for base in range(
            20 * item.first - 20 * item.first % size, 20 * (item.first + item.count), size
        )
    }
    return [str(target / name) for name in sorted(names) if not (target / name).is_file()]


def compare_ends(root: Path, built: Path, splits: Sequence[LogRange], left: frozenset[str]) -> None:
    """Compare where queues end with those that the store has now.

    Raises:
        CorruptionError: The newest entry of one points to a record, and it would be no more.
    """
    made = load_queues(built)
    for key, queue in load_queues(root).items():
        end = made[key].max if key in made else 0
        if key[0] in left or not isinstance(queue, Queue) or queue.max <= end:
            continue
        place, size, _ = QUEUE_ENTRY.unpack(queue.stored(queue.max - 1, 1))
        if _holds(splits, place, size):
            text = f"topic {key[0]}, queue {key[1]} ends at {queue.max} and would end at {end}, "
            text += f"though the record at {place} is there"
            raise CorruptionError(text, hint="look: twinlog spark verify", offset=place)


def _holds(splits: Sequence[LogRange], place: int, size: int) -> bool:
    """Whether the log holds a record at ``place``, as a queue entry says."""
    for split in splits:
        if split.base <= place < split.file_end:
            path = log_file(split.root, split.file)
            data = pread(path, place - split.base, size)
            own = int.from_bytes(data[28:36], "big") == place
            return own and kernels.walk(data, 0, len(data), check_crc=False)[:2] == (1, size)
    return False


def queue_file_size(root: Path) -> int:
    """Return the length of queue files in a store: that of one that is there, else the default."""
    with suppress(StopIteration):
        found = next(path for path in (root / "consumequeue").glob("*/*/*") if path.is_file())
        return found.stat().st_size or QUEUE_FILE_SIZE_DEFAULT
    return QUEUE_FILE_SIZE_DEFAULT


def entries_of(split: LogRange) -> list[tuple[Key, int, bytes]]:
    """Return (queue, first queue offset, entries) of the records of a range.

    Raises:
        CorruptionError: What follows the records is damaged.
    """
    data, length = records_of(split)
    found = [
        ((topic.decode("utf-8", "replace"), number), first, entries)
        for topic, number, first, entries in kernels.gather_queues(data, 0, length, split.start)
    ]
    return [*found, *_light(data, length, split)]


def _light(data: memoryview, length: int, split: LogRange) -> Iterator[tuple[Key, int, bytes]]:
    """Yield the entries of light queues, which a record names itself."""
    batched = names_in(Path(split.root) / "batchconsumequeue")
    for at, _ in kernels.find_property(data, 0, length, LIGHT_PROPERTY):
        record = decode(data, at, check_crc=False)
        entry = QUEUE_ENTRY.pack(split.start + at, record.size, record.tags_code)
        for name, number in light_places(record, batched):
            yield (name, 0), number, entry


def left_as_they_are(root: Path) -> frozenset[str]:
    """Return the topics of a store with batch queues or queue extensions."""
    return frozenset(names_in(root / "batchconsumequeue") | names_in(root / "consumequeue_ext"))


def names_in(folder: Path) -> set[str]:
    """Return what a folder holds; nothing when it is not there."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


def write_queues(
    split: LogRange, target: str, size: int, left: frozenset[str] = frozenset()
) -> list[Wrote]:
    """Write the queue entries of one range to their places; the same again changes nothing.

    Raises:
        CorruptionError: What follows the records is damaged, or a topic's name is no folder's.
    """
    wrote: list[Wrote] = []
    for key, first, entries in entries_of(split):
        if key[0] in left:
            continue
        if not is_folder_name(key[0]):
            text = f"{split.file} has a topic {key[0][:80]!r}, which no folder can be called"
            raise CorruptionError(text, file=split.file, offset=split.start)
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


def write_in_order(
    engine: Engine, splits: Sequence[LogRange], odd: Sequence[Key], target: Path, size: int
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


def _runs_of(split: LogRange, keys: frozenset[Key]) -> list[tuple[Key, int, bytes]]:
    return [item for item in entries_of(split) if item[0] in keys]


def fill_first(target: Path, wrote: Sequence[Wrote], odd: Sequence[Key], size: int) -> None:
    """Fill each queue's first file with blanks up to the first entry."""
    first: dict[Key, int] = {}
    for item in wrote:
        first.setdefault(item.key, item.first)
    for key, number in first.items():
        end = 20 * number
        if end % size and key not in odd:
            _put(target, key, end - end % size, BLANK_ENTRY * (end % size // 20), size)


def queue_rows(wrote: Sequence[Wrote]) -> list[tuple[Value, ...]]:
    """Return (topic, queue, start, end) of what was written."""
    spans: dict[Key, tuple[int, int]] = {}
    for item in wrote:
        first, last = spans.get(item.key, (item.first, item.first))
        end = item.first + item.count
        spans[item.key] = min(first, item.first), max(last, end)
    return [(topic, queue, *span) for (topic, queue), span in sorted(spans.items())]


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
