"""Ways back from a register in trouble, each from the documented command, in real processes."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import twinlog
from replication.coordinator.blocking_client import CoordinatorCalls
from storage.disk.disk import RealDisk
from storage.marks.run import RunFile
from tests.fixtures.processes import ROOT, Processes
from twinlog.wire import frames

pytestmark = [pytest.mark.processes, pytest.mark.slow]

NODES = ("n1", "n2", "n3")


def command(cluster: Processes, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command line as an operator would."""
    line = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), *words]
    return subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)


def done(cluster: Processes, *words: str) -> str:
    """Run a command that must succeed; its plan is shown first and changes nothing."""
    dry = command(cluster, *words, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert "Nothing was changed." in dry.stdout
    found = command(cluster, *words, "--yes")
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout + found.stderr


def send(cluster: Processes, count: int, start: int = 0) -> None:
    """Store records, each confirmed."""
    with client(cluster) as found:
        if "t" not in found.topics():
            found.create_topic("t", 1)
        for number in range(start, start + count):
            found.send("t", b"%d" % number)


def stored(cluster: Processes) -> list[int]:
    """Every record of the topic, from the master."""
    with client(cluster) as found:
        return [int(one.body) for one in found.read("t", read_from="master")]


def client(cluster: Processes) -> twinlog.Client:
    """A client that knows every node."""
    nodes = cluster.config.nodes
    return twinlog.Client([f"127.0.0.1:{node.listen.clients}" for node in nodes])


def lose_register(cluster: Processes) -> None:
    """The coordinator's disk is lost, and it starts on an empty one."""
    cluster.kill("coordinator")
    shutil.rmtree(cluster.config.coordinator.data)
    cluster.start("coordinator")


def lose_power(cluster: Processes, name: str) -> None:
    """Make a stopped node believe that its machine was started again since."""
    run = RunFile(RealDisk(cluster.config.node(name).data))
    run.load()
    assert run.value is not None
    run.write(replace(run.value, boot_id="another boot"), "test")


def history(cluster: Processes) -> list[dict[str, object]]:
    """The coordinator's history."""
    found = command(cluster, "cluster", "history", "-o", "json")
    entries: list[dict[str, object]] = json.loads(found.stdout)["epochs"]
    return entries


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Processes]:
    """A coordinator and two nodes."""
    found = Processes(tmp_path, nodes=2)
    try:
        found.start_all()
        yield found
    finally:
        found.close()


def test_a_lost_register_is_recovered_while_the_nodes_run(processes: Processes) -> None:
    """The master goes on meanwhile; afterwards roles change again, and nothing is lost."""
    send(processes, 20)
    lose_register(processes)
    send(processes, 5, start=20)
    refused = command(processes, "coordinator", "adopt", "--yes")
    assert refused.returncode == 69, refused.stdout
    done(processes, "coordinator", "recover", "--why", "disk lost")
    master = processes.settled(3)
    assert "register recovered: disk lost" in [entry["reason"] for entry in history(processes)]
    send(processes, 5, start=25)
    processes.kill(master)
    assert command(processes, "cluster", "failover", "--yes").returncode == 0
    processes.settled(2)
    assert stored(processes) == list(range(30))


def test_a_lost_register_is_recovered_after_all_nodes_restarted(processes: Processes) -> None:
    """No node has a role until then."""
    send(processes, 20)
    processes.kill(*NODES)
    lose_register(processes)
    processes.start(*NODES)
    assert processes.master() is None
    done(processes, "coordinator", "recover")
    processes.settled(3)
    send(processes, 5, start=20)
    assert stored(processes) == list(range(25))


def test_a_lost_register_is_recovered_without_a_node(processes: Processes) -> None:
    """The node is named; when it comes back it copies the log again."""
    send(processes, 10)
    absent = next(name for name in NODES if name != processes.master())
    processes.kill(absent)
    lose_register(processes)
    assert command(processes, "coordinator", "recover", "--yes").returncode == 69
    assert absent in done(processes, "coordinator", "recover", "--without", absent)
    processes.settled(2)
    send(processes, 5, start=10)
    processes.start(absent)
    processes.settled(3)
    assert stored(processes) == list(range(15))


