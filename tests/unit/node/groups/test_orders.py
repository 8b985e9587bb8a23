"""Orders about groups: what a deletion leaves."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from node.groups.orders import Orders
from node.leases.settles import SettleCounts
from node.leases.times import LeaseTimes
from node.turns.context import GroupCounts
from storage.messaging.groups import Group
from storage.state.sections import Outcome, SectionResult


def test_nothing_is_counted_of_a_deleted_group() -> None:
    """Groups that come and go leave no entry by name; those of others stay."""
    counts = GroupCounts(SettleCounts(LeaseTimes(lambda *_: None)))
    for group in "g", "h":
        counts.leased[group] = counts.dead[group] = 1
        for how in "ack", "dead":
            counts.settled.add(group, how, 2)

    def control(now: float, change: Any, *, deadline: float, reply: Any) -> None:
        reply([SectionResult(Outcome.STORED)], "n1")

    context: Any = SimpleNamespace(
        messaging=SimpleNamespace(defined=lambda name: (Group(name), 0)),
        members=SimpleNamespace(of=lambda name: []),
        parked=SimpleNamespace(line=lambda name: []),
        driver=SimpleNamespace(control=control), counts=counts, late_at={"g": 1.0, "h": 1.0},
    )  # fmt: skip
    turn: Any = SimpleNamespace(now=0.0, together=[])
    said = list[Any]()
    orders = Orders(context, dict, lambda *_: None)
    orders.order(
        {"op": "delete", "name": "g"}, lambda asked: asked[0](turn), cast("Any", None), said.append
    )
    turn.together[0]()
    assert said == [{"changed": True}]
    assert (counts.leased, counts.dead, context.late_at) == ({"h": 1}, {"h": 1}, {"h": 1.0})
    assert counts.settled.settled == {("h", "ack"): 2, ("h", "dead"): 2}
