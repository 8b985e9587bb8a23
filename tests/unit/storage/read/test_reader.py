"""Reads: slices, tags, times, places; queue files as RocketMQ builds them."""

from __future__ import annotations

import socket

import pytest

from storage import CreateTopic, ReadResult, ReadStatus, Store, StoreSettings
from storage.disk.mapping import Loan
from storage.key_index.search import KeyQuery
from storage.queues.queues import ConsumeQueues
from storage.read.filters import property_filter
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    TOPIC,
    WHO,
    append,
    at_time,
    bodies,
    fill,
    find_key,
    flip,
    master,
    run,
    section,
    settle,
    token,
)
from twinlog.errors import Busy, CorruptionError, NotYetConfirmed, UnknownTopic
from twinlog.format.consume_queue import QUEUE_ENTRY
from twinlog.format.record import decode, java_hash
from twinlog.kernels import crc32c

BIG = StoreSettings(segment_size=256 * 1024, queue_segment_entries=100)


def records(views: list[memoryview]) -> list[int]:
    """Queue offsets of the records in an answer."""
    found: list[int] = []
    for view in views:
        at = 0
        while at < len(view):
            record = decode(view, at)
            found.append(record.queue_offset)
            at += record.size
    return found


@pytest.mark.parametrize("most", [1, 300, 2000, 1 << 20])
@pytest.mark.parametrize("per_batch", [1, 3, 40])
def test_every_cut_gives_the_same_records(most: int, per_batch: int) -> None:
    """Neighbours or scattered, one at a time or many: the answers join to the queue."""
    store = master(FakeDisk(), settings=BIG)
    for number in range(120 // per_batch):
        append(store, section(per_batch), section(1 + number % 3, queue=1, size=500))
    settle(store)
    at, found = 0, list[int]()
    while at < 120:
        answer = store.reads.read(TOPIC, 0, at, max_bytes=most, max_records=50)
        assert answer.status is ReadStatus.FOUND
        assert 1 <= answer.count <= 50
        assert sum(map(len, answer.slices)) <= most or answer.count == 1
        assert answer.crc in (None, crc32c(b"".join(answer.slices)))
        found += records(answer.slices)
        assert (answer.next, answer.end) == (at + answer.count, 120)
        at = answer.next
    assert found == list(range(120))


def test_neighbours_are_one_slice() -> None:
    """A batch of one queue is sent as it lies."""
    store = master(FakeDisk(), settings=BIG)
    append(store, section(40), section(40), section(1, queue=1), section(20))
    settle(store)
    answer = store.reads.read(TOPIC, 0, 0, max_bytes=1 << 20, max_records=1000)
    assert (answer.count, len(answer.slices)) == (100, 2)
    assert answer.crc == crc32c(b"".join(answer.slices))


def test_long_slices_are_lent_and_short_ones_are_not() -> None:
    """What a socket gets are the same bytes, in the same order."""
    store = master(FakeDisk(), settings=BIG)
    append(store, section(3), section(40), section(1, queue=1), section(60, size=1500))
    settle(store)
    short = store.reads.read(TOPIC, 0, 0, max_bytes=1 << 20, max_records=43)
    assert (short.count, len(short.lent)) == (43, 0)
    answer = store.reads.read(TOPIC, 0, 0, max_bytes=1 << 20, max_records=1000)
    assert [isinstance(piece, Loan) for piece in answer.lent] == [False, True]
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for slice_, piece in zip(answer.slices, answer.lent, strict=True):
            got = b""
            assert len(piece) == len(slice_)
            while len(piece):
                count = piece.give(ours) if isinstance(piece, Loan) else ours.send(piece)
                piece = piece.after(count) if isinstance(piece, Loan) else piece[count:]
                while count:
                    got += (part := theirs.recv(count))
                    count -= len(part)
            assert got == slice_


def test_tags_leave_records_out() -> None:
    """``next`` passes what was left out; an answer may be empty and still get on."""
    store = master(FakeDisk(), settings=BIG)
    for number in range(30):
        append(store, section(2, tag="AB"[number % 2]), section(1))
    settle(store)
    only = frozenset({java_hash("B")})
    answer = store.reads.read(TOPIC, 0, 0, max_bytes=1 << 20, max_records=9, tag_hashes=only)
    assert records(answer.slices) == [3, 4, 9, 10, 15, 16, 21, 22, 27]
    assert answer.next == 28
    nothing = store.reads.read(
        TOPIC, 0, 0, max_bytes=1 << 20, max_records=9, tag_hashes=frozenset({java_hash("C")})
    )
    assert (nothing.status, nothing.count, nothing.next) == (ReadStatus.FOUND, 0, 90)
    negative = frozenset({java_hash("payment")})
    append(store, section(1, tag="payment"))
    settle(store)
    found = store.reads.read(TOPIC, 0, 0, max_bytes=99999, max_records=9, tag_hashes=negative)
    assert records(found.slices) == [90]


def timed(store: Store, *times: int) -> None:
    """One record for each store time."""
    for ms in times:
        store.append(token(1), [section(1)], wall_ms=ms)
    settle(store)


def test_queue_offsets_of_times() -> None:
    """The first at or after, or the last at or before; clamped to the queue."""
    store = master(FakeDisk())
    timed(store, 3000, 3000, 4000, 6000)
    lower = [at_time(store, TOPIC, 0, ms) for ms in (0, 3000, 3001, 4000, 6000, 6001)]
    assert lower == [0, 0, 2, 2, 3, 4]
    upper = [at_time(store, TOPIC, 0, ms, upper=True) for ms in (0, 3000, 3001, 4000, 9000)]
    assert upper == [0, 1, 1, 2, 3]
    assert at_time(store, TOPIC, 3, 5000) == 0


def test_a_clock_that_goes_back_is_not_stored() -> None:
    """Store timestamps never fall along the log."""
    store = master(FakeDisk())
    timed(store, 5000, 4000)
    answer = store.reads.read(TOPIC, 0, 1, max_bytes=999, max_records=1)
    assert decode(answer.slices[0]).store_timestamp == 5000


def test_a_record_by_its_log_offset() -> None:
    """Only where one begins, only below confirm."""
    store = master(FakeDisk())
    first, second = append(store, section(3), section(2, queue=1))
    settle(store)
    view = store.reads.record_at(second.log_offset)
    assert view is not None
    assert (decode(view).queue, decode(view).log_offset) == (1, second.log_offset)
    assert store.reads.record_at(first.log_offset + 1) is None
    assert store.reads.record_at(store.end) is None
    pending = append(store, section(1))[0]
    assert store.reads.record_at(pending.log_offset) is None


def test_unknown_names() -> None:
    """Topic and queue are told apart; the store's own topics can be read, not listed."""
    store = master(FakeDisk())
    with pytest.raises(UnknownTopic) as caught:
        store.reads.queue_range("no", 0)
    assert caught.value.code == "unknown-topic"
    with pytest.raises(UnknownTopic) as caught:
        store.reads.queue_range(TOPIC, 4)
    assert caught.value.code == "unknown-queue"
    assert store.reads.queue_range("rmq_sys_TWINLOG_EPOCH", 0) == (0, 1)
    assert list(store.reads.topics()) == [TOPIC]
    with pytest.raises(UnknownTopic):
        find_key(store, KeyQuery("nowhere", "k"))


def test_cold_reads_are_marked() -> None:
    """Further behind the end than the hot window."""
    store = master(FakeDisk(), settings=StoreSettings(segment_size=64 * 1024, hot_bytes=8000))
    fill(store, 20)
    settle(store)
    assert store.reads.read(TOPIC, 0, 0, max_bytes=99, max_records=1).cold
    assert not store.reads.read(TOPIC, 3, 49, max_bytes=99, max_records=1).cold


def test_a_cold_read_touches_nothing_before_its_proof() -> None:
    """Damage shows in the thread that fetches, and quarantines the store."""
    disk = FakeDisk()
    settings = StoreSettings(segment_size=64 * 1024, hot_bytes=8000)
    store = master(disk, settings=settings)
    fill(store, 20)
    settle(store)
    store.close(clean=True)
    at = store.entries(0, max_bytes=1 << 20)[3].start
    store = Store.open(disk, settings, WHO, wall_ms=1)
    flip(disk, "commitlog/00000000000000000000", at + 100)
    for queue in range(4):
        answer = store.reads.read(TOPIC, queue, 0, max_bytes=500, max_records=9)
        assert (answer.cold, store.damage) == (True, None)
        assert answer.fetch is not None
        if answer.slices[0].nbytes and decode(answer.slices[0], check_crc=False).log_offset == at:
            with pytest.raises(CorruptionError) as caught:
                answer.fetch()
            assert store.damage is None
            with pytest.raises(CorruptionError):
                store.reads.fetched(answer, caught.value)
            assert store.damage is not None
            return
        answer.fetch()
    raise AssertionError("no queue begins with the damaged batch")


def cold_store(disk: FakeDisk) -> tuple[Store, int]:
    """A store opened again, so that nothing is proven, and the end of its first sections."""
    settings = StoreSettings(segment_size=16 * 1024, queue_segment_entries=40, hot_bytes=2000)
    store = master(disk, settings=settings)
    fill(store, 4)
    border = store.end
    while store.end < 4 * settings.segment_size:
        fill(store, 4)
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job())
    store.close(clean=True)
    store = Store.open(disk, settings, WHO, wall_ms=1)
    store.take_token(token(2))
    return store, border


