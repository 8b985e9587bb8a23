"""Groups that are ready for a story."""

from __future__ import annotations

import pytest

from tests.dialogues.stories import steady
from tests.dialogues.world import World


@pytest.fixture
def world() -> World:
    """Three nodes, all in sync, n1 leads, two must be in sync."""
    return steady()


@pytest.fixture
def pair() -> World:
    """Two nodes, both must be in sync."""
    return steady("n1", "n2")
