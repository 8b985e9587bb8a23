"""Exports for RocketMQ: ``config/topics.json`` and ``epochFileCheckpoint``.

A RocketMQ broker needs them to open the store. It enters the whole log in queues, unconfirmed
records too, and must know the kind of each queue. twinlog writes them and never reads them. The
previous version stays as ``topics.json.bak``, as with RocketMQ. Strict JSON, which RocketMQ's
reader accepts.

Not here: consumer offsets and groups.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from storage.disk.disk import Disk
from storage.errors import DiskFull
from storage.log.commit_log import CommitLog
from storage.log.epoch_history import EPOCH_FILE
from storage.state.topics import State, Topic
from twinlog.format.epoch_history import Epoch
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META

DIRECTORY = "config"
TOPICS = "config/topics.json"
_READ, _READ_WRITE = 4, 6


def topics_json(topics: Iterable[Topic], *, changes: int, timestamp: int) -> bytes:
    """Return the file for ``topics`` and the store's own topics, which are read only."""
    table = {one.name: _row(one.name, one.queues, _READ_WRITE, one.batch) for one in topics}
    for name in (SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META):
        table[name] = _row(name, 1, _READ)
    version = {"counter": changes, "stateVersion": 0, "timestamp": timestamp}
    whole = {"dataVersion": version, "topicConfigTable": table}
    return json.dumps(whole, indent="\t", sort_keys=True).encode() + b"\n"


def _row(name: str, queues: int, permission: int, batch: bool = False) -> dict[str, object]:
    return {
        "attributes": {"queue.type": "BatchCQ"} if batch else {},
        "order": False,
        "perm": permission,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def write_topics(disk: Disk, data: bytes, op: str) -> None:
    """Replace ``topics.json`` durably, keeping the previous version."""
    if disk.exists(TOPICS):
        old = disk.read(TOPICS, op + ".read")
        if old == data:
            return
        disk.write_file(TOPICS + ".bak", old, op + ".bak")
    disk.write_file(TOPICS, data, op)


Prepared = tuple[tuple[int, tuple[Epoch, ...]], bytes, bytes]
"""The state that the files depend on, and both files."""


class Exports:
    """Writes both files when the state that they depend on has changed."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._written: tuple[int, tuple[Epoch, ...]] | None = None

    def prepare(self, state: State, log: CommitLog) -> Prepared | None:
        """Return what `write` needs; None when nothing has changed."""
        depends = (len(state.topics), log.history.epochs)
        if depends == self._written:
            return None
        topics = topics_json(
            state.topics.values(), changes=len(state.topics), timestamp=log.timestamp
        )
        return depends, topics, log.history.file()

    def write(self, prepared: Prepared | None, op: str) -> None:
        """Write both files durably; may run in a worker thread.

        Only RocketMQ reads them: on a full disk they are left for a later call.
        """
        if prepared is None:
            return
        depends, topics, epochs = prepared
        try:
            write_topics(self._disk, topics, op + ".topics")
            self._disk.write_file(EPOCH_FILE, epochs, op + ".epochs")
        except DiskFull:
            return
        self._written = depends