WHERES = pytest.mark.parametrize("where", [None, "TAGS IS NULL"])


def failed(answer: ReadResult) -> Exception:
    """What its thread meets."""
    outcome = answer.outcome()
    assert isinstance(outcome, Exception)
    return outcome


@WHERES
@pytest.mark.parametrize("finished", [True, False])
def test_a_cut_under_a_cold_read_is_no_damage(where: str | None, finished: bool) -> None:
    """The bytes were zeroed while a thread compared them: the reader asks again, that is all."""
    store, border = cold_store(FakeDisk())
    start = store.reads.queue_range(TOPIC, 0)[0] + 10
    kept = store.reads.read(TOPIC, 0, 0, max_bytes=500, max_records=1)
    wanted = property_filter(where) if where else None
    answer = store.reads.read(TOPIC, 0, start, max_bytes=900, max_records=5, where=wanted)
    assert answer.cold
    cut = store.cut_job(token(2), border)
    cut.run()
    if finished:
        store.jobs.finish(cut)
    for one, outcome in ((answer, failed(answer)), (answer, answer), (kept, kept.outcome())):
        with pytest.raises(Busy):
            store.reads.fetched(one, outcome)
    assert store.damage is None


@WHERES
def test_retention_under_a_cold_read_is_no_damage(where: str | None) -> None:
    """The files left while a thread looked for them."""
    store, _ = cold_store(FakeDisk())
    wanted = property_filter(where) if where else None
    answer = store.reads.read(TOPIC, 0, 10, max_bytes=900, max_records=5, where=wanted)
    store.head.leave(store.settings.segment_size, store.confirm, 0.0)
    with pytest.raises(Busy, match="retention"):
        store.reads.fetched(answer, failed(answer))
    assert store.damage is None
    assert store.reads.fetched(answer, answer) is answer


