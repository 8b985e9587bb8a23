"""The deciding parts: producers, control records, flush policy, recovery plans."""

from __future__ import annotations

import errno
import pickle
from dataclasses import replace

import pytest

from storage import Job, StoreSettings
from storage.epoch_history import EpochHistory, EpochPattern, EpochRecord, encode_epoch
from storage.errors import DiskError, DiskFull, IndexOff, disk_error
from storage.flusher import Flush, FlushPolicy
from storage.packing import number, pack, seal, text, unpack, unseal
from storage.producers import Done, Line, Producers, Verdict, judge
from storage.recovery import Found, Plan, plan
from storage.sections import Gathered, idempotent_sections, marks_of, parse_sequence
from storage.state import (
    CreateTopic,
    ForgetProducers,
    Layers,
    State,
    UnknownControl,
    decode_control,
    encode_control,
    light_refusal,
    topic_refusal,
)
from twinlog import kernels
from twinlog.errors import CorruptionError
from twinlog.layout import KIND_EPOCH, KIND_FILLER, KIND_RECORDS, BatchEntry, epoch_file_pack
from twinlog.record import RecordEncoder, encode_properties

# -- jobs


def test_names_as_long_as_rocketmq_takes_them() -> None:
    """127 bytes, and 255 of a retry topic."""
    assert topic_refusal("o" * 127) is None
    assert topic_refusal("o" * 128) == "a topic name has 1 to 127 characters"
    assert topic_refusal("%RETRY%" + "r" * 248) is None
    assert topic_refusal("%RETRY%" + "r" * 249) == "a topic name has 1 to 255 characters"
    assert topic_refusal("%DLQ%" + "d" * 123) is not None


def test_a_job_that_ends_with_any_exception_keeps_it() -> None:
    """What applies a job looks there: after a bug, too, no position moves."""

    def work() -> object:
        raise ValueError("a bug")

    job = Job("flush", work, lambda job: None)
    with pytest.raises(ValueError, match="a bug"):
        job.run()
    assert isinstance(job.error, ValueError)


# -- producers


def done(sequence: int, count: int = 2, *, digest: int = 5) -> Done:
    """A section that is in the log."""
    return Done(sequence, count, 100 + sequence, 1000 * sequence, 1000 * (sequence + 1), digest)


LINE = Line(1, (done(4), done(6), done(8)))


@pytest.mark.parametrize(
    ("line", "epoch", "sequence", "count", "digest", "verdict"),
    [
        (None, 0, 0, 1, 1, Verdict.NEXT),
        (None, 0, 5, 1, 1, Verdict.OUT_OF_ORDER),
        (LINE, 1, 10, 3, 9, Verdict.NEXT),
        (LINE, 1, 11, 3, 9, Verdict.OUT_OF_ORDER),
        (LINE, 1, 9, 3, 9, Verdict.OUT_OF_ORDER),
        (LINE, 1, 6, 2, 5, Verdict.DUPLICATE),
        (LINE, 1, 6, 2, 6, Verdict.ANOTHER),
        (LINE, 1, 6, 3, 5, Verdict.ANOTHER),
        (LINE, 1, 6, 2, 0, Verdict.DUPLICATE),
        (LINE, 1, 2, 2, 5, Verdict.DUPLICATE),
        (LINE, 1, 3, 2, 5, Verdict.OUT_OF_ORDER),
        (LINE, 0, 10, 2, 5, Verdict.OUT_OF_DATE),
        (LINE, 2, 0, 2, 5, Verdict.NEXT),
        (LINE, 2, 10, 2, 5, Verdict.OUT_OF_ORDER),
    ],
)
def test_what_a_section_is_to_its_line(
    line: Line | None, epoch: int, sequence: int, count: int, digest: int, verdict: Verdict
) -> None:
    """Only last + 1 is stored; known ones are duplicates; all else is named."""
    assert judge(line, epoch, sequence, count, digest)[0] is verdict


def test_five_sections_are_kept_and_a_new_epoch_starts_anew() -> None:
    """An older one is a duplicate whose place is forgotten."""
    line = Line(0, ())
    for sequence in range(0, 14, 2):
        line = line.with_done(0, done(sequence))
    assert [one.sequence for one in line.done] == [4, 6, 8, 10, 12]
    assert judge(line, 0, 2, 2, 5) == (Verdict.DUPLICATE, None)
    assert line.with_done(1, done(0)).done == (done(0),)


