"""Directories that are not what they were: an old copy of one's own, that of another node."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys

import pytest

from cli.failures import Exit
from tests.fixtures.processes import ROOT, SECONDS, Processes
from twinlog.client.blocking import Client

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def command(cluster: Processes, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as an operator would."""
    line = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)


def send(cluster: Processes, begin: int, end: int) -> None:
    """Store numbers, each confirmed."""
    nodes = [f"127.0.0.1:{node.listen.clients}" for node in cluster.config.nodes]
    with Client(nodes) as client:
        client.create_topic("t", 1)
        for number in range(begin, end):
            client.send("t", b"%d" % number)


def stored(cluster: Processes, name: str) -> list[int]:
    """Every number that a node has."""
    with Client("{}:{}".format(*cluster.address(name))) as client:
        return [int(message.body) for message in client.read("t", "start:", read_from=name)]


def keep_copy(cluster: Processes, name: str) -> None:
    """Stop a node in order, copy its directory, and start it again."""
    data = cluster.config.node(name).data
    assert cluster.stop(name) == 0
    shutil.copytree(data, data.with_name("copy"))
    cluster.start(name)
    cluster.settled(3)


def put_back(cluster: Processes, name: str) -> None:
    """Kill a node and replace its directory by the copy."""
    data = cluster.config.node(name).data
    cluster.kill(name)
    shutil.rmtree(data)
    data.with_name("copy").rename(data)


def test_an_old_copy_counts_for_nothing_until_it_has_caught_up(processes: Processes) -> None:
    """Its node once acknowledged what the copy lacks: status says so, and it is not elected."""
    master = processes.settled(3)
    slave = next(node.name for node in processes.config.nodes if node.name != master)
    send(processes, 0, 10)
    keep_copy(processes, slave)
    send(processes, 10, 30)
    put_back(processes, slave)
    processes.send(master, signal.SIGSTOP)  # so that it cannot catch up yet
    processes.start(slave)
    sentence = f"{slave} came back with another directory, or an older copy of its own"
    processes.until(lambda: sentence in command(processes, "cluster", "status").stdout, sentence)
    refused = command(processes, "cluster", "failover", "--to", slave, "--yes")
    assert refused.returncode == Exit.UNAVAILABLE, refused.stdout
    assert f"{slave} is not in the in-sync set" in refused.stderr
    processes.send(master, signal.SIGCONT)
    processes.settled(3)
    assert stored(processes, slave) == list(range(30))
    assert sentence not in command(processes, "cluster", "status").stdout


def test_a_master_that_comes_back_as_an_old_copy_leads_no_more(processes: Processes) -> None:
    """What only newer directories have stays, with any master; it follows them."""
    master = processes.settled(3)
    send(processes, 0, 10)
    keep_copy(processes, master)
    old = processes.settled(3)
    send(processes, 10, 30)
    put_back(processes, master)
    if old == master:
        other = next(node.name for node in processes.config.nodes if node.name != master)
        processes.failover(other)
    processes.start(master)
    assert processes.settled(3) != master
    assert stored(processes, master) == list(range(30))


def test_swapped_directories_are_refused_with_both_names(processes: Processes) -> None:
    """Neither node starts, not a byte is changed, and put back they go on."""
    master = processes.settled(3)
    one, two = (node.name for node in processes.config.nodes if node.name != master)
    send(processes, 0, 10)
    processes.kill(one, two)
    swap(processes, one, two)
    for name, other in ((one, two), (two, one)):
        process = processes.spawn(name)
        assert process.wait(SECONDS) == Exit.CONFIG
        del processes.running[name]
        told = f"the data directory has node {other}, this node has {name}"
        assert told in (processes.folder / f"{name}.log").read_text()
    status = command(processes, "cluster", "status").stdout
    for name in (one, two):
        assert f"{name} is not running" in status
    swap(processes, one, two)
    processes.start(one, two)
    processes.settled(3)
    send(processes, 10, 20)
    assert stored(processes, one) == stored(processes, two) == list(range(20))


def swap(cluster: Processes, one: str, two: str) -> None:
    """Exchange the directories of two nodes."""
    first, second = (cluster.config.node(name).data for name in (one, two))
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
