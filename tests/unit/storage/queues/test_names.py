"""Names of topics and light queues: which are legal."""

from __future__ import annotations

import pytest

from storage.queues.names import light_refusal, topic_refusal
from storage.state.controls import CreateTopic
from storage.state.layers import Layers
from storage.state.topics import State

RESERVED = ["rmq_sys_wheel_timer", "RMQ_SYS_TRANS_OP_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX"]


def test_names_as_long_as_rocketmq_takes_them() -> None:
    """127 bytes, and 255 of a retry topic."""
    assert topic_refusal("o" * 127) is None
    assert topic_refusal("o" * 128) == "a topic name has 1 to 127 characters"
    assert topic_refusal("%RETRY%" + "r" * 248) is None
    assert topic_refusal("%RETRY%" + "r" * 249) == "a topic name has 1 to 255 characters"
    assert topic_refusal("%DLQ%" + "d" * 123) is not None


@pytest.mark.parametrize(
    "name", ["", "x" * 128, "a b", "a/b", "ä", "TBW102", "rmq_sys_TWINLOG_X", "a\n", *RESERVED]
)
def test_illegal_topic_names(name: str) -> None:
    """RocketMQ's alphabet and lengths; the store's own and RocketMQ's own are taken."""
    assert topic_refusal(name) is not None
    assert CreateTopic(name, 1, 1).refusal(Layers()) is not None
    assert not CreateTopic(name, 1, 1).apply(State(), 0), "of a version that knew less"


@pytest.mark.parametrize(
    ("name", "told"),
    [("%LMQ%a", None), ("orders", "is not a light queue"), ("%LMQ%", "is not a light queue"),
     ("%LMQ%" + "x" * 128, "1 to 127 characters"), ("%LMQ%a b", "letters, digits")],
)  # fmt: skip
def test_names_of_light_queues(name: str, told: str | None) -> None:
    """A prefix, and then what a topic may be called; one is a queue, and no topic to be made."""
    refusal = light_refusal(name)
    assert refusal is None if told is None else told in str(refusal)
    assert State().queues(name) == (1 if told is None else None)
    if name.startswith("%LMQ%"):
        assert "is a light queue" in str(topic_refusal(name))
