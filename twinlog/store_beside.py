"""What lies beside the log, its queues and its key index: can each file be read?

* The small files of a store of ours without which a node does not start: identity, run, promise,
  checkpoint. The first is a map behind its CRC-32C, the others are files of two slots.
* RocketMQ's epoch file and config files, with their backups.
* RocketMQ's compacted copies of topics: each unit leads to a record of its topic, whole.

Snapshots, RocketMQ's checkpoint and the exports of a store of ours are not judged: a start makes
them anew. Units: bytes.

Not here: what the files say (`store_marks`, `store_config`, `store_compacted`).
"""

from __future__ import annotations

from collections.abc import Iterator

from twinlog.errors import CorruptionError
from twinlog.kernels import crc32c
from twinlog.record import decode
from twinlog.store_compacted import CompactedQueue
from twinlog.store_files import head_of
from twinlog.store_findings import Finding, Grade, Verdict
from twinlog.store_marks import newest_slot
from twinlog.store_reader import StoreReader

SLOTS = {"run": 4096, "promise": 32 * 1024, "checkpoint": 4096}
"""Bytes of a slot of each file in ``twinlog`` that has two."""
_MOST = 64 * 1024
"""Bytes of an identity; they are some hundred."""


def look_beside(store: StoreReader, verdict: Verdict) -> None:
    """Add a finding for each file that cannot be read as what it is."""
    found = _of_ours(store) if store.ours else _of_rocketmq(store)
    for name, position, text, readable in found:
        verdict.add(Finding(Grade.DAMAGE, name, position, None, 0, text, readable))


def _of_ours(store: StoreReader) -> Iterator[tuple[str, int, str, str]]:
    """Yield (file, byte, what, what can be read) for small files that stop a node."""
    folder = store.root / "twinlog"
    data = head_of(folder / "identity", _MOST)
    if not data and (folder / "run").exists():
        yield "twinlog/identity", 0, "there is none: a node does not start here", "the log"
    if data and (len(data) < 5 or crc32c(data[4:]) != int.from_bytes(data[:4], "big")):
        yield "twinlog/identity", 0, "it does not match its CRC", "the log"
    for name, size in SLOTS.items():
        data = head_of(folder / name, 2 * size)
        if not data and (folder / "identity").exists():
            yield f"twinlog/{name}", 0, "there is none: a node may not start here", "the log"
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
        return f"nothing in compactionCq leads into {name}"
    number = 0
    try:
        for data in queue.records():
            record = decode(data)
            if (record.topic, record.queue) != (queue.topic, queue.queue):
                return f"unit {number} leads to a record of {record.topic}/{record.queue}"
            number += 1
    except CorruptionError as error:
        return f"unit {number}: {error.text}"
    return ""
