"""Messages as callers get them: in light queues, and out of inner batches."""

from __future__ import annotations

import copy
import pickle
import sys
import zlib
from dataclasses import FrozenInstanceError

import pytest

from tests.stores.records.inner import TWO, batch
from twinlog.errors import CorruptionError
from twinlog.format import record
from twinlog.format.messages import in_light_queue, messages_of


@pytest.mark.parametrize(
    ("names", "offsets", "found"),
    [
        ("%LMQ%a,%LMQ%b", "00012,7", 7),
        ("%LMQ%b", "3", 3),
        ("%LMQ%a", "12", None),
        ("%LMQ%a,%LMQ%b", "12", None),
        ("%LMQ%b", "-3", None),
        ("%LMQ%b", "\u0663", None),
        ("%LMQ%b", "9" * 5000, None),
        ("%LMQ%b", "0" * 5000 + "7", 7),
    ],
)
def test_a_message_in_a_light_queue(names: str, offsets: str, found: int | None) -> None:
    """It has that queue's name and number; one that does not name the queue is damage."""
    text = record.encode_properties(
        {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
    )
    data = record.encode("t", 3, b"x", queue_offset=5, log_offset=99, properties=text)
    [message] = messages_of(data)
    if found is None:
        with pytest.raises(CorruptionError, match="record at 99 does not say that it is in %LMQ%b"):
            in_light_queue(message, "%LMQ%b")
        return
    there = in_light_queue(message, "%LMQ%b")
    assert (there.topic, there.queue, there.queue_offset, there.body) == ("%LMQ%b", 0, found, b"x")
    assert (there.record.topic, there.record.queue) == ("t", 3)


def test_a_batch_that_is_compressed_as_a_whole() -> None:
    """RocketMQ compresses batches; each message inside is a message that is not compressed."""
    packed = batch(zlib.compress(TWO), 2, flags=0xC0 | 0x301)
    found = messages_of(packed)
    assert [(one.body, one.record.sys_flag) for one in found] == [(b"one", 0), (b"", 0)]
    assert found[0].properties["k"] == "v"


def answer_of(count: int, **more: int) -> bytes:
    """Records of a queue, one after the other, as a node answers."""
    text = record.encode_properties({"KEYS": "k", "TAGS": "a"})
    return b"".join(
        record.encode(
            "orders", 2, b"body %d" % at, properties=text, queue_offset=at, log_offset=at * 1000,
            born_timestamp=5, store_timestamp=7, **more,
        )
        for at in range(count)
    )  # fmt: skip


def test_a_message_is_decoded_when_it_is_looked_at() -> None:
    """Every field says what the record says, in whatever order they are asked for."""
    for name in ("body", "topic", "queue", "log_offset", "born_timestamp", "key", "record"):
        message = messages_of(answer_of(3))[2]
        assert message.queue_offset == 2
        getattr(message, name)
        assert (message.topic, message.queue, message.log_offset) == ("orders", 2, 2000)
        assert (message.body, message.key, message.tag) == (b"body 2", "k", "a")
        assert (message.born_timestamp, message.store_timestamp) == (5, 7)
        assert (message.record.body, message.record.topic) == (b"body 2", "orders")
        assert message.address == "orders/2@2"


def test_messages_keep_nothing_of_their_answer() -> None:
    """One kept out of a million must not hold a megabyte each, and the memory is used again."""
    data = answer_of(2)
    held = sys.getrefcount(data)
    room = bytearray(data)
    first, second = messages_of(data)
    third = messages_of(memoryview(room))[1]
    assert sys.getrefcount(data) == held
    room[:] = bytes(len(room))
    assert (first.body, second.key) == (b"body 0", "k")
    assert (third.body, third.key, third.log_offset) == (b"body 1", "k", 1000)


def test_messages_outside_the_wanted_offsets_are_left_out() -> None:
    """Those of an inner batch, too; what follows the last is not decompressed."""
    assert [one.queue_offset for one in messages_of(answer_of(5), 1, 3)] == [1, 2]
    packed = batch(TWO, 7)
    numbers = [one.queue_offset for one in messages_of(packed)]
    assert [one.queue_offset for one in messages_of(packed, numbers[1])] == numbers[1:]
    assert [one.queue_offset for one in messages_of(packed, 0, numbers[1])] == numbers[:1]
    broken = answer_of(3) + answer_of(1, sys_flag=0x301)
    assert len(messages_of(broken, 0, 2)) == 2
    with pytest.raises(CorruptionError):
        messages_of(broken, 0, 3)


def test_messages_are_values() -> None:
    """Equal ones are equal, a copy stands alone, and nothing assigns to one."""
    one, same, other = *messages_of(answer_of(1)), *messages_of(answer_of(2))
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != "orders/2@0"
    assert "queue_offset=0" in repr(one)
    assert pickle.loads(pickle.dumps(other)) == other == copy.copy(other)
    for change in (lambda: setattr(one, "body", b"x"), lambda: delattr(one, "body")):
        with pytest.raises(FrozenInstanceError):
            change()


def test_what_cannot_be_decompressed_is_said_when_it_is_read() -> None:
    """Not when somebody looks at the body later."""
    with pytest.raises(CorruptionError):
        messages_of(answer_of(1, sys_flag=0x301))
