"""Groups that are ready for a story."""

from __future__ import annotations

from typing import Any

import pytest

from tests.dialogues.world import World


def steady(*names: str, **settings: Any) -> World:
    """Return a group whose members are all in sync."""
    world = World(*(names or ("n1", "n2", "n3")), **settings)
    world.boot_all()
    world.run(5.0)
    assert world.master() == "n1"
    assert set(world.register.state.isr) == set(world.names)
    return world


@pytest.fixture
def world() -> World:
    """Three nodes, all in sync, n1 leads, two must be in sync."""
    return steady()


@pytest.fixture
def pair() -> World:
    """Two nodes, both must be in sync."""
    return steady("n1", "n2")
