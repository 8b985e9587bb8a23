"""What an answer to a request to create a topic means."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from twinlog.client.calls import topic_created
from twinlog.errors import TwinlogError, Unavailable, UsageError
from twinlog.wire.frames import ANSWER, Frame, Type


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
