"""Commands about groups on bad days: no master, a replay that was killed, a group that is new."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.processes import Processes
from twinlog.client.blocking import Client

pytestmark = [pytest.mark.processes, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
LETTERS = 2_000


class Shell:
    """Calls twinlog about one cluster."""

    def __init__(self, processes: Processes) -> None:
        self.environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._config = str(processes.path)

    def command(self, words: str) -> list[str]:
        """What calls twinlog."""
        return [sys.executable, "-m", "twinlog", "-c", self._config, *words.split()]

    def run(self, words: str, *, expect: int = 0) -> tuple[str, str]:
        """Call it; the exit code must be the one expected."""
        done = subprocess.run(
            self.command(words), env=self.environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=120.0, check=False,
        )  # fmt: skip
        assert done.returncode == expect, f"{words}: {done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr


@pytest.fixture
def shell(processes: Processes) -> Shell:
    """The command line of a cluster of three."""
    return Shell(processes)


@pytest.fixture
def client(processes: Processes) -> Iterator[Client]:
    """A client of all nodes."""
    names = [node.name for node in processes.config.nodes]
    with Client(["{}:{}".format(*processes.address(name)) for name in names]) as client:
        yield client


def test_a_group_that_is_new_is_announced_and_a_look_makes_none(
    shell: Shell, client: Client
) -> None:
    """A name that was mistyped shows, and no message is passed over silently."""
    client.create_topic("orders", 2)
    client.send("orders", b"before")
    _, said = shell.run("message consume orders --group billing --peek", expect=66)
    assert 'there is no group "billing"' in said
    assert json.loads(shell.run("group list -o json")[0])["groups"] == []
    shown, said = shell.run("message consume orders --group billing")
    assert "group billing is new: it begins at the end" in said
    assert shown == ""
    client.send("orders", b"after")
    shown, said = shell.run("message consume orders --group billing --peek")
    assert "after" in shown and "is new" not in said
    found = json.loads(shell.run("group list -o json")[0])["groups"][0]
    assert (found["lag"], found["oldest_seconds"] is None) == (1, False)


def test_groups_are_shown_while_there_is_no_master(
    processes: Processes, shell: Shell, client: Client
) -> None:
    """By a slave, with the age of what it says; a wait for a group ends with the reason."""
    client.create_topic("orders", 1)
    shell.run("group create billing --start start")
    with client.consumer("billing", "orders") as consumer:
        client.send("orders", b"a")
        client.send("orders", b"b")
        consumer.pop(max=1, wait="30 s")[0].ack()
        consumer.settle()
    shell.run("group wait billing --lag 1")
    master = processes.settled(3)
    processes.kill(master)
    shown, said = shell.run("group list -o json")
    found = json.loads(shown)
    assert [(one["group"], one["lag"]) for one in found["groups"]] == [("billing", 1)]
    assert found["node"] in {node.name for node in processes.config.nodes} - {master}
    assert found["age_seconds"] >= 0
    assert "no master answers" in said
    assert json.loads(shell.run("group show billing -o json")[0])["lag"] == 1
    _, said = shell.run("group show biling", expect=66)
    assert "billing" in said
    _, said = shell.run("--timeout 10s group wait billing --lag 5", expect=69)
    assert "master" in said


def test_a_replay_that_was_killed_goes_on_and_sends_nothing_twice(
    processes: Processes, shell: Shell, client: Client
) -> None:
    """A letter's copy and its mark are one batch; what the killed one held comes again."""
    client.create_topic("orders", 1)
    shell.run("group create billing --start start")
    with client.producer("orders") as producer:
        for number in range(LETTERS):
            producer.send(b"%d" % number)
    with client.consumer("billing", "orders", batch=500) as consumer:
        rejected = 0
        while rejected < LETTERS:
            for message in consumer.pop(max=500, wait="30 s"):
                message.reject("cannot be parsed")
                rejected += 1
            consumer.settle()
    end = lambda: client.offsets("orders")[0][1]  # noqa: E731
    assert end() == LETTERS
    replay = subprocess.Popen(
        shell.command("dlq replay billing --yes"), env=shell.environment,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        processes.until(lambda: end() > LETTERS, "the first letters")
        replay.send_signal(signal.SIGKILL)
    finally:
        replay.kill()
        replay.communicate()
    killed_at = end()
    assert LETTERS < killed_at < 2 * LETTERS, "it was not killed in the middle"
    shell.run("--timeout 100s dlq replay billing --yes")
    again = [message.body for message in client.read("orders", f"{LETTERS}:")]
    assert sorted(again, key=int) == [b"%d" % number for number in range(LETTERS)]
    (counted,) = json.loads(shell.run("dlq list -o json")[0])["groups"]
    assert (counted["messages"], counted["open"]) == (LETTERS, 0)


def test_a_master_that_was_paused_gives_nothing_twice(processes: Processes, client: Client) -> None:
    """Its leases are the next master's; what it would say afterwards counts no more."""
    client.create_topic("orders", 1)
    with client.consumer("billing", "orders", batch=1) as consumer:
        assert consumer.pop(max=1, wait=0.0) == []
        for number in range(20):
            client.send("orders", b"%d" % number)
        handled = [consumer.pop(max=1, wait="30 s")[0] for _ in range(2)]
        handled[0].ack()
        consumer.settle()
        master = processes.settled(3)
        other = next(n.name for n in processes.config.nodes if n.name != master)
        processes.send(master, signal.SIGSTOP)
        try:
            processes.failover(other)
            handled[1].ack()
            found = [message.body for message in handled]
            for _ in range(18):
                (message,) = consumer.pop(max=1, wait="60 s")
                found.append(message.body)
                message.ack()
            consumer.settle(timeout=60.0)
        finally:
            processes.send(master, signal.SIGCONT)
        processes.settled(3)
        assert consumer.pop(max=1, wait=0.5) == []
    assert sorted(found, key=int) == [b"%d" % number for number in range(20)]
