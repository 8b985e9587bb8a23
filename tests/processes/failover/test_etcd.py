"""The register in real etcd: coordinators take over from each other, and nothing is lost or shown
twice while members of etcd are killed, paused or without a majority."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.config.pages import Local, write_local
from replication.coordinator.blocking_client import CoordinatorCalls
from tests.fixtures.etcd import SECONDS, Etcd, etcd, installed
from tests.fixtures.processes import ROOT, MiB, Processes, free_ports
from twinlog.client.blocking import Client
from twinlog.errors import TwinlogError
from twinlog.wire import frames

__all__ = ["etcd"]

pytestmark = [pytest.mark.processes, pytest.mark.slow]

FIRST, SECOND = "coordinator", "coordinator-2"


@pytest.fixture
def cluster(tmp_path: Path, etcd: Etcd) -> Iterator[Processes]:
    """Two coordinators and three nodes, failover by command."""
    members = tuple(f"{host}:{port}" for host, port in etcd.endpoints)
    local = Local(
        base_port=free_ports(3), segment_size=16 * MiB, failover="manual", coordinators=2,
        etcd=members,
    )  # fmt: skip
    write_local(tmp_path / "cluster.toml", local)
    found = Processes(tmp_path)
    try:
        found.start(FIRST)
        found.until(lambda: keeper(found) == FIRST, "a seat")
        found.start(SECOND)
        found.start(*(node.name for node in found.config.nodes))
        found.settled(3)
        yield found
    finally:
        found.close()


def keeper(cluster: Processes) -> str | None:
    """Which process serves: the run file of the other names no port."""
    for name in (FIRST, SECOND):
        if name in cluster.running and cluster.document(name).get("ports"):
            return name
    return None


def calls(cluster: Processes) -> CoordinatorCalls:
    """Asks whichever coordinator serves."""
    names = frames.names_crc(cluster.config.name, cluster.config.group)
    return CoordinatorCalls(cluster.config.coordinator.endpoints, names, timeout=10.0)


def state(cluster: Processes) -> tuple[int, str, str]:
    """Epoch, master and register id; epoch 0 while no coordinator answers."""
    try:
        with calls(cluster) as asked:
            found = asked.read()
    except TwinlogError:
        return 0, "", ""
    return int(str(found["epoch"])), str(found["leader"]), str(found["register_id"])


def fail_over(cluster: Processes, to: str) -> None:
    """Another master, by the coordinator that serves, as soon as it makes changes."""

    def done() -> bool:
        epoch, leader, _ = state(cluster)
        if leader != to:
            try:
                with calls(cluster) as asked:
                    op = {"op": "failover", "to": to, "epoch": epoch, "who": "t", "why": "t"}
                    asked.call(op)
            except TwinlogError:
                return False
        return cluster.master() == to

    cluster.until(done, f"{to} as master")


def check(cluster: Processes, sent: int) -> None:
    """Every acknowledged message is there, once and in order."""
    with Client(["{}:{}".format(*cluster.address(name)) for name in ("n1", "n2", "n3")]) as client:
        found = [int(message.body) for message in client.read("t", "start:")]
    assert found == list(range(sent))


def send(cluster: Processes, first: int, count: int) -> int:
    """Send numbers; return the next one."""
    with Client(["{}:{}".format(*cluster.address(name)) for name in ("n1", "n2", "n3")]) as client:
        client.create_topic("t", 1)
        for number in range(first, first + count):
            client.send("t", b"%d" % number)
    return first + count


def test_another_coordinator_takes_over_and_knows_everything(cluster: Processes) -> None:
    """Killed, then stopped in order: the register is the same one, and failover works by it."""
    sent = send(cluster, 0, 10)
    epoch, leader, register = state(cluster)
    assert (epoch, leader) == (1, "n1")
    cluster.kill(FIRST)
    sent = send(cluster, sent, 10)
    cluster.until(lambda: keeper(cluster) == SECOND, "the other takes the seat")
    assert state(cluster) == (epoch, leader, register)
    fail_over(cluster, "n2")
    sent = send(cluster, sent, 10)
    cluster.start(FIRST)
    assert keeper(cluster) == SECOND
    assert cluster.stop(SECOND) == 0
    cluster.until(lambda: keeper(cluster) == FIRST, "the seat was given up at once")
    assert state(cluster) == (2, "n2", register)
    fail_over(cluster, "n3")
    sent = send(cluster, sent, 10)
    with calls(cluster) as asked:
        masters = [entry.get("master") for entry in asked.history()]
    assert masters == ["n1", "n2", "n3"]
    check(cluster, sent)


def test_a_paused_coordinator_says_nothing_after_its_lease(cluster: Processes) -> None:
    """Awake again it has lost the seat, finds out, and waits like any other."""
    _, _, register = state(cluster)
    cluster.send(FIRST, signal.SIGSTOP)
    ports = cluster.config.coordinator.endpoints
    names = frames.names_crc(cluster.config.name, cluster.config.group)

    def second_serves() -> bool:
        try:
            with CoordinatorCalls([ports[1]], names, timeout=2.0) as asked:
                return asked.read()["register_id"] == register
        except TwinlogError:
            return False

    cluster.until(second_serves, "the other takes the seat")
    cluster.send(FIRST, signal.SIGCONT)
    cluster.until(lambda: "seat_lost" in cluster.tail(FIRST), "the first one knows")
    fail_over(cluster, "n2")
    assert state(cluster) == (2, "n2", register)
    check(cluster, send(cluster, 0, 10))


def test_etcd_loses_members_its_majority_and_gets_it_back(cluster: Processes, etcd: Etcd) -> None:
    """One member less changes nothing; without a majority traffic goes on and roles stay."""
    sent = send(cluster, 0, 10)
    etcd.kill(0)
    cluster.until(lambda: state(cluster)[0] == 1, "an answer with two members")
    fail_over(cluster, "n2")
    etcd.send(1, signal.SIGSTOP)
    cluster.until(lambda: keeper(cluster) is None, "no seat without a majority")
    sent = send(cluster, sent, 10)
    etcd.send(1, signal.SIGCONT)
    etcd.until_it_serves()
    cluster.until(lambda: state(cluster)[:2] == (2, "n2"), "the register is back")
    etcd.start(0)
    fail_over(cluster, "n3")
    sent = send(cluster, sent, 10)
    check(cluster, sent)


def test_a_development_cluster_with_etcd(tmp_path: Path) -> None:
    """One command starts all of it, kills are survived, and one command ends it."""
    installed()
    base, folder = str(free_ports(3)), tmp_path / "up"

    def tried(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "twinlog", *words], cwd=ROOT, capture_output=True, text=True
        )

    def twinlog(*words: str) -> str:
        done = tried(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    up = ("dev", "up", "--data", str(folder), "--base-port", base, "--background")
    here = ("-c", str(folder / "cluster.toml"))
    try:
        told = twinlog(*up, "--coordinator", "etcd")
        assert [word in told for word in ("etcd-3", "coordinator-2", "n3")] == [True] * 3
        twinlog("dev", "kill", "etcd-1", "--data", str(folder))
        twinlog("dev", "kill", "coordinator", "--data", str(folder))
        twinlog("dev", "start", "coordinator", "--data", str(folder))
        end = time.monotonic() + SECONDS
        while tried(*here, "cluster", "health").returncode:
            assert time.monotonic() < end, "the other coordinator never served"
        twinlog(*here, "cluster", "switchover", "--yes")
        twinlog("dev", "down", "--data", str(folder))
        assert "etcd-3" in twinlog(*up)
    finally:
        twinlog("dev", "down", "--data", str(folder), "--wipe", "--yes")
    assert not folder.exists()
