"""Light queues: one record in many queues, numbered by the master, rebuilt from the log."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage import Outcome, ReadStatus, Section, Store, StoreSettings
from storage.queues.light_queues import NAMES_MAX, LightRefused, light_runs, shares
from storage.read.filters import property_filter
from storage.state.sequences import marks_of
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import (
    SETTINGS,
    SLAVE,
    TOPIC,
    append,
    at_time,
    lead,
    master,
    open_store,
    run,
    section,
    settle,
    ship,
    token,
)
from twinlog.errors import CorruptionError
from twinlog.format.light_queues import LIGHT_DIGITS
from twinlog.format.record import Record, RecordEncoder, decode, encode_properties, java_hash
from twinlog.producer.new_message import NewMessage, light_text

A, B, C = "%LMQ%a", "%LMQ%b", "%LMQ%c"


def shared(*lists: Sequence[str], tag: str = "", queue: int = 0) -> Section:
    """A section with one record for each list of light queues."""
    encoder = RecordEncoder(TOPIC, queue)
    for number, names in enumerate(lists):
        text = NewMessage(None, tag or None, light=names).text()
        encoder.add(b"%d" % number, properties=text, born_timestamp=1)
    return Section(TOPIC, queue, len(lists), encoder.take())


def found(store: Store, name: str, *, where: str | None = None) -> list[Record]:
    """All records of a light queue, read in small answers."""
    records: list[Record] = []
    at, end = store.reads.queue_range(name, 0)
    while at < end:
        answer = store.reads.read(
            name,
            0,
            at,
            max_bytes=700,
            max_records=3,
            where=property_filter(where) if where else None,
        )
        assert answer.status is ReadStatus.FOUND
        for view in answer.slices:
            start = 0
            while start < len(view):
                record = decode(view, start)
                records.append(record)
                start += record.size
        at = answer.next
    return records


def numbers(store: Store, name: str) -> list[int]:
    """What the records of a light queue say of their offsets in it."""
    said: list[int] = []
    for record in found(store, name):
        names = record.properties["INNER_MULTI_DISPATCH"].split(",")
        offsets = record.properties["INNER_MULTI_QUEUE_OFFSET"].split(",")
        said.append(int(offsets[names.index(name)]))
    return said


def test_a_record_is_in_all_its_queues() -> None:
    """With its offset in each; its own queue is as ever, sections without them too."""
    store = master(FakeDisk())
    append(store, shared([A, B], [B], [A, B, C]), section(2, queue=1))
    append(store, section(1), shared([A], queue=2))
    settle(store)
    assert [numbers(store, name) for name in (A, B, C)] == [[0, 1, 2], [0, 1, 2], [0]]
    assert [(r.queue, r.queue_offset) for r in found(store, A)] == [(0, 0), (0, 2), (2, 0)]
    assert store.reads.queue_range(TOPIC, 0) == (0, 4)
    assert store.reads.queue_range("%LMQ%nobody", 0) == (0, 0)
    assert (
        store.reads.read("%LMQ%nobody", 0, 0, max_bytes=9, max_records=9).status is ReadStatus.NONE
    )


def test_filters_and_times_work_in_light_queues() -> None:
    """By tag hash, by properties, by time."""
    store = master(FakeDisk())
    for number in range(6):
        append(store, shared([A], tag="xy"[number % 2]))
    settle(store)
    assert [r.tag for r in found(store, A, where="TAGS = 'y'")] == ["y"] * 3
    hashes = frozenset({java_hash("x")})
    answer = store.reads.read(A, 0, 0, max_bytes=9999, max_records=9, tag_hashes=hashes)
    assert (answer.count, answer.next) == (3, 6)
    assert at_time(store, A, 0, 0) == 0
    assert at_time(store, A, 0, 9999) == 6


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02", "only one of them"),
        (light_text([A]) + light_text([B]), "twice"),
        (light_text([A, A]), "different"),
        (light_text([f"%LMQ%{n}" for n in range(NAMES_MAX + 1)]), f"1 to {NAMES_MAX}"),
        (light_text([A]).replace(b"%LMQ%a", b"orders"), "not a light queue"),
        (light_text([A, B]).replace(b"%LMQ%b", b""), "not a light queue"),
        (light_text(["%LMQ%"]), "not a light queue"),
        (light_text(["%LMQ%a/b"]), "letters, digits"),
        (light_text(["%LMQ%" + "x" * 123]), "1 to 127"),
        (light_text([A]).replace(b"0\x02", b"1\x02"), "does not reserve"),
        (light_text([A]).replace(b"0\x02", b"\x02"), "does not reserve"),
        (light_text([A, B]).replace(b"0,0", b"0;0"), "does not reserve"),
    ],
)
def test_what_would_misalign_a_broker_is_refused(text: bytes, why: str) -> None:
    """Only names with the prefix, and only with room for every offset; nothing is stored."""
    store = master(FakeDisk())
    encoder = RecordEncoder(TOPIC, 0)
    encoder.add(b"fine", properties=light_text([C]), born_timestamp=1)
    encoder.add(b"not", properties=text, born_timestamp=1)
    result = append(store, Section(TOPIC, 0, 2, encoder.take()))[0]
    assert (result.outcome, result.code) == (Outcome.REFUSED, "light-queues")
    assert result.text.startswith("record 1: ")
    assert why in result.text
    append(store, shared([C]))
    settle(store)
    assert numbers(store, C) == [0]


def test_light_queues_are_not_written_or_created() -> None:
    """They come into being by being named; a body that looks like the property names nothing."""
    store = master(FakeDisk())
    result = append(store, section(1, topic=A))[0]
    assert (result.outcome, result.code) == (Outcome.REFUSED, "topic")
    assert "is created when" in result.text
    encoder = RecordEncoder(TOPIC, 0)
    encoder.add(light_text([A]), properties=b"x\x01y\x02", born_timestamp=1)
    encoder.add(light_text([A]), properties=light_text([B]), born_timestamp=1)
    append(store, Section(TOPIC, 0, 2, encoder.take()))
    settle(store)
    assert (store.reads.queue_range(A, 0), store.reads.queue_range(B, 0)) == ((0, 0), (0, 1))
    assert found(store, B)[0].body == light_text([A])


def test_a_store_has_so_many_light_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond the limit no new one; those that exist go on."""
    monkeypatch.setattr("storage.append.appender.QUEUES_MAX", 2)
    store = master(FakeDisk())
    append(store, shared([A, B]))
    settle(store)
    assert append(store, shared([C]))[0].code == "light-queues"
    assert append(store, shared([A], [B]))[0].outcome is Outcome.STORED