def test_the_pending_layer_lies_over_the_confirmed_one() -> None:
    """A section is undone, dropped with its role, or taken over when it is confirmed."""
    key = (7, "t", 0)
    producers = Producers()
    assert producers.rebuild(key, 0, done(0), confirmed=True)
    assert not producers.rebuild(key, 0, done(0), confirmed=True)
    before = producers.append(key, 0, done(2))
    assert before is None
    second = producers.append(key, 0, done(4))
    producers.restore(key, second)
    line = producers.line(key)
    assert line is not None
    assert line.next == 4
    producers.restore(key, before)
    line = producers.line(key)
    assert line is not None
    assert line.next == 2
    assert producers.rebuild(key, 0, done(2), confirmed=False)
    assert not producers.rebuild(key, 0, done(2), confirmed=False)
    assert producers.rebuild(key, 0, done(2), confirmed=True)
    producers.forget_pending()
    assert [(one, line.next) for one, line in producers.confirmed()] == [(key, 4)]


def lined(ends: list[int]) -> Producers:
    """Confirmed lines of one section each, that end there."""
    producers = Producers()
    for producer, end in enumerate(ends):
        producers.load((producer, "t", 0), Line(0, (Done(0, 1, 0, end - 1, end, 5),)))
    return producers


def test_lines_are_forgotten_by_the_end_of_their_last_section() -> None:
    """Confirmed ones for good; by the master alone until a cut or a new role."""
    producers = lined([10, 20, 30])
    producers.append((7, "u", 0), 0, done(0))
    assert len(producers) == 3
    producers.forget(20, confirmed=False)
    assert [producers.line((number, "t", 0)) is None for number in range(3)] == [True, True, False]
    assert len(producers) == 3, "a slave still has them"
    producers.forget_pending()
    assert producers.line((0, "t", 0)) is not None
    producers.forget(20, confirmed=True)
    assert [key[0] for key, _ in producers.confirmed()] == [2]
    late = producers.append((9, "t", 0), 0, Done(0, 1, 0, 90, 100, 5))
    assert late is None
    producers.forget(99, confirmed=False)
    assert producers.line((9, "t", 0)) is not None
    producers.forget(100, confirmed=False)
    assert producers.line((9, "t", 0)) is None


def test_which_lines_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old ones beyond those that are kept anyhow; any beyond the most there may be."""
    monkeypatch.setattr("storage.producers.LINES_KEPT", 4)
    monkeypatch.setattr("storage.producers.LINES_MAX", 9)
    assert lined([1, 2, 3, 4]).stale_below(1 << 40) == 0
    more = lined([1, 2, 3, 4, 5, 6, 7])
    assert more.stale_below(1 << 40) == 3, "the oldest go, and as many stay as are kept"
    assert more.stale_below(2) == 2
    assert more.stale_below(0) == 0, "none is old"
    assert lined(list(range(1, 11))).stale_below(0) == 6, "nobody has a right to so many"


@pytest.mark.parametrize(
    "value",
    [b"", b"ff.1.2.3", b"00000000000000ff.1.2", b"00000000000000zz.1.2.3", b"0" * 16 + b".1.2.3",
     b"00000000000000ff.1.x.3", b"00000000000000ff.1.2.0", b"00000000000000ff.-1.2.3"],
)  # fmt: skip
def test_other_texts_are_no_sequences(value: bytes) -> None:
    """A property that somebody else wrote says nothing."""
    assert parse_sequence(value) is None


# -- control records


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", pack({"kind": "later"}), pack({"kind": "create-topic"}), b"\x93\1\2\3"]
)
def test_a_control_record_of_another_kind_changes_nothing(body: bytes) -> None:
    """Applying is total: what cannot be read is kept in the log and passed over."""
    state = State()
    change = decode_control(body)
    assert isinstance(change, UnknownControl)
    assert not state.apply(change)
    assert decode_control(encode_control(change)) == change


def test_state_is_a_function_of_its_records() -> None:
    """Illegal and repeated creations change nothing anywhere."""
    state = State()
    for change, changed in [
        (CreateTopic("a", 2, 1), True),
        (CreateTopic("a", 9, 1), False),
        (CreateTopic("rmq_sys_TWINLOG_META", 1, 1), False),
        (CreateTopic("b", 0, 1), False),
        (CreateTopic("c/d", 1, 1), False),
    ]:
        assert state.apply(change) is changed
    assert state.queues("a") == 2
    assert state.queues("rmq_sys_TWINLOG_META") == 1
    assert state.queues("b") is None


@pytest.mark.parametrize(
    "name", ["", "x" * 128, "a b", "a/b", "ä", "TBW102", "rmq_sys_TWINLOG_X", "a\n"]
)
def test_illegal_topic_names(name: str) -> None:
    """RocketMQ's alphabet and lengths; the store's own and RocketMQ's own are taken."""
    assert topic_refusal(name) is not None
    assert Layers().refusal(CreateTopic(name, 1, 1)) is not None
    assert not State().apply(CreateTopic(name, 1, 1)), "of a version that knew less"


