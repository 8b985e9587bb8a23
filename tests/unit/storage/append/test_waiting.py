"""Records that wait for a delay level: what is stored, and what is refused whole."""

from __future__ import annotations

import pytest

from storage import CreateTopic, Outcome, Section
from storage.append.waiting import RESERVE
from tests.fakes.disk import FakeDisk
from tests.stores.records.delayed import delayed
from tests.stores.workbench import TOPIC, append, bodies, master, open_store, run, settle, token
from twinlog.format.record import RecordEncoder, encode_properties
from twinlog.format.system_topics import DELAY_TOPIC
from twinlog.format.waiting.delay_levels import waiting_text
from twinlog.kernels.fields import DELAY_LEVELS_MS


def made(*texts: bytes, queue: int = 2, topic: str = DELAY_TOPIC) -> Section:
    """A section of one record for each property text."""
    encoder = RecordEncoder(topic, queue)
    for text in texts:
        encoder.add(b"x", properties=text, born_timestamp=1)
    return Section(topic, queue, len(texts), encoder.take())


def test_a_delayed_record_is_in_the_queue_of_its_level_with_its_time() -> None:
    """As RocketMQ's: the tags code of the entry is store time + delay."""
    store = master(FakeDisk())
    [result] = append(store, delayed(3, 2))
    assert (result.outcome, result.queue_offset) == (Outcome.STORED, 0)
    settle(store)
    assert bodies(store, 2, DELAY_TOPIC) == [
        b"0/0/".ljust(20, b"."),
        b"0/1/".ljust(20, b"."),
    ]
    at = store.reads.timestamp + DELAY_LEVELS_MS[2]
    assert store.messaging.due(3, at - 1, 10) == []
    assert [one.due for one in store.messaging.due(3, at, 10)] == [at, at]
    assert len(store.messaging.due(3, at, 10, 1)) == 1
    assert store.messaging.delays_waiting(3) == 2


FINE = waiting_text(3, TOPIC, 0)


@pytest.mark.parametrize(
    ("texts", "code", "record"),
    [
        ([b""], "delay-level", 0),
        ([FINE, b""], "delay-level", 1),
        ([FINE, waiting_text(4, TOPIC, 0)], "delay-level", 1),
        ([FINE, waiting_text(3, "other", 0)], "delay-level", 1),
        ([waiting_text(3, "nowhere", 0)], "unknown-topic", -1),
        ([waiting_text(3, DELAY_TOPIC, 0)], "unknown-topic", -1),
        ([FINE, waiting_text(3, TOPIC, 4)], "unknown-queue", 1),
        ([encode_properties({"DELAY": "3", "REAL_TOPIC": TOPIC, "REAL_QID": "-1"})],
         "unknown-queue", 0),
        ([encode_properties({"DELAY": "03", "REAL_TOPIC": TOPIC, "REAL_QID": "1"})],
         "delay-level", 0),
        ([encode_properties({"DELAY": "3", "REAL_TOPIC": TOPIC})], "delay-level", 0),
        ([encode_properties({"REAL_TOPIC": TOPIC, "REAL_QID": "1"}), FINE], "delay-level", 0),
    ],
)  # fmt: skip
def test_a_section_that_does_not_say_where_it_goes_is_refused_whole(
    texts: list[bytes], code: str, record: int
) -> None:
    """A delivery must not fail later for a reason that is known now."""
    store = master(FakeDisk())
    before = store.end
    [result] = append(store, made(*texts))
    assert (result.outcome, result.code, result.record) == (Outcome.REFUSED, code, record)
    assert store.end == before


def test_the_copy_of_what_waits_fits_into_a_batch() -> None:
    """With the row that is appended with it: else it would hold its level for ever."""
    store = master(FakeDisk())
    most = store.settings.batch_length_max - RESERVE
    size = most - (len(delayed(1, 1, size=9).data) - 9)
    assert append(store, delayed(1, 1, size=size))[0].outcome is Outcome.STORED
    assert append(store, delayed(1, 1, size=size + 1))[0].code == "too-large"


def test_there_are_eighteen_levels() -> None:
    """Queue 18 would be level 19, which RocketMQ takes for 18."""
    store = master(FakeDisk())
    [result] = append(store, made(waiting_text(19, TOPIC, 0), queue=18))
    assert result.code == "unknown-queue"
    assert append(store, made(waiting_text(18, TOPIC, 0), queue=17))[0].outcome is Outcome.STORED


def test_a_topic_with_batch_queues_takes_no_delayed_messages() -> None:
    """A copy would be a record of another shape than the topic's."""
    store = master(FakeDisk())
    store.append_control(token(1), CreateTopic("batches", 1, 1, batch=True), wall_ms=1)
    settle(store)
    [result] = append(store, delayed(1, topic="batches"))
    assert result.code == "delay-level"


def test_a_delayed_message_is_in_no_light_queue() -> None:
    """Its copy would need numbers there that it cannot have yet."""
    store = master(FakeDisk())
    light = encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a"})
    room = encode_properties({"INNER_MULTI_QUEUE_OFFSET": "0" * 19})
    [result] = append(store, delayed(1, extra=light + room))
    assert result.code == "light-queues"


def test_each_topic_has_lines_of_its_own_in_a_level() -> None:
    """The senders of a client share a producer id, and all their delayed records a queue."""
    disk = FakeDisk()
    store = master(disk)
    store.append_control(token(1), CreateTopic("other", 1, 1), wall_ms=1)
    settle(store)
    one = delayed(2, 1, producer=7, sequence=0)
    two = delayed(2, 1, topic="other", producer=7, sequence=0, mark=9)
    assert [r.outcome for r in append(store, one, two)] == [Outcome.STORED] * 2
    assert [r.outcome for r in append(store, one, two)] == [Outcome.DUPLICATE] * 2
    settle(store)
    assert [r.outcome for r in append(store, one, two)] == [Outcome.DUPLICATE] * 2
    run(store, store.jobs.flush_job(thorough=True))
    run(store, store.jobs.snapshot_job(force=True))
    store.close(clean=True)
    again = open_store(disk)
    again.take_token(token(2))
    again.append_epoch(
        token(2), epoch=2, node="n1", session=2, wall_ms=1000, reason="test", by="test"
    )
    assert [r.outcome for r in append(again, one, two, epoch=2)] == [Outcome.DUPLICATE] * 2
    assert again.stored_before([one, two]) is not None
