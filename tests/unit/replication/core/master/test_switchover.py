"""A master hands over on request: what is refused, given up, and settled later."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from replication.register.operations import (
    Change,
    Transfer,
)
from storage import Outcome
from tests.dialogues.world import World


def test_a_switchover_ends_when_too_few_are_in_sync(world: World) -> None:
    """The asker hears of it."""
    node, answers = world.nodes["n1"], list[Any]()
    world.pause("n2")
    world.send("n1", ack="written")
    node.tell(lambda now: node.driver.transfer(now, "n2", lambda *got: answers.append(got)))
    world.apply(Change("in_sync_min", "3", "alice"))
    world.kill("n3")
    world.boot("n3")  # wiped: it leaves the set with its registration
    world.partition("n1", "n3")
    world.run(1.0)
    assert answers[0][0] == "not-enough-in-sync"
    assert node.driver.view().state == "degraded"


def test_a_refused_switchover_of_a_set_that_shrank_leaves_it_degraded(pair: World) -> None:
    """It was asked for, then too few were in sync: the refusal only answers the operator."""
    node, answers = pair.nodes["n1"], list[Any]()
    leading = node.driver.core.leading
    assert leading is not None
    node.tell(lambda now: node.driver.transfer(now, "n2", lambda *got: answers.append(got)))
    for _ in range(5000):
        if leading.switchover.under_way and leading.switchover.under_way.asked:
            break
        pair.run(0.0002)
    pair.coordinator_down = True
    assert leading.switchover.under_way is not None
    assert leading.switchover.under_way.asked
    state = pair.register.state
    shrunk = replace(state, isr={"n1": 1}, elr={"n2": 1}, revision=state.revision + 1, tag=5)
    node.tell(node.driver.on_group_state, shrunk.to_json())
    pair.run(0.05)
    assert node.driver.view().state == "degraded"
    leading.switchover.give_up("other-revision", "not now")
    assert node.driver.view().state == "degraded"
    node.driver.on_tick(pair.clock.now)
    assert answers[0][0] == "other-revision"


def test_a_switchover_needs_an_active_master_and_a_quiet_set(pair: World) -> None:
    """Not while it is degraded, nor while the set is being changed, nor to one without a link."""
    leading = pair.nodes["n1"].driver.core.leading
    assert leading is not None
    leading.insync.propose(leading.insync.proposal_for({}, []))
    assert (leading.switchover.why_not("n2") or "")[0] == "busy"
    leading.insync.proposal = None
    leading.insync.members["n2"].linked_at = None
    assert (leading.switchover.why_not("n2") or "")[0] == "not-in-sync"
    assert not leading.switchover.is_level("n2", leading.confirm)
    pair.kill("n2")
    pair.run(3.0)
    assert (leading.switchover.why_not("n2") or "")[0] == "not-enough-in-sync"


def test_a_switchover_that_the_register_refuses_is_over(world: World) -> None:
    """The master goes on, and says so."""
    node, answers = world.nodes["n1"], list[Any]()
    state = world.register.state
    world.register.state = replace(state, isr={"n1": 1, "n2": 1})
    node.tell(lambda now: node.driver.transfer(now, "n3", lambda *got: answers.append(got)))
    world.run(0.5)
    assert answers[0][0] == "not-in-sync"
    assert node.driver.view().state == "active"


def transfer(world: World, to: str) -> list[tuple[str, str]]:
    """Ask n1 to hand over."""
    answers: list[tuple[str, str]] = []
    node = world.nodes["n1"]
    node.tell(lambda now: node.driver.transfer(now, to, lambda *got: answers.append(got)))
    return answers


def test_a_switchover_is_refused_when_it_cannot_be_quick(world: World) -> None:
    """To itself, to a stranger, to one that is behind, from a slave, while one is under way."""
    assert transfer(world, "n1")[0][0] == "not-in-sync"
    assert transfer(world, "n9")[0][0] == "not-in-sync"
    world.pause("n3")
    first = transfer(world, "n3")
    assert transfer(world, "n2")[0][0] == "busy"
    assert first == []
    node = world.nodes["n2"]
    answers: list[tuple[str, str]] = []
    node.tell(lambda now: node.driver.transfer(now, "n1", lambda *got: answers.append(got)))
    assert answers[0][0] == "not-master"


def test_a_switchover_while_the_coordinator_is_away_refuses_no_write(world: World) -> None:
    """The coordinator is asked first; without its answer the switchover is given up."""
    world.coordinator_down = True
    answers = transfer(world, "n2")
    for _ in range(40):
        key = world.send("n1")
        world.run(0.1)
        assert world.stored(key)
    assert answers[0][0] == "coordinator-away"
    world.coordinator_down = False
    world.run(2.0)
    assert world.master() == "n1"


def test_a_switchover_that_cannot_end_is_taken_back(world: World) -> None:
    """The coordinator goes away when it was asked to hand over: the master takes writes again."""
    answers = transfer(world, "n2")
    switchover = world.nodes["n1"].driver.core.leading
    assert switchover is not None
    for _ in range(5000):
        if (under_way := switchover.switchover.under_way) and under_way.asked:
            break
        world.run(0.0002)
    world.coordinator_down = True
    world.run(3.5)
    assert answers[0][0] == "unknown"
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)
    world.coordinator_down = False
    world.run(3.0)
    key = world.send(world.master() or "")
    world.run(0.1)
    assert world.stored(key)


def test_a_switchover_that_is_not_level_in_time_is_given_up(world: World) -> None:
    """Writes are refused meanwhile, and go on then; nothing is lost."""
    world.pause("n3")
    world.send("n1", ack="written")
    answers = transfer(world, "n3")
    world.run(0.05)
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "not-master")
    world.run(3.3)
    assert answers[0][0] in ("timeout", "not-in-sync")
    assert world.nodes["n1"].driver.view().role == "master"


def test_a_switchover_without_an_answer_stays_closed_until_it_is_known(world: World) -> None:
    """The register has it; the answer was lost."""
    world.watch = False
    world.lose = Transfer
    answers = transfer(world, "n2")
    world.run(5.0)
    assert answers[0][0] == "ok"
    assert world.master() == "n2"


def test_a_switchover_that_was_asked_is_settled_by_the_register_alone(world: World) -> None:
    """Too few in sync meanwhile does not make it a no: the register may have done it."""
    world.watch = False
    world.lose = Transfer
    answers = transfer(world, "n2")
    world.run(0.01)
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    assert leading.switchover.under_way is not None
    assert leading.switchover.under_way.asked
    fewer = replace(leading.state, min_isr=4)
    world.nodes["n1"].tell(lambda now: leading.adopt(fewer, now))
    assert answers == []
    world.run(5.0)
    assert answers[0][0] == "ok"
    assert world.master() == "n2"


def test_a_target_that_dies_is_replaced_after_a_while(world: World) -> None:
    """Any member of the set may stand then, the old master included."""
    world.watch = False
    transfer(world, "n3")
    world.run(0.0025)
    world.kill("n3")
    world.watch = True
    world.run(12.0)
    assert world.master() in ("n1", "n2")