@pytest.mark.parametrize(
    ("name", "told"),
    [("%LMQ%a", None), ("orders", "is no light queue"), ("%LMQ%", "is no light queue"),
     ("%LMQ%" + "x" * 128, "1 to 127 characters"), ("%LMQ%a b", "letters, digits")],
)  # fmt: skip
def test_names_of_light_queues(name: str, told: str | None) -> None:
    """A prefix, and then what a topic may be called; one is a queue, and no topic to be made."""
    refusal = light_refusal(name)
    assert refusal is None if told is None else told in str(refusal)
    assert State().queues(name) == (1 if told is None else None)
    if name.startswith("%LMQ%"):
        assert "is a light queue" in str(topic_refusal(name))


def test_what_a_master_forgets_is_always_allowed() -> None:
    """And a kind of queues is as fixed as their number."""
    assert Layers().refusal(ForgetProducers(7)) is None
    for change in (ForgetProducers(7), UnknownControl("odd"), CreateTopic("t", 1, 2, batch=True)):
        assert decode_control(encode_control(change)) == change
    layers = Layers()
    layers.append(10, CreateTopic("b", 2, 1, batch=True))
    layers.append(20, CreateTopic("s", 2, 1))
    assert layers.batched() == {b"b"}
    for confirm in (0, 100):
        layers.confirm(confirm)
        told = ("topic-exists", "topic b exists with batch queues")
        assert layers.refusal(CreateTopic("b", 2, 1)) == told
        told = ("topic-exists", "topic s exists with simple queues")
        assert layers.refusal(CreateTopic("s", 2, 1, batch=True)) == told
        assert layers.refusal(CreateTopic("b", 2, 1, batch=True)) is None


def test_layers_apply_in_order_and_forget_from_the_end() -> None:
    """A cut drops what lay beyond it, a confirm applies what lies below."""
    layers = Layers()
    layers.append(100, CreateTopic("a", 1, 1))
    layers.append(200, CreateTopic("b", 2, 1))
    layers.append(300, CreateTopic("c", 3, 1))
    assert layers.existing("b") == (2, 200, False)
    assert layers.existing("z") is None
    layers.cut(200)
    assert layers.topics_waiting()
    assert set(layers.whole().topics) == {"a", "b"}
    assert not layers.confirmed.topics
    assert layers.confirm(150)
    assert not layers.confirm(150)
    assert set(layers.confirmed.topics) == {"a"}
    assert layers.existing("a") == (1, 0, False)
    assert layers.confirm(1000)
    assert set(layers.confirmed.topics) == {"a", "b"}
    assert not layers.topics_waiting()
    assert layers.whole() is layers.confirmed
    assert layers.refusal(CreateTopic("d", 1 << 20, 1)) is not None
    assert layers.refusal(CreateTopic("b", 3, 1)) == (
        "topic-exists",
        "topic b exists with 2 queues",
    )
    assert layers.refusal(CreateTopic("b", 2, 1)) is None
    assert layers.refusal(UnknownControl("x")) is not None


# -- small maps


def test_sealed_maps_are_proven() -> None:
    """A wrong CRC, a short file, another shape and another type are all corruption."""
    sealed = seal({"a": 1, "b": "x"})
    fields = unseal(sealed)
    assert (number(fields, "a"), text(fields, "b")) == (1, "x")
    for bad in (sealed[:-1], b"", b"\0" * 5, bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(CorruptionError):
            unseal(bad)
    with pytest.raises(CorruptionError):
        unpack(b"\x01")
    with pytest.raises(CorruptionError):
        number(fields, "b")
    with pytest.raises(CorruptionError):
        text(fields, "a")


def test_a_full_quota_is_a_full_disk() -> None:
    """And an error without a number is one of input and output."""
    for errno_, kind in (
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, DiskError),
    ):
        found = disk_error("op", "path", OSError(errno_, "text"))
        assert (type(found), found.errno) == (kind, errno_)
    assert disk_error("op", "path", OSError("no number")).errno == errno.EIO


