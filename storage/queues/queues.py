"""All queues of a store, of both kinds.

The kind of a queue follows from its topic: topics with batch queues are known before the first of
their records, because nothing is appended to a topic before its creation is confirmed.

Not here: one queue (`storage.queues.consume_queue`, `storage.queues.batch_queue`), which records
are entered (`storage.state.dispatcher`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from storage.disk.disk import Disk
from storage.errors import DiskError
from storage.queues.batch_queue import BatchQueue, found_file_size
from storage.queues.consume_queue import ENTRY_SIZE, ConsumeQueue, Unflushed
from twinlog.errors import CorruptionError
from twinlog.format.consume_queue import QUEUE_ENTRY


class ConsumeQueues:
    """All queues of a store.

    Args:
        disk: The data directory.
        file_size: Bytes of a file of 20-byte entries. Files of batch queues hold as many units,
        unless there are files already: RocketMQ needs all of one size.
        batch_file_size: Bytes of a file of a batch queue; 0: as above.
        batched: Names of the topics that have batch queues; may grow.
    """

    def __init__(
        self,
        disk: Disk,
        file_size: int,
        batched: Collection[str] = (),
        *,
        batch_file_size: int = 0,
    ) -> None:
        self._disk = disk
        self._size = file_size
        units = file_size // ENTRY_SIZE * BatchQueue.SIZE
        self._batch_size = batch_file_size or found_file_size(disk, units)
        self.batched = batched
        self._encoded: frozenset[bytes] = frozenset()
        self._all: dict[tuple[str, int], ConsumeQueue] = {}
        self.light = 0
        """Number of light queues."""
        self.unflushed = Unflushed()

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self._all.values())

    @property
    def batched_names(self) -> frozenset[bytes]:
        """Names of the topics that have batch queues, encoded."""
        if len(self._encoded) != len(self.batched):
            self._encoded = frozenset(name.encode() for name in self.batched)
        return self._encoded

    def get(self, topic: str, queue: int) -> ConsumeQueue | None:
        """Return a queue; None if it never had an entry."""
        return self._all.get((topic, queue))

    def load(self, topic: str, queue: int, start: int, end: int, *, low: int = -1) -> ConsumeQueue:
        """Open a queue as a snapshot describes it."""
        made = self._made(topic, queue, start, end)
        made.low = low
        self._keep(made)
        return made

    def _made(self, topic: str, queue: int, start: int = 0, end: int = 0) -> ConsumeQueue:
        kind, size = ConsumeQueue, self._size
        if topic in self.batched:
            kind, size = BatchQueue, self._batch_size
        return kind(self._disk, topic, queue, size, self.unflushed, start=start, end=end)

    def write(self, topic: str, queue: int, first: int, entries: bytes) -> None:
        """See `ConsumeQueue.write`; a new queue is made."""
        found = self._found(topic, queue)
        found.write(first, entries)
        self._keep(found)

    def write_light(self, topic: str, first: int, entries: bytes) -> None:
        """See `ConsumeQueue.write_light`; a new queue is made."""
        found = self._found(topic, 0)
        found.write_light(first, entries)
        self._keep(found)

    def _keep(self, queue: ConsumeQueue) -> None:
        key = (queue.topic, queue.queue)
        if key not in self._all:
            self._all[key] = queue
            self.light += queue.light

    def _found(self, topic: str, queue: int) -> ConsumeQueue:
        found = self._all.get((topic, queue))
        if found is None:
            found = self._made(topic, queue)
        return found

    def held(self, topic: str, queue: int, first: int, entries: bytes) -> int:
        """Return how many of these entries the files of a consume queue hold from ``first`` on.

        The queue may be newer than the newest snapshot, so the files are all that is known. A file
        of another size, or an unreadable one, holds none.
        """
        found = ConsumeQueue(self._disk, topic, queue, self._size, self.unflushed)
        count = len(entries) // ENTRY_SIZE
        found.end = first + count
        try:
            there = found.read(first, count)
        except (CorruptionError, DiskError):
            return 0
        pairs = zip(QUEUE_ENTRY.iter_unpack(there), QUEUE_ENTRY.iter_unpack(entries), strict=True)
        return next((at for at, (one, other) in enumerate(pairs) if one != other), count)

    def end(self, topic: str, queue: int) -> int:
        """Return a queue's next queue offset; 0 for one without entries."""
        found = self._all.get((topic, queue))
        return found.end if found is not None else 0

    def drop(self, topic: str) -> None:
        """Let all queues of a deleted topic begin at their ends; `remove_files` does the rest."""
        for queue in self._of(topic):
            queue.drop()

    def remove_files(self, topic: str, most: int) -> bool:
        """Remove up to ``most`` files of a topic that was dropped; return whether any were left.

        The newest first: a file at whose end a queue goes on must not hold other entries.
        """
        for queue in self._of(topic):
            most -= queue.remove_files(most)
            if most <= 0:
                return True
        return False

    def _of(self, topic: str) -> list[ConsumeQueue]:
        return [queue for queue in self._all.values() if queue.topic == topic]

    def tidy(self, *, thorough: bool) -> None:
        """Remove entries and files beyond the queues' ends, after a stop that was not clean."""
        known = {queue.directory: queue for queue in self._all.values()}
        for kind, size in ((ConsumeQueue, self._size), (BatchQueue, self._batch_size)):
            for topic in self._disk.list(kind.ROOT):
                for name in self._disk.list(f"{kind.ROOT}/{topic}"):
                    if not name.isdigit():
                        continue
                    queue = known.get(f"{kind.ROOT}/{topic}/{name}")
                    if queue is None:
                        queue = kind(self._disk, topic, int(name), size, self.unflushed)
                    queue.cut(queue.end, thorough=thorough)

    def tidy_some(self, touched: Iterable[tuple[str, int]]) -> None:
        """As `tidy`, not thorough, for these queues only; some may be new.

        The kind of a topic's queues is unknown if it is newer than the newest snapshot.
        """
        for topic, queue in sorted(touched):
            found = self._all.get((topic, queue))
            if found is not None:
                found.cut(found.end, thorough=False)
                continue
            for kind, size in ((ConsumeQueue, self._size), (BatchQueue, self._batch_size)):
                kind(self._disk, topic, queue, size, self.unflushed).cut(0, thorough=False)

    def reset(self) -> None:
        """Forget all queues and remove their files; they will be rebuilt from the log."""
        self._all.clear()
        self.light = 0
        self.tidy(thorough=True)
