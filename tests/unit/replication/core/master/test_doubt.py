"""What shows a master that it may be deposed, and a slave that it lacks something."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from replication.core import commands, messages, peer_checks
from replication.core.master.leading import Leading
from replication.register.operations import Change
from storage import Outcome
from tests.dialogues.stories import NAMES
from tests.dialogues.world import Node, World


@pytest.fixture
def world() -> World:
    """Three nodes in sync, n1 leads."""
    made = World("n1", "n2", "n3")
    made.boot_all()
    made.run(3.0)
    assert set(made.register.state.isr) == {"n1", "n2", "n3"}
    return made


def leading_of(node: Node) -> Leading:
    """The leadership of a node."""
    leading = node.driver.core.leading
    assert leading is not None
    return leading


def says_hello(world: World, name: str, **fields: object) -> None:
    """A node greets n1 once more, over a link of its own, with other fields."""
    node, other = world.nodes["n1"], world.nodes[name]
    said: list[messages.Message] = []
    following = other.driver.core.following
    assert following is not None
    do = other.driver.core.context.do
    other.driver.core.context.do = lambda command: said.append(command.message)  # type: ignore
    following._hello()
    other.driver.core.context.do = do  # type: ignore[method-assign]
    hello = said[0]
    assert isinstance(hello, messages.Hello)
    conn = node.next_accepted = node.next_accepted + 1
    node.links[conn] = (other, 99_999_999)
    frame = messages.encode(replace(hello, **fields), NAMES)  # type: ignore[arg-type]
    node.tell(node.driver.on_frame, conn, frame)


# -- a newer epoch


def test_a_newer_epoch_in_a_hello_stops_every_acknowledgement(world: World) -> None:
    """The master is cut off from the register: weak acknowledgements and reads stop, too."""
    node = world.nodes["n1"]
    world.cut.add(("n1", "coordinator"))
    says_hello(world, "n2", epoch=2)
    for ack in ("written", "flushed", "replicated", "confirmed"):
        assert world.outcome(world.send("n1", ack=ack)) == (Outcome.REFUSED, "not-master")
    assert not node.driver.view().sure
    world.run(5.0)
    assert not node.driver.view().sure


def test_what_waits_when_a_newer_epoch_is_seen_is_not_acknowledged(world: World) -> None:
    """An acknowledgement of a slave that arrives later confirms nothing here."""
    world.cut.add(("n1", "coordinator"))
    key = world.send("n1")
    says_hello(world, "n2", epoch=2)
    world.run(1.0)
    assert world.outcome(key) is None


def test_the_register_settles_a_newer_epoch(world: World) -> None:
    """It still names this master: whoever said otherwise was wrong, and the group goes on."""
    key = world.send("n1")
    says_hello(world, "n2", epoch=2)
    world.run(1.0)
    assert world.nodes["n1"].driver.view().sure
    assert world.stored(key)


def test_a_newer_epoch_counts_only_from_a_store_of_the_group(world: World) -> None:
    """A stranger cannot stop a master."""
    world.cut.add(("n1", "coordinator"))
    says_hello(world, "n2", epoch=9, store="another")
    says_hello(world, "n2", epoch=9, register_id="another")
    says_hello(world, "n2", epoch=9, node="n9")
    assert world.nodes["n1"].driver.view().sure


# -- silence and sleep


def test_a_master_that_slept_is_not_sure_until_its_members_answer(world: World) -> None:
    """What lay in its sockets may have been said before another was elected."""
    node = world.nodes["n1"]
    world.pause("n1")
    world.run(10.0)
    assert not node.driver.view(world.clock.now).sure
    world.resume("n1")
    assert node.has_event("slept")
    assert not node.driver.view(world.clock.now).sure
    world.run(1.0)
    assert node.driver.view(world.clock.now).sure


# -- less than was acknowledged


def test_a_member_with_less_than_it_acknowledged_is_taken_out(world: World) -> None:
    """It came back clean by its own word: the master alarms, the register hears that it is not."""
    for _ in range(4):
        world.send("n1")
        world.run(0.1)
    world.kill("n2")
    store = world.nodes["n2"].store
    end = store.end
    short = store.border_at_or_below(end - 250)
    session = world.register.state.isr["n2"]
    del store.log[short:]
    store.batches = [batch for batch in store.batches if batch.start < short]
    world.restart("n2")
    world.run(0.5)
    refused = [facts for name, level, facts in world.nodes["n1"].events if level == "alarm"]
    assert any(facts.get("code") == "INCOMPLETE" for facts in refused)
    assert world.nodes["n2"].has_event("acknowledged-bytes-missing")
    assert world.register.state.reg["n2"].session > session + 1
    assert not world.register.state.reg["n2"].clean
    world.run(10.0)
    assert world.nodes["n2"].store.end >= end
    assert "n2" in world.register.state.isr


# -- many epochs


def _lead_often(world: World, name: str, times: int) -> None:
    for _ in range(times):
        world.kill(name)
        world.restart(name)
        world.run(1.5)
        key = world.send(name)
        world.run(0.1)
        assert world.stored(key)


def test_a_slave_that_missed_more_epochs_than_a_frame_holds_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The master sends the part around the slave's newest epoch; nothing is quarantined."""
    monkeypatch.setattr(messages, "EPOCHS_SENT_MAX", 5)
    monkeypatch.setattr(peer_checks, "EPOCHS_SENT_MAX", 5)
    world = World("n1", "n2", "n3", min_in_sync=1)
    world.boot_all()
    world.run(3.0)
    world.kill("n3")
    world.run(3.0)
    world.kill("n2")
    world.run(3.0)
    _lead_often(world, "n1", 8)
    assert len(world.nodes["n1"].store.epochs) > 8
    world.restart("n3")
    world.run(6.0)
    assert world.nodes["n3"].driver.view().state == "streaming"
    assert world.nodes["n3"].driver.view().quarantined is None
    assert world.nodes["n3"].store.end == world.nodes["n1"].store.end


