"""No node is known to have everything: who may go on, and what must be known before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from replication.register import operations as ops
from replication.register.group_state import GroupState
from replication.register.register import Answer, Register
from tests.unit.replication.register.desk import Desk, check_rules


def power_lost(desk: Desk, *names: str) -> None:
    """These nodes start again and may lack what they acknowledged."""
    for name in names:
        assert desk.sign_in(name, clean=False, empty=False).ok


def ends(desk: Desk, name: str, last_epoch: int, end: int, **changes: int) -> Answer:
    """A node without a role reports how far its log reaches."""
    state = desk.state
    op = ops.ReportEnd(name, state.session_of(name), state.revision, last_epoch, end)
    return desk.do(replace(op, report=desk.report(name), **changes))


def failover(desk: Desk, to: str | None = None) -> Answer:
    """An operator's order, planned now."""
    return desk.do(ops.Failover(to, desk.state.epoch, "alice", ""))


def all_lost(desk: Desk) -> None:
    """A power failure of all three members, all back."""
    power_lost(desk, "n1", "n2", "n3")
    assert desk.state.vacant


def test_a_power_failure_of_all_members_leaves_nobody_eligible(desk: Desk) -> None:
    """It is noted since when; while one member is there, it is not."""
    power_lost(desk, "n1", "n2")
    assert not desk.state.vacant
    power_lost(desk, "n3")
    assert desk.state.vacant == desk.state.revision
    check_rules(desk.state)
    assert failover(desk).code == "not-eligible"


def test_once_all_have_reported_the_longest_log_of_the_newest_epoch_is_elected(desk: Desk) -> None:
    """Suspect or not: it holds everything that still exists. It is recorded as unclean."""
    all_lost(desk)
    assert ends(desk, "n1", 1, 500).ok
    assert ends(desk, "n2", 1, 700).ok
    refused = failover(desk)
    assert refused.code == "not-eligible"
    assert "n3" in refused.text
    assert "failover --unclean n2" in refused.hint
    assert ends(desk, "n3", 0, 900).ok
    assert failover(desk, "n1").code == "not-eligible"
    assert failover(desk).ok
    state = desk.state
    assert (state.leader, state.vacant, dict(state.ends)) == ("n2", 0, {})
    assert state.last_unclean() == state.epoch == 2
    assert desk.register.history[-1]["master"] == "n2"


def test_an_end_counts_only_for_the_session_that_reported_it(desk: Desk) -> None:
    """Another power failure may have taken what was reported from memory."""
    all_lost(desk)
    for name in ("n1", "n2", "n3"):
        assert ends(desk, name, 1, 700).ok
    power_lost(desk, "n2")
    assert "n2" not in desk.state.ends
    assert failover(desk).code == "not-eligible"
    assert ends(desk, "n2", 1, 600, session=1).code == "old-session"
    assert ends(desk, "n2", 1, 600).ok
    assert failover(desk).state.leader in ("n1", "n3")


def test_an_end_counts_only_after_the_state_was_promised(desk: Desk) -> None:
    """Until then the replica may still take part in an older epoch."""
    all_lost(desk)
    before = desk.state.vacant - 1
    assert ends(desk, "n1", 1, 700, revision=before).code == "other-revision"
    assert not desk.state.ends


def test_nothing_is_reported_while_a_member_has_everything(desk: Desk) -> None:
    """An election by the usual rule needs no ends."""
    assert ends(desk, "n1", 1, 700).code == "not-vacant"


def test_a_lost_disk_of_a_member_needs_an_operators_word(desk: Desk) -> None:
    """What it held cannot be compared with what the others have."""
    power_lost(desk, "n1", "n2")
    assert desk.sign_in("n3", store="new", known=("x",), start="x").ok
    assert desk.state.wiped == ("n3",)
    for name in ("n1", "n2", "n3"):
        assert ends(desk, name, 1, 700).ok
    refused = failover(desk)
    assert refused.code == "not-eligible"
    assert "the disk of n3 was lost" in refused.text
    order = ops.UncleanElect("n1", desk.state.epoch, "alice", "n3 is gone")
    assert desk.do(order).ok
    assert (desk.state.leader, desk.state.wiped) == ("n1", ())


def test_a_wiped_member_that_joined_again_is_forgiven(desk: Desk) -> None:
    """Its new disk holds everything since."""
    assert desk.sign_in("n3", store="new", known=("x",), start="x").ok
    assert desk.state.wiped == ("n3",)
    assert desk.alter({"n3": desk.state.session_of("n3")}).ok
    assert desk.state.wiped == ()


def test_nobody_is_removed_while_nobody_has_everything(desk: Desk) -> None:
    """It may be the one that has the most."""
    all_lost(desk)
    assert desk.do(ops.RemoveReplica("n2", "alice")).code == "last-member"


@pytest.mark.parametrize("nodes", [1, 3])
def test_where_the_group_says_best_no_operator_is_needed(nodes: int) -> None:
    """A cluster of one, or one on a developer's machine, goes on by itself."""
    names = tuple(f"n{number}" for number in range(1, nodes + 1))
    desk = Desk(ops.Seed(names, 1, "n1", {}, "received", "best"))
    for name in names:
        assert desk.sign_in(name).ok
    assert desk.elect("n1").ok
    assert desk.alter(dict.fromkeys(names[1:], 1)).ok
    power_lost(desk, *names)
    for name in names:
        assert desk.state.leader is None
        assert ends(desk, name, 1, 100 * int(name[1:])).ok
    assert desk.state.leader == names[-1]
    assert desk.state.unclean[-1].who == "after_power_loss = best"
    assert desk.register.history[-1]["by"] == "after_power_loss = best"


def test_the_vacancy_survives_the_coordinators_restart(desk: Desk) -> None:
    """It is part of the state."""
    all_lost(desk)
    assert ends(desk, "n1", 1, 500).ok
    again = Register.load(desk.register.dump(), desk.register.pairs)
    assert again.state == desk.state
    assert GroupState.from_json(desk.state.to_json()) == desk.state
