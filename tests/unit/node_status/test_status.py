"""What a node says about itself, and what a cluster is when some of its nodes say nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from node.status import Asked, Facts, cluster_status, node_status, not_ready, role_matches

NOW = "2026-11-21T10:15:02.118Z"


@dataclass(frozen=True)
class Peer:
    """A slave as its master sees it."""

    name: str = "n2"
    role: str = "slave"
    acked: int | None = 60
    flushed: int | None = 40
    lag_bytes: int | None = 20
    lag_seconds: float | None = 0.12345
    contact_seconds: float | None = 0.1
    in_sync: bool = True
    state: str = "streaming"
    why: str | None = None


@dataclass(frozen=True)
class View:
    """What a driver shows."""

    role: str = "master"
    state: str = "serving"
    epoch: int = 7
    leader: str | None = "n1"
    session: int = 3
    in_sync: Sequence[str] = ("n1", "n2")
    min_in_sync: int = 2
    effective: Sequence[str] = ("n1", "n2")
    confirm: int = 60
    end: int = 80
    flushed: int = 50
    peers: Sequence[Peer] = (Peer(),)
    quarantined: object = None
    admission: str | None = None
    age_seconds: float | None = 0.0
    why: str | None = None
    register_id: str = "r"
    revision: int = 9


@dataclass(frozen=True)
class Positions:
    """A store's positions."""

    start: int = 0
    end: int = 80
    committed: int = 80
    flushed: int = 50
    checkpointed: int = 40
    confirm: int = 60
    dispatched: int = 55


FACTS = Facts(
    node="n1",
    cluster="demo",
    group="g1",
    time=NOW,
    version="0.1.0",
    pid=42,
    uptime_seconds=12.34567,
    addresses={"host": "127.0.0.1", "client_port": 7410},
    coordinator_seconds=0.5,
    topics={"b": 2, "a": 1},
    disk_free=100,
    disk_size=200,
    boot={"clean": True},
    counters={"accepted": 3},
    staleness_max_seconds=5.0,
)


def slave(name: str = "n2", **changes: object) -> View:
    """A slave that hears its master."""
    base = View("slave", "streaming", in_sync=(), effective=(), peers=(), age_seconds=0.2)
    return replace(base, **changes)  # type: ignore[arg-type]


def document(name: str, view: View, **positions: int) -> dict[str, object]:
    """A node's document."""
    return node_status(view, Positions(**positions), replace(FACTS, node=name))


def test_a_masters_document() -> None:
    """Every field a reader may rely on, by value."""
    found = document("n1", View())
    assert found["kind"] == "NodeStatus"
    assert (found["role"], found["epoch"], found["leader"]) == ("master", 7, "n1")
    assert (found["ready"], found["writable"], found["admission"]) == (True, True, None)
    assert (found["in_sync"], found["in_sync_min"]) == (["n1", "n2"], 2)
    assert found["offsets"] == {
        "start": 0, "checkpointed": 40, "flushed": 50, "dispatched": 55,
        "confirm": 60, "committed": 80, "end": 80,
    }  # fmt: skip
    assert found["topics"] == {"a": 1, "b": 2}
    assert cast("Sequence[Mapping[str, object]]", found["peers"])[0] == {
        "name": "n2", "role": "slave", "state": "streaming", "why": None, "in_sync": True,
        "acked": 60, "flushed": 40, "lag_bytes": 20, "lag_seconds": 0.123, "contact_seconds": 0.1,
    }  # fmt: skip
    assert (found["uptime_seconds"], found["quarantined"]) == (12.346, None)


def test_a_slave_has_no_in_sync_set_of_its_own() -> None:
    found = document("n2", slave())
    assert (found["in_sync"], found["writable"], found["ready"]) == (None, False, True)


def test_a_master_that_refuses_writes_says_so_and_stays_ready() -> None:
    """Readers are still served: taking it out of rotation would only make things worse."""
    found = document("n1", View(admission="not-enough-in-sync"))
    assert (found["writable"], found["ready"]) == (False, True)


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (View(role="fenced", state="fenced"), "no role yet: fenced"),
        (View(role="fenced", state="fenced", why="no session"), "no role yet: no session"),
        (slave(leader=None), "no master is known"),
        (slave(age_seconds=None), "has not heard of the master n1 yet"),
        (slave(age_seconds=6.0), "data is 6.0 s old, the limit is 5 s"),
        (slave(quarantined="torn"), "quarantined"),
    ],
)
def test_why_a_node_takes_no_traffic(view: View, reason: str) -> None:
    assert reason in not_ready(view, 5.0)[0]


