"""Links between nodes that end, are late, or bring what breaks a rule."""

from __future__ import annotations

from dataclasses import replace

from replication.core import messages
from replication.core.commands import BatchDamaged
from storage import Token
from tests.dialogues.stories import hear, steady
from tests.dialogues.world import World


def test_a_late_dial_of_a_role_that_is_over_is_closed(world: World) -> None:
    """Its number belongs to nobody."""
    node = world.nodes["n2"]
    node.links[777] = (world.nodes["n1"], 1)
    node.tell(node.driver.on_dialed, 777)
    assert 777 not in node.links


def test_good_batches_before_a_bad_one_are_acknowledged_first(world: World) -> None:
    """The master learns where to go on."""
    node = world.nodes["n2"]
    following = node.driver.core.following
    assert following is not None
    following._said = None
    before = len(world.trace)
    damaged = BatchDamaged(500, 10, "crc")
    node.tell(lambda now: following.on_received(now, messages.Append(*[0] * 9), damaged))
    node.driver.on_tick(world.clock.now)
    lines = [line for line in world.trace[before:] if line.startswith("n2 > n1")]
    assert [line.split()[3] for line in lines] == ["ack", "nack"]


def test_events_of_a_link_that_has_ended_change_nothing(world: World) -> None:
    """They were under way."""
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    leading.slaves.on_verified(world.clock.now, 12345, 0, None, False)
    leading.slaves.on_shipped(world.clock.now, 12345, messages.Append(*[0] * 9), 0)
    leading.slaves.on_closed(world.clock.now, 12345, "gone")
    leading.on_message(world.clock.now, 12345, messages.Ping(1, 1, 1))
    leading.switchover.give_up("not-leader", "late")
    assert world.nodes["n1"].driver.view().role == "master"


def test_a_link_that_was_lost_while_the_master_slept_is_not_the_slaves_fault() -> None:
    """Its time begins when the master wakes."""
    world = steady()
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    member = leading.insync.members["n3"]
    member.linked_at, member.lost_at = None, 1.0
    member.slept(11.0, 5.0)
    assert member.lost_at == 6.0


def test_commands_for_what_is_over_do_nothing(world: World) -> None:
    """Batches for a link that has ended, or from a writer whose role is over."""
    from replication.core import commands

    append = messages.Append(1, 1, 100, 1, 0, 0, 0, 1, 1, b"x" * 36, b"y")
    for name in ("n1", "n2"):
        node = world.nodes[name]
        end, before = node.store.end, len(world.trace)
        for command in (
            commands.Receive(12345, Token("slave", 1, 77), append),
            commands.Verify(12345, 0, 1),
        ):
            node.driver.core.context.do(command)
        node.driver.on_tick(world.clock.now)
        assert (node.store.end, world.trace[before:]) == (end, [])


def test_batches_that_break_a_rule_are_refused_by_the_store(world: World) -> None:
    """The link ends, the log stays as it was."""
    node = world.nodes["n2"]
    end = node.store.end
    odd = messages.Append(1, 1, end, 1, 0, 0, 0, 1, 1, b"x" * 35, b"y")
    revision = node.driver.core.context.promise
    odd = replace(odd, revision=revision.revision, tag=revision.tag)
    hear(node, "n1", odd)
    assert node.store.end == end
    assert node.driver.view().state == "waiting"
