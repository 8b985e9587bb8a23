"""Replicas are added, removed and forgiven; how many must be in sync."""

from __future__ import annotations

from replication.core.master.in_sync import Member
from replication.core.roles import Role
from replication.register.group_state import GroupState
from replication.register.operations import (
    AddReplica,
    Change,
    RemoveReplica,
)
from replication.settings import ReplicationSettings
from storage import Outcome
from tests.dialogues.world import World


def test_a_removed_member_is_sent_away(world: World) -> None:
    """Its link is closed; it is no member of anything."""
    assert world.apply(RemoveReplica("n3", "alice")).ok
    world.run(1.0)
    assert not any(other.name == "n3" for other, _ in world.nodes["n1"].links.values())
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)
    assert world.replies[key][0][1] == "n1,n2"


def test_more_members_may_be_needed_than_are_in_sync(world: World) -> None:
    """Raising the least makes the master wait, and lowering it lets it go on."""
    world.kill("n3")
    world.run(3.0)
    world.apply(Change("in_sync_min", "3", "alice"))
    world.run(0.5)
    assert world.outcome(world.send("n1")) == (Outcome.REFUSED, "not-enough-in-sync")
    world.apply(Change("in_sync_min", "2", "alice"))
    world.run(0.5)
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)


def test_a_new_member_is_greeted_after_the_state_is_known(world: World) -> None:
    """Unknown at first, known once the register says so."""
    world.apply(AddReplica("n4", 0, "alice"))
    world.boot("n4")
    world.run(4.0)
    assert "n4" in world.register.state.isr


def test_a_learner_copies_and_counts_nowhere_until_it_is_promoted(world: World) -> None:
    """R70: no write waits for it; promoted, it joins on the link that it has."""
    assert world.apply(AddReplica("n4", 0, "alice", learner=True)).ok
    world.boot("n4")
    world.run(4.0)
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)
    learner, master = world.nodes["n4"].store, world.nodes["n1"].store
    assert learner is not None
    assert master is not None
    assert (learner.end, learner.confirm) == (master.end, master.confirm)
    assert "n4" not in world.register.state.isr
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    assert leading.slaves.why_behind("n4", world.clock.now).startswith("a learner")
    roles = {peer.name: peer.role for peer in world.nodes["n1"].driver.view().peers}
    assert roles == {"n2": "slave", "n3": "slave", "n4": "learner"}
    world.partition("n1", "n4")
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)
    world.heal()
    assert world.apply(AddReplica("n4", 0, "alice")).ok
    world.run(4.0)
    assert "n4" in world.register.state.isr


def test_a_learner_is_not_elected(world: World) -> None:
    """R70: it does not stand when every full member is gone, although it has everything."""
    assert world.apply(AddReplica("n4", 0, "alice", learner=True)).ok
    world.boot("n4")
    world.run(4.0)
    for name in ("n1", "n2", "n3"):
        world.kill(name)
    world.run(10.0)
    assert world.register.state.leader != "n4"
    assert world.nodes["n4"].driver.core.role.value != "master"


def test_why_a_replica_is_not_level_is_said_in_words(world: World) -> None:
    """For status and people."""
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    assert leading.slaves.why_behind("n9", world.clock.now) == "not a replica"
    assert leading.slaves.why_behind("n2", world.clock.now) == ""
    member = leading.insync.members["n2"]
    member.acked = 0
    assert leading.slaves.why_behind("n2", world.clock.now) == "behind"
    leading.insync.members["n8"] = stranger = Member("n8", 0.0)
    assert leading.slaves.why_behind("n8", world.clock.now) == "no link"
    stranger.linked_at = 0.0
    assert leading.slaves.why_behind("n8", world.clock.now) == "not the registered session"


def test_a_flapping_past_is_forgiven_after_a_long_time(world: World) -> None:
    """A member that was in sync for minutes joins quickly after its next fault."""
    world.kill("n3")
    world.run(2.0)
    world.restart("n3")
    world.run(8.0)
    leading = world.nodes["n1"].driver.core.leading
    assert leading is not None
    assert leading.insync.members["n3"].pause > 0
    world.run(300.0)
    assert leading.insync.members["n3"].pause == 0


def test_settings_without_members_seed_nothing() -> None:
    """The register knows its members then."""
    assert ReplicationSettings().seed is None


def test_a_replica_that_comes_back_goes_on_counting_its_sessions(world: World) -> None:
    """Removed and added again: what an earlier incarnation has under way is never current."""
    world.kill("n3")
    world.restart("n3")
    world.run(3.0)
    before = world.register.state.session_of("n3")
    assert before > 1
    assert world.apply(RemoveReplica("n3", "alice")).ok
    assert world.register.state.session_of("n3") == 0
    world.kill("n3")
    state = world.register.state
    assert GroupState.from_json(state.to_json()) == state
    assert world.apply(AddReplica("n3", 0, "alice")).ok
    world.restart("n3")
    world.run(3.0)
    assert world.register.state.session_of("n3") == before + 1
    assert world.register.state.retired == {}
    old = world.register.state.to_json()
    del old["retired"]
    assert GroupState.from_json(old) == world.register.state


def test_a_replica_that_never_registered_leaves_nothing_behind(world: World) -> None:
    """There is no session to remember."""
    assert world.apply(AddReplica("n4", 0, "alice")).ok
    assert world.apply(RemoveReplica("n4", "alice")).ok
    assert world.register.state.retired == {}


def test_a_removed_replica_comes_back_without_a_restart(world: World) -> None:
    """It runs on without a role, and registers by itself once it is a member again."""
    before = world.register.state.session_of("n3")
    assert world.apply(RemoveReplica("n3", "alice")).ok
    world.run(3.0)
    core = world.nodes["n3"].driver.core
    assert core.role is Role.FENCED
    assert not world.nodes["n3"].has_event("registered-elsewhere")
    key = world.send("n1")
    world.run(0.1)
    assert world.stored(key)
    assert world.apply(AddReplica("n3", 0, "alice")).ok
    world.run(8.0)
    assert world.register.state.session_of("n3") == before + 1
    assert "n3" in world.register.state.isr
    assert core.context.log.end == world.nodes["n1"].driver.core.context.log.end


def test_a_removed_replica_becomes_a_learner_without_a_restart(world: World) -> None:
    """R70: it copies on, and counts nowhere."""
    assert world.apply(RemoveReplica("n3", "alice")).ok
    assert world.apply(AddReplica("n3", 0, "alice", learner=True)).ok
    world.run(8.0)
    assert world.nodes["n3"].driver.core.role is Role.SLAVE
    assert "n3" not in world.register.state.isr
