"""Queues of one transaction: the 65th is refused before anything is sent."""

from __future__ import annotations

import pytest

from twinlog.client.transactions import Sent
from twinlog.errors import UsageError
from twinlog.format.record import decode_properties
from twinlog.producer.lane import Lanes
from twinlog.producer.new_message import NewMessage
from twinlog.producer.settings import Target


def lanes(topic: str) -> Lanes:
    """The lanes of a topic with 70 queues."""
    return Lanes(Target(topic, 70, 4, 1, 4 << 20, 1 << 30), 5)


def place(where: Lanes, message: NewMessage) -> int:
    """The queue that a message is for."""
    text = where.placed(message, 0)[1]
    return int(decode_properties(text)["REAL_QID"])


def test_a_commit_writes_to_64_queues_and_a_send_beyond_is_refused() -> None:
    tx = Sent("shop")
    orders, bills = lanes("orders"), lanes("bills")
    named = [place(orders, NewMessage(queue=queue, transaction=tx.name)) for queue in range(63)]
    assert named == [*range(63)]
    assert place(bills, NewMessage(transaction=tx.name)) == 0
    for topic, fields in ((orders, {"queue": 63}), (orders, {"order_key": "A"}),
                          (bills, {"queue": 1}), (lanes("more"), {})):  # fmt: skip
        with pytest.raises(UsageError, match="65th queue") as refused:
            topic.placed(NewMessage(transaction=tx.name, **fields), 0)  # type: ignore[arg-type]
        assert refused.value.code == "too-large"
    free = [place(orders, NewMessage(transaction=tx.name)) for _ in range(140)]
    assert set(free) == set(range(63)), "they take turns among those it writes to anyway"
    assert {place(bills, NewMessage(transaction=tx.name)) for _ in range(3)} == {0}
    other = Sent("shop")
    assert place(orders, NewMessage(queue=69, transaction=other.name)) == 69


def test_a_transaction_says_when_it_is_asked_about() -> None:
    tx = Sent("shop", "90 s")
    message = {"properties": {"a": "b"}}
    tx.take(b"x", message)  # type: ignore[arg-type]
    assert message == {
        "properties": {"a": "b", "CHECK_IMMUNITY_TIME_IN_SECONDS": "90"}, "transaction": tx.name,
    }  # fmt: skip
