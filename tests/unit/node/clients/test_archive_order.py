"""The order by which an archive says what it has: what it must look like, and its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import pytest

from node.clients.admin import Admin
from storage.marks.archive_mark import ArchivedPart, Claim
from twinlog.errors import TwinlogError, UsageError

DIGEST = "ab" * 32


class Node:
    """A driver that answers at once."""

    def __init__(self, code: str = "ok", text: str = "") -> None:
        self.answer = code, text
        self.parts: list[ArchivedPart] = []
        self.claim = Claim()

    def archived(
        self,
        now: float,
        parts: Sequence[ArchivedPart],
        reply: Callable[[str, str], None],
        by: Claim,
    ) -> None:
        """Keep them."""
        self.claim = by
        self.parts += parts
        reply(*self.answer)


def order(node: Node, fields: Mapping[str, object]) -> Mapping[str, object] | TwinlogError:
    """Give the order."""
    admin = Admin(
        cast(Any, node),
        cast(Any, None),
        refusal=lambda code, text: TwinlogError(text, code=code),
        stop=lambda now: None,
        wall_ms=lambda: 0,
        groups=cast(Any, None),
    )
    answers: list[Mapping[str, object] | TwinlogError] = []
    admin.order({"op": "archived", **fields}, 0.0, answers.append)
    return answers[0]


def test_parts_arrive_and_the_new_mark_is_the_answer() -> None:
    """Start, end, digest."""
    node = Node()
    assert order(node, {"parts": [[0, 10, DIGEST], [10, 30, DIGEST]]}) == {"archived": 30}
    assert node.parts == [ArchivedPart(0, 10, DIGEST), ArchivedPart(10, 30, DIGEST)]


def test_the_order_says_which_archive_it_speaks_of() -> None:
    """And whether that one replaces the one before; an id has a limit."""
    node = Node()
    order(node, {"parts": [[0, 10, DIGEST]], "archive": "a" * 32, "replace": True})
    assert node.claim == Claim("a" * 32, replace=True)
    for wrong in (7, "a" * 65):
        with pytest.raises(UsageError, match="archive is an id"):
            order(node, {"parts": [[0, 10, DIGEST]], "archive": wrong})


def test_a_refusal_is_an_error_with_its_reason() -> None:
    """As every order's."""
    answer = order(Node("archive", "0..10 differs"), {"parts": [[0, 10, DIGEST]]})
    assert isinstance(answer, TwinlogError)
    assert (answer.code, answer.text) == ("archive", "0..10 differs")


@pytest.mark.parametrize(
    "parts", [None, [], [[0, 10]], [[10, 10, DIGEST]], [[0, 10, "ab"]], [[0, 10, DIGEST]] * 1025]
)
def test_what_is_no_list_of_parts_is_refused(parts: object) -> None:
    """Before anything is read."""
    with pytest.raises(UsageError):
        order(Node(), {"parts": parts})
