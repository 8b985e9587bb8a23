"""The coordinator is away, slow, or another one: what nodes do without its answers."""

from __future__ import annotations

from replication.register.operations import (
    AddReplica,
    AlterInSync,
    Failover,
)
from replication.register.register import Register
from tests.dialogues.stories import steady
from tests.dialogues.world import World


def test_a_node_of_another_register_is_refused_and_waits(world: World) -> None:
    """Its own coordinator has it in another history."""

    world.kill("n3")
    world.register = Register("register-2")
    node = world.restart("n3")
    world.run(2.0)
    assert node.has_event("register-other-register")
    assert node.driver.view().role == "fenced"


def test_an_answer_to_a_call_given_up_still_brings_its_state(world: World) -> None:
    """Good news is good news; a lost answer of an unknown call is nothing."""
    node = world.nodes["n2"]
    node.tell(node.driver.on_answer, 12345, None)
    answer = {"ok": True, "state": world.register.state.to_json(), "code": "", "text": ""}
    node.tell(node.driver.on_answer, 12345, answer)
    node.tell(node.driver.on_answer, 12345, {"ok": False, "state": None})
    assert node.driver.view().role == "slave"


def test_a_call_that_is_never_answered_is_over_after_a_while(world: World) -> None:
    """The next one may go out."""
    node = world.nodes["n2"]
    calls = node.driver.core.questions.calls
    world.cut.add(("n2", "coordinator"))
    world.run(1.5)
    number = calls.under_way.number if calls.under_way else 0
    node.driver.on_answer = lambda *args: None  # type: ignore[method-assign]
    world.run(15.0)
    assert calls.under_way is not None
    assert calls.under_way.number > number


def test_alarms_are_told_once_and_not_remembered_for_ever(world: World) -> None:
    """The same one again only after many others."""
    node = world.nodes["n2"]
    for number in [*range(300), 299]:
        odd = {**world.register.state.to_json(), "register_id": f"r{number}"}
        node.tell(node.driver.on_group_state, odd)
    assert sum(event[0] == "other-register" for event in node.events) == 300


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

    world = steady()
    node = world.boot("n4")
    world.run(2.0)
    assert node.has_event("register-unknown-node")
    assert "not a member" in (node.driver.view().why or "")
    assert world.apply(AddReplica("n4", 0, "alice")).ok
    world.run(6.0)
    assert "n4" in world.register.state.isr
