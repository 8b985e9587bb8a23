"""Who leads, and when nobody does: candidates, deposed masters, elections by operators."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.core.roles import Role
from replication.register.operations import (
    Change,
    Depose,
    Failover,
    UncleanElect,
)
from replication.register.register import Register
from storage import Damage, Outcome
from tests.dialogues.stories import link_of
from tests.dialogues.world import World
from twinlog.errors import CorruptionError


def test_a_deposed_master_is_replaced_by_the_best_of_the_others(world: World) -> None:
    """Slaves that follow stand in turn; the old master last."""
    world.apply(Depose("n1", 0, "alice", "test"))
    world.run(3.0)
    assert world.master() == "n2"
    assert world.register.history[-1]["by"] == "alice"


def test_a_state_that_names_an_earlier_session_of_ours_fences(world: World) -> None:
    """It cannot mean this process."""
    node, state = world.nodes["n1"], world.register.state
    odd = replace(state, revision=state.revision + 1, tag=9, leader_session=99)
    node.tell(node.driver.on_group_state, odd.to_json())
    world.run(0.5)
    assert node.driver.view().role == "fenced"
    assert "earlier session" in (node.driver.view().why or "")


def test_an_epoch_that_ended_here_is_not_begun_again(world: World) -> None:
    """Whatever the register says later."""
    node, state = world.nodes["n1"], world.register.state
    world.coordinator_down = True
    gone = replace(state, revision=state.revision + 1, tag=9, leader=None)
    back = replace(state, revision=state.revision + 2, tag=10)
    for one in (gone, back):
        node.tell(node.driver.on_group_state, one.to_json())
        world.run(0.2)
    assert node.driver.view().role == "fenced"
    assert "has ended here" in (node.driver.view().why or "")


def test_nothing_is_done_under_a_state_before_its_promise_is_on_the_disk(world: World) -> None:
    """Not even when another job comes back first."""
    node, state = world.nodes["n2"], world.register.state
    world.coordinator_down = True
    newer = replace(
        state, revision=state.revision + 1, tag=9, epoch=2, leader="n2", leader_session=1
    )
    node.tell(node.driver.on_group_state, newer.to_json())
    core = node.driver.core
    assert not core.promises.has_promised(newer)
    core.on_cut(world.clock.now)
    assert node.driver.view().role == "fenced"
    world.run(0.01)
    assert core.promises.has_promised(newer)
    assert node.driver.view().role == "master"


def test_a_group_without_a_configured_master_waits_for_all() -> None:
    """Then the first in the order of the file stands."""
    world = World("n1", "n2", "n3", first=None)
    world.boot("n2")
    world.boot("n3")
    world.run(3.0)
    assert world.master() is None
    world.boot("n1")
    world.run(5.0)
    assert world.master() is not None
    assert len(world.register.state.isr) == 3


def test_a_log_at_an_empty_register_does_not_stand(world: World) -> None:
    """It stays fenced until an operator chooses."""
    from replication.register.operations import Adopt
    from storage import Promise

    for name in world.names:
        world.kill(name)
    world.register = Register("register-2")
    for name in world.names:
        world.nodes[name].store.durable_promise = Promise()
        world.restart(name)
    world.run(2.0)
    assert world.master() is None
    assert world.apply(Adopt("n2", "alice", "moved")).ok
    world.run(6.0)
    assert world.master() == "n2"
    assert world.register.state.epoch == 2


def test_damage_at_a_promotion_quarantines_and_another_one_leads(world: World) -> None:
    """The master to be reads what is not confirmed yet, and finds it damaged: no crash."""
    node = world.nodes["n2"]

    def damaged() -> None:
        node.store.damage = Damage("log", 0, 1, "bit flipped")
        raise CorruptionError("bit flipped")

    node.store.rebuild_pending = damaged  # type: ignore[method-assign]
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(5.0)
    assert node.crashed is None
    assert node.driver.view().role == "quarantined"
    assert world.master() in ("n1", "n3")


@pytest.mark.parametrize(("alone", "elr"), [(True, {}), (True, {"n2": 1}), (False, {})])
def test_a_damaged_log_that_is_alone_is_still_the_best(
    world: World, alone: bool, elr: dict[str, int]
) -> None:
    """With others that hold everything the master is the damaged one and leaves."""
    context, leading = world.nodes["n1"].driver.core.context, world.nodes["n1"].driver.core.leading
    assert leading is not None
    isr = {"n1": 1} if alone else {"n1": 1, "n3": 1}
    leading.insync.state = replace(leading.state, isr=isr, elr=elr)
    link = link_of(world.nodes["n1"], "n2")
    leading.slaves.on_verified(world.clock.now, link, 0, "bytes differ", False)
    assert bool(context.damage) is bool(elr or not alone)


def test_a_flush_before_the_epoch_record_confirms_nothing() -> None:
    """Bytes of the leadership before may reach the disk while the new master finds no space."""
    world = World("n1", min_in_sync=1)
    world.boot("n1").store.full = True
    world.run(2.0)
    core = world.nodes["n1"].driver.core
    core.on_flushed(world.clock.now)
    assert core.leading is not None
    assert (core.leading.confirm, core.context.role.state) == (0, Role.STARTING)


def test_a_candidate_that_hears_more_keeps_its_turn() -> None:
    """Another state without a leader does not make it wait anew."""
    world = World("n1", "n2", "n3", first=None)
    for name in ("n1", "n2", "n3"):
        world.boot(name)
    while world.nodes["n3"].driver.view().role != "candidate":
        world.run(0.001)
    node = world.nodes["n3"]
    due = node.driver.core.questions.stand_at
    state = world.register.state
    newer = replace(state, revision=state.revision + 1, tag=77)
    node.tell(node.driver.on_group_state, newer.to_json())
    world.run(0.005)
    assert node.driver.core.questions.stand_at == due
    gone = replace(newer, revision=state.revision + 2, replicas=("n1", "n2"))
    node.tell(node.driver.on_group_state, gone.to_json())
    world.run(0.005)
    assert node.driver.view().role == "fenced"


def test_an_election_on_a_full_disk_waits_for_space() -> None:
    """The epoch record is tried again."""
    world = World("n1", min_in_sync=1)
    world.boot("n1").store.full = True
    world.run(2.0)
    assert world.nodes["n1"].driver.view().state == "starting"
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "not-master")
    world.nodes["n1"].store.full = False
    world.run(1.0)
    assert world.nodes["n1"].driver.view().state == "active"


def test_a_second_process_under_the_same_name_ends_the_first_ones_role(world: World) -> None:
    """The first stays fenced; the master's links to it end."""
    first = world.nodes["n3"]
    world.boot("n3")
    world.run(3.0)
    assert first.has_event("registered-elsewhere")
    assert first.driver.view().role == "fenced"
    assert world.nodes["n3"].driver.view().role == "slave"


