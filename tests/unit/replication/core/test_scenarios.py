"""Stories of a whole group: what the protocol promises, told node by node.

Each test is one story in virtual time; the names of the stories are those of the protocol's corner
cases where it has a name.
"""

from __future__ import annotations

from replication.register.operations import Failover
from storage import Outcome
from tests.dialogues.stories import logs_equal, steady
from tests.dialogues.world import World


def test_a_new_group_elects_the_configured_master_and_everybody_joins() -> None:
    """The node with role master leads epoch 1, the others join one second later."""
    world = steady()
    view = world.nodes["n1"].driver.view()
    assert (view.role, view.state, view.epoch) == ("master", "active", 1)
    assert world.nodes["n2"].driver.view().role == "slave"
    assert logs_equal(world)


def test_a_confirmed_append_is_on_every_member_before_it_is_answered() -> None:
    """The answer names who holds it."""
    world = steady()
    key = world.send("n1")
    assert world.outcome(key) is None
    world.run(0.1)
    assert world.stored(key)
    assert world.replies[key][0][1] == "n1,n2,n3"
    assert logs_equal(world)
    assert world.nodes["n3"].store.confirm == world.nodes["n1"].store.confirm


def test_a_group_of_one_confirms_alone() -> None:
    """No slave, no wait."""
    world = World("n1", min_in_sync=1)
    world.boot_all()
    world.run(1.0)
    key = world.send("n1")
    assert world.stored(key)


def test_failover_keeps_what_was_confirmed_and_cuts_what_was_not() -> None:
    """The old master comes back with a private tail and loses exactly that."""
    world = steady()
    good = world.send("n1")
    world.run(0.1)
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    lost = world.send("n1", 200)
    world.run(0.1)
    world.kill("n1")
    world.heal()
    assert world.stored(good)
    assert world.outcome(lost) is None
    assert world.apply(Failover(None, world.register.state.epoch, "alice", "n1 is gone")).ok
    world.run(3.0)
    assert world.master() == "n2"
    again = world.send("n2")
    world.run(1.0)
    assert world.stored(again)
    world.restart("n1")
    world.run(5.0)
    assert world.nodes["n1"].store.cuts
    assert logs_equal(world)
    assert set(world.register.state.isr) == {"n1", "n2", "n3"}
    assert [entry["lost"] for entry in world.register.history] == [None, 200]


def test_a_paused_master_that_wakes_up_steps_down_and_answers_unknown() -> None:
    """Nothing that it holds alone is ever acknowledged."""
    world = steady()
    world.pause("n1")
    key = world.send("n1")
    world.apply(Failover(None, world.register.state.epoch, "alice", ""))
    world.run(3.0)
    world.resume("n1")
    world.run(3.0)
    assert world.outcome(key) == (Outcome.UNKNOWN, "unknown")
    assert world.master() == "n2"
    assert logs_equal(world)


def test_all_nodes_killed_come_back_with_a_master_by_themselves() -> None:
    """Nothing that was confirmed is missing."""
    world = steady()
    key = world.send("n1")
    world.run(0.05)
    assert world.stored(key)
    confirmed = world.nodes["n1"].store.confirm
    for name in world.names:
        world.kill(name)
    for name in ("n3", "n2", "n1"):
        world.restart(name)
    world.run(10.0)
    master = world.master()
    assert master is not None
    assert world.nodes[master].store.confirm >= confirmed
    assert set(world.register.state.isr) == set(world.names)
    assert logs_equal(world)


def test_switchover_loses_nothing_and_hands_over_to_the_target() -> None:
    """The reply says ok, the target leads, the old master follows without a cut."""
    world = steady()
    answers: list[tuple[str, str]] = []
    node = world.nodes["n1"]
    node.tell(lambda now: node.driver.transfer(now, "n3", lambda *got: answers.append(got)))
    world.run(2.0)
    assert answers[0][0] == "ok"
    assert world.master() == "n3"
    assert not world.nodes["n1"].store.cuts
    assert set(world.register.state.isr) == set(world.names)
    assert world.register.history[-1]["reason"] == "switchover"
