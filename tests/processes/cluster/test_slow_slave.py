"""A slave with a slow disk makes every confirmed write slow, and the commands say which one."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from storage.disk.drill_faults import PATH as FAULTS
from tests.fixtures.processes import ROOT, Processes
from twinlog import Client

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def asked(cluster: Processes, *words: str) -> dict[str, Any]:
    """The document that a command prints."""
    line = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), *words, "-o", "json"]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    document: dict[str, Any] = json.loads(found.stdout) if found.stdout else {}
    return {**document, "exit": found.returncode}


def test_the_slow_slave_is_named(tmp_path: Path) -> None:
    """Health, status and top name it while writes wait for it; the event is in the log."""
    cluster = Processes(tmp_path)
    text = cluster.path.read_text(encoding="utf-8")
    assert "[storage]\n" in text
    text = text.replace("[storage]\n", "[storage]\ndrill_faults = true\n", 1)
    text = text.replace('ack = "received"', 'ack = "durable"', 1)
    cluster.path.write_text(text, encoding="utf-8")
    stop = threading.Event()

    def send(endpoints: str) -> None:
        with Client(endpoints, timeout=60.0) as client:
            client.create_topic("orders", 1)
            while not stop.is_set():
                client.send("orders", b"x")

    sender = None
    try:
        cluster = Processes(tmp_path)
        cluster.start_all()
        master = cluster.settled(3)
        slow = next(name for name in ("n2", "n3") if name != master)
        host, port = cluster.address(master)
        sender = threading.Thread(target=send, args=(f"{host}:{port}",))
        sender.start()
        folder = cluster.config.node(slow).data
        (folder / FAULTS).write_text(json.dumps({"slow_seconds": 0.05}))
        found: dict[str, Any] = {}

        def named() -> bool:
            found.update(asked(cluster, "cluster", "health"))
            return "slow-slave" in [one["code"] for one in found["problems"]]

        cluster.until(named, "slow-slave")
        assert found["exit"] == 1
        problem = next(one for one in found["problems"] if one["code"] == "slow-slave")
        assert problem["text"].startswith(f"{slow} is slow: an acknowledgement takes ")
        assert problem["command"] == "twinlog cluster top"
        top = {one["node"].strip("*"): one for one in asked(cluster, "cluster", "top")["nodes"]}
        assert slow in (top[master]["waits_for"] or "")
        assert top[slow]["round_trip_seconds"] >= 0.05
        assert 0 < top[master]["sent_per_second"] < 40
        assert '"slave_slow"' in (cluster.folder / f"{master}.log").read_text()
        (folder / FAULTS).unlink()
        cluster.until(lambda: not asked(cluster, "cluster", "health")["problems"], "healthy again")
    finally:
        stop.set()
        if sender is not None:
            sender.join(60.0)
        cluster.close()
