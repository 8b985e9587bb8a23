"""What ``cluster top`` makes of two pictures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.cluster.top import RATES, rates
from tests.fakes.cli_cluster import FakeCluster, peer


def counted(uptime: float, sent: int, *, pid: int = 7) -> dict[str, object]:
    """A status after so many messages."""
    counters = dict.fromkeys(RATES.values(), 0) | {"records_appended": sent}
    return {"uptime_seconds": uptime, "pid": pid, "counters": counters}


def test_rates_are_differences() -> None:
    """Divided by the node's own time."""
    found = rates(counted(10.0, 100), counted(12.0, 300))
    assert found["sent_per_second"] == 100
    assert found["read_per_second"] == 0


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, counted(1.0, 5)),
        (counted(1.0, 5), {}),
        (counted(10.0, 100), counted(1.0, 5)),
        (counted(1.0, 0, pid=7), counted(5.0, 5, pid=8)),
        (counted(1.0, 0), counted(1.0, 0)),
        (counted(1.0, 0), {"uptime_seconds": 2.0, "pid": 7}),
    ],
)
def test_an_unknown_rate_is_not_zero(before: dict[str, object], after: dict[str, object]) -> None:
    """A node that was away, was started again, or is older."""
    assert set(rates(before, after).values()) == {None}


def test_whom_sends_wait_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slow one by name, else those in sync that lack something; not who is out of sync."""
    monkeypatch.setattr("cli.cluster.top.SPAN_SECONDS", 0.0)
    cluster = FakeCluster(tmp_path)
    master = cluster.nodes["n1"]

    def waits() -> object:
        found = json.loads(cluster.run("cluster", "top", "-o", "json")[1])
        return found["nodes"][0]["waits_for"]

    late = peer("n2", lag=100, seconds=0.0, contact=0.0, in_sync=True)
    out = peer("n3", lag=100, seconds=0.0, contact=0.0, in_sync=False)
    master["peers"] = [late, out]
    assert waits() is None
    master["counters"] = {"appends_waiting": 3}
    assert waits() == "3 sends wait for n2"
    master["peers"] = [late, late | {"name": "n3", "slow": True}]
    assert waits() == "3 sends wait for n3"
    master["counters"] = {}
    assert waits() == "n3"
    master["admission"] = "disk-full"
    assert waits() == "disk-full"
