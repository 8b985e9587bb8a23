"""What the clients make of single answers: topics, light queues, inner batches, searches."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import pytest

from tests.unit.twinlog.test_inner_kernels import ROOM, TWO, batch, item
from twinlog import record
from twinlog.answers import topic_created
from twinlog.errors import CorruptionError, TwinlogError, Unavailable, UsageError
from twinlog.finding import Search, with_key
from twinlog.messages import in_light_queue, messages_of
from twinlog.wire import ANSWER, Frame, Type


@pytest.mark.parametrize(
    ("fields", "batch_wanted", "created"),
    [
        ({"queues": 4, "created": True, "batch": False}, False, True),
        ({"queues": 4, "created": False, "batch": True}, True, False),
        ({"queues": 4, "created": True}, False, True),
        ({"created": True, "batch": False}, False, True),
    ],
)
def test_a_topic_that_is_as_wanted(
    fields: Mapping[str, object], *, batch_wanted: bool, created: bool
) -> None:
    """Made now or before; a node of an older version names no kind."""
    answer = Frame(Type.TOPIC, ANSWER, fields=dict(fields))
    assert topic_created(answer, "t", 4, batch=batch_wanted) is created


@pytest.mark.parametrize(
    ("fields", "batch_wanted", "error", "text"),
    [
        ({"queues": 8}, False, UsageError, "topic t exists with 8 queues, not 4"),
        (
            {"queues": 4, "created": True},
            True,
            Unavailable,
            "the master does not know batch queues: topic t has simple ones now",
        ),
        ({"queues": 4}, True, UsageError, "topic t exists with simple queues, not batch ones"),
        (
            {"queues": 4, "batch": True},
            False,
            UsageError,
            "topic t exists with batch queues, not simple ones",
        ),
    ],
)
def test_a_topic_that_is_another(
    fields: Mapping[str, object], *, batch_wanted: bool, error: type[TwinlogError], text: str
) -> None:
    """Another number of queues or another kind is told, and what the master made of it."""
    answer = Frame(Type.TOPIC, ANSWER, fields=dict(fields))
    with pytest.raises(error) as caught:
        topic_created(answer, "t", 4, batch=batch_wanted)
    assert caught.value.text == text


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


def keyed(key: str | None) -> bytes:
    """A message of a batch, with a key and perhaps a unique id that is the same."""
    text = record.encode_properties({} if key is None else {"KEYS": key, "UNIQ_KEY": f"id-{key}"})
    return item(b"x", text)


@pytest.mark.parametrize(
    ("key", "unique", "found"),
    [
        ("b", False, [1]),
        ("c", False, [2, 1]),
        ("id-a", False, [0]),
        ("id-a", True, [0]),
        ("b", True, [2, 1, 0]),
        ("of the batch", True, [2, 1, 0]),
    ],
)
def test_messages_of_a_batch_are_found_by_their_own_keys(
    key: str, *, unique: bool, found: list[int]
) -> None:
    """Newest first; a key that none of them has is the batch's own, and all are meant."""
    messages = messages_of(batch(keyed("a") + keyed("b c") + keyed("c"), 3, ROOM))
    search = Search("t", key, unique=unique)
    assert [one.queue_offset for one in with_key(messages, search)] == found
    alone = messages_of(record.encode("t", 0, b"no key at all"))
    assert with_key(alone, search) == alone, "the node looked at its keys"
