"""What tests of the store need: sections, stores on a fake disk, a master and a slave side by side.

Not here: the histories that are crashed (`tests.stores.histories`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
from storage.errors import DiskError
from storage.key_index.search import Found, KeyQuery
from storage.log.segments import covered
from storage.state.sequences import sequence_text
from tests.fakes.disk import FakeDisk
from twinlog.errors import CorruptionError
from twinlog.format.batch_index import KIND_FILLER
from twinlog.format.key_index import INDEX_CELL, IndexHeader
from twinlog.format.record import Record, RecordEncoder, decode, encode_properties
from twinlog.kernels import key_hash
from twinlog.producer.new_message import light_text

SETTINGS = StoreSettings(
    segment_size=16 * 1024, queue_segment_entries=40, index_slots=7, index_cells=30
)
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
    key: str = "",
    light: Sequence[str] = (),
    mark: int = 0,
) -> Section:
    """A section of ``count`` records, idempotent when it has a producer.

    With ``key`` each record has that key and ``key-number``, and the first a unique one as well.
    """
    made = Section(topic, queue, count, b"", producer, 0, sequence)
    encoder = RecordEncoder(topic, queue)
    for number in range(count):
        properties = {"TAGS": tag} if tag else {}
        if key:
            properties["KEYS"] = f"{key} {key}-{number}"
            properties |= {"UNIQ_KEY": f"U{key}"} if number == 0 else {}
        if producer and number == 0:
            properties["TL_SEQ"] = sequence_text(made).decode()
        body = f"{mark}/{number}/".encode().ljust(size, b".")
        text = encode_properties(properties) + (light_text(light) if light else b"")
        encoder.add(body, properties=text, born_timestamp=1)
    return Section(topic, queue, count, encoder.take(), producer, 0, sequence)


def run(store: Store, job: Job | None) -> None:
    """Run a job as a worker would and hand it back."""
    if job is None:
        return
    try:
        job.run()
    except DiskError:  # and not SimulatedCrash: a dead process finishes nothing
        store.jobs.finish(job)
        raise
    store.jobs.finish(job)


def open_store(
    disk: FakeDisk, *, who: Who = WHO, settings: StoreSettings = SETTINGS, wall_ms: int = 1000
) -> Store:
    """Open a store."""
    return Store.open(disk, settings, who, wall_ms=wall_ms)


def master(disk: FakeDisk, *, epoch: int = 1, settings: StoreSettings = SETTINGS) -> Store:
    """A store whose master has opened ``epoch``, with a confirmed topic of four queues."""
    store = open_store(disk, settings=settings)
    lead(store, epoch=epoch)
    if TOPIC not in store.reads.topics():
        result = store.append_control(token(epoch), CreateTopic(TOPIC, 4, 1), wall_ms=1000)
        assert result.outcome is Outcome.STORED
        store.commit()
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
    at, end = store.reads.queue_range(topic, queue)
    while at < end:
        answer = store.reads.read(topic, queue, at, max_bytes=4000, max_records=100)
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


def at_time(store: Store, topic: str, queue: int, ms: int, *, upper: bool = False) -> int:
    """The queue offset of a time, looked up as a node does."""
    look = store.reads.offsets_at_time(topic, [queue], ms, upper=upper)
    [(start, end, at)] = store.reads.looked_at(look, look.run(lambda: False))
    assert (start, end) == store.reads.queue_range(topic, queue)
    return at


def queue_files(disk: FakeDisk) -> dict[str, bytes]:
    """Every consume queue file, by path."""
    return {
        path: disk.read(path, "test")
        for topic in disk.list("consumequeue")
        for queue in disk.list(f"consumequeue/{topic}")
        for name in disk.list(f"consumequeue/{topic}/{queue}")
        for path in [f"consumequeue/{topic}/{queue}/{name}"]
    }


def examine_queues(disk: FakeDisk, store: Store) -> None:
    """Behind the end of each queue its files hold zeros, whatever wrote there before."""
    topics = [name for name in disk.list("consumequeue") if disk.list(f"consumequeue/{name}")]
    for topic in topics:
        for queue in disk.list(f"consumequeue/{topic}"):
            end = store.reads.queue_range(topic, int(queue))[1] * 20
            for name in disk.list(f"consumequeue/{topic}/{queue}"):
                path = f"consumequeue/{topic}/{queue}/{name}"
                assert int(name) < end, path
                assert not any(disk.read(path, "test")[end - int(name) :]), path


def index_files(disk: FakeDisk) -> list[bytes]:
    """The files of the key index, oldest first; names are creation times and do not count."""
    return [disk.read(f"index/{name}", "test") for name in disk.list("index")]


def keys_of(found: Record) -> list[str]:
    """The keys of a record in RocketMQ's order."""
    return [*([found.unique_id] if found.unique_id else []), *found.keys]


