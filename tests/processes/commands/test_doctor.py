"""``doctor``, ``debug bundle`` and ``config diff`` on a cluster of real processes."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.processes import ROOT, Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def asked(cluster: Processes, *words: str) -> dict[str, Any]:
    """The document that a command prints, and its exit code."""
    line = [sys.executable, "-m", "twinlog", "-c", str(cluster.path), *words, "-o", "json"]
    found = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    document: dict[str, Any] = json.loads(found.stdout) if found.stdout else {}
    return {**document, "exit": found.returncode}


def test_an_operator_looks_for_what_is_wrong(processes: Processes, tmp_path: Path) -> None:
    """A node is killed: doctor names it, the bundle is made without it, and diff leaves it out."""
    master = processes.settled(3)
    away = next(name for name in ("n2", "n3") if name != master)
    found: dict[tuple[str, str], Any] = {}

    def healthy() -> bool:  # it rightly reports a node that stands still
        findings = asked(processes, "doctor")["findings"]
        found.update({(one["area"], one["check"]): one for one in findings})
        return bool(found["cluster", "health"]["result"] == "ok")

    processes.until(healthy, "a cluster that doctor finds healthy")
    assert found["cluster", "clocks"]["result"] == "ok"
    assert found[f"directory {away}", "store"]["found"] == "a node runs on it"
    assert found[f"directory {away}", "flush"]["result"] != "unknown"
    assert asked(processes, "config", "diff")["exit"] == 0

    processes.kill(away)
    processes.path.write_text(
        processes.path.read_text().replace('flush = "async"', 'flush = "sync"', 1)
    )
    findings = asked(processes, "doctor")["findings"]
    named = [one for one in findings if one["command"] == f"twinlog node start {away}"]
    assert named[0]["found"].startswith(f"{away} is not running")
    changed = asked(processes, "config", "diff")
    assert (changed["exit"], changed["unknown"]) == (1, [away])
    assert {(one["setting"], one["takes_effect"]) for one in changed["changes"]} == {
        ("storage.flush", "restart")
    }

    path = tmp_path / "bundle.tar.gz"
    made = asked(processes, "debug", "bundle", str(path))
    assert (made["exit"], made["missing"]) == (0, [])
    with tarfile.open(path) as archive:
        names = {name.removeprefix("twinlog-debug/") for name in archive.getnames()}
        metrics = archive.extractfile(f"twinlog-debug/nodes/{master}/metrics-2.txt")
        assert metrics is not None
        assert b"twinlog_writable 1.0" in metrics.read()
        events = archive.extractfile(f"twinlog-debug/nodes/{master}/events.txt")
        assert events is not None
        assert b'"event": "node_started"' in events.read()
    assert f"nodes/{away}/status.json" not in names
    assert {"doctor.json", "settings.json", "cluster.json", "history.json"} < names
    assert processes.stop(master) == 0
    assert not (processes.config.node(master).data / "twinlog" / "started.json").exists()


def test_with_tls_the_http_ports_are_asked_in_it(tmp_path: Path) -> None:
    """The bundle has metrics and events, and no key of a certificate."""
    pytest.importorskip("cryptography")
    cluster = Processes(tmp_path, tls=True)
    try:
        cluster.start_all()
        master = cluster.settled(3)
        path = tmp_path / "bundle.tar.gz"
        made = asked(cluster, "debug", "bundle", str(path))
        assert (made["exit"], made["missing"]) == (0, [])
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                file = archive.extractfile(member)
                assert file is not None
                assert b"PRIVATE KEY" not in file.read()
        assert f"nodes/{master}/metrics-1.txt" in [one["part"] for one in made["parts"]]
    finally:
        cluster.close()