def test_disk_errors_travel_between_processes() -> None:
    """They name operation, path and error, and can be pickled."""
    error = pickle.loads(pickle.dumps(DiskFull("log.roll", "commitlog/0", 28)))
    assert (type(error), error.op, error.path, error.errno) == (
        DiskFull, "log.roll", "commitlog/0", 28,
    )  # fmt: skip
    assert "ENOSPC" in str(error)
    assert str(DiskError("x", "y", 9999)).endswith("9999")


# -- flush policy


def test_sync_flushes_for_whoever_waits_one_at_a_time() -> None:
    """Those who come while a flush runs are served by the next one."""
    policy = FlushPolicy(StoreSettings(flush="sync"), 0.0)
    assert policy.decide(0.0, flushed=10, end=10, wanted=10) is Flush.NOTHING
    assert policy.decide(0.0, flushed=0, end=10, wanted=10) is Flush.THOROUGH
    policy.began()
    assert policy.decide(0.0, flushed=0, end=20, wanted=20) is Flush.NOTHING
    assert policy.deadline(flushed=0, end=20) is None
    policy.ended(0.1, flushed=10, end=20)
    assert policy.decide(0.1, flushed=10, end=20, wanted=20) is Flush.THOROUGH


def test_async_flushes_pages_each_interval_and_everything_now_and_then() -> None:
    """500 ms with four dirty pages, 10 s with one dirty byte, at once for one who waits."""
    policy = FlushPolicy(StoreSettings(), 0.0)
    assert policy.decide(0.4, flushed=0, end=1 << 20, wanted=0) is Flush.NOTHING
    assert policy.deadline(flushed=0, end=1 << 20) == 0.5
    assert policy.decide(0.5, flushed=0, end=1 << 20, wanted=0) is Flush.PAGES
    policy.began()
    policy.ended(0.6, flushed=1 << 20, end=1 << 20)
    assert policy.deadline(flushed=5, end=5) is None
    assert policy.decide(1.2, flushed=0, end=100, wanted=0) is Flush.NOTHING
    assert policy.decide(1.2, flushed=0, end=100, wanted=50) is Flush.THOROUGH
    assert policy.decide(10.7, flushed=0, end=100, wanted=0) is Flush.THOROUGH


def test_four_dirty_pages_are_flushed_at_once_on_wish() -> None:
    """``flush_on_write`` waits for no interval."""
    for wish, found in ((True, Flush.PAGES), (False, Flush.NOTHING)):
        policy = FlushPolicy(StoreSettings(flush_on_write=wish), 0.0)
        assert policy.decide(0.1, flushed=0, end=4 * 4096 - 1, wanted=0) is Flush.NOTHING
        assert policy.decide(0.1, flushed=0, end=4 * 4096, wanted=0) is found


# -- recovery

SIZE = 1000


def entry(
    start: int, length: int, *, kind: int = KIND_RECORDS, epoch: int = 1, flushed: int = 0
) -> BatchEntry:
    """One batch entry."""
    return BatchEntry(start, length, 1, epoch, 0, 0, kind, flushed)


def recover(
    *files: tuple[int, list[BatchEntry]], flushed: int = 0, bad: int = -1, prove_from: int = 0
) -> Plan:
    """The plan for files of given entries, in which the batch at ``bad`` does not match."""
    found = [
        Found(start, SIZE, b"".join(one.pack() for one in entries).ljust(480, b"\0"))
        for start, entries in files
    ]
    return plan(
        found, segment_size=SIZE, prove_from=prove_from, flushed=flushed,
        check=lambda one: "bad" if one.start == bad else None,
    )  # fmt: skip


HEAD = entry(0, 100, kind=KIND_EPOCH)
FULL = [HEAD, entry(100, 500), entry(600, 400, kind=KIND_FILLER)]
NEXT = [entry(1000, 100, kind=KIND_EPOCH), entry(1100, 200, flushed=600)]


def test_a_whole_log_ends_behind_its_last_entry() -> None:
    """Over files; the largest flushed offset is that of any entry."""
    found = recover((0, FULL), (1000, NEXT))
    assert found == Plan(1300, 600, {0: 3, 1000: 2}, 0)
    assert recover() == Plan(0, 0, {}, 0)


