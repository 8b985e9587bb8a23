"""What is said of a message: once, and refused in words when it cannot be stored."""

from __future__ import annotations

import typing

import pytest

from twinlog.errors import RecordRefused, UsageError
from twinlog.format.compression import parse_compression
from twinlog.producer.new_message import PLAIN, MessageFields, NewMessage, packed


def test_type_checkers_know_every_field() -> None:
    """`MessageFields` is what a send's keyword arguments are checked against."""
    assert typing.get_type_hints(MessageFields) == typing.get_type_hints(NewMessage)
    assert NewMessage() == PLAIN


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (NewMessage(key="a\ud800"), "key contains U+D800"),
        (NewMessage(tag="\udfff"), "tag contains U+DFFF"),
        (NewMessage("k", "\udfff"), "tag contains U+DFFF"),
        (NewMessage(order_key="\ud801"), "order_key contains U+D801"),
        (NewMessage(properties={"name": "x\ud800"}), "property name contains U+D800"),
        (NewMessage(properties={"x\ud800": "v"}), "the name of a property contains U+D800"),
    ],
)
def test_a_lone_surrogate_is_refused_by_name(message: NewMessage, text: str) -> None:
    """UTF-8 has no bytes for it, so no reader could be given it back."""
    with pytest.raises(RecordRefused, match="which UTF-8 cannot represent") as caught:
        message.text()
    assert caught.value.text.startswith(text)
    assert caught.value.text.isascii(), "it can be printed anywhere"


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"key": 42}, "key must be text, not int"),
        ({"key": 42, "tag": "t"}, "key must be text, not int"),
        ({"key": b"k"}, "key must be text, not bytes"),
        ({"tag": 42}, "tag must be text, not int"),
        ({"key": "k", "tag": 42}, "tag must be text, not int"),
        ({"order_key": 42}, "order_key must be text, not int"),
        ({"properties": {"a": 1}}, "property a must be text, not int"),
        ({"properties": {1: "a"}}, "the name of a property must be text, not int"),
        ({"properties": ["a"]}, "properties must be a mapping of text to text, not list"),
        ({"properties": {"a": None}}, "property 'a' is empty"),
        ({"queue": "1"}, "queue must be a whole number, not str"),
        ({"queue": 1.0}, "queue must be a whole number, not float"),
        ({"born_ms": "1"}, "born_ms must be a whole number, not str"),
        ({"light": 5}, "light must be a sequence of names, not int"),
        ({"light": [5]}, "the name of a light queue must be text, not int"),
    ],
)
def test_an_argument_of_another_type_is_named(fields: dict[str, typing.Any], text: str) -> None:
    """Nothing is written in another form than the caller meant."""
    with pytest.raises(UsageError) as caught:
        NewMessage(**fields).text()
    assert caught.value.text == text


def test_a_body_must_be_bytes() -> None:
    """Text has many encodings; the caller chooses one."""
    with pytest.raises(UsageError, match="must be bytes, not str") as caught:
        packed(parse_compression("zlib"), "x" * 9000)  # type: ignore[arg-type]
    assert caught.value.hint == "encode text: body.encode()"
