"""A master's appends: what is stored, numbered, refused, repeated."""

from __future__ import annotations

import pytest

from storage import CreateTopic, Outcome, ReadStatus, Section, StoreSettings
from storage.errors import StaleToken
from storage.log import batch_index
from tests.fakes.disk import FakeDisk
from tests.fakes.files import FakeMapping
from tests.stores.workbench import (
    TOPIC,
    append,
    bodies,
    fill,
    lead,
    master,
    open_store,
    run,
    section,
    settle,
    token,
)
from twinlog.format.batch_index import KIND_EPOCH, KIND_FILLER, KIND_RECORDS
from twinlog.format.record import decode
from twinlog.kernels.fields import Buffer


def test_records_are_numbered_and_stamped_in_place() -> None:
    """Log offset, queue offset, store time and host of each record are the store's."""
    store = master(FakeDisk())
    first = store.end
    results = append(store, section(3, queue=2), section(2, queue=2))
    assert [(one.queue_offset, one.outcome) for one in results] == [
        (0, Outcome.STORED),
        (3, Outcome.STORED),
    ]
    at = first
    for number in range(5):
        record = decode(store.view(at, store.end))
        assert (record.log_offset, record.queue_offset, record.queue) == (at, number, 2)
        assert (record.store_timestamp, record.store_host) == (2000, "127.0.0.1:0")
        at += record.size
    assert at == store.end == results[1].end


def test_sections_of_one_turn_are_one_batch() -> None:
    """Up to the batch limit; a larger section is a batch of its own and is never divided."""
    store = master(FakeDisk(), settings=StoreSettings(segment_size=64 * 1024, batch_size_max=4096))
    before = store.end
    append(store, section(5), section(5, queue=1), section(40, size=100), section(1))
    lengths = [(one.count, one.kind) for one in store.entries(before, max_bytes=1 << 20)]
    assert lengths == [(10, KIND_RECORDS), (40, KIND_RECORDS), (1, KIND_RECORDS)]


def test_what_was_written_last_is_what_the_index_holds() -> None:
    """The entries kept as objects, and those read back, are the same; a cut forgets them."""
    store = master(FakeDisk(), settings=StoreSettings(segment_size=64 * 1024, batch_size_max=4096))
    segments = store._log.segments  # pyright: ignore[reportPrivateUsage]
    before = store.end
    append(store, section(5), section(40, size=100))
    kept = store.entries(before, max_bytes=1 << 20)
    assert kept == list(segments.newest)
    assert store.entries(before, max_bytes=1) == kept[:1]
    segments.newest = ()
    assert store.entries(before, max_bytes=1 << 20) == kept
    append(store, section(1), section(1))
    assert [one.start for one in segments.newest] == [kept[-1].end]
    assert store.lone_batch(kept[-1].end) is None, "only of a batch written by itself"
    alone = store.end
    append(store, section(1))
    packed, view = store.lone_batch(alone) or (b"", memoryview(b""))
    assert packed == store.entries(alone, max_bytes=1)[0].pack()
    assert view == store.view(alone, store.end)
    assert store.lone_batch(alone - 1) is None
    run(store, store.cut_job(token(1), before))
    assert store.entries(0, max_bytes=1 << 20)[-1].end == before
    assert store.lone_batch(alone) is None


def test_every_file_begins_with_an_epoch_record_and_ends_with_a_filler() -> None:
    """And the epoch record carries the chain of the file before."""
    store = master(FakeDisk())
    fill(store, 40)
    size = store.settings.segment_size
    assert store.end > 2 * size
    for base in range(0, store.end, size):
        entries = store.entries(base, max_bytes=1 << 20, end=min(base + size, store.end))
        assert entries[0].kind == KIND_EPOCH
        if base + size < store.end:
            assert entries[-1].kind == KIND_FILLER
            assert entries[-1].end == base + size
    assert [one.epoch for one in store.epochs] == [1]


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (section(topic="nothing"), "unknown-topic"),
        (section(queue=4), "unknown-queue"),
        (section(topic="rmq_sys_TWINLOG_META"), "topic"),
        (Section(TOPIC, 0, 2, section(3).data), "count"),
        (Section(TOPIC, 1, 3, section(3).data), "queue"),
        (Section(TOPIC, 0, 3, bytes(section(3).data)[:-1]), "size"),
        (Section(TOPIC, 0, 3, section(3, producer=5).data), "sequence"),
        (Section(TOPIC, 0, 3, section(3).data, producer=5), "sequence"),
        (section(1, size=20_000), "too-large"),
        (Section(TOPIC, 0, 0, b""), "count"),
    ],
)
def test_a_bad_section_is_refused_alone(made: Section, code: str) -> None:
    """Nothing of it is in the log; the sections around it are."""
    store = master(FakeDisk())
    good, bad, also = append(store, section(2), made, section(2))
    assert (bad.outcome, bad.code) == (Outcome.REFUSED, code)
    assert bad.text
    assert (good.queue_offset, also.queue_offset) == (0, 2)
    settle(store)
    assert len(bodies(store)) == 4


