"""Do RocketMQ's queue extensions hold together?

Units follow each other by their sizes, up to -1 at a file's end; each entry that names a unit leads
to the beginning of one, with the store time of its record. The tags code of a unit is compared with
its record's where queues are compared (`twinlog.store.verify.queues`).

Units that no entry points to are a note: RocketMQ cuts them when it starts.

Not judged: the bitmap of a unit, which depends on the consumers that there were (`UNJUDGED`).

Units: ``position`` is a byte of the named file. Source: RocketMQ 5.3 (``ConsumeQueueExt``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from twinlog.format.consume_queue import QUEUE_EXT_UNIT
from twinlog.store.damage import Grade
from twinlog.store.files import EMPTY, LogFile
from twinlog.store.queues import Queue
from twinlog.store.reader import StoreReader
from twinlog.store.verify.findings import FINDINGS_MAX, Finding

FOLDER = "consumequeue_ext"
UNJUDGED = "bitmaps of its units depend on the consumers that there were"
_READABLE = "the records, through the log"
_END = -1


def check_extensions(store: StoreReader) -> Iterator[Finding]:
    """Yield what is wrong with the queue extensions of a RocketMQ store."""
    for queue in store.stored_queues.values():
        if isinstance(queue, Queue) and (queue.extension.files or queue.extension.odd):
            look = _Look(store, queue)
            look.all()
            yield from look.findings


class _Look:
    """One look at the extension of a queue; `all` fills ``findings``."""

    def __init__(self, store: StoreReader, queue: Queue) -> None:
        self.findings: list[Finding] = []
        self._store, self._queue = store, queue
        self._units: dict[int, int] = {}

    def all(self) -> None:
        """Look at the files, then at the entries that point into them."""
        extension = self._queue.extension
        for _, path, state in extension.odd:
            grade = Grade.NOTE if state == EMPTY else Grade.UNREADABLE
            self._add(path.name, 0, f"it is {state}", grade)
        for file in extension.files:
            if extension.view(file):
                self._walk(file)
            else:
                why = extension.unreadable.get(file.start, "it went")
                self._add(file.path.name, 0, f"the file cannot be read: {why}", Grade.UNREADABLE)
        self._entries()

    def _add(
        self, name: str, at: int, text: str, grade: Grade = Grade.DAMAGE, folder: str = FOLDER
    ) -> None:
        if len(self.findings) < FINDINGS_MAX:
            path = f"{folder}/{self._queue.topic}/{self._queue.queue}/{name}"
            self.findings.append(Finding(grade, path, at, None, 0, text, _READABLE))

    def _walk(self, file: LogFile) -> None:
        """Note where units of a file begin, with their store times."""
        view = self._queue.extension.view(file)
        written = self._queue.extension.last_written(file, file.start) - file.start
        at = 0
        while at < written:
            (size,) = struct.unpack_from(">h", view, at) if at + 2 <= file.size else (0,)
            if size == _END:
                return
            fits = QUEUE_EXT_UNIT.size <= size <= file.size - at
            _, _, stamp, bitmap = QUEUE_EXT_UNIT.unpack_from(view, at) if fits else (0, 0, 0, -1)
            if not fits or bitmap != size - QUEUE_EXT_UNIT.size:
                grade = Grade.DAMAGE if self._store.clean else Grade.NOTE
                self._add(file.path.name, at, f"no unit of an extension: its size is {size}", grade)
                return
            self._units[file.start + at] = stamp
            at += size

    def _entries(self) -> None:
        queue, left = self._queue, dict(self._units)
        for number, offset, place in queue.addresses():
            stamp = self._units.get(place)
            left.pop(place, None)
            name, at = queue.place(number)
            record = self._store.record_at(offset)
            if record is None:  # told already, or gone
                continue
            if stamp is None:
                text = f"entry {number} points to no unit of its extension, at {place}"
                self._add(name, at, text, folder=queue.folder)
            elif stamp != record.store_timestamp:
                file = queue.extension.at(place)
                if file is not None:
                    text = f"the unit of entry {number} names another store time than its record"
                    self._add(file.path.name, place - file.start, text)
        if left and queue.min == 0:
            first = min(left)
            file = queue.extension.at(first)
            if file is not None:
                text = f"{len(left)} units that no entry points to"
                self._add(file.path.name, first - file.start, text, Grade.NOTE)