def test_a_history_whose_part_is_not_comparable_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The slave itself led many epochs that the master never saw: it sends the part around ours."""
    monkeypatch.setattr(messages, "EPOCHS_SENT_MAX", 5)
    monkeypatch.setattr(peer_checks, "EPOCHS_SENT_MAX", 5)
    world = World("n1", "n2", min_in_sync=1)
    world.boot_all()
    world.run(3.0)
    world.kill("n2")
    world.run(3.0)
    _lead_often(world, "n1", 8)
    world.kill("n1")
    state = world.register.state
    elected = replace(
        state, isr={"n2": state.session_of("n2")}, leader=None, leader_session=0, previous=None,
        unclean=(), revision=state.revision + 1, tag=99,
    )  # fmt: skip
    world.register.state = elected
    world.restart("n2")
    world.run(3.0)
    assert world.master() == "n2"
    world.restart("n1")
    world.run(3.0)
    assert any("no  PART" in line for line in world.trace)
    assert [line for line in world.trace if line.startswith("n2 > n1  welcome")]


# -- a small set, a lone master, one quality


def test_a_slave_joins_without_a_pause_while_writes_are_refused(world: World) -> None:
    """Both slaves leave and come back repeatedly: the pause would double up to a minute."""
    members = leading_of(world.nodes["n1"]).insync.members
    for _ in range(3):
        for name in ("n2", "n3"):
            world.kill(name)
        world.run(3.0)
        assert world.nodes["n1"].driver.view().admission == "not-enough-in-sync"
        for name in ("n2", "n3"):
            world.restart(name)
        world.run(0.5)
        key = world.send("n1")
        world.run(0.2)
        assert world.stored(key)
    assert all(member.pause for member in members.values())


def test_status_says_when_a_slave_joins(world: World) -> None:
    """It streams, has everything, and waits for the end of its pause."""
    for _ in range(2):
        world.kill("n3")
        world.run(4.0)
        world.restart("n3")
        world.run(0.5)
        peer = next(one for one in world.nodes["n1"].driver.view().peers if one.name == "n3")
        assert peer.why is not None
        assert peer.why.startswith("joins in ")
        world.run(8.0)
    assert "n3" in world.register.state.isr


def test_a_send_that_no_slave_can_hold_is_refused_before_it_is_stored() -> None:
    """A group of one node has no slave for ``replicated``."""
    world = World("n1", min_in_sync=1)
    world.boot("n1")
    world.run(2.0)
    end = world.nodes["n1"].store.end
    assert world.outcome(world.send("n1", ack="replicated")) == (
        Outcome.REFUSED,
        "not-enough-in-sync",
    )
    assert world.nodes["n1"].store.end == end


def test_every_node_goes_by_the_groups_quality(world: World) -> None:
    """It changes while the group works: links begin again, and a flush counts from then on."""
    world.apply(Change("ack", "durable", "alice"))
    world.run(0.5)
    for node in world.nodes.values():
        assert node.driver.core.context.quality == "durable"
        assert node.has_event("quality-differs")
    world.run(3.0)
    key = world.send("n1")
    world.run(1.0)
    assert world.stored(key)
    assert all(node.store.flushed == node.store.end for node in world.nodes.values())


def test_a_hello_of_another_quality_is_refused(world: World) -> None:
    """What a member acknowledges must be what the master counts."""
    says_hello(world, "n2", quality="durable")
    assert "n1 > n2  no  OTHER_QUALITY" in world.trace


def test_a_finding_is_durable_before_the_role_ends(world: World) -> None:
    """A node that leaves its role and dies must not come back clean."""
    node, seen = world.nodes["n1"], list[str]()
    driver = node.driver
    for kind, name in ((commands.Quarantine, "quarantine"), (commands.DropToken, "drop")):
        real = driver._do[kind]

        def does(now: float, command: object, name: str = name, real: Any = real) -> None:
            seen.append(name)
            real(now, command)

        driver._do = {**driver._do, kind: does}
    node.tell(driver.core.on_damage, "test")
    node.tell(driver.on_tick)
    assert seen == ["quarantine", "drop"]
