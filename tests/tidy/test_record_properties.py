"""What a caller can say of a message is known everywhere: forgetting a place fails, and names it.

A new property is added in `twinlog.producer.new_message`; the table below then asks for the rest.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path
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

RECIPE = Path(__file__).parents[2] / "docs" / "contributing.md"
FILES_MAX = 8
"""Files of the source that a new property touches."""

ALSO = {"cli/group/dead_letters.py": "sends a stored message again"}
"""Files that spell properties besides those of the recipe, and why."""

SENT = {column.field: (name,) for name, column in COLUMNS.items() if column.field}
"""Columns of the sink by the field of `NewMessage` that they are."""

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
        "order_key",
    ),
    "properties": Places("header", "properties", "properties", "properties"),
    "light": Places(
        "light",
        NOWHERE,  # rows go to topics
        "properties",
        "properties",
    ),
    "queue": Places("queue", "queue_id", "queue", "queue_id"),
    "delay_level": Places(
        "delay_level",
        NOWHERE,  # rows are written at once
        "properties",
        "properties",
    ),
    "delay": Places(
        "delay",
        NOWHERE,  # rows are written at once
        "properties",
        "properties",
    ),
    "at": Places(
        "at",
        NOWHERE,  # rows are written at once
        "properties",
        "properties",
    ),
    "transaction": Places(
        NOWHERE,  # a message sent by hand is of no transaction
        NOWHERE,  # rows are committed by their batches
        "properties",
        "properties",
    ),
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
        "twinlog/spark/sink/settings.py, COLUMNS": (places.sink, SENT.get(field, ())),
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


def test_the_recipe_is_short_and_names_every_place() -> None:
    """The section in docs/contributing.md: at most eight files of the source, and these exist."""
    text = RECIPE.read_text(encoding="utf-8")
    section = text.partition("### A property of a record")[2].partition("\n### ")[0]
    named = set(re.findall(r"`((?:twinlog|storage|replication|node|cli)/[\w/]+\.py)`", section))
    assert named and all((RECIPE.parents[1] / name).exists() for name in named)
    assert len(named) <= FILES_MAX, sorted(named)


def test_no_other_file_spells_the_properties_of_a_message() -> None:
    """One that is in `PLACES` by the names of this recipe is not written out anywhere else.

    ``born_ms`` and ``order_key`` are words that mean nothing but these fields.
    """
    root = RECIPE.parents[1]
    text = RECIPE.read_text(encoding="utf-8")
    section = text.partition("### A property of a record")[2].partition("\n### ")[0]
    spelled = {
        path.relative_to(root).as_posix()
        for folder in ("cli", "twinlog/client", "twinlog/producer", "twinlog/spark")
        for path in (root / folder).rglob("*.py")
        for word in re.findall(r"\b(?:born_ms|order_key)=", path.read_text(encoding="utf-8"))
    }
    others = sorted(path for path in spelled - set(ALSO) if f"`{path}`" not in section)
    assert not others, f"take the fields from `NewMessage` or a table: {others}"
