"""Who belongs to the group changes under load: a learner, a full member, another address."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading

import pytest

import twinlog
from cli.dev.private_cluster import first_difference, free_ports
from node.config.config import load
from tests.fixtures.processes import ROOT, Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FOURTH = """
[[node]]
name = "n4"
address = "127.0.0.1"
data = "data/n4"
[node.listen]
clients = {0}
slaves = {1}
http = {2}
"""


def twinlog_command(cluster: Processes, *words: str) -> str:
    """Run a command that must succeed; its output."""
    line = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), *words]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


def client(cluster: Processes, *names: str) -> twinlog.Client:
    """A client that knows these nodes (default: those of the first file)."""
    servers = [cluster.address(name) for name in names or ("n1", "n2", "n3")]
    return twinlog.Client([f"{host}:{port}" for host, port in servers], timeout=60.0)


class Load:
    """One sender of numbers, each confirmed; it fails the test if one is not."""

    def __init__(self, cluster: Processes) -> None:
        self._cluster = cluster
        self._over = threading.Event()
        self.sent = 0
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with client(self._cluster) as sender:
                while not self._over.is_set():
                    sender.send("t", b"%d" % self.sent)
                    self.sent += 1
        except Exception as error:  # shown by `__exit__`, in the test's own thread
            self.error = error

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(90.0)
        if self.error is not None:
            raise self.error

    def goes_on(self, cluster: Processes) -> None:
        """Wait for 50 more confirmed sends."""
        wanted = self.sent + 50
        cluster.until(lambda: self.sent >= wanted or self.error is not None, "more sends")


def confirmed(cluster: Processes, name: str) -> int:
    """A node's confirm offset; 0 while it does not answer."""
    offsets = cluster.status(name).get("offsets")
    return int(offsets["confirm"]) if isinstance(offsets, dict) else 0  # pyright: ignore


def in_sync(cluster: Processes) -> list[str]:
    """The in-sync set as the master sees it."""
    master = cluster.master()
    found = cluster.status(master).get("in_sync") if master else None
    return list(found) if isinstance(found, list) else []  # pyright: ignore


def bodies(cluster: Processes, name: str) -> list[int]:
    """Every number of the topic, read from one node."""
    with client(cluster, name) as reader:
        return [int(one.body) for one in reader.read("t", read_from=name)]


def add_to_file(cluster: Processes) -> None:
    """Name a fourth node in the cluster file, at free ports."""
    base = free_ports(1)
    text = cluster.path.read_text()
    cluster.path.write_text(text + FOURTH.format(base + 10, base + 11, base + 12))
    cluster.config = load(cluster.path)


def move(cluster: Processes, name: str) -> None:
    """Give a node other ports in the cluster file."""
    base, text = free_ports(1) + 10, cluster.path.read_text()
    listen = cluster.config.node(name).listen
    for number, old in enumerate((listen.clients, listen.slaves, listen.http)):
        text, count = re.subn(rf"= {old}\b", f"= {base + number}", text)
        assert count == 1
    cluster.path.write_text(text)
    cluster.config = load(cluster.path)


def test_a_fourth_node_learns_and_is_promoted_under_load(processes: Processes) -> None:
    """R70: writes do not wait for the learner, dead or alive; promoted, it is a member like all."""
    with client(processes) as first:
        first.create_topic("t", 1)
    with Load(processes) as load_:
        load_.goes_on(processes)
        add_to_file(processes)
        processes.start("n4")
        twinlog_command(processes, "cluster", "add", "n4", "--learner", "--yes")
        processes.until(lambda: confirmed(processes, "n4") > 0, "a learner that copies")
        seen = bodies(processes, "n4")
        assert seen == list(range(len(seen)))
        assert seen
        assert twinlog_command(processes, "cluster", "health").startswith("local is healthy")
        processes.kill("n4")
        load_.goes_on(processes)
        processes.start("n4")
        assert in_sync(processes) == ["n1", "n2", "n3"]
        twinlog_command(processes, "cluster", "promote", "n4", "--yes")
        processes.until(lambda: "n4" in in_sync(processes), "n4 in sync")
        load_.goes_on(processes)
    processes.failover("n4")
    processes.settled(4)
    assert bodies(processes, "n4") == list(range(load_.sent))
    end = confirmed(processes, "n4")
    folders = [processes.config.node(name).data for name in ("n1", "n4")]
    assert first_difference(folders, end) is None


def test_nodes_move_to_other_addresses(processes: Processes) -> None:
    """A slave, then the master: stopped, started at the new address, found again by all."""
    with client(processes) as first:
        first.create_topic("t", 1)
        first.send("t", b"0")
        for number, name in enumerate(("n3", processes.settled(3)), 1):
            old = processes.address(name)
            assert processes.stop(name) == 0
            move(processes, name)
            processes.start(name)
            processes.settled(3)
            assert processes.address(name) != old
            first.send("t", b"%d" % number)
            assert bodies(processes, name) == list(range(number + 1))
        processes.failover("n3")
        processes.settled(3)
        first.send("t", b"3")
    assert bodies(processes, "n3") == [0, 1, 2, 3]


def test_a_removed_node_is_told_and_comes_back(processes: Processes) -> None:
    """It runs on without a role; status names the command that takes it back."""
    with client(processes) as first:
        first.create_topic("t", 1)
        gone = next(name for name in ("n1", "n2", "n3") if name != processes.settled(3))
        twinlog_command(processes, "cluster", "remove", gone, "--yes")
        first.send("t", b"0")
        told = twinlog_command(processes, "cluster", "status", "-o", "json")
        problems = {one["code"]: one["command"] for one in json.loads(told)["problems"]}
        assert problems == {"no-member": f"twinlog cluster add {gone}"}
        twinlog_command(processes, "cluster", "add", gone, "--yes")
        processes.settled(3)
        assert bodies(processes, gone) == [0]
