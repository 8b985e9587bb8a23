"""Copies: what they keep of a message, what they add, and that a store takes them."""

from __future__ import annotations

import pytest

from storage import CreateTopic, Outcome, Section
from storage.messaging.copies import Copy, dead_letters, sent_back
from tests.fakes.disk import FakeDisk
from tests.stores.workbench import lead, open_store, settle, token
from twinlog.format.inner_batches import InnerEncoder
from twinlog.format.record import (
    PROPERTIES_SIZE_MAX,
    Record,
    RecordEncoder,
    decode,
    encode,
    encode_properties,
)
from twinlog.kernels import check_section

PROPERTIES = {"KEYS": "a b", "TAGS": "x", "TL_SEQ": "1.2.3", "INNER_MULTI_DISPATCH": "%LMQ%a",
              "INNER_MULTI_QUEUE_OFFSET": "0" * 19, "own": "first"}  # fmt: skip
ORIGINAL = encode(
    "orders", 3, b"body", queue_offset=8, log_offset=0x4711, properties=PROPERTIES, flag=7,
    born_timestamp=55, born_host=("10.1.2.3", 99), store_timestamp=66,
    store_host=("127.0.0.1", 10911), reconsume_times=2, prepared=12,
)  # fmt: skip
ID = "7F00000100002A9F0000000000004711"


def records(copy: Copy, family: int = 4) -> list[Record]:
    """The records of a section, which is one that a store takes."""
    refusal = check_section(
        copy.data, 0, len(copy.data), copy.records, copy.topic.encode(), copy.queue,
        body_max=1 << 20, family=family,
    )  # fmt: skip
    assert refusal is None
    found: list[Record] = []
    at = 0
    while at < len(copy.data):
        found.append(decode(copy.data, at))
        at += found[-1].size
    return found


@pytest.mark.parametrize("family", [4, 6])
def test_a_dead_letter_is_rocketmqs(family: int) -> None:
    """Golden 23: origin and topic, one attempt more; ours say why as well."""
    [one] = records(
        dead_letters([memoryview(ORIGINAL)], "billing", "rejected", family=family), family
    )
    assert (one.topic, one.queue, one.queue_offset, one.log_offset) == ("%DLQ%billing", 0, 0, 0)
    assert (one.body, one.flag, one.born_timestamp, one.born_host) == (
        b"body",
        7,
        55,
        "10.1.2.3:99",
    )
    assert (one.reconsume_times, one.prepared_transaction_offset, one.store_timestamp) == (3, 12, 0)
    assert list(one.properties.items()) == [
        ("KEYS", "a b"), ("TAGS", "x"), ("own", "first"), ("RETRY_TOPIC", "orders"),
        ("ORIGIN_MESSAGE_ID", ID), ("TL_WHY", "rejected"), ("DLQ_ORIGIN_TOPIC", "orders"),
        ("DLQ_ORIGIN_MESSAGE_ID", ID),
    ]  # fmt: skip


def test_what_was_retried_keeps_its_origin() -> None:
    """The first topic and the first message, and where this attempt was."""
    topic = "%RETRY%billing_orders"
    [again] = records(sent_back([ORIGINAL], topic, lambda offset: 1, pop_ms=1234))
    assert (again.topic, again.properties["1ST_POP_TIME"]) == ("%RETRY%billing_orders", "1234")
    assert again.reconsume_times == 3
    moved = encode(
        again.topic, 0, again.body, log_offset=0x9999, store_host=("127.0.0.1", 10911),
        properties={**again.properties, "RETRY_TOPIC": "orders", "ORIGIN_MESSAGE_ID": ID},
    )  # fmt: skip
    [dead] = records(dead_letters([moved], "billing", "attempts"))
    assert dead.properties["ORIGIN_MESSAGE_ID"] == ID
    assert dead.properties["RETRY_TOPIC"] == "orders"
    assert dead.properties["DLQ_ORIGIN_TOPIC"] == "%RETRY%billing_orders"
    assert dead.properties["DLQ_ORIGIN_MESSAGE_ID"] == ID.replace("4711", "9999")
    [kept] = records(sent_back([moved], topic, lambda offset: 2, pop_ms=5678))
    assert (kept.properties["1ST_POP_TIME"], kept.reconsume_times) == ("1234", 2)


