"""Trouble outside: full and broken disks, the coordinator away or odd, switchover and stop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.register.operations import AlterInSync, Change, Failover, Transfer, UncleanElect
from storage import Outcome
from storage.errors import DiskError, DiskFull
from tests.dialogues.stories import logs_equal, steady
from tests.dialogues.world import World

# -- disks


def test_a_full_slave_leaves_the_set_says_why_and_comes_back(world: World) -> None:
    """By itself, once there is space."""
    world.nodes["n3"].store.full = True
    key = world.send("n1", wait=9.0)
    world.run(3.0)
    assert world.stored(key)
    assert "n3" not in world.register.state.isr
    peer = {peer.name: peer for peer in world.nodes["n1"].driver.view().peers}["n3"]
    assert "disk" in (peer.why or "")
    assert world.nodes["n3"].has_event("disk-full")
    world.nodes["n3"].store.full = False
    world.run(10.0)
    assert "n3" in world.register.state.isr
    assert logs_equal(world)


def test_a_full_master_refuses_and_resumes(world: World) -> None:
    """Reads go on; nothing of the refused is in the log."""
    store = world.nodes["n1"].store
    store.full = True
    end = store.end
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "disk-full")
    assert store.end == end
    assert world.nodes["n1"].driver.view().admission == "disk-full"
    store.full = False
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)


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


@pytest.mark.parametrize("kind", ["flush", "promise"])
def test_an_error_of_the_disk_ends_the_process(world: World, kind: str) -> None:
    """Nobody knows what is on the disk then."""
    world.job_errors["n1", kind] = DiskError("x", "y", 5)
    world.send("n1", ack="flushed")
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(1.0)
    assert "EIO" in (world.nodes["n1"].crashed or "")


@pytest.mark.parametrize("kind", ["promise", "checkpoint", "prepare"])
def test_a_full_disk_postpones_jobs(world: World, kind: str) -> None:
    """They are tried again."""
    world.job_errors["n2", kind] = DiskFull("x", "y", 28)
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.run(6.0)
    assert world.nodes["n2"].crashed is None
    assert world.master() == "n2"


def test_a_full_disk_postpones_a_cut(world: World) -> None:
    """The side file needs space; nothing is received before the cut is done."""
    world.partition("n1", "n2")
    world.partition("n1", "n3")
    world.send("n1", 200)
    world.run(0.1)
    world.kill("n1")
    world.heal()
    world.apply(Failover("n2", world.register.state.epoch, "alice", ""))
    world.job_errors["n1", "cut"] = DiskFull("x", "y", 28)
    world.restart("n1")
    world.run(9.0)
    assert world.nodes["n1"].store.cuts
    assert logs_equal(world)


# -- the coordinator


def test_writes_go_on_while_the_coordinator_is_away(world: World) -> None:
    """Roles cannot change; traffic does."""
    world.coordinator_down = True
    for _ in range(30):
        key = world.send("n1")
        world.run(1.0)
        assert world.stored(key)
    world.coordinator_down = False
    world.run(3.0)
    assert world.apply(Failover("n3", world.register.state.epoch, "alice", "")).ok
    world.run(3.0)
    assert world.master() == "n3"


def test_a_change_without_an_answer_counts_until_it_is_settled(pair: World) -> None:
    """The set grows when the proposal is sent, and shrinks only after success."""
    pair.kill("n2")
    pair.run(1.5)
    assert set(pair.register.state.isr) == {"n1"}
    pair.watch = False
    pair.lose = AlterInSync
    pair.restart("n2")
    node = pair.nodes["n1"]
    for _ in range(500):
        pair.run(0.01)
        if pair.lose is None:
            break
    assert node.driver.view().effective == ("n1", "n2")
    assert node.driver.view().in_sync == ("n1",)
    pair.run(2.0)
    assert node.driver.view().in_sync == ("n1", "n2")


def test_a_state_of_another_register_is_refused(world: World) -> None:
    """And said loudly; the role goes on."""
    node = world.nodes["n2"]
    odd = {**world.register.state.to_json(), "register_id": "r9", "revision": 999, "epoch": 99}
    node.tell(node.driver.on_group_state, odd)
    assert node.has_event("other-register")
    assert node.driver.view().epoch == 1


def test_a_state_that_went_back_is_refused(world: World) -> None:
    """A smaller revision, a smaller epoch, another tag of the same revision."""
    node, state = world.nodes["n2"], world.register.state
    for change, event in (
        ({"revision": state.revision - 1, "leader": "n3"}, None),
        ({"tag": 7}, "register-branched"),
        ({"revision": state.revision + 1, "epoch": 0}, "register-went-back"),
        ({"revision": "no"}, "odd-group-state"),
    ):
        node.tell(node.driver.on_group_state, {**state.to_json(), **change})
        assert node.driver.view().leader == "n1"
        assert event is None or node.has_event(event)


def test_a_node_that_is_no_member_says_so_and_waits() -> None:
    """Added by an operator, it comes in by itself."""
    from replication.register.operations import AddReplica

    world = steady()
    node = world.boot("n4")
    world.run(2.0)
    assert node.has_event("register-unknown-node")
    assert "not a member" in (node.driver.view().why or "")
    assert world.apply(AddReplica("n4", 0, "alice")).ok
    world.run(6.0)
    assert "n4" in world.register.state.isr


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


# -- switchover and stop


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


@pytest.mark.parametrize("ack", ["confirmed", "written"])
def test_a_master_that_stops_hands_over_first(world: World, ack: str) -> None:
    """An in-sync slave leads before the node has stopped; what was taken is answered."""
    node, answers = world.nodes["n1"], list[tuple[str, str]]()
    key = world.send("n1", ack=ack)
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    world.run(1.0)
    assert world.stored(key)
    assert answers == [("ok", f"handed over to {world.master()}")]
    assert world.master() in ("n2", "n3")
    assert node.driver.view().role == "stopped"


def test_a_master_that_cannot_hand_over_stops_all_the_same(world: World) -> None:
    """Without the coordinator or without a slave, within its limits, and it says why."""
    world.coordinator_down = True
    node, answers = world.nodes["n1"], list[tuple[str, str]]()
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    world.run(3.5)
    assert answers == [
        ("ok", "not handed over: the coordinator does not answer; nothing was changed")
    ]
    alone = World("n1", min_in_sync=1)
    alone.boot("n1")
    alone.run(2.0)
    node = alone.nodes["n1"]
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    assert answers[1] == ("ok", "not handed over: no slave can take over")


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


def test_a_stop_answers_what_is_owed_first(world: World) -> None:
    """New work is refused; then the store may be closed."""
    world.coordinator_down = True
    for name in ("n2", "n3"):
        world.pause(name)
    key = world.send("n1")
    node, answers = world.nodes["n1"], list[tuple[str, str]]()
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    world.run(1.1)
    for name in ("n2", "n3"):
        world.resume(name)
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "not-master")
    world.run(0.1)
    assert world.stored(key)
    assert answers[0][0] == "ok"
    assert node.driver.view().role == "stopped"
    again: list[tuple[str, str]] = []
    node.tell(lambda now: node.driver.stop(now, lambda *got: again.append(got)))
    assert again[0][0] == "busy"


def test_a_stop_does_not_wait_for_ever(pair: World) -> None:
    """What is still owed is unknown."""
    pair.pause("n2")
    key = pair.send("n1", wait=60.0)
    node, answers = pair.nodes["n1"], list[tuple[str, str]]()
    node.tell(lambda now: node.driver.stop(now, lambda *got: answers.append(got)))
    pair.run(0.5)
    assert not answers
    pair.run(7.0)
    assert answers == [("ok", "not handed over: the link to n2 has ended")]
    assert pair.outcome(key) in ((Outcome.UNKNOWN, "unknown"), (Outcome.STORED, ""))


# -- nobody is known to have everything


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
