"""Levels: which releases may copy a group's log (R74)."""

from __future__ import annotations

import json

from replication.register import operations as ops
from replication.register.group_state import GroupState
from replication.register.membership import UPGRADE
from tests.unit.replication.register.desk import Desk
from twinlog.levels import FIRST, LEVEL, LEVELS, refusal


def upgraded(*new: str) -> Desk:
    """A group that began at the first level; these run this release now."""
    desk = Desk()
    for name in ("n1", "n2", "n3"):
        assert desk.sign_in(name).ok
    for name in new:
        assert desk.sign_in(name, level=LEVEL).ok
    return desk


def test_a_new_group_has_the_level_of_its_first_node() -> None:
    """Nodes that name none are of the first level."""
    desk = Desk()
    assert desk.sign_in("n1", level=LEVEL).state.level == LEVEL
    refused = desk.sign_in("n2")
    assert (refused.code, "n2 knows level 1" in refused.text) == ("too-old", True)
    assert "n2" not in desk.state.reg
    assert upgraded().state.level == FIRST


def test_the_level_rises_once_all_know_it_and_never_falls() -> None:
    """The refusal names the nodes that do not; a learner is one of them."""
    desk = upgraded("n1", "n3")
    assert desk.do(ops.AddReplica("n4", 0, "alice", learner=True)).ok
    assert desk.sign_in("n4").ok
    raised = ops.Change("level", str(LEVEL), "alice")
    refused = desk.do(raised)
    assert (refused.code, refused.hint) == ("level", UPGRADE)
    assert "n2 knows 1, n4 knows 1" in refused.text
    assert desk.sign_in("n2", level=LEVEL).ok
    assert desk.do(ops.RemoveReplica("n4", "alice")).ok
    assert "n4" not in desk.state.levels
    assert desk.do(raised).state.level == LEVEL
    assert desk.register.history[-1]["reason"] == f"level = {LEVEL}"
    assert desk.do(ops.Change("level", "1", "alice")).code == "level"
    assert desk.do(ops.Change("level", str(LEVEL + 1), "alice")).code == "fields"
    assert desk.sign_in("n3").code == "too-old"


def test_a_node_may_go_back_until_the_level_is_raised() -> None:
    """It registers with what it knows now, and then holds the level up."""
    desk = upgraded("n1", "n2", "n3")
    assert desk.sign_in("n2").ok
    assert desk.do(ops.Change("level", str(LEVEL), "alice")).code == "level"


def test_a_document_without_levels_is_of_the_first() -> None:
    """Older registers and promises have none; the levels of newer ones are read back."""
    state = upgraded("n2").state
    value = json.loads(json.dumps(state.to_json()))
    assert GroupState.from_json(value) == state
    del value["level"], value["levels"]
    assert (GroupState.from_json(value).level, GroupState.from_json(value).levels) == (FIRST, {})


def test_a_record_of_a_higher_level_is_refused_with_the_command() -> None:
    """Every level has a meaning in words."""
    assert refusal(LEVEL, LEVEL) is None
    found = refusal(LEVEL, FIRST)
    assert found is not None
    assert found[0] == "level"
    assert found[1].startswith(LEVELS[LEVEL])
    assert f"twinlog cluster set level {LEVEL}" in found[1]
