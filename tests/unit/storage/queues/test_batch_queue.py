"""Topics with batch queues: inner batches stored, numbered, read, recovered, cut, retained."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import CreateTopic, Outcome, ReadStatus, Section, Store, StoreSettings
from storage.key_index.search import KeyQuery
from storage.queues.batch_queue import DIRECTORY, found_file_size, units_of
from storage.read.filters import property_filter
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    SLAVE,
    append,
    at_time,
    find_key,
    lead,
    master,
    open_store,
    run,
    settle,
    ship,
    token,
)
from twinlog.errors import CorruptionError
from twinlog.format.inner_batches import InnerEncoder
from twinlog.format.messages import Message, messages_of
from twinlog.format.record import RecordEncoder, encode, java_hash
from twinlog.producer.new_message import NewMessage

NAME = "together"
Given = tuple[str, str | None, str | None]
"""Body, key and tag."""


def batch(
    *messages: Given, queue: int = 0, producer: int = 0, sequence: int = 0, size: int = 0
) -> Section:
    """A section of a batch topic, encoded as a producer does."""
    encoder = InnerEncoder(RecordEncoder(NAME, queue), 4 << 20)
    for body, key, tag in messages:
        text = NewMessage(key, tag).text()
        encoder.add(
            body.encode().ljust(size, b"."), text, sys_flag=0, born_timestamp=5, key=key, tag=tag
        )
    data, records, *_ = encoder.take(b"")
    if producer:
        for message in messages:
            body, key, tag = message
            encoder.add(
                body.encode().ljust(size, b"."), NewMessage(key, tag).text(), sys_flag=0,
                born_timestamp=5, key=key, tag=tag,
            )  # fmt: skip
        mark = b"TL_SEQ\x01%016x.0.%d.%d\x02" % (producer, sequence, records)
        data, records, *_ = encoder.take(mark)
    return Section(NAME, queue, records, data, producer, 0, sequence)


def plain(number: int, start: int = 0, tag: str | None = None) -> list[Given]:
    """Messages without keys."""
    return [(f"m{start + i}", None, tag) for i in range(number)]


def make(disk: FakeDisk, *, settings: StoreSettings = SETTINGS, epoch: int = 1) -> Store:
    """A master with a confirmed batch topic of two queues."""
    store = master(disk, settings=settings, epoch=epoch)
    change = CreateTopic(NAME, 2, 1, batch=True)
    result = store.append_control(token(epoch), change, wall_ms=1000)
    assert result.outcome is Outcome.STORED
    settle(store)
    return store


def held(store: Store, queue: int = 0, *, most: int = 5) -> list[Message]:
    """All messages of a queue, read in small answers, each from where the last one ended."""
    found: list[Message] = []
    at, end = store.reads.queue_range(NAME, queue)
    while at < end:
        answer = store.reads.read(NAME, queue, at, max_bytes=900, max_records=most)
        assert answer.status is ReadStatus.FOUND
        payload = b"".join(answer.slices)
        found += [one for one in messages_of(payload) if one.queue_offset >= at]
        assert answer.next > at
        at = answer.next
    return found


def bodies(store: Store, queue: int = 0) -> list[str]:
    """The bodies of a queue; its offsets have no gap."""
    found = held(store, queue)
    start, end = store.reads.queue_range(NAME, queue)
    assert [one.queue_offset for one in found] == list(range(start, end))
    return [one.body.decode().rstrip(".") for one in found]


def files(disk: FakeDisk, folder: str = "batchconsumequeue") -> dict[str, bytes]:
    """The files of batch queues."""
    return {
        f"{topic}/{queue}/{name}": disk.read(f"{folder}/{topic}/{queue}/{name}", "test")
        for topic in disk.list(folder)
        for queue in disk.list(f"{folder}/{topic}")
        for name in disk.list(f"{folder}/{topic}/{queue}")
    }


def test_offsets_grow_by_the_messages_inside() -> None:
    """An answer names the first one's; the record says it too, where RocketMQ looks for it."""
    store = make(FakeDisk())
    first, second, other = append(
        store, batch(*plain(5)), batch(*plain(3, 5)), batch(*plain(2), queue=1)
    )
    assert [first.queue_offset, second.queue_offset, other.queue_offset] == [0, 5, 0]
    settle(store)
    assert store.reads.queue_range(NAME, 0) == (0, 8)
    assert bodies(store) == [f"m{i}" for i in range(8)]
    view = store.reads.record_at(second.log_offset)
    assert view is not None
    assert b"INNER_BASE\x010000000000000000005\x02" in bytes(view)
    assert held(store)[6].record.queue_offset == 6


