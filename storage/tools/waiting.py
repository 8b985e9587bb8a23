"""What waits in a directory: for a time, for the end of a transaction, for an acknowledgement.

Of a twinlog store it is the fold of the log, as a node's start makes it: the newest snapshot that
can be read, and what the log says after it. Of RocketMQ's it is what an adoption would take over
(`storage.tools.adopt_timers`, `storage.tools.adopt_groups`), and the halves that no record of
RocketMQ's settles. Nothing is written, and the store may be running: what is gone when it is read
was not waiting any more.

Not here: delay levels (`twinlog.store.delays`), showing it (``cli.log``).

Source: RocketMQ 5.3 (``TransactionalMessageServiceImpl``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import merge
from typing import NamedTuple, cast

from storage.messaging.fold import Messaging
from storage.messaging.share import LEASED, WAITING
from storage.recovery.snapshot import DIRECTORY, Snapshot, decode_snapshot
from storage.state.controls import decode_control
from storage.state.dispatcher import apply_record
from storage.tools.adopt_groups import POP_DATABASE, read_consumed
from storage.tools.adopt_timers import read_timed
from twinlog.errors import CorruptionError
from twinlog.format.record import UNIQUE_ID, Record
from twinlog.format.system_topics import (
    HALF_TOPIC,
    OP_TOPIC,
    SYSTEM_TOPIC_GROUP,
    SYSTEM_TOPIC_META,
    TIMER_TOPIC,
)
from twinlog.format.waiting.delay_levels import REAL_TOPIC
from twinlog.format.waiting.halves import GROUP, KEEP_MS, op_numbers
from twinlog.store.reader import StoreReader

_POSITION = f"{HALF_TOPIC}@CID_RMQ_SYS_TRANS"
_FOLDED = (SYSTEM_TOPIC_META, SYSTEM_TOPIC_GROUP, TIMER_TOPIC, HALF_TOPIC)


class Waiting(NamedTuple):
    """Messages of one kind that wait.

    Attributes:
        what: ``timer``, ``half`` or ``lease``.
        name: The topic that they will be delivered to, the producers that may end the transaction,
            or the group that has them.
        messages: How many; -1: that is in a database of RocketMQ, which twinlog does not read.
        next_ms: When the first one is due, is given up, or may be handed out again.
        last_ms: The same of the last one.
    """

    what: str
    name: str
    messages: int
    next_ms: int
    last_ms: int


def what_waits(store: StoreReader) -> list[Waiting]:
    """Return what waits in a directory, by kind and name.

    Raises:
        CorruptionError: A file of RocketMQ's and its backup are both damaged.
    """
    found: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for what, name, ms in _of_twinlog(store) if store.ours else _of_rocketmq(store):
        found[what, name].append(ms)
    order = {"timer": 0, "half": 1, "lease": 2}
    kinds = [
        Waiting(what, name, len(times), min(times), max(times))
        for (what, name), times in sorted(found.items(), key=lambda one: (order[one[0][0]], one[0]))
    ]
    unknown = not store.ours and any((store.root / POP_DATABASE).glob("*"))
    return [*kinds, Waiting("lease", POP_DATABASE, -1, 0, 0)] if unknown else kinds


Found = Iterator[tuple[str, str, int]]
"""(what, name, time) of each message."""


def _of_twinlog(store: StoreReader) -> Found:
    fold = folded(store)
    for one in fold.timers.after():
        record = store.record_at(one.at)
        if record is not None:
            yield "timer", record.properties.get(REAL_TOPIC, ""), one.due
    for half in fold.halves.open():
        yield "half", half.group, half.stored_ms + KEEP_MS
    for share in fold.shares():
        for run in share.runs:
            if run.state in (LEASED, WAITING):
                for _ in range(run.first, run.last + 1):
                    yield "lease", share.group, run.until


def folded(store: StoreReader) -> Messaging:
    """Return the fold of a twinlog store's log, up to its end."""
    snapshot = newest_snapshot(store)
    if snapshot is None:
        fold, start = Messaging(), max(store.start, store.adopted)
    else:
        fold, start = Messaging.restore(snapshot.messaging), snapshot.offset
    queues = [_offsets(store, topic, start) for topic in _FOLDED]
    for offset in merge(*queues):
        found = store.record_at(offset)
        if found is None:
            continue
        if found.topic == SYSTEM_TOPIC_META:
            change = decode_control(found.body)
            if change.dropped or change.deleted:
                end = offset + found.size
                fold.drop_all(change.dropped, change.deleted, offset, end)
        else:
            apply_record(fold, found)
    return fold


def _offsets(store: StoreReader, topic: str, start: int) -> list[int]:
    """Return the log offsets of a topic's records from one on; they lie in its queue 0."""
    queue = store.queue(topic, 0)
    if queue is None:
        return []
    return [entry.log_offset for entry in queue.entries() if entry.log_offset >= start]


def newest_snapshot(store: StoreReader) -> Snapshot | None:
    """Return the newest snapshot that can be read and is not beyond the log; None: none is."""
    folder = store.root / DIRECTORY
    for path in sorted(folder.glob("[0-9]*"), reverse=True):
        try:
            found = decode_snapshot(path.read_bytes())
        except (OSError, CorruptionError):  # a newer one has taken its place, or it is damaged
            continue
        if found.offset <= store.end:
            return found
    return None


def _of_rocketmq(store: StoreReader) -> Found:
    for row in read_timed(store).rows:
        record = store.record_at(row.offset)
        if record is not None:
            yield "timer", record.properties.get(REAL_TOPIC, ""), row.due
    for half in _halves(store):
        yield "half", half.properties.get(GROUP, ""), half.store_timestamp + KEEP_MS
    if any((store.root / POP_DATABASE).glob("*")):
        return
    for (group, _, _), offsets in read_consumed(store).flying:
        for _, until in offsets:
            yield "lease", group, until


def _halves(store: StoreReader) -> Iterable[Record]:
    """Return the halves that RocketMQ would ask its producers about.

    Its position passes what is settled or given up. A half that it has asked about lies in the log
    once more and is known by its unique key; the newest counts.
    """
    settled = set(_settled(store))
    positions = store.config().get("consumerOffset.json", {}).get("offsetTable")
    tables = cast("Mapping[str, Mapping[str, int]]", positions or {})
    first = tables.get(_POSITION, {}).get("0", 0)
    found: dict[str, Record] = {}
    for offset in _offsets(store, HALF_TOPIC, 0):
        record = store.record_at(offset)
        if record is not None and record.queue_offset >= first:
            name = record.properties.get(UNIQUE_ID, str(offset))
            found.pop(name, None)
            if record.queue_offset not in settled:
                found[name] = record
    return found.values()


def _settled(store: StoreReader) -> Iterable[int]:
    """Yield the queue offsets of halves that RocketMQ's records say are settled, or checked on."""
    for offset in _offsets(store, OP_TOPIC, 0):
        record = store.record_at(offset)
        if record is not None:
            yield from op_numbers(record.body)
