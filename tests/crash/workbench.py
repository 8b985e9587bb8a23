"""What tests of the store need: sections, stores on a fake disk, a master and a slave side by side.

Not here: the histories that are crashed (`tests.crash.test_every_operation`).
"""

from __future__ import annotations

from storage import (
    CreateTopic,
    Job,
    Outcome,
    Section,
    SectionResult,
    Store,
    StoreSettings,
    Token,
    Who,
)
from storage.sections import sequence_text
from storage.segments import covered
from tests.fakes.disk import FakeDisk
from twinlog.record import RecordEncoder, decode, encode_properties

SETTINGS = StoreSettings(segment_size=16 * 1024, queue_segment_entries=40)
WHO = Who("cluster", "g1", "n1")
MASTER = Token("master", 1, 1)
SLAVE = Token("slave", 1, 1)
TOPIC = "flights"


def section(
    count: int = 3,
    *,
    topic: str = TOPIC,
    queue: int = 0,
    size: int = 50,
    producer: int = 0,
    sequence: int = 0,
    tag: str = "",
    mark: int = 0,
) -> Section:
    """A section of ``count`` records, idempotent when it has a producer."""
    made = Section(topic, queue, count, b"", producer, 0, sequence)
    encoder = RecordEncoder(topic, queue)
    for number in range(count):
        properties = {"TAGS": tag} if tag else {}
        if producer and number == 0:
            properties["TL_SEQ"] = sequence_text(made).decode()
        body = f"{mark}/{number}/".encode().ljust(size, b".")
        encoder.add(body, properties=encode_properties(properties), born_timestamp=1)
    return Section(topic, queue, count, encoder.take(), producer, 0, sequence)


def run(store: Store, job: Job | None) -> None:
    """Run a job as a worker would and hand it back."""
    if job is not None:
        try:
            job.run()
        finally:
            store.finish(job)


def open_store(
    disk: FakeDisk, *, who: Who = WHO, settings: StoreSettings = SETTINGS, wall_ms: int = 1000
) -> Store:
    """Open a store."""
    return Store.open(disk, settings, who, wall_ms=wall_ms)


def master(disk: FakeDisk, *, epoch: int = 1, settings: StoreSettings = SETTINGS) -> Store:
    """A store whose master has opened ``epoch``, with a confirmed topic of four queues."""
    store = open_store(disk, settings=settings)
    lead(store, epoch=epoch)
    if TOPIC not in store.topics():
        result = store.append_control(token(epoch), CreateTopic(TOPIC, 4, 1), wall_ms=1000)
        assert result.outcome is Outcome.STORED
        settle(store)
    return store


def token(epoch: int) -> Token:
    """The master's token of an epoch."""
    return Token("master", epoch, epoch)


def lead(store: Store, *, epoch: int) -> None:
    """Make the store the master of ``epoch``."""
    store.take_token(token(epoch))
    store.append_epoch(
        token(epoch), epoch=epoch, node="n1", session=epoch, wall_ms=1000, reason="test", by="test"
    )


def settle(store: Store) -> None:
    """Confirm and dispatch everything."""
    store.set_confirm(store.end)
    while store.dispatch(1 << 20):
        pass


def append(store: Store, *sections: Section, epoch: int = 1) -> list[SectionResult]:
    """Append as the master of ``epoch``."""
    return store.append(token(epoch), sections, wall_ms=2000)


def fill(store: Store, sections: int, *, epoch: int = 1, records: int = 10) -> None:
    """Append sections, one batch each, over all queues; roughly 1.6 KB per section of ten."""
    for number in range(sections):
        results = append(store, section(records, queue=number % 4, mark=number), epoch=epoch)
        assert results[0].outcome is Outcome.STORED, results


def ship(source: Store, target: Store, writer: Token, *, most: int = 8192) -> None:
    """Send everything the target lacks, as replication would."""
    while target.end < source.end:
        entries = source.entries(target.end, max_bytes=most)
        payload = b"".join(
            bytes(source.view(entry.start, entry.start + covered(entry))) for entry in entries
        )
        target.receive(writer, entries, memoryview(payload))


def bodies(store: Store, queue: int = 0, topic: str = TOPIC) -> list[bytes]:
    """All confirmed bodies of a queue."""
    found: list[bytes] = []
    at, end = store.queue_range(topic, queue)
    while at < end:
        answer = store.read(topic, queue, at, max_bytes=4000, max_records=100)
        for view in answer.slices:
            offset = 0
            while offset < len(view):
                record = decode(view, offset)
                assert record.queue_offset == at, (record.queue_offset, at)
                found.append(record.body)
                offset += record.size
                at += 1
        assert at == answer.next
    return found


def queue_files(disk: FakeDisk) -> dict[str, bytes]:
    """Every consume queue file, by path."""
    return {
        path: disk.read(path, "test")
        for topic in disk.list("consumequeue")
        for queue in disk.list(f"consumequeue/{topic}")
        for name in disk.list(f"consumequeue/{topic}/{queue}")
        for path in [f"consumequeue/{topic}/{queue}/{name}"]
    }


def flip(disk: FakeDisk, path: str, offset: int) -> None:
    """Turn one bit of a file over, behind the store's back."""
    byte = disk.read_at(path, offset, 1, "test")
    disk.write_at(path, offset, bytes([byte[0] ^ 0x10]), "test")