def test_a_section_sent_again_is_a_duplicate() -> None:
    """The offsets are no part of what is compared."""
    store = master(FakeDisk())
    for _ in range(2):
        made = Section(TOPIC, 0, 1, b"", 77, 0, 0)
        encoder = RecordEncoder(TOPIC, 0)
        text = light_text([A]) + encode_properties({"TL_SEQ": f"{77:016x}.0.0.1"})
        encoder.add(b"x", properties=text, born_timestamp=1)
        data = encoder.take()
        result = append(store, Section(made.topic, 0, 1, data, 77, 0, 0))[0]
    assert result.outcome is Outcome.DUPLICATE
    settle(store)
    assert numbers(store, A) == [0]


def test_an_entry_that_leads_to_another_record_is_an_error() -> None:
    """A light queue's records must name it."""
    disk = FakeDisk()
    store = master(disk)
    append(store, shared([A], [B]))
    settle(store)
    other = disk.read_at(f"consumequeue/{B}/0/{0:020d}", 0, 20, "test")
    disk.write_at(f"consumequeue/{A}/0/{0:020d}", 0, other, "test")
    with pytest.raises(CorruptionError, match="points to no such record"):
        store.reads.read(A, 0, 0, max_bytes=999, max_records=9)


names = st.lists(st.sampled_from([A, B, C, "%LMQ%d", "%LMQ%e"]), max_size=4, unique=True)


@given(
    st.lists(st.lists(names, min_size=1, max_size=5), min_size=1, max_size=12),
    st.integers(0, 11),
    st.booleans(),
)
@settings(max_examples=40, deadline=None)
def test_any_history_numbers_without_gaps(
    history: list[list[list[str]]], confirmed: int, lost: bool
) -> None:
    """Promotion after any confirm, a restart, queue files lost: the same offsets everywhere."""
    disk, copy = FakeDisk(), FakeDisk()
    store = master(disk, settings=StoreSettings(segment_size=16 * 1024, queue_segment_entries=7))
    settled = confirmed
    for number, lists in enumerate(history):
        append(store, shared(*lists, queue=number % 4))
        if number == settled:
            settle(store)
    lead(store, epoch=2)
    store.rebuild_pending()
    append(store, shared([A], [A, C]), epoch=2)
    slave = open_store(copy, settings=SETTINGS)
    slave.take_token(SLAVE)
    ship(store, slave, SLAVE)
    settle(slave)
    settle(store)
    every = [A, B, C, "%LMQ%d", "%LMQ%e"]
    counts = {name: sum(name in one for lists in history for one in lists) for name in every}
    counts[A] += 2
    counts[C] += 1
    store.close(clean=True)
    if lost:
        for name in every:
            for file in disk.list(f"consumequeue/{name}/0"):
                disk.remove(f"consumequeue/{name}/0/{file}", "test")
    again = open_store(
        disk, settings=StoreSettings(segment_size=16 * 1024, queue_segment_entries=7)
    )
    for holder in (slave, again):
        for name in every:
            assert numbers(holder, name) == list(range(counts[name])), name