def test_a_mistake_in_a_cold_read_is_not_called_damage() -> None:
    """An error that is nobody's goes on as it is, and the process ends."""
    store, _ = cold_store(FakeDisk())
    answer = store.reads.read(TOPIC, 0, 10, max_bytes=900, max_records=5)
    with pytest.raises(ZeroDivisionError):
        store.reads.fetched(answer, ZeroDivisionError())
    assert store.damage is None


def test_nothing_is_read_or_entered_while_confirmed_bytes_are_cut_off() -> None:
    """On the loop the zeros of a cut look like damage; whoever asks meanwhile asks again."""
    store, border = cold_store(FakeDisk())
    settled = store.dispatched
    cut = store.cut_job(token(2), border)
    cut.run()
    for ask in (
        lambda: store.reads.read(TOPIC, 0, 10, max_bytes=900, max_records=5),
        lambda: at_time(store, TOPIC, 0, 2000),
        lambda: store.reads.record_at(border),
        lambda: store.reads.look_up(KeyQuery(TOPIC, "k")),
    ):
        with pytest.raises(Busy):
            ask()
    assert (store.behind, store.dispatch(1 << 20)) == (False, False)
    assert (store.damage, store.dispatched) == (None, settled)
    store.jobs.finish(cut)
    assert store.reads.record_at(border) is None
    assert len(bodies(store, 0)) == 10


