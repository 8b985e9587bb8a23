"""Where the logs of a master and a slave part, and the examples that explain it."""

from __future__ import annotations

import doctest

import pytest

from replication.core import peer_checks as consistency
from replication.core.peer_checks import point_for
from twinlog.format.epoch_history import Epoch


def test_the_examples_in_docstrings_are_true() -> None:
    """They are read by those who learn the protocol."""
    assert doctest.testmod(consistency).failed == 0


@pytest.mark.parametrize(
    ("slave", "span", "master", "kept", "point"),
    [
        ([Epoch(1, 0)], (0, 50), [Epoch(1, 0)], (0, 90), 50),
        ([Epoch(1, 0)], (0, 90), [Epoch(1, 0)], (0, 50), 50),
        ([Epoch(1, 0)], (0, 50), [Epoch(1, 0)], (60, 90), None),
        ([Epoch(2, 0)], (0, 50), [Epoch(1, 0)], (0, 90), None),
        ([Epoch(1, 0)], (70, 90), [Epoch(1, 0), Epoch(2, 60)], (0, 99), None),
        ([], (0, 0), [], (0, 0), 0),
    ],
)
def test_where_a_slave_goes_on(
    slave: list[Epoch],
    span: tuple[int, int],
    master: list[Epoch],
    kept: tuple[int, int],
    point: int | None,
) -> None:
    """None when the bytes are no longer kept or nothing is shared."""
    assert point_for(slave, span, master, kept) == point
