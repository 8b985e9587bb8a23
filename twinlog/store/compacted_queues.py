"""RocketMQ's compacted copy of a topic: the newest record of each key, read only.

A topic with ``cleanup.policy=COMPACTION`` is in the ordinary log and, a second time, below
``compaction``: its own log (``compactionLog/{topic}/{queue}``), whose records name their place in
that log, and a queue of 46-byte units (``compactionCq/{topic}/{queue}``). A queue file has the name
of the log file beside it; queue offsets have gaps where older records of a key were dropped, and
so have the names. RocketMQ answers reads of such a topic from here.

Units: queue offsets in records; log offsets here are places in the compacted log.

Not here: compacting.

Sources: RocketMQ 5.3 (``CompactionLog.getMessage``, ``SparseConsumeQueue``).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import BATCH_QUEUE_UNIT
from twinlog.kernels import EXPLANATIONS, walk
from twinlog.store.files import FileSeries, is_number, listed
from twinlog.store.queue_entries import IN_MEMORY_BYTES, IN_MEMORY_COUNT, Entry, Pull, Status

FOLDER = "compaction"


class CompactedQueue:
    """One queue of a compacted topic.

    Args:
        root: The store.
        topic: Its topic.
        queue: Its number.
    """

    def __init__(self, root: Path, topic: str, queue: int) -> None:
        self.topic = topic
        self.queue = queue
        place = Path(topic) / str(queue)
        self._log = FileSeries(root / FOLDER / "compactionLog" / place)
        self._queue = FileSeries(root / FOLDER / "compactionCq" / place)
        self._files = [list(_units(self._queue.view(file))) for file in self._queue.files]

    @property
    def _units(self) -> Iterator[Entry]:
        return (unit for units in self._files for unit in units)

    @property
    def min(self) -> int:
        """Queue offset of the oldest record kept; 0 without one."""
        return next((unit.queue_offset for unit in self._units), 0)

    @property
    def max(self) -> int:
        """Queue offset after the newest record; 0 without one."""
        last = next((units[-1] for units in reversed(self._files) if units), None)
        return last.queue_offset + last.count if last else 0

    @property
    def count(self) -> int:
        """Records kept."""
        return sum(len(units) for units in self._files)

    def get(self, offset: int, max_records: int) -> Pull:
        """Read from ``offset`` on, or from the next one kept; at most one queue file a call."""
        if not self.max:
            return Pull(Status.NO_MESSAGE_IN_QUEUE, 0)
        if offset == self.max:
            return Pull(Status.OFFSET_OVERFLOW_ONE, offset)
        if offset > self.max:
            return Pull(Status.OFFSET_OVERFLOW_BADLY, self.max if self.min else 0)
        found: list[Entry] = []
        total, looked = 0, offset
        for unit in self._from(offset):
            full = len(found) >= min(max_records, IN_MEMORY_COUNT)
            if found and (full or total + unit.size > IN_MEMORY_BYTES):
                break
            looked = unit.queue_offset + unit.count
            found.append(unit)
            total += unit.size
        return Pull(Status.FOUND, looked, tuple(found))

    def _from(self, offset: int) -> Iterator[Entry]:
        """Yield the units from ``offset`` on of the first file that has one."""
        for units in self._files:
            if units and units[-1].queue_offset >= offset:
                yield from (unit for unit in units if unit.queue_offset >= offset)
                return

    def records(self) -> Iterator[memoryview]:
        """Yield the bytes of the records kept, oldest first.

        Raises:
            CorruptionError: A unit points after the compacted log, or at what is no whole record.
        """
        for unit in self._units:
            data = self._log.read(unit.log_offset, unit.size)
            if len(data) < unit.size:
                text = f"entry {unit.queue_offset} of {self.topic}/{self.queue} points at nothing"
                raise CorruptionError(text, file=FOLDER, offset=unit.log_offset)
            _, _, code, _, _ = walk(data, 0, len(data))
            if code:
                file = f"{FOLDER}/compactionLog/{self.topic}/{self.queue}"
                text = f"{file}: the record at {unit.log_offset}: {EXPLANATIONS[code]}"
                raise CorruptionError(text, file=file, offset=unit.log_offset)
            yield data

    def unindexed(self) -> list[str]:
        """Return the names of log files whose queue file is lost or holds no unit."""
        told = {
            file.start for file, units in zip(self._queue.files, self._files, strict=True) if units
        }
        return [
            file.path.name
            for file in self._log.files
            if file.start not in told and self._log.last_written(file, file.start) > file.start
        ]

    def close(self) -> None:
        """Drop the mappings."""
        self._log.close()
        self._queue.close()


def _units(view: memoryview) -> Iterator[Entry]:
    """Yield the units of a file up to its end mark."""
    size = BATCH_QUEUE_UNIT.size
    for fields in BATCH_QUEUE_UNIT.iter_unpack(view[: len(view) // size * size]):
        log_offset, length, tags_code, stamp, base, count, compacted, _ = fields
        if log_offset < 0 or length <= 0 or base < 0 or count <= 0:
            return
        yield Entry(base, log_offset, length, tags_code, count, compacted, stamp)


def compacted_queues(root: Path) -> dict[tuple[str, int], CompactedQueue]:
    """Return the compacted queues of the store at ``root``."""
    found: dict[tuple[str, int], CompactedQueue] = {}
    top = root / FOLDER / "compactionCq"
    for topic, *_ in listed(top):
        for queue, *_ in listed(topic):
            if queue.is_dir() and is_number(queue.name):
                key = (topic.name, int(queue.name))
                found[key] = CompactedQueue(root, *key)
    return found
