"""A slave that was away too long: its log ends below the master's start, and it begins again."""

from __future__ import annotations

from dataclasses import replace

import pytest

from storage.settings import RetentionSettings
from tests.sim.machines import node as sim_node
from tests.sim.stories.beginnings import running
from tests.sim.swarm import Plan

pytestmark = pytest.mark.sim


def test_a_slave_that_was_overtaken_begins_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It deletes its log, follows from the master's oldest file on, and joins the in-sync set."""
    real = sim_node.retention_of

    def impatient(plan: Plan) -> RetentionSettings | None:
        settings = real(plan)
        return replace(settings, absent_seconds=1.0) if settings is not None else None

    monkeypatch.setattr(sim_node, "retention_of", impatient)
    plan = Plan(7, segment_size=16 * 1024, keep_files=1, pause_between_sends=0.1, body_max=1500)
    world = running(plan)
    world.nodes["n3"].kill(power=False)
    world.schedule.run_until(world.schedule.now + 25)
    master = world.newest_master()
    assert master is not None
    assert master.store is not None
    away = world.nodes["n3"]
    away.boot()
    assert away.store is not None
    end = away.store.end
    assert end < master.store.start
    confirm = master.store.confirm
    world.schedule.run_until(world.schedule.now + 10)
    assert world.events["beginning-again"]
    assert away.store.damage is None
    assert away.store.start >= master.store.start > end
    assert away.store.end > confirm
    assert "n3" in world.coordinator.state.isr
