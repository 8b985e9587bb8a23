"""Rows of groups as bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import msgpack
import pytest

from twinlog.format.group_rows import (
    DEAD_LETTER,
    LETTERS,
    AckRow,
    GivenUpRow,
    LeaseRow,
    MemberRow,
    Row,
    ShareRow,
    UnknownRow,
    decode_rows,
    encode_rows,
)

packb = cast("Callable[[object], bytes]", msgpack.packb)  # pyright: ignore
unpackb = cast("Callable[[bytes], object]", msgpack.unpackb)  # pyright: ignore

EACH: list[Row] = [
    kind._make(
        [
            f"text {number}" if hint == "str" else number
            for number, hint in enumerate(
                {"group": "str", "topic": "str", "why": "str", "name": "str"}.get(name, "int")
                for name in kind._fields
            )
        ]
    )
    for kind in LETTERS
]


def test_every_row_comes_back() -> None:
    """One of each kind."""
    assert decode_rows(encode_rows(EACH)) == EACH
    assert len(set(LETTERS.values())) == len(LETTERS) - 1, "a longer A is a message given up"


def test_the_bytes_are_those_of_the_specification() -> None:
    """Another program reads them by letter and place."""
    rows = [ShareRow(1, "g", "t", 0, 2, 7), LeaseRow(1, 1, 7, 32, 5, 6, 99, 1), AckRow(1, 1, 7, 38)]
    assert unpackb(encode_rows([*rows, MemberRow("g", 5, "w1", 1)])) == [
        1,
        ["S", 1, "g", "t", 0, 2, 7],
        ["L", 1, 1, 7, 32, 5, 6, 99, 1],
        ["A", 1, 1, 7, 38],
        ["M", "g", 5, "w1", 1],
    ]
    assert unpackb(encode_rows([GivenUpRow(1, 1, 7, 38, DEAD_LETTER)])) == [
        1,
        ["A", 1, 1, 7, 38, 1],
    ]
    assert len(encode_rows([AckRow(900, 40_000, 1_000_000, 1_000_255)])) <= 19 + 2


@pytest.mark.parametrize(
    "row",
    [
        [], "A", 7, None, ["A"], ["A", 1, 2, 3], ["A", 1, 2, 3, "4"], ["A", 1, 2, 3, 4.0],
        ["A", 1, 2, 3, True], ["A", 1, 2, 3, 4, "5"], ["L", 1, 2, 3, 4, 5, 6, 7, True],
        ["Z", 1, 2, 3], ["a", 1, 2, 3, 4], [65, 1, 2, 3, 4], {"A": 1},
    ],
)  # fmt: skip
def test_what_has_another_shape_changes_nothing(row: object) -> None:
    """The rows beside it count."""
    body = packb([1, ["F", 2], row, ["F", 3, "later"]])
    assert [type(one) is UnknownRow for one in decode_rows(body)] == [False, True, False]


@pytest.mark.parametrize(
    "body", [b"", b"\xc1", b"no msgpack", packb([2, ["F", 1]]), packb({}), packb([1.5])]
)
def test_what_is_no_body_is_one_unknown_row(body: bytes) -> None:
    """Of a later version, or of anybody."""
    assert [type(one) for one in decode_rows(body)] == [UnknownRow]
