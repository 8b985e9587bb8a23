"""Finding single records in a store directory: by key, by place, by id, by time.

A key is looked up in the key index, which knows hashes; the record's own key or unique id decides.
Parts of the log that no index file covers are read for it.
An offset finds the record that holds that byte, wherever in it the byte is. RocketMQ's message id
is the store host and the log offset in hexadecimal digits; the producer's unique id is a key.

Units: log offsets in bytes, times in milliseconds. Nothing is written.

Not here: what the caller types (``cli.log.find``).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from twinlog import kernels
from twinlog.errors import CorruptionError, UsageError
from twinlog.format.light_queues import LIGHT_PREFIX, LIGHT_PROPERTY
from twinlog.format.record import Record, decode
from twinlog.store.damage import Damage
from twinlog.store.log import Run
from twinlog.store.queues import light_places
from twinlog.store.reader import StoreReader
from twinlog.store.rocketmq_config import topic_queues

HITS_LOOKED_AT = 1 << 16
"""Hits of one key in the index, at most: some may be of other keys, or point to damage."""
_HASH, _KEY = struct.Struct(">i"), struct.Struct(">iqq")
"""Of a key as `kernels.scan_keys` packs it: its hash; hash, log offset, store time."""
_ID_LENGTHS = (32, 56)
"""Digits of a message id: host of 8 or 20 bytes, and 8 for the offset."""


def by_key(store: StoreReader, topic: str, key: str) -> Iterator[Record]:
    """Yield the records of ``topic`` with the key or unique id ``key``, newest first.

    Raises:
        UsageError: An index file's capacity is unknown (code ``index-capacity``).
    """
    store.keys.refuse()
    yield from _with_key(store, topic, key, _not_entered(store, key, [topic])[topic])


def by_key_anywhere(store: StoreReader, key: str) -> Iterator[Record]:
    """Yield the records with the key or unique id ``key`` of every topic, topic by topic."""
    store.keys.refuse()
    topics = sorted({*store.topics(), *_topics_in_log(store)})
    beside = _not_entered(store, key, topics)
    for topic in topics:
        yield from _with_key(store, topic, key, beside[topic])


def _with_key(store: StoreReader, topic: str, key: str, beside: list[int]) -> Iterator[Record]:
    """Yield the records among the hits of the index, and those ``beside`` it, that have the key."""
    found = store.find_key(topic, key, most=HITS_LOOKED_AT)
    for offset in sorted({*found, *beside}, reverse=True):  # RocketMQ enters some twice
        record = store.record_at(offset)
        if record is not None and record.topic == topic and key in (*record.keys, record.unique_id):
            yield record


def _not_entered(store: StoreReader, key: str, topics: list[str]) -> dict[str, list[int]]:
    """Return, by topic, where records with the hash of a key are that no index file covers.

    A broker may have built no index for a time, or have lost a file of it.
    """
    found: dict[str, list[int]] = {topic: [] for topic in topics}
    hashes = {topic: _HASH.pack(kernels.key_hash(f"{topic}#{key}".encode())) for topic in topics}
    for low, high in _uncovered(store):
        for run in store.pieces(low, high):
            if not isinstance(run, Run):
                continue
            view, start = store.series.view(run.file), run.file.start
            keys = kernels.scan_keys(view, run.offset - start, run.end - start, run.offset)
            for topic, wanted in hashes.items():
                at = keys.find(wanted)
                while at >= 0:
                    if at % _KEY.size == 0:
                        found[topic].append(_KEY.unpack_from(keys, at)[1])
                    at = keys.find(wanted, at + 1)
    return found


def _uncovered(store: StoreReader) -> Iterator[tuple[int, int]]:
    """Yield the stretches of the log that are between what the index files say they cover."""
    at = store.start
    for first, last in sorted(
        (f.header.begin_offset, f.header.end_offset) for f in store.keys.files
    ):
        if first > at:
            yield at, first
        at = max(at, last)
    if at < store.end:
        yield at, store.end


def _topics_in_log(store: StoreReader) -> set[str]:
    """Return the topics of all records; some have no queue any more."""
    found: set[bytes] = set()
    for run in store.pieces():
        if isinstance(run, Run):
            view, start = store.series.view(run.file), run.file.start
            span = (view, run.offset - start, run.end - start, run.offset)
            found.update(name for name, *_ in kernels.gather_queues(*span))
    return {name.decode("utf-8", "replace") for name in found}


def by_offset(store: StoreReader, offset: int) -> Record | None:
    """Return the record that holds the byte at log offset ``offset``; None when none does."""
    for piece in store.pieces(offset, offset + 1, whole=True):
        if isinstance(piece, Run) and piece.offset <= offset < piece.end:
            starts = store.starts(piece)
            at = max(start for start in starts if start <= offset)
            return store.record_at(at)
    return None


def by_id(store: StoreReader, text: str) -> Record | None:
    """Return the record whose message id is ``text``; None without such a record.

    Raises:
        UsageError: The text is not a message id (code ``message-id``).
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) not in _ID_LENGTHS or not data:
        raise UsageError(
            f'"{text}" is not a message id: those have 32 hexadecimal digits, 56 with an IPv6 host',
            code="message-id",
            hint="look for a producer's own id with --unique-id",
        )
    record = store.record_at(int.from_bytes(data[-8:], "big"))
    return record if record is not None and record.message_id == text.upper() else None


