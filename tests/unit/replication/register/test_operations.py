"""Operations of the register on the wire: what is sent is what arrives, and nothing else does."""

from __future__ import annotations

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replication.register import operations as ops
from replication.register import rules
from replication.register.group_state import GroupState, Registration
from replication.register.operations import (
    NOTHING,
    Elect,
    Read,
    Report,
    parse_op,
)
from replication.register.outcome import Refused
from tests.dialogues.stories import steady
from tests.unit.replication.register.desk import SEED
from twinlog.errors import ProtocolError

EVERY: list[ops.Operation] = [
    ops.Read(Report("n1", "r", 3, 4, 5)),
    ops.RegisterNode("n1", "s", "x", ("w", "x"), True, False, 3, 100, 4, SEED),
    ops.RegisterNode("n1", "s", "x", ("x",), False, True, 0, 0, 0, None, NOTHING, 7),
    ops.Elect("n1", 4, 3, True),
    ops.AlterInSync("n1", 1, 2, 3, {"n2": 4}, ("n3",)),
    ops.Transfer("n1", 1, 2, "n2", "bob"),
    ops.Transfer("n1", 1, 2, "n2", "stop", leaving=True),
    ops.Annotate("n1", 2, 100, None),
    ops.ReportEnd("n1", 2, 3, 4, 5),
    ops.Depose("n1", 0, "bob", "why"),
    ops.Failover(None, 1, "bob", "why"),
    ops.UncleanElect("n1", 1, "bob", "why"),
    ops.Adopt("n1", "bob", "why"),
    ops.Vouch(("n1", "n2"), "bob", "why"),
    ops.Recover(GroupState(), (ops.Voice("n1", "r", 1, 2, 3, 4, 5),), ("n2",), "bob", "why"),
    ops.ClearAlarm("bob", "why"),
    ops.AddReplica("n4", -3, "bob"),
    ops.RemoveReplica("n4", "bob"),
    ops.Change("in_sync_min", "2", "bob"),
]


@pytest.mark.parametrize("op", EVERY, ids=lambda op: type(op).__name__)
def test_operations_travel(op: ops.Operation) -> None:
    """What is sent is what arrives; without a report, nothing is reported."""
    wire = ops.to_wire(op)
    assert ops.parse_op(wire) == op
    del wire["report"]
    assert ops.parse_op(wire).report == NOTHING


@pytest.mark.parametrize("op", EVERY, ids=lambda op: type(op).__name__)
def test_operations_with_a_field_of_another_type_are_refused(op: ops.Operation) -> None:
    """Whatever a peer sends."""
    wire = ops.to_wire(op)
    for field in fields(op):
        if field.name == "known":
            continue
        with pytest.raises(ProtocolError):
            ops.parse_op({**wire, field.name: 1.5})


@given(st.dictionaries(st.text(), st.none() | st.integers() | st.text() | st.lists(st.text())))
def test_garbage_is_no_operation(garbage: dict[str, object]) -> None:
    """Only a ProtocolError."""
    for name in ("read", "elect", "register", "alter-in-sync", "no such"):
        try:
            ops.parse_op({**garbage, "op": name})
        except ProtocolError:
            continue


def test_a_read_is_no_change_and_a_learner_no_master() -> None:
    """Both are refused by the rules."""
    state = GroupState(
        replicas=("n1",), learners=("n4",), epoch=1, reg={"n4": Registration(1, "s", "x")}
    )
    assert isinstance(rules.decide(state, Read(), 0), Refused)
    found = rules.decide(state, Elect("n4", 1, 2), 0)
    assert isinstance(found, Refused)
    assert found.code == "unknown-node"


def test_a_failover_without_a_leader_only_elects() -> None:
    """Nobody is left to depose."""
    from replication.register.operations import Depose, Failover

    world = steady()
    world.coordinator_down = True
    world.apply(Depose("n1", 0, "a", ""))
    assert world.apply(Failover("n1", world.register.state.epoch, "a", "")).ok
    assert world.register.state.leader == "n1"


@pytest.mark.parametrize("seed", [5, [["n1"], 2, None, {}], [[], 0, None, {}], [["n1"], 1, None]])
def test_a_seed_of_another_shape_is_refused(seed: object) -> None:
    """Also one whose least in-sync set cannot be reached."""
    op = {
        "op": "register", "node": "n1", "store": "s", "start": "x", "known": ["x"], "clean": True,
        "empty": True, "last_epoch": 0, "end": 0, "promised": 0, "seed": seed,
    }  # fmt: skip
    with pytest.raises(ProtocolError):
        parse_op(op)