@pytest.mark.parametrize(
    ("files", "end"),
    [
        ([(0, [HEAD, entry(150, 50)])], 100),
        ([(0, [HEAD, entry(100, 950)])], 100),
        ([(0, [HEAD, entry(100, 900)])], 100),
        ([(0, [HEAD, entry(100, 100, kind=KIND_FILLER)])], 100),
        ([(0, [entry(0, 100)])], 0),
        ([(0, [entry(0, 9, kind=KIND_EPOCH, epoch=2), entry(9, 9, epoch=1)])], 9),
        ([(0, [HEAD, entry(100, 500)]), (1000, NEXT[:1])], 600),
        ([(0, FULL), (2000, NEXT)], 1000),
    ],
)
def test_a_batch_that_breaks_a_rule_ends_the_log(
    files: list[tuple[int, list[BatchEntry]]], end: int
) -> None:
    """Not continued, beyond its file, no filler, no epoch record, a lower epoch, a file missing."""
    found = recover(*files)
    assert (found.end, found.damage) == (end, None)
    if end:
        damaged = recover(*files, flushed=end + 1).damage
        assert damaged is not None
        assert damaged.offset == end


def test_an_index_without_zeros_behind_its_entries_is_at_its_end() -> None:
    """A file that grew exactly so far, or holds a piece of an entry, ends the log there."""
    for tail in (b"", b"\0" * 20, HEAD.pack()[:20]):
        found = plan(
            [Found(0, SIZE, HEAD.pack() + tail)], segment_size=SIZE, prove_from=0, flushed=0,
            check=lambda _: None,
        )  # fmt: skip
        assert (found.end, found.counts, found.damage) == (100, {0: 1}, None)


def test_bytes_are_looked_at_from_a_point_on() -> None:
    """Below it a batch is believed, above it a mismatch is a torn tail or damage."""
    assert recover((0, FULL), (1000, NEXT), bad=100, prove_from=600).end == 1300
    torn = recover((0, FULL), (1000, NEXT[:1]), bad=1000)
    assert (torn.end, torn.cut_batches, torn.damage) == (1000, 1, None)
    named = recover((0, FULL), (1000, NEXT), bad=100)
    assert named.damage is not None
    assert (named.damage.offset, named.damage.length) == (100, 500)
    assert named.damage.file.startswith("commitlog/")


def test_a_file_of_another_length_is_missing() -> None:
    """A log file that is shorter than it must be proves nothing."""
    raw = b"".join(one.pack() for one in FULL)
    found = plan(
        [Found(0, 10, raw)], segment_size=SIZE, prove_from=0, flushed=0, check=lambda _: None
    )
    assert (found.end, found.cut_batches) == (0, 3)


def test_a_log_that_ends_early_without_a_file() -> None:
    """The checkpoint names more than there is, and no file tells why."""
    found = plan([], segment_size=SIZE, prove_from=0, flushed=50, check=lambda _: None)
    assert found.damage is not None
    assert "before its flushed offset" in found.damage.what


# -- epochs along the log


def record(epoch: int, start: int, previous: int = 0) -> EpochRecord:
    """An epoch record."""
    return EpochRecord(epoch, start, "n1", 1, 0, previous, 0, 0, "test", "test")


def history(*epochs: tuple[int, int]) -> EpochHistory:
    """A history of epochs and their starts."""
    found = EpochHistory()
    for epoch, start in epochs:
        assert found.add(record(epoch, start))
    return found


TWO = ((1, 0), (3, 500))


@pytest.mark.parametrize(
    ("epochs", "value", "at", "refused"),
    [
        (TWO, record(3, 500, 1), 900, ""),
        (TWO, record(3, 501, 1), 900, "another start"),
        (TWO, record(2, 900, 3), 900, "older than the last"),
        (TWO, record(4, 900, 3), 900, ""),
        (TWO, record(4, 901, 3), 900, "does not start at its record"),
        (TWO, record(4, 900, 2), 900, "follows another one"),
        ((), record(4, 100, 3), 900, ""),
        ((), record(4, 901, 3), 900, "starts behind its record"),
    ],
)
def test_an_epoch_record_continues_the_history(
    epochs: tuple[tuple[int, int], ...], value: EpochRecord, at: int, refused: str
) -> None:
    """At the head of a file it repeats; else it opens the next epoch, at its own place."""
    found = history(*epochs).refusal(value, at)
    assert found is None if not refused else refused in str(found)