def test_a_cut_above_confirm_stops_no_reader() -> None:
    """What is cut there nobody could read."""
    store = master(FakeDisk())
    fill(store, 4)
    settle(store)
    fill(store, 4)
    cut = store.cut_job(token(1), store.confirm)
    cut.run()
    assert store.reads.read(TOPIC, 0, 0, max_bytes=900, max_records=5).count == 5
    store.jobs.finish(cut)


def test_a_topic_that_only_waits_for_its_confirm_is_not_unknown() -> None:
    """After a restart of all nodes confirm passes its record once more: until then, ask again."""
    disk = FakeDisk()
    store = master(disk)
    fill(store, 2)
    store.append_control(token(1), CreateTopic("late", 2, 1), wall_ms=1000)
    store.close(clean=False)
    again = Store.open(disk, SETTINGS, WHO, wall_ms=1)
    assert "late" not in again.reads.topics()
    assert isinstance(again.reads.missing("late"), NotYetConfirmed)
    assert isinstance(again.reads.missing("never"), UnknownTopic)
    assert (
        again.reads.read("late", 0, 0, max_bytes=9, max_records=9).status
        is ReadStatus.ABOVE_CONFIRM
    )
    assert (
        again.reads.read("never", 0, 0, max_bytes=9, max_records=9).status
        is ReadStatus.UNKNOWN_TOPIC
    )
    for ask in (
        lambda: again.reads.queue_range("late", 0),
        lambda: at_time(again, "late", 0, 1),
        lambda: again.reads.look_up(KeyQuery("late", "k")),
    ):
        with pytest.raises(NotYetConfirmed):
            ask()
    again.set_confirm(again.end)
    assert again.reads.topics()["late"] == 2


# -- queue files


def entries(first: int, count: int) -> bytes:
    """Queue entries as the dispatcher hands them over."""
    return b"".join(QUEUE_ENTRY.pack(1000 * (first + n), 100, -5) for n in range(count))


def test_a_queue_that_begins_late_is_filled_up() -> None:
    """As RocketMQ does: the file of the first entry, blanks up to it, zeros behind."""
    disk = FakeDisk()
    queues = ConsumeQueues(disk, 200)
    queues.write("t", 2, 23, entries(23, 3))
    assert disk.list("consumequeue/t/2") == [f"{400:020d}"]
    data = disk.read(f"consumequeue/t/2/{400:020d}", "test")
    blank = QUEUE_ENTRY.pack(0, 0x7FFFFFFF, 0)
    assert data == (blank * 3 + entries(23, 3)).ljust(200, b"\0")
    queue = queues.get("t", 2)
    assert queue is not None
    assert (queue.start, queue.end, queue.whole(26), queue.whole(27)) == (23, 26, True, False)


def test_entries_cross_files_and_come_twice() -> None:
    """What is there is skipped; a gap is damage."""
    disk = FakeDisk()
    queues = ConsumeQueues(disk, 100)
    queues.write("t", 0, 0, entries(0, 4))
    queues.write("t", 0, 2, entries(2, 12))
    queues.write("t", 0, 1, entries(1, 3))
    queue = queues.get("t", 0)
    assert queue is not None
    assert queue.read(0, 99) == entries(0, 14)
    assert queue.read(3, 4) == entries(3, 4)
    assert len(disk.list("consumequeue/t/0")) == 3
    with pytest.raises(CorruptionError):
        queues.write("t", 0, 15, entries(15, 1))
    queue.cut(5)
    assert len(disk.list("consumequeue/t/0")) == 1
    queue.cut(0)
    assert disk.list("consumequeue/t/0") == []
    queues.write("t", 0, 0, entries(0, 1))
    assert queue.read(0, 9) == entries(0, 1)
    queues.unflushed.flush(disk, "test")


def test_bodies_come_back() -> None:
    """The workbench itself reads what was written."""
    store = master(FakeDisk())
    append(store, section(2, mark=5))
    settle(store)
    assert [body.rstrip(b".") for body in bodies(store)] == [b"5/0/", b"5/1/"]
