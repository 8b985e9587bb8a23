"""The coordinator as a process: what was answered survives kill -9, TERM stops it in order."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest

from node.config.config import load
from node.config.pages import Local, write_local
from replication.coordinator.blocking_client import CoordinatorCalls
from replication.register.operations import RegisterNode, Report, Seed, to_wire
from twinlog.run_file import read_run_file
from twinlog.wire import frames

ROOT = Path(__file__).parents[4]

PROGRAM = """
import sys, trio
from pathlib import Path
from node.config.config import load
from node.observe.logs import NodeLog
from replication.coordinator.process import run
config = load(Path(sys.argv[1]))
log = NodeLog(node="coordinator", style="json")
ready = lambda port: print(port, flush=True)
print(trio.run(lambda: run(config, ready=ready, event=log, version="1")))
"""


class Process:
    """The coordinator of a generated cluster file, ports chosen by the system."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "cluster.toml"
        write_local(self.path, Local(base_port=0, cluster="demo"))
        self.config = load(self.path)
        self.start()

    def start(self) -> None:
        """Start it and wait until it listens."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.path)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def calls(self) -> CoordinatorCalls:
        """A blocking client."""
        names = frames.names_crc("demo", "g1")
        return CoordinatorCalls(self.config.coordinator.found(), names, timeout=60.0)

    def end(self, signum: int) -> tuple[int, str, str]:
        """Send a signal; return exit status and what it logged."""
        self.process.send_signal(signum)
        said, log = self.process.communicate(timeout=60)
        return self.process.returncode, said, log


@pytest.mark.processes
def test_kill_and_term(tmp_path: Path) -> None:
    """Killed with SIGKILL right after an answer, it comes back with what it answered."""
    coordinator = Process(tmp_path)
    found = read_run_file(coordinator.config.coordinator.data)
    assert found is not None
    assert found["ports"] == {"coordinator": coordinator.port}
    op = RegisterNode("n1", "s", "a", ("a",), True, True, 0, 0, 0, Seed(("n1",), 1), Report("n1"))
    with coordinator.calls() as calls:
        answer = calls.call(to_wire(op))
    assert answer["ok"]
    status, _, _ = coordinator.end(signal.SIGKILL)
    assert status == -signal.SIGKILL
    coordinator.start()
    with coordinator.calls() as calls:
        assert calls.read() == answer["state"]
    status, said, log = coordinator.end(signal.SIGTERM)
    assert (status, said) == (0, f"{int(signal.SIGTERM)}\n"), log
    events = [cast("dict[str, object]", json.loads(line))["event"] for line in log.splitlines()]
    assert events == ["coordinator_started", "coordinator_stopped"]
    assert read_run_file(coordinator.config.coordinator.data) is None