def test_a_read_may_begin_inside_a_batch_and_counts_messages() -> None:
    """It brings the whole record; what lies before the offset is the reader's to leave out."""
    store = make(FakeDisk())
    for start in range(0, 30, 3):
        append(store, batch(*plain(3, start)))
    settle(store)
    answer = store.reads.read(NAME, 0, 4, max_bytes=1 << 20, max_records=1)
    assert (answer.count, answer.next) == (1, 6)
    answer = store.reads.read(NAME, 0, 4, max_bytes=1 << 20, max_records=3)
    assert (answer.count, answer.next) == (2, 9)
    answer = store.reads.read(NAME, 0, 4, max_bytes=1, max_records=99)
    assert (answer.count, answer.next) == (1, 6)
    assert store.reads.read(NAME, 0, 30, max_bytes=1, max_records=1).status is ReadStatus.NONE
    assert store.reads.read(NAME, 0, 31, max_bytes=1, max_records=1).status is ReadStatus.PAST_END


def test_a_large_answer_has_many_records() -> None:
    """More than are looked at first: messages alone, each a record of its own."""
    store = make(FakeDisk(), settings=replace(SETTINGS, segment_size=64 * 1024))
    for start in range(200):
        append(store, batch(*plain(1, start)))
    settle(store)
    answer = store.reads.read(NAME, 0, 0, max_bytes=1 << 20, max_records=65536)
    assert (answer.count, answer.next) == (200, 200)
    answer = store.reads.read(NAME, 0, 150, max_bytes=1 << 20, max_records=30)
    assert (answer.count, answer.next) == (30, 180)


def test_tags_divide_batches_and_filters_hold() -> None:
    """Nodes filter by the record's tag, which is that of all in it; properties they leave alone."""
    store = make(FakeDisk())
    section = batch(("a", "k1", "x"), ("b", "k2 k1", "x"), ("c", None, "y"), ("d", None, None),
                    ("e", None, None))  # fmt: skip
    assert section.count == 3
    append(store, section)
    settle(store)
    tags = frozenset([java_hash("y")])
    answer = store.reads.read(NAME, 0, 0, max_bytes=1 << 20, max_records=99, tag_hashes=tags)
    found = messages_of(b"".join(answer.slices))
    assert [one.body for one in found] == [b"c", b"d", b"e"]  # no tag: it may hold any
    assert answer.next == 5
    answer = store.reads.read(
        NAME, 0, 0, max_bytes=1 << 20, max_records=99, where=property_filter("a = 'b'")
    )
    assert answer.unsifted
    assert answer.count == 3
    hits = find_key(store, KeyQuery(NAME, "k2"))
    assert [len(messages_of(view)) for view in hits.slices] == [2]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data.replace(b"INNER_NUM\x013", b"INNER_NUM\x014"), "inner-batch"),
        (lambda data: data.replace(b"INNER_NUM\x013", b"INNER_NUM\x010"), "inner-batch"),
        (lambda data: data.replace(b"INNER_NUM\x013", b"INNER_NUX\x013"), "inner-batch"),
        (lambda data: data.replace(b"INNER_BASE\x010", b"INNER_BASE\x011"), "inner-batch"),
        (lambda data: data[:39] + b"\x40" + data[40:], "sys-flag"),
        (lambda data: data[:39] + b"\x80" + data[40:], "sys-flag"),
        (lambda data: data[:39] + b"\xc1" + data[40:], "sys-flag"),
        (lambda data: data[:39] + b"\x00" + data[40:], "inner-batch"),
    ],
)
def test_what_does_not_agree_is_refused(change: object, code: str) -> None:
    """RocketMQ would store some of it, and then give its readers other offsets than its own."""
    store = make(FakeDisk())
    good = batch(*plain(3))
    assert callable(change)
    bad = Section(NAME, 0, 1, change(bytes(good.data)))
    assert bad.data != good.data
    assert append(store, bad)[0].code == code
    assert append(store, good)[0].queue_offset == 0


