"""A part of the damage matrix, another one each day, and the places that once went wrong."""

from __future__ import annotations

import copy
import time
from random import Random

import pytest

from tests.damage.__main__ import one, stores
from tests.damage.corrupter import KINDS, WAYS, hurt_file
from tests.damage.judge import judge

CASES = 10_000
PART = 150  # each kind in each way, in each of the three stores
FOUND = {
    ("trimmed", "queue", "swap", "consumequeue/flights/2/00000000000000000000"): (
        "a queue file whose halves changed places lost its records without a word"
    ),
    ("stopped", "marks", "delete", "twinlog/clean"): (
        "a store whose clean mark was deleted named no file"
    ),
    ("stopped", "log", "swap", "commitlog/00000000000000016384"): (
        "bytes behind a clean stop were refused without the file's name"
    ),
    ("stopped", "marks", "delete", "twinlog/identity"): (
        "a store without its identity named no file"
    ),
}


@pytest.mark.parametrize("case", FOUND, ids=lambda case: " ".join(case[:3]))
def test_what_once_went_wrong(case: tuple[str, str, str, str]) -> None:
    """Each case of the matrix that found a mistake stays here."""
    name, kind, way, path = case
    original = next(one for one in stores() if one.name == name)
    disk = copy.deepcopy(original.disk)
    judge(original, disk, hurt_file(disk, kind, way, path, Random(1)))


def test_the_originals_hold_every_kind_of_file() -> None:
    """Or the matrix would not be about it."""
    assert len(KINDS) * len(WAYS) * len(stores()) == PART


@pytest.mark.slow
def test_a_part_of_the_matrix() -> None:
    """`python -m tests.damage --case N` shows a case again."""
    today = int(time.time()) // 86_400
    first = today * PART % CASES
    wrong = [result for result in map(one, range(first, first + PART)) if result[3] == "WRONG"]
    assert not wrong, wrong
