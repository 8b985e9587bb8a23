"""Drills on real processes: one that holds, one that is broken on purpose, one that cannot tell."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.fixtures.processes import ROOT, Processes

pytestmark = [pytest.mark.processes, pytest.mark.slow]

SECONDS = 300.0

SHORT = """
[drill]
title = "a slave is killed"
limit = "200 s"
[load]
writers = 2
before = "200 ms"
after = "200 ms"
[[fault]]
do = "{do}"
to = "{to}"
[promise]
in_sync_within = "100 s"
{promise}
"""


def started(folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start a drill whose files are all in ``folder``."""
    return subprocess.Popen(
        [sys.executable, "-m", "twinlog", "drill", "run", *words],
        cwd=folder,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(folder: Path, *words: str) -> tuple[int, dict[str, object], str]:
    """Run a drill; its exit code, its document, and what it said meanwhile."""
    process = started(folder, *words, "--report", str(folder / "report"), "-o", "json")
    out, err = process.communicate(timeout=SECONDS)
    assert out, err
    document: dict[str, object] = json.loads(out)
    return process.returncode, document, err


def written(folder: Path, promise: str, do: str = "kill", to: str = "slave") -> str:
    """A short drill as a file."""
    path = folder / "short.toml"
    path.write_text(SHORT.format(do=do, to=to, promise=promise))
    return str(path)


def test_a_drill_holds_and_leaves_a_page(tmp_path: Path) -> None:
    """The master is killed: verdict, page, history and logs; nothing else is left behind.

    The stored history is judged as it was, and broken once a message is taken out of it.
    """
    code, document, said = run(tmp_path, written(tmp_path, 'master = "changes"', to="master"))
    assert (code, document["verdict"]) == (0, "held"), document
    assert "kill n1" in said
    report = tmp_path / "report"
    page = (report / "report.html").read_text()
    for word in ("<svg", "kill n1", "e2", "not-linearizable"):
        assert word in page
    for link in ("http://", "https://", "<script", "src="):
        assert link not in page
    assert {"n1.log", "coordinator.log", "results.json"} <= set(os.listdir(report))
    assert not list(tmp_path.glob("twinlog-drill-*"))
    replay = [sys.executable, "-m", "twinlog", "drill", "replay", str(report)]
    assert subprocess.run(replay, cwd=ROOT, capture_output=True, check=False).returncode == 0
    history = report / "history.jsonl"
    lines = history.read_text().splitlines()
    lost = json.loads(lines[0])["records"][0]
    kept = [line.replace(f'"{lost}", ', "") if '"settled": true' in line else line
            for line in lines]  # fmt: skip
    history.write_text("\n".join(kept) + "\n")
    broken = subprocess.run(replay, cwd=ROOT, capture_output=True, text=True, check=False)
    assert broken.returncode == 1, broken.stdout
    again = [sys.executable, "-m", "twinlog", "drill", "report", str(report)]
    assert subprocess.run(again, cwd=ROOT, capture_output=True, check=False).returncode == 1
    assert "First counter-example" in (report / "report.html").read_text()


def test_a_loss_of_power_forgets_nothing_of_a_group(tmp_path: Path) -> None:
    """All nodes lose what they had not flushed: leases and acknowledgements that counted stay."""
    code, document, said = run(tmp_path, "power-loss-groups")
    assert (code, document["verdict"]) == (0, "held"), document
    assert "bytes were not flushed" in said
    assert "nothing is left" in json.dumps(document)


def test_a_promise_that_is_not_kept_is_exit_1(tmp_path: Path) -> None:
    """No master dies of a slave's death, so "the master changes" is broken."""
    code, document, _ = run(tmp_path, written(tmp_path, 'master = "changes"'))
    assert (code, document["verdict"]) == (1, "broken"), document


def test_a_drill_that_cannot_tell_is_exit_2(tmp_path: Path) -> None:
    """A fault about a node that is not there: unknown, with the reason, and all is tidied up."""
    code, document, _ = run(tmp_path, written(tmp_path, "", to="n9"))
    assert (code, document["verdict"]) == (2, "unknown"), document
    assert "n9" in str(document["headline"])
    assert not list(tmp_path.glob("twinlog-drill-*"))


def test_ctrl_c_leaves_nothing_running(tmp_path: Path) -> None:
    """In the middle of a drill: exit 130, no process and no file is left."""
    process = started(tmp_path, written(tmp_path, ""))
    until = time.monotonic() + SECONDS
    while not list(tmp_path.glob("twinlog-drill-*/n1/twinlog/run.json")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    (run_file,) = tmp_path.glob("twinlog-drill-*/n1/twinlog/run.json")
    pid = json.loads(run_file.read_text())["pid"]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    assert not Path(f"/proc/{pid}").exists()
    assert not list(tmp_path.glob("twinlog-drill-*"))


def test_a_users_cluster_is_asked_first(processes: Processes, tmp_path: Path) -> None:
    """What needs a cluster of the drill's own is refused; a switchover is asked for, and done."""
    cluster = ["--cluster", str(processes.path)]
    refused = started(tmp_path, "kill-master", *cluster)
    _, err = refused.communicate(timeout=SECONDS)
    assert refused.returncode == 64
    assert "cannot be rehearsed" in err
    asked = started(tmp_path, "switchover", *cluster, "--times", "2")
    _, err = asked.communicate(timeout=SECONDS)
    assert asked.returncode == 64
    assert "It makes the topic drill-" in err
    assert "held up" in err
    epoch = int(str(processes.status(processes.settled(3))["epoch"]))
    code, document, _ = run(tmp_path, "switchover", *cluster, "--times", "2", "--yes")
    assert (code, document["lost"]) == (0, 0), document
    assert int(str(processes.status(processes.settled(3))["epoch"])) == epoch + 2