def test_a_bad_record_is_named() -> None:
    """A flipped bit in the third body refuses the section with record 2 and "crc"."""
    store = master(FakeDisk())
    data = bytearray(section(3).data)
    data[-60] ^= 1
    result = append(store, Section(TOPIC, 0, 3, data))[0]
    assert (result.code, result.record) == ("crc", 2)


def test_a_repeated_section_is_stored_once() -> None:
    """The answer of a duplicate is the original's place."""
    store = master(FakeDisk())
    results = [append(store, section(3, producer=9, sequence=3 * n, mark=n))[0] for n in range(8)]
    again = append(store, section(3, producer=9, sequence=21, mark=7))[0]
    assert (again.outcome, again.queue_offset, again.end) == (
        Outcome.DUPLICATE,
        results[7].queue_offset,
        results[7].end,
    )
    old = append(store, section(3, producer=9, sequence=0))[0]
    assert (old.outcome, old.queue_offset) == (Outcome.DUPLICATE, -1)
    assert results[0].end <= old.end == results[3].log_offset  # it is answered when confirmed
    other = append(store, section(3, producer=9, sequence=21, size=60))[0]
    assert other.code == "sequence-reused"
    gap = append(store, section(3, producer=9, sequence=30))[0]
    assert gap.code == "out-of-sequence"


def test_two_in_one_turn_are_in_order() -> None:
    """The second section of a turn is judged after the first, and so is a repetition."""
    store = master(FakeDisk())
    first, second, third = append(
        store,
        section(3, producer=9, sequence=0),
        section(3, producer=9, sequence=3),
        section(3, producer=9, sequence=3),
    )
    assert (first.outcome, second.outcome) == (Outcome.STORED, Outcome.STORED)
    assert (third.outcome, third.end) == (Outcome.DUPLICATE, second.end)


def test_a_topic_binds_from_its_confirm() -> None:
    """Before, sections are to come again later; a second creation is a duplicate, same end."""
    store = open_store(FakeDisk())
    lead(store, epoch=1)
    made = store.append_control(token(1), CreateTopic("t", 2, 5), wall_ms=1)
    again = store.append_control(token(1), CreateTopic("t", 2, 9), wall_ms=1)
    assert (again.outcome, again.end) == (Outcome.DUPLICATE, made.end)
    assert store.append_control(token(1), CreateTopic("t", 3, 9), wall_ms=1).code == "topic-exists"
    assert append(store, section(topic="t"))[0].code == "busy"
    assert store.reads.topics() == {}
    store.set_confirm(made.end)
    assert store.reads.topics() == {"t": 2}
    assert append(store, section(topic="t"))[0].outcome is Outcome.STORED


def test_an_old_token_writes_nothing() -> None:
    """Role, epoch and session must all be the present ones."""
    store = master(FakeDisk())
    end = store.end
    store.take_token(token(2))
    with pytest.raises(StaleToken):
        append(store, section())
    with pytest.raises(StaleToken):
        store.append_control(token(1), CreateTopic("x", 1, 1), wall_ms=1)
    store.drop_token()
    with pytest.raises(StaleToken):
        append(store, section(), epoch=2)
    assert store.end == end


