"""Commands that read, against nodes over loopback: who must answer, what is refused at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.failures import Exit
from tests.fakes.cli_cluster import FakeCluster as Commands
from tests.fakes.node import Arrived, FakeCluster
from twinlog.client.blocking import Client
from twinlog.wire.frames import Type


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """A master and a slave with three messages in queue 0."""
    monkeypatch.setattr("twinlog.consumer.start_offsets.NO_MASTER_SECONDS", 0.01)
    made = FakeCluster()
    for name in ("n1", "n2"):
        made.add_node(name)
    with Client(made.nodes["n1"].address) as client:
        for number in range(3):
            client.send("orders", b"%d" % number, key="k", queue=0)
    yield made
    made.close()


def run(
    nodes: FakeCluster, tmp_path: Path, *words: str, timeout: float = 60.0
) -> tuple[int, str, str]:
    """Call the command line."""
    with Client([node.address for node in nodes.nodes.values()], timeout=timeout) as client:
        return Commands(tmp_path, client=client).run(*words)


@pytest.mark.parametrize("node", ["any", "slave", "n2"])
def test_a_slave_is_read_while_there_is_no_master(
    nodes: FakeCluster, tmp_path: Path, node: str
) -> None:
    """The command needs a master no more than the client does."""
    nodes.leader = None
    code, out, err = run(nodes, tmp_path, "message", "read", "orders", "--from", node, "-o", "name")
    assert (code, out.split()) == (Exit.OK, ["orders/0@0", "orders/0@1", "orders/0@2"]), err


@pytest.mark.parametrize(
    "words",
    [
        ("read", "orders"),
        ("find", "orders", "--key", "k"),
        ("get", "orders/0@1"),
    ],
)
def test_old_copies_are_read_when_that_is_said(
    nodes: FakeCluster, tmp_path: Path, words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the option the error tells the age and names it; with it the age is noted."""
    monkeypatch.setattr("twinlog.session.reading.NO_MASTER_SECONDS", 0.01)
    nodes.leader = None
    for node in nodes.nodes.values():
        node.age_ms = 12_000
    code, out, err = run(nodes, tmp_path, "message", *words, timeout=0.3)
    assert (code, out) == (Exit.UNAVAILABLE, ""), err
    assert "--stale-ok" in err
    for option in (["--stale-ok"], ["--stale-ok", "1m"], ["--stale-ok=12s"]):
        code, out, err = run(nodes, tmp_path, "message", *words, *option, "-o", "json")
        assert code == Exit.OK, err
        assert out
        assert words[0] == "get" or "has not heard from its master for 12 s" in err
    code, out, err = run(nodes, tmp_path, "message", *words, "--stale-ok", "5s", timeout=0.3)
    assert (code, out) == (Exit.UNAVAILABLE, ""), err
    assert "the newest data is 12 s old" in err
    assert "age: 12 s" in err
    code, _, err = run(nodes, tmp_path, "message", *words, "--stale-ok", "5x")
    assert (code, '--stale-ok is "5x"' in err) == (Exit.USAGE, True)


def test_a_topic_that_is_none_is_told_with_the_nearest(nodes: FakeCluster, tmp_path: Path) -> None:
    """As before the master is needed for it."""
    code, _, err = run(nodes, tmp_path, "message", "read", "ordres")
    assert code == Exit.MISSING
    assert 'the nearest is "orders"' in err


def test_following_begins_within_the_timeout(nodes: FakeCluster, tmp_path: Path) -> None:
    """It has no end, but without an answer it does not wait for a year."""
    nodes.leader = None
    words = ("message", "read", "orders", "--from", "master", "--follow")
    code, _, err = run(nodes, tmp_path, *words, timeout=0.05)
    assert (code, "no master at epoch 7" in err) == (Exit.UNAVAILABLE, True)


def test_none_is_none(nodes: FakeCluster, tmp_path: Path) -> None:
    """``-n 0`` shows nothing, with a key too; fewer than none is a mistake."""
    assert run(nodes, tmp_path, "message", "read", "orders", "--key", "k", "-n", "0")[:2] == (0, "")
    code, _, err = run(nodes, tmp_path, "message", "read", "orders", "--tag", "x", "-n", "-2")
    assert (code, "--count is -2" in err) == (Exit.USAGE, True)


def test_a_dry_run_refuses_what_the_master_would(nodes: FakeCluster, tmp_path: Path) -> None:
    """A topic of the other kind does not exist as it is wanted."""

    def simple(arrived: Arrived) -> bool:
        if arrived.frame.type == Type.TOPIC:
            raise AssertionError("a dry run changes nothing")
        return False

    nodes.nodes["n1"].faults.append(simple)
    words = ("topic", "create", "orders", "--queues", "4", "--dry-run")
    assert run(nodes, tmp_path, *words)[0] == Exit.OK
    code, out, err = run(nodes, tmp_path, *words, "--queue-type", "batch")
    assert (code, out) == (Exit.NO, ""), err
    assert "orders exists with 4 queues; nothing was changed" in err
