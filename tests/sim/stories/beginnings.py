"""How a story begins: a world in which everything works and producers send.

Not here: the stories (`tests.sim.stories.test_bad_days` and its neighbours), runs of a seed
(`tests.sim.run`).
"""

from __future__ import annotations

from tests.sim.swarm import Plan
from tests.sim.world import START_SECONDS, World


def running(plan: Plan, seconds: float = 0.0) -> World:
    """A world that has begun, without faults, ``seconds`` after its producers."""
    world = World(plan)
    world.coordinator.start()
    for node in world.nodes.values():
        node.boot()
    world.operator.create_until_known("topic0", 2)
    world.schedule.run_until(START_SECONDS)
    for producer in world.producers:
        producer.start()
    world.readers.start()
    go_on(world, seconds)
    return world


def go_on(world: World, seconds: float) -> None:
    """Let so much time pass."""
    world.schedule.run_until(world.schedule.now + seconds)
