"""``config/topics.json`` in RocketMQ's shape, so that a RocketMQ broker opens our store.

An export of the confirmed layer, written and never read by us. The older generation stays as
``topics.json.bak``, as RocketMQ keeps it. Strict JSON, which RocketMQ's reader accepts.

Not here: consumer offsets and groups (they come with their control records).
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from storage.disk import Disk
from storage.state import Topic
from twinlog.layout import SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META

DIRECTORY = "config"
TOPICS = "config/topics.json"
_READ, _READ_WRITE = 4, 6


def topics_json(topics: Iterable[Topic], *, changes: int, timestamp: int) -> bytes:
    """Return the file for ``topics`` and the store's own, which are read only."""
    table = {topic.name: _row(topic.name, topic.queues, _READ_WRITE) for topic in topics}
    for name in (SYSTEM_TOPIC_EPOCH, SYSTEM_TOPIC_META):
        table[name] = _row(name, 1, _READ)
    version = {"counter": changes, "stateVersion": 0, "timestamp": timestamp}
    whole = {"dataVersion": version, "topicConfigTable": table}
    return json.dumps(whole, indent="\t", sort_keys=True).encode() + b"\n"


def _row(name: str, queues: int, permission: int) -> dict[str, object]:
    return {
        "attributes": {},
        "order": False,
        "perm": permission,
        "readQueueNums": queues,
        "topicFilterType": "SINGLE_TAG",
        "topicName": name,
        "topicSysFlag": 0,
        "writeQueueNums": queues,
    }


def write_topics(disk: Disk, data: bytes, op: str) -> None:
    """Replace ``topics.json`` durably, keeping the generation before."""
    if disk.exists(TOPICS):
        old = disk.read(TOPICS, op + ".read")
        if old == data:
            return
        disk.write_file(TOPICS + ".bak", old, op + ".bak")
    disk.write_file(TOPICS, data, op)
