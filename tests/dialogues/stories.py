"""Groups that are ready for a story, and what a story looks at in its end."""

from __future__ import annotations

from typing import Any

from tests.dialogues.world import World


def steady(*names: str, **settings: Any) -> World:
    """Return a group whose members are all in sync."""
    world = World(*(names or ("n1", "n2", "n3")), **settings)
    world.boot_all()
    world.run(5.0)
    assert world.master() == "n1"
    assert set(world.register.state.isr) == set(world.names)
    return world


def logs_equal(world: World) -> bool:
    """Whether all living nodes hold the same bytes."""
    return len({bytes(node.store.log) for node in world.nodes.values() if node.alive}) == 1
