"""One process owns the others: they come up in order, die with it, and are never restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.dev.supervisor import COORDINATOR
from cli.dev.supervisor_client import SupervisorClient
from cli.failures import Exit, Failure

ROOT = Path(__file__).parents[4]
WAIT_SECONDS = 60.0

pytestmark = pytest.mark.slow


def launched(directory: Path, *words: str) -> subprocess.Popen[str]:
    """Start the supervisor of tiny processes."""
    (directory / "cluster.toml").write_text('endpoints = ["127.0.0.1:0"]\n', encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, "-m", "tests.fakes.supervised", str(directory), *words],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[SupervisorClient, subprocess.Popen[str]]]:
    """A supervisor with all its processes ready."""
    process = launched(tmp_path)
    asked = SupervisorClient(tmp_path)
    until(lambda: bool(asked.processes()) and all(p["state"] == "ready" for p in asked.processes()))
    yield asked, process
    if process.poll() is None:
        process.terminate()
    process.communicate(timeout=WAIT_SECONDS)


def until(done: object) -> None:
    """Look until a question is answered with yes."""
    assert callable(done)
    end = time.monotonic() + WAIT_SECONDS
    while not done():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def pids(asked: SupervisorClient) -> list[int]:
    """Process ids of everything that runs."""
    found = [process["pid"] for process in asked.processes()]
    return [pid for pid in found if isinstance(pid, int)]


def told(asked: SupervisorClient) -> list[str]:
    """Nodes whose end the coordinator was told of."""
    path = asked.directory / "told"
    return path.read_text(encoding="utf-8").split() if path.exists() else []


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2][0]
    except OSError:
        return False
    return state != "Z"


Running = tuple[SupervisorClient, subprocess.Popen[str]]


def test_the_coordinator_comes_first_and_its_port_is_written_down(running: Running) -> None:
    """Nodes find the port that the system gave the coordinator in the cluster file."""
    asked, _ = running
    assert [process["name"] for process in asked.processes()] == [COORDINATOR, "n1", "n2"]
    text = (asked.directory / "cluster.toml").read_text(encoding="utf-8")
    assert text == 'endpoints = ["127.0.0.1:7499"]\n'


def test_kill_and_start_again(running: Running) -> None:
    """A killed process stays dead until it is asked for; then it is a new one."""
    asked, _ = running
    before = asked.process("n1")["pid"]
    asked.request("kill", "n1")
    killed = asked.process("n1")
    assert (killed["pid"], killed["state"], killed["exit"]) == (None, "killed", -9)
    assert told(asked) == ["n1"]
    asked.request("start", "n1")
    after = asked.process("n1")
    assert after["state"] == "ready"
    assert after["starts"] == 2
    assert after["pid"] != before


def test_a_process_that_ends_by_itself_is_reported_and_not_restarted(running: Running) -> None:
    """The state file says so; nothing heals behind the user's back."""
    asked, _ = running
    pid = asked.process("n2")["pid"]
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGTERM)
    until(lambda: asked.process("n2")["state"] == "stopped")
    assert told(asked) == ["n2"]
    assert asked.process("n2")["starts"] == 1


def test_everything_dies_with_the_supervisor(running: Running) -> None:
    """Even kill -9 of it leaves nothing behind."""
    asked, process = running
    children = pids(asked)
    assert len(children) == 3
    process.kill()
    process.wait(WAIT_SECONDS)
    until(lambda: not any(alive(pid) for pid in children))
    assert not asked.alive()


def test_down_stops_everything_in_order(running: Running) -> None:
    """TERM ends the nodes, then the coordinator; asking again is harmless."""
    asked, process = running
    children = pids(asked)
    asked.down()
    assert process.wait(WAIT_SECONDS) == 0
    assert not any(alive(pid) for pid in children)
    assert [one["state"] for one in asked.processes()] == ["stopped"] * 3
    assert told(asked) == []
    asked.down()


def test_ctrl_c_stops_everything(running: Running) -> None:
    """Exit 130, and the user reads that nothing is left."""
    asked, process = running
    children = pids(asked)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == Exit.INTERRUPTED
    assert err == "interrupted: stopped by Ctrl-C\n  nothing is left running\n"
    assert not any(alive(pid) for pid in children)


def test_one_supervisor_for_a_directory(running: Running) -> None:
    """A second one is refused with the commands that help, and changes nothing."""
    asked, _ = running
    before = pids(asked)
    second = launched(asked.directory)
    _, err = second.communicate(timeout=WAIT_SECONDS)
    assert second.returncode == Exit.UNAVAILABLE
    assert "in use by another twinlog dev up" in err
    assert "twinlog dev down" in err
    assert pids(asked) == before


def test_an_unknown_name_is_refused(running: Running) -> None:
    """With the names there are."""
    asked, _ = running
    with pytest.raises(Failure) as caught:
        asked.request("start", "n9")
    assert "n9" in caught.value.text
    assert "coordinator, n1, n2" in caught.value.facts[0]


def test_a_process_that_does_not_come_up_stops_the_rest(tmp_path: Path) -> None:
    """The user reads what it said; nothing is left running."""
    process = launched(tmp_path, "--fail", "n2")
    _, err = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == Exit.UNAVAILABLE
    assert err.startswith("error: n2 ended before it was ready (exit 69)")
    assert "port 7410 is taken" in err
    assert not pids(SupervisorClient(tmp_path))


def test_nobody_there(tmp_path: Path) -> None:
    """Asking a directory without a supervisor names the command that starts one."""
    with pytest.raises(Failure) as caught:
        SupervisorClient(tmp_path).request("kill", "n1")
    assert caught.value.exit is Exit.UNAVAILABLE
    assert "twinlog dev up" in caught.value.hints[0]