def test_an_epoch_is_entered_once() -> None:
    """By its record, or by the filler before it; a cut takes it out again."""
    found = history(*TWO)
    assert not found.add(record(3, 500))
    found.open(3, 700)
    found.open(5, 900)
    assert [(one.epoch, one.start) for one in found.epochs] == [*TWO, (5, 900)]
    assert found.file() == epoch_file_pack([*TWO, (5, 900)])
    found.cut(900)
    assert (found.last, found.last_start) == (3, 500)
    found.cut(0)
    assert (found.last, found.last_start, found.epochs) == (0, 0, ())


# -- sections in the log


def in_log(
    *sections: tuple[int, int, int],
) -> tuple[memoryview, Gathered]:
    """Records of queue 0 as they lie in the log: (records, sequence said, records said) each."""
    data, at = bytearray(), 0
    for count, sequence, said in sections:
        encoder = RecordEncoder("t", 0)
        for each in range(count):
            text = f"{9:016x}.0.{sequence}.{said}" if each == 0 else ""
            encoder.add(b"x", properties=encode_properties({"TL_SEQ": text} if text else {}),
                        born_timestamp=1)  # fmt: skip
        part = encoder.take()
        kernels.patch_section(part, 0, len(part), log_offset=1000 + len(data), queue_offset=at,
                              store_timestamp=5, store_host=bytes(8))  # fmt: skip
        data += part
        at += count
    view = memoryview(bytes(data))
    return view, Gathered(kernels.gather_queues(view, 0, len(view), 1000))


def sequences(view: memoryview, gathered: Gathered) -> list[int]:
    """Sequences of the idempotent sections that are found."""
    marks, _ = marks_of(view)
    return [one[4].sequence for one in idempotent_sections(view, 1000, gathered, marks)]


def test_a_section_in_the_log_is_what_its_property_says() -> None:
    """One that names more records than there are, or stands inside another one, is none."""
    assert sequences(*in_log((2, 0, 2), (1, 2, 1))) == [0, 2]
    assert sequences(*in_log((2, 0, 2), (1, 2, 5))) == [0]
    assert sequences(*in_log((1, 0, 2), (1, 1, 1), (1, 2, 1))) == [0, 2]
    view, gathered = in_log((1, 0, 1))
    assert list(idempotent_sections(view, 1000, gathered, [(0, b"no sequence")])) == []


def test_a_section_of_a_batch_queue_ends_with_its_units() -> None:
    """Records are counted, not messages; one that is not there, or not whole, is no section."""
    for sections, found in (
        (((2, 0, 2), (3, 2, 3)), [0, 2]),
        (((2, 0, 2), (3, 2, 4)), [0]),
        (((1, 0, 2), (1, 1, 1), (1, 2, 1)), [0, 2]),
    ):
        view, _ = in_log(*sections)
        units = kernels.gather_units(view, 0, len(view), 1000, {b"t"})
        others = [(b"u", *units[0][1:]), (b"t", 7, *units[0][2:])]
        assert sequences(view, Gathered((), [*others, *units])) == found
        assert sequences(view, Gathered((), others)) == []
    [(topic, queue, first, behind, whole)] = units
    late = [(topic, queue, first, behind, whole[46:])]
    assert sequences(view, Gathered((), late)) == [1, 2], "the first unit is of another stretch"
    marks = marks_of(view)[0]
    ends = [one[4].end for one in idempotent_sections(view, 1000, Gathered((), units), marks)]
    assert ends[-1] == 1000 + len(view)


def test_a_node_without_a_key_index_says_how_to_go_on() -> None:
    """It will never answer: who asks need not ask again."""
    error = IndexOff.of_node()
    assert (error.code, error.retryable) == ("index-off", False)
    assert "key_index = true" in str(error.hint)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_an_epoch_record_by_its_pattern_is_the_encoded_one(host: str) -> None:
    """Whatever differs from file to file; chains of fewer bytes are left to the encoder."""
    value = EpochRecord(3, 700, "n1", 1 << 60, 1_700_000_000_000, 2, 650, 700, "kill", "n2")
    pattern = EpochPattern(value, (host, 7410))
    for chain, place in ((1 << 16, 0), (0xFFFFFFFF, 1 << 40), (123_456_789, 1024)):
        places = {"log_offset": place, "queue_offset": place // 9, "store_timestamp": place + 5}
        encoded = encode_epoch(replace(value, chain=chain), **places, store_host=(host, 7410))
        assert pattern.fill(**places, chain=chain) == encoded
    assert pattern.fill(log_offset=0, queue_offset=0, store_timestamp=0, chain=65_535) is None
