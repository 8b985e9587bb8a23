"""Sentences that pass too quickly for a test of processes, on the production core.

Drivers, a register and links are those of `tests.dialogues.world`; what the nodes and the register
say of themselves is judged by ``cluster health``. Each test makes the trouble, waits for its
sentence, goes the way that ``docs/when-something-is-broken.md`` describes, and ends healthy.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from node.observe.status import Facts, node_status
from replication.register.operations import Depose, Failover
from tests.dialogues.world import World
from tests.fakes.cli_cluster import FakeCluster

NAMES = ("n1", "n2", "n3")

FACTS = Facts(
    node="", cluster="demo", group="g1", time="2026-11-21T10:15:02.118Z", version="0.1.0", pid=42,
    uptime_seconds=9.0, addresses={}, offsets={}, coordinator_seconds=0.1, topics=1, disk_free=100,
    disk_size=200, boot={}, staleness_max_seconds=5.0,
)  # fmt: skip

STEP = 0.002
"""How often a sentence is looked for, seconds of the world's clock: some are there for 3 ms."""

LATE_STEP = 0.5
"""How often it is asked whether one has gone."""


class Asked:
    """The command line in front of a world."""

    def __init__(self, directory: Path, world: World) -> None:
        self.world = world
        self._cluster = FakeCluster(directory)

    def problems(self) -> dict[str, str]:
        """What ``cluster health`` says now: code and the command that goes on."""
        world, cluster = self.world, self._cluster
        cluster.down = {name for name in NAMES if not world.nodes[name].alive}
        cluster.silent = {name for name in NAMES if world.nodes[name].paused}
        cluster.state = world.register.state.to_json()
        for name in NAMES:
            node = world.nodes[name]
            end = node.store.end
            offsets = {"start": 0, "confirm": end, "end": end}
            facts = replace(FACTS, node=name, offsets=offsets)
            cluster.nodes[name] = node_status(node.driver.view(), facts, {})
        out, err = cluster.run("cluster", "health", "-o", "json")[1:]
        assert out, err
        return {one["code"]: one["command"] for one in json.loads(out)["problems"]}

    def until(
        self, done: Callable[[dict[str, str]], bool], *, step: float = LATE_STEP
    ) -> dict[str, str]:
        """Let time pass until ``done`` says yes of what is said."""
        for _ in range(80):
            found = self.problems()
            if done(found):
                return found
            self.world.run(step)
        raise AssertionError(f"still: {self.problems()}")

    def said(self, code: str) -> str:
        """Wait for a sentence; return the command that goes on."""
        return self.until(lambda found: code in found, step=STEP)[code]

    def healthy(self) -> None:
        """Wait until nothing is wrong."""
        self.until(lambda found: not found)


def made(directory: Path, **settings: object) -> Asked:
    """A healthy group of three, with n1 as master."""
    world = World(*NAMES, **settings)  # type: ignore[arg-type]
    world.boot_all()
    asked = Asked(directory, world)
    asked.healthy()
    return asked


def test_a_deposed_master_is_replaced_by_itself(tmp_path: Path) -> None:
    """No master is named, then one that does not serve yet, then it serves: nothing is ordered."""
    asked = made(tmp_path)
    asked.world.apply(Depose("n1", 0, "ann", "test"))
    assert asked.said("no-master") == "twinlog cluster failover"
    asked.healthy()
    assert asked.world.master() == "n2"


def test_a_failover_ends_the_time_without_a_named_master(tmp_path: Path) -> None:
    """The command of the sentence, where the nodes do not elect one: their calls are lost."""
    asked = made(tmp_path)
    world = asked.world
    world.cut |= {(name, "coordinator") for name in ("n2", "n3")}
    world.apply(Depose("n1", 0, "ann", "test"))
    asked.until(lambda found: "no-master" in found and world.master() is None)
    assert world.apply(Failover("n3", world.register.state.epoch, "ann", "")).ok
    world.heal()
    asked.healthy()
    assert world.master() == "n3"


def test_an_elected_master_needs_a_moment(tmp_path: Path) -> None:
    """It was elected and has not read that yet."""
    asked = made(tmp_path)
    world = asked.world
    world.cut.add(("n2", "coordinator"))
    world.kill("n1")
    assert world.apply(Failover("n2", world.register.state.epoch, "ann", "")).ok
    assert asked.said("master-starting") == "twinlog cluster status --watch"
    world.heal()
    asked.until(lambda found: set(found) == {"node-down"})
    world.restart("n1")
    asked.healthy()


def test_an_old_master_hears_of_its_successor(tmp_path: Path) -> None:
    """Cut off from the coordinator, it serves until it hears of the other; then it follows."""
    asked = made(tmp_path)
    world = asked.world
    world.cut |= {("n1", "coordinator"), ("n2", "coordinator")}
    assert world.apply(Failover("n2", world.register.state.epoch, "ann", "")).ok
    assert asked.said("other-leader") == "twinlog cluster status --watch"
    world.heal()
    asked.healthy()
    assert world.master() == "n2"


def test_a_master_that_begins_or_hands_over_refuses_for_a_moment(tmp_path: Path) -> None:
    """Its epoch record is not flushed yet; nothing is ordered."""
    asked = made(tmp_path)
    world = asked.world
    assert world.apply(Failover("n2", world.register.state.epoch, "ann", "")).ok
    assert asked.said("writes-refused") == "twinlog node show n2"
    asked.healthy()
    world.nodes["n2"].driver.transfer(world.clock.now, "n3", _ignored, who="ann")
    world.nodes["n2"].set_timer()
    assert asked.said("writes-refused") == "twinlog node show n2"
    asked.healthy()
    assert world.master() == "n3"


def test_a_busy_master_takes_writes_again(tmp_path: Path) -> None:
    """A slave stands still, so the writes that wait fill their places; it leaves the set."""
    asked = made(tmp_path, waiters_max=4)
    world = asked.world
    world.pause("n3")
    keys = [world.send("n1") for _ in range(4)]
    assert asked.said("busy") == "twinlog cluster status --watch"
    asked.until(lambda found: "busy" not in found)
    assert all(world.stored(key) for key in keys)
    world.resume("n3")
    asked.healthy()


def test_a_node_that_lost_power_counts_again(tmp_path: Path) -> None:
    """With quality received it may lack what it acknowledged; it copies and joins by itself."""
    asked = made(tmp_path)
    world = asked.world
    assert world.register.state.ack == "received"
    world.send("n1")
    world.run(0.1)
    world.kill("n3")
    asked.until(lambda found: set(found) == {"node-down"})
    world.restart("n3", power_lost=True)
    assert asked.said("unclean") == "twinlog cluster status --watch"
    asked.healthy()
    assert "n3" in world.register.state.isr


def _ignored(*_: object) -> None:
    """Take an answer that `cluster health` tells better."""
