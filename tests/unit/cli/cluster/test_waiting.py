"""What a person sees while a command waits: no master, ``--watch``, ``-v``."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli import app, watch
from cli.cluster import patience
from cli.failures import Exit
from tests.fakes.cli_cluster import FakeClient, FakeCluster
from twinlog.errors import NotEnoughInSync, TwinlogError, Unavailable


class WaitingClient(FakeClient):
    """A client that finds no master until its time is over."""

    def __init__(self, error: TwinlogError) -> None:
        super().__init__()
        self.error = error
        self.until = threading.Event()

    def offsets(self, name: str) -> dict[int, tuple[int, int]]:
        """Wait, then fail."""
        self.until.wait(20)
        raise self.error


def without_a_master(directory: Path, error: TwinlogError) -> tuple[FakeCluster, WaitingClient]:
    """A cluster whose master is killed, and a client that waits for one."""
    client = WaitingClient(error)
    return FakeCluster(directory, down={"n1"}, client=client), client


def test_the_error_is_the_sentence_of_status(tmp_path: Path) -> None:
    """When the time is over: why, and the command that goes on."""
    cluster, client = without_a_master(tmp_path, Unavailable("connection refused"))
    client.until.set()
    code, out, err = cluster.run("topic", "show", "orders")
    assert (code, out) == (Exit.UNAVAILABLE, "")
    sentence = "demo has no master: n1, master of epoch 7, does not answer"
    assert err.startswith(f"error: {sentence}\n  connection refused\n")
    assert "hint: go on with: twinlog cluster failover" in err


def test_the_notice_is_said_while_it_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The timer's thread says it before the client gives up."""
    monkeypatch.setattr(patience, "PATIENCE_SECONDS", 0.0)
    cluster, client = without_a_master(tmp_path, Unavailable("connection refused"))
    say = patience._say

    def then_over(*words: object) -> None:
        say(*words)  # type: ignore[arg-type]
        client.until.set()

    monkeypatch.setattr(patience, "_say", then_over)
    _, _, err = cluster.run("topic", "show", "orders")
    first = err.splitlines()
    assert first[0].startswith(
        "demo has no master: n1, master of epoch 7, does not answer; waiting"
    )
    assert first[1] == "  next: twinlog cluster failover"


def test_another_error_stays_what_it_is(tmp_path: Path) -> None:
    """Where the cluster takes writes, the client's own text is the error."""
    client = WaitingClient(NotEnoughInSync("1 of 2"))
    client.until.set()
    code, _, err = FakeCluster(tmp_path, client=client).run("topic", "show", "orders")
    assert (code, err.splitlines()[0]) == (Exit.UNAVAILABLE, "error: 1 of 2")


@pytest.mark.parametrize(
    "words", [["cluster", "status"], ["cluster", "health"], ["node", "list"], ["topic", "list"]]
)
def test_a_watch_shows_it_again(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Picture after picture, an unreachable cluster included, until Ctrl-C."""
    cluster = FakeCluster(tmp_path, client=FakeClient())
    pictures = 0

    def sleep(_: float) -> None:
        nonlocal pictures
        pictures += 1
        cluster.down = {"n1", "n2", "n3", "coordinator"} if pictures == 1 else set()
        if pictures == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(watch, "sleep", sleep)
    code, out, err = cluster.run(*words, "-w", "-o", "jsonl")
    assert code == Exit.INTERRUPTED
    shown = out.splitlines()
    assert len(shown) % 2 == 0 or words[0] == "topic"
    assert len(shown) >= 2
    assert words[0] == "topic" or "no node of demo answers" in err


def test_a_watch_clears_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal each picture takes the place of the last."""

    def sleep(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(watch, "sleep", sleep)
    out = FakeCluster(tmp_path).run("cluster", "status", "--watch", terminal=True)[1]
    assert out.startswith("\x1b[H\x1b[2J")


def test_verbose_does_what_help_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``-v``: cluster file and time; ``-vv``: each question too. Data on stdout stays the same."""
    cluster = FakeCluster(tmp_path)
    plain = cluster.run("cluster", "history", "-o", "name")[1]

    def ask(
        address: str,
        kind: int,
        fields: Mapping[str, object],
        timeout: float | None,
        named: object,
        tls: object,
    ) -> Mapping[str, object]:
        return cluster.ask(address, kind, fields, timeout)

    monkeypatch.setattr("cli.connection.ask", ask)
    path = str(tmp_path / "cluster.toml")
    shown: dict[str, tuple[str, str]] = {}
    for level in ("-v", "-vv"):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            assert app.main([level, "-c", path, "cluster", "history", "-o", "name"], {}) == 0
        shown[level] = out.getvalue(), err.getvalue()
    assert shown["-v"][0] == shown["-vv"][0] == plain
    assert f"cluster: {path}" in shown["-v"][1]
    assert "took " in shown["-v"][1]
    assert "CO_HISTORY" not in shown["-v"][1]
    assert "CO_HISTORY" in shown["-vv"][1]