def by_time(store: StoreReader, ms: int, topic: str | None = None) -> Record | None:
    """Return the first record that was stored at or after ``ms``; None when none was.

    Of the whole log, or of a topic, a light queue's too.
    """
    for piece in store.pieces():
        if isinstance(piece, Run) and store.last_timestamp(piece) >= ms:
            for record in store.decode_run(piece):
                if record.store_timestamp >= ms and belongs(record, topic):
                    return record
    return None


def belongs(record: Record, topic: str | None, queue: int | None = None) -> bool:
    """Whether a record is read from a topic, and from a queue of it; None stands for each.

    One that names light queues is read from them too.
    """
    if topic is not None and topic.startswith(LIGHT_PREFIX):
        return queue in (None, 0) and any(name == topic for name, _ in light_places(record))
    return topic in (None, record.topic) and queue in (None, record.queue)


def by_queue_time(store: StoreReader, topic: str, queue: int, ms: int) -> Record | None:
    """Return the first record of a queue stored at or after ``ms``, from RocketMQ's search on.

    In a batch queue that search may end before it.
    """
    found = store.queue(topic, queue)
    if found is None:
        return None
    for entry in found.entries(store.offset_by_time(topic, queue, ms)):
        record = store.record_at(entry.log_offset)
        if record is not None and record.store_timestamp >= ms:
            return record
    return None


def unread_before(store: StoreReader, offset: int, ms: int) -> int:
    """Return how many bytes before log offset ``offset`` may hold a record of ``ms`` or later.

    They cannot be read, and nothing older than ``ms`` is after them: store times rise.
    """
    unread = 0
    for piece in store.pieces(0, offset):
        if isinstance(piece, Run):
            first = store.record_at(piece.offset)
            if first is not None and first.store_timestamp < ms:
                unread = 0
        elif isinstance(piece, Damage) and piece.hides:
            unread += piece.length
    return unread


def places(store: StoreReader) -> set[tuple[str, int]]:
    """Return (topic, queue) of everything that has a queue, or one set up in ``topics.json``.

    Those whose queue is lost while the log has their records: `places_in_log`.
    """
    found = {(queue.topic, queue.queue) for queue in store.queues()}
    found.update(store.compacted)
    try:
        named = topic_queues(store.config())
    except CorruptionError:  # `log verify` says so; the queues are what is left to go by
        return found
    return found.union((name, number) for name, count in named.items() for number in range(count))


def places_in_log(store: StoreReader) -> set[tuple[str, int]]:
    """Return (topic, queue) of every record of the log, light queues too; reads all of it."""
    found: set[tuple[str, int]] = set()
    for run in store.pieces():
        if not isinstance(run, Run):
            continue
        view = store.series.view(run.file)
        at, end = run.offset - run.file.start, run.end - run.file.start
        for name, number, _, _ in kernels.gather_queues(view, at, end, run.offset):
            found.add((name.decode("utf-8", "replace"), number))
        for where, _ in kernels.find_property(view, at, end, LIGHT_PROPERTY):
            try:
                record = decode(view, where, check_crc=False)
            except CorruptionError:  # a batch whose CRC was forged
                continue
            found.update((name, 0) for name, _ in light_places(record, store.batch_topics))
    return found
