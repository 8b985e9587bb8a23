"""Files beside the log, its queues and its key index: can each be read, and which are not judged?

* The small files of a twinlog store without which a node does not start: identity, run, promise,
  checkpoint. The first is a map after its CRC-32C, the others are files of two slots.
* RocketMQ's epoch file and config files, with their backups.
* RocketMQ's compacted copies of topics: each unit points to a record of its topic, whole.

Snapshots, RocketMQ's checkpoint and the exports of a twinlog store are not judged: a start makes
them again. Units: bytes.

Not here: what the files say (`twinlog.store.marks`, `twinlog.store.rocketmq_config`,
`twinlog.store.compacted_queues`).
"""

from __future__ import annotations

from collections.abc import Iterator

from twinlog.errors import CorruptionError
from twinlog.format.record import decode
from twinlog.store.compacted_queues import CompactedQueue
from twinlog.store.damage import Grade
from twinlog.store.files import head_of, listed
from twinlog.store.marks import IDENTITY, identity_fields, newest_slot
from twinlog.store.reader import StoreReader
from twinlog.store.rocketmq_config import is_config
from twinlog.store.topics import queues_in_database
from twinlog.store.verify.extensions import FOLDER as EXTENSION
from twinlog.store.verify.extensions import UNJUDGED as BITMAPS
from twinlog.store.verify.findings import Finding, Judgement
from twinlog.store.verify.timers import CHECK
from twinlog.store.verify.timers import UNJUDGED as DELIVERED

SLOTS = {"run": 4096, "promise": 32 * 1024, "checkpoint": 4096}
"""Bytes of a slot of each file in ``twinlog`` that has two."""
_IDENTITY_MAX = 64 * 1024
"""Bytes of an identity; they are some hundred."""

_ANEW = "a start rebuilds it"
_ASIDE = "what was cut or replaced"
_FOREIGN = "not known as part of a store"
_ROCKETMQS = "only RocketMQ uses it"
_PLAIN = frozenset(
    {
        "abort", "abort.bak", "batchconsumequeue", "commitlog", "config", "consumequeue",
        "epochFileCheckpoint", "epochFileCheckpoint.bak", "index", "lock", "twinlog",
    }
)  # fmt: skip
"""Judged, or nothing to judge, in stores of both kinds."""
_OF_ROCKETMQ = {
    "brokerIdentity": "it is not part of the log",
    "checkpoint": "it says only how far back a start looks",
    "cut": _ASIDE,
    "kvStore": "a RocketMQ database",
}
_OF_OURS = {
    "checkpoint": _ANEW,
    "compaction": _ROCKETMQS,
    "config": _ANEW,
    "consumequeue_ext": _ROCKETMQS,
    "cut": _ASIDE,
    "epochFileCheckpoint": _ANEW,
    "epochFileCheckpoint.bak": _ANEW,
    "timerlog": _ROCKETMQS,
    "timerwheel": _ROCKETMQS,
    "twinlog/state": _ANEW,
}
_LOOKED_AT = frozenset({"compaction", EXTENSION, "timerlog", "timerwheel"})
"""Judged in RocketMQ's stores."""


def look_beside(store: StoreReader, judgement: Judgement) -> None:
    """Add a finding for each file that cannot be read as what it is."""
    found = _of_ours(store) if store.ours else _of_rocketmq(store)
    for name, position, text, readable in found:
        judgement.add(Finding(Grade.DAMAGE, name, position, None, 0, text, readable))


def _of_ours(store: StoreReader) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, byte, what, what can be read) for small files that stop a node."""
    folder = store.root / "twinlog"
    data = head_of(store.root / IDENTITY, _IDENTITY_MAX)
    if not data and (folder / "run").exists():
        yield "twinlog/identity", 0, "the file is missing: a node does not start here", "the log"
    if data and identity_fields(data) is None:
        yield "twinlog/identity", 0, "it does not match its CRC", "the log"
    for name, size in SLOTS.items():
        data = head_of(folder / name, 2 * size)
        if not data and (folder / "identity").exists():
            yield f"twinlog/{name}", 0, "the file is missing: a node may not start here", "the log"
        if any(data) and newest_slot(data, size) is None:
            yield f"twinlog/{name}", 0, "neither of its slots matches its CRC", "the log"


def _of_rocketmq(store: StoreReader) -> Iterator[tuple[str, int, str, str]]:
    """Yield the same for what RocketMQ writes beside its log."""
    for read in (store.epochs, store.config):
        try:
            read()
        except CorruptionError as error:
            name = str(error.facts.get("file", "config"))
            yield name, 0, error.text, "the log, the queues and the key index"
    for queue in store.compacted.values():
        text = _compacted(queue)
        if text:
            name = f"compaction/compactionLog/{queue.topic}/{queue.queue}"
            yield name, 0, text, "the records, through the log"


def _compacted(queue: CompactedQueue) -> str:
    """Return what is wrong with the first unit of a compacted copy that is not right."""
    for name in queue.unindexed():
        return f"nothing in compactionCq points into {name}"
    number = 0
    try:
        for data in queue.records():
            record = decode(data)
            if (record.topic, record.queue) != (queue.topic, queue.queue):
                return f"unit {number} points to a record of {record.topic}/{record.queue}"
            number += 1
    except CorruptionError as error:
        return f"unit {number}: {error.text}"
    return ""


def unchecked(store: StoreReader) -> Iterator[tuple[str, str]]:
    """Yield (path, why it was not judged), by path."""
    reasons = _OF_OURS if store.ours else _OF_ROCKETMQ
    plain = _PLAIN if store.ours else _PLAIN | _LOOKED_AT
    folders = {path.name for path in store.log_folders}
    for path, _, _ in listed(store.root):
        if reason := reasons.get(path.name):
            yield path.name, reason
        elif path.name not in plain and path.name not in folders:
            yield path.name, _FOREIGN
    database = not store.ours and queues_in_database(store.root)
    if database:
        yield "consumequeue", "a RocketMQ database; its entries are not compared with the log"
    for folder in ("consumequeue", "batchconsumequeue"):
        for path, _, why in listed(store.root / folder):
            if why != "a folder" and not (database and folder == "consumequeue"):
                yield f"{folder}/{path.name}", _FOREIGN
    if store.ours:
        if (store.root / "twinlog" / "state").is_dir():
            yield "twinlog/state", reasons["twinlog/state"]
        return
    for path, _, why in listed(store.root / "config"):
        if why == "a folder":
            yield f"config/{path.name}", "a RocketMQ database"
        elif not is_config(path.name):
            yield f"config/{path.name}", _FOREIGN
    if (store.root / CHECK).is_file():
        yield CHECK, DELIVERED
    if (store.root / EXTENSION).is_dir():
        yield EXTENSION, BITMAPS
