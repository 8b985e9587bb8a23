"""What a caller can say of a message is known everywhere: forgetting a place fails, and names it.

A new property is added in `twinlog.producer.new_message`; the table below then asks for the rest.
"""

from __future__ import annotations

import inspect
from typing import NamedTuple

import pytest

from cli.message import send
from twinlog.client.aio import AsyncClient
from twinlog.client.blocking import Client
from twinlog.format.messages import Message
from twinlog.producer.aio import AsyncProducer
from twinlog.producer.blocking import Producer
from twinlog.producer.new_message import NewMessage
from twinlog.spark.plan.columns import TABLE
from twinlog.spark.sink.settings import COLUMNS

NOWHERE = ""
"""Not offered there, on purpose: the reason stands beside it."""


class Places(NamedTuple):
    """The names of one field of `NewMessage` where it is written and read."""

    option: str
    """Parameter of the command ``message send``."""
    sink: str
    """Column of the Spark sink."""
    message: str
    """Attribute of a message that was read."""
    source: str
    """Column of the Spark source."""


PLACES = {
    "key": Places("key", "key", "key", "key"),
    "tag": Places("tag", "tags", "tag", "tags"),
    "order_key": Places(
        NOWHERE,  # --queue chooses the queue of a message sent by hand
        "order_key",
        "properties",
        "properties",
    ),
    "properties": Places("header", "properties", "properties", "properties"),
    "light": Places(
        "light",
        NOWHERE,  # rows go to topics
        "properties",
        "properties",
    ),
    "queue": Places("queue", "queue_id", "queue", "queue_id"),
    "born_ms": Places(
        NOWHERE,  # what is sent by hand is born now
        "born_timestamp",
        "born_timestamp",
        "born_timestamp",
    ),
}


def test_every_field_has_its_places() -> None:
    """Add the field to `PLACES`, and to each place that it names."""
    missing = sorted(set(NewMessage._fields) - set(PLACES))
    assert not missing, f"say in PLACES where they are written and read: {', '.join(missing)}"
    assert set(PLACES) <= set(NewMessage._fields)


@pytest.mark.parametrize("field", PLACES)
def test_every_place_knows_the_field(field: str) -> None:
    """The command line, the Spark sink, messages and the Spark source."""
    places = PLACES[field]
    known = {
        "cli/message/send.py, an option": (places.option, inspect.signature(send.send).parameters),
        "twinlog/spark/sink/settings.py, COLUMNS": (places.sink, COLUMNS),
        "twinlog/format/messages.py, Message": (
            places.message,
            dir(Message),
        ),
        "twinlog/spark/plan/columns.py, TABLE": (places.source, {each.name for each in TABLE}),
    }
    for place, (name, names) in known.items():
        assert name == NOWHERE or name in names, f"{field}: add {name} to {place}"


@pytest.mark.parametrize(
    "send_", [Client.send, AsyncClient.send, Producer.send, AsyncProducer.send]
)
def test_no_send_names_a_field_itself(send_: object) -> None:
    """They take `MessageFields`, so a new field is one of their arguments already."""
    assert callable(send_)
    assert not set(inspect.signature(send_).parameters) & set(NewMessage._fields)