def test_an_inner_batch_belongs_into_a_batch_topic() -> None:
    """As RocketMQ: not elsewhere, and its number not without the flag."""
    store = make(FakeDisk())
    made = encode("flights", 0, bytes(batch(*plain(2)).data), sys_flag=0xC0)
    assert append(store, Section("flights", 0, 1, made))[0].code == "sys-flag"
    made = encode("flights", 0, b"x", properties={"INNER_NUM": "1"})
    assert append(store, Section("flights", 0, 1, made))[0].code == "inner-batch"
    made = encode(
        NAME, 0, b"x",
        properties={"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "0" * 19},
    )  # fmt: skip
    assert append(store, Section(NAME, 0, 1, made))[0].code == "light-queues"
    result = store.append_control(token(1), CreateTopic(NAME, 2, 1), wall_ms=1)
    assert (result.code, result.text) == ("topic-exists", "topic together exists with batch queues")


def test_a_section_is_stored_once() -> None:
    """Also after a promotion and a restart, where the lines of producers come from the log."""
    disk = FakeDisk()
    store = make(disk)
    mixed = [("a", None, "x"), ("b", None, "x"), ("c", None, "y"), ("d", None, "x")]
    sent = batch(*mixed, producer=7)
    assert sent.count == 3
    stored = append(store, sent)[0]
    again = append(store, batch(*mixed, producer=7))[0]
    assert (again.outcome, again.queue_offset) == (Outcome.DUPLICATE, stored.queue_offset)
    later = append(store, batch(("e", None, None), ("f", None, None), producer=7, sequence=3))[0]
    assert (later.outcome, later.queue_offset) == (Outcome.STORED, 4)
    lead(store, epoch=2)  # the pending layer is made anew
    again = append(store, batch(*mixed, producer=7), epoch=2)[0]
    assert (again.outcome, again.queue_offset) == (Outcome.DUPLICATE, 0)
    settle(store)
    store.close(clean=False)
    store = open_store(disk)
    lead(store, epoch=3)
    settle(store)
    again = append(store, batch(*mixed, producer=7), epoch=3)[0]
    assert (again.outcome, again.queue_offset) == (Outcome.DUPLICATE, 0)
    more = append(store, batch(*plain(2, 6), producer=7, sequence=4), epoch=3)[0]
    assert (more.outcome, more.queue_offset) == (Outcome.STORED, 6)
    settle(store)
    assert bodies(store) == [*"abcdef", "m6", "m7"]


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 1), st.booleans()), max_size=25))
@settings(max_examples=15, deadline=None)
def test_any_history_survives_a_crash_and_a_rebuild(
    sections: list[tuple[int, int, bool]],
) -> None:
    """Recovered from a snapshot and the log, and from the log alone: the same files."""
    disk = FakeDisk()
    store = make(disk)
    sent: tuple[list[str], list[str]] = ([], [])
    for count, queue, snapshot in sections:
        messages = plain(count, len(sent[queue]))
        assert append(store, batch(*messages, queue=queue))[0].outcome is Outcome.STORED
        sent[queue].extend(body for body, _, _ in messages)
        settle(store)
        if snapshot:
            run(store, store.jobs.flush_job(thorough=True))
            run(store, store.jobs.snapshot_job(force=True))
            run(store, store.jobs.checkpoint_job())
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.checkpoint_job())
    wanted = files(disk)
    store.close(clean=False)
    disk.crash(keep_page_cache=False, rng=Random(len(sections)))
    store = open_store(disk)
    settle(store)
    assert (bodies(store), bodies(store, 1)) == sent
    assert files(disk) == wanted
    store.close(clean=True)
    for name in list(wanted):
        disk.remove(f"batchconsumequeue/{name}", "test")
    store = open_store(disk)
    settle(store)
    assert files(disk) == wanted
    assert (bodies(store), bodies(store, 1)) == sent
    store.close(clean=True)


@pytest.mark.parametrize("below", [False, True])
def test_a_cut_takes_units_back(below: bool) -> None:
    """Not yet dispatched, or dispatched already: offsets go on where the log does."""
    disk = FakeDisk()
    store = make(disk)
    append(store, batch(*plain(4)))
    settle(store)
    kept = store.end
    append(store, batch(*plain(5, 4)))
    append(store, batch(*plain(5), queue=1))
    if below:
        settle(store)
    run(store, store.cut_job(token(1), kept))
    lead(store, epoch=2)
    assert append(store, batch(*plain(2, 4)), epoch=2)[0].queue_offset == 4
    assert append(store, batch(*plain(1), queue=1), epoch=2)[0].queue_offset == 0
    settle(store)
    assert bodies(store) == [f"m{i}" for i in range(6)]
    assert bodies(store, 1) == ["m0"]


def test_a_slave_builds_the_same_files() -> None:
    """It gets the bytes of the log only."""
    disk, other = FakeDisk(), FakeDisk()
    source = make(disk)
    target = open_store(other)
    target.take_token(SLAVE)
    for number in range(30):
        append(source, batch(*plain(3, 3 * number)))
    settle(source)
    ship(source, target, SLAVE)
    settle(target)
    assert files(other) == files(disk)
    assert bodies(target) == bodies(source)
    assert target.reads.batched() == {NAME}


