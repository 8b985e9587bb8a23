"""A coordinator over a restored copy of the register, beside the living one, in real processes."""

from __future__ import annotations

import shutil

import pytest

import twinlog
from cli.dev.private_cluster import free_ports
from tests.fixtures.processes import Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def beside(cluster: Processes) -> Processes:
    """The same nodes, told of another coordinator, which keeps a copy of the register."""
    folder = cluster.folder / "beside"
    folder.mkdir()
    text = cluster.path.read_text()
    port = cluster.config.coordinator.endpoints[0][1]
    text = text.replace(f":{port}", f":{free_ports(1)}")
    text = text.replace('data = "data/n', f'data = "{cluster.folder}/data/n')
    (folder / "cluster.toml").write_text(text)
    return Processes(folder)


def client(cluster: Processes) -> twinlog.Client:
    """A client that knows every node."""
    nodes = cluster.config.nodes
    return twinlog.Client([f"127.0.0.1:{node.listen.clients}" for node in nodes])


def test_nodes_refuse_a_second_register_and_say_so(processes: Processes) -> None:
    """The copy is older than what they saw: they take part in nothing there; nothing is lost."""
    data = processes.config.coordinator.data
    assert processes.stop("coordinator") == 0
    copy = data.with_name("copy")
    shutil.copytree(data, copy)
    processes.start("coordinator")
    first = processes.settled(3)
    with client(processes) as found:
        found.create_topic("t", 1)
    others = [node.name for node in processes.config.nodes if node.name != first]
    processes.until(lambda: bool(processes.fail_over(others[0])["ok"]), "the failover")
    # The old master says "writable" until it hears of the new epoch: only the new one counts.
    processes.until(lambda: processes.settled(3) == others[0], "its end")
    master = others[0]
    with client(processes) as found:
        for number in range(5):
            found.send("t", b"%d" % number)
    moved = others[1]
    second = beside(processes)
    shutil.move(copy, second.config.coordinator.data)
    processes.kill(moved)
    try:
        second.start("coordinator")
        second.spawn(moved)
        second.until(lambda: "register" in str(second.status(moved).get("why")), "the reason")
        status = second.status(moved)
        assert (status["role"], status["writable"]) == ("fenced", False)
        assert processes.settled(2) == master
        with client(processes) as found:
            for number in range(5, 10):
                found.send("t", b"%d" % number)
    finally:
        second.close()
    processes.start(moved)
    processes.settled(3)
    with client(processes) as found:
        kept = [int(one.body) for one in found.read("t", read_from="master")]
    assert kept == list(range(10))
