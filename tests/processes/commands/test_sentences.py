"""Sentences of ``cluster status`` on real processes, in the order in which a bad day makes them.

Each sentence is also made by a cluster of words (`tests/unit/cli/cluster/test_health.py`); here are
those that killing and suspending processes makes, and each is left by the command that it names.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.processes import ROOT, Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def said(cluster: Processes) -> dict[str, str]:
    """What ``cluster health`` says is wrong: code and the command that goes on."""
    line = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), "cluster", "health"]
    found = subprocess.run(
        [*line, "-o", "json"], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    if not found.stdout:
        return {}
    document: dict[str, Any] = json.loads(found.stdout)
    return {one["code"]: one["command"] for one in document["problems"]}


def until_said(cluster: Processes, *codes: str) -> dict[str, str]:
    """Wait until it says all of these."""
    last: dict[str, str] = {}

    def all_said() -> bool:
        last.clear()
        last.update(said(cluster))
        return set(codes) <= set(last)

    cluster.until(all_said, ", ".join(codes))
    return dict(last)


def test_a_bad_day_is_told_sentence_by_sentence(processes: Processes) -> None:
    """Coordinator, slave and master are killed in turn; then each is started as the hint says."""
    master = processes.settled(3)
    first, second = (name for name in ("n1", "n2", "n3") if name != master)
    processes.kill("coordinator")
    assert until_said(processes, "coordinator-away")["coordinator-away"].endswith(
        "coordinator start"
    )
    processes.kill(first)
    found = until_said(processes, "node-down", "writes-wait")
    assert found["node-down"] == f"twinlog node start {first}"
    assert found["writes-wait"].endswith("coordinator start")
    processes.start(first)  # it runs, but only the coordinator gives a session
    processes.until(lambda: "node-down" not in said(processes), f"{first} running")
    assert "writes-wait" in said(processes)
    processes.kill(first)
    processes.kill(master)
    found = until_said(processes, "no-master-no-coordinator")
    assert found["no-master-no-coordinator"].endswith("coordinator start")
    processes.start("coordinator")
    found = until_said(processes, "register-waiting")
    assert found["register-waiting"] == "twinlog coordinator status"
    processes.start(first, master)
    processes.settled(3)
    processes.until(lambda: not said(processes), "a healthy cluster")
    processes.send(second, signal.SIGSTOP)
    assert until_said(processes, "node-silent")["node-silent"] == f"twinlog node show {second}"
    processes.send(second, signal.SIGCONT)
    processes.until(lambda: not said(processes), "a healthy cluster again")
    for name in (first, master):  # killed and started again: no line says that it stopped in order
        text = (processes.folder / f"{name}.log").read_text()
        assert "nothing acknowledged was lost" in text
        told = [line for line in text.splitlines() if not line.startswith("{")]
        assert not re.search(r"(?i)\bclean", "\n".join(told)), name


def test_a_cluster_begins_shrinks_and_loses_its_candidates(tmp_path: Path) -> None:
    """From the first start on: too few nodes, in each way in which they can be too few."""
    cluster = Processes(tmp_path)
    try:
        cluster.start("coordinator", "n1")
        assert until_said(cluster, "first-election")["first-election"] == "twinlog node start n2"
        cluster.start("n2", "n3")
        master = cluster.settled(3)
        first, second = (name for name in ("n1", "n2", "n3") if name != master)
        cluster.kill(first, second)
        found = until_said(cluster, "not-enough-in-sync", "node-down")
        assert found["not-enough-in-sync"] == f"twinlog node start {first}"
        cluster.start(first, second)
        cluster.until(lambda: not said(cluster), "a healthy cluster")
        for name in (first, second):
            cluster.send(name, signal.SIGSTOP)
        until_said(cluster, "too-few-in-sync", "node-silent")
        for name in (first, second):
            cluster.send(name, signal.SIGCONT)
        cluster.until(lambda: not said(cluster), "a healthy cluster")
        cluster.kill(second)
        cluster.settled(2)
        cluster.until(lambda: len(members(cluster)) == 2, f"{second} out of the in-sync set")
        cluster.kill(first, master)
        cluster.start(second)
        least = min(first, master)
        assert until_said(cluster, "no-candidate")["no-candidate"] == f"twinlog node start {least}"
        cluster.start(first, master)
        cluster.settled(3)
        cluster.until(lambda: not said(cluster), "a healthy cluster")
    finally:
        cluster.close()


def members(cluster: Processes) -> list[str]:
    """The in-sync set as the master sees it."""
    name = cluster.master()
    found = cluster.status(name).get("in_sync") if name else None
    return [str(one) for one in found] if isinstance(found, list) else []  # pyright: ignore


def test_holds_and_mistakes_in_the_file_are_told(processes: Processes) -> None:
    """The heirs of a dead master are in maintenance; then a file with another node's address."""
    master = processes.settled(3)
    heirs = [name for name in ("n1", "n2", "n3") if name != master]
    for name in heirs:
        ordered(processes, "cluster", "maintenance", name, "--yes")
    processes.kill(master)
    found = until_said(processes, "all-in-maintenance")["all-in-maintenance"]
    assert found == f"twinlog cluster maintenance {heirs[0]} --off"
    ordered(processes, "cluster", "maintenance", heirs[0], "--off", "--yes")
    found = until_said(processes, "master-gone")["master-gone"]
    assert found == "twinlog cluster failover"
    ordered(processes, "cluster", "failover", "--yes")
    processes.start(master)
    assert processes.settled(3) == heirs[0]
    ordered(processes, "cluster", "maintenance", heirs[1], "--off", "--yes")
    processes.until(lambda: not said(processes), "a healthy cluster")
    ports = [processes.config.node(name).listen.clients for name in ("n2", "n3")]
    text = processes.path.read_text()
    other = dict(zip(map(str, ports), map(str, reversed(ports)), strict=True))
    exchanged = re.sub("|".join(other), lambda found: other[found[0]], text)
    processes.path.write_text(exchanged)
    assert until_said(processes, "other-node")["other-node"] == "twinlog config show"
    processes.path.write_text(text)
    processes.until(lambda: not said(processes), "a healthy cluster")


def ordered(cluster: Processes, *words: str) -> None:
    """Run a command that must succeed."""
    line = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), *words]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
