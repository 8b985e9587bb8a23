"""What a node says about itself, and what a cluster is when some of its nodes say nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest

from node.observe.status import Facts, node_status, not_ready, role_matches
from replication.core.view import PeerView, RoleView

NOW = "2026-11-21T10:15:02.118Z"


OFFSETS = {
    "start": 0, "checkpointed": 40, "flushed": 50, "dispatched": 55, "confirm": 60, "committed": 80,
    "end": 80,
}  # fmt: skip


def peer_of(**changes: object) -> PeerView:
    """A slave as its master sees it."""
    base = PeerView("n2", "slave", 60, 40, 20, 0.12345, 0.1, True, "streaming", None)
    return replace(base, **changes)  # type: ignore[arg-type]


def view_of(**changes: object) -> RoleView:
    """What a driver shows."""
    base = RoleView(
        role="master", state="serving", epoch=7, leader="n1", session=3, in_sync=("n1", "n2"),
        min_in_sync=2, effective=("n1", "n2"), confirm=60, end=80, flushed=50, peers=(peer_of(),),
        quarantined=None, admission=None, age_seconds=0.0, why=None, register_id="r", revision=9,
    )  # fmt: skip
    return replace(base, **changes)  # type: ignore[arg-type]


FACTS = Facts(
    node="n1",
    cluster="demo",
    group="g1",
    time=NOW,
    version="0.1.0",
    pid=42,
    uptime_seconds=12.34567,
    addresses={"host": "127.0.0.1", "client_port": 7410},
    offsets=OFFSETS,
    coordinator_seconds=0.5,
    topics=2,
    disk_free=100,
    disk_size=200,
    boot={"clean": True},
    staleness_max_seconds=5.0,
)


def slave(name: str = "n2", **changes: object) -> RoleView:
    """A slave that hears its master."""
    base = view_of(
        role="slave", state="streaming", in_sync=(), effective=(), peers=(), age_seconds=0.2
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def document(name: str, view: RoleView) -> dict[str, object]:
    """A node's document."""
    return node_status(view, replace(FACTS, node=name), {"accepted": 3})


def test_a_masters_document() -> None:
    """Every field a reader may rely on, by value."""
    found = document("n1", view_of())
    assert found["kind"] == "NodeStatus"
    assert (found["role"], found["epoch"], found["leader"]) == ("master", 7, "n1")
    assert (found["ready"], found["writable"], found["admission"]) == (True, True, None)
    assert (found["in_sync"], found["in_sync_min"]) == (["n1", "n2"], 2)
    assert found["offsets"] == OFFSETS
    assert (found["topics"], found["counters"]) == (2, {"accepted": 3})
    assert cast("Sequence[Mapping[str, object]]", found["peers"])[0] == {
        "name": "n2", "role": "slave", "state": "streaming", "why": None, "in_sync": True,
        "acked": 60, "flushed": 40, "lag_bytes": 20, "lag_seconds": 0.123, "contact_seconds": 0.1,
        "round_trip_seconds": None, "unacknowledged_bytes": None, "slow": False,
    }  # fmt: skip
    assert (found["uptime_seconds"], found["quarantined"]) == (12.346, None)


def test_a_slave_has_no_in_sync_set_of_its_own() -> None:
    found = document("n2", slave())
    assert (found["in_sync"], found["writable"], found["ready"]) == (None, False, True)


def test_a_master_that_refuses_writes_says_so_and_stays_ready() -> None:
    """Readers are still served: taking it out of rotation would only make things worse."""
    found = document("n1", view_of(admission="not-enough-in-sync"))
    assert (found["writable"], found["ready"]) == (False, True)


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (view_of(role="fenced", state="fenced"), "no role yet: fenced"),
        (view_of(role="fenced", state="fenced", why="no session"), "no role yet: no session"),
        (slave(leader=None), "no master is known"),
        (slave(age_seconds=None), "has not heard from the master n1 yet"),
        (slave(age_seconds=6.0), "data is 6.0 s old, the limit is 5 s"),
        (slave(quarantined="torn"), "quarantined"),
    ],
)
def test_why_a_node_takes_no_traffic(view: RoleView, reason: str) -> None:
    assert reason in not_ready(view, 5.0)[0]


def test_a_quarantine_is_shown_with_its_reason() -> None:
    assert document("n1", view_of(quarantined="torn"))["quarantined"] == "torn"


NINETEEN = "20 bytes are not confirmed, the limit asked for is 19"
NO_AGE = "data is None s old, the limit asked for is 9 s"


@pytest.mark.parametrize(
    ("view", "role", "limits", "why"),
    [
        (view_of(), "master", {}, None),
        (view_of(), "slave", {}, "n1 is master"),
        (slave(), "master", {}, "n1 is slave"),
        (slave(), "slave", {"max_lag": 20}, None),
        (slave(), "slave", {"max_lag": 19}, NINETEEN),
        (slave(), "slave", {"max_age": 0.1}, "data is 0.2 s old, the limit asked for is 0.1 s"),
        (slave(age_seconds=None), "slave", {"max_age": 9.0}, NO_AGE),
        (slave(), "readable", {}, None),
        (slave(leader=None), "readable", {}, "no master is known"),
    ],
)  # fmt: skip
def test_questions_of_load_balancers(
    view: RoleView, role: str, limits: dict[str, float], why: str | None
) -> None:
    found = document("n1", view)
    lag, age = limits.get("max_lag"), limits.get("max_age")
    assert role_matches(found, role, max_lag=cast("int | None", lag), max_age=age) == why
