"""Messages as text: the ``--format`` grammar, the JSON object, addresses."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from cli.failures import Exit, Failure
from cli.message.format import as_fields, parse_format
from cli.message.read import normal_address


@dataclass
class Shown:
    """A message."""

    body: bytes = b'{"id": 42}'
    topic: str = "orders"
    queue: int = 3
    queue_offset: int = 1187
    log_offset: int = 4096
    key: str | None = "42"
    tag: str | None = None
    born_timestamp: int = 1_700_000_000_000
    store_timestamp: int = 1_700_000_000_123
    properties: dict[str, str] = field(default_factory=lambda: {"KEYS": "42", "a": "1", "b": "2"})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("%q %o %k %v%n", '3 1187 42 {"id": 42}\n'),
        ("%t/%q@%o %O", "orders/3@1187 4096"),
        ("[%g] %h %s %%", "[] a=1,b=2 10 %"),
        ("%v{hex}", "7b226964223a2034327d"),
        ("%v{base64}", "eyJpZCI6IDQyfQ=="),
        ("%v{json}", '"{\\"id\\": 42}"'),
        ("%d", "2023-11-14T22:13:20.123Z"),
        ("%d{iso}\\t%d{unix}", "2023-11-14T22:13:20.123Z\t1700000000.123"),
        ("plain", "plain"),
    ],
)
def test_formats(text: str, shown: str) -> None:
    """Each letter and modifier of the grammar."""
    assert parse_format(text)(Shown()) == shown


@pytest.mark.parametrize("text", ["%", "%z", "%v{nonsense}", "%q{hex}", "%v{", "100%"])
def test_formats_that_mean_nothing(text: str) -> None:
    """Exit 64 for what the grammar does not have; an open brace is a brace."""
    if text == "%v{":
        assert parse_format(text)(Shown(body=b"x")) == "x{"
        return
    with pytest.raises(Failure) as caught:
        parse_format(text)
    assert caught.value.exit is Exit.USAGE


def test_a_body_that_is_no_text() -> None:
    """It is shown with replacements, and exactly as base64."""
    message = Shown(body=b"\xff\x00a")
    assert parse_format("%v")(message) == "\ufffd\x00a"
    fields = as_fields(message)
    assert fields["body_base64"] == "/wBh"
    assert "body" not in fields


def test_addresses() -> None:
    """Three forms; a message id carries its log offset in the last eight bytes."""
    assert normal_address("orders/3@7") == "orders/3@7"
    assert normal_address("log@4096") == "log@4096"
    wanted = "7F00000100002A9F00000000000000FF"
    assert normal_address(wanted.lower()) == wanted
    for text in ("orders", "orders/3", "log@", "7F00", "a/b@c"):
        with pytest.raises(Failure):
            normal_address(text)