def test_a_quarantine_is_shown_as_text_or_map() -> None:
    assert document("n1", View(quarantined={"offset": 5}))["quarantined"] == {"offset": 5}
    assert document("n1", View(quarantined=True))["quarantined"] == "True"


NINETEEN = "20 bytes are not confirmed, the limit asked for is 19"
NO_AGE = "data is None s old, the limit asked for is 9 s"


@pytest.mark.parametrize(
    ("view", "role", "limits", "why"),
    [
        (View(), "master", {}, None),
        (View(), "slave", {}, "n1 is master"),
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
    view: View, role: str, limits: dict[str, float], why: str | None
) -> None:
    found = document("n1", view)
    lag, age = limits.get("max_lag"), limits.get("max_age")
    assert role_matches(found, role, max_lag=cast("int | None", lag), max_age=age) == why


@dataclass
class Answers:
    """Three nodes' answers."""

    rows: list[Asked] = field(default_factory=list[Asked])

    def status(self, state: Mapping[str, object] | None) -> dict[str, object]:
        """The cluster's document."""
        return cluster_status("demo", NOW, self.rows, state)


STATE: Mapping[str, object] = {"epoch": 7, "leader": "n1", "min_isr": 2}


def rows(found: Mapping[str, object]) -> list[Mapping[str, object]]:
    """The document's nodes."""
    return cast("list[Mapping[str, object]]", found["nodes"])


def test_a_healthy_cluster() -> None:
    answers = Answers([Asked("n1", document("n1", View())), Asked("n2", document("n2", slave()))])
    found = answers.status(STATE)
    assert (found["health"], found["reasons"]) == ("healthy", [])
    assert (found["master"], found["epoch"], found["confirm_offset"]) == ("n1", 7, 60)
    first, second = rows(found)
    assert (first["in_sync"], first["lag_bytes"]) == (True, None)
    assert (second["in_sync"], second["lag_bytes"], second["end_offset"]) == (True, 20, 80)


def test_a_silent_node_stays_in_the_list() -> None:
    """A shorter list would look like a smaller, healthy cluster."""
    answers = Answers([Asked("n1", document("n1", View())), Asked("n2", None, "refused")])
    found = answers.status(STATE)
    assert found["health"] == "degraded"
    assert rows(found)[1]["state"] == "unreachable"
    assert found["reasons"] == ["n2 is unreachable: refused"]


def test_a_slave_outside_the_set_degrades() -> None:
    lagging = Peer(in_sync=False, why="lagging")
    master = View(in_sync=("n1",), peers=(lagging,))
    answers = Answers([Asked("n1", document("n1", master)), Asked("n2", document("n2", slave()))])
    assert answers.status(STATE)["reasons"] == ["n2 is not in sync: lagging"]


def test_a_node_that_knows_what_ails_it_is_believed_first() -> None:
    """A full disk is told by the slave that has it, not guessed by its master."""
    master = View(in_sync=("n1",), peers=(Peer(in_sync=False, why="silent"),))
    full = document("n2", slave(why="disk full"))
    found = Answers([Asked("n1", document("n1", master)), Asked("n2", full)]).status(STATE)
    assert found["reasons"] == ["n2 is not in sync: disk full"]


def test_two_masters_are_one_and_a_deposed_one() -> None:
    """The larger epoch is the master; the other has not heard yet."""
    old, new = document("n1", View(epoch=6)), document("n2", View(epoch=7))
    found = Answers([Asked("n1", old), Asked("n2", new)]).status(STATE)
    assert (found["master"], found["epoch"]) == ("n2", 7)


def test_no_master_is_unavailable() -> None:
    found = Answers([Asked("n1", document("n1", slave()))]).status(STATE)
    assert (found["health"], found["master"], found["epoch"]) == ("unavailable", None, 7)
    assert (found["in_sync_min"], found["confirm_offset"]) == (2, None)
    assert "no node is master" in cast("list[str]", found["reasons"])


def test_a_master_that_refuses_writes_is_unavailable() -> None:
    master = document("n1", View(admission="disk-full"))
    found = Answers([Asked("n1", master)]).status(STATE)
    assert found["health"] == "unavailable"
    assert found["reasons"] == ["n1 refuses writes: disk-full"]


def test_a_silent_coordinator_degrades() -> None:
    answers = Answers([Asked("n1", document("n1", View())), Asked("n2", document("n2", slave()))])
    found = answers.status(None)
    assert (found["health"], found["coordinator"]) == ("degraded", "unreachable")
    nobody = Answers([Asked("n1", None, "refused")]).status(None)
    assert (nobody["health"], nobody["epoch"], nobody["in_sync_min"]) == ("unavailable", None, None)
