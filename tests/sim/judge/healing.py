"""What a world without faults still lacks.

Not here: when it is asked, and how long it may take (`tests.sim.world`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.sim.world import World


def unheard(world: World) -> str:
    """Say whom the master does not hear: until it does, its answers are not settled (R53)."""
    master = world.newest_master()
    leading = master.driver.core.leading if master and master.driver else None
    if master is None or leading is None:
        return "no master"
    heard = {session.node for session in leading.slaves.sessions.values()}
    lost = [name for name in world.plan.nodes if name not in heard and name != master.name]
    return f"{master.name} does not hear {', '.join(lost)}" if lost else ""


def unhealed(world: World) -> str:
    """Say what liveness still lacks, or nothing."""
    master = world.newest_master()
    if master is None or master.store is None:
        return "no master"
    state = world.coordinator.state
    missing = [name for name in world.plan.nodes if name not in state.isr]
    if missing:
        return f"not in sync: {', '.join(missing)} ({world.nodes[missing[0]].describe()})"
    for producer in world.producers:
        for line in producer.lines.values():
            if line.open:
                return f"{producer.name!r} waits for {line.topic}/{line.queue}"
    end = master.store.end
    for node in world.nodes.values():
        store = node.store
        if store is None:
            return f"{node.name} is down: {node.cause}"
        if (store.end, store.confirm, store.dispatched) != (end, end, end):
            return (
                f"{node.name}: end {store.end} confirm {store.confirm} dispatched"
                f" {store.dispatched}, master's end {end}"
            )
    return ""
