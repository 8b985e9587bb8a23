"""What names one message: a place in a queue, a place in the log, or a message id."""

from __future__ import annotations

from twinlog.errors import UsageError
from twinlog.units import parse_whole


def parse_address(text: str) -> tuple[str, int, int]:
    """Return (topic, queue, queue offset), or ("", -1, log offset), that an address names.

    Raises:
        UsageError: It is no ``topic/queue@offset``, ``log@offset`` or message id.

    >>> parse_address("orders/3@1187"), parse_address("log@4096")
    (('orders', 3, 1187), ('', -1, 4096))
    >>> parse_address("7F00000100002A9F0000000000001000")
    ('', -1, 4096)
    """
    UsageError.check_text("the address of a message", text)
    if len(text) in (32, 56) and all(digit in "0123456789abcdefABCDEF" for digit in text):
        return "", -1, int(text[-16:], 16)
    place, _, offset = text.rpartition("@")
    topic, _, queue = place.rpartition("/")
    at, number = parse_whole(offset), parse_whole(queue)
    if at is not None and place == "log":
        return "", -1, at
    if at is not None and topic and number is not None:
        return topic, number, at
    hint = "write topic/queue@offset, log@offset or a message id"
    raise UsageError(f"{text!r} is not a valid message address", hint=hint)


def id_fields(address: str) -> dict[str, object]:
    """Return what a question for a message id adds: whose store the id speaks of.

    >>> id_fields("7F00000100002A9F0000000000001000")
    {'host': b'\x7f\x00\x00\x01\x00\x00*\x9f'}
    """
    return {} if "@" in address else {"host": bytes.fromhex(address[:-16])}