def test_readers_stop_at_confirm() -> None:
    """An unconfirmed record is not there; an offset beyond it is retryable, not wrong."""
    store = master(FakeDisk())
    append(store, section(3))
    assert store.reads.read(TOPIC, 0, 0, max_bytes=99, max_records=9).status is ReadStatus.NONE
    assert (
        store.reads.read(TOPIC, 0, 2, max_bytes=99, max_records=9).status
        is ReadStatus.ABOVE_CONFIRM
    )
    settle(store)
    assert store.reads.read(TOPIC, 0, 2, max_bytes=99, max_records=9).count == 1
    assert store.reads.read(TOPIC, 0, 9, max_bytes=99, max_records=9).status is ReadStatus.PAST_END
    assert (
        store.reads.read(TOPIC, 9, 0, max_bytes=9, max_records=9).status is ReadStatus.UNKNOWN_QUEUE
    )
    assert (
        store.reads.read("no", 0, 0, max_bytes=9, max_records=9).status is ReadStatus.UNKNOWN_TOPIC
    )


def test_a_full_disk_refuses_and_resumes() -> None:
    """Nothing half stored; reads go on; sequences and numbers continue when there is space."""
    disk = FakeDisk()
    store = master(disk)
    append(store, section(3, producer=9))
    settle(store)
    disk.faults.full = True
    sent = 3
    results = append(store, section(3, producer=9, sequence=sent), section(50, size=60))
    while not results[0].code:  # what was allocated ahead is used up first
        sent += 3
        results = append(store, section(3, producer=9, sequence=sent), section(50, size=60))
    assert [one.code for one in results] == ["disk-full", "disk-full"]
    assert store.disk_full
    if store.end % 16384:
        assert not any(store.view(store.end, -(-store.end // 16384) * 16384))
    store.set_confirm(store.end)
    while store.dispatch(1 << 20):
        pass
    assert store.reads.read(TOPIC, 0, 0, max_bytes=9999, max_records=9).status is ReadStatus.FOUND
    disk.faults.full = False
    results = append(store, section(3, producer=9, sequence=sent))
    assert results[0].outcome is Outcome.STORED
    settle(store)
    assert store.reads.queue_range(TOPIC, 0)[1] == results[0].queue_offset + 3
    assert len(bodies(store)) == results[0].queue_offset + 3


def test_a_repetition_of_what_a_full_disk_takes_back_is_refused_too() -> None:
    """Both arrived in one turn; to call the second one stored would lose it."""
    disk = FakeDisk()
    store = master(disk)
    disk.faults.fail("log.append", after=0, error=28)
    twice = section(2, producer=9, sequence=0), section(2, producer=9, sequence=0)
    assert [one.code for one in append(store, *twice)] == ["disk-full", "disk-full"]
    again = [one.outcome for one in append(store, *twice)]
    assert again == [Outcome.STORED, Outcome.DUPLICATE]


def test_a_full_disk_at_a_file_border_resumes() -> None:
    """Whether filler, file or epoch record met it: the next file begins as it must."""
    for after in range(12):
        disk = FakeDisk()
        store = master(disk)
        fill(store, 8)
        disk.faults.fail("log.", after=after, error=28)
        made = [append(store, section(10, queue=n % 4, mark=n))[0] for n in range(12)]
        assert [one.code for one in made if one.code] == ["disk-full"], after
        settle(store)
        assert store.damage is None
        stored = [one for one in made if one.outcome is Outcome.STORED]
        assert sum(len(bodies(store, queue)) for queue in range(4)) == 80 + 10 * len(stored)
        base = store.settings.segment_size
        assert store.entries(base, max_bytes=1)[0].kind == KIND_EPOCH


def test_the_next_file_is_made_ahead() -> None:
    """A prepared file is taken at the border; the one after is asked for half a file later."""
    disk = FakeDisk()
    store = master(disk)
    assert store.jobs.prepare_job() is None
    fill(store, 6)
    run(store, store.jobs.prepare_job())
    assert store.jobs.prepare_job() is None
    disk.faults.recording = True
    fill(store, 6)
    assert "log.roll.create" not in [op for op, _ in disk.faults.record]
    assert store.end > store.settings.segment_size


def test_the_file_after_one_that_fills_up_soon_is_made_at_once() -> None:
    """Half of a small file is too late where it fills up in a moment and the disk is busy."""
    store = master(FakeDisk(), settings=StoreSettings(segment_size=4 * 1024 * 1024))
    fill(store, 1)
    assert store.jobs.prepare_job() is None
    while store.end <= 1024 * 1024:
        append(store, section(100, size=1000))
    run(store, store.jobs.prepare_job())
    assert store._log._ahead is not None


def test_a_file_made_ahead_too_late_goes() -> None:
    """The log made its own file meanwhile; the prepared one is removed and nothing is mixed up."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 6)
    job = store.jobs.prepare_job()
    assert job is not None
    fill(store, 6)
    job.run()
    store.jobs.finish(job)
    assert not disk.exists("twinlog/ahead.log")
    settle(store)
    assert sum(len(bodies(store, queue)) for queue in range(4)) == 120


def test_pages_are_touched_a_little_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a window before the writer arrives, once each, never behind it or beyond the file."""
    touched: list[tuple[int, int]] = []
    monkeypatch.setattr(FakeMapping, "touch", lambda self, start, end: touched.append((start, end)))
    size = 8 << 20
    store = master(FakeDisk(), settings=StoreSettings(segment_size=size, flush="sync"))
    opened = store.end
    run(store, store.jobs.prepare_job())
    while store.end < size * 3 // 2:
        append(store, section(200, size=4000))
        run(store, store.jobs.prepare_job())
    assert touched[0] == (opened, opened + (2 << 20))
    in_first = [part for part in touched if part != (0, 2 << 20)]
    assert all(end - start <= 2 << 20 for start, end in touched)
    assert (0, 2 << 20) in touched, "the file ahead"
    assert max(end for _, end in in_first) == size


def test_the_chain_of_a_file_is_the_same_however_it_was_taken() -> None:
    """Along with the appends, at once after a restart, from the middle, and after a cut."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 7)
    along, border = store.chain_crc(0, store.end), store.border_at_or_below(store.end // 2)
    part = store.chain_crc(0, border)
    assert part != along
    settle(store)
    store.close(clean=True)
    again = open_store(disk)
    assert again.chain_crc(0, border) == part
    assert again.chain_crc(0, again.end) == along
    lead(again, epoch=2)
    assert again.chain_crc(0, again.end) != along
    again.take_token(token(3))
    run(again, again.cut_job(token(3), border))
    assert again.chain_crc(0, border) == part


def test_the_first_change_after_a_restart_takes_no_whole_file_into_the_chain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What stood in the file before is taken at the start, when nobody waits for an append."""
    disk, settings = FakeDisk(), StoreSettings(segment_size=256 * 1024)
    store = master(disk, settings=settings)
    fill(store, 500, records=1)
    settle(store)
    store.close(clean=True)
    taken: list[int] = []
    whole = batch_index.crc32c

    def counting(data: Buffer, crc: int = 0) -> int:
        taken.append(len(data))
        return whole(data, crc)

    monkeypatch.setattr(batch_index, "crc32c", counting)
    again = open_store(disk, settings=settings)
    assert sum(taken) >= 500 * 24
    lead(again, epoch=2)
    size = settings.segment_size
    while again.end < size:
        taken.clear()
        append(again, section(100), epoch=2)
        assert sum(taken) <= 4 * 24
    assert again.chain_crc(0, size) == whole(
        b"".join(
            entry.pack()[:24] for entry in again.entries(0, max_bytes=1 << 30) if entry.start < size
        )
    )


def test_after_a_cut_appends_catch_up_with_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a limited number of entries each."""
    monkeypatch.setattr(batch_index, "CATCH_UP", 2 * batch_index.ENTRY_SIZE)
    disk = FakeDisk()
    store = master(disk)
    fill(store, 7, records=2)
    store.take_token(token(2))
    run(store, store.cut_job(token(2), store.border_at_or_below(store.end - 1)))
    store.append_epoch(token(2), epoch=2, node="a", session=2, wall_ms=2, reason="cut", by="me")
    index = store._log.segments.all[-1].index
    assert index._chained == 2 * batch_index.ENTRY_SIZE
    fill(store, 7, epoch=2, records=2)
    assert index._chained == index.count * batch_index.ENTRY_SIZE
    assert store.chain_crc(0, store.end) == batch_index.crc32c(
        b"".join(entry.pack()[:24] for entry in store.entries(0, max_bytes=1 << 30))
    )