def test_retention_moves_the_start_to_a_batch() -> None:
    """Files of the queue go, those behind them stay readable; a rebuild begins at byte 0."""
    disk = FakeDisk()
    store = make(disk)
    for number in range(400):
        result = append(store, batch(*plain(3, 3 * number), size=40))[0]
        assert result.outcome is Outcome.STORED, result
        settle(store)
        if number % 100 == 99:
            run(store, store.jobs.flush_job(thorough=True))
            run(store, store.jobs.snapshot_job(force=True))
            run(store, store.jobs.checkpoint_job())
    all_ = [f"m{i}" for i in range(1200)]
    assert bodies(store) == all_
    names = len(files(disk))
    size = SETTINGS.segment_size
    to = store.head.limit(store.confirm)
    store.head.leave(to - to % size, store.confirm, 0.0)
    run(store, store.head.remove_job([one.start for one in store.head.left()], erase=False))
    run(store, store.jobs.snapshot_job())
    run(store, store.head.tidy_job())
    start, end = store.reads.queue_range(NAME, 0)
    assert 0 < start < end == 1200
    assert bodies(store) == all_[start:]
    assert len(files(disk)) < names
    gone = store.reads.read(NAME, 0, start - 1, max_bytes=9, max_records=9)
    assert (gone.status, gone.start) == (ReadStatus.BEFORE_START, start)
    kept = files(disk)
    run(store, store.jobs.flush_job(thorough=True))
    store.close(clean=False)
    disk.crash(keep_page_cache=False, rng=Random(2))
    store = open_store(disk)
    assert not store.boot.queues_rebuilt
    assert store.reads.queue_range(NAME, 0) == (start, end)
    assert bodies(store) == all_[start:]
    assert files(disk) == kept
    store.close(clean=True)
    disk.remove(f"batchconsumequeue/{max(kept)}", "test")
    store = open_store(disk)
    assert store.boot.queues_rebuilt
    assert bodies(store) == all_[start:]
    assert min(files(disk)) == f"{NAME}/0/{0:020d}"
    lead(store, epoch=2)
    assert append(store, batch(*plain(2, 1200)), epoch=2)[0].queue_offset == 1200
    settle(store)
    assert bodies(store) == [*all_[start:], "m1200", "m1201"]


def test_times() -> None:
    """The first message stored at a time, and the last before one."""
    store = make(FakeDisk())
    for number in range(6):
        store.append(token(1), [batch(*plain(3, 3 * number))], wall_ms=10_000 + 100 * number)
    settle(store)
    assert at_time(store, NAME, 0, 10_200) == 6
    assert at_time(store, NAME, 0, 10_201) == 9
    assert at_time(store, NAME, 0, 1) == 0
    assert at_time(store, NAME, 0, 99_999) == 18
    assert at_time(store, NAME, 0, 10_250, upper=True) == 8
    assert at_time(store, NAME, 0, 1, upper=True) == 0


def test_a_damaged_unit_is_an_error_and_never_another_record() -> None:
    """What does not hold together, or leads elsewhere, is told."""
    disk = FakeDisk()
    store = make(disk)
    append(store, batch(*plain(3)), batch(*plain(3, 3)))
    settle(store)
    path = f"batchconsumequeue/{NAME}/0/{0:020d}"
    good = disk.read(path, "test")
    for at in (7, 46 + 7, 46 + 35, 37, 46 + 11):
        data = bytearray(good)
        data[at] ^= 1
        disk.write_at(path, 0, bytes(data), "test")
        with pytest.raises(CorruptionError):
            store.reads.read(NAME, 0, 3 if at > 45 else 0, max_bytes=1 << 20, max_records=9)
    assert isinstance(units_of(good[:46])[0].after, int)


def test_topics_json_names_the_kind() -> None:
    """RocketMQ takes the kind of a queue from there."""
    disk = FakeDisk()
    store = make(disk)
    settle(store)
    store.close(clean=True)
    text = disk.read("config/topics.json", "test").decode()
    table = json.loads(text)["topicConfigTable"]
    assert table[NAME]["attributes"] == {"queue.type": "BatchCQ"}
    assert table["flights"]["attributes"] == {}


def test_a_file_that_was_cut_short_does_not_tell_the_size_of_all() -> None:
    """Its length does not fit its name, or others have another; RocketMQ's files say theirs."""
    disk = FakeDisk()
    for queue, name, size in ((0, 1840, 1472), (0, 3680, 1840), (1, 0, 920), (1, 1840, 1840)):
        folder = f"{DIRECTORY}/{NAME}/{queue}"
        disk.make_dir(folder, "test")
        disk.create_sparse(f"{folder}/{name:020d}", size, "test")
    assert found_file_size(disk, 1840) == 1840
    assert found_file_size(disk, 46 * 1000) == 1840
    assert found_file_size(FakeDisk(), 46 * 1000) == 46 * 1000
