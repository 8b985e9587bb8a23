"""A part of the damage matrix, another one each day, and the places that once went wrong."""

from __future__ import annotations

import time

import pytest

from tests.damage.__main__ import one
from tests.damage.corrupter import KINDS, WAYS
from tests.damage.judge import originals

CASES = 10_000
PART = 135  # each kind in each way, in each of the three stores
FOUND = {
    197: "a queue file whose halves changed places lost its records without a word",
    267: "a store whose clean mark was deleted named no file",
    6129: "bytes behind a clean stop were refused without the file's name",
    537: "a store without its identity named no file",
}


@pytest.mark.parametrize("case", FOUND)
def test_what_once_went_wrong(case: int) -> None:
    """Each case of the matrix that found a mistake stays here."""
    result = one(case)
    assert result[3] != "WRONG", result[4]


def test_the_originals_hold_every_kind_of_file() -> None:
    """Or the matrix would not be about it."""
    assert len(KINDS) * len(WAYS) * len(originals()) == PART


@pytest.mark.slow
def test_a_part_of_the_matrix() -> None:
    """`python -m tests.damage --case N` shows a case again."""
    today = int(time.time()) // 86_400
    first = today * PART % CASES
    wrong = [result for result in map(one, range(first, first + PART)) if result[3] == "WRONG"]
    assert not wrong, wrong