def test_a_cut_takes_entries_back() -> None:
    """What lay beyond the cut is gone from the light queues, and its offsets are given anew."""
    store = master(FakeDisk())
    append(store, shared([A], [A, B]))
    settle(store)
    kept = store.end
    append(store, shared([A, B], [B]))
    run(store, store.cut_job(token(1), kept))
    lead(store, epoch=2)
    append(store, shared([B]), epoch=2)
    settle(store)
    assert [numbers(store, name) for name in (A, B)] == [[0, 1], [0, 1]]


def foreign(*texts: bytes, topic: str = "t") -> tuple[memoryview, list[tuple[int, bytes]]]:
    """Records that RocketMQ stored, and where they say that they name light queues."""
    encoder = RecordEncoder(topic, 0)
    for text in texts:
        encoder.add(b"x", properties=text, born_timestamp=1)
    view = memoryview(bytes(encoder.take()))
    return view, marks_of(view)[1]


def test_built_anew_behind_retention_they_keep_their_numbers() -> None:
    """The queue begins at what its first kept record says, not behind where it ended."""
    disk = FakeDisk()
    store = master(disk)
    while store.end < 5 * SETTINGS.segment_size:
        append(store, *[shared([A], [A, B]) for _ in range(20)])
        settle(store)
        run(store, store.jobs.flush_job(thorough=True))
        run(store, store.jobs.snapshot_job())
    run(store, store.jobs.checkpoint_job())
    store.head.leave(2 * SETTINGS.segment_size, store.confirm, 0.0)
    run(store, store.head.remove_job([one.start for one in store.head.left()], erase=False))
    run(store, store.jobs.snapshot_job())
    ranges = [store.reads.queue_range(name, 0) for name in (A, B)]
    kept = [[record.log_offset for record in found(store, name)] for name in (A, B)]
    assert 0 < ranges[0][0] < ranges[0][1]
    store.close(clean=True)
    for name in disk.list(f"consumequeue/{A}/0"):
        disk.remove(f"consumequeue/{A}/0/{name}", "test")
    store = open_store(disk)
    assert store.boot.queues_rebuilt
    assert [store.reads.queue_range(name, 0) for name in (A, B)] == ranges
    assert [[record.log_offset for record in found(store, name)] for name in (A, B)] == kept
    store.close(clean=True)


def test_foreign_records_that_do_not_fit_together_are_passed_over() -> None:
    """Lists of other lengths, no numbers, another prefix, a topic of the store's own, damage."""
    fine = light_text([A])
    odd = light_text([A]).replace(b"0" * LIGHT_DIGITS, b"1,2")
    worded = light_text([A]).replace(b"0" * LIGHT_DIGITS, b"one")
    other = light_text([A]).replace(b"%LMQ%", b"other")
    endless = light_text([A]).replace(b"0" * LIGHT_DIGITS, b"9" * 5000)
    view, marks = foreign(fine, odd, worded, other, endless)
    assert [(name, first) for name, first, _ in light_runs(view, 0, marks)] == [(A, 0)]
    view, marks = foreign(fine, topic="SCHEDULE_TOPIC_XXXX")
    assert len(marks) == 1
    assert list(light_runs(view, 0, marks)) == []
    assert list(light_runs(memoryview(bytes(100)), 0, [(0, b"%LMQ%a")])) == []


def test_a_topic_of_the_stores_own_feeds_no_light_queue() -> None:
    """RocketMQ does not dispatch those; a section of one is refused."""
    encoder = RecordEncoder("SCHEDULE_TOPIC_XXXX", 0)
    encoder.add(b"x", properties=light_text([A]), born_timestamp=1)
    with pytest.raises(LightRefused, match="are entered in no light queue"):
        shares(memoryview(encoder.take()), 0)