def test_what_is_sent_back_is_as_rocketmqs_consumers_send_it() -> None:
    """Golden 23: where it was, which message it was, one attempt more; and nothing unwanted."""
    topic = "%RETRY%billing"
    [back] = records(sent_back([ORIGINAL], topic, lambda offset: 2))
    assert (back.topic, back.queue, back.reconsume_times) == (topic, 0, 4)
    named = [*back.properties.items()][-2:]
    assert named == [("RETRY_TOPIC", "orders"), ("ORIGIN_MESSAGE_ID", ID)]
    [again] = records(sent_back([encode(
        topic, 0, back.body, properties=back.properties, log_offset=0x9999,
    )], topic, lambda offset: 0))  # fmt: skip
    assert again.properties == back.properties
    assert sent_back([ORIGINAL], topic, lambda offset: None).records == 0


def test_messages_of_an_inner_batch_become_records() -> None:
    """A topic of dead letters has simple queues."""
    encoder = InnerEncoder(RecordEncoder("together", 0), 1 << 20)
    for number in range(3):
        text = encode_properties({"n": str(number)})
        encoder.add(b"%d" % number, text, sys_flag=0, born_timestamp=1, key=None, tag="x")
    data, *_ = encoder.take(b"")
    found = records(dead_letters([data], "billing", "attempts"))
    assert [one.body for one in found] == [b"0", b"1", b"2"]
    assert [one.properties["n"] for one in found] == ["0", "1", "2"]
    some = records(dead_letters([data], "billing", "attempts", wanted=lambda offset: offset == 1))
    assert [one.body for one in some] == [b"1"]


def test_properties_that_are_full_lose_nothing_of_their_own() -> None:
    """What is added is left out, the least important first."""
    long = {"own": "x" * (PROPERTIES_SIZE_MAX - 5 - 25)}
    assert len(encode_properties(long)) == PROPERTIES_SIZE_MAX - 25
    [one] = records(dead_letters([encode("orders", 0, b"", properties=long)], "g", "attempts"))
    assert one.properties == {**long, "RETRY_TOPIC": "orders"}


def test_a_store_takes_them() -> None:
    """Into a topic that was created as any other."""
    store = open_store(FakeDisk())
    lead(store, epoch=1)
    store.append_control(token(1), CreateTopic("%DLQ%billing", 1, 1), wall_ms=1000)
    settle(store)
    copy = dead_letters([ORIGINAL, ORIGINAL], "billing", "attempts")
    result = store.append_together(
        token(1), [Section(copy.topic, copy.queue, copy.records, copy.data)], [], wall_ms=2000
    )
    assert result.outcome is Outcome.STORED
    settle(store)
    assert store.reads.queue_range("%DLQ%billing", 0) == (0, 2)


def test_dead_letters_of_a_light_queue_go_by_its_offsets() -> None:
    """Which messages are meant is said in offsets of the light queue, not of their own."""
    data = b"".join(
        encode(
            "orders", 0, b"%d" % number, queue_offset=number,
            properties={"INNER_MULTI_DISPATCH": "%LMQ%x", "INNER_MULTI_QUEUE_OFFSET": str(light)},
        )
        for number, light in ((4, 0), (5, 1), (9, 2))
    )  # fmt: skip
    wanted = {1, 2}.__contains__
    copy = dead_letters([data], "billing", "attempts", wanted=wanted, light="%LMQ%x")
    assert [one.body for one in records(copy)] == [b"5", b"9"]
