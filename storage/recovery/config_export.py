"""Exports for RocketMQ: ``epochFileCheckpoint``, and in ``config`` topics, groups, positions and
how far each delay level is delivered.

A RocketMQ broker needs them to open the store. It enters the whole log in queues, unconfirmed
records too, and must know the kind of each queue. twinlog writes them and never reads them. The
previous version stays beside each as ``.bak``, as with RocketMQ. Strict JSON, which RocketMQ's
reader accepts.

Not here: what stands in the files of groups (`storage.recovery.group_export`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from storage.disk.disk import Disk
from storage.errors import DiskFull
from storage.log.commit_log import CommitLog
from storage.log.epoch_history import EPOCH_FILE
from storage.messaging.fold import Messaging
from storage.messaging.groups import Group
from storage.recovery.group_export import Position, group_files
from storage.state.topics import READ, State, Topic
from twinlog.format.epoch_history import Epoch
from twinlog.format.system_topics import SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_GROUP, SYSTEM_TOPIC_META
from twinlog.format.waiting.delay_levels import LEVELS

DIRECTORY = "config"
TOPICS = "config/topics.json"
DELAYS = "config/delayOffset.json"


def topics_json(topics: Iterable[Topic], *, changes: int, timestamp: int) -> bytes:
    """Return the file for ``topics`` and the store's own topics, which are read only."""
    table = {one.name: _row(one) for one in topics}
    for name in (SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META, SYSTEM_TOPIC_GROUP):
        table[name] = _row(Topic(name, 1, 0, permission=READ))
    version = {"counter": changes, "stateVersion": 0, "timestamp": timestamp}
    whole = {"dataVersion": version, "topicConfigTable": table}
    return json.dumps(whole, indent="\t", sort_keys=True).encode() + b"\n"


def delays_json(delays: Iterable[tuple[int, int]], *, changes: int, timestamp: int) -> bytes:
    """Return the file that says of each delay level which record of its queue is next."""
    known = dict(delays)
    offsets = {str(level): known.get(level, 0) for level in range(1, LEVELS + 1)}
    version = {"counter": changes, "stateVersion": 0, "timestamp": timestamp}
    whole = {"dataVersion": version, "offsetTable": offsets}
    return json.dumps(whole, indent="\t", sort_keys=True).encode() + b"\n"


def _row(topic: Topic) -> dict[str, object]:
    return {
        "attributes": {"queue.type": "BatchCQ"} if topic.batch else {},
        "order": False,
        "perm": topic.permission,
        "readQueueNums": topic.queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": topic.name,
        "topicSysFlag": 0,
        "writeQueueNums": topic.takes,
    }


def _replace(disk: Disk, path: str, data: bytes, op: str) -> None:
    """Replace a file of ``config`` durably, keeping the previous version."""
    if disk.exists(path):
        old = disk.read(path, op + ".read")
        if old == data:
            return
        disk.write_file(path + ".bak", old, op + ".bak")
    disk.write_file(path, data, op)


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the files say, as of one moment.

    Attributes:
        topics: All topics.
        epochs: All epochs.
        epoch_file: ``epochFileCheckpoint``.
        groups: All groups.
        positions: Those of their queues; None leaves out groups and positions.
        delays: How far each delay level is delivered; None leaves that out.
        changes: Log offset after the last record that changed them.
        timestamp: Of the newest record, ms.
    """

    topics: tuple[Topic, ...]
    epochs: tuple[Epoch, ...]
    epoch_file: bytes
    groups: tuple[Group, ...]
    positions: tuple[Position, ...] | None
    delays: tuple[tuple[int, int], ...] | None
    changes: int
    timestamp: int

    @property
    def depends(self) -> object:
        """Equal where the files would be."""
        return self.topics, self.epochs, self.groups, self.changes, self.delays


class Exports:
    """Writes the files when the state that they depend on has changed."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._written: object = None

    def prepare(
        self,
        state: State,
        messaging: Messaging,
        log: CommitLog,
        *,
        waited: bool,
        checked: Iterable[Position] = (),
    ) -> Prepared | None:
        """Return what `write` needs; None when nothing has changed.

        ``checked`` are positions of RocketMQ's own groups (`storage.recovery.derived`).
        A store that never had a group leaves the files of groups alone: they may be RocketMQ's.
        Likewise the file of delay levels where no message ``waited`` for one.
        """
        known = state.groups or messaging.position
        positions = (
            *checked,
            *((one.topic, one.group, one.queue, one.low) for one in messaging.shares()),
        )
        found = Prepared(
            tuple(state.topics.values()), log.history.epochs, log.history.file(),
            tuple(state.groups.values()), positions if known else None,
            messaging.delays if waited else None, messaging.position, log.timestamp,
        )  # fmt: skip
        return found if found.depends != self._written else None

    def write(self, prepared: Prepared | None, op: str) -> None:
        """Write the files durably; may run in a worker thread.

        Only RocketMQ reads them: on a full disk they are left for a later call.
        """
        if prepared is None:
            return
        one = prepared
        topics = topics_json(one.topics, changes=len(one.topics), timestamp=one.timestamp)
        try:
            _replace(self._disk, TOPICS, topics, op + ".topics")
            self._disk.write_file(EPOCH_FILE, one.epoch_file, op + ".epochs")
            if one.positions is not None:
                files = group_files(
                    one.groups, one.positions, changes=one.changes, timestamp=one.timestamp
                )
                for path, data in files.items():
                    _replace(self._disk, path, data, op + ".groups")
            if one.delays is not None:
                data = delays_json(one.delays, changes=one.changes, timestamp=one.timestamp)
                _replace(self._disk, DELAYS, data, op + ".delays")
        except DiskFull:
            return
        self._written = one.depends
