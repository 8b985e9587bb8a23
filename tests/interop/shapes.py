"""The records that the interop tests write: every shape that a producer of ours can make.

Not here: where they are written (the tests).
"""

from __future__ import annotations

from collections.abc import Iterator

from twinlog.format.record import RecordEncoder, encode_properties

SEGMENT_SIZE = 64 * 1024
QUEUE_ENTRIES = 50
ODD = "%RETRY%odd-sizes"
"""A topic of one queue with empty, bare and large records."""
SHAPES = {"flights": 4, ODD: 1, "x" * 127: 1}
"""Topics with their queues: an ordinary one, a retry topic, the longest name."""
FLAG_MULTI_TAGS, FLAG_PREPARED, FLAG_COMMIT = 2, 4, 8


def encoded(number: int, family: int = 4) -> Iterator[tuple[str, int, int, bytearray]]:
    """Yield the sections of one turn: topic, queue, count, records."""
    yield _flights(number, family)
    yield _odd(number, family)
    yield _flags(number, family)


def _flights(number: int, family: int) -> tuple[str, int, int, bytearray]:
    """Records with tag, key and a text of several alphabets."""
    encoder = RecordEncoder("flights", number % 4, family=family)
    for index in range(7):
        properties = {"KEYS": f"N{number}", "TAGS": "UA" if index % 2 else "DL", "text": "京漢"}
        encoder.add(
            f"{number}/{index}".encode() * (1 + index * 9),
            properties=encode_properties(properties),
            flag=number,
            born_timestamp=1_700_000_000_000 + number,
        )
    return "flights", number % 4, 7, encoder.take()


def _odd(number: int, family: int) -> tuple[str, int, int, bytearray]:
    """An empty body, none but a body, a large one, several keys, no tag."""
    encoder = RecordEncoder(ODD, 0, family=family)
    encoder.add(b"", properties=b"", born_timestamp=1)
    encoder.add(b"x" * (number % 100 * 13), properties=b"", born_timestamp=2)
    encoder.add(
        b"\0\xff\0", properties=encode_properties({"KEYS": "a b c"}), born_timestamp=3, flag=-1
    )
    return ODD, 0, 3, encoder.take()


def _flags(number: int, family: int) -> tuple[str, int, int, bytearray]:
    """Several tags at once, and the end of a transaction, in the topic with the longest name."""
    encoder = RecordEncoder("x" * 127, 0, family=family)
    for flags in (0, FLAG_MULTI_TAGS, FLAG_COMMIT):
        encoder.add(
            b"flags",
            properties=encode_properties({"TAGS": f"t{number}"}),
            sys_flag=flags,
            born_timestamp=4,
        )
    return "x" * 127, 0, 3, encoder.take()
