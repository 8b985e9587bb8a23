"""A node as a service of systemd: it tells its state, reads its file again, and stops in order."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.processes import ROOT, SECONDS, Processes

pytestmark = pytest.mark.processes


def test_a_node_is_a_good_service(tmp_path: Path) -> None:
    """The signals and states that deploy/systemd/twinlog-node@.service relies on."""
    cluster, path = Processes(tmp_path, nodes=1), tmp_path / "notify"
    environment = {**os.environ, "NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "3000000"}
    log = tmp_path / "n1.log"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(SECONDS)
        cluster.start("coordinator")
        try:
            with log.open("wb") as told:
                node = cluster.running["n1"] = subprocess.Popen(
                    cluster.command("n1"), cwd=ROOT, env=environment, stdout=told, stderr=told
                )
            assert heard.recv(100) == b"READY=1"
            assert heard.recv(100) == b"WATCHDOG=1"
            text = cluster.path.read_text()
            cluster.path.write_text(text.replace("priority = 100", "priority = 7"))
            node.send_signal(signal.SIGHUP)
            cluster.send("coordinator", signal.SIGHUP)
            cluster.until(lambda: '"event": "reloaded"' in log.read_text(), "the event")
            line = next(one for one in log.read_text().splitlines() if '"reloaded"' in one)
            assert '"restart": ["n1.priority"]' in line
            node.send_signal(signal.SIGTERM)
            while (state := heard.recv(100)) == b"WATCHDOG=1":
                pass
            assert state == b"STOPPING=1"
            assert node.wait(SECONDS) == 0
            assert cluster.stop("coordinator") == 0  # HUP did not end it
        finally:
            cluster.close()