def rocketmq_index(found: Iterable[Record], *, slots: int = 7, cells: int = 30) -> list[bytes]:
    """What RocketMQ's index files hold when it enters these records, one key after the other."""
    files: list[bytearray] = []
    for one in found:
        for key in keys_of(one):
            if not files or int.from_bytes(files[-1][36:40], "big") >= cells:
                files.append(_index_file(files[-1] if files else None, slots, cells))
            _put_key(files[-1], key_hash(f"{one.topic}#{key}".encode()), one, slots)
    return [bytes(file) for file in files]


def _index_file(before: bytearray | None, slots: int, cells: int) -> bytearray:
    made = bytearray(40 + 4 * slots + 20 * cells)
    head = IndexHeader.unpack(before) if before is not None else IndexHeader(0, 0, 0, 0, 0, 1)
    stamp, offset = head.end_timestamp, head.end_offset
    made[:40] = IndexHeader(stamp, stamp, offset, offset, 0, 1).pack()
    return made


def _put_key(file: bytearray, hashed: int, one: Record, slots: int) -> None:
    head = IndexHeader.unpack(file)
    slot = 40 + 4 * (hashed % slots)
    before = int.from_bytes(file[slot : slot + 4], "big")
    seconds = max(one.store_timestamp - head.begin_timestamp, 0) // 1000
    seconds = seconds if head.begin_timestamp > 0 else 0
    at = 40 + 4 * slots + 20 * head.next_cell
    file[at : at + 20] = INDEX_CELL.pack(hashed, one.log_offset, seconds, before)
    file[slot : slot + 4] = head.next_cell.to_bytes(4, "big")
    first = head.next_cell <= 1
    file[:40] = IndexHeader(
        one.store_timestamp if first else head.begin_timestamp, one.store_timestamp,
        one.log_offset if first else head.begin_offset, one.log_offset,
        head.slots_used + (before == 0), head.next_cell + 1,
    ).pack()  # fmt: skip


def covered_views(store: Store, end: int) -> Iterator[tuple[int, memoryview]]:
    """Yield (log offset, bytes) of every batch that ends at or below ``end``."""
    for entry in store.entries(store.start, max_bytes=1 << 40):
        if entry.kind != KIND_FILLER and entry.end <= end:
            yield entry.start, store.view(entry.start, entry.start + covered(entry))


def log_records(store: Store) -> list[Record]:
    """All records of the log below confirm, in log order."""
    found: list[Record] = []
    for entry in store.entries(store.start, max_bytes=1 << 40):
        view, at = store.view(entry.start, entry.start + covered(entry)), 0
        while entry.kind != KIND_FILLER and entry.end <= store.confirm and at < len(view):
            found.append(decode(view, at))
            at += found[-1].size
    return found


def find_key(store: Store, query: KeyQuery) -> Found:
    """Search as a node does, without its thread; raises what came of it."""
    lookup, error = store.reads.look_up(query), None
    try:
        lookup.run()
    except CorruptionError as damaged:
        error = damaged
    store.reads.looked_up(lookup, error)
    return lookup.found


def examine_index(store: Store) -> None:
    """Every confirmed record is found by each of its keys, and nothing else is."""
    if not store.reads.topics():
        return
    records = [one for one in log_records(store) if one.topic == TOPIC]
    for key in ("k0", "k1", "k2-1", "Uk2", "none"):
        want = [one.log_offset for one in reversed(records) if key in keys_of(one)]
        answer = find_key(store, KeyQuery(TOPIC, key, most=1000))
        assert answer.complete
        assert [decode(view).log_offset for view in answer.slices] == want, key
    assert store.reads.index_notes() == [], "a crash damages nothing"


def flip(disk: FakeDisk, path: str, offset: int) -> None:
    """Turn one bit of a file over, behind the store's back."""
    byte = disk.read_at(path, offset, 1, "test")
    disk.write_at(path, offset, bytes([byte[0] ^ 0x10]), "test")


def examine_light(store: Store, names: Sequence[str]) -> None:
    """Light queues hold the records that name them, each at the offset that it says."""
    wanted: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
    for found in log_records(store):
        if found.log_offset >= store.dispatched or "INNER_MULTI_DISPATCH" not in found.properties:
            continue
        offsets = found.properties["INNER_MULTI_QUEUE_OFFSET"].split(",")
        for name, offset in zip(
            found.properties["INNER_MULTI_DISPATCH"].split(","), offsets, strict=True
        ):
            wanted[name].append((int(offset), found.log_offset))
    for name, places in wanted.items():
        assert [number for number, _ in places] == list(range(*store.reads.queue_range(name, 0))), (
            name
        )
        for number, log_offset in places:
            answer = store.reads.read(name, 0, number, max_bytes=1, max_records=1)
            assert decode(answer.slices[0]).log_offset == log_offset
