"""Finding single records in a store directory: by key, by place, by id, by time.

A key is looked up in the key index, which knows hashes; the record's own key or unique id decides.
An offset finds the record that holds that byte, wherever in it the byte lies. RocketMQ's message id
is the store host and the log offset in hexadecimal digits; the producer's unique id is a key.

Units: log offsets in bytes, times in milliseconds. Nothing is written.

Not here: what the caller types (``cli.log_find``).
"""

from __future__ import annotations

from collections.abc import Iterator

from twinlog import kernels
from twinlog.errors import CorruptionError, UsageError
from twinlog.layout import LIGHT_PREFIX, LIGHT_PROPERTY
from twinlog.record import Record, decode
from twinlog.store_config import topic_queues
from twinlog.store_log import Run
from twinlog.store_queues import light_places
from twinlog.store_reader import StoreReader

HITS_LOOKED_AT = 1 << 16
"""Hits of one key in the index, at most: some may be of other keys, or lead into damage."""
_ID_LENGTHS = (32, 56)
"""Digits of a message id: host of 8 or 20 bytes, and 8 for the offset."""


def by_key(store: StoreReader, topic: str, key: str) -> Iterator[Record]:
    """Yield the records of ``topic`` with the key or unique id ``key``, newest first.

    Raises:
        UsageError: An index file's capacity cannot be told (code ``index-capacity``).
    """
    store.keys.refuse()
    found = store.find_key(topic, key, most=HITS_LOOKED_AT)
    for offset in dict.fromkeys(found):  # RocketMQ enters some twice
        record = store.record_at(offset)
        if record is not None and record.topic == topic and key in (*record.keys, record.unique_id):
            yield record


def by_key_anywhere(store: StoreReader, key: str) -> Iterator[Record]:
    """Yield the records with the key or unique id ``key`` of every topic, topic by topic."""
    for topic in sorted(store.topics()):
        yield from by_key(store, topic, key)


def by_offset(store: StoreReader, offset: int) -> Record | None:
    """Return the record that holds the byte at log offset ``offset``; None when none does."""
    for piece in store.pieces(offset, offset + 1, whole=True):
        if isinstance(piece, Run) and piece.offset <= offset < piece.end:
            starts = store.starts(piece)
            at = max(start for start in starts if start <= offset)
            return store.record_at(at)
    return None


def by_id(store: StoreReader, text: str) -> Record | None:
    """Return the record that RocketMQ calls ``text``; None when there is none of that id.

    Raises:
        UsageError: The text is no message id (code ``message-id``).
    """
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(text) not in _ID_LENGTHS or not data:
        raise UsageError(
            f'"{text}" is no message id: it has 32 hexadecimal digits, 56 with an IPv6 host',
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
            except CorruptionError:  # a batch whose CRC somebody made for it
                continue
            found.update((name, 0) for name, _ in light_places(record))
    return found
