"""Holds of an operator on real processes: a pause of automatic failover, a node in maintenance."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cli.dev.private_cluster import free_ports
from node.config.pages import Local, write_local
from replication.register.leases import LEASE_SECONDS
from tests.fixtures.processes import ROOT, MiB, Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.fixture
def automatic(tmp_path: Path) -> Iterator[Processes]:
    """Three nodes as `config init` writes them, all in sync."""
    write_local(tmp_path / "cluster.toml", Local(base_port=free_ports(3), segment_size=16 * MiB))
    found = Processes(tmp_path)
    try:
        found.start_all()
        found.settled(3)
        yield found
    finally:
        found.close()


def twinlog(cluster: Processes, *words: str, code: int = 0) -> str:
    """Run a command; its output."""
    line = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), *words]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == code, found.stdout + found.stderr
    return found.stdout


def problems(cluster: Processes) -> dict[str, str]:
    """What the status says is wrong, by code."""
    document: dict[str, Any] = json.loads(twinlog(cluster, "cluster", "status", "-o", "json"))
    return {one["code"]: one["text"] for one in document["problems"]}


def master_gone(cluster: Processes) -> bool:
    """Whether the status says that the master does not answer."""
    return "master-gone" in problems(cluster)


def test_a_pause_keeps_a_dead_master_until_it_ends(automatic: Processes) -> None:
    """Status says who and since when; no node takes over while it lasts, one does afterwards."""
    twinlog(automatic, "cluster", "pause", "--for", "1h", "--why", "switches", "--yes")
    said = problems(automatic)["paused"]
    assert "by user" in said
    assert said.endswith(": switches")
    old = automatic.settled(3)
    epoch = automatic.status(old)["epoch"]
    automatic.kill(old)
    automatic.until(lambda: master_gone(automatic), "the master to be missed")
    # A shorter pause replaces it: the coordinator ends that one by itself, and then acts.
    seconds = round(2 * LEASE_SECONDS)
    twinlog(automatic, "cluster", "pause", "--for", f"{seconds}s", "--yes")
    assert "paused" in problems(automatic)
    assert automatic.settled(2) != old
    assert "paused" not in problems(automatic)
    assert int(str(automatic.status(automatic.settled(2))["epoch"])) == int(str(epoch)) + 1
    reasons = [one["reason"] for one in history(automatic)]
    assert "automatic failover resumed: its time is over" in reasons
    twinlog(automatic, "cluster", "pause", "--for", "1h", "--yes")
    twinlog(automatic, "cluster", "resume")
    assert "paused" not in problems(automatic)


def history(cluster: Processes) -> list[dict[str, Any]]:
    """The coordinator's history."""
    found: list[dict[str, Any]] = json.loads(twinlog(cluster, "cluster", "history", "-o", "json"))[
        "epochs"
    ]
    return found


def test_a_node_in_maintenance_hands_over_and_is_not_elected(automatic: Processes) -> None:
    """Also after the coordinator was restarted; released, it may lead again."""
    held = automatic.settled(3)
    twinlog(automatic, "cluster", "maintenance", held, "--why", "disk", "--yes")
    second = automatic.settled(3)
    assert second != held
    assert problems(automatic)["maintenance"].startswith(f"{held} is in maintenance")
    twinlog(automatic, "cluster", "failover", "--to", held, "--yes", code=69)
    twinlog(automatic, "cluster", "switchover", "--to", held, "--yes", code=69)
    automatic.kill("coordinator")
    automatic.start("coordinator")
    automatic.settled(3)
    automatic.kill(second)
    third = automatic.settled(2)
    assert third not in (held, second)
    automatic.start(second)
    automatic.settled(3)
    twinlog(automatic, "cluster", "maintenance", held, "--off", "--yes")
    assert "maintenance" not in problems(automatic)
    twinlog(automatic, "cluster", "switchover", "--to", held, "--yes")
    assert automatic.settled(3) == held