def test_an_unclean_election_cuts_below_confirm_and_is_recorded(world: World) -> None:
    """Only an operator does that; the nodes that know better follow."""
    world.kill("n3")
    world.run(3.0)
    key = world.send("n1")
    world.run(1.0)
    assert world.stored(key)
    world.kill("n1")
    world.kill("n2")
    world.restart("n3")
    world.run(1.0)
    assert world.apply(UncleanElect("n3", world.register.state.epoch, "alice", "both burnt")).ok
    world.run(2.0)
    assert world.master() == "n3"


def test_after_a_power_failure_of_all_an_operator_gets_the_longest_log(world: World) -> None:
    """Every node reports its end once it has promised; what the longest holds is not lost again."""
    key = world.send("n1")
    world.run(1.0)
    assert world.stored(key)
    for name in world.names:
        world.kill(name)
    for name in world.names[1:]:
        world.restart(name, power_lost=True)
    world.run(3.0)
    world.restart(world.names[0], power_lost=True)
    world.run(3.0)
    state = world.register.state
    assert state.vacant
    assert set(state.ends) == set(world.names)
    assert all(world.nodes[name].driver.view().role == "fenced" for name in world.names)
    assert world.apply(Failover(None, state.epoch, "alice", "")).ok
    world.run(3.0)
    longest = max(world.names, key=lambda name: (state.ends[name].last_epoch, state.ends[name].end))
    assert world.master() == longest
    after = world.send(longest)
    world.run(3.0)
    assert world.stored(after)


def test_a_group_that_says_best_goes_on_by_itself(world: World) -> None:
    """Nobody gives an order."""
    assert world.apply(Change("after_power_loss", "best", "alice")).ok
    for name in world.names:
        world.kill(name)
    for name in world.names:
        world.restart(name, power_lost=True)
    world.run(5.0)
    assert world.master() is not None
    assert world.register.state.unclean[-1].who == "after_power_loss = best"