def test_a_restored_register_that_refuses_is_recovered(processes: Processes) -> None:
    """Its file is older than what the nodes saw."""
    send(processes, 5)
    data = processes.config.coordinator.data
    assert processes.stop("coordinator") == 0
    shutil.copytree(data, data.with_name("backup"))
    processes.start("coordinator")
    first = str(processes.master())
    processes.kill(first)
    processes.until(  # the coordinator that was just started waits for the reports of two nodes
        lambda: command(processes, "cluster", "failover", "--yes").returncode == 0, "a master"
    )
    send(processes, 5, start=5)
    assert processes.stop("coordinator") == 0
    shutil.rmtree(data)
    shutil.copytree(data.with_name("backup"), data)
    processes.start("coordinator")
    processes.start(first)
    processes.until(
        lambda: "has seen revision" in command(processes, "coordinator", "status").stdout,
        "the alarm",
    )
    true_alarm = command(processes, "coordinator", "clear-alarm", "--yes")
    assert true_alarm.returncode == 69
    assert "coordinator recover" in true_alarm.stderr
    done(processes, "coordinator", "recover")
    processes.settled(3)
    send(processes, 5, start=10)
    assert stored(processes) == list(range(15))


def test_a_forged_frame_raises_no_alarm_and_a_false_alarm_is_cleared(processes: Processes) -> None:
    """A stranger is not believed; one who shows a member's session is, until an operator acts."""
    names = frames.names_crc(processes.config.name, processes.config.group)
    register = processes.status("n1")["coordinator"]
    assert isinstance(register, dict)
    id_ = str(register["register_id"])  # pyright: ignore[reportUnknownArgumentType]

    def forge(node: str | None, session: int) -> None:
        report = [node, id_, 1 << 40, 7, session]
        with CoordinatorCalls([processes.address("coordinator", "coordinator")], names) as calls:
            calls._question(frames.Type.CO_READ, {"report": report})

    for node, session in ((None, 0), ("stranger", 1), ("n1", 0)):
        forge(node, session)
        assert "It makes no change" not in command(processes, "coordinator", "status").stdout
    forge("n1", 1)
    assert "n1 has seen revision" in command(processes, "coordinator", "status").stdout
    done(processes, "coordinator", "clear-alarm", "--why", "a test")
    processes.until(
        lambda: "It makes no change" not in command(processes, "coordinator", "status").stdout,
        "reports after the alarm",
    )
    assert command(processes, "cluster", "switchover", "--yes").returncode == 0


def test_a_group_of_two_needs_a_word_after_the_coordinators_restart(pair: Processes) -> None:
    """The other node is gone for good, and only an operator can speak for it."""
    done(pair, "cluster", "set", "in_sync_min", "1")
    send(pair, 5)
    dead = str(pair.master())
    pair.kill("coordinator", dead)
    pair.start("coordinator")
    refused = command(pair, "cluster", "failover", "--yes")
    assert refused.returncode == 69
    assert f"coordinator vouch {dead}" in refused.stderr
    done(pair, "coordinator", "vouch", dead, "--why", "burned")
    assert command(pair, "cluster", "failover", "--yes").returncode == 0
    send(pair, 5, start=5)
    assert stored(pair) == list(range(10))
    assert f"vouched for {dead}: burned" in [entry["reason"] for entry in history(pair)]


@pytest.mark.parametrize("policy", ["wait", "best"])
def test_after_a_power_failure_of_all_the_longest_log_goes_on(
    processes: Processes, policy: str
) -> None:
    """By an operator's word, or by itself where the group says so."""
    if policy == "wait":
        done(processes, "cluster", "set", "after_power_loss", "wait")
    send(processes, 20)
    processes.kill(*NODES)
    for name in NODES:
        lose_power(processes, name)
    processes.start(*NODES)
    if policy == "wait":
        processes.until(
            lambda: command(processes, "cluster", "failover", "--dry-run").returncode == 0,
            "all reports",
        )
        assert processes.master() is None
        assert "All 3 replicas have reported" in done(processes, "cluster", "failover")
    processes.settled(3)
    assert stored(processes) == list(range(20))
    send(processes, 5, start=20)


def test_a_node_that_stays_away_after_a_power_failure_is_given_up(processes: Processes) -> None:
    """The refusal names it, and the command that goes on."""
    done(processes, "cluster", "set", "after_power_loss", "wait")
    send(processes, 20)
    processes.kill(*NODES)
    for name in NODES:
        lose_power(processes, name)
    processes.start("n1", "n2")
    processes.until(
        lambda: "--unclean n" in command(processes, "cluster", "failover", "--yes").stderr,
        "a set of n3 alone",
    )
    refused = command(processes, "cluster", "failover", "--yes")
    assert refused.returncode == 69
    assert "n3" in refused.stderr
    plan = done(processes, "cluster", "failover", "--unclean", "n1")
    assert "n3 does not answer" in plan
    processes.settled(2)
    processes.start("n3")
    processes.settled(3)
    assert stored(processes) == list(range(20))
